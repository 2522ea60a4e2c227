//! Whether this process is to be limited by a group at all.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU8, Ordering};

use gpulimit_group::Undisturbed;

const UNKNOWN: u8 = 0;
const UNLIMITED: u8 = 1;
const LIMITED: u8 = 2;
/// Whether the administrator's rules or the environment ask for a limit. The answer is the same in
/// forked children, so it is not part of [`super::Process`].
static ASKED: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Returns whether this process is to be limited, also when the limit cannot be applied.
#[inline]
pub fn limited() -> bool {
    match ASKED.load(Ordering::Relaxed) {
        UNKNOWN => ask(),
        answer => answer == LIMITED,
    }
}

/// Returns whether this process is known not to be [`limited`]. Costs one load.
#[inline]
pub fn unlimited() -> bool {
    ASKED.load(Ordering::Relaxed) == UNLIMITED
}

#[cold]
fn ask() -> bool {
    let _undisturbed = Undisturbed::new();
    crate::message::tell_panics();
    // After a panic in the library itself the process is still limited.
    let asked = catch_unwind(|| {
        crate::fault::point("question");
        !matches!(crate::membership::assignment(), Ok(None))
    });
    let limited = asked.unwrap_or(true);
    ASKED.store(if limited { LIMITED } else { UNLIMITED }, Ordering::Relaxed);
    limited
}

/// Lets this process run without a limit from now on.
pub fn let_go() {
    ASKED.store(UNLIMITED, Ordering::Relaxed);
}
