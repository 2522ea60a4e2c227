//! Suspension: the driver moves the GPU memory of a living process to the host and back
//! (`cuCheckpointProcess…`), as another process asks. That process is the *actor*.
//!
//! A slot has two figures for each device: the charge (its word) and the suspended bytes. Only
//! charges count against limits. The actor lowers the charge by what the driver has let go, and
//! raises it before it asks the driver to bring the memory back. The owner's record of its charges
//! stays the same meanwhile: it compares it with charge plus suspended bytes.
//!
//! Two words cannot change in one step, and an actor may die between two steps. So a bit of the
//! charge's word, [`MOVING`], says that the suspended bytes are in the word, too:
//!
//! - Down: set the bit; write the suspended bytes; lower the charge and clear the bit in one step.
//! - Up: raise the charge and set the bit in one step; see that all charges keep the limit; write 0
//!   suspended bytes; clear the bit.
//!
//! Whoever finds the bit set, and nobody at work, lowers the charge by the suspended bytes and
//! clears the bit in one step. If the actor had not written the bytes yet, or had written 0
//! already, that changes nothing.
//!
//! Bytes are away from a charge only while the driver reports the process checkpointed. Whoever
//! finds another state, or lets calls of the process go on, takes the bytes back first
//! ([`Ledger::take_back`]), above the limit if need be.
//!
//! Up is a request: it is published, and then the charges of all are added up. Without the sum, a
//! process that adds up the charges at the same time might see the units neither in the actor's
//! word, which they have left, nor in the word that they have moved to.
//!
//! An actor holds two locks. The *actor lock* of a slot excludes other actors for the whole time in
//! which the driver works; the slot can be cleaned meanwhile if its owner dies. The claim lock is
//! held for the change of figures only.

use super::atomic::{AtomicU64, Ordering, fence};
use super::charge::{self, MOVING, UNIT};
use super::level::Level;
use super::lock::{self, Bytes, Description};
use super::owner::is_dead;
use super::slot::{self, Slot};
use super::{DeviceIndex, Ledger, os, wait};
use gpulimit_base::identity::Identity;
use std::fmt;
use std::time::Duration;

/// Why an actor cannot change the figures of a process.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Unmoved {
    /// The ledger has no living member with this identity.
    Gone,
    /// Another actor works on the process, or another process has locked its slot for long.
    Busy,
    /// Requests of other processes are undecided and may take the room, or the limit was lowered.
    Contended,
    /// The ledger file is not open for writing, and cannot be opened for it.
    Closed,
}

impl fmt::Display for Unmoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the process has ended",
            Self::Busy => {
                "another command suspends or resumes the process, or waits for room to resume it"
            }
            Self::Contended => "the group has no room",
            Self::Closed => "the ledger cannot be opened for writing",
        })
    }
}

impl std::error::Error for Unmoved {}

/// The work of an actor on a process, as the process's slot says. If no actor works on the process,
/// the work was abandoned: its actor has died.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Errand {
    /// No actor works on the process.
    None,
    /// The process is being suspended.
    Suspend,
    /// The process is being resumed.
    Resume,
    /// The driver could not bring the process's memory back, and never can.
    Lost,
}

impl Errand {
    /// The bit beside the errand that says that an actor has stopped the process.
    const FROZEN: u64 = 1 << 8;

    /// Returns the errand that a word of a slot names. A member can write anything there.
    const fn of(word: u64) -> Self {
        match word & (Self::FROZEN - 1) {
            1 => Self::Suspend,
            2 => Self::Resume,
            3 => Self::Lost,
            _ => Self::None,
        }
    }

    const fn word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Suspend => 1,
            Self::Resume => 2,
            Self::Lost => 3,
        }
    }
}

/// The right to suspend and resume one process: its actor lock in one ledger. Ends with the value,
/// and with the death of this process.
pub struct Actor<'a> {
    ledger: &'a Ledger,
    file: Description,
    slot: usize,
}

impl fmt::Debug for Actor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "actor for slot {} of {:?}", self.slot, self.ledger)
    }
}

impl Actor<'_> {
    /// Returns whether another actor works on the process, whose next program has another slot.
    pub fn has_rival(&self, process: &Identity) -> bool {
        let slot = self.ledger.slot_of(process);
        slot.is_some_and(|slot| slot != self.slot && self.ledger.is_acted_on(slot))
    }
}

impl Drop for Actor<'_> {
    fn drop(&mut self) {
        let _ = lock::unlock(&self.file, Bytes::actor(self.slot));
    }
}

/// How often an actor tries to take the claim lock of a slot. Others hold it for a moment.
const TRIES: u32 = if cfg!(loom) { 2 } else { 1_000 };
const PAUSE: Duration = Duration::from_millis(1);

impl Ledger {
    /// Returns the right to suspend and resume a member, unless another process has it.
    ///
    /// The right in the ledger of the process's own group excludes other actors. Ledgers of groups
    /// above it have no say.
    pub fn act_on(&self, process: &Identity) -> Result<Actor<'_>, Unmoved> {
        let slot = self.slot_of(process).ok_or(Unmoved::Gone)?;
        let file = self.place.open(true).map_err(|_| Unmoved::Closed)?;
        match lock::try_lock(&file, Bytes::actor(slot)) {
            Ok(true) => Ok(Actor {
                ledger: self,
                file,
                slot,
            }),
            Ok(false) => Err(Unmoved::Busy),
            Err(_) => Err(Unmoved::Closed),
        }
    }

    /// Writes into a member's slot what an actor does with the member, and whether the actor has
    /// stopped the member. The actor writes this in the ledger of every level, before it asks the
    /// driver to lock the member, so that others can end the work if the actor dies.
    pub fn set_errand(&self, process: &Identity, errand: Errand, frozen: bool) {
        if let Some(slot) = self.slot_of(process)
            && self.map.writable()
        {
            let frozen = if frozen { Errand::FROZEN } else { 0 };
            let word = &self.content().slots[slot].errand;
            // `SeqCst`: the next step is a call of the driver.
            word.store(errand.word() | frozen, Ordering::SeqCst);
        }
    }

    /// Writes into a member's slot how many bytes the member has on one device, as far as an actor
    /// can tell: what the driver shows before it moves the memory, or what the device has free
    /// afterwards beyond what it had before.
    pub fn set_resident(&self, process: &Identity, device: DeviceIndex, bytes: u64) {
        if let Some(slot) = self.slot_of(process)
            && self.map.writable()
        {
            self.resident(slot, device).store(bytes, Ordering::Relaxed);
        }
    }

    fn resident(&self, slot: usize, device: DeviceIndex) -> &AtomicU64 {
        &self.content().slots[slot].stats[device.get()].resident
    }

    /// Returns the work of an actor on a living member, and whether an actor has stopped the
    /// member.
    pub fn errand_of(&self, process: &Identity) -> (Errand, bool) {
        self.slot_of(process)
            .map_or((Errand::None, false), |slot| self.errand(slot))
    }

    pub(super) fn errand(&self, slot: usize) -> (Errand, bool) {
        let word = self.content().slots[slot].errand.load(Ordering::Acquire);
        (Errand::of(word), word & Errand::FROZEN != 0)
    }

    /// Returns the living members whose slots say that an actor is at work, although no actor is.
    /// Reads only words if no slot says so. Leaves out members of groups below: an actor has its
    /// lock in the ledger of the member's own group.
    pub fn abandoned(&self) -> Vec<Identity> {
        let is_at_work =
            |slot: &usize| matches!(self.errand(*slot).0, Errand::Suspend | Errand::Resume);
        let slots = (0..self.high_water()).filter(is_at_work);
        let owner = |slot: usize| {
            let page = &self.content().slots[slot];
            let is_own = slot::read_below(page).is_empty();
            let is_left = is_own && !self.is_acted_on(slot) && self.is_held(slot);
            is_left.then(|| page.owner.read())?
        };
        slots.filter_map(owner).collect()
    }

    /// Returns whether a slot says that its owner is suspended. Reads only words.
    pub fn has_suspended(&self) -> bool {
        let devices = self.devices();
        let is_away = |slot| {
            let mut devices = devices.iter();
            devices.any(|device| {
                let resident = self.resident(slot, device.index).load(Ordering::Relaxed);
                self.suspended(slot, device.index) != 0 || resident != 0
            })
        };
        (0..self.high_water()).any(is_away)
    }

    /// Returns whether another process works on the member: it suspends or resumes it at this
    /// moment.
    pub fn has_actor(&self, process: &Identity) -> bool {
        self.slot_of(process)
            .is_some_and(|slot| self.is_acted_on(slot))
    }

    /// Returns whether a process holds a slot's actor lock; true if unknown.
    pub(super) fn is_acted_on(&self, slot: usize) -> bool {
        let file = self.open_file(false);
        file.map_or(true, |file| {
            lock::is_locked(&file, Bytes::actor(slot)).unwrap_or(true)
        })
    }

    /// Returns the slot whose owner is this process.
    pub(super) fn slot_of(&self, process: &Identity) -> Option<usize> {
        let same = |slot: &usize| {
            self.owner(*slot)
                .is_some_and(|owner| owner.is_same(process))
        };
        // After `exec`, a process also has the slot of its earlier program. Only one is alive.
        let file = self.open_file(false).ok()?;
        (0..self.high_water()).find(|slot| same(slot) && !is_dead(&file, *slot))
    }

    /// Moves the charges of a process to its suspended figures, on all devices. Call after the
    /// driver has reported the process checkpointed, with the actor lock of the process's own
    /// group. Begin with that group, in whose ledger the process looks for suspended bytes, and go
    /// upwards then. Returns the bytes that were moved. Bytes that the process has charged ahead
    /// and does not use stay charged, as do orphans: the driver has not let go of them.
    pub fn move_out(&self, process: &Identity) -> Result<u64, Unmoved> {
        let moved = self.with_claimed(process, |slot| {
            DeviceIndex::all()
                .map(|device| move_out(self, slot, device))
                .fold(0, u64::saturating_add)
        })?;
        wait::returned(self);
        Ok(moved)
    }

    /// Moves the suspended bytes of a process back to its charges, on all devices and even above
    /// the limit. Call when the driver reports the process in another state than checkpointed, and
    /// before calls of the process go on. Does nothing unless `is_due`, asked under the claim lock:
    /// if the caller is no actor, one may have begun to suspend the process again.
    pub fn take_back(&self, process: &Identity, is_due: &dyn Fn() -> bool) -> Result<(), Unmoved> {
        self.with_claimed(process, |slot| {
            for device in DeviceIndex::all().filter(|_| is_due()) {
                let is_away = self.suspended(slot, device) > 0;
                move_back(self, slot, device, &|| true);
                self.resident(slot, device).store(0, Ordering::Relaxed);
                if is_away {
                    self.note_use(device, os::wall_tick().second(), 0);
                }
            }
        })
    }

    /// Moves the suspended bytes of a process back to its charge on one device, if `fits` says that
    /// all charges keep the limit then. Call before the driver is asked to bring the memory back.
    pub(super) fn receive(
        &self,
        process: &Identity,
        device: DeviceIndex,
        fits: &dyn Fn() -> bool,
    ) -> Result<(), Unmoved> {
        match self.with_claimed(process, |slot| move_back(self, slot, device, fits)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Unmoved::Contended),
            Err(error) => Err(error),
        }
    }

    /// Runs `work` with the slot of a living process, under the slot's claim lock.
    fn with_claimed<T>(
        &self,
        process: &Identity,
        work: impl FnOnce(usize) -> T,
    ) -> Result<T, Unmoved> {
        let slot = self.slot_of(process).ok_or(Unmoved::Gone)?;
        if !self.map.writable() {
            return Err(Unmoved::Closed);
        }
        let file = self.place.open(true).map_err(|_| Unmoved::Closed)?;
        let mut tries = 0;
        while !lock::try_lock(&file, Bytes::claim(slot)).map_err(|_| Unmoved::Closed)? {
            tries += 1;
            if tries == TRIES {
                return Err(Unmoved::Busy);
            }
            os::sleep(PAUSE);
        }
        // The owner is checked again: the slot may have changed its owner before the lock.
        let owner = self.owner(slot).filter(|_| !is_dead(&file, slot));
        let result = match owner {
            Some(owner) if owner.is_same(process) => Ok(work(slot)),
            _ => Err(Unmoved::Gone),
        };
        let _ = lock::unlock(&file, Bytes::claim(slot));
        result
    }

    fn figure(&self, slot: usize, device: DeviceIndex) -> &AtomicU64 {
        &self.content().slots[slot].stats[device.get()].suspended
    }

    /// Returns the suspended bytes of a slot; 0 while they are in the charge's word.
    pub(super) fn suspended(&self, slot: usize, device: DeviceIndex) -> u64 {
        match self.word(slot, device).load(Ordering::Acquire) & MOVING {
            0 => self.figure(slot, device).load(Ordering::Acquire),
            _ => 0,
        }
    }

    /// Returns the bits that say why a living member must not be suspended
    /// (`gpulimit_base::obstacle`); `None` if there is no such member.
    ///
    /// Look before the driver locks the process's calls, and again afterwards: a call under way may
    /// set a bit. Any member can write any bits for another one. Wrong bits refuse a suspension; if
    /// true bits are missing, the process itself may be lost when its memory comes back. Neither
    /// gives anybody memory.
    pub fn obstacles_of(&self, process: &Identity) -> Option<u64> {
        let page = &self.content().slots[self.slot_of(process)?];
        Some(page.obstacles.load(Ordering::SeqCst))
    }

    /// Returns the suspended bytes of a living member on one device; 0 without such a member.
    pub fn suspended_of(&self, process: &Identity, device: DeviceIndex) -> u64 {
        self.slot_of(process)
            .map_or(0, |slot| self.suspended(slot, device))
    }
}

impl Slot {
    /// Takes this process's suspended bytes back: see [`Ledger::take_back`].
    pub fn take_back(&self, is_due: &dyn Fn() -> bool) -> Result<(), Unmoved> {
        let ledger = self.ledger();
        let own = ledger.owner(self.index()).ok_or(Unmoved::Gone)?;
        ledger.take_back(&own, is_due)
    }

    /// Returns whether an actor works on this process; true if unknown.
    pub fn has_actor(&self) -> bool {
        self.ledger().is_acted_on(self.index())
    }

    /// Returns whether this process has suspended bytes. Call after a change of its charge: an
    /// actor that has moved the charge out before the change is seen.
    #[inline]
    pub fn has_suspended(&self, device: DeviceIndex) -> bool {
        // The actor writes the bytes, and then changes the word that this process has changed.
        fence(Ordering::Acquire);
        self.stats(device).suspended.load(Ordering::Relaxed) != 0
    }

    /// Writes the bits that say why this process must not be suspended: see
    /// [`Ledger::obstacles_of`]. They are 0 when the slot is claimed. The caller has a lock, so
    /// that no thread writes older bits over newer ones.
    pub fn show_obstacles(&self, bits: u64) {
        // The call of the driver that follows must not overtake the bits.
        self.page().obstacles.store(bits, Ordering::SeqCst);
    }
}

/// Ends a change of figures that a dead actor has left half-done. The caller holds the claim lock.
pub(super) fn settle(ledger: &Ledger, slot: usize, device: DeviceIndex) {
    let (word, figure) = (ledger.word(slot, device), ledger.figure(slot, device));
    lower(word, figure, |suspended, _| suspended);
}

/// Lowers the charge in `word` and clears the bit, if the word has it. `units` gets the suspended
/// units and the granted ones, and returns how many are suspended. Returns those that are.
fn lower(word: &AtomicU64, figure: &AtomicU64, units: impl Fn(u64, u64) -> u64) -> u64 {
    let mut before = word.load(Ordering::Acquire);
    // Any member may clear the bit, so the loop ends without it.
    while before & MOVING != 0 {
        let (written, granted) = (figure.load(Ordering::Acquire), charge::granted(before));
        let units = units(written / UNIT, granted).min(granted);
        figure.store(units * UNIT, Ordering::Release);
        // The owner may change its charge at any time, until the driver locks its calls.
        let (set, failed) = (Ordering::SeqCst, Ordering::Acquire);
        match word.compare_exchange(before, before - MOVING - units, set, failed) {
            Ok(_) => return units,
            Err(now) => before = now,
        }
    }
    0
}

/// Moves a charge out. Returns the moved bytes. The caller holds the claim lock.
fn move_out(ledger: &Ledger, slot: usize, device: DeviceIndex) -> u64 {
    settle(ledger, slot, device);
    let (word, figure) = (ledger.word(slot, device), ledger.figure(slot, device));
    if figure.load(Ordering::Acquire) != 0 || word.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    ledger.open_second(device, os::wall_tick().second());
    count_time(ledger, slot, device);
    let idle = ledger.charge(slot, device).idle.load(Ordering::Relaxed);
    let left = &ledger.content().slots[slot].stats[device.get()].left;
    let kept = idle.div_ceil(UNIT) + super::orphans::orphaned(left) / UNIT;
    word.fetch_add(MOVING, Ordering::SeqCst);
    let units = lower(word, figure, |_, granted| granted.saturating_sub(kept));
    ledger.note_use(device, os::wall_tick().second(), 0);
    units * UNIT
}

/// Moves a charge back, if it fits. The caller holds the claim lock.
fn move_back(ledger: &Ledger, slot: usize, device: DeviceIndex, fits: &dyn Fn() -> bool) -> bool {
    settle(ledger, slot, device);
    let (word, figure) = (ledger.word(slot, device), ledger.figure(slot, device));
    if figure.load(Ordering::Acquire) / UNIT == 0 {
        return true;
    }
    count_time(ledger, slot, device);
    loop {
        let before = word.load(Ordering::Acquire);
        let bytes = figure.load(Ordering::Acquire);
        // A member may have written any number.
        let most = charge::WORD_MAX.saturating_sub(charge::charged(before));
        let units = (bytes / UNIT).min(charge::REQUEST_MAX).min(most);
        if units == 0 {
            return true;
        }
        let (set, failed) = (Ordering::SeqCst, Ordering::Relaxed);
        let is_whole = bytes == units * UNIT
            || (figure.compare_exchange(bytes, units * UNIT, set, failed)).is_ok();
        // The owner may restore its charge at this moment: see `Slot::repair`. The first one to
        // change the word counts the units.
        let after = before.wrapping_add(MOVING + units);
        if is_whole && word.compare_exchange(before, after, set, failed).is_ok() {
            break;
        }
    }
    if !fits() {
        lower(word, figure, |suspended, _| suspended);
        return false;
    }
    figure.store(0, Ordering::Release);
    word.fetch_sub(MOVING, Ordering::SeqCst);
    true
}

/// Adds the time since the last change of the slot's charge to its charge over time, as the owner
/// does before a change.
fn count_time(ledger: &Ledger, slot: usize, device: DeviceIndex) {
    let stats = &ledger.content().slots[slot].stats[device.get()];
    let (now, before) = (os::wall_ms(), stats.changed.load(Ordering::Relaxed));
    if ledger.records(device) && before != 0 && before < now {
        let units = charge::granted(ledger.word(slot, device).load(Ordering::Relaxed));
        let more = units.saturating_mul(now - before);
        stats.unit_ms.fetch_add(more, Ordering::Relaxed);
        stats.changed.store(now, Ordering::Relaxed);
    }
}

/// Hands over up to `bytes` that this process has charged at each level to a suspended process:
/// moves the suspended bytes back to that process's charge, and uncharges the bytes here. May be
/// repeated after an error.
///
/// # Errors
/// The first level where that process's figures could not be changed. Levels below it were handed
/// over.
pub fn hand_over(levels: &[Level<'_>], bytes: u64, to: &Identity) -> Result<(), Unmoved> {
    for level in levels {
        let ledger = level.slot.ledger();
        charge::hand_over(level, bytes.div_ceil(UNIT), |fits| {
            ledger.receive(to, level.device, fits)
        })?;
        wait::returned(ledger);
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests;
