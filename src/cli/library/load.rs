//! Whether the dynamic linker takes the library, and which one it is.
#![allow(unsafe_code)]

use libloading::os::unix::{Library, Symbol};
use std::ffi::{CStr, c_char};
use std::path::Path;

/// Loads the library here, as the linker will do in the command, and asks for its version, as `version::text` has it; the error says why it does
/// not.
///
/// It stays loaded: it has no effect in a program that does not find its symbols first.
pub(super) fn version(path: &Path) -> Result<String, String> {
    // SAFETY: our library's constructors touch at most GPULIMIT_GROUP in the environment of this process, which
    // has one thread. Another library is the user's own choice, and would be loaded by the command as well.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    // SAFETY: `const char *gpulimit_version(void)`, a constant text that stays.
    let text = unsafe {
        let function: Result<Symbol<extern "C" fn() -> *const c_char>, _> =
            library.get(b"gpulimit_version\0");
        let text = function.map(|function| function());
        text.ok()
            .filter(|text| !text.is_null())
            .map(|text| CStr::from_ptr(text))
    };
    std::mem::forget(library);
    text.map(|text| text.to_string_lossy().into_owned())
        .ok_or_else(|| "it is not libgpulimit.so".into())
}
