//! The shared file of a group: who has charged how much of which GPU.
//!
//! Every process charges only in its own slot, and no shared total exists, so that there is nothing
//! that a dying process can leave half-changed, and nothing that a stopped one can hold. Usage is
//! the sum over the slots. Who owns a slot is a kernel lock that ends with the process: charging
//! takes no lock, claiming and cleaning a slot do (`lock`). The ledger knows bytes and devices,
//! nothing of CUDA.

// The doors of models leave unused what only files need.
#![cfg_attr(all(test, loom), allow(dead_code))]

mod atomic;
mod charge;
mod error;
mod events;
#[cfg_attr(all(test, loom), path = "model/file.rs")]
mod file;
mod gpu_table;
mod layout;
mod level;
#[cfg_attr(all(test, loom), path = "model/lock.rs")]
mod lock;
mod map;
mod maps;
#[cfg(all(test, loom))]
mod model;
mod orphans;
#[cfg_attr(all(test, loom), path = "model/os.rs")]
mod os;
mod owner;
mod protection;
#[cfg_attr(all(test, loom), path = "model/random.rs")]
mod random;
mod reap;
mod record;
mod removal;
#[cfg(all(test, not(loom)))]
mod scratch;
mod slot;
mod usage;
mod wait;

pub use charge::Idle;
pub use error::LedgerError;
pub use events::{Event, EventKind, Happening};
pub use level::{
    Level, Pressure, Refused, charge, charge_ahead, charge_unchecked, note_usage, try_charge,
    try_charge_ahead, uncharge, uncharge_idle,
};
pub use maps::{MappedFile, Mappings};
pub use orphans::Orphans;
pub use protection::{Protection, child_key};
pub use reap::{NoWitness, Witness};
pub use removal::Removal;
pub use slot::Slot;
pub use usage::{DeviceUsage, ProcessUsage, Usage};
pub use wait::{Line, Turn};

use atomic::{AtomicU64, Ordering};
use gpulimit_base::device::DeviceId;
use layout::{Content, Header, LINE_DEVICES, Signals};
use lock::Bytes;
use reap::Fate;
use std::path::Path;

/// GPUs and MIG instances that one ledger can count.
pub const MAX_DEVICES: usize = 32;
/// Processes that one ledger can hold at once.
pub const MAX_SLOTS: usize = 4096;

/// What memory is used for.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash, Ord, PartialOrd)]
#[repr(usize)]
pub enum Category {
    /// Plain allocations by address.
    Linear,
    /// Reserves of stream-ordered pools.
    Pools,
    /// Physical memory that the program maps itself.
    Vmm,
    /// Arrays and mipmaps.
    Arrays,
    /// Memory nodes of graphs.
    Graphs,
    /// Memory that migrates between host and device.
    Managed,
    /// What the driver takes without being asked for bytes: contexts, modules, stacks, streams.
    Driver,
}

impl Category {
    /// The number of categories.
    pub const COUNT: usize = 7;
    /// All categories, in the order of their figures.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Linear,
        Self::Pools,
        Self::Vmm,
        Self::Arrays,
        Self::Graphs,
        Self::Managed,
        Self::Driver,
    ];

    /// As shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Pools => "pools",
            Self::Vmm => "vmm",
            Self::Arrays => "arrays",
            Self::Graphs => "graphs",
            Self::Managed => "managed",
            Self::Driver => "driver",
        }
    }
}

/// A device in one ledger's table. The same device may have another index in another ledger.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash, Ord, PartialOrd)]
pub struct DeviceIndex(u8);

impl DeviceIndex {
    /// Below [`MAX_DEVICES`] only.
    fn new(index: usize) -> Option<Self> {
        (index < MAX_DEVICES).then_some(Self(index as u8))
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..MAX_DEVICES as u8).map(Self)
    }

    /// The position in the table.
    #[inline]
    pub const fn get(self) -> usize {
        // The compiler sees that it is in bounds.
        self.0 as usize % MAX_DEVICES
    }
}

impl From<DeviceIndex> for usize {
    fn from(index: DeviceIndex) -> Self {
        index.get()
    }
}

/// A device that a group has seen.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct DeviceEntry {
    /// In this ledger.
    pub index: DeviceIndex,
    /// Which device.
    pub id: DeviceId,
    /// Bytes.
    pub capacity: u64,
    /// Bytes that a context took when last measured; 0 unknown.
    pub context_bytes: u64,
}

/// What a round of cleaning came to.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Cleaned {
    /// Slots of dead processes that are empty now.
    pub cleaned: usize,
    /// Slots of dead processes whose memory the driver may still hold.
    pub draining: usize,
}

/// A ledger, mapped into this process. No descriptor stays open.
///
/// The mapping is not there in forked children: a child that touches it dies of SIGSEGV. It opens
/// the file anew.
pub struct Ledger {
    place: file::Place,
    map: map::Mapping,
}

impl Ledger {
    /// Makes the file, complete and with exactly this mode, unless something has that name already.
    ///
    /// The temporary name, in the same directory, begins with a dot; a process killed here leaves
    /// it behind.
    pub fn create(path: &Path, mode: u32) -> Result<(), LedgerError> {
        file::create(path, mode)
    }

    /// Opens a ledger as a member.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let (place, map) = file::open(path, true)?;
        Ok(Self { place, map })
    }

    /// Opens a ledger to look at it. What would change it is an error or does nothing.
    pub fn open_readonly(path: &Path) -> Result<Self, LedgerError> {
        let (place, map) = file::open(path, false)?;
        Ok(Self { place, map })
    }

    /// Whether a file with these first bytes is a ledger, of this version or another.
    pub fn begins_with(head: [u8; 8]) -> bool {
        u64::from_ne_bytes(head) == layout::MAGIC
    }

    /// Whether somebody is a member of the ledger at this path, which may be one that cannot be
    /// opened: members of every version lock a byte of it as long as they live. False where it
    /// cannot be told.
    pub fn is_used(path: &Path) -> bool {
        file::describe(path)
            .and_then(|file| lock::is_locked(&file, Bytes::ALL))
            .unwrap_or(false)
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Whether the path leads to this file no longer: the group was removed, perhaps made again.
    pub fn is_unlinked(&self) -> bool {
        !self.place.is_current()
    }

    /// What has become of the file that is mapped, where nothing in it can be relied on any more:
    /// nothing is granted then.
    pub fn damage(&self) -> Option<LedgerError> {
        let damaged = |what| Some(LedgerError::damaged(&self.place.path, what));
        if self.map.is_lost() {
            damaged("cut short")
        } else if !self.header().preface.is_whole() {
            damaged("overwritten")
        } else {
            None
        }
    }

    /// Counts the groups directly below that came or went, and the changes of their limits. One
    /// load.
    pub fn children(&self) -> u64 {
        self.signals().children.load(Ordering::Acquire)
    }

    /// Tells the members that a group directly below came or went, or that its limits changed.
    pub fn children_changed(&self) {
        if self.map.writable() {
            self.signals().children.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Counts the times that somebody asked the members for what they hold unused. One load.
    pub fn asked(&self) -> u64 {
        self.signals().asked.load(Ordering::Relaxed)
    }

    /// Asks the other members for what they hold unused: they give it back at their next call.
    /// False when somebody has asked a moment ago: who has to give all the time cannot work.
    pub fn ask_members(&self) -> bool {
        const OFTEN_MS: u64 = 200;
        let signals = self.signals();
        let (now, before) = (os::boot_ms(), signals.asked_at.load(Ordering::Relaxed));
        if !self.map.writable() || (before <= now && now - before < OFTEN_MS) {
            return false;
        }
        signals.asked_at.store(now, Ordering::Relaxed);
        signals.asked.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whether somebody may be waiting for memory here. One load.
    pub fn has_waiters(&self) -> bool {
        self.signals().waiting.load(Ordering::Relaxed) != 0
    }

    /// Notes that a request waited so long.
    pub fn note_wait(&self, device: DeviceIndex, time: std::time::Duration) {
        if self.map.writable() {
            let header = self.header();
            let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            header.waits[device.get()].fetch_add(1, Ordering::Relaxed);
            header.waited_ms[device.get()].fetch_add(millis, Ordering::Relaxed);
        }
    }

    /// Notes that usage of the device is above `high`; true when that was not noted within the last
    /// second.
    pub fn note_above_high(&self, device: DeviceIndex) -> bool {
        let noted = &self.header().above_high[device.get()];
        let now = os::boot_ms();
        let before = noted.load(Ordering::Relaxed);
        let fresh = before <= now && now - before < 1_000;
        !fresh
            && self.map.writable()
            && noted
                .compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Writes down what happened; the oldest event goes. Nothing on a ledger opened for reading.
    pub fn record(&self, happening: &Happening) {
        if self.map.writable() {
            events::record(&self.header().ring, happening);
        }
    }

    /// The events from number `since` on that are still there, oldest first.
    pub fn events(&self, since: u64) -> Vec<Event> {
        events::read(&self.header().ring, since)
    }

    /// Cleans the slots of dead processes, as far as they are drained. Nothing on a ledger opened
    /// for reading or removed.
    pub fn clean(&self, witness: &dyn Witness) -> Cleaned {
        let mut done = Cleaned::default();
        if !self.map.writable() {
            return done;
        }
        let Ok(file) = self.place.open(true) else {
            return done;
        };
        for slot in 0..self.high_water() {
            let owner = &self.content().slots[slot].owner;
            if owner.pid.load(Ordering::Relaxed) == 0 && !self.has_words(slot) {
                continue;
            }
            match reap::reap(self, &file, slot, witness) {
                Fate::Live | Fate::Empty | Fate::Busy => {}
                Fate::Draining => done.draining += 1,
                Fate::Cleaned => done.cleaned += 1,
            }
        }
        done
    }

    /// Whether some slot has an owner. One system call; true when it cannot be told.
    pub fn has_live(&self) -> bool {
        self.is_locked(Bytes::OWNERS)
    }

    /// Whether a slot has an owner; true when it cannot be told.
    pub fn is_held(&self, slot: usize) -> bool {
        self.is_locked(Bytes::owner(slot))
    }

    /// Whether somebody holds one of the lock bytes; true when that cannot be told.
    fn is_locked(&self, bytes: Bytes) -> bool {
        let file = self.place.open(false);
        file.map_or(true, |file| lock::is_locked(&file, bytes).unwrap_or(true))
    }

    /// The file as the mappings of processes name it.
    pub fn mapped_file(&self) -> std::io::Result<MappedFile> {
        maps::at(std::ptr::from_ref(self.content()).addr())
    }

    /// Models have no files.
    #[cfg(all(test, loom))]
    pub fn metadata(&self) -> std::io::Result<std::fs::Metadata> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Whose the file is, and who may write it.
    #[cfg(not(all(test, loom)))]
    pub fn metadata(&self) -> std::io::Result<std::fs::Metadata> {
        match self.place.open(false) {
            Ok(file) => file.metadata(),
            Err(LedgerError::Io { error, .. }) => Err(error),
            Err(_) => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    #[inline]
    fn content(&self) -> &Content {
        self.map.content()
    }

    #[inline]
    fn header(&self) -> &Header {
        &self.content().header
    }

    #[inline]
    fn signals(&self) -> &Signals {
        &self.header().signals
    }

    /// Slots below which all members are; the file is not trusted to name no more than there are.
    #[inline]
    fn high_water(&self) -> usize {
        let named = self.signals().high_water.load(Ordering::Acquire);
        (named as usize).min(MAX_SLOTS)
    }

    #[inline]
    fn word(&self, slot: usize, device: DeviceIndex) -> &AtomicU64 {
        let index = device.get();
        &self.content().words[index / LINE_DEVICES][slot].0[index % LINE_DEVICES]
    }

    /// Whether anything is charged in a slot.
    fn has_words(&self, slot: usize) -> bool {
        DeviceIndex::all().any(|device| self.word(slot, device).load(Ordering::Relaxed) != 0)
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ledger {}", self.place.path.display())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
