//! The guard: tells what a driver call is that is made inside of a hook. It is
//! - the program's, if the hook is in a call of CUDA (`driver/inside.rs`);
//! - otherwise NVML's own, as NVML calls some of its functions by their exported names, or that of
//!   a signal handler which has interrupted the library. It goes straight to the driver, because
//!   its handler might wait for ever for a lock that this thread holds.
//!
//! A program can leave a hook by `siglongjmp`, and the hook runs no code at its end. So the guard
//! stores the address of a word in the stack frame of the thread's current hook. That word holds
//! its own address. If it no longer does, or if a call comes from further up the stack, the program
//! has left the hook.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::driver::inside::{self, CLOSED, DRIVER, MARKS, NESTED};

/// A call that a signal handler makes lies at least this many bytes below the hook that the signal
/// has interrupted. The stack frames of two hooks that are called from one place differ by less.
const SIGNAL_FRAME: usize = 512;

/// Restores the thread's word when this value is dropped, also by a panic.
struct Inside(usize);

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        inside::set(self.0);
    }
}

/// Runs `work` as a hook of this thread, and tells it whether the program has called it inside of
/// another hook. Returns `None` if the call must go straight to the driver.
#[inline]
pub fn alone<T>(work: impl FnOnce(bool) -> T) -> Option<T> {
    let mut word = MaybeUninit::<usize>::uninit();
    let here = word.as_mut_ptr().expose_provenance();
    let before = inside::get();
    let now = match before {
        0 => here,
        before => within(before, here)?,
    };
    // SAFETY: writes to a local variable. The volatile write is necessary, because `within` reads
    // the variable by its address.
    unsafe { word.as_mut_ptr().write_volatile(here) };
    inside::set(now);
    let is_nested = now & NESTED != 0;
    let _inside = Inside(if is_nested { before } else { 0 });
    Some(work(is_nested))
}

/// Makes a driver call of a program. Outside of a hook, calls that the program makes inside of it
/// are nested.
#[inline]
pub fn visit<T>(call: impl FnOnce() -> T) -> T {
    match inside::get() {
        0 => inside::outermost(call),
        _ => call(),
    }
}

/// Returns the word for a call of which the thread's word is `before`, and the place on the stack
/// `here`. `None`: the call must go straight to the driver.
#[cold]
fn within(before: usize, here: usize) -> Option<usize> {
    let (outer, is_visit) = (before & !MARKS, before & DRIVER != 0);
    let least = if is_visit { 0 } else { SIGNAL_FRAME };
    let is_above = here.saturating_add(least) >= outer && !is_on_signal_stack(outer);
    if is_above || !is_intact(outer) {
        return Some(here);
    }
    is_visit.then_some(here | NESTED | before & CLOSED)
}

/// Returns whether this thread runs a signal handler on an alternate stack while the address
/// `before` lies on another stack.
fn is_on_signal_stack(before: usize) -> bool {
    // SAFETY: `stack_t` consists of integers and a pointer, for which zero is valid.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call only asks for the current stack, and `stack` is valid to write to.
    let asked = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) } == 0;
    let start = stack.ss_sp.addr();
    asked
        && stack.ss_flags & libc::SS_ONSTACK != 0
        && !(start..start.saturating_add(stack.ss_size)).contains(&before)
}

/// Returns whether the word at `address` can be read and holds its own address.
fn is_intact(address: usize) -> bool {
    // SAFETY: the kernel writes nothing, because -1 is no valid operation. A readable `address`
    // gives `EINVAL`, an unreadable one `EFAULT`.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::c_long::from(-1),
            address,
            0usize,
            size_of::<u64>(),
        )
    };
    answer == -1
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
        // SAFETY: the word can be read, and any bits are a valid `usize`.
        && unsafe { std::ptr::with_exposed_provenance::<usize>(address).read_volatile() } == address
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `run` so far down the stack that later calls do not overwrite the frame of `run`.
    #[inline(never)]
    fn far_down<T>(run: impl FnOnce() -> T) -> T {
        let room = std::hint::black_box([0u8; 1 << 16]);
        let answer = run();
        std::hint::black_box(room);
        answer
    }

    #[test]
    fn the_librarys_own_code_is_not_entered_again() {
        let outer = alone(|nested| {
            assert!(!nested);
            assert_eq!(far_down(|| alone(|_| ())), None);
            assert_eq!(
                far_down(|| alone(|_| ())),
                None,
                "a call ended the outer hook"
            );
        });
        assert_eq!(outer, Some(()));
        assert_eq!(alone(|nested| nested), Some(false));
    }

    #[test]
    fn calls_inside_of_driver_calls_are_nested() {
        let nested = || far_down(|| alone(|nested| (nested, inside::is_nested())));
        let closed = || far_down(|| alone(|_| inside::is_closed()));
        alone(|_| {
            for _ in 0..2 {
                assert_eq!(inside::visit(nested), Some((true, true)));
                assert!(!inside::is_nested());
            }
            assert_eq!(nested(), None);
            let inner = || far_down(|| alone(|_| inside::visit(nested)));
            assert_eq!(inside::visit(inner), Some(Some((true, true))));
            assert_eq!(inside::visit(closed), Some(false));
            assert_eq!(inside::closed(|| inside::visit(closed)), Some(true));
        });
        assert_eq!(visit(nested), Some((true, true)));
        assert_eq!(inside::get(), 0);
    }

    #[test]
    fn a_panic_ends_the_hook() {
        let broken = std::panic::catch_unwind(|| alone(|_| panic!("broken")));
        assert!(broken.is_err());
        assert_eq!(alone(|_| 7), Some(7));
    }

    #[test]
    fn an_abandoned_hook_does_not_count() {
        let place = far_down(|| alone(|_| inside::get())).expect("not nested");
        assert_ne!(place, 0);
        for mark in [0, DRIVER] {
            // Leaves the guard as a jump out of the hook would leave it.
            inside::set(place | mark);
            assert_eq!(alone(|nested| nested), Some(false), "from further up");
        }
        let mut word = MaybeUninit::<usize>::uninit();
        let there = word.as_mut_ptr().expose_provenance();
        for (content, mark, answer) in [
            (5, 0, Some(false)),
            (5, DRIVER, Some(false)),
            (there, 0, None),
            (there, DRIVER, Some(true)),
        ] {
            // SAFETY: writes to a local variable, as `alone` does.
            unsafe { word.as_mut_ptr().write_volatile(content) };
            inside::set(there | mark);
            assert_eq!(far_down(|| alone(|nested| nested)), answer);
        }
        // The word of the abandoned hook lies in an unmapped page: its stack is gone.
        inside::set(usize::MAX & !0xfff);
        assert_eq!(alone(|_| 7), Some(7));
        inside::set(0);
    }
}
