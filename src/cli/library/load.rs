//! Whether the dynamic linker takes the library.
#![allow(unsafe_code)]

use libloading::os::unix::{Library, Symbol};
use std::ffi::c_char;
use std::path::Path;

/// Loads the library here, as the linker will do in the command; the error says why it does not.
///
/// It stays loaded: it has no effect in a program that does not find its symbols first.
pub(super) fn loads(path: &Path) -> Result<(), String> {
    // SAFETY: our library's constructors touch at most GPULIMIT_GROUP in the environment of this process, which
    // has one thread. Another library is the user's own choice, and would be loaded by the command as well.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    // SAFETY: looked for, not called.
    let mark: Result<Symbol<extern "C" fn() -> *const c_char>, _> =
        unsafe { library.get(b"gpulimit_hooks\0") };
    let found = mark.is_ok();
    std::mem::forget(library);
    if found {
        Ok(())
    } else {
        Err("it is not libgpulimit.so, or of another version".into())
    }
}
