//! The memory mapping of the ledger file, and a memory page that detects forked children.
//!
//! Truncating the file makes all processes [lose](Mapping::is_lost) their mappings.
#![allow(unsafe_code)]

use super::atomic::{AtomicU64, Ordering};
use super::layout::{Content, FILE_SIZE};
use gpulimit_base::pages::{Pages, lost};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;

/// A mark that tells a process from its forked children. The kernel wipes the mark's page in a
/// forked child.
pub(super) struct Birthmark {
    pages: Pages,
    pid: u64,
}

impl Birthmark {
    const WIPES: u64 = 1;
    /// Linux before 4.14 cannot wipe pages, so `is_ours` compares pids.
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
        // SAFETY: the page is aligned, zeroed and mapped as long as `self` lives. The page is used
        // only as this word.
        unsafe { self.pages.start().cast().as_ref() }
    }

    /// Returns true in the process that made the mark, and false in its forked children.
    pub(super) fn is_ours(&self) -> bool {
        // A vfork child shares this memory and counts as the parent.
        match self.word().load(Ordering::Relaxed) {
            Self::WIPES => true,
            Self::PID_ONLY => self.pid == u64::from(std::process::id()),
            _ => false,
        }
    }
}

/// Mapped pages that a forked child does not inherit.
pub(super) struct Unforked {
    // A forked child does not unmap them: it may have mapped something else at their addresses.
    pages: ManuallyDrop<Pages>,
    /// `None` if a forked child does inherit the pages: see [`Unforked::forked`].
    mark: Option<Birthmark>,
}

impl Unforked {
    pub(super) fn new(pages: Pages) -> io::Result<Self> {
        let mark = Birthmark::new()?;
        pages.advise(libc::MADV_DONTFORK)?;
        Ok(Self {
            pages: ManuallyDrop::new(pages),
            mark: Some(mark),
        })
    }

    /// Keeps pages for a short time, without the three system calls that a mark takes. A forked
    /// child inherits the pages.
    fn forked(pages: Pages) -> Self {
        Self {
            pages: ManuallyDrop::new(pages),
            mark: None,
        }
    }

    fn is_ours(&self) -> bool {
        self.mark.as_ref().is_none_or(Birthmark::is_ours)
    }
}

impl Drop for Unforked {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: the field is dropped only here, and never used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}

/// The mapped content of the ledger file, which all members share. A forked child does not inherit
/// the mapping.
pub(super) struct Mapping {
    own: Unforked,
    writable: bool,
}

impl Mapping {
    /// Maps the whole ledger file. The caller has checked that the file is [`FILE_SIZE`] bytes
    /// long.
    pub(super) fn new(file: &File, writable: bool) -> io::Result<Self> {
        let own = Unforked::new(Pages::of_file(file, FILE_SIZE as usize, writable)?)?;
        Ok(Self { own, writable })
    }

    /// Maps the whole ledger file as [`Self::new`] does, for a short time. A forked child inherits
    /// the mapping.
    pub(super) fn brief(file: &File, writable: bool) -> io::Result<Self> {
        let own = Unforked::forked(Pages::of_file(file, FILE_SIZE as usize, writable)?);
        Ok(Self { own, writable })
    }

    /// Maps private memory full of zeros, which serves as the ledger of a model.
    #[cfg(all(test, loom))]
    pub(super) fn of_memory() -> io::Result<Self> {
        let own = Unforked::new(Pages::private(FILE_SIZE as usize)?)?;
        Ok(Self {
            own,
            writable: true,
        })
    }

    /// Returns the mapped content, which may hold any value. Do not write unless [`Self::writable`]
    /// is true.
    #[inline]
    pub(super) fn content(&self) -> &Content {
        // SAFETY: the aligned mapping has the size of `Content` and lives as long as `self`.
        // Atomics accept all values and concurrent writes.
        unsafe { self.own.pages.start().cast().as_ref() }
    }

    pub(super) fn writable(&self) -> bool {
        self.writable
    }

    /// Returns whether the ledger file was truncated, so that the content is private zeros. Usually
    /// costs one load.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        lost::any() && self.own.pages.is_lost()
    }

    /// Returns true in the process that made the mapping, and false in its forked children.
    pub(super) fn is_ours(&self) -> bool {
        self.own.is_ours()
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
        assert!(!mark.is_ours(), "the mark was wiped, as in a forked child");
        // On Linux before 4.14 a mark always has this value, and pids are compared instead.
        mark.word().store(Birthmark::PID_ONLY, Ordering::Relaxed);
        assert!(mark.is_ours());
        mark.pid += 1;
        assert!(!mark.is_ours());
    }
}
