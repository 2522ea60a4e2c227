//! The layout of the ledger file. Every part of the file is an atomic word, because any process may
//! read any word at any time. docs/internals/architecture.md says who writes each word.
//!
//! ```text
//! 0          header: preface, signals, group statistics, GPU table, event ring
//! 16 KiB     charges: for each block of 4 devices, one cache line per slot
//! +2 MiB     slots: two pages each: identity, requests; statistics
//! +32 MiB    users: the byte-seconds of ended processes, by user
//! +128 KiB   history: 64 KiB for each device
//! +2 MiB     trail: the events of the group and of the groups below it, in pages of 4 events
//! ```
//!
//! A charge on a device reads the words of all slots for that device, and a look at the usage reads
//! the idle bytes beside the words. These lie in consecutive cache lines. In a layout with a
//! separate page for each slot, all these cache lines would compete for one set of the first-level
//! cache. Each slot would also need a TLB entry. Any change to the layout requires a new
//! [`version::ledger`].
//!
//! Words named `spare` are zero, and are reserved for additions that older builds can ignore. An
//! addition that the members must take part in gets a bit in [`Owner::capabilities`]: a member
//! without the bit is left out. Neither needs a new version.

use super::atomic::{AtomicU64, Ordering};
use super::gate::Gate;
use super::{Category, MAX_DEVICES, MAX_SLOTS};
use gpulimit_base::version;
use std::mem::{offset_of, size_of};

/// The first word of a ledger file: the bytes "gpulimit".
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"gpulimit");

/// Number of devices whose charges share a cache line in one slot.
pub(super) const LINE_DEVICES: usize = 4;
/// Number of blocks of devices. In each slot, the charges of one block's devices share a cache
/// line.
pub(super) const BLOCKS: usize = MAX_DEVICES / LINE_DEVICES;
/// Number of periods of which a slot keeps the owner's smallest charge.
pub(super) const FLOORS: usize = 12;
/// The words for the floors of the devices of a line.
pub(super) type Floors = [[AtomicU64; FLOORS]; LINE_DEVICES];
/// Length of the name of the owner's program in a slot, in 64-bit words.
pub(super) const COMMAND_WORDS: usize = 8;
/// Length of the name of the owner's group in a slot, in 64-bit words.
pub(super) const BELOW_WORDS: usize = 72;
/// Number of events in the ring buffer.
pub(super) const EVENTS: usize = 95;
/// Number of words that count events by kind. Larger than the number of any kind.
pub(super) const EVENT_COUNTS: usize = 16;
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
    pub charges_size: AtomicU64,
    pub slot_size: AtomicU64,
    pub slots: AtomicU64,
    pub devices: AtomicU64,
    pub file_size: AtomicU64,
}

/// Returns the content of the [`Preface`] in this version, in the order of its fields.
pub(super) fn preface() -> [u64; 8] {
    [
        MAGIC,
        version::ledger(),
        size_of::<Header>() as u64,
        (BLOCKS * size_of::<Block>()) as u64,
        size_of::<SlotPage>() as u64,
        MAX_SLOTS as u64,
        MAX_DEVICES as u64,
        FILE_SIZE,
    ]
}

impl Preface {
    fn words(&self) -> [&AtomicU64; 8] {
        [
            &self.magic,
            &self.version,
            &self.header_size,
            &self.charges_size,
            &self.slot_size,
            &self.slots,
            &self.devices,
            &self.file_size,
        ]
    }

    /// Returns whether the preface is that of this version of the format.
    pub fn is_whole(&self) -> bool {
        let mut words = self.words().into_iter().zip(preface());
        words.all(|(word, known)| word.load(Ordering::Relaxed) == known)
    }

    /// Writes the preface of this version. Only models need this; a real ledger file gets its
    /// preface when it is created.
    #[cfg(all(test, loom))]
    pub fn write(&self) {
        for (word, value) in self.words().into_iter().zip(preface()) {
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
    /// One bit for each device with a history: see [`DeviceHistory`].
    pub recorded: AtomicU64,
}

/// One event: an entry of the ring buffer, and the beginning of an entry of the trail. See
/// `events`.
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
    /// See [`super::Details::count`].
    pub count: AtomicU64,
    spare: [AtomicU64; 2],
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
    /// The process that has made its first context and not asked for memory yet: see `entry`.
    pub entrance: AtomicU64,
    spare: [AtomicU64; 2],
}

/// Whether a ledger records a history and a trail.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Lasting {
    Nothing = 0,
    /// A history, and a trail of the events of its group and of the groups below.
    Trail = 1,
    /// A history alone: the events go to the trail of a group above, or of the root.
    History = 2,
}

/// The beginning of the ledger file, before the slots.
#[repr(C)]
pub(super) struct Header {
    pub preface: Preface,
    pub signals: Signals,
    /// For each device, the last recorded time at which usage was above `high`, the group's soft
    /// limit. In milliseconds since boot.
    pub above_high: [AtomicU64; MAX_DEVICES],
    /// Whether the ledger records a history and a trail: a [`Lasting`].
    pub lasting: AtomicU64,
    /// Number of events in the trail so far.
    pub trail_head: AtomicU64,
    /// Number of entries of the trail for which space is reserved on the file system. The other
    /// entries must not be touched: an access can end in SIGBUS.
    pub trail_reserved: AtomicU64,
    /// Time when a process that joined the group last began to look for dead members, in
    /// milliseconds since boot: see `reap::look`.
    pub looked_at: AtomicU64,
    /// Not 0 once a room was kept for a job: see `entry`.
    pub rooms: AtomicU64,
    /// Time when a process of the group last said at its end that it was refused, in milliseconds
    /// since boot; 0 if none has.
    pub explained: AtomicU64,
    /// Not 0 once NVML has listed a member in a nested PID namespace by its pid there.
    pub lists_nested: AtomicU64,
    /// The last time when a process first found an owner dead, in milliseconds since boot; 0 if
    /// none has.
    pub found_dead_at: AtomicU64,
    spare_low: [AtomicU64; 8],
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
    /// Number of events of each kind since the group was created, by the number of the kind.
    pub event_counts: [AtomicU64; EVENT_COUNTS],
    spare_high: [AtomicU64; 32 - EVENT_COUNTS],
    pub ring: Ring,
}

/// The charge of one slot on one device.
#[repr(C)]
pub(super) struct Charge {
    /// Units of 4 KiB: charged ones (low half), undecided ones, and `charge::MOVING` (bit 63).
    pub word: AtomicU64,
    /// Bytes that the owner has charged ahead but does not use. A cleaner of the slot writes 0.
    pub idle: AtomicU64,
}

/// The charges of one slot on four devices.
#[repr(C, align(64))]
pub(super) struct ChargeLine(pub [Charge; LINE_DEVICES]);

/// One block of the ledger file: the charges of all slots on four devices.
pub(super) type Block = [ChargeLine; MAX_SLOTS];

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
    /// The additions to this format that the owner takes part in, one bit for each. There are none.
    pub capabilities: AtomicU64,
    pub command: [AtomicU64; COMMAND_WORDS],
}

/// Figures of one slot on one device, in bytes unless noted.
#[repr(C)]
pub(super) struct DeviceStats {
    pub by: [AtomicU64; Category::COUNT],
    pub peak: AtomicU64,
    /// Number of refused requests of the owner.
    pub refusals: AtomicU64,
    /// Largest number of bytes that the slot's owner can give back on request.
    pub reclaimable: AtomicU64,
    /// Two counts in units of 4 KiB: charged memory that other processes may hold (high half), and
    /// orphans (low half). See `orphans`.
    pub left: AtomicU64,
    /// Time when the owner last changed its charge, in milliseconds since 1970 by the wall clock; 0
    /// if unknown.
    pub changed: AtomicU64,
    /// The owner's charge over time, up to `changed`: units of 4 KiB times milliseconds.
    pub unit_ms: AtomicU64,
    /// Bytes that the driver has moved to the host while the owner is suspended. They are also in
    /// the charge's word while it has the bit [`super::charge::MOVING`]: see `suspension`.
    pub suspended: AtomicU64,
    /// Bytes that the owner had before it was suspended, as the driver showed them; 0 if unknown,
    /// and while the owner runs. They may be more than the charge: a group need not count contexts.
    pub resident: AtomicU64,
    /// Bytes that are kept for the job of the owner: see `entry`. 0 if none are.
    pub room: AtomicU64,
}

/// The request of the slot's owner that is waiting for memory.
#[repr(C, align(64))]
pub(super) struct Waiting {
    /// The request's number in the queue of waiting requests: see [`Signals::tickets`]. Numbers
    /// start at 1; 0 if the owner does not wait.
    pub ticket: AtomicU64,
    /// The device's index.
    pub device: AtomicU64,
    /// Time when the owner last checked its place in the queue, in milliseconds since boot. Other
    /// processes overtake an owner with an old time.
    pub seen: AtomicU64,
    /// Time when the owner began to wait, in milliseconds since boot.
    pub since: AtomicU64,
    /// Requested bytes.
    pub bytes: AtomicU64,
    /// Time when the owner began to wait for memory of any of its groups, in milliseconds since
    /// boot; 0 if it does not wait. This word and the next two are set in the ledgers of all groups
    /// of the owner: see `Standstill`.
    pub asks_since: AtomicU64,
    /// Time since when the owner makes no other call, and no charge of the group changes.
    pub still_since: AtomicU64,
    /// Time when the owner last looked at that.
    pub still_seen: AtomicU64,
}

/// The pressure on the slot's owner: how much memory it is asked to give back. See `demand`. All
/// words but the first are used in the topmost ledger of the owner's groups.
#[repr(C, align(64))]
pub struct PressureWords {
    /// The index of the owner's slot in the topmost ledger, plus 1; 0 if the owner is not to be
    /// asked.
    pub(super) registered: AtomicU64,
    /// The demand on the owner: see `demand::Demand::word`. 0 if there is none.
    pub(super) demand: AtomicU64,
    /// Number of demands. The owner sleeps on the low half, a futex.
    pub(super) count: AtomicU64,
    /// Time of the last demand by the wall clock, in milliseconds since 1970.
    pub(super) asked_at: AtomicU64,
    /// The last demand that the owner has answered: see `Slot::answer`.
    pub(super) answered: AtomicU64,
    spare: [AtomicU64; 3],
}

/// Two pages of the ledger file. They hold all data of a slot except its charges.
#[repr(C)]
pub(super) struct SlotPage {
    pub owner: Owner,
    pub waiting: Waiting,
    pub pressure: PressureWords,
    /// Name of the owner's group relative to the ledger's group, padded with zeros.
    pub below: [AtomicU64; BELOW_WORDS],
    /// Time when another process last found the owner alive, in milliseconds since 1970 by the wall
    /// clock; 0 if unknown. Kept only in a ledger with a history.
    pub alive_at: AtomicU64,
    /// Bits that say why the owner must not be suspended. The crate `base` has the list.
    pub obstacles: AtomicU64,
    /// The work of an actor on the owner: see `suspension`. 0 if there is none.
    pub errand: AtomicU64,
    /// Time when a request first met the owner killed or exiting, in milliseconds since boot;
    /// otherwise 0.
    pub ending_since: AtomicU64,
    /// A key for the job of the owner, if memory is kept for it: see `entry`. 0 for none.
    pub job: AtomicU64,
    spare_low: [AtomicU64; 3],
    pub gate: Gate,
    /// The smallest charges of the last hour, by device and time: see `floors`.
    pub floors: Floors,
    pub stats: [DeviceStats; MAX_DEVICES],
}

/// The use of memory by the ended processes of one user.
#[repr(C)]
pub(super) struct UserBill {
    /// The user id plus 1; 0 if the entry is free.
    pub uid: AtomicU64,
    /// For each device, the charge over time, in units of 4 KiB times milliseconds: while the
    /// processes surely lived, and in the time in which it is uncertain whether killed ones did.
    pub unit_ms: [[AtomicU64; 2]; MAX_DEVICES],
}

/// Number of users whose bills the ledger holds. The last entry is for all other users.
pub(super) const USERS: usize = 252;

/// One period of the history of a device. Each word holds the number of its period in the high
/// half, so that a word of an older period is recognised.
#[repr(C)]
pub(super) struct Bucket {
    /// The largest usage in units of 4 KiB.
    pub max: AtomicU64,
    /// The smallest usage in units of 4 KiB.
    pub min: AtomicU64,
    /// Counts of events: see `history`.
    pub counts: AtomicU64,
}

/// The history of one device, in rings of periods of three lengths.
#[repr(C, align(4096))]
pub(super) struct DeviceHistory {
    /// Ten minutes in seconds.
    pub seconds: [Bucket; 600],
    /// A day in minutes.
    pub minutes: [Bucket; 1_440],
    /// A week in quarters of an hour.
    pub quarters: [Bucket; 672],
}

/// Number of events in the trail.
pub(super) const TRAIL: usize = 4_096;
/// Number of processes that an event of the trail names as the largest holders of memory.
pub const HOLDERS: usize = 5;
/// Length of the name of the driver function in an event of the trail, in 64-bit words.
pub(super) const FUNCTION_WORDS: usize = 4;
/// Length of the name of the group in an event of the trail, in 64-bit words.
pub(super) const TRAIL_GROUP_WORDS: usize = 16;

/// A process that held memory at the time of an event.
#[repr(C)]
pub(super) struct Holder {
    pub pid: AtomicU64,
    pub uid: AtomicU64,
    /// The figures of [`super::Holding`].
    pub bytes: AtomicU64,
    pub reserve: AtomicU64,
    pub suspended: AtomicU64,
    pub registered: AtomicU64,
    pub command: [AtomicU64; 2],
}

/// An event of the trail.
#[repr(C, align(64))]
pub(super) struct TrailEntry {
    /// The event as in the ring, numbered in the trail.
    pub event: EventEntry,
    /// Name of the driver function that made the request, padded with zeros.
    pub function: [AtomicU64; FUNCTION_WORDS],
    /// The end of the name of the group where the event happened, relative to the ledger's group,
    /// padded with zeros.
    pub group: [AtomicU64; TRAIL_GROUP_WORDS],
    pub holders: [Holder; HOLDERS],
    /// The event's number in the ring of the group where the event happened.
    pub in_ring: AtomicU64,
    /// Why the request was refused or the process was killed: see [`super::Cause`].
    pub cause: AtomicU64,
    /// For a kill, the process that requested it. The pid is 0 if there is none.
    pub by: Holder,
    /// Number of later equal events that share the entry: see `trail::repeats`.
    pub repeats: AtomicU64,
    /// Time of the last of these, in microseconds since 1970.
    pub last: AtomicU64,
    /// These are of [`super::Details`]; the owner is stored plus 1, and 0 is none.
    pub left: AtomicU64,
    pub outside: AtomicU64,
    pub owner: AtomicU64,
    pub kept: AtomicU64,
    pub is_unheard: AtomicU64,
    /// The end of the name of the process's own group below the group of the event, padded with
    /// zeros.
    pub home: [AtomicU64; TRAIL_GROUP_WORDS],
    /// See [`super::Details::takes`].
    pub takes: AtomicU64,
    spare: [AtomicU64; 18],
}

/// The events of a group and of the groups below it. A ledger that does not keep
/// a trail touches no entry.
#[repr(C, align(4096))]
pub(super) struct Trail {
    pub entries: [TrailEntry; TRAIL],
}

/// The whole file.
#[repr(C)]
pub(super) struct Content {
    pub header: Header,
    pub charges: [Block; BLOCKS],
    pub slots: [SlotPage; MAX_SLOTS],
    pub users: [UserBill; USERS],
    pub history: [DeviceHistory; MAX_DEVICES],
    pub trail: Trail,
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

/// Returns the file offset of the bills of users.
pub(super) const fn users_offset() -> u64 {
    offset_of!(Content, users) as u64
}

/// Returns the file offset of a device's history.
pub(super) const fn history_offset(device: usize) -> u64 {
    (offset_of!(Content, history) + device * size_of::<DeviceHistory>()) as u64
}

/// Returns the file offset of an entry of the trail.
pub(super) const fn trail_offset(entry: usize) -> u64 {
    (offset_of!(Content, trail) + entry * size_of::<TrailEntry>()) as u64
}

/// Returns the file offset of a slot's charges on one block of devices.
pub(super) const fn line_offset(block: usize, slot: usize) -> u64 {
    (offset_of!(Content, charges) + block * size_of::<Block>() + slot * size_of::<ChargeLine>())
        as u64
}

// Models have fewer devices.
#[cfg(not(all(test, loom)))]
const _: () = {
    assert!(size_of::<Preface>() == 64 && size_of::<Preface>() == size_of::<[u64; 8]>());
    assert!(offset_of!(Preface, version) == 8 && offset_of!(Preface, header_size) == 16);
    assert!(offset_of!(Preface, charges_size) == 24 && offset_of!(Preface, slot_size) == 32);
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
    assert!(offset_of!(Header, looked_at) == 408 && offset_of!(Header, peaks) == 512);
    assert!(offset_of!(Header, refusals) == 768);
    assert!(size_of::<GpuEntry>() == 64 && offset_of!(GpuEntry, id) == 0);
    assert!(offset_of!(GpuEntry, capacity) == 24 && offset_of!(GpuEntry, context) == 32);
    assert!(offset_of!(Header, gpus) == 1024);
    assert!(offset_of!(Header, ring) == PAGE);
    assert!(size_of::<Header>() == 4 * PAGE);

    assert!(BLOCKS * LINE_DEVICES == MAX_DEVICES);
    assert!(size_of::<ChargeLine>() == 64 && size_of::<Block>() == MAX_SLOTS * 64);
    assert!(offset_of!(Charge, word) == 0 && offset_of!(Charge, idle) == 8);
    assert!(offset_of!(Content, charges) == 4 * PAGE);

    assert!(offset_of!(Owner, pid) == 0 && offset_of!(Owner, pid_ns) == 8);
    assert!(offset_of!(Owner, start_time) == 16 && offset_of!(Owner, uid) == 24);
    assert!(offset_of!(Owner, birth) == 32 && offset_of!(Owner, dead_since) == 40);
    assert!(offset_of!(Owner, child) == 48 && offset_of!(Owner, capabilities) == 56);
    assert!(offset_of!(Owner, command) == 64 && size_of::<Owner>() == 128);
    assert!(size_of::<Waiting>() == 64 && offset_of!(Waiting, bytes) == 32);
    assert!(offset_of!(SlotPage, waiting) == 128 && offset_of!(SlotPage, pressure) == 192);
    assert!(size_of::<PressureWords>() == 64 && offset_of!(PressureWords, count) == 16);
    assert!(offset_of!(SlotPage, below) == 256 && offset_of!(SlotPage, alive_at) == 832);
    assert!(offset_of!(SlotPage, obstacles) == 840 && offset_of!(SlotPage, errand) == 848);
    assert!(offset_of!(SlotPage, gate) == 896 && size_of::<Gate>() == 2816);
    assert!(offset_of!(SlotPage, floors) == 3712);
    assert!(offset_of!(DeviceStats, by) == 0 && offset_of!(DeviceStats, peak) == 56);
    assert!(offset_of!(DeviceStats, refusals) == 64 && offset_of!(DeviceStats, reclaimable) == 72);
    assert!(offset_of!(DeviceStats, left) == 80 && offset_of!(DeviceStats, changed) == 88);
    assert!(offset_of!(DeviceStats, unit_ms) == 96 && offset_of!(DeviceStats, suspended) == 104);
    assert!(offset_of!(DeviceStats, resident) == 112);
    assert!(size_of::<DeviceStats>() == 128);
    assert!(offset_of!(SlotPage, owner) == 0 && offset_of!(SlotPage, stats) == PAGE);
    assert!(size_of::<SlotPage>() == 2 * PAGE);
    assert!(offset_of!(Content, slots) == 4 * PAGE + BLOCKS * MAX_SLOTS * 64);
    assert!(offset_of!(Content, slots) % PAGE == 0);
    assert!(offset_of!(Content, users) == offset_of!(Content, slots) + 2 * MAX_SLOTS * PAGE);
    assert!(size_of::<UserBill>() == 520 && size_of::<[UserBill; USERS]>() <= 32 * PAGE);
    assert!(offset_of!(Content, history) == offset_of!(Content, users) + 32 * PAGE);
    assert!(size_of::<Bucket>() == 24 && size_of::<DeviceHistory>() == 16 * PAGE);
    assert!(offset_of!(DeviceHistory, minutes) == 14_400);
    assert!(offset_of!(DeviceHistory, quarters) == 48_960);
    assert!(size_of::<TrailEntry>() == 1024 && offset_of!(TrailEntry, function) == 128);
    assert!(offset_of!(TrailEntry, group) == 160 && offset_of!(TrailEntry, holders) == 288);
    assert!(offset_of!(TrailEntry, in_ring) == 608 && offset_of!(TrailEntry, by) == 624);
    assert!(offset_of!(TrailEntry, repeats) == 688 && offset_of!(TrailEntry, last) == 696);
    assert!(size_of::<Content>() == (4 + 512 + 8192 + 32 + 512 + 1024) * PAGE);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_preface_of_this_version_does_not_change() {
        let sizes = [16_384, 2 << 20, 8192, 4096, 32, 42_090_496];
        assert_eq!(
            preface()[2..],
            sizes,
            "a changed layout needs a new version"
        );
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
                let line = &raw const content.charges[block][slot] as usize;
                assert_eq!(at(line), line_offset(block, slot));
            }
        }
    }
}
