//! Loads libgpulimit.so into this process, to see whether the dynamic linker accepts it.
#![allow(unsafe_code)]

use libloading::os::unix::Library;
use std::path::Path;

/// Loads libgpulimit.so permanently, as in a command. The library has no effect here, because other
/// definitions of its symbols come first.
pub(super) fn load(path: &Path) -> Result<(), String> {
    // SAFETY: libgpulimit.so's constructors change at most GPULIMIT_GROUP, and this process has one
    // thread. Another library is the user's choice. Root opens only libraries that others cannot
    // change.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    std::mem::forget(library);
    Ok(())
}
