//! The layout of the ledger file. Every part of the file is an atomic word, because any process may
//! read any word at any time.
//!
//! ```text
//! 0          header: preface, signals, group statistics, GPU table, event ring
//! 16 KiB     words: for each block of 8 devices, one cache line per slot
//! +1 MiB     slots: one page each: identity and statistics
//! ```
//!
//! A charge reads the words of all slots for one device, so these words lie in consecutive cache
//! lines. On separate pages, they would compete for cache sets and TLB entries. Any change to the
//! layout requires a new [`version::LEDGER`].

use super::atomic::{AtomicU64, Ordering};
use super::{Category, MAX_DEVICES, MAX_SLOTS};
use gpulimit_base::version;
use std::mem::{offset_of, size_of};

/// The first word of a ledger file: the bytes "gpulimit".
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"gpulimit");

/// Number of devices whose words share a cache line in one slot.
pub(super) const LINE_DEVICES: usize = 8;
/// Number of blocks of devices. In each slot, the words of one block's devices share a cache line.
pub(super) const BLOCKS: usize = MAX_DEVICES / LINE_DEVICES;
/// Length of the name of the owner's program in a slot, in 64-bit words.
pub(super) const COMMAND_WORDS: usize = 8;
/// Length of the name of the owner's group in a slot, in 64-bit words.
pub(super) const BELOW_WORDS: usize = 72;
/// Number of events in the ring buffer.
pub(super) const EVENTS: usize = 95;
/// Length of the program's name in an event, in 64-bit words.
pub(super) const EVENT_COMMAND_WORDS: usize = 4;

const PAGE: usize = 4096;

/// The description of the file format, at the beginning of the ledger file. Written once, before
/// the file gets its final name.
#[repr(C, align(64))]
pub(super) struct Preface {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    pub header_size: AtomicU64,
    pub words_size: AtomicU64,
    pub slot_size: AtomicU64,
    pub slots: AtomicU64,
    pub devices: AtomicU64,
    pub file_size: AtomicU64,
}

/// The content of the [`Preface`] in this version of the format, in the order of its fields.
pub(super) const PREFACE: [u64; 8] = [
    MAGIC,
    version::LEDGER,
    size_of::<Header>() as u64,
    (BLOCKS * size_of::<Block>()) as u64,
    size_of::<SlotPage>() as u64,
    MAX_SLOTS as u64,
    MAX_DEVICES as u64,
    FILE_SIZE,
];

impl Preface {
    fn words(&self) -> [&AtomicU64; 8] {
        [
            &self.magic,
            &self.version,
            &self.header_size,
            &self.words_size,
            &self.slot_size,
            &self.slots,
            &self.devices,
            &self.file_size,
        ]
    }

    /// Returns whether the preface is that of this version of the format.
    pub fn is_whole(&self) -> bool {
        self.words().map(|word| word.load(Ordering::Relaxed)) == PREFACE
    }

    /// Writes the preface of this version. Only models need this; a real ledger file gets its
    /// preface when it is created.
    #[cfg(all(test, loom))]
    pub fn write(&self) {
        for (word, value) in self.words().into_iter().zip(PREFACE) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// Length of the ledger file in bytes.
pub(super) const FILE_SIZE: u64 = size_of::<Content>() as u64;

/// Words with which a group's processes signal each other: rarely written, in the cache line that
/// every charge reads anyway.
#[repr(C, align(64))]
pub(super) struct Signals {
    /// Number of slots that have ever been claimed. The slot of every living process has a lower
    /// index. Never decreases.
    pub high_water: AtomicU64,
    /// Number of changes of the child groups' protection. Creating or removing a protected child
    /// group counts too.
    pub children: AtomicU64,
    /// Not 0 if processes may be waiting for memory and must be woken when memory is returned. Each
    /// new waiter changes the value.
    pub waiting: AtomicU64,
    /// Number of returns of memory while a process may have been waiting. Waiting processes sleep
    /// on the low half, a futex.
    pub returned: AtomicU64,
    /// Number of times that the group's processes were asked to give back unused memory.
    pub asked: AtomicU64,
    /// Number of requests that have begun to wait for memory. A waiter takes the next number; lower
    /// numbers go first.
    pub tickets: AtomicU64,
    /// Time when the group's processes were last asked to give back unused memory, in milliseconds
    /// since boot.
    pub asked_at: AtomicU64,
    spare: AtomicU64,
}

/// One entry of the ring buffer: an event of the group. See `events`.
#[repr(C, align(64))]
pub(super) struct EventEntry {
    /// The event's number plus 1. The stamp is 0 in an unused entry, and while the event is
    /// written.
    pub stamp: AtomicU64,
    /// Time of the event by the wall clock, in microseconds since 1970.
    pub time: AtomicU64,
    /// The kind of the event in the low half, and the device's index plus 1 in the high half.
    pub what: AtomicU64,
    pub pid: AtomicU64,
    pub pid_ns: AtomicU64,
    pub uid: AtomicU64,
    pub bytes: AtomicU64,
    pub charged: AtomicU64,
    pub max: AtomicU64,
    spare: [AtomicU64; 3],
    pub command: [AtomicU64; EVENT_COMMAND_WORDS],
}

/// The ring buffer with the most recent events of the group.
#[repr(C, align(64))]
pub(super) struct Ring {
    /// Number of events so far.
    pub head: AtomicU64,
    spare: [AtomicU64; 7],
    pub entries: [EventEntry; EVENTS],
    spare_high: [AtomicU64; 8],
}

/// One GPU or MIG instance that a process of the group has used.
#[repr(C, align(64))]
pub(super) struct GpuEntry {
    /// The identity of the device, in three words. Each word is written once: see `gpu_table`.
    pub id: [AtomicU64; 3],
    /// Bytes of memory that the device has in total.
    pub capacity: AtomicU64,
    /// Bytes that a CUDA context on the device took when last measured; 0 if unknown.
    pub context: AtomicU64,
    spare: [AtomicU64; 3],
}

/// The beginning of the ledger file, before the slots.
#[repr(C)]
pub(super) struct Header {
    pub preface: Preface,
    pub signals: Signals,
    /// For each device, the last recorded time at which usage was above `high`, the group's soft
    /// limit. In milliseconds since boot.
    pub above_high: [AtomicU64; MAX_DEVICES],
    spare_low: [AtomicU64; 16],
    /// The largest recorded usage of each device, in bytes.
    pub peaks: [AtomicU64; MAX_DEVICES],
    /// Number of refused requests for each device since the group was created.
    pub refusals: [AtomicU64; MAX_DEVICES],
    pub gpus: [GpuEntry; MAX_DEVICES],
    /// Number of requests for each device that have waited. The total waiting time is in
    /// `waited_ms`.
    pub waits: [AtomicU64; MAX_DEVICES],
    pub waited_ms: [AtomicU64; MAX_DEVICES],
    /// For each device, the time when a process last began to check all owners, in milliseconds
    /// since boot: see `reap::sweep`.
    pub swept_at: [AtomicU64; MAX_DEVICES],
    spare_high: [AtomicU64; 32],
    pub ring: Ring,
}

/// The words of one slot for eight devices, in 4 KiB units: charged in the low half, undecided in
/// the high half.
#[repr(C, align(64))]
pub(super) struct WordLine(pub [AtomicU64; LINE_DEVICES]);

/// One block of the ledger file: the words of all slots for eight devices.
pub(super) type Block = [WordLine; MAX_SLOTS];

/// The owner of a slot. Written under the slot's claim lock, except that a leaving owner erases its
/// own words.
#[repr(C, align(64))]
pub(super) struct Owner {
    /// The pid of the slot's owner; 0 if the slot has no owner.
    pub pid: AtomicU64,
    pub pid_ns: AtomicU64,
    pub start_time: AtomicU64,
    pub uid: AtomicU64,
    /// Time when the owner claimed the slot, in milliseconds since boot.
    pub birth: AtomicU64,
    /// Time when another process first found the owner dead, in milliseconds since boot; otherwise
    /// 0.
    pub dead_since: AtomicU64,
    /// A key (`child_key`) for the child group that contains the owner, directly or below. 0 for
    /// owners in the ledger's own group.
    pub child: AtomicU64,
    spare: AtomicU64,
    pub command: [AtomicU64; COMMAND_WORDS],
}

/// Statistics of one slot on one device, in bytes unless noted. Processes other than the owner
/// write only `left`.
#[repr(C)]
pub(super) struct DeviceStats {
    pub by: [AtomicU64; Category::COUNT],
    pub idle: AtomicU64,
    pub peak: AtomicU64,
    /// Number of refused requests of the owner.
    pub refusals: AtomicU64,
    /// Largest number of bytes that the slot's owner can give back on request.
    pub reclaimable: AtomicU64,
    /// Two counts in units of 4 KiB: charged memory that other processes may hold (high half), and
    /// orphans (low half). See `orphans`.
    pub left: AtomicU64,
}

/// The request of the slot's owner that is waiting for memory.
#[repr(C, align(64))]
pub(super) struct Waiting {
    /// The request's number in the line of waiting requests: see [`Signals::tickets`]. Numbers
    /// start at 1; 0 if the owner does not wait.
    pub ticket: AtomicU64,
    /// The device's index.
    pub device: AtomicU64,
    /// Time when the owner last checked the line, in milliseconds since boot. Other processes go
    /// ahead of an owner with an old time.
    pub seen: AtomicU64,
    spare: [AtomicU64; 5],
}

/// The page of a slot in the ledger file. It holds all data of the slot except its charges.
#[repr(C)]
pub(super) struct SlotPage {
    pub owner: Owner,
    pub waiting: Waiting,
    /// Name of the owner's group relative to the ledger's group, padded with zeros.
    pub below: [AtomicU64; BELOW_WORDS],
    spare: [AtomicU64; 32],
    pub stats: [DeviceStats; MAX_DEVICES],
}

/// The whole file.
#[repr(C)]
pub(super) struct Content {
    pub header: Header,
    pub words: [Block; BLOCKS],
    pub slots: [SlotPage; MAX_SLOTS],
}

/// Stores bytes in words of the ledger, padded with zeros. Bytes that do not fit are cut off.
pub(super) fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let mut rest = bytes.iter();
    for word in words {
        let eight = std::array::from_fn(|_| rest.next().copied().unwrap_or(0));
        word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
}

/// Returns bytes that [`store_bytes`] has stored in words of the ledger, padded with zeros.
pub(super) fn load_bytes<const N: usize>(words: &[AtomicU64]) -> [u8; N] {
    let mut bytes = [0; N];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
    bytes
}

/// Returns the file offset of a slot's page.
pub(super) const fn slot_offset(slot: usize) -> u64 {
    (offset_of!(Content, slots) + slot * size_of::<SlotPage>()) as u64
}

/// Returns the file offset of the words that count a slot's charges on one block of devices.
pub(super) const fn line_offset(block: usize, slot: usize) -> u64 {
    (offset_of!(Content, words) + block * size_of::<Block>() + slot * size_of::<WordLine>()) as u64
}

const _: () = {
    assert!(size_of::<Preface>() == 64 && size_of::<Preface>() == size_of::<[u64; 8]>());
    assert!(offset_of!(Preface, version) == 8 && offset_of!(Preface, header_size) == 16);
    assert!(offset_of!(Preface, words_size) == 24 && offset_of!(Preface, slot_size) == 32);
    assert!(offset_of!(Preface, slots) == 40 && offset_of!(Preface, devices) == 48);
    assert!(offset_of!(Preface, file_size) == 56);

    assert!(offset_of!(Header, preface) == 0);
    assert!(size_of::<Signals>() == 64 && offset_of!(Signals, high_water) == 0);
    assert!(offset_of!(Signals, children) == 8 && offset_of!(Signals, waiting) == 16);
    assert!(offset_of!(Signals, returned) == 24 && offset_of!(Signals, asked) == 32);
    assert!(offset_of!(Signals, tickets) == 40);
    assert!(offset_of!(Header, signals) == 64 && offset_of!(Header, above_high) == 128);
    assert!(size_of::<EventEntry>() == 128 && offset_of!(EventEntry, command) == 96);
    assert!(size_of::<Ring>() == 3 * PAGE && offset_of!(Ring, entries) == 64);
    assert!(offset_of!(Header, peaks) == 512);
    assert!(offset_of!(Header, refusals) == 768);
    assert!(size_of::<GpuEntry>() == 64 && offset_of!(GpuEntry, id) == 0);
    assert!(offset_of!(GpuEntry, capacity) == 24 && offset_of!(GpuEntry, context) == 32);
    assert!(offset_of!(Header, gpus) == 1024);
    assert!(offset_of!(Header, ring) == PAGE);
    assert!(size_of::<Header>() == 4 * PAGE);

    assert!(BLOCKS * LINE_DEVICES == MAX_DEVICES);
    assert!(size_of::<WordLine>() == 64 && size_of::<Block>() == MAX_SLOTS * 64);
    assert!(offset_of!(Content, words) == 4 * PAGE);

    assert!(offset_of!(Owner, pid) == 0 && offset_of!(Owner, pid_ns) == 8);
    assert!(offset_of!(Owner, start_time) == 16 && offset_of!(Owner, uid) == 24);
    assert!(offset_of!(Owner, birth) == 32 && offset_of!(Owner, dead_since) == 40);
    assert!(offset_of!(Owner, child) == 48);
    assert!(offset_of!(Owner, command) == 64 && size_of::<Owner>() == 128);
    assert!(offset_of!(SlotPage, waiting) == 128 && offset_of!(SlotPage, below) == 192);
    assert!(offset_of!(DeviceStats, by) == 0 && offset_of!(DeviceStats, idle) == 56);
    assert!(offset_of!(DeviceStats, peak) == 64 && offset_of!(DeviceStats, refusals) == 72);
    assert!(offset_of!(DeviceStats, reclaimable) == 80 && offset_of!(DeviceStats, left) == 88);
    assert!(size_of::<DeviceStats>() == 96);
    assert!(offset_of!(SlotPage, owner) == 0 && offset_of!(SlotPage, stats) == 1024);
    assert!(size_of::<SlotPage>() == PAGE);
    assert!(offset_of!(Content, slots) == 4 * PAGE + BLOCKS * MAX_SLOTS * 64);
    assert!(offset_of!(Content, slots) % PAGE == 0);
    assert!(size_of::<Content>() == 260 * PAGE + MAX_SLOTS * PAGE);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_preface_of_this_version_does_not_change() {
        let sizes = [16_384, 1 << 20, 4096, 4096, 32, 17_842_176];
        assert_eq!(PREFACE[2..], sizes, "a changed layout needs a new version");
    }

    #[test]
    fn offsets_match_the_layout() {
        let scratch = Scratch::new();
        let content = scratch.content();
        let at = |place: usize| (place - &raw const *content as usize) as u64;
        for slot in [0, 1, 1_000, MAX_SLOTS - 1] {
            assert_eq!(
                at(&raw const content.slots[slot] as usize),
                slot_offset(slot)
            );
            for block in 0..BLOCKS {
                let line = &raw const content.words[block][slot] as usize;
                assert_eq!(at(line), line_offset(block, slot));
            }
        }
    }
}
