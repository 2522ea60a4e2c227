//! Stops another process at chosen places.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::{null_mut, without_provenance_mut};

/// Indices of some numbers among the registers, as the kernel orders them.
#[cfg(target_arch = "x86_64")]
mod register {
    pub const COUNT: usize = 27;
    pub const PLACE: usize = 16;
    pub const CALL: usize = 15;
    pub const FIRST: usize = 14;
}
#[cfg(target_arch = "aarch64")]
mod register {
    pub const COUNT: usize = 34;
    pub const PLACE: usize = 32;
    pub const CALL: usize = 8;
    pub const FIRST: usize = 0;
}

/// A process that runs only when it is told to. It goes on by itself when the value is dropped.
pub struct Tracer {
    pid: i32,
}

/// The reason why the process has stopped.
pub enum Stop {
    /// The beginning or the end of a system call.
    Call(Call),
    /// The process is about to end.
    Ended,
}

/// A system call.
pub struct Call {
    pub number: u64,
    first: u64,
}

impl Call {
    pub fn is_read_of(&self, descriptor: u64) -> bool {
        self.number == libc::SYS_read as u64 && self.first == descriptor
    }

    pub fn is_write_to(&self, descriptor: u64) -> bool {
        self.number == libc::SYS_write as u64 && self.first == descriptor
    }
}

impl Tracer {
    /// Stops a child of this process that has one thread. All later calls must come from the same
    /// thread of this process.
    pub fn attach(pid: u32) -> Tracer {
        let tracer = Tracer { pid: pid as i32 };
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXIT;
        assert!(
            tracer.ask(libc::PTRACE_SEIZE, options as usize),
            "may trace"
        );
        tracer.ask(libc::PTRACE_INTERRUPT, 0);
        tracer.wait();
        tracer
    }

    fn ask(&self, request: libc::c_uint, data: usize) -> bool {
        // SAFETY: the requests of this file write no memory of this process.
        let answer = unsafe {
            libc::ptrace(
                request,
                self.pid,
                null_mut::<u8>(),
                without_provenance_mut::<u8>(data),
            )
        };
        answer == 0
    }

    /// Waits until the process stops; returns its status.
    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the call writes only `status`.
        let pid = unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL) };
        assert_eq!(pid, self.pid);
        status
    }

    fn registers(&self) -> [u64; register::COUNT] {
        let mut registers = [0; register::COUNT];
        let mut place = libc::iovec {
            iov_base: registers.as_mut_ptr().cast(),
            iov_len: size_of_val(&registers),
        };
        // SAFETY: the kernel writes at most the bytes of `registers`. NT_PRSTATUS is 1.
        let answer = unsafe {
            libc::ptrace(
                libc::PTRACE_GETREGSET,
                self.pid,
                without_provenance_mut::<u8>(1),
                &raw mut place,
            )
        };
        assert_eq!(answer, 0);
        registers
    }

    /// Lets the process run to the beginning or the end of its next system call.
    pub fn next_call(&self) -> Stop {
        loop {
            self.ask(libc::PTRACE_SYSCALL, 0);
            let status = self.wait();
            // The process that started it gets its status.
            if status >> 16 == libc::PTRACE_EVENT_EXIT {
                return Stop::Ended;
            }
            assert!(libc::WIFSTOPPED(status), "it ended: {status}");
            if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
                let registers = self.registers();
                return Stop::Call(Call {
                    number: registers[register::CALL],
                    first: registers[register::FIRST],
                });
            }
        }
    }

    /// Lets the process run, an instruction at a time, to the next one in this code.
    pub fn step_in(&self, code: &[Range<u64>]) {
        loop {
            self.ask(libc::PTRACE_SINGLESTEP, 0);
            let status = self.wait();
            assert!(libc::WIFSTOPPED(status), "it ended: {status}");
            let place = self.registers()[register::PLACE];
            if code.iter().any(|range| range.contains(&place)) {
                return;
            }
        }
    }

    /// Returns where the process has mapped the code of a library.
    pub fn code_of(&self, library: &str) -> Vec<Range<u64>> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).expect("a process");
        let code = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            (rest.starts_with("r-x") && line.ends_with(library))
                .then(|| Some(number(from)?..number(to)?))?
        };
        let ranges: Vec<_> = maps.lines().filter_map(code).collect();
        assert!(!ranges.is_empty(), "no {library} in {maps}");
        ranges
    }

    /// Lets the process go on by itself.
    pub fn detach(self) {}
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.ask(libc::PTRACE_DETACH, 0);
    }
}
