//! Memory mapped by this process, and unmapped on drop. A shared file may be cut short meanwhile:
//! see [`lost`].
#![allow(unsafe_code)]

pub mod lost;

use lost::Watch;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

/// Whole pages.
pub struct Pages {
    start: NonNull<libc::c_void>,
    len: usize,
    /// Of a file whose content is looked at.
    watch: Option<Watch>,
}

// SAFETY: `Pages` is an address range; what may be done with the bytes is said by the types made of
// it, which hand out nothing but shared references to atomics.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(len: usize, protection: i32, flags: i32, fd: i32) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self {
                start,
                len,
                watch: None,
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Zeros of this process's own.
    pub fn private(len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        Self::map(len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// The first `len` bytes of a file, shared with everybody who maps it. The descriptor is not
    /// needed afterwards. Where somebody cuts the file short they become zeros, and are
    /// [lost](Self::is_lost).
    pub fn of_file(file: &File, len: usize, writable: bool) -> io::Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let mut pages = Self::map(len, protection, libc::MAP_SHARED, file.as_raw_fd())?;
        pages.watch = Some(Watch::over(pages.start, len));
        Ok(pages)
    }

    /// A page of a file that cannot be looked at: it only keeps the file's description.
    pub fn unreadable(file: &File) -> io::Result<Self> {
        Self::map(4096, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Tells the kernel what fork does with them.
    pub fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: the range is a whole mapping of ours; both advices used only say what fork does
        // with it.
        match unsafe { libc::madvise(self.start.as_ptr(), self.len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Where they begin.
    #[inline]
    pub fn start(&self) -> NonNull<libc::c_void> {
        self.start
    }

    /// Whether the file was cut short, so that what is read here is not in it any more.
    pub fn is_lost(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_lost)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // First: the addresses may be somebody else's a moment later.
        self.watch = None;
        // SAFETY: the range is a mapping of ours, and every reference into it borrows from `self`.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}
