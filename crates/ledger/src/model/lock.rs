//! File locks of models. One word holds all locks of a ledger file, with one byte for each lock.
//! The byte names the open file description that holds the lock, or is 0.
//!
//! A lock ends with the last reference to its description. Each operation on a lock is one step.

use super::MAX_SLOTS;
use super::atomic::AtomicU64;
use super::model::explorer::{self, Effect};
use super::model::fault::{self, Fault};
use std::cell::Cell;
use std::io;
use std::sync::Arc;

/// Number of slots in the ledger of a model.
pub(super) const SLOTS: usize = 4;
/// Largest number of ledgers in a model.
pub(super) const BOOKS: usize = 2;
/// Largest number of open file descriptions of one process.
const DESCRIPTIONS: u8 = 8;

thread_local! {
    static LOCKS: &'static [AtomicU64; BOOKS] = Box::leak(Box::default());
    /// The actor locks of the ledgers' slots.
    static ACTORS: &'static [AtomicU64; BOOKS] = Box::leak(Box::default());
    /// Number of slots that processes can claim; all other slots appear taken.
    static USED: Cell<usize> = const { Cell::new(SLOTS) };
    /// The numbers of all open file descriptions, as a set of bits.
    static OPEN: Cell<u128> = const { Cell::new(0) };
}

/// Returns the word that holds the actor locks of a ledger file.
pub(super) fn actors(book: usize) -> &'static AtomicU64 {
    ACTORS.with(|locks| &locks[book])
}

/// Returns the word that holds all other locks of a ledger file.
pub(super) fn locks(book: usize) -> &'static AtomicU64 {
    LOCKS.with(|locks| &locks[book])
}

/// Limits the number of slots that can be claimed. All other slots appear taken.
pub(super) fn use_slots(slots: usize) {
    USED.set(slots);
}

/// Returns the process that owns the open file description with this number.
pub(super) fn process(number: u8) -> Option<usize> {
    number
        .checked_sub(1)
        .map(|number| usize::from(number / DESCRIPTIONS))
}

/// A range of bytes of a model's ledger file that can be locked.
#[derive(Copy, Clone)]
pub(super) struct Bytes {
    start: usize,
    len: usize,
}

impl Bytes {
    pub(super) const fn owner(slot: usize) -> Self {
        Self {
            start: slot,
            len: 1,
        }
    }

    pub(super) const fn claim(slot: usize) -> Self {
        Self {
            start: MAX_SLOTS + slot,
            len: 1,
        }
    }

    pub(super) const fn actor(slot: usize) -> Self {
        Self {
            start: 2 * MAX_SLOTS + slot,
            len: 1,
        }
    }

    pub(super) const OWNERS: Self = Self {
        start: 0,
        len: MAX_SLOTS,
    };
    pub(super) const ALL: Self = Self::OWNERS;
    pub(super) const CLAIMS: Self = Self {
        start: MAX_SLOTS,
        len: MAX_SLOTS,
    };

    fn are_claims(self) -> bool {
        self.start / MAX_SLOTS == 1
    }

    /// Returns the word that holds these locks.
    fn word(self, book: usize) -> &'static AtomicU64 {
        match self.start / MAX_SLOTS {
            0 | 1 => locks(book),
            _ => actors(book),
        }
    }

    /// Returns the positions of these locks in the word of all locks. Empty if the model does not
    /// have the slot.
    pub(super) fn bytes(self) -> std::ops::Range<usize> {
        let (first, len) = (self.start % MAX_SLOTS, self.len.min(SLOTS));
        let len = if first < USED.get() { len } else { 0 };
        let first = first.min(SLOTS) + if self.are_claims() { SLOTS } else { 0 };
        first..first + len
    }

    fn others(self, word: u64, own: u8) -> bool {
        let holders = word.to_le_bytes();
        self.bytes()
            .any(|at| holders[at] != 0 && holders[at] != own)
    }

    pub(super) fn with(self, word: u64, holder: u8) -> u64 {
        let mut holders = word.to_le_bytes();
        holders[self.bytes()].fill(holder);
        u64::from_le_bytes(holders)
    }
}

/// Returns the number of the open file description that holds a lock; 0 if the lock is free.
pub(super) fn holder(word: u64, bytes: Bytes) -> u8 {
    word.to_le_bytes()[bytes.bytes().start]
}

/// Returns `word` without the locks for which `gone` returns true.
pub(super) fn without(word: u64, gone: impl Fn(usize, u8) -> bool) -> u64 {
    let mut holders = word.to_le_bytes();
    for (at, holder) in holders.iter_mut().enumerate() {
        if gone(at, *holder) {
            *holder = 0;
        }
    }
    u64::from_le_bytes(holders)
}

struct Open {
    book: usize,
    number: u8,
}

impl Drop for Open {
    fn drop(&mut self) {
        let number = self.number;
        for word in [locks(self.book), actors(self.book)] {
            if word.peek().to_le_bytes().contains(&number) {
                let close = |word| Some(without(word, |_, holder| holder == number));
                word.change(Effect::Write, close);
            }
        }
        OPEN.set(OPEN.get() & !(1 << number));
    }
}

/// An open file description.
pub(super) struct Description(Arc<Open>);

impl Description {
    pub(super) fn new(book: usize) -> Self {
        let first = 1 + explorer::process() as u8 * DESCRIPTIONS;
        // Callers outside a scenario, such as loom's threads, get the highest numbers.
        let last = if usize::from(first) > explorer::OBSERVER * usize::from(DESCRIPTIONS) {
            127
        } else {
            first + DESCRIPTIONS
        };
        let number = (first..last)
            .find(|number| OPEN.get() & 1 << number == 0)
            .expect("a process has few open files");
        OPEN.set(OPEN.get() | 1 << number);
        Self(Arc::new(Open { book, number }))
    }
}

impl std::fmt::Debug for Description {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "description {}", self.0.number)
    }
}

pub(super) fn try_lock(file: &Description, bytes: Bytes) -> io::Result<bool> {
    if bytes.are_claims() && fault::is(Fault::ClaimLockMissing) {
        return Ok(true);
    }
    if bytes.bytes().is_empty() {
        return Ok(false);
    }
    let own = file.0.number;
    let take = |word| (!bytes.others(word, own)).then(|| bytes.with(word, own));
    Ok(bytes.word(file.0.book).change(Effect::Write, take))
}

pub(super) fn unlock(file: &Description, bytes: Bytes) -> io::Result<()> {
    let own = file.0.number;
    let give = |word: u64| {
        let held = bytes.bytes();
        Some(without(word, |at, holder| {
            held.contains(&at) && holder == own
        }))
    };
    bytes.word(file.0.book).change(Effect::Write, give);
    Ok(())
}

pub(super) fn is_locked(file: &Description, bytes: Bytes) -> io::Result<bool> {
    if bytes.bytes().is_empty() {
        return Ok(true);
    }
    let (own, word) = (file.0.number, bytes.word(file.0.book));
    let claimed = locks(file.0.book).peek().to_le_bytes()[SLOTS..].contains(&own);
    if fault::is(Fault::OwnerLockUnseen) || claimed && fault::is(Fault::SecondLookMissing) {
        return Ok(false);
    }
    let free = word.change(Effect::Read, |word| {
        (!bytes.others(word, own)).then_some(word)
    });
    Ok(!free)
}

/// Keeps an open file description alive without a descriptor.
pub(super) struct Anchor {
    _open: Arc<Open>,
}

impl Anchor {
    pub(super) fn new(file: &Description) -> io::Result<Self> {
        Ok(Self {
            _open: Arc::clone(&file.0),
        })
    }
}
