//! One process's line in the ledger, and how a process gets one.

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
/// The kernel lock that says "owned" hangs on a mapping of its own, not on a descriptor: closing
/// all descriptors does not lose it, a forked child does not inherit it, exec and death in whatever
/// form end it. In a forked child the slot must not be used; dropping it there does nothing.
///
/// Dropping gives everything back at once, so it may be done only when the driver holds no memory
/// for this process any more. A process that ends without dropping leaves a slot that drains.
pub struct Slot {
    ledger: Arc<Ledger>,
    index: usize,
    /// What this process has charged of each device, where nobody else can change it.
    records: [Record<AtomicU64>; MAX_DEVICES],
    /// Milliseconds of the boot clock until which nothing is granted; 0: somebody else's changes
    /// were not seen. For ever where the file is none any more.
    distrust: AtomicU64,
    // The lock. Dropped after the words are zeroed.
    _owner: Anchor,
}

impl Slot {
    /// The ledger that the slot is in.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Bytes granted to this process.
    pub fn charged(&self, device: DeviceIndex) -> u64 {
        charge::granted(self.word(device).load(Ordering::Relaxed)) * charge::UNIT
    }

    /// Sets the bytes of a category, absolute. A figure for people: limits are kept by charges
    /// alone.
    pub fn publish(&self, device: DeviceIndex, category: Category, bytes: u64) {
        self.stats(device).by[category as usize].store(bytes, Ordering::Relaxed);
    }

    /// Sets the bytes that are charged in advance but not used.
    pub fn publish_idle(&self, device: DeviceIndex, bytes: u64) {
        self.stats(device).idle.store(bytes, Ordering::Relaxed);
    }

    /// Sets the bytes that can be given back when somebody asks, at most.
    pub fn publish_reclaimable(&self, device: DeviceIndex, bytes: u64) {
        self.stats(device)
            .reclaimable
            .store(bytes, Ordering::Relaxed);
    }

    /// Whether no request of this process is being decided at this moment.
    pub fn is_decided(&self, device: DeviceIndex) -> bool {
        charge::undecided(self.word(device).load(Ordering::Acquire)) == 0
    }

    pub(super) fn waiting(&self) -> &Waiting {
        &self.page().waiting
    }

    /// Counts a refused request, for this process and for the group.
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

    /// As [`charge::Rung::begin`].
    #[inline]
    pub(super) fn begin(&self, device: DeviceIndex) -> bool {
        let word = self.word(device);
        let lacks = self
            .record(device)
            .begin(|| charge::charged(word.load(Ordering::Acquire)));
        // It only grows: below us it cannot be.
        let hidden = self.high_water().load(Ordering::Relaxed) <= self.index as u64;
        if lacks == 0 && !hidden && self.distrust.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.put_right(device, lacks, hidden)
    }

    /// Others may have been granted what ours seemed to leave, and theirs may have been changed as
    /// well: a while goes by before anything is granted.
    #[cold]
    fn put_right(&self, device: DeviceIndex, lacks: u64, hidden: bool) -> bool {
        // Nobody is let in any more. Without `high_water` all members come here, so it stays as it
        // is.
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
            // Unless another thread has seen something new.
            let _ = self
                .distrust
                .compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        over
    }

    /// Whether what somebody else has changed was seen a moment ago.
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
            "slot {} of {}",
            self.index,
            self.ledger.place.path.display()
        )
    }
}

/// How long nothing is granted after somebody else has changed what only this process may.
const DISTRUST_MS: u64 = 1_000;
/// Tries at random slots before all slots are gone through.
const TRIES: u32 = if cfg!(loom) { 2 } else { 64 };
/// Slots of unknown owners that are asked after before the ledger grows.
const PROBES: u32 = 16;
/// Rounds through all slots while some are only being claimed, cleaned or drained.
const ROUNDS: u32 = if cfg!(loom) { 3 } else { 200 };
const ROUND_PAUSE: Duration = Duration::from_millis(5);

impl Ledger {
    /// Claims a slot for this process: once per process and ledger, not once per thread. `below` is
    /// the group that the process is in as seen from this one, such as `alice/job7`; empty: this
    /// one.
    ///
    /// Low slots are preferred, as every charge reads all slots up to the highest ever claimed.
    /// Processes that start at once would all go for the lowest free slot; each slot that is lost
    /// to another doubles the number of free slots among which the next is drawn, so that a
    /// thousand of them need a handful of tries each. There is no other bound: of four thousand on
    /// two processors more than a thousand may stand still in the middle of a claim, and have all
    /// the lowest.
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
        // From here on only the mapping keeps the lock. Where the file system has dropped it, others
        // would take this process for dead and give its memory away.
        drop(owner);
        let held = lock::is_locked(&claim, Bytes::owner(index))
            .map_err(|error| LedgerError::io(&place.path, "lock", error))?;
        if !held {
            let unsuitable = Unsuitable::loses_locks(&place.path);
            return Err(LedgerError::FileSystem(unsuitable));
        }
        // A group that is being removed lets nobody claim until its files are gone. Who claims then
        // is in no group.
        self.check_current().map(|()| slot)
    }

    /// An error where the ledger was removed.
    fn check_current(&self) -> Result<(), LedgerError> {
        match self.place.is_current() {
            true => Ok(()),
            false => Err(LedgerError::Replaced {
                path: self.place.path.clone(),
            }),
        }
    }
}

/// Returns the owner's group, relative to that of the ledger; empty where the bytes are no name.
pub(super) fn read_below(page: &SlotPage) -> String {
    let bytes: [u8; 8 * BELOW_WORDS] = load_bytes(&page.below);
    let name = bytes.into_iter().take_while(|byte| *byte != 0).collect();
    let mut name = String::from_utf8(name).unwrap_or_default();
    // A long name is cut off, perhaps behind a `/`.
    name.truncate(name.trim_end_matches('/').len());
    // Members write these bytes, so they may be anything.
    if name.split('/').all(is_part) {
        name
    } else {
        String::new()
    }
}

enum Take {
    Taken(Anchor),
    /// Somebody is claiming or cleaning it.
    Busy,
    /// It has a living owner.
    Held,
    /// Its owner is dead, and the driver may still hold his memory.
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
            // The group is being removed when all claim locks are held.
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

    /// A random one of the first `crowd` slots that look free; before the ledger grows for one alone,
    /// one whose owner died.
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
            // Also those who were killed before they charged anything leave their name; nobody else
            // cleans these slots. Not asked by those who start at once: the kernel answers slowly where
            // a file has thousands of locks.
            let first = random.below(high_water);
            for step in 0..high_water.min(PROBES as usize) {
                let slot = (first + step) % high_water;
                if !nobody(&slot) && self.is_abandoned(slot)? {
                    return Ok(Some(slot));
                }
            }
        }
        // Above `high_water` every slot looks free, as its page was never written.
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

    /// Whether a slot that bears a name has no owner and no charge.
    fn is_abandoned(&self, slot: usize) -> Result<bool, LedgerError> {
        let held = lock::is_locked(self.claim, Bytes::owner(slot)).map_err(self.error("lock"))?;
        Ok(!held && !self.ledger.has_words(slot))
    }

    fn take(&self, slot: usize) -> Result<Take, LedgerError> {
        // Asked first: most slots of a full ledger are held, and this leaves those who clean
        // undisturbed.
        if lock::is_locked(self.claim, Bytes::owner(slot)).map_err(self.error("lock"))? {
            return Ok(Take::Held);
        }
        let claimed = lock::try_lock(self.claim, Bytes::claim(slot)).map_err(self.error("lock"))?;
        if !claimed {
            return Ok(Take::Busy);
        }
        let taken = self.take_claimed(slot);
        // Explicitly, as a child forked meanwhile may keep the description alive. Released last:
        // until then nobody else touches the slot.
        lock::unlock(self.claim, Bytes::claim(slot)).map_err(self.error("lock"))?;
        taken
    }

    /// The claim lock is held.
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
        // Before this process's first publish: others read it after their own.
        let high_water = &self.ledger.signals().high_water;
        high_water.fetch_max(slot as u64 + 1, Ordering::SeqCst);
        Ok(Take::Taken(anchor))
    }

    /// Room for everything that the slot's owner writes: where there is none, that is an error here
    /// and not a SIGBUS there.
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
