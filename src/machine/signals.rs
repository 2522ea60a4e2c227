//! Gives the command of `run` the signal state with which gpulimit started. gpulimit becomes the
//! command, or runs it as a child process.
//!
//! Such a child behaves as if the caller had started it. It stays in gpulimit's process group, so
//! the terminal's signals reach it directly. gpulimit forwards signals sent to gpulimit's pid, and
//! suspends itself and ends as the child does.
//!
//! The kernel does not tell whether a signal was sent to a pid or to a process group. So a signal
//! to the group (`kill -TERM -PGID`) reaches the child twice.
#![allow(unsafe_code)]

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, getppid, kill_process,
    set_parent_process_death_signal, waitid,
};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// Returns the signals that gpulimit forwards to its child. Faults, SIGCHLD, background terminal
/// access and unblockable signals are left out.
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

/// The signals that a terminal sends to its whole process group. They reach the child directly.
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
    /// The child exited with this status.
    Exit(u8),
    /// This signal killed the child.
    Signal(libc::c_int),
}

/// The signal state, the umask and the closed descriptors with which this process started. The
/// command gets the same ones.
#[derive(Copy, Clone)]
pub struct Inherited {
    umask: libc::mode_t,
    mask: libc::sigset_t,
    child: libc::sigaction,
    pipe: libc::sighandler_t,
    file_size: libc::sighandler_t,
    /// One bit for each of the descriptors 0 to 2: set if it was closed when this process started.
    closed: u8,
}

/// True if SIGPIPE was ignored when this process started. Read before Rust's start-up code, which
/// ignores SIGPIPE.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);
/// One bit for each descriptor from 0 to 2: set if closed at the start. Read before Rust's start-up
/// code opens them.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The C library calls this function before `main` and before Rust's start-up code.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn look() {
        let pipe = disposition(libc::SIGPIPE).sa_sigaction;
        IGNORED_PIPE.store(pipe == libc::SIG_IGN, Ordering::Relaxed);
        for descriptor in 0..3 {
            // SAFETY: only asks whether the descriptor is open.
            if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
                CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
            }
        }
    }
    look
};

/// Returns whether a descriptor from 0 to 2 was closed when this process started.
pub fn was_closed(descriptor: u8) -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << descriptor) != 0
}

impl Inherited {
    /// Reads the signal mask and the dispositions of SIGCHLD and SIGXFSZ. Does not ignore SIGCHLD:
    /// the ends of children would be lost. Ignores SIGXFSZ, so that a write returns an error
    /// instead. Whatever the umask, this process itself makes files that their owner can use and
    /// others cannot write.
    pub fn read() -> Self {
        let (mut mask, child) = (set([]), disposition(libc::SIGCHLD));
        // SAFETY: reads the mask into a local variable, sets two dispositions without a handler,
        // and changes the umask, a number.
        let (umask, file_size) = unsafe {
            libc::sigprocmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
            let umask = libc::umask(0o077);
            libc::umask(umask & 0o055 | 0o022);
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            (umask, libc::signal(libc::SIGXFSZ, libc::SIG_IGN))
        };
        Self {
            umask,
            mask,
            child,
            pipe: match IGNORED_PIPE.load(Ordering::Relaxed) {
                true => libc::SIG_IGN,
                false => libc::SIG_DFL,
            },
            file_size,
            closed: CLOSED.load(Ordering::Relaxed),
        }
    }

    /// Restores the signal state, the umask and the closed descriptors. Makes only system calls
    /// that are allowed between fork and exec.
    fn restore(&self) -> io::Result<()> {
        // SAFETY: the values come from the kernel, and exec has reset all handlers. The closed
        // descriptors lead to `/dev/null` and are unused.
        let done = unsafe {
            for descriptor in (0..3).filter(|descriptor| self.closed & 1 << descriptor != 0) {
                libc::close(descriptor);
            }
            libc::umask(self.umask);
            libc::sigaction(libc::SIGCHLD, &self.child, ptr::null_mut()) == 0
                && libc::signal(libc::SIGPIPE, self.pipe) != libc::SIG_ERR
                && libc::signal(libc::SIGXFSZ, self.file_size) != libc::SIG_ERR
                && libc::sigprocmask(libc::SIG_SETMASK, &self.mask, ptr::null_mut()) == 0
        };
        done.then_some(()).ok_or_else(io::Error::last_os_error)
    }
}

/// Asks the kernel to kill this process when `parent` ends. A change of the process's user, such as
/// by a setuid program, cancels the request. Uses only calls allowed after fork.
fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the request took effect.
    if getppid() != Some(parent) {
        kill_process(getpid(), Signal::KILL)?;
    }
    Ok(())
}

/// Starts the command as a child process, which the kernel kills when this thread ends.
pub fn start_bound(command: &mut Command) -> io::Result<Child> {
    let own = getpid();
    // SAFETY: the closure makes only system calls that are allowed between fork and exec.
    unsafe { command.pre_exec(move || die_with(own)) };
    command.spawn()
}

/// Runs the command as a child process until the command ends. If this process is killed, the
/// kernel kills the command.
pub fn supervise(command: &mut Command, inherited: &Inherited) -> io::Result<End> {
    let waited = set(forwarded().chain([libc::SIGCHLD]));
    // SAFETY: changes only the signal state of this process, which has one thread.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &waited, ptr::null_mut()) };
    let before = *inherited;
    let own = getpid();
    // SAFETY: the closure makes only system calls that are allowed between fork and exec.
    unsafe { command.pre_exec(move || die_with(own).and_then(|()| before.restore())) };
    let child = match command.spawn() {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            inherited.restore()?;
            return Err(error);
        }
    };
    // Wait for signals until the child has ended. The kernel reports the child's end with SIGCHLD.
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: both pointers point to local variables.
        let signal = unsafe { libc::sigwaitinfo(&waited, info.as_mut_ptr()) };
        // SAFETY: a successful call filled in `info`; if the call failed, its zeroes are valid.
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
                unsafe { libc::kill(child.as_raw_pid(), signal) };
            }
            _ => {}
        }
    }
}

/// Replaces this process with the command, with the signal state and closed descriptors of the
/// start. Returns only on failure.
pub fn become_command(command: &mut Command, inherited: &Inherited) -> io::Error {
    let before = *inherited;
    // SAFETY: the closure makes only system calls that are allowed between fork and exec.
    unsafe { command.pre_exec(move || before.restore()) };
    command.exec()
}

/// Returns whether to forward a signal to the child. The terminal's signals reach the child
/// directly; the child's own are for gpulimit.
fn is_for_child(signal: libc::c_int, info: &libc::siginfo_t, child: Pid) -> bool {
    if info.si_code > 0 {
        return !OF_TERMINALS.contains(&signal);
    }
    // SAFETY: the code is at most 0, so kill or a similar call sent the signal and set the sender's
    // pid.
    unsafe { info.si_pid() != child.as_raw_pid() }
}

/// Reads the child's state changes from the kernel. Returns how the child ended, if it has.
fn changed(child: Pid) -> io::Result<Option<End>> {
    // Each round of this loop reads one state change, until the kernel reports no more.
    while let Some(state) = state(child, WaitIdOptions::EXITED | WaitIdOptions::STOPPED)? {
        if let Some(status) = state.exit_status() {
            return Ok(Some(End::Exit(status as u8)));
        }
        if let Some(signal) = state.terminating_signal() {
            return Ok(Some(End::Signal(signal)));
        }
        // A debugger may have stopped the child, or this process may have no terminal. Do not
        // suspend this process then.
        if state.stopping_signal().is_some_and(is_suspension) && has_terminal() {
            follow(child)?;
        }
    }
    Ok(None)
}

/// Returns whether this process has a terminal. Without one, no shell would resume this process
/// after it suspended itself.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

const fn is_suspension(signal: libc::c_int) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// Suspends this process, because the child was suspended. When this process gets SIGCONT, it
/// forwards that signal to the child.
fn follow(child: Pid) -> io::Result<()> {
    // Wait a moment: somebody may be resuming the whole process group just now.
    std::thread::sleep(Duration::from_millis(2));
    // Suspend this process only if the child is still stopped. The kernel reports each stop only
    // once.
    if state(child, WaitIdOptions::CONTINUED)?.is_none() {
        // SAFETY: sends a signal to this process.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    Ok(())
}

/// Returns the next change of the child's state, if there is one. Does not wait.
fn state(child: Pid, what: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
    Ok(waitid(WaitId::Pid(child), what | WaitIdOptions::NOHANG)?)
}

/// Ends this process by the signal that ended the child. Returns if that signal does not end
/// processes by default.
pub fn die_by(signal: libc::c_int) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let only = set([signal]);
    // SAFETY: changes only dispositions and limits of this process. A second core dump would
    // overwrite that of the child.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, ptr::null_mut());
        libc::raise(signal);
    }
}

/// Returns the disposition of a signal in this process.
fn disposition(signal: libc::c_int) -> libc::sigaction {
    let mut found = MaybeUninit::zeroed();
    // SAFETY: only reads the disposition into a local variable. All zeroes are a valid value.
    unsafe {
        libc::sigaction(signal, ptr::null(), found.as_mut_ptr());
        found.assume_init()
    }
}

/// Returns a set of these signals.
fn set(signals: impl IntoIterator<Item = libc::c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: sigemptyset initializes the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}
