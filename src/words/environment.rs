//! The environment of this process.

use std::ffi::OsString;

/// Reads an environment variable of this process.
pub fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}
