//! Who we are, and what we may.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The effective user id: the one that files made by us belong to.
pub fn effective() -> u32 {
    // SAFETY: asks the kernel a question that cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether we may make files in this directory.
pub(super) fn may_write(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else {
        return false;
    };
    let how = libc::W_OK | libc::X_OK;
    // SAFETY: a NUL-terminated path.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), how, libc::AT_EACCESS) == 0 }
}
