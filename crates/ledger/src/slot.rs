//! A process's slot in the ledger, and how a process claims a slot.

use super::atomic::{AtomicU64, Ordering, fence};
use super::charge;
use super::floors;
use super::history::{self, Count};
use super::layout::{
    self, BELOW_WORDS, BLOCKS, DeviceStats, SlotPage, Waiting, load_bytes, store_bytes,
};
use super::lock::{self, Anchor, Bytes, Description};
use super::protection::child_key;
use super::random::Random;
use super::reap::{self, Fate, NoWitness};
use super::record::Record;
use super::tick::Tick;
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
/// - A kernel file lock marks the slot as owned, until exec or death. Forked children do not
///   inherit the lock and must not use the slot.
/// - Dropping the slot uncharges all memory of this process. The driver must hold no memory of the
///   process then.
/// - If a process ends without dropping its slot, the charge stays until the driver has freed the
///   memory.
pub struct Slot {
    ledger: Arc<Ledger>,
    index: usize,
    /// This process's own record of its charges on each device. Other processes cannot change it.
    records: [Record<AtomicU64>; MAX_DEVICES],
    /// The largest usage of this process on each device since the last [`Slot::restart_peak`].
    peaks: [AtomicU64; MAX_DEVICES],
    /// The times of this process's last change of its charge on each device.
    pub(super) timed: [Timed; MAX_DEVICES],
    /// All requests of this process are refused until this time, in milliseconds since boot. Set
    /// when another process has changed this process's word; otherwise 0. `u64::MAX` if the ledger
    /// file is damaged. The bit [`OWES`] is no time.
    distrust: AtomicU64,
    /// For each device, freed units that could not be uncharged, because they were suspended.
    owed: [AtomicU64; MAX_DEVICES],
    /// Asks the driver whether this process is suspended.
    is_suspended: Option<fn() -> bool>,
    /// Not 0 while a thread of this process has a place in the group's line of waiting requests.
    in_line: AtomicU64,
    // The mapping that keeps the owner lock. Dropped last, after the slot is emptied.
    _owner: Anchor,
}

/// The times of a process's last change of its charge on one device.
#[derive(Default)]
pub(super) struct Timed {
    /// The tick of the wall clock: see [`Tick::word`]. Nothing is added to the charge over time
    /// within a tick.
    pub tick: AtomicU64,
    /// The time up to which the charge over time is counted: see [`os::steady_ms`].
    pub steady: AtomicU64,
    /// Copies of the words of the history for the present second, as last read or written: see
    /// [`Slot::note_between`].
    max: AtomicU64,
    min: AtomicU64,
    /// The time that this process last wrote to [`DeviceStats::changed`].
    changed: AtomicU64,
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

    /// Sets the bytes that this process has charged ahead but does not use. When bytes come into
    /// use, call [`Self::note_use`] next.
    pub fn publish_idle(&self, device: DeviceIndex, bytes: u64) {
        let idle = &self.ledger.charge(self.index, device).idle;
        idle.store(bytes, Ordering::Relaxed);
    }

    /// Records the usage after `bytes` that were charged ahead have come into use. Reads the
    /// charges of all members if the ledger keeps a history of the device; otherwise does nothing.
    pub fn note_use(&self, device: DeviceIndex, bytes: u64) {
        if self.ledger.records(device) {
            // If the usage of two members rises at once, at least one sees the other's rise.
            fence(Ordering::SeqCst);
            let second = os::wall_tick().second();
            self.ledger
                .note_use(device, second, bytes.div_ceil(charge::UNIT));
        }
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

    /// Marks that the calling thread writes this process's waiting request. Returns false if
    /// another thread does.
    pub(super) fn enter_line(&self) -> bool {
        let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
        let entered = self.in_line.compare_exchange(0, 1, order, failed);
        entered.is_ok()
    }

    pub(super) fn leave_line(&self) {
        self.in_line.store(0, Ordering::Release);
    }

    /// Counts a refused request in the statistics of the process and of the group.
    pub fn count_refusal(&self, device: DeviceIndex) {
        self.stats(device).refusals.fetch_add(1, Ordering::Relaxed);
        let group = &self.ledger.header().refusals;
        group[device.get()].fetch_add(1, Ordering::Relaxed);
        self.ledger.count(device, Count::Refusal);
    }

    /// Adds the time since the last change of this process's charge to the process's charge over
    /// time. Call before a change, and only if the ledger keeps a history of the device. Mostly
    /// costs one look at a clock, because nothing is added within a tick of that clock.
    #[inline]
    pub(super) fn keep_time(&self, device: DeviceIndex, now: Tick) {
        let tick = &self.timed[device.get()].tick;
        if tick.load(Ordering::Relaxed) != now.word() {
            self.add_time(device, now);
            tick.store(now.word(), Ordering::Relaxed);
        }
    }

    #[cold]
    fn add_time(&self, device: DeviceIndex, now: Tick) {
        self.ledger.open_second(device, now.second());
        let stats = self.stats(device);
        let steady = os::steady_ms();
        // Of several threads, each adds the time since the one before it.
        let timed = &self.timed[device.get()];
        let before = timed.steady.fetch_max(steady, Ordering::Relaxed);
        let counted = stats.changed.load(Ordering::Relaxed);
        let is_own = timed.changed.swap(now.ms(), Ordering::Relaxed) == counted;
        let units = charge::granted(self.word(device).load(Ordering::Relaxed));
        floors::note(&self.page().floors, device, now.second(), units);
        if before != 0 {
            // Whoever suspends or resumes this process counts the time up to then.
            let since = if is_own {
                u64::MAX
            } else {
                now.ms().saturating_sub(counted)
            };
            let more = units.saturating_mul(steady.saturating_sub(before).min(since));
            stats.unit_ms.fetch_add(more, Ordering::Relaxed);
        }
        stats.changed.store(now.ms(), Ordering::Relaxed);
    }

    /// Records that the usage has been `max` and `min` units. Mostly reads only this process's
    /// copies: within a second, members raise the largest usage and lower the smallest one.
    #[inline(always)]
    pub(super) fn note_between(&self, device: DeviceIndex, second: u64, max: u64, min: u64) {
        let timed = &self.timed[device.get()];
        if !history::includes([&timed.max, &timed.min], second, max, min) {
            self.note_new(device, second, max, min);
        }
    }

    #[cold]
    fn note_new(&self, device: DeviceIndex, second: u64, max: u64, min: u64) {
        self.ledger.note_between(device, second, max, min);
        if let Some(extremes) = self.ledger.extremes(device, second) {
            let timed = &self.timed[device.get()];
            for (copy, word) in [&timed.max, &timed.min].into_iter().zip(extremes) {
                copy.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    #[inline]
    pub(super) fn charge(&self, device: DeviceIndex) -> &layout::Charge {
        self.ledger.charge(self.index, device)
    }

    #[inline]
    pub(super) fn word(&self, device: DeviceIndex) -> &AtomicU64 {
        &self.charge(device).word
    }

    #[inline]
    pub(super) fn record(&self, device: DeviceIndex) -> &Record<AtomicU64> {
        &self.records[device.get()]
    }

    /// Raises this process's peaks to `bytes` if they are lower. Most calls only read one word that
    /// no other process has.
    #[inline]
    pub(super) fn raise_peak(&self, device: DeviceIndex, bytes: u64) {
        let since = &self.peaks[device.get()];
        if bytes > since.load(Ordering::Relaxed) {
            since.fetch_max(bytes, Ordering::Relaxed);
            let peak = &self.stats(device).peak;
            peak.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Returns this process's largest usage since the last call, in bytes. What another thread
    /// charges at this moment may count before or after the call.
    pub fn restart_peak(&self, device: DeviceIndex) -> u64 {
        let peak = &self.peaks[device.get()];
        let before = peak.swap(0, Ordering::SeqCst);
        let held = self.usage(device).in_use();
        // What a thread has charged before the exchange is in `held`; later charges raise the word.
        peak.fetch_max(held, Ordering::SeqCst);
        before.max(held)
    }

    /// Begins a change of this process's word in the ledger: see [`charge::Rung::begin`].
    #[inline]
    pub(super) fn begin(&self, device: DeviceIndex, word: &AtomicU64, now: Option<Tick>) -> bool {
        let mut beside = None;
        let lacks = self.record(device).begin(|recorded| {
            match charge::charged(word.load(Ordering::Acquire)) {
                charged if charged < recorded => self.with_suspended(device, word, &mut beside),
                charged => charged,
            }
        });
        if let Some(now) = now {
            self.keep_time(device, now);
        }
        // `high_water` normally only grows. If it does not include this slot, a faulty or hostile
        // process has lowered it.
        let hidden = self.high_water().load(Ordering::Relaxed) <= self.index as u64;
        if lacks == 0 && !hidden && self.distrust.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.repair(device, lacks, beside, hidden)
    }

    /// Returns the units in this process's word, and those that are suspended, if the driver
    /// confirms that. Sets `beside` to the word if there are suspended units.
    #[cold]
    fn with_suspended(
        &self,
        device: DeviceIndex,
        word: &AtomicU64,
        beside: &mut Option<u64>,
    ) -> u64 {
        let mut looks = 0;
        loop {
            let look = || {
                let word = word.load(Ordering::Acquire);
                let suspended = self.ledger.suspended(self.index, device) / charge::UNIT;
                (word, suspended)
            };
            let seen = look();
            // Without suspended bytes there is nothing to ask.
            let confirmed = seen.1 > 0 && self.is_suspended.is_some_and(|ask| ask());
            looks += 1;
            // Another process may suspend or resume this one in between.
            if look() == seen || looks == SUSPENDED_LOOKS {
                *beside = (seen.1 > 0).then_some(seen.0);
                return charge::charged(seen.0) + if confirmed { seen.1 } else { 0 };
            }
        }
    }

    /// Sets the function that asks the driver whether it has moved this process's memory to the
    /// host. Without it, whoever suspends this process is taken for one who falsifies its charge.
    pub fn confirm_suspensions_by(&mut self, is_suspended: fn() -> bool) {
        self.is_suspended = Some(is_suspended);
    }

    /// Notes that `units` of freed memory are not in this process's word. As far as this process
    /// has recorded them, they are suspended, and are uncharged when they are back.
    pub(super) fn owe(&self, device: DeviceIndex, units: u64) {
        let units = units.min(self.record(device).units());
        if units > 0 {
            self.owed[device.get()].fetch_add(units, Ordering::Relaxed);
            self.distrust.fetch_or(OWES, Ordering::Relaxed);
        }
    }

    /// Returns the freed units that could not be uncharged.
    #[cfg(all(test, loom))]
    pub(super) fn owed(&self, device: DeviceIndex) -> u64 {
        self.owed[device.get()].load(Ordering::Relaxed)
    }

    /// Uncharges freed memory that was suspended before.
    fn pay_debts(&self) {
        self.distrust.fetch_and(!OWES, Ordering::Relaxed);
        for device in DeviceIndex::all() {
            let owed = self.owed[device.get()].swap(0, Ordering::Relaxed);
            if owed > 0 {
                let word = self.word(device);
                self.record(device).begin(|recorded| recorded);
                let paid = charge::take_out(word, owed);
                self.record(device).taken(paid);
                if paid < owed {
                    self.owe(device, owed - paid);
                }
            }
        }
    }

    /// Repairs this process's word and `high_water`, and pays its debts. Returns whether requests
    /// may be granted: false for a second after another process's change. `beside` is the word that
    /// lacks the units, if there are suspended ones.
    #[cold]
    fn repair(&self, device: DeviceIndex, lacks: u64, beside: Option<u64>, hidden: bool) -> bool {
        // Damage is permanent, so this process gets no grant again. `high_water` stays wrong, so
        // that every member detects the damage here.
        if self.ledger.damage().is_some() {
            self.distrust.store(u64::MAX, Ordering::Relaxed);
            return false;
        }
        if lacks > 0 {
            // A suspension that the driver does not confirm is none.
            self.stats(device).suspended.store(0, Ordering::Release);
            let (word, set) = (self.word(device), Ordering::SeqCst);
            match beside {
                // Whoever takes the units back at this moment has changed the word. If another
                // thread has, the next request looks again.
                Some(seen) => {
                    let _ = word.compare_exchange(seen, seen + lacks, set, set);
                }
                None => {
                    word.fetch_add(lacks, set);
                }
            }
        }
        if self.distrust.load(Ordering::Relaxed) & OWES != 0 {
            self.pay_debts();
        }
        self.high_water()
            .fetch_max(self.index as u64 + 1, Ordering::SeqCst);
        let now = os::boot_ms();
        // Other processes may have been granted the memory that seemed free.
        if lacks > 0 || hidden {
            let owes = self.distrust.load(Ordering::Relaxed) & OWES;
            self.distrust
                .store((now + DISTRUST_MS) | owes, Ordering::Relaxed);
            return false;
        }
        let distrust = self.distrust.load(Ordering::Relaxed);
        let over = distrust & !OWES <= now;
        if over {
            // If another thread has detected a new change meanwhile, this exchange fails and keeps
            // the new time.
            let (left, order) = (distrust & OWES, Ordering::Relaxed);
            let _ = (self.distrust).compare_exchange(distrust, left, order, order);
        }
        over
    }

    /// Returns whether requests are refused because another process has changed this process's
    /// word.
    pub fn distrusts(&self) -> bool {
        self.distrust.load(Ordering::Relaxed) & !OWES > os::boot_ms()
    }

    fn high_water(&self) -> &AtomicU64 {
        &self.ledger.signals().high_water
    }

    #[inline]
    pub(super) fn stats(&self, device: DeviceIndex) -> &DeviceStats {
        &self.page().stats[device.get()]
    }

    #[inline]
    pub(super) fn page(&self) -> &SlotPage {
        &self.ledger.content().slots[self.index]
    }

    /// Returns the number of the slot in its ledger.
    pub fn index(&self) -> usize {
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
/// The bit of [`Slot::distrust`] that says that a device has debts.
const OWES: u64 = 1 << 62;
/// How often a process looks at its suspended bytes while they change.
const SUSPENDED_LOOKS: u32 = if cfg!(loom) { 2 } else { 16 };
/// Number of random slots that a process tries to claim before it tries all slots in order.
const TRIES: u32 = if cfg!(loom) { 2 } else { 64 };
/// Largest number of slots that a process checks for a dead owner before it claims a new slot.
const PROBES: u32 = 16;
/// Largest number of times that a process tries all slots while some may become free soon.
const ROUNDS: u32 = if cfg!(loom) { 3 } else { 200 };
const ROUND_PAUSE: Duration = Duration::from_millis(5);

impl Ledger {
    /// Claims a slot; call once per process and ledger. `below` is the process's group relative to
    /// the ledger's, such as `alice/job7`, or empty.
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
            peaks: Default::default(),
            timed: Default::default(),
            distrust: AtomicU64::new(0),
            owed: Default::default(),
            is_suspended: None,
            in_line: AtomicU64::new(0),
            _owner: anchor,
        };
        // From now on only the mapping keeps the owner lock. Without the lock, other processes
        // would give this process's memory away.
        drop(owner);
        let held = lock::is_locked(&claim, Bytes::owner(index))
            .map_err(|error| LedgerError::io(&place.path, "lock", error))?;
        if !held {
            let unsuitable = Unsuitable::loses_locks(&place.path);
            return Err(LedgerError::FileSystem(unsuitable));
        }
        // The group may have been removed while this process waited. Then the slot belongs to no
        // group.
        self.check_current()?;
        reap::look(self, &claim, index);
        Ok(slot)
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
        // Low slots are preferred, because a charge reads all slots up to the highest. After a
        // collision, the process chooses among twice as many.
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

    /// Chooses at random among the first `crowd` free slots. If `crowd` is 1, prefers an uncharged
    /// dead owner's slot to a new slot.
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
            // Charging never cleans the slot of a process killed before its first charge. In a
            // crowd, this check would be too slow.
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
        // Most slots of a full ledger have an owner. Taking their claim locks would disturb
        // processes that clean slots.
        if lock::is_locked(self.claim, Bytes::owner(slot)).map_err(self.error("lock"))? {
            return Ok(Take::Held);
        }
        let claimed = lock::try_lock(self.claim, Bytes::claim(slot)).map_err(self.error("lock"))?;
        if !claimed {
            return Ok(Take::Busy);
        }
        let taken = self.take_claimed(slot);
        // Closing the file is not enough, because a forked child may keep the lock. Unlock last,
        // because the lock protects the slot.
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
        for word in [
            &page.owner.capabilities,
            &page.pressure.registered,
            &page.obstacles,
            &page.errand,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        page.gate.clear();
        self.ledger.clear_entrances(slot);
        store_bytes(&page.below, self.below.as_bytes());
        page.owner.write(self.identity);
        // `high_water` must include this slot before this process publishes its first request.
        // Other processes read `high_water` to find all requests.
        let high_water = &self.ledger.signals().high_water;
        high_water.fetch_max(slot as u64 + 1, Ordering::SeqCst);
        Ok(Take::Taken(anchor))
    }

    /// Reserves file system space for everything that the slot's owner writes. Without it, a later
    /// write could end with SIGBUS.
    fn reserve(&self, slot: usize) -> io::Result<()> {
        for block in 0..BLOCKS {
            let line = size_of::<layout::ChargeLine>() as u64;
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
