//! Memory mappings: the file's content, and the page that tells a forked child.
//!
//! A process that truncates the file of others makes them die of SIGBUS at the next access. Nothing on a tmpfs path
//! prevents that (seals need a memfd), so the file's permissions are what protects a group: who may write its ledger
//! may also break it.
#![allow(unsafe_code)]

use super::atomic::{AtomicU64, Ordering};
use super::layout::{Content, FILE_SIZE};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

/// Pages mapped by this process and unmapped on drop.
pub(super) struct Pages {
    start: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: `Pages` is an address range; what may be done with the bytes is said by the types below, which hand out
// nothing but shared references to atomics.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn new(len: usize, protection: i32, flags: i32, fd: i32) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self { start, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: the range is a whole mapping of ours; both advices used only say what fork does with it.
        match unsafe { libc::madvise(self.start.as_ptr(), self.len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is a mapping of ours, and every reference into it borrows from `self`.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}

/// Tells whether this memory belongs to the process that made it, or was copied by fork.
///
/// A page that the kernel wipes in a forked child, also after raw clone. After vfork and clone with CLONE_VM the memory
/// is the parent's, and so is the answer. Kernels before 4.14 cannot wipe; there the pid decides.
pub(super) struct Birthmark {
    pages: Pages,
    pid: u64,
}

impl Birthmark {
    const WIPES: u64 = 1;
    const PID_ONLY: u64 = 2;

    pub(super) fn new() -> io::Result<Self> {
        let pages = Pages::new(
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
        )?;
        let wipes = pages.advise(libc::MADV_WIPEONFORK).is_ok();
        let mark = Self {
            pages,
            pid: u64::from(std::process::id()),
        };
        let value = if wipes { Self::WIPES } else { Self::PID_ONLY };
        mark.word().store(value, Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self`, aligned, zeroed by the kernel, and used as this word only.
        unsafe { self.pages.start.cast().as_ref() }
    }

    /// Whether this process made the mark.
    pub(super) fn is_ours(&self) -> bool {
        match self.word().load(Ordering::Relaxed) {
            Self::WIPES => true,
            Self::PID_ONLY => self.pid == u64::from(std::process::id()),
            _ => false,
        }
    }
}

/// The file's content, shared with all members. Not there in forked children.
pub(super) struct Mapping {
    // `None` after `forget`: in a forked child the range is not ours to unmap.
    pages: std::mem::ManuallyDrop<Pages>,
    mark: Birthmark,
    writable: bool,
}

impl Mapping {
    /// Maps the whole ledger. The file's length has been checked to be [`FILE_SIZE`].
    pub(super) fn new(file: &File, writable: bool) -> io::Result<Self> {
        let mark = Birthmark::new()?;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let pages = Pages::new(
            FILE_SIZE as usize,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
        )?;
        pages.advise(libc::MADV_DONTFORK)?;
        Ok(Self {
            pages: std::mem::ManuallyDrop::new(pages),
            mark,
            writable,
        })
    }

    /// Zeros in memory of this process's own, for models.
    #[cfg(all(test, loom))]
    pub(super) fn of_memory() -> io::Result<Self> {
        let pages = Pages::new(
            FILE_SIZE as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
        )?;
        Ok(Self {
            pages: std::mem::ManuallyDrop::new(pages),
            mark: Birthmark::new()?,
            writable: true,
        })
    }

    /// The content. Every bit pattern is valid; none is trusted. Must not be written when not [`Self::writable`].
    #[inline]
    pub(super) fn content(&self) -> &Content {
        // SAFETY: the mapping is as long as `Content` (asserted by `FILE_SIZE`), page-aligned, and lives as long as
        // `self`; `Content` is made of atomics only, for which every value is valid and concurrent writes are fine.
        unsafe { self.pages.start.cast().as_ref() }
    }

    pub(super) fn writable(&self) -> bool {
        self.writable
    }

    /// Whether the mapping exists in this process: false in a forked child.
    pub(super) fn is_ours(&self) -> bool {
        self.mark.is_ours()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mark.is_ours() {
            // SAFETY: dropped here and nowhere else.
            unsafe { std::mem::ManuallyDrop::drop(&mut self.pages) };
        }
    }
}
