//! Whether the dynamic linker takes the library.
#![allow(unsafe_code)]

use libloading::os::unix::Library;
use std::path::Path;

/// Loads the library here, as the linker will do in the command; the error says why it does not.
///
/// It stays loaded: it has no effect in a program that does not find its symbols first.
pub(super) fn load(path: &Path) -> Result<(), String> {
    // SAFETY: our library's constructors touch at most GPULIMIT_GROUP in the environment of this
    // process, which has one thread. Another library is the user's own choice, and would be loaded
    // by the command as well; root gets here only with one that nobody else can change.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    std::mem::forget(library);
    Ok(())
}
