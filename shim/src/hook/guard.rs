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
        (!nested).then_some(Guard(()))
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}
