//! The ledger: the shared file that records how much memory of each GPU the processes of a group
//! have charged.
//!
//! Each process charges only in its own slot, and the group's usage is the sum of all slots. So no
//! death leaves a total half changed. docs/internals/architecture.md says who writes each word.
//!
//! Charging takes no lock; claiming and cleaning a slot do (`lock`). A kernel file lock marks a
//! slot as owned, and ends with its process. The ledger knows nothing of CUDA.

// Models replace `file`, `lock` and `os`, so that some items for real files are unused there.
#![cfg_attr(all(test, loom), allow(dead_code))]

mod atomic;
mod charge;
mod demand;
mod entry;
mod error;
mod events;
#[cfg_attr(all(test, loom), path = "model/file.rs")]
mod file;
mod floors;
mod gate;
mod gpu_table;
mod history;
mod layout;
mod level;
#[cfg_attr(all(test, loom), path = "model/lock.rs")]
mod lock;
mod map;
mod maps;
#[cfg(all(test, loom))]
mod model;
mod moment;
mod orphans;
#[cfg_attr(all(test, loom), path = "model/os.rs")]
mod os;
mod owner;
#[cfg(not(all(test, loom)))]
mod past;
mod protection;
#[cfg_attr(all(test, loom), path = "model/random.rs")]
mod random;
mod reap;
mod record;
mod removal;
#[cfg(all(test, not(loom)))]
mod scratch;
mod slot;
mod stamp;
mod suspension;
mod tick;
mod trail;
#[cfg(not(all(test, loom)))]
mod uncovered;
mod usage;
mod wait;

pub use charge::Idle;
pub use demand::{Answer, Askable, Demand, OFTEN, Reason};
pub use error::LedgerError;
pub use events::{Event, EventKind, Happening};
pub use gate::{Calls, FORGED, Gate, GateLine, Owner, Place, Says, Step, step};
pub use history::{Bill, Extremes, Period, Resolution};
pub use layout::{HOLDERS, PressureWords};
pub use level::{
    Level, Pressure, Refused, charge, charge_ahead, charge_moved, charge_unchecked, note_usage,
    restore, try_charge, try_charge_ahead, uncharge, uncharge_idle,
};
pub use maps::{MappedFile, Mappings};
pub use orphans::Orphans;
pub use protection::{Protection, Share, child_key};
pub use reap::{NoWitness, Witness, overhead};
pub use removal::Removal;
pub use slot::Slot;
pub use suspension::{Actor, Errand, Unmoved, hand_over};
pub use trail::{Cause, Details, Holding, Outside, TrailEvent};
#[cfg(not(all(test, loom)))]
pub use uncovered::{Compared, Figures, uncovered};
pub use usage::{DeviceUsage, ProcessUsage, Usage, Waits};
pub use wait::{Line, Standstill, Turn};

use atomic::{AtomicU64, Ordering};
use charge::Charged;
use gpulimit_base::device::DeviceId;
use layout::{ChargeLine, Content, Header, LINE_DEVICES, Signals};
use lock::{Bytes, Description};
use reap::Fate;
use std::ops::Deref;
use std::path::Path;
use trail::Recent;

/// Largest number of GPUs and MIG instances in one ledger. Models use one, and run faster with few.
pub const MAX_DEVICES: usize = if cfg!(all(test, loom)) { 4 } else { 32 };
/// Largest number of processes that own a slot of one ledger at the same time.
pub const MAX_SLOTS: usize = 4096;

/// A kind of GPU memory, for display.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash, Ord, PartialOrd)]
#[repr(usize)]
pub enum Category {
    /// Linear allocations, such as those of `cuMemAlloc`.
    Linear,
    /// Memory that stream-ordered pools have reserved.
    Pools,
    /// Physical memory that the program itself maps to addresses (virtual memory management).
    Vmm,
    /// Arrays and mipmaps.
    Arrays,
    /// Memory that CUDA graphs allocate.
    Graphs,
    /// Managed memory, which migrates between host and GPU.
    Managed,
    /// Memory that the driver takes on its own: contexts, modules, stacks, streams.
    Driver,
}

impl Category {
    /// The number of categories.
    pub const COUNT: usize = 7;
    /// All categories, in the order of the ledger file.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Linear,
        Self::Pools,
        Self::Vmm,
        Self::Arrays,
        Self::Graphs,
        Self::Managed,
        Self::Driver,
    ];

    /// Returns the name of the category, as users see it.
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

/// The index of a device in the GPU table of one ledger. The same device may have another index in
/// another ledger.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash, Ord, PartialOrd)]
pub struct DeviceIndex(u8);

impl DeviceIndex {
    /// Converts a number into a [`DeviceIndex`]; `None` if the number is too large.
    fn new(index: usize) -> Option<Self> {
        (index < MAX_DEVICES).then_some(Self(index as u8))
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..MAX_DEVICES as u8).map(Self)
    }

    /// Returns the device's position in the GPU table, as a number.
    #[inline]
    pub const fn get(self) -> usize {
        // The index is always below `MAX_DEVICES`. The operator `%` only lets the compiler leave
        // out a bounds check.
        self.0 as usize % MAX_DEVICES
    }
}

impl From<DeviceIndex> for usize {
    fn from(index: DeviceIndex) -> Self {
        index.get()
    }
}

/// A device that a process of the group has used.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct DeviceEntry {
    /// The device's index in the ledger.
    pub index: DeviceIndex,
    /// The device's identity.
    pub id: DeviceId,
    /// The device's total memory in bytes.
    pub capacity: u64,
    /// Bytes that a CUDA context takes on the device, as last measured by a process of the group; 0
    /// if unknown.
    pub context_bytes: u64,
}

/// The result of cleaning the slots of dead processes once.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Cleaned {
    /// Number of cleaned slots.
    pub cleaned: usize,
    /// Number of dead processes' slots that still drain: the driver may still hold memory of these
    /// processes.
    pub draining: usize,
}

/// A ledger file mapped into this process, without an open descriptor. A forked child must open the
/// ledger anew or dies of SIGSEGV.
pub struct Ledger {
    place: file::Place,
    map: map::Mapping,
    /// The open file and more, between [`Ledger::look`] and [`Ledger::close_file`].
    look: Option<Box<Look>>,
    recent: Recent,
}

/// What a short look at a ledger keeps.
struct Look {
    file: Description,
    /// The slots whose owners were found alive, one bit each. Each question is a system call, and a
    /// look has several for the same slot.
    alive: [AtomicU64; MAX_SLOTS / 64],
}

/// The open file of a ledger: the one that the ledger keeps, or one for a single use.
enum OpenFile<'a> {
    Kept(&'a Description),
    Own(Description),
}

impl Deref for OpenFile<'_> {
    type Target = Description;

    fn deref(&self) -> &Description {
        match self {
            Self::Kept(file) => file,
            Self::Own(file) => file,
        }
    }
}

impl Ledger {
    /// Creates a ledger file with the permissions `mode`, unless the file exists. A killed process
    /// may leave a hidden temporary file.
    pub fn create(path: &Path, mode: u32) -> Result<(), LedgerError> {
        file::create(path, mode, false)
    }

    /// Creates a ledger file as [`Self::create`] does. The ledger keeps a history of its devices
    /// and a trail, if the file system has room for them.
    pub fn create_with_history(path: &Path, mode: u32) -> Result<(), LedgerError> {
        file::create(path, mode, true)
    }

    /// Opens a ledger for reading and writing. Every process that charges memory needs this.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let (place, map) = file::open(path, true)?;
        Ok(Self::of(place, map))
    }

    /// Opens a ledger for reading only. Methods that change the ledger then fail or do nothing.
    pub fn open_readonly(path: &Path) -> Result<Self, LedgerError> {
        let (place, map) = file::open(path, false)?;
        Ok(Self::of(place, map))
    }

    /// Opens a ledger for a short look at its figures, with `write` also for cleaning. Keeps the
    /// file open, and asks only once whether the owner of a slot is alive. Members use
    /// [`Self::open`], because forked children inherit the mapping of a look.
    pub fn look(path: &Path, write: bool) -> Result<Self, LedgerError> {
        let (place, map, file) = file::look(path, write)?;
        let alive = [const { AtomicU64::new(0) }; MAX_SLOTS / 64];
        Ok(Self {
            look: Some(Box::new(Look { file, alive })),
            ..Self::of(place, map)
        })
    }

    /// Closes the file that [`Self::look`] keeps open. The mapping stays.
    pub fn close_file(&mut self) {
        self.look = None;
    }

    fn of(place: file::Place, map: map::Mapping) -> Self {
        Self {
            place,
            map,
            look: None,
            recent: Recent::default(),
        }
    }

    /// Returns the open ledger file. With `write`, the mapping must be writable.
    fn open_file(&self, write: bool) -> Result<OpenFile<'_>, LedgerError> {
        match &self.look {
            Some(look) => Ok(OpenFile::Kept(&look.file)),
            None => self.place.open(write).map(OpenFile::Own),
        }
    }

    /// Returns whether a file that begins with these bytes is a ledger of any format version.
    pub fn begins_with(head: [u8; 8]) -> bool {
        u64::from_ne_bytes(head) == layout::MAGIC
    }

    /// Returns whether the ledger at this path has a living member; false if unknown. Works for
    /// every format version.
    pub fn is_used(path: &Path) -> bool {
        file::describe(path)
            .and_then(|file| lock::is_locked(&file, Bytes::ALL))
            .unwrap_or(false)
    }

    /// Returns the path that was used to open the ledger.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Returns the device number and the inode number of the ledger file.
    #[cfg(not(all(test, loom)))]
    pub fn file_id(&self) -> (u64, u64) {
        self.place.file_id()
    }

    /// Returns whether the opened ledger file is gone from its path. The group was then removed,
    /// and perhaps created again.
    pub fn is_unlinked(&self) -> bool {
        !self.place.is_current()
    }

    /// Returns an error if the ledger file was truncated or overwritten. Its content is then
    /// unreliable, and no request is granted.
    pub fn damage(&self) -> Option<LedgerError> {
        let damaged = |what| Some(LedgerError::damaged(&self.place.path, what));
        if self.map.is_lost() {
            damaged("the file was cut short, or its file system has no space")
        } else if !self.header().preface.is_whole() {
            damaged("the file was overwritten")
        } else {
            None
        }
    }

    /// Returns a number that changes with the protection, creation or removal of a protected child
    /// group. Costs one load.
    pub fn children(&self) -> u64 {
        self.signals().children.load(Ordering::Acquire)
    }

    /// Tells the members that a child group's protection has changed.
    pub fn children_changed(&self) {
        if self.map.writable() {
            self.signals().children.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns how often the members were asked to give back unused memory. Costs one load.
    pub fn asked(&self) -> u64 {
        self.signals().asked.load(Ordering::Relaxed)
    }

    /// Asks members to give back unused memory at their next call into the driver. Returns false if
    /// asked in the last 200 ms.
    pub fn ask_members(&self) -> bool {
        // A member that is asked all the time cannot work.
        const OFTEN_MS: u64 = 200;
        let signals = self.signals();
        let asks = self.map.writable() && moment::is_first_in(&signals.asked_at, OFTEN_MS);
        if asks {
            self.call_members();
        }
        asks
    }

    /// Asks members as [`Self::ask_members`] does, however often they were asked.
    pub fn call_members(&self) {
        if self.map.writable() {
            self.signals().asked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether a process may be waiting for memory of this group. Costs one load.
    pub fn has_waiters(&self) -> bool {
        self.signals().waiting.load(Ordering::Relaxed) as u32 != 0
    }

    /// Adds a request that has waited, and its waiting time, to the group's statistics.
    pub fn note_wait(&self, device: DeviceIndex, time: std::time::Duration) {
        if self.map.writable() {
            let header = self.header();
            let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            header.waits[device.get()].fetch_add(1, Ordering::Relaxed);
            header.waited_ms[device.get()].fetch_add(millis, Ordering::Relaxed);
            let seconds = millis.div_ceil(1_000);
            self.count(device, history::Count::WaitedSeconds(seconds));
        }
    }

    /// Counts a process that is being killed to make room on the device.
    pub fn note_kill(&self, device: DeviceIndex) {
        if self.map.writable() {
            self.count(device, history::Count::Kill);
        }
    }

    /// Records that usage of the device is above `high`, the group's soft limit. Returns true at
    /// most once a second.
    pub fn note_above_high(&self, device: DeviceIndex) -> bool {
        let noted = &self.header().above_high[device.get()];
        self.map.writable() && moment::is_first_in(noted, 1_000)
    }

    /// Returns whether the calling process is to say at its end that it was refused: the first of
    /// the group's processes, or in a group that `lasts` the first of ten seconds.
    pub fn take_explanation(&self, lasts: bool) -> bool {
        let apart_ms = if lasts { 10_000 } else { u64::MAX };
        self.map.writable() && moment::is_first_in(&self.header().explained, apart_ms)
    }

    /// Adds an event to the ring buffer, and to the trail if the ledger has one. In a full buffer,
    /// the event replaces the oldest one. Does nothing if the ledger was opened for reading only.
    pub fn record(&self, happening: &Happening) {
        self.record_in(Some(self), happening, &Details::default());
    }

    /// Does the same as [`Self::record`] with the trail of another ledger: that of a group above
    /// this ledger's group. If that ledger has no trail, or if the file system has no room for the
    /// trail, the event is only added to the ring buffer. In the trail, several equal events of
    /// this process share an entry.
    pub fn record_in(&self, trail: Option<&Self>, happening: &Happening, details: &Details<'_>) {
        if self.map.writable() {
            let (number, now) = (events::take(&self.header().ring), events::now_us());
            // The trail comes first: whoever reads the ring and then the trail finds the event of
            // the ring in the trail.
            if let Some(trail) = trail {
                trail.add_to_trail(self, number, now, happening, details);
            }
            events::record(&self.header().ring, number, now, happening, details.count);
            let count = &self.header().event_counts[happening.kind as usize];
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of events of a kind since the group was created. The ring buffer holds
    /// fewer events.
    pub fn event_count(&self, kind: EventKind) -> u64 {
        self.header().event_counts[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns the events whose number is `since` or higher, oldest first. Events that are no
    /// longer in the ring buffer, and events of the future, are missing.
    pub fn events(&self, since: u64) -> Vec<Event> {
        events::read(&self.header().ring, since)
    }

    /// Cleans the slots of dead processes whose memory the driver has freed. Does nothing in a
    /// removed or read-only ledger.
    pub fn clean(&self, witness: &dyn Witness) -> Cleaned {
        let mut done = Cleaned::default();
        if !self.map.writable() || self.high_water() == 0 {
            return done;
        }
        let Ok(file) = self.open_file(true) else {
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

    /// Returns whether the group has a living member; true if that is unknown. Costs a few system
    /// calls.
    pub fn has_live(&self) -> bool {
        self.is_locked(Bytes::OWNERS)
    }

    /// Returns whether the slot with this index has a living owner; true if that is unknown.
    pub fn is_held(&self, slot: usize) -> bool {
        self.is_locked(Bytes::owner(slot))
    }

    /// Returns when a slot was claimed, in milliseconds since boot; 0 for an empty slot. A program
    /// that follows another one in the same process, and in the same slot, has another time.
    pub fn claimed_at(&self, slot: usize) -> u64 {
        let owner = &self.content().slots[slot].owner;
        owner.birth.load(Ordering::Acquire)
    }

    /// Returns whether a process has locked any of the given bytes; true if that is unknown.
    fn is_locked(&self, bytes: Bytes) -> bool {
        let file = self.open_file(false);
        file.map_or(true, |file| lock::is_locked(&file, bytes).unwrap_or(true))
    }

    /// Returns the ledger file as `/proc/PID/maps` names it: by device number and inode.
    pub fn mapped_file(&self) -> std::io::Result<MappedFile> {
        maps::at(std::ptr::from_ref(self.content()).addr())
    }

    /// Fails, because models have no files.
    #[cfg(all(test, loom))]
    pub fn metadata(&self) -> std::io::Result<std::fs::Metadata> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Returns the metadata of the ledger file, such as its owner and its mode.
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

    /// Returns the number of slots that have ever been claimed. Capped at [`MAX_SLOTS`], because
    /// any member can write a wrong number.
    #[inline]
    fn high_water(&self) -> usize {
        let named = self.signals().high_water.load(Ordering::Acquire);
        (named as usize).min(MAX_SLOTS)
    }

    #[inline]
    fn word(&self, slot: usize, device: DeviceIndex) -> &AtomicU64 {
        &self.charge(slot, device).word
    }

    /// Returns the charge of a slot on a device.
    #[inline]
    fn charge(&self, slot: usize, device: DeviceIndex) -> &layout::Charge {
        let index = device.get();
        &self.content().charges[index / LINE_DEVICES][slot].0[index % LINE_DEVICES]
    }

    /// Returns the charges of all slots on a device with an index below `high_water`.
    #[inline]
    fn charges(
        &self,
        device: DeviceIndex,
        high_water: u64,
    ) -> impl Iterator<Item = Charged<'_, AtomicU64>> {
        let index = device.get();
        let block = &self.content().charges[index / LINE_DEVICES];
        // A faulty process may have written a `high_water` that is larger than the number of slots.
        let high_water = (high_water as usize).min(block.len());
        block[..high_water].iter().map(move |ChargeLine(line)| {
            let layout::Charge { word, idle } = &line[index % LINE_DEVICES];
            Charged { word, idle }
        })
    }

    /// Returns whether a slot has granted or undecided units on any device.
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
