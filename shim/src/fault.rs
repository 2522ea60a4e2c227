//! Faults that tests inject: a debug build panics at the fault point that `GPULIMIT_DEBUG_FAULT`
//! names.

/// Panics if `GPULIMIT_DEBUG_FAULT` names the fault point `name`.
#[cfg(debug_assertions)]
pub fn point(name: &str) {
    let wanted = std::env::var_os("GPULIMIT_DEBUG_FAULT").is_some_and(|wanted| wanted == name);
    assert!(
        !wanted,
        "a test asked for a panic at the fault point {name} (GPULIMIT_DEBUG_FAULT)"
    );
}

/// Returns whether `GPULIMIT_DEBUG_FAULT` names a fault point. All of them are in handlers.
#[inline(always)]
pub fn is_asked_for() -> bool {
    cfg!(debug_assertions) && std::env::var_os("GPULIMIT_DEBUG_FAULT").is_some()
}

/// Has no effect: a build without debug assertions has no fault points.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_: &str) {}
