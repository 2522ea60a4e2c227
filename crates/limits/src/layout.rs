//! The layout of a limits file. A reader gets consistent content even while a writer changes the
//! file.
//!
//! The file has two banks of rules and the word `active`, which counts the changes. The lowest bit
//! of the count names the valid bank.
//!
//! A writer fills the other bank and then increases the count. So a killed writer leaves the valid
//! bank unchanged.
//!
//! A reader reads the count before and after the valid bank. If the counts are equal, the bank did
//! not change in between.
//!
//! Each bank has a checksum, because another program may write to the file by mistake. Damaged
//! limits allow no memory.

use super::{Bounds, Key, LimitSet, OnLimit, Oom, Options, Selector, Values};
use gpulimit_base::device::{DeviceId, DeviceKind};
use gpulimit_base::units::Size;
use gpulimit_base::version;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// The first eight bytes of a limits file.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"GPULIMTS");
/// The most rules that one bank of a limits file holds.
pub const MAX_RULES: usize = 64;

/// A limits file as it is mapped into memory.
#[repr(C, align(64))]
pub(super) struct File {
    pub(super) magic: AtomicU64,
    pub(super) format: AtomicU64,
    pub(super) size: AtomicU64,
    reserved: [AtomicU64; 5],
    /// The number of changes so far; its lowest bit is the number of the valid bank.
    active: AtomicU64,
    padding: [AtomicU64; 7],
    banks: [Bank; 2],
}

#[repr(C)]
struct Bank {
    /// The number of rules, and the options in the order of [`head_words`]. Zeros mean the
    /// defaults. The other words are spare: an older build writes zeros there.
    head: [AtomicU64; HEAD],
    /// The checksum of the head and the used entries; see [`sum`].
    sum: AtomicU64,
    entries: [Entry; MAX_RULES],
}

#[repr(C)]
struct Entry {
    /// The kind of GPUs that the rule is for: all, one GPU, or one MIG instance.
    selector: AtomicU64,
    uuid: [AtomicU64; 2],
    /// How each key's size is given: bytes, percent, `max` or not set. One byte per key.
    tags: AtomicU64,
    values: [AtomicU64; MAX_KEYS],
}

/// The words of a bank's head.
const HEAD: usize = 15;
/// The most keys that an entry holds.
const MAX_KEYS: usize = 8;

const _: () = {
    assert!(size_of::<File>() == SIZE && SIZE == 12_672);
    assert!(Key::COUNT <= MAX_KEYS);
    assert!(offset_of!(File, magic) == 0);
    assert!(offset_of!(File, format) == 8);
    assert!(offset_of!(File, size) == 16);
    assert!(offset_of!(File, active) == 64);
    assert!(offset_of!(File, banks) == 128);
    assert!(size_of::<Bank>() == 6272);
    assert!(offset_of!(Bank, head) == 0);
    assert!(offset_of!(Bank, sum) == 120);
    assert!(offset_of!(Bank, entries) == 128);
    assert!(size_of::<Entry>() == 96);
    assert!(offset_of!(Entry, selector) == 0);
    assert!(offset_of!(Entry, uuid) == 8);
    assert!(offset_of!(Entry, tags) == 24);
    assert!(offset_of!(Entry, values) == 32);
};

/// The size of a limits file in bytes.
pub(super) const SIZE: usize = 128 + 2 * (128 + MAX_RULES * 96);

const SELECT_ALL: u64 = 1;
const SELECT_GPU: u64 = 2;
const SELECT_MIG: u64 = 3;

/// The tag of a key that the rule does not set.
const TAG_NONE: u64 = 0;
const TAG_BYTES: u64 = 1;
const TAG_PERCENT: u64 = 2;
const TAG_MAX: u64 = 3;

/// How often a reader tries to read a limits file that keeps changing.
const LOOKS: u32 = 1_000;

impl File {
    /// Returns the number of changes to the file so far. While this number stays the same, the
    /// rules stay the same.
    pub(super) fn generation(&self) -> u64 {
        self.active.load(Ordering::Acquire)
    }

    /// Reads the valid bank and its change number with `read`. `None`: the file changed during
    /// every attempt; inner `None`: the bank is damaged.
    fn look<T>(&self, read: impl Fn(&Bank, u64) -> Option<T>) -> Option<(Option<T>, u64)> {
        for _ in 0..LOOKS {
            let before = self.generation();
            let bank = &self.banks[bank_of(before)];
            let is_whole = bank.sum.load(Ordering::Relaxed) == bank.sum(before);
            let seen = is_whole.then(|| read(bank, before)).flatten();
            fence(Ordering::Acquire);
            if self.active.load(Ordering::Relaxed) == before {
                return Some((seen, before));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Returns the limits and the protection on `device`, and their generation. A damaged file
    /// allows no memory.
    pub(super) fn bounds(&self, device: &DeviceId, capacity: u64) -> (Bounds, u64) {
        let found = self.look(|bank, _| {
            let mut own = Values::default();
            let mut all = Values::default();
            for entry in bank.used() {
                match entry.selector()? {
                    Selector::Device(id) if id == *device => own = entry.values()?,
                    Selector::All => all = entry.values()?,
                    Selector::Device(_) => {}
                }
            }
            Some(own.or(all).resolve(capacity))
        });
        match found {
            Some((Some(bounds), generation)) => (bounds, generation),
            Some((None, generation)) => (Bounds::NOTHING, generation),
            None => (Bounds::NOTHING, self.generation()),
        }
    }

    /// Returns the group's options; the default options where the file is damaged.
    pub(super) fn options(&self) -> Options {
        let seen = self.look(|bank, _| bank.options());
        seen.and_then(|(options, _)| options).unwrap_or_default()
    }

    /// Returns all rules and options; `None` where the file is damaged.
    pub(super) fn rules(&self) -> Option<LimitSet> {
        let read = |bank: &Bank, _| {
            let rule = |entry: &Entry| Some((entry.selector()?, entry.values()?));
            let rules = bank.used().iter().map(rule).collect::<Option<Vec<_>>>();
            Some(LimitSet {
                rules: rules?,
                options: bank.options()?,
            })
        };
        self.look(read)?.0
    }

    /// Replaces all rules and options by `set`, which has at most [`MAX_RULES`] rules. The caller
    /// holds the lock for writers.
    pub(super) fn replace(&self, set: &LimitSet) {
        let next = self.active.load(Ordering::Relaxed).wrapping_add(1);
        // A reader may still read this bank. The fence makes a reader of new words see the last
        // change and read again.
        fence(Ordering::Release);
        let words = self.banks[bank_of(next)].words();
        for (word, value) in words.zip(bank_words(set, next)) {
            word.store(value, Ordering::Relaxed);
        }
        self.active.store(next, Ordering::Release);
    }

    /// Returns the bytes of a new limits file that holds `set`, with a count of one change.
    pub(super) fn bytes(set: &LimitSet) -> Vec<u8> {
        let mut words = [0; SIZE / 8];
        words[..3].copy_from_slice(&[MAGIC, version::limits(), SIZE as u64]);
        words[offset_of!(Self, active) / 8] = 1;
        let second = (offset_of!(Self, banks) + size_of::<Bank>()) / 8;
        for (word, value) in words[second..].iter_mut().zip(bank_words(set, 1)) {
            *word = value;
        }
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }
}

/// Returns the index of the bank that change number `changes` has made valid.
fn bank_of(changes: u64) -> usize {
    usize::from(changes & 1 == 1)
}

/// Returns the words of a bank that holds `set`, up to the last used entry, for change number
/// `changes`.
fn bank_words(set: &LimitSet, changes: u64) -> Vec<u64> {
    let rules = &set.rules[..set.rules.len().min(MAX_RULES)];
    let head = head_words(rules.len(), &set.options);
    let entries = rules
        .iter()
        .flat_map(|(selector, values)| entry_words(selector, values));
    let entries: Vec<u64> = entries.collect();
    let sum = sum(changes, head.iter().chain(&entries).copied());
    [&head[..], &[sum], &entries].concat()
}

/// Returns the words of a bank's head. Times are in milliseconds, plus 1.
fn head_words(rules: usize, options: &Options) -> [u64; HEAD] {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut words = [0; HEAD];
    words[..7].copy_from_slice(&[
        rules as u64,
        options.on_limit as u64,
        millis(options.wait_timeout).saturating_add(1),
        millis(options.pressure_timeout).saturating_add(1),
        options.oom as u64,
        u64::from(!options.count_context),
        options
            .suspended_max
            .map_or(0, |bytes| bytes.saturating_add(1)),
    ]);
    words
}

fn entry_words(selector: &Selector, values: &Values) -> [u64; size_of::<Entry>() / 8] {
    let (kind, uuid) = match selector {
        Selector::All => (SELECT_ALL, [0; 16]),
        Selector::Device(id) => match id.kind {
            DeviceKind::Gpu => (SELECT_GPU, id.uuid),
            DeviceKind::Mig => (SELECT_MIG, id.uuid),
        },
    };
    let mut words = [0; size_of::<Entry>() / 8];
    words[0] = kind;
    for (word, bytes) in words[1..3].iter_mut().zip(uuid.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    for key in Key::ALL {
        let (tag, value) = match values.get(key) {
            None => (TAG_NONE, 0),
            Some(Size::Bytes(bytes)) => (TAG_BYTES, bytes),
            Some(Size::Percent(part)) => (TAG_PERCENT, part.into()),
            Some(Size::Max) => (TAG_MAX, 0),
        };
        words[3] |= tag << (8 * key as u32);
        words[4 + key as usize] = value;
    }
    words
}

/// Returns the checksum of a bank's words and of its change number. A change of a single word
/// always changes the checksum.
fn sum(changes: u64, words: impl Iterator<Item = u64>) -> u64 {
    words.fold(changes ^ MAGIC, |sum, word| {
        (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}

impl Bank {
    fn used(&self) -> &[Entry] {
        let rules = usize::try_from(self.head[0].load(Ordering::Relaxed)).unwrap_or(MAX_RULES);
        &self.entries[..rules.min(MAX_RULES)]
    }

    /// Returns the checksum of this bank if change number `changes` has made it valid.
    fn sum(&self, changes: u64) -> u64 {
        let words = self.head.iter();
        let words = words.chain(self.used().iter().flat_map(Entry::words));
        sum(changes, words.map(|word| word.load(Ordering::Relaxed)))
    }

    /// Iterates over the bank's words in the order of the file.
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let entries = self.entries.iter().flat_map(Entry::words);
        self.head.iter().chain([&self.sum]).chain(entries)
    }

    fn options(&self) -> Option<Options> {
        let words = self.head.each_ref();
        let [_, on_limit, wait, pressure, oom, uncounted, suspended, ..] =
            words.map(|word| word.load(Ordering::Relaxed));
        let defaults = Options::default();
        let time = |word: u64, default| word.checked_sub(1).map_or(default, Duration::from_millis);
        Some(Options {
            on_limit: match on_limit {
                0 => OnLimit::Fail,
                1 => OnLimit::Wait,
                _ => return None,
            },
            wait_timeout: time(wait, defaults.wait_timeout),
            pressure_timeout: time(pressure, defaults.pressure_timeout),
            oom: match oom {
                0 => Oom::None,
                1 => Oom::KillLargest,
                2 => Oom::KillGroup,
                _ => return None,
            },
            count_context: match uncounted {
                0 => true,
                1 => false,
                _ => return None,
            },
            suspended_max: match suspended {
                u64::MAX => Some(u64::MAX),
                word => word.checked_sub(1),
            },
        })
    }
}

impl Entry {
    /// Iterates over the entry's words in the order of the file.
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let front = [&self.selector].into_iter().chain(&self.uuid);
        front.chain([&self.tags]).chain(&self.values)
    }

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

    fn values(&self) -> Option<Values> {
        let mut values = Values::default();
        let tags = self.tags.load(Ordering::Relaxed);
        if tags >> (8 * Key::COUNT) != 0 {
            return None;
        }
        for (key, word) in Key::ALL.into_iter().zip(&self.values) {
            let value = word.load(Ordering::Relaxed);
            let size = match tags >> (8 * key as u32) & 0xff {
                TAG_NONE => None,
                TAG_BYTES => Some(Size::Bytes(value)),
                TAG_PERCENT => Some(Size::Percent(
                    u32::try_from(value).ok().filter(|part| *part <= 10_000)?,
                )),
                TAG_MAX => Some(Size::Max),
                _ => return None,
            };
            values.set(key, size);
        }
        Some(values)
    }
}
