//! Faults that tests ask for: debug builds panic at the point that `GPULIMIT_FAULT` names. Other
//! builds have no such points.

/// Panics here, where a test wants it.
#[cfg(debug_assertions)]
pub fn point(name: &str) {
    let wanted = std::env::var_os("GPULIMIT_FAULT").is_some_and(|wanted| wanted == name);
    assert!(!wanted, "fault {name}, requested by a test");
}

/// Does nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_: &str) {}
