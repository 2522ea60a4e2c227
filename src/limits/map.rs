//! The mapping of a limits file, and its lock: the only unsafe code of the limits.
#![allow(unsafe_code)]

use super::layout::{File, SIZE};
use std::fs;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

/// A limits file in memory, shared with everybody who maps it.
pub(super) struct Map(NonNull<File>);

// SAFETY: the mapping is memory like any other, and `File` is atomics throughout.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `file`, which has [`SIZE`] bytes at least; writable only where `write` says so.
    ///
    /// The descriptor is not needed afterwards.
    pub(super) fn of(file: &fs::File, write: bool) -> io::Result<Self> {
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                SIZE,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast())
            .map(Self)
            .ok_or_else(|| io::Error::other("mapped at address 0"))
    }
}

impl Deref for Map {
    type Target = File;

    fn deref(&self) -> &File {
        // SAFETY: page-aligned, `SIZE` bytes, mapped until drop; every bit pattern is a valid `File`. Nobody
        // stores through a read-only mapping: `Limits` only loads.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this size, and no borrow outlives the owner.
        unsafe { libc::munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

/// Takes the writers' lock on the description behind `file` and returns whether it was free.
///
/// The lock ends when `file` is closed, also by the death of its process.
pub(super) fn try_lock(file: &fs::File) -> io::Result<bool> {
    // SAFETY: plain integers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: an open descriptor and a `flock` that outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}
