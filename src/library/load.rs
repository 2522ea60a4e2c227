//! Loads the library, to see whether the dynamic linker accepts it.
#![allow(unsafe_code)]

use libloading::os::unix::Library;
use std::path::Path;

/// Loads the library into this process, as the dynamic linker will do in the command. The error
/// says why that fails.
///
/// The library stays loaded. It has no effect here, because the linker finds other definitions of
/// its symbols first.
pub(super) fn load(path: &Path) -> Result<(), String> {
    // SAFETY: the constructors of libgpulimit.so change at most GPULIMIT_GROUP in the environment
    // of this process, which has one thread. Any other library is the user's own choice, and the
    // command would load it as well; root gets here only with a library that no other user can
    // change.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    std::mem::forget(library);
    Ok(())
}
