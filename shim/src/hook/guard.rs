//! The re-entrancy guard: a driver call that the driver or gpulimit makes from inside a hook goes
//! straight to the driver.
//!
//! A program can leave a hook by `siglongjmp`. The hook then runs no code at its end, so a flag
//! would stay set. Instead, the guard stores the address of a word in the stack frame of the
//! thread's current hook. That word holds its own address.
//!
//! A call from further down the stack is inside the hook under two conditions:
//! - The word still holds its own address.
//! - The word lies above the place where the call entered `libgpulimit.so`.
//!
//! Otherwise the program has left the hook, and the call is handled like any other call.
//!
//! A driver call from another stack (of a signal handler or a fiber) goes straight to the driver.
//! Its handler might wait for ever for a lock that the interrupted hook holds.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;

#[cfg(not(test))]
use super::frames::start_of_library_frames;

/// In unit tests the program and gpulimit are one object, so the stack has no boundary between
/// them.
#[cfg(test)]
fn start_of_library_frames() -> usize {
    0
}

/// The number of words that a hook sets aside in its stack frame: 64 words, half a KiB.
const ROOM: usize = 64;

thread_local! {
    /// The address of the guard's word in the frame of this thread's current hook; 0 outside of
    /// hooks.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Marks the thread as outside of hooks when this value is dropped, also by a panic.
struct Inside<'a>(&'a Cell<usize>);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// Runs `work` as a hook of this thread. Returns `None` if the thread is inside a hook already or
/// is ending.
#[inline]
pub fn alone<T>(work: impl FnOnce() -> T) -> Option<T> {
    // `work` runs inside `try_with`, so that the thread-local variable is looked up once.
    let done = INSIDE.try_with(|inside| {
        // The guard uses the lowest word of `room`. After a jump out of the hook, the next call
        // enters above this word.
        let mut room = MaybeUninit::<[usize; ROOM]>::uninit();
        let word = room.as_mut_ptr().cast::<usize>();
        let here = word.expose_provenance();
        if inside.get() != 0 && !is_abandoned(inside.get(), here) {
            return None;
        }
        // SAFETY: writes to a local variable. The volatile write is necessary, because
        // `is_abandoned` reads the variable by its address.
        unsafe { word.write_volatile(here) };
        inside.set(here);
        let _inside = Inside(inside);
        Some(work())
    });
    done.unwrap_or(None)
}

/// Returns whether the program has left an earlier hook by a jump. `before` and `here`: the words
/// of the two hooks.
#[cold]
fn is_abandoned(before: usize, here: usize) -> bool {
    if here < before {
        // SAFETY: `is_readable` has found that the word can be read, and any bits are a valid
        // `usize`.
        let as_left = is_readable(before)
            && unsafe { std::ptr::with_exposed_provenance::<usize>(before).read_volatile() }
                == before;
        // The word of an abandoned hook may be intact. The word then lies below the place where
        // this call entered `libgpulimit.so`.
        return !as_left || before < start_of_library_frames();
    }
    !is_on_signal_stack(before) && is_one_stack(before, here)
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

/// Returns whether every page between two addresses can be read. Two stacks always have an
/// unreadable page between them.
fn is_one_stack(before: usize, here: usize) -> bool {
    const PAGE: usize = 4096;
    const LARGEST: usize = 64 << 20;
    here - before <= LARGEST && (before..here).step_by(PAGE).all(is_readable)
}

/// Returns whether a word can be read at `address`.
fn is_readable(address: usize) -> bool {
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
    answer == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_calls_pass_until_the_outer_hook_ends() {
        let outer = alone(|| {
            assert_eq!(alone(|| ()), None);
            assert_eq!(alone(|| ()), None, "a nested call ended the outer hook");
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

    /// Runs `run` so far down the stack that later calls do not overwrite the frame of `run`.
    #[inline(never)]
    fn far_down<T>(run: impl FnOnce() -> T) -> T {
        let room = std::hint::black_box([0u8; 1 << 16]);
        let answer = run();
        std::hint::black_box(room);
        answer
    }

    #[test]
    fn an_abandoned_hook_does_not_count() {
        let place = far_down(|| alone(|| INSIDE.get())).expect("not nested");
        assert_ne!(place, 0);
        // Leaves the guard as a jump out of the hook would leave it.
        INSIDE.set(place);
        assert_eq!(alone(|| 7), Some(7), "from further up");
        let mut word = MaybeUninit::<usize>::uninit();
        let there = word.as_mut_ptr().expose_provenance();
        for (content, answer) in [(5, Some(7)), (there, None)] {
            // SAFETY: writes to a local variable, as `alone` does.
            unsafe { word.as_mut_ptr().write_volatile(content) };
            INSIDE.set(there);
            assert_eq!(far_down(|| alone(|| 7)), answer, "from further down");
        }
        // The word of the abandoned hook lies in an unmapped page: its stack is gone.
        INSIDE.set(usize::MAX & !0xfff);
        assert_eq!(alone(|| 7), Some(7));
        // The word of the hook lies on another stack, far below this stack, with unmapped pages in
        // between.
        INSIDE.set(4096);
        assert_eq!(alone(|| 7), None);
        INSIDE.set(0);
    }
}
