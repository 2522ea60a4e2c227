//! The memory mapping of the ledger file, and a memory page that detects forked children.
//!
//! A process that may write the ledger file can also truncate it. The mappings of all other
//! processes are then [lost](Mapping::is_lost).
#![allow(unsafe_code)]

use super::atomic::{AtomicU64, Ordering};
use super::layout::{Content, FILE_SIZE};
use gpulimit_base::pages::{Pages, lost};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;

/// A mark in memory that detects whether this memory was copied by a fork.
///
/// The kernel wipes the mark's page in a forked child, also after a raw clone. A child of vfork, or
/// of clone with CLONE_VM, shares the memory of its parent process and therefore counts as the
/// parent. Kernels before 4.14 cannot wipe pages. On these kernels the mark holds the pid of the
/// process that made it, and compares this pid with the caller's.
pub(super) struct Birthmark {
    pages: Pages,
    pid: u64,
}

impl Birthmark {
    const WIPES: u64 = 1;
    const PID_ONLY: u64 = 2;

    pub(super) fn new() -> io::Result<Self> {
        let pages = Pages::private(4096)?;
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
        // SAFETY: the page is mapped as long as `self` lives, aligned, zeroed by the kernel, and
        // used only as this word.
        unsafe { self.pages.start().cast().as_ref() }
    }

    /// Returns whether this process made the mark. Returns false if this process is a forked child,
    /// and a parent process made the mark.
    pub(super) fn is_ours(&self) -> bool {
        match self.word().load(Ordering::Relaxed) {
            Self::WIPES => true,
            Self::PID_ONLY => self.pid == u64::from(std::process::id()),
            _ => false,
        }
    }
}

/// Mapped pages that a forked child does not inherit.
pub(super) struct Unforked {
    // The pages are not unmapped in a forked child, because another mapping of the child may have
    // their addresses.
    pages: ManuallyDrop<Pages>,
    mark: Birthmark,
}

impl Unforked {
    pub(super) fn new(pages: Pages) -> io::Result<Self> {
        let mark = Birthmark::new()?;
        pages.advise(libc::MADV_DONTFORK)?;
        Ok(Self {
            pages: ManuallyDrop::new(pages),
            mark,
        })
    }
}

impl Drop for Unforked {
    fn drop(&mut self) {
        if self.mark.is_ours() {
            // SAFETY: the field is dropped only here, and never used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}

/// The mapped content of the ledger file, shared with all members. Forked children do not inherit
/// the mapping.
pub(super) struct Mapping {
    own: Unforked,
    writable: bool,
}

impl Mapping {
    /// Maps the whole ledger file. The caller has checked that the file's length is [`FILE_SIZE`].
    pub(super) fn new(file: &File, writable: bool) -> io::Result<Self> {
        let own = Unforked::new(Pages::of_file(file, FILE_SIZE as usize, writable)?)?;
        Ok(Self { own, writable })
    }

    /// Maps private memory that is zero, as the ledger of a model.
    #[cfg(all(test, loom))]
    pub(super) fn of_memory() -> io::Result<Self> {
        let own = Unforked::new(Pages::private(FILE_SIZE as usize)?)?;
        Ok(Self {
            own,
            writable: true,
        })
    }

    /// Returns the mapped content of the ledger. Every bit pattern is valid, and no value is
    /// trusted. The caller must not write the content unless [`Self::writable`].
    #[inline]
    pub(super) fn content(&self) -> &Content {
        // SAFETY: the mapping has the size of `Content` (`FILE_SIZE`), is page-aligned, and lives
        // as long as `self`. `Content` consists only of atomics, for which every value is valid and
        // concurrent writes are allowed.
        unsafe { self.own.pages.start().cast().as_ref() }
    }

    pub(super) fn writable(&self) -> bool {
        self.writable
    }

    /// Returns whether the ledger file was truncated. The mapped content then consists of private
    /// zeros. Costs one load as long as no mapping of this process was ever lost.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        lost::any() && self.own.pages.is_lost()
    }

    /// Returns whether the mapping exists in this process; false in a forked child.
    pub(super) fn is_ours(&self) -> bool {
        self.own.mark.is_ours()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_detects_a_forked_child() {
        let mut mark = Birthmark::new().expect("memory");
        assert!(mark.is_ours());
        mark.word().store(0, Ordering::Relaxed);
        assert!(!mark.is_ours(), "wiped, as in a forked child");
        // On kernels before Linux 4.14 the mark has this value and compares pids.
        mark.word().store(Birthmark::PID_ONLY, Ordering::Relaxed);
        assert!(mark.is_ours());
        mark.pid += 1;
        assert!(!mark.is_ours());
    }
}
