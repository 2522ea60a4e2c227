//! Re-entrancy: a call that the driver or we make from inside a hook goes straight to the driver.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Ends the protection, also when a handler panics.
struct Inside<'a>(&'a Cell<bool>);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Runs `work` as a hook of this thread. `None` when the thread is inside a hook already (or is being torn down: then we step aside too).
#[inline]
pub fn alone<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The work is done inside, so that the thread's flag is looked up once.
    let done = INSIDE.try_with(|inside| {
        if inside.replace(true) {
            return None;
        }
        let _inside = Inside(inside);
        Some(work())
    });
    done.unwrap_or(None)
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
}
