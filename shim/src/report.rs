//! What `gpulimit doctor` asks the loaded library.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::fmt::Write;

use gpulimit_core::version;

use crate::table::{cuda, nvml};

/// This build's version and the formats of its files, as `version::text` has them. The string stays valid; `null` when out of memory.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpulimit_version() -> *const c_char {
    std::panic::catch_unwind(|| {
        CString::new(version::text()).map_or(std::ptr::null(), |text| text.into_raw().cast_const())
    })
    .unwrap_or(std::ptr::null())
}

/// One line per hook: symbol, class, and `resolved` or `not-in-driver`. The string stays valid; `null` when out of memory.
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
