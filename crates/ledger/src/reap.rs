//! Cleaning the slots of dead processes. First a slot drains: its charge stays until the driver has
//! freed the dead process's memory.
//!
//! The file lock of a killed process ends within milliseconds, but the driver needs 70 to 190 ms to
//! free 1 to 70 GiB (measured).

use super::atomic::Ordering;
use super::charge::{self, Charged};
use super::floors;
use super::layout::{Charge, DeviceStats, SlotPage};
use super::lock::{self, Bytes, Description};
use super::owner::is_dead;
use super::random::Random;
use super::{
    DeviceEntry, DeviceIndex, EventKind, Happening, Ledger, Slot, moment, os, suspension, wait,
};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::process;

/// Knows how much memory the driver still holds for dead processes.
pub trait Witness {
    /// Returns whether the driver lists the process of a dead program. `None` if unknown. With
    /// `lists_nested`, the driver lists processes by their pids in nested PID namespaces, too, so
    /// that there also a list without the process proves that its memory is freed.
    fn holds_memory(
        &self,
        process: &Identity,
        device: &DeviceId,
        lists_nested: bool,
    ) -> Option<bool>;

    /// Returns whether more of a GPU of `capacity` bytes is used than processes have. `None` if
    /// unknown.
    fn is_held_by_nobody(&self, _device: &DeviceId, _capacity: u64) -> Option<bool> {
        None
    }

    /// Charges this process for memory that a dead process shared and members still use, up to
    /// `bytes`. Returns false if the amount is unknown, or if a request could miss the bytes while
    /// they move to this process's slot.
    fn adopt(&self, _process: &Identity, _device: &DeviceId, _bytes: u64) -> bool {
        false
    }

    /// Records that the memory of a dead process was uncharged in the ledger. The ledger alone does
    /// not know the trail of a group above its own.
    fn record(&self, ledger: &Ledger, reaped: &Happening) {
        ledger.record(reaped);
    }
}

/// A witness that knows nothing, so that slots of dead processes drain for the grace time.
#[derive(Copy, Clone, Debug, Default)]
pub struct NoWitness;

impl Witness for NoWitness {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        None
    }
}

/// Milliseconds for which a dead process's slot drains if it is unknown whether the driver has
/// freed the memory.
pub(super) const GRACE_MS: u64 = 1_000;
/// Longest time for which requests wait for a dead process's memory, in milliseconds. If the driver
/// lists the process longer, a forked child has the driver's files open, and the slot stays charged
/// until the child ends; or the pid is that of another process by now, and the slot is cleaned.
pub(super) const DRAIN_MAX_MS: u64 = 30_000;
/// How long requests wait for the end of a killed or exiting process, in milliseconds. Short,
/// because a tracer or a frozen control group can keep a process from ending.
pub(super) const ENDING_MS: u64 = 2_000;

/// Number of charged slots whose owners every sweep checks.
const SHARE: usize = 128;
/// In a group with more than [`SHARE`] charged slots, a sweep checks all owners at most once in
/// this number of milliseconds.
const FRESH_MS: u64 = 1_000;
/// Milliseconds between two looks of readers at slots that drain.
const DRAIN_MS: u64 = 50;

/// The result of an attempt to clean one slot.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    /// The slot has a living owner, or its file lock could not be queried.
    Live,
    /// Another process is claiming or cleaning the slot.
    Busy,
    /// The slot was already empty before the attempt.
    Empty,
    /// The slot was not cleaned, because the driver may still hold the dead owner's memory. Only
    /// the owner's undecided requests were withdrawn.
    Draining,
    Cleaned,
}

/// Cleans a slot whose owner is dead and whose memory is freed. If a lock call fails, the slot
/// stays unchanged.
pub(super) fn reap(
    ledger: &Ledger,
    file: &Description,
    slot: usize,
    witness: &dyn Witness,
) -> Fate {
    // The time comes first: the owner may die after the look.
    let now = os::wall_ms();
    match lock::is_locked(file, Bytes::owner(slot)) {
        Ok(false) => {}
        Ok(true) => {
            ledger.found_alive(slot);
            ledger.note_alive(slot, now);
            return Fate::Live;
        }
        Err(_) => return Fate::Live,
    }
    match lock::try_lock(file, Bytes::claim(slot)) {
        Ok(true) => {}
        Ok(false) => return Fate::Busy,
        Err(_) => return Fate::Live,
    }
    let fate = reap_claimed(ledger, file, slot, witness);
    // A cleaned slot is already empty, because another process may claim it now. If unlocking
    // fails, closing the file releases the lock.
    let _ = lock::unlock(file, Bytes::claim(slot));
    fate
}

/// Cleans a slot as [`reap`] does. The caller holds the slot's claim lock on `file`.
pub(super) fn reap_claimed(
    ledger: &Ledger,
    file: &Description,
    slot: usize,
    witness: &dyn Witness,
) -> Fate {
    // The owner is checked again: another process may have claimed the slot before this process got
    // the claim lock.
    if !is_dead(file, slot) {
        return Fate::Live;
    }
    let owner = &ledger.content().slots[slot].owner;
    let fate = if !ledger.has_words(slot) {
        match owner.pid.load(Ordering::Relaxed) {
            0 => Fate::Empty,
            _ => Fate::Cleaned,
        }
    } else if is_drained(ledger, slot, witness) {
        record(ledger, slot, witness);
        Fate::Cleaned
    } else {
        withdraw(ledger, slot);
        return Fate::Draining;
    };
    wait::count_dead(ledger, slot);
    zero(ledger, slot);
    fate
}

/// Withdraws a dead owner's undecided requests. The driver holds no memory for these requests,
/// because a process asks the driver only after a grant.
fn withdraw(ledger: &Ledger, slot: usize) {
    for device in DeviceIndex::all() {
        suspension::settle(ledger, slot, device);
        let word = ledger.word(slot, device);
        let before = word.load(Ordering::Relaxed);
        if charge::undecided(before) != 0 {
            word.store(charge::granted(before), Ordering::Release);
        }
    }
}

/// Records one event for each device on which the slot of a dead process is charged.
fn record(ledger: &Ledger, slot: usize, witness: &dyn Witness) {
    let Some(process) = ledger.owner(slot) else {
        return;
    };
    for device in DeviceIndex::all() {
        let units = charge::granted(ledger.word(slot, device).load(Ordering::Relaxed));
        if units > 0 {
            let reaped = Happening {
                kind: EventKind::Reap,
                device: Some(device),
                process,
                bytes: units * charge::UNIT,
                charged: ledger.charged(device),
                max: u64::MAX,
            };
            witness.record(ledger, &reaped);
        }
    }
}

/// Returns whether a dead owner's slot has drained. The first call stores the present time. The
/// caller holds the claim lock.
fn is_drained(ledger: &Ledger, slot: usize, witness: &dyn Witness) -> bool {
    let dead_since = &ledger.content().slots[slot].owner.dead_since;
    if dead_since.load(Ordering::Relaxed) == 0 {
        let found_at = &ledger.header().found_dead_at;
        found_at.store(os::boot_ms(), Ordering::Relaxed);
    }
    has_drained(ledger, slot, witness, moment::age_from_now_on(dead_since))
}

/// Returns whether a slot has drained. Its owner was found dead `dead_ms` milliseconds ago.
pub(super) fn has_drained(
    ledger: &Ledger,
    slot: usize,
    witness: &dyn Witness,
    dead_ms: u64,
) -> bool {
    let is_over = dead_ms >= DRAIN_MAX_MS;
    let identity = ledger.owner(slot);
    let mut known = true;
    for device in DeviceIndex::all() {
        if ledger.word(slot, device).load(Ordering::Relaxed) == 0 {
            continue;
        }
        let Some((process, id)) = identity.zip(ledger.device_id(device)) else {
            known = false;
            continue;
        };
        match witness.holds_memory(&process, &id, ledger.lists_nested()) {
            // The process has called `exec`, or has let go of its ledger and keeps its memory. If
            // it has joined again, the driver may list the new program: it frees the old program's
            // memory within 130 ms (measured, H200), so the grace time decides.
            Some(true) if process.lives(os::pid_ns()) => {
                if !ledger.has_joined_again(slot, &process) {
                    return false;
                }
                known = false;
            }
            Some(true) if !is_over || !process.is_replaced() => return false,
            Some(_) => {}
            None => known = false,
        }
    }
    let freed = known || dead_ms >= GRACE_MS;
    match ledger.has_live() {
        true => is_over || freed && leaves_nothing(ledger, slot, witness),
        false => freed && !keeps_exports(ledger, slot, witness),
    }
}

/// Returns whether an open descriptor may keep memory that the dead process has exported. Uncharges
/// the rest. A member that comes takes the charge over (`leaves_nothing`).
fn keeps_exports(ledger: &Ledger, slot: usize, witness: &dyn Witness) -> bool {
    let mut keeps = false;
    for device in DeviceIndex::all() {
        let bytes = ledger.may_leave(slot, device);
        let entry = ledger.device_entry(device).filter(|_| bytes > 0);
        let is_kept = |entry: DeviceEntry| witness.is_held_by_nobody(&entry.id, entry.capacity);
        if entry.and_then(is_kept) == Some(true) {
            let Charge { word, idle } = ledger.charge(slot, device);
            let units = charge::granted(word.load(Ordering::Relaxed)).min(bytes / charge::UNIT);
            idle.store(0, Ordering::Relaxed);
            word.store(units, Ordering::Release);
            keeps |= units > 0;
        }
    }
    keeps
}

/// The most bytes by which a GPU's used bytes may exceed the sum of NVML's figures for its
/// `processes`. H200: 3.25 MiB, and 5.56 MiB for each process (measured).
pub fn overhead(processes: usize) -> u64 {
    (processes as u64 + 1) * (8 << 20)
}

/// Returns whether all memory that the dead process shared is charged to its present holders.
/// Called only with a living member.
fn leaves_nothing(ledger: &Ledger, slot: usize, witness: &dyn Witness) -> bool {
    DeviceIndex::all().all(|device| {
        let bytes = ledger.may_leave(slot, device);
        bytes == 0
            || ledger
                .owner(slot)
                .zip(ledger.device_id(device))
                .is_none_or(|(process, device)| witness.adopt(&process, &device, bytes))
    })
}

/// Empties a slot. The caller owns the slot, or holds its claim lock.
pub(super) fn zero(ledger: &Ledger, slot: usize) {
    let left = ledger.fold(slot);
    let SlotPage {
        owner,
        stats,
        waiting,
        alive_at,
        ending_since,
        job,
        floors,
        ..
    } = &ledger.content().slots[slot];
    floors::clear(floors);
    for word in [&waiting.ticket, &waiting.asks_since, job] {
        word.store(0, Ordering::Relaxed);
    }
    for device in DeviceIndex::all() {
        let Charge { word, idle } = ledger.charge(slot, device);
        charge::empty(&Charged { word, idle });
    }
    for stats in stats {
        let DeviceStats {
            by,
            peak,
            refusals,
            reclaimable,
            left,
            changed,
            unit_ms,
            suspended,
            resident,
            room,
        } = stats;
        let figures = [
            peak,
            refusals,
            reclaimable,
            left,
            changed,
            unit_ms,
            suspended,
            resident,
            room,
        ];
        for figure in by.iter().chain(figures) {
            if figure.load(Ordering::Relaxed) != 0 {
                figure.store(0, Ordering::Relaxed);
            }
        }
    }
    alive_at.store(0, Ordering::Relaxed);
    ending_since.store(0, Ordering::Relaxed);
    owner.child.store(0, Ordering::Relaxed);
    owner.erase();
    ledger.note_left(left);
}

/// A witness that cannot ask the driver and has time: slots of dead processes drain for the longest
/// time.
struct Patient;

impl Witness for Patient {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        Some(true)
    }
}

/// Looks for dead members, so that the time after their death is not billed and their memory is
/// not in the peak. For a process that has joined, with the slot `own`: loading NVML would take it
/// too long, so it mostly leaves the charges to others. Of many processes that join a large group
/// at once, one looks.
pub(super) fn look(ledger: &Ledger, file: &Description, own: usize) {
    let slots = ledger.high_water();
    let pause = FRESH_MS.min(slots as u64);
    // The models have a process that cleans, and no clock.
    if cfg!(loom) || !moment::is_first_in(&ledger.header().looked_at, pause) {
        return;
    }
    let is_other = |&slot: &usize| slot != own && ledger.has_words(slot);
    for slot in (0..slots).filter(is_other) {
        if reap(ledger, file, slot, &Patient) == Fate::Draining {
            // The next reader of figures looks at once.
            let times = &ledger.header().swept_at;
            times.iter().for_each(|at| at.store(0, Ordering::Relaxed));
        }
    }
}

impl Slot {
    /// Returns whether a program of this process from before `exec` is charged.
    pub fn has_former(&self) -> bool {
        let ledger = self.ledger();
        let own = ledger.owner(self.index());
        let is_own = |slot: usize| {
            own.zip(ledger.owner(slot))
                .is_some_and(|(a, b)| a.is_same(&b))
        };
        (0..ledger.high_water())
            .any(|slot| slot != self.index() && ledger.has_words(slot) && is_own(slot))
    }

    /// Cleans the slots of dead processes that have charges on the device, so that its figures
    /// count the living.
    pub fn clean_others(&self, device: DeviceIndex, witness: &dyn Witness) {
        let ledger = self.ledger();
        if self.charged_others(device).next().is_some()
            && let Ok(file) = ledger.place.open(true)
        {
            sweep(ledger, &file, device, self.index(), witness, false);
        }
    }

    /// Returns whether a reader of figures should clean the slots of others: once a second for all
    /// readers of a ledger, and more often while slots drain.
    pub fn should_clean(&self, device: DeviceIndex) -> bool {
        let ledger = self.ledger();
        let is_draining = |slot: usize| {
            let dead_since = &ledger.content().slots[slot].owner.dead_since;
            dead_since.load(Ordering::Relaxed) != 0
        };
        let pauses = self.charged_others(device).map(|slot| {
            if is_draining(slot) {
                DRAIN_MS
            } else {
                FRESH_MS
            }
        });
        let swept_at = &ledger.header().swept_at[device.get()];
        let age = || moment::age(swept_at, os::boot_ms());
        (pauses.min()).is_some_and(|pause| age().is_none_or(|age| age >= pause))
    }

    fn charged_others(&self, device: DeviceIndex) -> impl Iterator<Item = usize> {
        let ledger = self.ledger();
        (0..ledger.high_water())
            .filter(|&slot| slot != self.index())
            .filter(move |&slot| {
                ledger.word(slot, device).load(Ordering::Relaxed) != 0
                    || ledger.room(slot, device) != 0
            })
    }
}

impl Ledger {
    /// Returns whether the process that has left a slot lives and owns another slot.
    fn has_joined_again(&self, slot: usize, process: &Identity) -> bool {
        self.slot_of(process).is_some_and(|other| other != slot)
    }

    /// Returns whether NVML lists processes by their pids in nested PID namespaces, too, as far as
    /// members know.
    pub fn lists_nested(&self) -> bool {
        self.header().lists_nested.load(Ordering::Relaxed) != 0
    }

    /// Notes that NVML lists processes by their pids in nested PID namespaces, too.
    pub fn note_lists_nested(&self) {
        self.header().lists_nested.store(1, Ordering::Relaxed);
    }

    /// Returns whether requests still wait for the end of a slot's owner, which is killed or
    /// exiting. All requests share one patience, which begins with the first call for the owner.
    pub fn awaits_end(&self, slot: usize) -> bool {
        moment::age_from_now_on(&self.content().slots[slot].ending_since) < ENDING_MS
    }
}

/// The result of cleaning all dead processes' slots that have charges on one device.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Swept {
    /// Whether a slot was cleaned, or a dead process's request was withdrawn.
    pub cleaned: bool,
    /// Units that dead processes have charged and the driver may still be freeing.
    pub pending: u64,
    /// Units charged in slots that another process is cleaning.
    pub busy: u64,
}

/// Cleans dead processes' charged slots on the device, except the slot `own`. With `await_ending`,
/// the units of exiting processes count as pending.
pub(super) fn sweep(
    ledger: &Ledger,
    file: &Description,
    device: DeviceIndex,
    own: usize,
    witness: &dyn Witness,
    await_ending: bool,
) -> Swept {
    let mut swept = Swept::default();
    let pid_ns = os::pid_ns();
    let is_ending = |slot: usize| {
        ledger.owner(slot).is_some_and(|who| who.is_ending(pid_ns)) && ledger.awaits_end(slot)
    };
    let began = os::boot_ms();
    let swept_at = &ledger.header().swept_at[device.get()];
    let age = moment::age(swept_at, began);
    // Checking one owner takes about 15 µs, so a large group is checked completely only once in
    // `FRESH_MS` milliseconds.
    let mut share = match age {
        Some(0..FRESH_MS) => SHARE,
        _ => usize::MAX,
    };
    let mut skipped = false;
    let slots = ledger.high_water();
    let first = Random::new().below(slots);
    for slot in (first..slots).chain(0..first).filter(|&slot| slot != own) {
        let word = ledger.word(slot, device).load(Ordering::Relaxed);
        if word == 0 && ledger.room(slot, device) == 0 {
            continue;
        }
        if share > 0 {
            share -= 1;
        } else if !may_be_dead(ledger, slot, pid_ns) {
            skipped = true;
            continue;
        }
        match reap(ledger, file, slot, witness) {
            Fate::Live if await_ending && is_ending(slot) => swept.pending += charge::granted(word),
            Fate::Live | Fate::Empty => {}
            Fate::Busy => swept.busy += charge::granted(word),
            Fate::Draining => {
                let since = &ledger.content().slots[slot].owner.dead_since;
                if os::boot_ms() - since.load(Ordering::Relaxed).min(began) < DRAIN_MAX_MS {
                    swept.pending += charge::granted(word);
                }
                swept.cleaned |= charge::undecided(word) != 0;
            }
            Fate::Cleaned => swept.cleaned = true,
        }
    }
    if !skipped {
        swept_at.store(began, Ordering::Relaxed);
    }
    swept
}

/// Returns the units of a device that are charged in slots of processes that were found dead.
pub(super) fn draining(ledger: &Ledger, device: DeviceIndex) -> u64 {
    let found_at = &ledger.header().found_dead_at;
    if found_at.load(Ordering::Relaxed) == 0
        || moment::age(found_at, os::boot_ms()).is_none_or(|age| age > DRAIN_MAX_MS)
    {
        return 0;
    }
    let is_draining = |&slot: &usize| {
        let owner = &ledger.content().slots[slot].owner;
        owner.dead_since.load(Ordering::Relaxed) != 0
    };
    let slots = (0..ledger.high_water()).filter(is_draining);
    let units = |slot| charge::granted(ledger.word(slot, device).load(Ordering::Relaxed));
    slots.map(units).sum()
}

/// Returns whether the slot is draining or its owner's pid is gone. Cheap, but misses zombies and
/// other pid namespaces.
fn may_be_dead(ledger: &Ledger, slot: usize, pid_ns: u64) -> bool {
    let owner = &ledger.content().slots[slot].owner;
    let pid = owner.pid.load(Ordering::Relaxed) as u32;
    owner.dead_since.load(Ordering::Relaxed) != 0
        || owner.pid_ns.load(Ordering::Relaxed) == pid_ns && !process::exists(pid)
}

#[cfg(all(test, not(loom)))]
mod tests;
