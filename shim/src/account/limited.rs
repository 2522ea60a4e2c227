//! Whether gpulimit limits this process.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU8, Ordering};

use gpulimit_group::Undisturbed;

const UNKNOWN: u8 = 0;
const UNLIMITED: u8 = 1;
const LIMITED: u8 = 2;
/// Whether rules or the environment ask for a limit on this process. The answer is the same in a
/// forked child.
static ASKED: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Returns whether this process is to be limited, even if the limit cannot be applied.
#[inline]
pub fn limited() -> bool {
    match ASKED.load(Ordering::Relaxed) {
        UNKNOWN => ask(),
        answer => answer == LIMITED,
    }
}

/// Returns whether [`limited`] has found earlier that this process is not to be limited. Reads only
/// one word of memory.
#[inline]
pub fn unlimited() -> bool {
    ASKED.load(Ordering::Relaxed) == UNLIMITED
}

#[cold]
fn ask() -> bool {
    let _undisturbed = Undisturbed::new();
    crate::message::tell_panics();
    // After a panic inside gpulimit, the process stays limited.
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
