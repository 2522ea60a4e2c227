//! Re-entrancy: a call that the driver or we make from inside a hook goes straight to the driver.
//!
//! A program may leave a hook by `siglongjmp`, out of a signal handler that has interrupted a wait,
//! and then nothing here is told. So what is remembered is not "inside" but the place on the stack
//! at which the thread is inside. A call that comes from further up cannot be inside of that; one
//! from further down is, if the word at that place is as it was left, and above of where this call
//! came into the library. Else the hook was abandoned, and the call is one like any other.
//!
//! On another stack (of signals, of fibers) this says nothing, and the call goes straight to the
//! driver: what was interrupted may hold a lock that it would wait for.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;

#[cfg(not(test))]
use super::frames::start_of_ours;

/// Here the program and the library are one.
#[cfg(test)]
fn start_of_ours() -> usize {
    0
}

/// Words of a hook's frame that are set aside: half a KiB.
const ROOM: usize = 64;

thread_local! {
    /// The address of a word in the frame of the hook, which holds it, too; 0 outside.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Ends the protection, also when a handler panics.
struct Inside<'a>(&'a Cell<usize>);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// Runs `work` as a hook of this thread. `None` when the thread is inside a hook already (or is
/// being torn down: then we step aside too).
#[inline]
pub fn alone<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The work is done inside, so that the thread's word is looked up once.
    let done = INSIDE.try_with(|inside| {
        // The lowest word of some: what the program calls next, from a little further down, is then
        // above of it.
        let mut room = MaybeUninit::<[usize; ROOM]>::uninit();
        let word = room.as_mut_ptr().cast::<usize>();
        let here = word.expose_provenance();
        if inside.get() != 0 && !is_abandoned(inside.get(), here) {
            return None;
        }
        // SAFETY: a local variable; nobody but `is_abandoned` reads it, of which the compiler knows
        // nothing.
        unsafe { word.write_volatile(here) };
        inside.set(here);
        let _inside = Inside(inside);
        Some(work())
    });
    done.unwrap_or(None)
}

/// Whether the hook whose word was at `before` has been left without its end, as seen from a call
/// whose word would be `here`. Stacks grow downwards.
#[cold]
fn is_abandoned(before: usize, here: usize) -> bool {
    if here < before {
        // SAFETY: it can be read, and whatever is there makes a number.
        let as_left = is_readable(before)
            && unsafe { std::ptr::with_exposed_provenance::<usize>(before).read_volatile() }
                == before;
        // Frames of ours differ in size: the word may lie in those of this very call, and not be
        // written over yet.
        return !as_left || before < start_of_ours();
    }
    !is_on_signal_stack(before) && is_one_stack(before, here)
}

/// Whether this thread handles a signal on a stack made for that, and `before` is on another one.
fn is_on_signal_stack(before: usize) -> bool {
    // SAFETY: integers and a pointer, for which zero is valid.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: asks, into a structure of ours.
    let asked = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) } == 0;
    let start = stack.ss_sp.addr();
    asked
        && stack.ss_flags & libc::SS_ONSTACK != 0
        && !(start..start.saturating_add(stack.ss_size)).contains(&before)
}

/// Whether all between the two can be read, as it is where one was reached from the other: below
/// other stacks is a page that cannot.
fn is_one_stack(before: usize, here: usize) -> bool {
    const PAGE: usize = 4096;
    const LARGEST: usize = 64 << 20;
    here - before <= LARGEST && (before..here).step_by(PAGE).all(is_readable)
}

/// Whether a word can be read at this address.
fn is_readable(address: usize) -> bool {
    // SAFETY: the kernel reads a set of signals there, if it can, before it finds that it was not
    // told what to do with it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::c_long::from(-1),
            address,
            0usize,
            size_of::<u64>(),
        )
    };
    answer == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_calls_pass_until_the_outer_hook_ends() {
        let outer = alone(|| {
            assert_eq!(alone(|| ()), None);
            assert_eq!(alone(|| ()), None, "after a nested call too");
        });
        assert_eq!(outer, Some(()));
        assert_eq!(alone(|| 7), Some(7));
    }

    #[test]
    fn a_panic_ends_the_hook() {
        let broken = std::panic::catch_unwind(|| alone(|| panic!("broken")));
        assert!(broken.is_err());
        assert_eq!(alone(|| 7), Some(7));
    }

    /// So far down that what comes next does not reach it.
    #[inline(never)]
    fn far_down<T>(run: impl FnOnce() -> T) -> T {
        let room = std::hint::black_box([0u8; 1 << 16]);
        let answer = run();
        std::hint::black_box(room);
        answer
    }

    #[test]
    fn a_hook_that_was_left_without_its_end_is_none() {
        let place = far_down(|| alone(|| INSIDE.get())).expect("not nested");
        assert_ne!(place, 0);
        // As if somebody had jumped away from there.
        INSIDE.set(place);
        assert_eq!(alone(|| 7), Some(7), "from further up");
        let mut word = MaybeUninit::<usize>::uninit();
        let there = word.as_mut_ptr().expose_provenance();
        for (content, answer) in [(5, Some(7)), (there, None)] {
            // SAFETY: as `alone` writes it.
            unsafe { word.as_mut_ptr().write_volatile(content) };
            INSIDE.set(there);
            assert_eq!(far_down(|| alone(|| 7)), answer, "from further down");
        }
        // A stack that is gone.
        INSIDE.set(usize::MAX & !0xfff);
        assert_eq!(alone(|| 7), Some(7));
        // Another one, far below, with nothing in between.
        INSIDE.set(4096);
        assert_eq!(alone(|| 7), None);
        INSIDE.set(0);
    }
}
