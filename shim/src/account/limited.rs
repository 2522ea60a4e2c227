//! Whether this process is to be limited at all.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU8, Ordering};

use gpulimit_group::Undisturbed;

const UNKNOWN: u8 = 0;
const UNLIMITED: u8 = 1;
const LIMITED: u8 = 2;
/// Whether the administrator's rules or the environment ask for a limit: the same in forked
/// children, so not in [`super::Process`].
static ASKED: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether this process is to be limited at all (also when the limit cannot be applied).
#[inline]
pub fn limited() -> bool {
    match ASKED.load(Ordering::Relaxed) {
        UNKNOWN => ask(),
        answer => answer == LIMITED,
    }
}

/// Whether it is known that this process is not [`limited`]: one look.
#[inline]
pub fn unlimited() -> bool {
    ASKED.load(Ordering::Relaxed) == UNLIMITED
}

#[cold]
fn ask() -> bool {
    let _undisturbed = Undisturbed::new();
    crate::message::tell_panics();
    // A fault of ours is no reason to run without a limit.
    let asked = catch_unwind(|| {
        crate::fault::point("question");
        !matches!(crate::membership::assignment(), Ok(None))
    });
    let limited = asked.unwrap_or(true);
    ASKED.store(if limited { LIMITED } else { UNLIMITED }, Ordering::Relaxed);
    limited
}

/// From now on this process runs without a limit.
pub fn let_go() {
    ASKED.store(UNLIMITED, Ordering::Relaxed);
}
