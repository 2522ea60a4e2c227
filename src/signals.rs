//! Gives the command of `run` the signal state with which gpulimit started. This process either
//! becomes the command, or supervises the command as a child process.
//!
//! A supervised child behaves as if the caller had started it directly: it gets the signals that
//! are sent to this process, and this process ends in the same way as the child.
//!
//! The child stays in this process's process group, so it gets the terminal's signals (interrupt,
//! quit, suspend, hang-up) directly. Signals that are sent to this process's pid are forwarded to
//! the child. A signal to the whole process group (`kill -TERM -PGID`) reaches the child twice. The
//! cause is that the kernel does not tell whether a signal was sent to the process or to its
//! process group. When the child is suspended, this process suspends itself as well, so that the
//! shell gets the terminal back.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// Returns the signals that this process forwards to its child: all signals except those that
/// cannot be blocked, those that faults cause, and those that concern this process's own children
/// and terminal.
fn forwarded() -> impl Iterator<Item = libc::c_int> {
    const KEPT: [libc::c_int; 11] = [
        libc::SIGKILL,
        libc::SIGSTOP,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
        libc::SIGCHLD,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    (1..=libc::SIGRTMAX()).filter(|signal| !KEPT.contains(signal))
}

/// The signals that a terminal sends to all processes of its process group. They reach the child
/// without being forwarded.
const OF_TERMINALS: [libc::c_int; 6] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// How the child ended.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum End {
    /// The command exited with this status.
    Exit(u8),
    /// This signal killed it.
    Signal(libc::c_int),
}

/// The signal state and the closed descriptors with which this process started. The command must
/// start with the same.
#[derive(Copy, Clone)]
pub struct Inherited {
    mask: libc::sigset_t,
    child: libc::sigaction,
    pipe: libc::sighandler_t,
    file_size: libc::sighandler_t,
    /// A bit for each of the descriptors 0 to 2, set if the descriptor was closed when this process
    /// started.
    closed: u8,
}

/// True if SIGPIPE was already ignored when this process started. Recorded before Rust's start-up
/// code runs, because that code ignores SIGPIPE in any case.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);
/// A bit for each of the descriptors 0 to 2, set if the descriptor was closed when this process
/// started. Recorded before Rust's start-up code runs, because that code opens `/dev/null` for
/// closed descriptors.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The C library's start-up code calls this function before `main`, and so before Rust's start-up
/// code.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn look() {
        let mut pipe = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only reads the disposition, into memory of this function that is valid as zeroes.
        let pipe = unsafe {
            libc::sigaction(libc::SIGPIPE, ptr::null(), pipe.as_mut_ptr());
            pipe.assume_init()
        };
        IGNORED_PIPE.store(pipe.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
        for descriptor in 0..3 {
            // SAFETY: only asks whether the descriptor is open.
            if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
                CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
            }
        }
    }
    look
};

impl Inherited {
    /// Reads the signal mask and the dispositions of SIGCHLD and SIGXFSZ; the rest of the state was
    /// recorded before `main`. Then ignores SIGXFSZ, so that a write beyond the limit on file sizes
    /// (`ulimit -f`) returns an error that this process can report.
    pub fn read() -> Self {
        let mut mask = empty();
        let mut child = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: reads the mask and a disposition into memory of this function, and ignores a
        // signal.
        let file_size = unsafe {
            libc::sigprocmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
            libc::sigaction(libc::SIGCHLD, ptr::null(), child.as_mut_ptr());
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN)
        };
        Self {
            mask,
            // SAFETY: the call filled `child` in, and zeroes are valid too.
            child: unsafe { child.assume_init() },
            pipe: match IGNORED_PIPE.load(Ordering::Relaxed) {
                true => libc::SIG_IGN,
                false => libc::SIG_DFL,
            },
            file_size,
            closed: CLOSED.load(Ordering::Relaxed),
        }
    }

    /// Restores the signal state and the closed descriptors of the start. Makes only system calls
    /// that are allowed between fork and exec.
    fn restore(&self) -> io::Result<()> {
        // SAFETY: the values came from the kernel. They contain no handlers, because exec resets
        // these. A descriptor that was closed is `/dev/null` now, and is not used after this call.
        let done = unsafe {
            for descriptor in (0..3).filter(|descriptor| self.closed & 1 << descriptor != 0) {
                libc::close(descriptor);
            }
            libc::sigaction(libc::SIGCHLD, &self.child, ptr::null_mut()) == 0
                && libc::signal(libc::SIGPIPE, self.pipe) != libc::SIG_ERR
                && libc::signal(libc::SIGXFSZ, self.file_size) != libc::SIG_ERR
                && libc::sigprocmask(libc::SIG_SETMASK, &self.mask, ptr::null_mut()) == 0
        };
        if done {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// Asks the kernel to kill this process, a child of `parent`, when the parent process ends. Makes
/// only system calls that are allowed between fork and exec.
///
/// The kernel drops this request if the child executes a setuid program, which only root may kill.
fn die_with(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: the calls take numbers only.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent process may have ended before `PR_SET_PDEATHSIG` took effect.
        if libc::getppid() != parent {
            libc::raise(libc::SIGKILL);
        }
    }
    Ok(())
}

/// Runs the command as a child process until the command ends. If this process is killed, the
/// kernel kills the command.
pub fn supervise(command: &mut Command, inherited: &Inherited) -> io::Result<End> {
    let mut waited = empty();
    // SAFETY: changes the mask and dispositions of this process, which has one thread. SIGCHLD may
    // have been ignored by the parent, and this process could then not wait for its child.
    unsafe {
        for signal in forwarded().chain([libc::SIGCHLD]) {
            libc::sigaddset(&mut waited, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &waited, ptr::null_mut());
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
    let before = *inherited;
    // SAFETY: getpid only returns a number.
    let own = unsafe { libc::getpid() };
    // SAFETY: the closure makes system calls only, which are allowed between fork and exec.
    unsafe { command.pre_exec(move || die_with(own).and_then(|()| before.restore())) };
    let child = match command.spawn() {
        // The cast is exact: the kernel's pids are positive numbers that fit into `pid_t`.
        Ok(child) => child.id() as libc::pid_t,
        Err(error) => {
            inherited.restore()?;
            return Err(error);
        }
    };
    // This loop ends when the child has ended, which the kernel reports with SIGCHLD.
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: both pointers lead to memory of this function.
        let signal = unsafe { libc::sigwaitinfo(&waited, info.as_mut_ptr()) };
        // SAFETY: `info` is valid as zeroes; a successful call filled it in.
        let info = unsafe { info.assume_init() };
        match signal {
            libc::SIGCHLD => {
                if let Some(end) = changed(child)? {
                    return Ok(end);
                }
            }
            signal if signal > 0 && is_for_child(signal, &info, child) => {
                // SAFETY: this process has not waited for the child yet, so the pid is still the
                // child's.
                unsafe { libc::kill(child, signal) };
            }
            _ => {}
        }
    }
}

/// Replaces this process with the command, which gets the signal state and the closed descriptors
/// of this process's start. Returns only if that fails.
pub fn become_command(command: &mut Command, inherited: &Inherited) -> io::Error {
    let before = *inherited;
    // SAFETY: the closure makes system calls only, which are allowed between fork and exec.
    unsafe { command.pre_exec(move || before.restore()) };
    command.exec()
}

/// Returns whether to forward a signal to the child. Forwards a signal that another process or a
/// timer has sent to this process. The terminal's signals have already reached the child directly,
/// and signals that the child sent itself are meant for this process.
fn is_for_child(signal: libc::c_int, info: &libc::siginfo_t, child: libc::pid_t) -> bool {
    if info.si_code > 0 {
        return !OF_TERMINALS.contains(&signal);
    }
    // SAFETY: signals with a code of at most 0 come from kill and similar calls, which set the
    // sender's pid.
    unsafe { info.si_pid() != child }
}

/// Reads the child's state changes from the kernel. Returns how the child ended, or `None` if it
/// still runs.
fn changed(child: libc::pid_t) -> io::Result<Option<End>> {
    // Each round of this loop reads one state change, until the kernel reports no more.
    loop {
        let Some((code, status)) = state(child, libc::WEXITED | libc::WSTOPPED)? else {
            return Ok(None);
        };
        match code {
            libc::CLD_EXITED => return Ok(Some(End::Exit(status as u8))),
            libc::CLD_KILLED | libc::CLD_DUMPED => return Ok(Some(End::Signal(status))),
            libc::CLD_STOPPED if is_suspension(status) && has_terminal() => follow(child)?,
            // The child was stopped in another way, for instance by a debugger, or this process has
            // no terminal: do not suspend this process.
            _ => {}
        }
    }
}

/// Returns whether this process has a terminal. Without a terminal, there is no shell that would
/// resume this process after a suspension.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

const fn is_suspension(signal: libc::c_int) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// Suspends this process, because the child was suspended. When SIGCONT resumes this process, the
/// signal is forwarded to the child.
fn follow(child: libc::pid_t) -> io::Result<()> {
    // Wait a moment: a SIGCONT for the whole process group may be about to reach the child.
    std::thread::sleep(Duration::from_millis(2));
    // Suspend this process only if the child is still stopped. The kernel reports a stop only once
    // (without WNOWAIT), so ask whether the child was resumed.
    if state(child, libc::WCONTINUED)?.is_none() {
        // SAFETY: sends a signal to this process.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    Ok(())
}

fn state(child: libc::pid_t, what: libc::c_int) -> io::Result<Option<(libc::c_int, libc::c_int)>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let id = child as libc::id_t;
    // SAFETY: `info` is memory of this function. The call does not block, so signals cannot
    // interrupt it.
    let status = unsafe { libc::waitid(libc::P_PID, id, info.as_mut_ptr(), what | libc::WNOHANG) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `info` is zeroes if the child has no change, else the call filled it in for a child.
    let (info, pid, status) = unsafe {
        let info = info.assume_init();
        (info, info.si_pid(), info.si_status())
    };
    Ok((pid != 0).then_some((info.si_code, status)))
}

/// Ends this process by the signal that ended the child. Returns if the default action of that
/// signal does not end processes.
pub fn die_by(signal: libc::c_int) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let mut only = empty();
    // SAFETY: changes dispositions and limits of this process only. The child has dumped core; a
    // core dump of this process would overwrite it.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        libc::sigaddset(&mut only, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, ptr::null_mut());
        libc::raise(signal);
    }
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: sigemptyset initializes the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}
