//! Loads libgpulimit.so into this process, to see whether the dynamic linker accepts it.
#![allow(unsafe_code)]

use libloading::os::unix::Library;
use std::path::Path;

/// Loads libgpulimit.so into this process, as the dynamic linker will later do in the command. If
/// this fails, the error says why.
///
/// The library stays loaded. It has no effect here: other definitions of its symbols come first.
pub(super) fn load(path: &Path) -> Result<(), String> {
    // SAFETY: loading runs the library's constructors. Those of libgpulimit.so change at most the
    // variable GPULIMIT_GROUP, and this process has one thread. Any other library is the user's own
    // choice, and the command would run it anyway. Root opens only libraries that others cannot
    // change.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    std::mem::forget(library);
    Ok(())
}
