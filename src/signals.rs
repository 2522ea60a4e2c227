//! What this process was started with, and the command that it becomes or supervises.
//!
//! A supervised child lives and dies as if it stood in our place: signals go to it, its end becomes
//! ours.
//!
//! The child stays in our process group, so what the terminal sends (interrupt, quit, suspend,
//! hang-up) reaches it without us. What somebody sends to our pid is passed on; who sends to the
//! whole group (`kill -TERM -PGID`) reaches the child twice, as the kernel does not tell the two
//! apart. When the child is suspended so are we, that the shell may go on.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// What is passed on to the child: every signal but those that cannot be blocked, those of faults,
/// and those that are about this process's own children and terminal.
fn passed() -> impl Iterator<Item = libc::c_int> {
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

/// What a terminal sends to all processes of its group, and so to the child as well.
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
    /// With this status.
    Exit(u8),
    /// By this signal.
    Signal(libc::c_int),
}

/// What this process was started with and the command is to find.
#[derive(Copy, Clone)]
pub struct Inherited {
    mask: libc::sigset_t,
    child: libc::sigaction,
    pipe: libc::sighandler_t,
    file_size: libc::sighandler_t,
    /// Of the first three descriptors.
    closed: u8,
}

/// Whether SIGPIPE was ignored, and which of the first three descriptors were closed, before Rust's
/// start-up changed both: it ignores the signal, and opens `/dev/null` in place of what is closed.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Called by the C library's start-up, before `main` and with it Rust's.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn look() {
        let mut pipe = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only asks; the place is ours, and valid as zeroes.
        let pipe = unsafe {
            libc::sigaction(libc::SIGPIPE, ptr::null(), pipe.as_mut_ptr());
            pipe.assume_init()
        };
        IGNORED_PIPE.store(pipe.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
        for descriptor in 0..3 {
            // SAFETY: only asks.
            if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
                CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
            }
        }
    }
    look
};

impl Inherited {
    /// Reads the mask and what becomes of SIGCHLD and SIGXFSZ; the rest was read before `main`.
    /// Ignores SIGXFSZ from here on: a file that may not become that large (`ulimit -f`) is an
    /// error of the write, which is reported.
    pub fn read() -> Self {
        let mut mask = empty();
        let mut child = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only asks, and ignores a signal; both places are ours.
        let file_size = unsafe {
            libc::sigprocmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
            libc::sigaction(libc::SIGCHLD, ptr::null(), child.as_mut_ptr());
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN)
        };
        Self {
            mask,
            // SAFETY: filled in by the call, and valid as zeroes.
            child: unsafe { child.assume_init() },
            pipe: match IGNORED_PIPE.load(Ordering::Relaxed) {
                true => libc::SIG_IGN,
                false => libc::SIG_DFL,
            },
            file_size,
            closed: CLOSED.load(Ordering::Relaxed),
        }
    }

    /// Puts it all back. Only calls what is allowed between fork and exec.
    fn restore(&self) -> io::Result<()> {
        // SAFETY: all of it was read from the kernel. A handler cannot be among it: exec left none.
        // A descriptor that was closed is `/dev/null` now, and nobody uses it after this.
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

/// Has the kernel kill this process, a child of `parent`, when its parent ends. Only calls what is
/// allowed between fork and exec.
///
/// The kernel forgets this where the child becomes a setuid program, which nobody but root may
/// kill.
fn die_with(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: plain numbers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before.
        if libc::getppid() != parent {
            libc::raise(libc::SIGKILL);
        }
    }
    Ok(())
}

/// Runs the command to its end. It is killed when this process is.
pub fn supervise(command: &mut Command, inherited: &Inherited) -> io::Result<End> {
    let mut waited = empty();
    // SAFETY: sets and dispositions of our own process, which has one thread. SIGCHLD may have been
    // ignored by whoever started us, and then no child could be waited for.
    unsafe {
        for signal in passed().chain([libc::SIGCHLD]) {
            libc::sigaddset(&mut waited, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &waited, ptr::null_mut());
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
    let before = *inherited;
    // SAFETY: asks the kernel a question that cannot fail.
    let own = unsafe { libc::getpid() };
    // SAFETY: the closure makes system calls and touches nothing else.
    unsafe { command.pre_exec(move || die_with(own).and_then(|()| before.restore())) };
    let child = match command.spawn() {
        // A pid is positive and fits.
        Ok(child) => child.id() as libc::pid_t,
        Err(error) => {
            inherited.restore()?;
            return Err(error);
        }
    };
    // Ends with the child, whose end is a SIGCHLD.
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: a set and a place of our own.
        let signal = unsafe { libc::sigwaitinfo(&waited, info.as_mut_ptr()) };
        // SAFETY: valid as zeroes, and filled in where the call came through.
        let info = unsafe { info.assume_init() };
        match signal {
            libc::SIGCHLD => {
                if let Some(end) = changed(child)? {
                    return Ok(end);
                }
            }
            signal if signal > 0 && is_for_child(signal, &info, child) => {
                // SAFETY: our child, which we have not waited for: its pid is its own.
                unsafe { libc::kill(child, signal) };
            }
            _ => {}
        }
    }
}

/// Becomes the command, with everything that we were started with. Returns only with an error.
pub fn become_command(command: &mut Command, inherited: &Inherited) -> io::Error {
    let before = *inherited;
    // SAFETY: as above.
    unsafe { command.pre_exec(move || before.restore()) };
    command.exec()
}

/// Whether somebody sent the signal to this process, or a timer that it was started with; not the
/// terminal, which sent it to the child as well, nor the child, which knows.
fn is_for_child(signal: libc::c_int, info: &libc::siginfo_t, child: libc::pid_t) -> bool {
    if info.si_code > 0 {
        return !OF_TERMINALS.contains(&signal);
    }
    // SAFETY: codes up to 0 are those of kill and its like, which come with the sender.
    unsafe { info.si_pid() != child }
}

/// Looks what became of the child: its end, or `None` while it goes on.
fn changed(child: libc::pid_t) -> io::Result<Option<End>> {
    // Each round takes one change of the child's; ends when there is none to tell.
    loop {
        let Some((code, status)) = state(child, libc::WEXITED | libc::WSTOPPED)? else {
            return Ok(None);
        };
        match code {
            libc::CLD_EXITED => return Ok(Some(End::Exit(status as u8))),
            libc::CLD_KILLED | libc::CLD_DUMPED => return Ok(Some(End::Signal(status))),
            libc::CLD_STOPPED if is_suspension(status) && has_terminal() => follow(child)?,
            // Stopped by a debugger or the like: no business of the shell.
            _ => {}
        }
    }
}

/// Without a terminal there is no shell that would wake us.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

const fn is_suspension(signal: libc::c_int) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// Stops as the child has. The SIGCONT that wakes us is passed on.
fn follow(child: libc::pid_t) -> io::Result<()> {
    // A SIGCONT for the whole group may be on its way to the child at this moment.
    std::thread::sleep(Duration::from_millis(2));
    // A child that was woken since has no stop left to report; WNOWAIT would not tell, so ask for
    // the waking.
    if state(child, libc::WCONTINUED)?.is_none() {
        // SAFETY: to ourselves.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    Ok(())
}

fn state(child: libc::pid_t, what: libc::c_int) -> io::Result<Option<(libc::c_int, libc::c_int)>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let id = child as libc::id_t;
    // SAFETY: a place of our own. The call does not wait, so no signal interrupts it.
    let status = unsafe { libc::waitid(libc::P_PID, id, info.as_mut_ptr(), what | libc::WNOHANG) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroes where the call had nothing to tell, else filled in for a child.
    let (info, pid, status) = unsafe {
        let info = info.assume_init();
        (info, info.si_pid(), info.si_status())
    };
    Ok((pid != 0).then_some((info.si_code, status)))
}

/// Ends this process by the signal that ended the child. Returns when that signal does not end
/// processes.
pub fn die_by(signal: libc::c_int) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let mut only = empty();
    // SAFETY: dispositions and limits of our own process. The child has dumped core; a second one
    // would hide it.
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
    // SAFETY: the call fills the set in.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}
