//! A library to preload into programs on a simulated machine whose GPUs share the host's memory:
//! they read the machine's `/proc/meminfo`. Product code reads the file as it always does.
#![allow(unsafe_code, missing_docs)]

use std::ffi::{CStr, c_char, c_int};
use std::io::{Seek, Write};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

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

/// Returns a new file with the machine's `/proc/meminfo`; `None` if its GPUs have their own memory.
fn meminfo() -> Option<c_int> {
    let machine = Machine::get().ok()?;
    host::is_shared(machine).then_some(())?;
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(c"meminfo".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the descriptor is new, and nothing else owns it.
    let file = (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) })?;
    let mut file = std::fs::File::from(file);
    file.write_all(host::meminfo(machine).as_bytes()).ok()?;
    file.rewind().ok()?;
    Some(file.into_raw_fd())
}
