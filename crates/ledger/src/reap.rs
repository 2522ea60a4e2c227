//! Cleaning of dead processes' slots. A slot first drains: its charge stays until the driver has
//! freed the dead process's memory. Then the slot is zeroed.
//!
//! A killed process's owner lock ends within milliseconds, but the driver needs up to 190 ms to
//! free the process's memory (measured). The charge stays until the driver has freed the memory.

use super::atomic::Ordering;
use super::layout::{DeviceStats, SlotPage};
use super::lock::{self, Bytes, Description};
use super::owner::is_dead;
use super::{DeviceIndex, EventKind, Happening, Ledger, charge, os};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::process;

/// A source that tells which memory the driver still holds for dead processes.
pub trait Witness {
    /// Returns whether the driver still lists more than `covered` bytes of this dead process on the
    /// device. Returns `None` if that cannot be determined; a grace time then decides. `covered` is
    /// 0, unless the process has continued as another program (`exec`): then it is the number of
    /// bytes that this other program has charged.
    fn holds_memory(&self, process: &Identity, device: &DeviceId, covered: u64) -> Option<bool>;

    /// Charges memory that a dead process has left to living members. Called when the driver has
    /// freed the dead process's own memory. Living members may still hold up to `bytes` of memory
    /// that the dead process shared with them. The method charges the part that members hold and
    /// have not charged yet, and returns true. It returns false if that part cannot be determined.
    fn adopt(&self, _process: &Identity, _device: &DeviceId, _bytes: u64) -> bool {
        false
    }
}

/// A witness that knows nothing about dead processes, so that the grace time decides.
#[derive(Copy, Clone, Debug, Default)]
pub struct NoWitness;

impl Witness for NoWitness {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: u64) -> Option<bool> {
        None
    }
}

/// Milliseconds after which a dead process's slot counts as drained if no witness can tell.
pub(super) const GRACE_MS: u64 = 1_000;
/// Milliseconds after which a dead process's slot counts as drained, whatever the witness says. A
/// driver that still lists a dead process after this time is assumed to list it forever.
pub(super) const DRAIN_MAX_MS: u64 = 30_000;

/// The result of an attempt to clean one slot.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    /// The slot has a living owner, or its file lock could not be queried.
    Live,
    /// Another process is claiming or cleaning the slot, so it was not examined.
    Busy,
    /// The slot was already empty before the attempt.
    Empty,
    /// The driver may still hold the dead owner's memory, so the slot was not cleaned. The owner's
    /// undecided requests were withdrawn.
    Draining,
    Cleaned,
}

/// Cleans a slot if its owner is dead and the slot has drained. If a system call on the slot's
/// locks fails, the slot stays as it is.
pub(super) fn reap(
    ledger: &Ledger,
    file: &Description,
    slot: usize,
    witness: &dyn Witness,
) -> Fate {
    if !is_dead(file, slot) {
        return Fate::Live;
    }
    match lock::try_lock(file, Bytes::claim(slot)) {
        Ok(true) => {}
        Ok(false) => return Fate::Busy,
        Err(_) => return Fate::Live,
    }
    let fate = reap_claimed(ledger, file, slot, witness);
    // Once the claim lock is released, another process may claim the slot. Therefore the words are
    // zeroed before. If releasing fails, closing the file releases the lock.
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
    // The owner is checked again, because another process may have claimed the slot before this
    // process got the claim lock.
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
        record(ledger, slot);
        Fate::Cleaned
    } else {
        withdraw(ledger, slot);
        return Fate::Draining;
    };
    zero(ledger, slot);
    fate
}

/// Withdraws the undecided requests of a dead owner. A process asks the driver for memory only
/// after its request is decided, so the driver holds no memory for an undecided request.
fn withdraw(ledger: &Ledger, slot: usize) {
    for device in DeviceIndex::all() {
        let word = ledger.word(slot, device);
        let before = word.load(Ordering::Relaxed);
        if charge::undecided(before) != 0 {
            word.store(charge::granted(before), Ordering::Release);
        }
    }
}

/// Records an event for each device on which the slot of a dead process has memory to give back.
fn record(ledger: &Ledger, slot: usize) {
    let Some(process) = ledger.owner(slot) else {
        return;
    };
    for device in DeviceIndex::all() {
        let units = charge::granted(ledger.word(slot, device).load(Ordering::Relaxed));
        if units > 0 {
            ledger.record(&Happening {
                kind: EventKind::Reap,
                device: Some(device),
                process,
                bytes: units * charge::UNIT,
                charged: ledger.charged(device),
                max: 0,
            });
        }
    }
}

/// Returns whether a dead owner's slot has drained. The first process that finds the owner dead
/// stores the time. The caller holds the claim lock.
fn is_drained(ledger: &Ledger, slot: usize, witness: &dyn Witness) -> bool {
    let owner = &ledger.content().slots[slot].owner;
    let now = os::boot_ms();
    let mut since = owner.dead_since.load(Ordering::Relaxed);
    // A stored time in the future is wrong: a process with another boot clock has written it, or
    // the file is damaged.
    if since == 0 || since > now {
        owner.dead_since.store(now, Ordering::Relaxed);
        since = now;
    }
    has_drained(ledger, slot, witness, now - since)
}

/// Returns whether a slot has drained if its owner has been dead for `dead_ms` milliseconds.
pub(super) fn has_drained(
    ledger: &Ledger,
    slot: usize,
    witness: &dyn Witness,
    dead_ms: u64,
) -> bool {
    if dead_ms >= DRAIN_MAX_MS {
        return true;
    }
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
        let covered = charged_after(ledger, slot, &process, device);
        match witness.holds_memory(&process, &id, covered) {
            Some(true) => return false,
            // After `exec`, the driver lists the memory of the old and the new program under one
            // pid. The new program may not yet have allocated all memory that it has charged. The
            // listed bytes may then belong to the old program, so the grace time decides.
            Some(false) => known &= covered == 0,
            None => known = false,
        }
    }
    let freed = known || dead_ms >= GRACE_MS;
    freed && (!ledger.has_live() || leaves_nothing(ledger, slot, witness))
}

/// Returns the bytes that were charged by later programs of the process that owned the dead slot. A
/// process that calls `exec` keeps its pid. The driver lists the memory of its old and its new
/// program under this pid. When the old program's slot is examined, the new program's charge is
/// therefore subtracted. The old program's charge is never subtracted for the new program's slot,
/// even if both programs have ended.
fn charged_after(ledger: &Ledger, slot: usize, process: &Identity, device: DeviceIndex) -> u64 {
    let owner = |slot: usize| &ledger.content().slots[slot].owner;
    let same = |other: Identity| other.is_same(process);
    let age = |slot: usize| (owner(slot).birth.load(Ordering::Relaxed), slot);
    (0..ledger.high_water())
        .filter(|&later| age(later) > age(slot))
        .filter(|&later| ledger.owner(later).is_some_and(same))
        .map(|later| ledger.word(later, device).load(Ordering::Acquire))
        .map(|word| charge::granted(word) * charge::UNIT)
        .sum()
}

/// Returns whether all memory that the dead process shared with other processes is charged to the
/// processes that now hold it. Not called if the group has no living member.
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

/// Empties a slot. Called by the slot's owner, or by a process that holds the slot's claim lock.
pub(super) fn zero(ledger: &Ledger, slot: usize) {
    let SlotPage {
        owner,
        stats,
        waiting,
        ..
    } = &ledger.content().slots[slot];
    waiting.ticket.store(0, Ordering::Relaxed);
    for device in DeviceIndex::all() {
        let word = ledger.word(slot, device);
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Release);
        }
    }
    for stats in stats {
        let DeviceStats {
            by,
            idle,
            peak,
            refusals,
            reclaimable,
            left,
        } = stats;
        for figure in by.iter().chain([idle, peak, refusals, reclaimable, left]) {
            if figure.load(Ordering::Relaxed) != 0 {
                figure.store(0, Ordering::Relaxed);
            }
        }
    }
    owner.child.store(0, Ordering::Relaxed);
    owner.erase();
}

/// The result of cleaning all dead processes' slots that have charges on one device.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Swept {
    /// Whether memory was freed or a dead process's request was withdrawn.
    pub cleaned: bool,
    /// Units granted to dead processes whose slots are draining.
    pub pending: u64,
    /// Units granted in slots that another process is cleaning.
    pub busy: u64,
}

/// Cleans all dead processes' slots that have a charge on the device, except the slot `own`. Some
/// processes are exiting but still hold their file lock. If `await_ending` is true, the units of
/// these processes count as pending.
pub(super) fn sweep(
    ledger: &Ledger,
    file: &Description,
    device: DeviceIndex,
    own: usize,
    witness: &dyn Witness,
    await_ending: bool,
) -> Swept {
    let mut swept = Swept::default();
    let pid_ns = if await_ending { process::pid_ns() } else { 0 };
    let is_ending = |slot: usize| ledger.owner(slot).is_some_and(|who| who.is_ending(pid_ns));
    for slot in (0..ledger.high_water()).filter(|&slot| slot != own) {
        let word = ledger.word(slot, device).load(Ordering::Relaxed);
        if word == 0 {
            continue;
        }
        match reap(ledger, file, slot, witness) {
            Fate::Live if await_ending && is_ending(slot) => swept.pending += charge::granted(word),
            Fate::Live | Fate::Empty => {}
            Fate::Busy => swept.busy += charge::granted(word),
            Fate::Draining => {
                swept.pending += charge::granted(word);
                swept.cleaned |= charge::undecided(word) != 0;
            }
            Fate::Cleaned => swept.cleaned = true,
        }
    }
    swept
}

#[cfg(all(test, not(loom)))]
mod tests;
