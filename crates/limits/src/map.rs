//! The mapping of a limits file, and its lock: the only unsafe code of the limits.
#![allow(unsafe_code)]

use super::layout::{File, SIZE};
use gpulimit_base::pages::Pages;
use std::fs;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;

/// A limits file in memory, shared with everybody who maps it.
pub(super) struct Map(Pages);

impl Map {
    /// Maps `file`, which has [`SIZE`] bytes at least; writable only where `write` says so.
    ///
    /// The descriptor is not needed afterwards.
    pub(super) fn of(file: &fs::File, write: bool) -> io::Result<Self> {
        Pages::of_file(file, SIZE, write).map(Self)
    }

    /// Whether the file was cut short: the content is then zeros, which allow nothing.
    pub(super) fn is_lost(&self) -> bool {
        self.0.is_lost()
    }
}

impl Deref for Map {
    type Target = File;

    fn deref(&self) -> &File {
        // SAFETY: page-aligned, `SIZE` bytes, mapped until drop; every bit pattern is a valid
        // `File`. Nobody stores through a read-only mapping: `Limits` only loads.
        unsafe { self.0.start().cast().as_ref() }
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
