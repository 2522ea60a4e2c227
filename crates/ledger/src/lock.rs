//! The only door to file locks. Open-file-description locks: who owns a slot, and who is claiming
//! or cleaning it.
//!
//! Unlike POSIX record locks they belong to the description, not to the process: they exclude
//! threads of one process, and closing another descriptor of the file does not drop them. No call
//! here waits.
#![allow(unsafe_code)]

use super::MAX_SLOTS;
use super::map::Unforked;
use gpulimit_base::interrupted;
use gpulimit_base::pages::Pages;
use std::io;
use std::os::fd::AsRawFd;

/// What locks belong to.
pub(super) use std::fs::File as Description;

/// A range of lock bytes.
#[derive(Copy, Clone)]
pub(super) struct Bytes {
    start: usize,
    len: usize,
}

impl Bytes {
    /// "Slot has an owner."
    pub(super) const fn owner(slot: usize) -> Self {
        Self {
            start: slot,
            len: 1,
        }
    }

    /// "Slot is being claimed or cleaned."
    pub(super) const fn claim(slot: usize) -> Self {
        Self {
            start: MAX_SLOTS + slot,
            len: 1,
        }
    }

    /// The owner bytes of all slots.
    pub(super) const OWNERS: Self = Self {
        start: 0,
        len: MAX_SLOTS,
    };
    /// All that there can be, in files of other versions, too.
    pub(super) const ALL: Self = Self { start: 0, len: 0 };
    /// The claim bytes of all slots.
    pub(super) const CLAIMS: Self = Self {
        start: MAX_SLOTS,
        len: MAX_SLOTS,
    };
}

const NO_LOCKS: &str = "no locks of open file descriptions here, which Linux has from 3.15 on";

fn control(file: &Description, command: i32, kind: i32, bytes: Bytes) -> io::Result<libc::flock> {
    // SAFETY: `flock` is plain integers, some of them padding in some libcs; zero is valid for all.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = bytes.start as libc::off_t;
    lock.l_len = bytes.len as libc::off_t;
    interrupted::again(|| {
        // SAFETY: these commands read and write one `flock`, which `lock` is.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
            0 => Ok(lock),
            _ => Err(io::Error::last_os_error()),
        }
    })
    .map_err(|error| match error.raw_os_error() {
        // Nothing else about these calls can be invalid.
        Some(libc::EINVAL) => io::Error::other(NO_LOCKS),
        _ => error,
    })
}

/// Takes the lock on `file`'s description; false when another description holds any of the bytes.
pub(super) fn try_lock(file: &Description, bytes: Bytes) -> io::Result<bool> {
    match control(file, libc::F_OFD_SETLK, libc::F_WRLCK, bytes) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Gives the lock back. Closing is not enough: a child forked meanwhile may have the descriptor
/// too.
pub(super) fn unlock(file: &Description, bytes: Bytes) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes).map(drop)
}

/// Whether another description holds any of the bytes. Works on a descriptor open for reading.
pub(super) fn is_locked(file: &Description, bytes: Bytes) -> io::Result<bool> {
    control(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)
        .map(|lock| i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Whether the file system keeps a lock whose descriptor is closed as long as the description is
/// mapped. `other` is another description of the same file, of which nobody else locks anything.
pub(super) fn are_kept(file: Description, other: &Description) -> io::Result<bool> {
    if !try_lock(&file, Bytes::owner(0))? {
        return Ok(true);
    }
    let _anchor = Anchor::new(&file)?;
    drop(file);
    is_locked(other, Bytes::owner(0))
}

/// Keeps an open file description, and the locks on it, alive without a descriptor.
///
/// The kernel drops the description when the mapping goes: on drop, exec, or death. A forked child
/// does not get it.
pub(super) struct Anchor {
    _page: Unforked,
}

impl Anchor {
    /// Anchors the description of `file`, whose descriptor may then be closed.
    pub(super) fn new(file: &Description) -> io::Result<Self> {
        // Never accessed: only the reference to the description counts.
        let page = Unforked::new(Pages::unreadable(file)?)?;
        Ok(Self { _page: page })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn what_one_description_has_no_other_gets() {
        let scratch = Scratch::new();
        let [one, other] = [0; 2].map(|_| scratch.place.open(true).expect("open"));
        let take = |bytes| try_lock(&one, bytes).expect("asked");
        let is_free = |bytes| {
            let free = !is_locked(&other, bytes).expect("asked");
            let taken = try_lock(&other, bytes).expect("asked");
            assert_eq!(free, taken);
            if taken {
                unlock(&other, bytes).expect("given back");
            }
            free
        };
        let last = MAX_SLOTS - 1;
        for slot in [0, 1, last] {
            for held in [Bytes::owner(slot), Bytes::claim(slot)] {
                assert!(take(held) && take(held), "one's own is no obstacle");
                assert!(!is_locked(&one, held).expect("asked"));
                for at in [0, 1, last] {
                    for bytes in [Bytes::owner(at), Bytes::claim(at)] {
                        assert_eq!(is_free(bytes), bytes.start != held.start);
                    }
                }
                assert_eq!(is_free(Bytes::OWNERS), held.start != slot);
                assert_eq!(is_free(Bytes::CLAIMS), held.start == slot);
                unlock(&one, held).expect("given back");
                assert!(is_free(held));
            }
        }
    }

    #[test]
    fn a_description_that_cannot_be_locked_is_an_error() {
        let scratch = Scratch::new();
        let readonly = scratch.place.open(false).expect("open");
        assert!(
            try_lock(&readonly, Bytes::owner(0)).is_err(),
            "that takes writing"
        );
        assert!(!is_locked(&readonly, Bytes::owner(0)).expect("asked"));
    }

    #[test]
    fn an_anchor_keeps_locks_without_a_descriptor() {
        let scratch = Scratch::new();
        let [one, other] = [0; 2].map(|_| scratch.place.open(true).expect("open"));
        assert!(try_lock(&one, Bytes::owner(3)).expect("asked"));
        let anchor = Anchor::new(&one).expect("mapped");
        drop(one);
        assert!(is_locked(&other, Bytes::owner(3)).expect("asked"));
        drop(anchor);
        assert!(!is_locked(&other, Bytes::owner(3)).expect("asked"));
    }
}
