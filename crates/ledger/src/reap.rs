//! Dead slots: they drain, then they are zeroed.
//!
//! The owner lock of a killed process goes within milliseconds, but the driver needs up to 190 ms
//! to free its memory (measured). Until then the charge stands.

use super::atomic::Ordering;
use super::layout::{DeviceStats, SlotPage};
use super::lock::{self, Bytes, Description};
use super::owner::is_dead;
use super::{DeviceIndex, EventKind, Happening, Ledger, charge, os};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::process;

/// Knows what the driver still holds for the dead.
pub trait Witness {
    /// Whether the driver still lists more than `covered` bytes of this dead process on the device;
    /// `None` when that cannot be told, and a grace time decides. Something is covered where the
    /// process goes on as another program (`exec`).
    fn holds_memory(&self, process: &Identity, device: &DeviceId, covered: u64) -> Option<bool>;

    /// The driver has freed a dead process that left up to `bytes` which living members may have
    /// got from it. Charges what they have and nobody has charged yet, and answers true; false
    /// where that cannot be told.
    fn adopt(&self, _process: &Identity, _device: &DeviceId, _bytes: u64) -> bool {
        false
    }
}

/// Cannot tell: the grace time decides.
#[derive(Copy, Clone, Debug, Default)]
pub struct NoWitness;

impl Witness for NoWitness {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: u64) -> Option<bool> {
        None
    }
}

/// Milliseconds after which a dead slot is drained when no witness can tell.
pub(super) const GRACE_MS: u64 = 1_000;
/// Milliseconds after which a dead slot is drained whatever the witness says: a driver that lists a
/// dead process for so long lists it for ever.
pub(super) const DRAIN_MAX_MS: u64 = 30_000;

/// What became of a slot that was looked at for cleaning.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    /// It has an owner.
    Live,
    /// Somebody else is claiming or cleaning it.
    Busy,
    /// Nothing was in it.
    Empty,
    /// The driver may still hold memory of its owner. What that had asked for and not got is
    /// withdrawn.
    Draining,
    Cleaned,
}

/// Cleans a slot if its owner is dead and it is drained. A question that the system does not answer
/// leaves it alone.
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
    // Not before the words are zero: a claimer may own the slot a moment later. Should it fail,
    // closing releases it.
    let _ = lock::unlock(file, Bytes::claim(slot));
    fate
}

/// As [`reap`], with the claim lock held on `file`.
pub(super) fn reap_claimed(
    ledger: &Ledger,
    file: &Description,
    slot: usize,
    witness: &dyn Witness,
) -> Fate {
    // Again, as it may have been claimed before the claim lock was ours.
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

/// Withdraws the undecided requests of a dead owner: the driver is asked for nothing before it is
/// decided, so there is no memory to wait for.
fn withdraw(ledger: &Ledger, slot: usize) {
    for device in DeviceIndex::all() {
        let word = ledger.word(slot, device);
        let before = word.load(Ordering::Relaxed);
        if charge::undecided(before) != 0 {
            word.store(charge::granted(before), Ordering::Release);
        }
    }
}

/// Writes down what comes back.
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

/// The claim lock is held and the owner is dead. Stamps the time at which that was first seen.
fn is_drained(ledger: &Ledger, slot: usize, witness: &dyn Witness) -> bool {
    let owner = &ledger.content().slots[slot].owner;
    let now = os::boot_ms();
    let mut since = owner.dead_since.load(Ordering::Relaxed);
    // Later than now: by a process with another boot clock, or damage.
    if since == 0 || since > now {
        owner.dead_since.store(now, Ordering::Relaxed);
        since = now;
    }
    has_drained(ledger, slot, witness, now - since)
}

/// Whether a slot whose owner is known to be dead for so many milliseconds is drained.
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
            // What another program has charged may not be there yet, and what is there be this
            // one's.
            Some(false) => known &= covered == 0,
            None => known = false,
        }
    }
    let freed = known || dead_ms >= GRACE_MS;
    freed && (!ledger.has_live() || leaves_nothing(ledger, slot, witness))
}

/// Bytes charged to the programs that the process of a dead slot has become since: whoever calls
/// `exec` keeps his pid, and the driver lists what he holds under it. Of two programs that are both
/// gone only the later covers the earlier.
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

/// Whether the charge for what the dead process shared with others has gone where the memory is.
/// Not asked when nobody lives.
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

/// Empties a slot. For its owner, or under its claim lock.
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

/// What cleaning the slots with charges on one device came to.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Swept {
    /// Something came back.
    pub cleaned: bool,
    /// Units granted to slots that drain.
    pub pending: u64,
    /// Units granted to slots that somebody else is cleaning.
    pub busy: u64,
}

/// Cleans all slots but `own` that have a charge on the device. With `await_ending`, those of
/// processes that are on their way out and still hold their lock count as pending.
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
