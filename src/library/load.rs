//! Loads libgpulimit.so into this process, to see whether the dynamic linker accepts it.
#![allow(unsafe_code)]

use libloading::os::unix::Library;
use std::path::Path;

/// Loads libgpulimit.so into this process, as the dynamic linker will later do in the command. The
/// error says why loading fails.
///
/// The library stays loaded. It has no effect in this process, because the dynamic linker finds
/// other definitions of the library's symbols first.
pub(super) fn load(path: &Path) -> Result<(), String> {
    // SAFETY: the constructors of libgpulimit.so change at most GPULIMIT_GROUP in the environment
    // of this process, which has one thread. Any other library is the user's own choice, and the
    // command would load it as well; root gets here only with a library that no other user can
    // change.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    std::mem::forget(library);
    Ok(())
}
