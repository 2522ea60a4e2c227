//! Memory mappings: the file's content, and the page that tells a forked child.
//!
//! Who may write the file of others can also cut it short. What they have mapped is then
//! [lost](Mapping::is_lost).
#![allow(unsafe_code)]

use super::atomic::{AtomicU64, Ordering};
use super::layout::{Content, FILE_SIZE};
use gpulimit_base::pages::{Pages, lost};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;

/// Tells whether this memory belongs to the process that made it, or was copied by fork.
///
/// A page that the kernel wipes in a forked child, also after raw clone. After vfork and clone with
/// CLONE_VM the memory is the parent's, and so is the answer. Kernels before 4.14 cannot wipe;
/// there the pid decides.
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
        // SAFETY: the page is mapped as long as `self`, aligned, zeroed by the kernel, and used as
        // this word only.
        unsafe { self.pages.start().cast().as_ref() }
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

/// Pages that a forked child does not get.
pub(super) struct Unforked {
    // In a forked child the range is not this mapping's, so that it is not unmapped there.
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
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}

/// The file's content, shared with all members. Not there in forked children.
pub(super) struct Mapping {
    own: Unforked,
    writable: bool,
}

impl Mapping {
    /// Maps the whole ledger. The file's length has been checked to be [`FILE_SIZE`].
    pub(super) fn new(file: &File, writable: bool) -> io::Result<Self> {
        let own = Unforked::new(Pages::of_file(file, FILE_SIZE as usize, writable)?)?;
        Ok(Self { own, writable })
    }

    /// Zeros in memory of this process's own, for models.
    #[cfg(all(test, loom))]
    pub(super) fn of_memory() -> io::Result<Self> {
        let own = Unforked::new(Pages::private(FILE_SIZE as usize)?)?;
        Ok(Self {
            own,
            writable: true,
        })
    }

    /// The content. Every bit pattern is valid; none is trusted. Must not be written when not
    /// [`Self::writable`].
    #[inline]
    pub(super) fn content(&self) -> &Content {
        // SAFETY: the mapping is as long as `Content` (asserted by `FILE_SIZE`), page-aligned, and
        // lives as long as `self`; `Content` is made of atomics only, for which every value is
        // valid and concurrent writes are fine.
        unsafe { self.own.pages.start().cast().as_ref() }
    }

    pub(super) fn writable(&self) -> bool {
        self.writable
    }

    /// Whether the file was cut short: the content is then zeros of this process's own. One load as
    /// long as nothing ever was.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        lost::any() && self.own.pages.is_lost()
    }

    /// Whether the mapping exists in this process: false in a forked child.
    pub(super) fn is_ours(&self) -> bool {
        self.own.mark.is_ours()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_of_the_process_that_made_it() {
        let mut mark = Birthmark::new().expect("memory");
        assert!(mark.is_ours());
        mark.word().store(0, Ordering::Relaxed);
        assert!(!mark.is_ours(), "wiped, in a forked child");
        // As before Linux 4.14.
        mark.word().store(Birthmark::PID_ONLY, Ordering::Relaxed);
        assert!(mark.is_ours());
        mark.pid += 1;
        assert!(!mark.is_ours());
    }
}
