//! Who we are.
#![allow(unsafe_code)]

/// The effective user id: the one that files made by us belong to.
pub(super) fn effective() -> u32 {
    // SAFETY: asks the kernel a question that cannot fail.
    unsafe { libc::geteuid() }
}
