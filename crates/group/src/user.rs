//! The calling user and what that user may do.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the caller's effective user id, which owns the files that this process makes.
pub fn effective() -> u32 {
    gpulimit_base::process::id(libc::SYS_geteuid)
}

/// Returns whether the caller may make files in this directory.
pub(super) fn may_write(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else {
        return false;
    };
    let how = libc::W_OK | libc::X_OK;
    // SAFETY: `path` is a NUL-terminated string that lives through the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), how, libc::AT_EACCESS) == 0 }
}
