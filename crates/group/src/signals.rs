//! Signals that come while a request waits.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// The kernel ends a process that blocks one of these and makes it.
const FAULTS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];
/// Linux has no more on any of our architectures.
const LAST: c_int = 64;

/// As long as it lives, the program's handlers do not run in this thread: what comes stays pending,
/// and none can come unseen.
pub(super) struct Deferred {
    /// The mask of this thread before.
    before: libc::sigset_t,
    /// It is this thread's.
    _here: PhantomData<*const ()>,
}

impl Deferred {
    /// From here on.
    pub(super) fn new() -> Self {
        let mut all = full();
        for fault in FAULTS {
            // SAFETY: writes a set of this function.
            unsafe { libc::sigdelset(&raw mut all, fault) };
        }
        Self {
            before: change(libc::SIG_BLOCK, &all),
            _here: PhantomData,
        }
    }

    /// Whether a handler is to run. What has none has its effect now: the process ends or stops, or
    /// nothing happens.
    pub(super) fn has_come(&self) -> bool {
        let mut pending = empty();
        // SAFETY: writes a set of ours.
        unsafe { libc::sigpending(&raw mut pending) };
        let mut others = empty();
        let mut any = false;
        for signal in 1..=LAST {
            if !has(&pending, signal) || has(&self.before, signal) {
                continue;
            }
            if is_handled(signal) {
                return true;
            }
            add(&mut others, signal);
            any = true;
        }
        if any {
            change(libc::SIG_UNBLOCK, &others);
            change(libc::SIG_BLOCK, &others);
        }
        false
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        // Handlers run in here, and may jump away.
        change(libc::SIG_SETMASK, &self.before);
    }
}

/// As long as it lives, this thread and processes that it makes get no signal but SIGKILL and
/// SIGSTOP.
pub(super) struct Blocked {
    before: libc::sigset_t,
    /// It is this thread's.
    _here: PhantomData<*const ()>,
}

impl Blocked {
    /// From here on.
    pub(super) fn new() -> Self {
        Self {
            before: change(libc::SIG_BLOCK, &full()),
            _here: PhantomData,
        }
    }

    /// This signal comes through all the same: for a process made meanwhile.
    pub(super) fn let_through(signal: c_int) {
        change(libc::SIG_UNBLOCK, &only(signal));
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // Handlers run in here, and may jump away.
        change(libc::SIG_SETMASK, &self.before);
    }
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the call fills in a set of ours, whose every bit pattern is one.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn full() -> libc::sigset_t {
    let mut set = empty();
    // SAFETY: writes a set of this function.
    unsafe { libc::sigfillset(&raw mut set) };
    set
}

fn only(signal: c_int) -> libc::sigset_t {
    let mut set = empty();
    add(&mut set, signal);
    set
}

fn add(set: &mut libc::sigset_t, signal: c_int) {
    // SAFETY: writes a set that the caller lends.
    unsafe { libc::sigaddset(set, signal) };
}

fn has(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: reads a set of ours.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Changes the mask of this thread and returns the one before. `pthread_sigmask` by the name that
/// libc itself has had at all times.
fn change(how: c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty();
    // SAFETY: reads and writes sets of ours.
    unsafe { libc::sigprocmask(how, set, &raw mut before) };
    before
}

fn is_handled(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; the place is ours, and valid as zeroes.
    let handler = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    };
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static RAN: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handler(_: c_int) {
        RAN.fetch_add(1, Ordering::Relaxed);
    }

    fn act(signal: c_int, handler: libc::sighandler_t) {
        // SAFETY: the handlers here add to a counter, or are the system's.
        unsafe { libc::signal(signal, handler) };
    }

    /// To this thread alone: others run other tests.
    fn send(signal: c_int) {
        // SAFETY: this thread, and plain numbers.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    /// A signal to this thread that has a handler.
    pub(crate) fn send_one() {
        let signal = libc::SIGRTMIN() + 8;
        act(signal, nothing as *const () as libc::sighandler_t);
        send(signal);
    }

    extern "C" fn nothing(_: c_int) {}

    #[test]
    fn what_a_handler_is_for_is_seen_and_runs_it_at_the_end() {
        let first = libc::SIGRTMIN() + 5;
        act(first, handler as *const () as libc::sighandler_t);
        let signals = Deferred::new();
        assert!(!signals.has_come());
        send(first);
        assert!(signals.has_come());
        assert!(signals.has_come(), "it stays");
        assert_eq!(RAN.load(Ordering::Relaxed), 0);
        // One within the other, as nothing is known of who calls.
        assert!(!Deferred::new().has_come(), "blocked by another");
        assert_eq!(RAN.load(Ordering::Relaxed), 0);
        drop(signals);
        assert_eq!(RAN.load(Ordering::Relaxed), 1);
        assert!(!has(&change(libc::SIG_BLOCK, &empty()), first));
    }

    #[test]
    fn what_has_no_handler_is_none_and_is_gone() {
        let ignored = libc::SIGRTMIN() + 6;
        act(ignored, libc::SIG_IGN);
        let signals = Deferred::new();
        for signal in [ignored, libc::SIGURG] {
            send(signal);
            assert!(!signals.has_come());
            let mut pending = empty();
            // SAFETY: writes a set of ours.
            unsafe { libc::sigpending(&raw mut pending) };
            assert!(!has(&pending, signal));
            assert!(
                has(&change(libc::SIG_BLOCK, &empty()), signal),
                "blocked again"
            );
        }
    }

    #[test]
    fn what_the_program_has_blocked_itself_stays_blocked() {
        let blocked = libc::SIGRTMIN() + 7;
        act(blocked, handler as *const () as libc::sighandler_t);
        change(libc::SIG_BLOCK, &only(blocked));
        let signals = Deferred::new();
        send(blocked);
        assert!(!signals.has_come());
        drop(signals);
        assert!(has(&change(libc::SIG_BLOCK, &empty()), blocked));
        act(blocked, libc::SIG_IGN);
    }

    #[test]
    fn faults_are_nobodys_to_put_off() {
        let _signals = Deferred::new();
        let mask = change(libc::SIG_BLOCK, &empty());
        assert!(FAULTS.iter().all(|fault| !has(&mask, *fault)));
        assert!(has(&mask, libc::SIGTERM));
    }
}
