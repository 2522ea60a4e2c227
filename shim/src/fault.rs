//! Faults that tests ask for: a debug build panics at the point that `GPULIMIT_FAULT` names. Other
//! builds have no such points.

/// Panics if `GPULIMIT_FAULT` names this point.
#[cfg(debug_assertions)]
pub fn point(name: &str) {
    let wanted = std::env::var_os("GPULIMIT_FAULT").is_some_and(|wanted| wanted == name);
    assert!(!wanted, "fault {name}, requested by a test");
}

/// Has no effect: this build has no debug assertions.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_: &str) {}
