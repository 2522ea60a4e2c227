//! A process's slot in the ledger, and how a process claims a slot.

use super::atomic::{AtomicU64, Ordering};
use super::charge;
use super::layout::{
    self, BELOW_WORDS, BLOCKS, DeviceStats, SlotPage, Waiting, load_bytes, store_bytes,
};
use super::lock::{self, Anchor, Bytes, Description};
use super::protection::child_key;
use super::random::Random;
use super::reap::{self, Fate, NoWitness};
use super::record::Record;
use super::{Category, DeviceIndex, Ledger, LedgerError, MAX_DEVICES, MAX_SLOTS, os};
use gpulimit_base::file_system::Unsuitable;
use gpulimit_base::identity::Identity;
use gpulimit_base::name::is_part;
use std::io;
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

/// A claimed slot: this process's charges and statistics in one ledger.
///
/// A kernel file lock marks the slot as owned. A mapping keeps this lock alive, so that closing
/// descriptors does not end it. A forked child does not inherit the lock. The lock ends with exec,
/// and with any death of the process. Do not use the slot in a forked child; dropping it there has
/// no effect.
///
/// Dropping the slot uncharges all memory of this process at once. Drop it only if the driver holds
/// no more memory for this process. If a process ends without dropping its slot, its charge stays
/// until the driver has freed its memory.
pub struct Slot {
    ledger: Arc<Ledger>,
    index: usize,
    /// This process's own record of its charges on each device. Other processes cannot change it.
    records: [Record<AtomicU64>; MAX_DEVICES],
    /// All requests of this process are refused until this time, in milliseconds since boot. Set
    /// when another process has changed this process's word; otherwise 0. `u64::MAX` if the ledger
    /// file is damaged.
    distrust: AtomicU64,
    // The mapping that keeps the owner lock. Dropped last, after the slot is emptied.
    _owner: Anchor,
}

impl Slot {
    /// Returns the ledger that contains the slot.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Returns the bytes granted to this process on the device.
    pub fn charged(&self, device: DeviceIndex) -> u64 {
        charge::granted(self.word(device).load(Ordering::Relaxed)) * charge::UNIT
    }

    /// Sets the bytes of one category of memory. For display only; limits use charges alone.
    pub fn publish(&self, device: DeviceIndex, category: Category, bytes: u64) {
        self.stats(device).by[category as usize].store(bytes, Ordering::Relaxed);
    }

    /// Sets the bytes that this process has charged ahead but does not use.
    pub fn publish_idle(&self, device: DeviceIndex, bytes: u64) {
        self.stats(device).idle.store(bytes, Ordering::Relaxed);
    }

    /// Sets the largest number of bytes that this process can give back on request.
    pub fn publish_reclaimable(&self, device: DeviceIndex, bytes: u64) {
        self.stats(device)
            .reclaimable
            .store(bytes, Ordering::Relaxed);
    }

    /// Returns whether this process has no undecided request on the device at this moment.
    pub fn is_decided(&self, device: DeviceIndex) -> bool {
        charge::undecided(self.word(device).load(Ordering::Acquire)) == 0
    }

    pub(super) fn waiting(&self) -> &Waiting {
        &self.page().waiting
    }

    /// Counts a refused request in the statistics of the process and of the group.
    pub fn count_refusal(&self, device: DeviceIndex) {
        self.stats(device).refusals.fetch_add(1, Ordering::Relaxed);
        let group = &self.ledger.header().refusals;
        group[device.get()].fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn word(&self, device: DeviceIndex) -> &AtomicU64 {
        self.ledger.word(self.index, device)
    }

    #[inline]
    pub(super) fn record(&self, device: DeviceIndex) -> &Record<AtomicU64> {
        &self.records[device.get()]
    }

    /// Begins a change of this process's word in the ledger: see [`charge::Rung::begin`].
    #[inline]
    pub(super) fn begin(&self, device: DeviceIndex) -> bool {
        let word = self.word(device);
        let lacks = self
            .record(device)
            .begin(|| charge::charged(word.load(Ordering::Acquire)));
        // `high_water` normally only grows. If it does not include this slot, a faulty or hostile
        // process has lowered it.
        let hidden = self.high_water().load(Ordering::Relaxed) <= self.index as u64;
        if lacks == 0 && !hidden && self.distrust.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.repair(device, lacks, hidden)
    }

    /// Repairs this process's word and `high_water` after another process has changed them. Returns
    /// whether a request may be granted. After such a change, all requests are refused for a
    /// second. Other processes may have been granted the memory that seemed free, and their words
    /// may have been changed too.
    #[cold]
    fn repair(&self, device: DeviceIndex, lacks: u64, hidden: bool) -> bool {
        // A damaged ledger file stays damaged, so this process never gets a grant again.
        // `high_water` is not repaired: as long as it is wrong, every member detects the damage
        // here.
        if self.ledger.damage().is_some() {
            self.distrust.store(u64::MAX, Ordering::Relaxed);
            return false;
        }
        self.word(device).fetch_add(lacks, Ordering::SeqCst);
        self.high_water()
            .fetch_max(self.index as u64 + 1, Ordering::SeqCst);
        let now = os::boot_ms();
        if lacks > 0 || hidden {
            self.distrust.store(now + DISTRUST_MS, Ordering::Relaxed);
            return false;
        }
        let until = self.distrust.load(Ordering::Relaxed);
        let over = until <= now;
        if over {
            // If another thread has detected a new change meanwhile, this exchange fails and keeps
            // the new time.
            let _ = self
                .distrust
                .compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        over
    }

    /// Returns whether requests are refused because another process has changed this process's
    /// word.
    pub fn distrusts(&self) -> bool {
        self.distrust.load(Ordering::Relaxed) > os::boot_ms()
    }

    fn high_water(&self) -> &AtomicU64 {
        &self.ledger.signals().high_water
    }

    #[inline]
    pub(super) fn stats(&self, device: DeviceIndex) -> &DeviceStats {
        &self.page().stats[device.get()]
    }

    #[inline]
    fn page(&self) -> &SlotPage {
        &self.ledger.content().slots[self.index]
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.ledger.map.is_ours() {
            reap::zero(&self.ledger, self.index);
        }
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "slot {} of ledger {}",
            self.index,
            self.ledger.place.path.display()
        )
    }
}

/// How long all requests of this process are refused after another process has changed its word.
const DISTRUST_MS: u64 = 1_000;
/// Number of random slots that a process tries to claim before it tries all slots in order.
const TRIES: u32 = if cfg!(loom) { 2 } else { 64 };
/// Largest number of slots that a process checks for a dead owner before it claims a new slot.
const PROBES: u32 = 16;
/// Largest number of times that a process tries all slots while some may become free soon.
const ROUNDS: u32 = if cfg!(loom) { 3 } else { 200 };
const ROUND_PAUSE: Duration = Duration::from_millis(5);

impl Ledger {
    /// Claims a slot for this process. Call once per process and ledger, not once per thread.
    /// `below` is the name of the process's group relative to the ledger's group, such as
    /// `alice/job7`. It is empty for the ledger's group itself.
    ///
    /// Low slots are preferred, because every charge reads all slots up to the highest one ever
    /// claimed. But if many processes start at once, all of them would try the lowest free slot.
    /// Therefore a process chooses at random among the lowest free slots. Each time another process
    /// is faster, it chooses among twice as many slots. Even a thousand processes then need only a
    /// few attempts each. The choice may grow to all slots. If thousands of processes start on two
    /// processors, more than a thousand of them may be suspended while they claim the lowest slots.
    pub fn claim(self: &Arc<Self>, identity: &Identity, below: &str) -> Result<Slot, LedgerError> {
        let place = &self.place;
        if !self.map.writable() {
            return Err(LedgerError::ReadOnly {
                path: place.path.clone(),
            });
        }
        let owner = place.open(true)?;
        let claim = place.open(true)?;
        let candidate = Candidate {
            ledger: self,
            identity,
            below,
            owner: &owner,
            claim: &claim,
        };
        let (index, anchor) = candidate.find()?;
        let slot = Slot {
            ledger: Arc::clone(self),
            index,
            records: Default::default(),
            distrust: AtomicU64::new(0),
            _owner: anchor,
        };
        // From now on only the mapping keeps the owner lock. If the file system has dropped the
        // lock, other processes would think that this process is dead, and give its memory away.
        drop(owner);
        let held = lock::is_locked(&claim, Bytes::owner(index))
            .map_err(|error| LedgerError::io(&place.path, "lock", error))?;
        if !held {
            let unsuitable = Unsuitable::loses_locks(&place.path);
            return Err(LedgerError::FileSystem(unsuitable));
        }
        // The group may have been removed while this process waited for a slot. The slot then
        // belongs to no group, so the claim fails.
        self.check_current().map(|()| slot)
    }

    /// Returns an error if the ledger file was removed from its path.
    fn check_current(&self) -> Result<(), LedgerError> {
        match self.place.is_current() {
            true => Ok(()),
            false => Err(LedgerError::Replaced {
                path: self.place.path.clone(),
            }),
        }
    }
}

/// Returns the name of the owner's group relative to the ledger's group. Empty if the stored name
/// is invalid.
pub(super) fn read_below(page: &SlotPage) -> String {
    let bytes: [u8; 8 * BELOW_WORDS] = load_bytes(&page.below);
    let name = bytes.into_iter().take_while(|byte| *byte != 0).collect();
    let mut name = String::from_utf8(name).unwrap_or_default();
    // A long name is cut off when it is stored, so it may end with a `/`.
    name.truncate(name.trim_end_matches('/').len());
    // Any member can write any bytes here, so the name must be checked.
    if name.split('/').all(is_part) {
        name
    } else {
        String::new()
    }
}

enum Take {
    Taken(Anchor),
    /// Another process is claiming or cleaning the slot.
    Busy,
    /// The slot has a living owner.
    Held,
    /// The slot's owner is dead, and the driver may still hold its memory.
    Draining,
}

struct Candidate<'a> {
    ledger: &'a Arc<Ledger>,
    identity: &'a Identity,
    below: &'a str,
    owner: &'a Description,
    claim: &'a Description,
}

impl Candidate<'_> {
    fn find(&self) -> Result<(usize, Anchor), LedgerError> {
        let mut random = Random::new();
        let mut crowd = 1;
        for _ in 0..TRIES {
            let Some(slot) = self.pick(crowd, &mut random)? else {
                break;
            };
            match self.take(slot)? {
                Take::Taken(anchor) => return Ok((slot, anchor)),
                Take::Busy | Take::Held | Take::Draining => crowd = (crowd * 2).min(MAX_SLOTS),
            }
        }
        for _ in 0..ROUNDS {
            let mut soon = false;
            for slot in 0..MAX_SLOTS {
                match self.take(slot)? {
                    Take::Taken(anchor) => return Ok((slot, anchor)),
                    Take::Held => {}
                    Take::Busy | Take::Draining => soon = true,
                }
            }
            // All slots may be locked because the group is being removed.
            self.ledger.check_current()?;
            if !soon {
                break;
            }
            os::sleep(ROUND_PAUSE);
        }
        Err(LedgerError::NoSlot {
            path: self.ledger.place.path.clone(),
        })
    }

    /// Chooses one of the first `crowd` slots that look free, at random. If `crowd` is 1 and no
    /// slot below `high_water` looks free, prefers a slot whose owner died without charges.
    fn pick(&self, crowd: usize, random: &mut Random) -> Result<Option<usize>, LedgerError> {
        let ledger = self.ledger;
        let nobody = |slot: &usize| {
            ledger.content().slots[*slot]
                .owner
                .pid
                .load(Ordering::Relaxed)
                == 0
        };
        let high_water = ledger.high_water();
        let free = (0..high_water).filter(nobody).take(crowd).count();
        if crowd == 1 && free == 0 {
            // A process that was killed before its first charge leaves its name in its slot, and
            // charging never cleans such a slot. Many processes that start at once skip this check,
            // because the kernel answers slowly if a file has thousands of locks.
            let first = random.below(high_water);
            for step in 0..high_water.min(PROBES as usize) {
                let slot = (first + step) % high_water;
                if !nobody(&slot) && self.is_abandoned(slot)? {
                    return Ok(Some(slot));
                }
            }
        }
        // All slots above `high_water` look free, because they were never written.
        let wanted = random.below(crowd.min(free + MAX_SLOTS - high_water).max(1));
        Ok((0..high_water)
            .filter(nobody)
            .chain(high_water..MAX_SLOTS)
            .nth(wanted))
    }

    fn error(&self, action: &'static str) -> impl Fn(io::Error) -> LedgerError {
        let path = self.ledger.place.path.clone();
        move |error| LedgerError::io_with_room(&path, action, error)
    }

    /// Returns whether a slot has no charge and no living owner. The slot may still name a dead
    /// owner.
    fn is_abandoned(&self, slot: usize) -> Result<bool, LedgerError> {
        let held = lock::is_locked(self.claim, Bytes::owner(slot)).map_err(self.error("lock"))?;
        Ok(!held && !self.ledger.has_words(slot))
    }

    fn take(&self, slot: usize) -> Result<Take, LedgerError> {
        // The owner lock is checked first, because most slots of a full ledger have an owner.
        // Taking the claim lock of such a slot would disturb processes that clean slots.
        if lock::is_locked(self.claim, Bytes::owner(slot)).map_err(self.error("lock"))? {
            return Ok(Take::Held);
        }
        let claimed = lock::try_lock(self.claim, Bytes::claim(slot)).map_err(self.error("lock"))?;
        if !claimed {
            return Ok(Take::Busy);
        }
        let taken = self.take_claimed(slot);
        // Closing the file is not enough: a child that was forked meanwhile may keep the lock
        // alive. The lock is released last, because it keeps other processes away from the slot.
        lock::unlock(self.claim, Bytes::claim(slot)).map_err(self.error("lock"))?;
        taken
    }

    /// Takes the slot for this process. The caller holds the slot's claim lock.
    fn take_claimed(&self, slot: usize) -> Result<Take, LedgerError> {
        self.reserve(slot).map_err(self.error("reserve space"))?;
        match reap::reap_claimed(self.ledger, self.claim, slot, &NoWitness) {
            Fate::Live => return Ok(Take::Held),
            Fate::Busy => return Ok(Take::Busy),
            Fate::Draining => return Ok(Take::Draining),
            Fate::Empty | Fate::Cleaned => {}
        }
        let owned = lock::try_lock(self.owner, Bytes::owner(slot)).map_err(self.error("lock"))?;
        if !owned {
            return Ok(Take::Held);
        }
        let anchor = match Anchor::new(self.owner) {
            Ok(anchor) => anchor,
            Err(error) => {
                let _ = lock::unlock(self.owner, Bytes::owner(slot));
                return Err(self.error("map")(error));
            }
        };
        let page = &self.ledger.content().slots[slot];
        page.owner.birth.store(os::boot_ms(), Ordering::Relaxed);
        let child = self.below.split('/').next().filter(|name| !name.is_empty());
        page.owner
            .child
            .store(child.map_or(0, child_key), Ordering::Relaxed);
        store_bytes(&page.below, self.below.as_bytes());
        page.owner.write(self.identity);
        // `high_water` must include this slot before this process publishes its first request.
        // Other processes read `high_water` to find all requests.
        let high_water = &self.ledger.signals().high_water;
        high_water.fetch_max(slot as u64 + 1, Ordering::SeqCst);
        Ok(Take::Taken(anchor))
    }

    /// Reserves file system space for all parts of the file that the slot's owner writes. In a full
    /// file system this call fails; without it, a later write would end with SIGBUS.
    fn reserve(&self, slot: usize) -> io::Result<()> {
        for block in 0..BLOCKS {
            let line = size_of::<layout::WordLine>() as u64;
            os::reserve(self.claim, layout::line_offset(block, slot), line)?;
        }
        os::reserve(
            self.claim,
            layout::slot_offset(slot),
            size_of::<SlotPage>() as u64,
        )
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
