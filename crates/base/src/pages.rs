//! Mapped memory of this process. Dropping the `Pages` value unmaps the memory. The module [`lost`]
//! handles mapped files that another process truncates.
#![allow(unsafe_code)]

pub mod lost;

use lost::Watch;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

/// A mapping of whole pages.
pub struct Pages {
    start: NonNull<libc::c_void>,
    len: usize,
    /// Detects truncation of the mapped file. `None` without a file, for unread content, and if too
    /// many mappings are watched.
    watch: Option<Watch>,
}

// SAFETY: `Pages` is only an address range. The types built on it hand out only shared references
// to atomics.
unsafe impl Send for Pages {}
// SAFETY: `Pages` is only an address range, as explained for `Send`.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(len: usize, protection: i32, flags: i32, fd: i32) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address of the new mapping, so it overlaps no memory in
        // use.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self {
                start,
                len,
                watch: None,
            }),
            // EAGAIN: `mlockall` would lock more than `ulimit -l`. Of a file it means a lease.
            _ => Err(match io::Error::last_os_error() {
                error if error.kind() == ErrorKind::WouldBlock => ErrorKind::OutOfMemory.into(),
                error => error,
            }),
        }
    }

    /// Maps new memory of zeros that is private to this process.
    pub fn private(len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        Self::map(len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Maps the first `len` bytes of a file as shared memory. If the file is truncated, the mapping
    /// is [lost](Self::is_lost) and reads as zeros.
    pub fn of_file(file: &File, len: usize, writable: bool) -> io::Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let mut pages = Self::map(len, protection, libc::MAP_SHARED, file.as_raw_fd())?;
        pages.watch = Some(Watch::over(pages.start, len));
        Ok(pages)
    }

    /// Maps one page of a file without access, only to keep the open file description and its locks
    /// alive.
    pub fn unreadable(file: &File) -> io::Result<Self> {
        Self::map(4096, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Tells the kernel how to treat these pages in a forked child.
    pub fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: `self` owns the whole mapping. Both kinds of advice that gpulimit uses only
        // affect fork.
        match unsafe { libc::madvise(self.start.as_ptr(), self.len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the address of the first mapped byte.
    #[inline]
    pub fn start(&self) -> NonNull<libc::c_void> {
        self.start
    }

    /// Returns whether the mapped file was truncated. The mapped bytes are then zeros and no longer
    /// the content of the file.
    pub fn is_lost(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_lost)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // Stop watching before unmapping: another mapping can get the same addresses as soon as
        // they are unmapped.
        self.watch = None;
        // SAFETY: `self` owns the mapping, and every reference into it borrows from `self`.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}
