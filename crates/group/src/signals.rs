//! Holds back the program's signal handlers while a request waits.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// The signals for a fault of the thread itself. If such a signal is blocked, the fault ends the
/// process.
const FAULTS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];
/// The highest signal number of Linux on all supported architectures.
const LAST: c_int = 64;

/// Holds back the program's signal handlers in this thread until this value is dropped. Signals
/// stay pending.
pub(super) struct Deferred {
    /// The thread's signal mask from before this value was made.
    before: libc::sigset_t,
    /// Keeps the value from moving to another thread, because the signal mask belongs to this
    /// thread.
    _here: PhantomData<*const ()>,
}

impl Deferred {
    /// Blocks all signals of this thread except those of faults.
    pub(super) fn new() -> Self {
        let mut all = full();
        for fault in FAULTS {
            // SAFETY: the call writes only `all`, a local set.
            unsafe { libc::sigdelset(&raw mut all, fault) };
        }
        Self {
            before: change(libc::SIG_BLOCK, &all),
            _here: PhantomData,
        }
    }

    /// Returns whether a signal with a handler is pending. A signal without a handler takes effect
    /// during this call.
    pub(super) fn has_pending(&self) -> bool {
        let mut pending = empty();
        // SAFETY: the call writes only `pending`, a local set.
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
        // This call runs the handlers of pending signals. A handler may jump out of the call.
        change(libc::SIG_SETMASK, &self.before);
    }
}

/// Holds back all signals except SIGKILL and SIGSTOP until this value is dropped, in this thread
/// and its new children.
pub(super) struct Blocked {
    before: libc::sigset_t,
    /// Keeps the value from moving to another thread, because the signal mask belongs to this
    /// thread.
    _here: PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks all signals of this thread.
    pub(super) fn new() -> Self {
        Self {
            before: change(libc::SIG_BLOCK, &full()),
            _here: PhantomData,
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // This call runs the handlers of pending signals. A handler may jump out of the call.
        change(libc::SIG_SETMASK, &self.before);
    }
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the call fills in a local set, for which every bit pattern is valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn full() -> libc::sigset_t {
    let mut set = empty();
    // SAFETY: the call writes only `set`, a local set.
    unsafe { libc::sigfillset(&raw mut set) };
    set
}

fn add(set: &mut libc::sigset_t, signal: c_int) {
    // SAFETY: the call writes only a set that the caller has borrowed mutably.
    unsafe { libc::sigaddset(set, signal) };
}

fn has(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: the call only reads a set that the caller has borrowed.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Changes the signal mask of this thread and returns the previous mask. Every glibc has
/// `sigprocmask` in libc, unlike `pthread_sigmask`.
fn change(how: c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty();
    // SAFETY: the call reads `set`, which the caller has borrowed, and writes `before`, a local
    // set.
    unsafe { libc::sigprocmask(how, set, &raw mut before) };
    before
}

fn is_handled(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only reads the signal's action into `action`, for which zeros are valid.
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
        // SAFETY: the handlers in these tests add to a counter, or are the system's own.
        unsafe { libc::signal(signal, handler) };
    }

    /// Sends a signal to this thread only, because other threads of the process run other tests.
    fn send(signal: c_int) {
        // SAFETY: the call gets this thread's own handle and a plain number.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    /// Sends this thread a signal that has a handler.
    pub(crate) fn send_one() {
        let signal = libc::SIGRTMIN() + 8;
        act(signal, nothing as *const () as libc::sighandler_t);
        send(signal);
    }

    extern "C" fn nothing(_: c_int) {}

    #[test]
    fn a_deferred_signal_is_seen_and_handled_at_the_end() {
        let first = libc::SIGRTMIN() + 5;
        act(first, handler as *const () as libc::sighandler_t);
        let signals = Deferred::new();
        assert!(!signals.has_pending());
        send(first);
        assert!(signals.has_pending());
        assert!(signals.has_pending(), "it stays");
        assert_eq!(RAN.load(Ordering::Relaxed), 0);
        // The caller can itself hold signals back; here the first `Deferred` holds them back.
        assert!(!Deferred::new().has_pending(), "blocked by another");
        assert_eq!(RAN.load(Ordering::Relaxed), 0);
        drop(signals);
        assert_eq!(RAN.load(Ordering::Relaxed), 1);
        assert!(!has(&change(libc::SIG_BLOCK, &empty()), first));
    }

    #[test]
    fn a_signal_without_a_handler_takes_effect_at_once() {
        let ignored = libc::SIGRTMIN() + 6;
        act(ignored, libc::SIG_IGN);
        let signals = Deferred::new();
        for signal in [ignored, libc::SIGURG] {
            send(signal);
            assert!(!signals.has_pending());
            let mut pending = empty();
            // SAFETY: the call writes only `pending`, a local set.
            unsafe { libc::sigpending(&raw mut pending) };
            assert!(!has(&pending, signal));
            assert!(
                has(&change(libc::SIG_BLOCK, &empty()), signal),
                "blocked again"
            );
        }
    }

    #[test]
    fn a_signal_that_the_program_blocked_stays_blocked() {
        let blocked = libc::SIGRTMIN() + 7;
        act(blocked, handler as *const () as libc::sighandler_t);
        let mut only = empty();
        add(&mut only, blocked);
        change(libc::SIG_BLOCK, &only);
        let signals = Deferred::new();
        send(blocked);
        assert!(!signals.has_pending());
        drop(signals);
        assert!(has(&change(libc::SIG_BLOCK, &empty()), blocked));
        act(blocked, libc::SIG_IGN);
    }

    #[test]
    fn faults_are_not_deferred() {
        let _signals = Deferred::new();
        let mask = change(libc::SIG_BLOCK, &empty());
        assert!(FAULTS.iter().all(|fault| !has(&mask, *fault)));
        assert!(has(&mask, libc::SIGTERM));
    }
}
