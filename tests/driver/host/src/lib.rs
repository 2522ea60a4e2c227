//! A library to preload into programs on a simulated machine whose GPUs share the host's memory:
//! they read the machine's `/proc/meminfo`. Product code reads the file as it always does.
#![allow(unsafe_code, missing_docs)]

use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::os::fd::IntoRawFd;

use gpulimit_sim::host;
use gpulimit_sim::machine::Machine;

/// The C library's `open64`. Without `O_CREAT` the third argument is undefined and not used.
///
/// # Safety
/// `path` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller passes a C string.
    if unsafe { CStr::from_ptr(path) } == c"/proc/meminfo"
        && let Some(file) = meminfo()
    {
        return file;
    }
    // SAFETY: the arguments are those of the caller.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int }
}

/// The C library's `open`.
///
/// # Safety
/// `path` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: passes the caller's arguments on. Both functions are the same on 64-bit systems.
    unsafe { open64(path, flags, mode) }
}

/// Returns a pipe with the machine's `/proc/meminfo`; `None` if its GPUs have their own memory. A
/// file would have to be within the limit on the size of files.
fn meminfo() -> Option<c_int> {
    let machine = Machine::get().ok()?;
    host::is_shared(machine).then_some(())?;
    let (reader, mut writer) = std::io::pipe().ok()?;
    writer.write_all(host::meminfo(machine).as_bytes()).ok()?;
    Some(reader.into_raw_fd())
}
