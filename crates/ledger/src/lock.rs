//! File locks of the ledger. Only this module takes such locks, and it never waits for one.
//!
//! - The owner byte of a slot is locked while the slot has a living owner.
//! - The claim byte is locked while the slot is being claimed or cleaned.
//! - The actor byte is locked while another process suspends or resumes the slot's owner.
//!
//! The locks belong to an open file description. Unlike POSIX record locks, they exclude threads of
//! the same process and survive closing another descriptor.
#![allow(unsafe_code)]

use super::MAX_SLOTS;
use super::map::Unforked;
use gpulimit_base::interrupted;
use gpulimit_base::pages::Pages;
use std::io;
use std::os::fd::AsRawFd;

/// An open file description: the kernel object that owns a file lock.
pub(super) use std::fs::File as Description;

/// A range of bytes of the ledger file that can be locked.
#[derive(Copy, Clone)]
pub(super) struct Bytes {
    start: usize,
    len: usize,
}

impl Bytes {
    /// Returns the owner byte of a slot. It is locked while the slot has a living owner.
    pub(super) const fn owner(slot: usize) -> Self {
        Self {
            start: slot,
            len: 1,
        }
    }

    /// Returns the owner bytes of a slot and of all later ones.
    pub(super) const fn owners_from(slot: usize) -> Self {
        Self {
            start: slot,
            len: MAX_SLOTS - slot,
        }
    }

    /// Returns the claim byte of a slot. It is locked while a process claims or cleans the slot.
    pub(super) const fn claim(slot: usize) -> Self {
        Self {
            start: MAX_SLOTS + slot,
            len: 1,
        }
    }

    /// Returns the actor byte of a slot. It is locked while another process suspends or resumes the
    /// slot's owner. Builds that do not know the byte leave it alone.
    pub(super) const fn actor(slot: usize) -> Self {
        Self {
            start: 2 * MAX_SLOTS + slot,
            len: 1,
        }
    }

    /// The owner bytes of all slots. They are locked while the slots have living owners.
    pub(super) const OWNERS: Self = Self {
        start: 0,
        len: MAX_SLOTS,
    };
    /// All bytes of a ledger file of any format version.
    pub(super) const ALL: Self = Self { start: 0, len: 0 };
    /// The claim bytes of all slots. They are locked while the slots are being claimed or cleaned.
    pub(super) const CLAIMS: Self = Self {
        start: MAX_SLOTS,
        len: MAX_SLOTS,
    };
}

const NO_LOCKS: &str =
    "this kernel has no open file description locks; Linux 3.15 or newer is needed";

fn control(file: &Description, command: i32, kind: i32, bytes: Bytes) -> io::Result<libc::flock> {
    // SAFETY: `flock` consists of integers, with padding in some C libraries; all zeros is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = bytes.start as libc::off_t;
    lock.l_len = bytes.len as libc::off_t;
    interrupted::again(|| {
        // SAFETY: these commands read and write only the structure `lock`.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
            0 => Ok(lock),
            _ => Err(io::Error::last_os_error()),
        }
    })
    .map_err(|error| match error.raw_os_error() {
        // EINVAL has only one cause here: the kernel is too old for open file description locks.
        Some(libc::EINVAL) => io::Error::other(NO_LOCKS),
        _ => error,
    })
}

/// Locks bytes of the file. Returns false if another open file description has locked any of them.
pub(super) fn try_lock(file: &Description, bytes: Bytes) -> io::Result<bool> {
    match control(file, libc::F_OFD_SETLK, libc::F_WRLCK, bytes) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Unlocks bytes of the file. Closing the file is not enough, because a forked child may keep the
/// open file description alive.
pub(super) fn unlock(file: &Description, bytes: Bytes) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes).map(drop)
}

/// Returns whether another open file description has locked any of the bytes. `file` may be open
/// for reading only.
pub(super) fn is_locked(file: &Description, bytes: Bytes) -> io::Result<bool> {
    control(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)
        .map(|lock| i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Tests whether a mapping keeps the lock of a closed descriptor. `other` opens the same file,
/// which no other process may lock.
pub(super) fn are_kept(file: Description, other: &Description) -> io::Result<bool> {
    if !try_lock(&file, Bytes::owner(0))? {
        return Ok(true);
    }
    let _anchor = Anchor::new(&file)?;
    drop(file);
    is_locked(other, Bytes::owner(0))
}

/// A mapping that keeps file locks alive without a descriptor, until drop, exec or death. Forked
/// children do not inherit the mapping.
pub(super) struct Anchor {
    _page: Unforked,
}

impl Anchor {
    /// Maps a page of `file`. The descriptor of `file` can then be closed without losing its locks.
    pub(super) fn new(file: &Description) -> io::Result<Self> {
        // The page is never accessed; it only keeps the open file description alive.
        let page = Unforked::new(Pages::unreadable(file)?)?;
        Ok(Self { _page: page })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_lock_excludes_other_descriptions_from_its_byte_alone() {
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
                assert!(
                    take(held) && take(held),
                    "the owner of a lock can take the lock again"
                );
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
            "locking requires write access"
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
