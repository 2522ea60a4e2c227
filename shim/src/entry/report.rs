//! The exported functions by which `gpulimit doctor` questions the loaded `libgpulimit.so`.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::fmt::Write;

use gpulimit_base::version;

use super::exports::{cuda, nvml};

/// The version text of this build. The controller reads it from the file, without loading
/// `libgpulimit.so`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_upper_case_globals)]
pub static gpulimit_version_text: [u8; version::BYTES.len()] = version::BYTES;

/// Returns one line per hook: symbol, class, and `resolved` or `not-in-driver`. The text is never
/// freed; null when out of memory.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpulimit_hooks() -> *const c_char {
    std::panic::catch_unwind(|| {
        let mut text = String::new();
        for (row, found) in cuda::CUDA.report().chain(nvml::NVML.report()) {
            let _ = writeln!(
                text,
                "{} {:?} {}",
                row.symbol.to_string_lossy(),
                row.class,
                if found { "resolved" } else { "not-in-driver" }
            );
        }
        CString::new(text).map_or(std::ptr::null(), |text| text.into_raw().cast_const())
    })
    .unwrap_or(std::ptr::null())
}

/// Returns 1 if a panic can be caught, and 0 without libgcc_s. The panic's message goes to standard
/// error.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpulimit_contains_panics() -> c_int {
    let panics = || panic!("this panic is a test by `gpulimit doctor` and not a bug");
    (crate::unwind::is_there() && std::panic::catch_unwind(panics).is_err()).into()
}
