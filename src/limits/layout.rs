//! The bytes of a limits file, and how a reader gets a consistent look at them while they change.
//!
//! Two banks and an `active` word that counts the changes; its lowest bit says which bank is valid. A writer fills
//! the other bank and then counts up, so a writer killed anywhere leaves the valid bank untouched. A reader looks at
//! `active` again afterwards: a bank is written again only after another change has been counted, so an unchanged
//! word means that nothing read was torn.
//!
//! Numbers are in the machine's byte order: the file never leaves the machine it is mapped on.

use super::{LimitSet, Selector};
use crate::device::{DeviceId, DeviceKind};
use crate::ledger::atomic::{AtomicU64, Ordering, fence};
use crate::units::Size;
use std::mem::{offset_of, size_of};

/// First eight bytes of a limits file.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"GPULIMTS");
/// The format that this code reads and writes.
pub(super) const FORMAT: u64 = 1;
/// Rules that a bank holds.
pub const MAX_RULES: usize = 64;

/// A whole limits file.
#[repr(C, align(64))]
pub(super) struct File {
    pub(super) magic: AtomicU64,
    pub(super) format: AtomicU64,
    pub(super) size: AtomicU64,
    reserved: [AtomicU64; 5],
    /// Changes so far; the lowest bit is the number of the valid bank.
    active: AtomicU64,
    padding: [AtomicU64; 7],
    banks: [Bank; 2],
}

#[repr(C)]
struct Bank {
    rules: AtomicU64,
    reserved: [AtomicU64; 7],
    entries: [Entry; MAX_RULES],
}

#[repr(C)]
struct Entry {
    /// What the rule is for.
    selector: AtomicU64,
    uuid: [AtomicU64; 2],
    /// How `max` is to be read.
    tag: AtomicU64,
    max: AtomicU64,
    /// For the keys high, low and min; zero.
    reserved: [AtomicU64; 3],
}

const _: () = {
    assert!(size_of::<File>() == SIZE && SIZE == 8448);
    assert!(offset_of!(File, magic) == 0);
    assert!(offset_of!(File, format) == 8);
    assert!(offset_of!(File, size) == 16);
    assert!(offset_of!(File, active) == 64);
    assert!(offset_of!(File, banks) == 128);
    assert!(size_of::<Bank>() == 4160);
    assert!(offset_of!(Bank, rules) == 0);
    assert!(offset_of!(Bank, entries) == 64);
    assert!(size_of::<Entry>() == 64);
    assert!(offset_of!(Entry, selector) == 0);
    assert!(offset_of!(Entry, uuid) == 8);
    assert!(offset_of!(Entry, tag) == 24);
    assert!(offset_of!(Entry, max) == 32);
};

/// Bytes of the file.
pub(super) const SIZE: usize = 128 + 2 * (64 + MAX_RULES * 64);

const SELECT_ALL: u64 = 1;
const SELECT_GPU: u64 = 2;
const SELECT_MIG: u64 = 3;

const TAG_BYTES: u64 = 1;
const TAG_PERCENT: u64 = 2;
const TAG_MAX: u64 = 3;

/// Looks that a reader takes before it gives up on a file that never stands still.
const LOOKS: u32 = 1_000;

impl File {
    /// The count of changes: an unequal answer means that the rules may be others now.
    pub(super) fn generation(&self) -> u64 {
        self.active.load(Ordering::Acquire)
    }

    /// One consistent look at the valid bank, with the generation it belongs to; `None` when the file changed
    /// under every look, which no honest writer brings about.
    fn look<T>(&self, read: impl Fn(&Bank) -> T) -> Option<(T, u64)> {
        for _ in 0..LOOKS {
            let before = self.generation();
            let seen = read(&self.banks[usize::from(before & 1 == 1)]);
            fence(Ordering::Acquire);
            if self.active.load(Ordering::Relaxed) == before {
                return Some((seen, before));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// The bytes that `device` may use, and the generation that says so. Bytes that make no sense allow nothing.
    pub(super) fn max(&self, device: &DeviceId, capacity: u64) -> (u64, u64) {
        let found = self.look(|bank| {
            let mut all = u64::MAX;
            for entry in bank.used() {
                match entry.selector() {
                    Some(Selector::Device(id)) if id == *device => return entry.max(capacity),
                    Some(Selector::All) => all = entry.max(capacity),
                    Some(Selector::Device(_)) => {}
                    None => return 0,
                }
            }
            all
        });
        found.unwrap_or_else(|| (0, self.generation()))
    }

    /// All rules; `None` when the bytes make no sense.
    pub(super) fn rules(&self) -> Option<LimitSet> {
        let read = |bank: &Bank| {
            let rule = |entry: &Entry| Some((entry.selector()?, entry.size()?));
            bank.used().iter().map(rule).collect::<Option<Vec<_>>>()
        };
        let (rules, _) = self.look(read)?;
        Some(LimitSet { rules: rules? })
    }

    /// Makes `set`, of [`MAX_RULES`] rules at most, the valid one. One writer at a time.
    pub(super) fn replace(&self, set: &LimitSet) {
        let next = self.active.load(Ordering::Relaxed).wrapping_add(1);
        // Whoever sees a word of the bank about to be written sees the count that made the other one valid.
        fence(Ordering::Release);
        let bank = &self.banks[usize::from(next & 1 == 1)];
        let rules = set.rules.len().min(MAX_RULES);
        bank.rules.store(rules as u64, Ordering::Relaxed);
        for (entry, (selector, size)) in bank.entries.iter().zip(&set.rules) {
            entry.store(selector, *size);
        }
        self.active.store(next, Ordering::Release);
    }

    /// The bytes of a new file that holds `set`.
    pub(super) fn bytes(set: &LimitSet) -> Vec<u8> {
        let file = Self::empty();
        file.magic.store(MAGIC, Ordering::Relaxed);
        file.format.store(FORMAT, Ordering::Relaxed);
        file.size.store(SIZE as u64, Ordering::Relaxed);
        file.replace(set);
        let mut out = Vec::with_capacity(SIZE);
        let mut put = |word: &AtomicU64| out.extend(word.load(Ordering::Relaxed).to_ne_bytes());
        [&file.magic, &file.format, &file.size]
            .into_iter()
            .for_each(&mut put);
        file.reserved.iter().for_each(&mut put);
        put(&file.active);
        file.padding.iter().for_each(&mut put);
        for bank in &file.banks {
            put(&bank.rules);
            bank.reserved.iter().for_each(&mut put);
            for entry in &bank.entries {
                put(&entry.selector);
                entry.uuid.iter().for_each(&mut put);
                put(&entry.tag);
                put(&entry.max);
                entry.reserved.iter().for_each(&mut put);
            }
        }
        out
    }

    fn empty() -> Box<Self> {
        fn zeroes<const N: usize>() -> [AtomicU64; N] {
            std::array::from_fn(|_| AtomicU64::new(0))
        }
        let entry = |_| Entry {
            selector: AtomicU64::new(0),
            uuid: zeroes(),
            tag: AtomicU64::new(0),
            max: AtomicU64::new(0),
            reserved: zeroes(),
        };
        let bank = |_| Bank {
            rules: AtomicU64::new(0),
            reserved: zeroes(),
            entries: std::array::from_fn(entry),
        };
        Box::new(Self {
            magic: AtomicU64::new(0),
            format: AtomicU64::new(0),
            size: AtomicU64::new(0),
            reserved: zeroes(),
            active: AtomicU64::new(0),
            padding: zeroes(),
            banks: std::array::from_fn(bank),
        })
    }
}

impl Bank {
    fn used(&self) -> &[Entry] {
        let rules = usize::try_from(self.rules.load(Ordering::Relaxed)).unwrap_or(MAX_RULES);
        &self.entries[..rules.min(MAX_RULES)]
    }
}

impl Entry {
    fn selector(&self) -> Option<Selector> {
        let kind = match self.selector.load(Ordering::Relaxed) {
            SELECT_ALL => return Some(Selector::All),
            SELECT_GPU => DeviceKind::Gpu,
            SELECT_MIG => DeviceKind::Mig,
            _ => return None,
        };
        let mut uuid = [0; 16];
        for (bytes, word) in uuid.chunks_exact_mut(8).zip(&self.uuid) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some(Selector::Device(DeviceId { uuid, kind }))
    }

    fn size(&self) -> Option<Size> {
        let value = self.max.load(Ordering::Relaxed);
        match self.tag.load(Ordering::Relaxed) {
            TAG_BYTES => Some(Size::Bytes(value)),
            TAG_PERCENT => u32::try_from(value)
                .ok()
                .filter(|part| *part <= 10_000)
                .map(Size::Percent),
            TAG_MAX => Some(Size::Max),
            _ => None,
        }
    }

    fn max(&self, capacity: u64) -> u64 {
        self.size().map_or(0, |size| size.resolve(capacity))
    }

    fn store(&self, selector: &Selector, size: Size) {
        let (kind, uuid) = match selector {
            Selector::All => (SELECT_ALL, [0; 16]),
            Selector::Device(id) => match id.kind {
                DeviceKind::Gpu => (SELECT_GPU, id.uuid),
                DeviceKind::Mig => (SELECT_MIG, id.uuid),
            },
        };
        let (tag, value) = match size {
            Size::Bytes(bytes) => (TAG_BYTES, bytes),
            Size::Percent(part) => (TAG_PERCENT, part.into()),
            Size::Max => (TAG_MAX, 0),
        };
        self.selector.store(kind, Ordering::Relaxed);
        for (word, bytes) in self.uuid.iter().zip(uuid.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
        }
        self.tag.store(tag, Ordering::Relaxed);
        self.max.store(value, Ordering::Relaxed);
        for word in &self.reserved {
            word.store(0, Ordering::Relaxed);
        }
    }
}
