//! Re-entrancy: a call that the driver or we make from inside a hook goes straight to the driver.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Held while a hook of this thread runs.
pub struct Guard(());

impl Guard {
    /// `None` when this thread is inside a hook already (or is being torn down: then we step aside too).
    #[inline]
    pub fn enter() -> Option<Guard> {
        let nested = INSIDE
            .try_with(|inside| inside.replace(true))
            .unwrap_or(true);
        // Made only here: one made and dropped on the way out would end the outer hook's protection.
        (!nested).then(|| Guard(()))
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_calls_pass_until_the_outer_hook_ends() {
        let outer = Guard::enter();
        assert!(outer.is_some());
        assert!(Guard::enter().is_none());
        assert!(Guard::enter().is_none(), "after a nested call too");
        drop(outer);
        assert!(Guard::enter().is_some());
    }
}
