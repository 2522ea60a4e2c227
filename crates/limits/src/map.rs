//! The mapping of a limits file, and the lock for its writers: the only unsafe code of this crate.
#![allow(unsafe_code)]

use super::layout::{File, SIZE};
use gpulimit_base::interrupted;
use gpulimit_base::pages::Pages;
use std::cell::UnsafeCell;
use std::fs;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// A limits file mapped into memory, shared with all processes that map it.
pub(super) struct Map(Pages);

impl Map {
    /// Maps `file`, of at least [`SIZE`] bytes, for reading. With `write`, also for writing.
    ///
    /// The mapping stays valid after `file` is closed.
    pub(super) fn of(file: &fs::File, write: bool) -> io::Result<Self> {
        Pages::of_file(file, SIZE, write).map(Self)
    }

    /// Returns whether the file was cut short after it was mapped. Its content then reads as zeros,
    /// which allow no memory.
    pub(super) fn is_lost(&self) -> bool {
        self.0.is_lost()
    }
}

impl Deref for Map {
    type Target = File;

    fn deref(&self) -> &File {
        // SAFETY: the mapping is page-aligned, has `SIZE` bytes and lives as long as `self`. Every
        // bit pattern is a valid `File`. `Limits` only loads through a read-only mapping.
        unsafe { self.0.start().cast().as_ref() }
    }
}

/// The content of a limits file that was read once, and room for a byte too many.
#[repr(align(64))]
pub(super) struct Copied(UnsafeCell<[u8; SIZE + 1]>);

const _: () = assert!(align_of::<Copied>() == align_of::<File>());

impl Copied {
    pub(super) fn empty() -> Self {
        Self(UnsafeCell::new([0; SIZE + 1]))
    }

    /// Reads `file`. Returns false if the file has another length than [`SIZE`], or cannot be read.
    pub(super) fn fill(&mut self, file: &fs::File) -> bool {
        let read = interrupted::again(|| file.read_at(self.0.get_mut(), 0));
        read.is_ok_and(|read| read == SIZE)
    }
}

impl Deref for Copied {
    type Target = File;

    fn deref(&self) -> &File {
        // SAFETY: the copy is as large as `File`, has its alignment, and lives as long as `self`.
        // Every bit pattern is a valid `File`. `Limits::read` only loads from the copy.
        unsafe { &*self.0.get().cast() }
    }
}

/// Tries to lock `file` for writers, until the file is closed or this process dies. Returns false
/// if the lock is taken.
pub(super) fn try_lock(file: &fs::File) -> io::Result<bool> {
    // SAFETY: `flock` consists of plain integers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and `lock` outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}
