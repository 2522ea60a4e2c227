//! Uncovered memory: what the driver shows of members beyond what the ledger counts for them.
//!
//! Any member can lower the charge of another one, and some memory is taken past the library. A
//! comparison with the driver's figures shows both: a process charges before it asks the driver,
//! and uncharges after the driver has freed, so that its charge is never below the driver's figure
//! of it. A comparison can see less all the same:
//!
//! - The figures and the charges are read one after the other. So charges are read before and after
//!   the figures, and the larger ones count. A process that takes and frees memory between the two
//!   readings is still seen with too small a charge. So uncovered memory counts only as far as
//!   [`LOOKS`] looks in a row show it.
//! - Memory moves between processes that share it. Its old charge, in the slot of a dead process or
//!   as an orphan, covers the figure of its new holder.
//! - The driver shows an ended process until its memory is free, 190 ms at most (measured).
//!   Such memory is left out: no request is refused for memory that is about to be free.

use super::atomic::Ordering;
use super::charge::{self, UNIT};
use super::lock::{self, Bytes};
use super::orphans::orphaned;
use super::{Category, DeviceIndex, Ledger, MAX_SLOTS, os};
use gpulimit_base::identity::{Identity, SeenProcess};
use std::time::Duration;

/// The driver's figures of a device: the pid in the caller's namespace and the bytes of each
/// process.
pub type Figures = Vec<(u32, u64)>;

/// How often the driver's figures are read while they show uncovered memory.
const LOOKS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(1);

/// A ledger that is compared with the driver's figures of a device.
pub struct Compared<'a> {
    /// The ledger.
    pub ledger: &'a Ledger,
    /// The device's index there.
    pub device: DeviceIndex,
    /// Whether the contexts of all members are charged. If not, only the ledger says how much of
    /// a member's memory needs no charge.
    pub counts_contexts: bool,
}

/// Returns the uncovered bytes in each of these ledgers; `None` if `figures` returns none. Reads
/// the figures once if all memory is covered.
pub fn uncovered(
    compared: &[Compared<'_>],
    figures: impl Fn() -> Option<Figures>,
) -> Option<Vec<u64>> {
    let mut least = vec![u64::MAX; compared.len()];
    for look in 0..LOOKS {
        if look > 0 {
            os::sleep(PAUSE);
        }
        let charges = |one: &Compared<'_>| one.ledger.granted(one.device);
        let before: Vec<Vec<u64>> = compared.iter().map(charges).collect();
        let figures = figures()?;
        for ((least, one), before) in least.iter_mut().zip(compared).zip(&before) {
            *least = (*least).min(one.beyond(before, &figures));
        }
        if least.iter().all(|bytes| *bytes == 0) {
            break;
        }
    }
    Some(least)
}

impl Compared<'_> {
    /// Returns the bytes of the figures that no charge covers. `before`: the charges of all slots
    /// before the figures were read.
    fn beyond(&self, before: &[u64], figures: &[(u32, u64)]) -> u64 {
        let Self { ledger, device, .. } = *self;
        let charge = |slot: usize| {
            let now = charge::granted(ledger.word(slot, device).load(Ordering::Acquire)) * UNIT;
            now.max(before.get(slot).copied().unwrap_or(0))
        };
        let owners = |slot| Some((slot, ledger.owner(slot)?));
        let owners: Vec<(usize, Identity)> = (0..ledger.high_water()).filter_map(owners).collect();
        let own_ns = os::pid_ns();
        let (mut lacking, mut listed) = (0_u64, Vec::new());
        for (at, (pid, _)) in figures.iter().enumerate() {
            // NVML may list a process more than once on a MIG device.
            if figures.iter().take(at).any(|(before, _)| before == pid) {
                continue;
            }
            let all = figures.iter().filter(|(other, _)| other == pid);
            let bytes = all.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
            let may_be = |owner: &Identity| owner.pid_ns != own_ns || owner.pid == *pid;
            let mut slots: Vec<&(usize, Identity)> =
                (owners.iter()).filter(|(_, owner)| may_be(owner)).collect();
            let needed = |slots: &[&(usize, Identity)]| {
                let all = slots.iter();
                all.fold(bytes, |sum, (slot, _)| {
                    self.needed(sum, *slot, charge(*slot))
                })
            };
            // Reading `/proc` takes longer than all else here.
            let is_here = slots.iter().all(|(_, owner)| owner.pid_ns == own_ns);
            if !is_here || needed(&slots) > 0 && !slots.is_empty() {
                let process = SeenProcess::by_pid(*pid);
                slots.retain(|(_, owner)| process.is(owner));
            }
            listed.extend(slots.iter().map(|(slot, _)| (*slot, bytes)));
            let lives = |slot: usize, owner: &Identity| match owner.pid_ns == own_ns {
                true => !owner.is_ending(own_ns),
                false => ledger.is_held(slot),
            };
            let lack = needed(&slots);
            if lack > 0 && slots.iter().any(|(slot, owner)| lives(*slot, owner)) {
                lacking = lacking.saturating_add(lack);
            }
        }
        if lacking == 0 {
            return 0;
        }
        // Charges for memory that their process does not hold: another one may.
        let elsewhere = owners.iter().fold(0_u64, |sum, (slot, _)| {
            let charge = charge(*slot);
            let is_listed = |(listed, _): &&(usize, u64)| listed == slot;
            let held = (listed.iter().find(is_listed)).map_or(0, |(_, bytes)| {
                bytes.saturating_add(self.part(*slot, Category::Managed))
            });
            sum.saturating_add(match ledger.is_held(*slot) {
                true => self.orphaned(*slot, charge),
                false => charge.saturating_sub(held),
            })
        });
        lacking.saturating_sub(elsewhere)
    }

    /// Returns what is left of the driver's `bytes` of a process after what one of its slots covers
    /// with `charge`.
    fn needed(&self, bytes: u64, slot: usize, charge: u64) -> u64 {
        // The charge pays for managed memory and orphans, too, which are not in the figure.
        let bytes = bytes.saturating_add(self.part(slot, Category::Managed));
        let covered = charge.saturating_sub(self.orphaned(slot, charge));
        let uncounted = match (self.counts_contexts, self.ledger.context_hint(self.device)) {
            (true, _) => 0,
            (false, 0) => u64::MAX,
            // The process may be making one more context.
            (false, context) => context.saturating_add(self.part(slot, Category::Driver)),
        };
        bytes.saturating_sub(covered).saturating_sub(uncounted)
    }

    /// Returns the bytes of one category, as the slot's owner has published them.
    fn part(&self, slot: usize, category: Category) -> u64 {
        let by = &self.ledger.content().slots[slot].stats[self.device.get()].by;
        by[category as usize].load(Ordering::Relaxed)
    }

    /// Returns the orphaned bytes of a slot. Any member can write any number there.
    fn orphaned(&self, slot: usize, charge: u64) -> u64 {
        orphaned(&self.ledger.content().slots[slot].stats[self.device.get()].left).min(charge)
    }
}

impl Ledger {
    /// Returns the granted bytes of all slots.
    fn granted(&self, device: DeviceIndex) -> Vec<u64> {
        let granted = |slot| charge::granted(self.word(slot, device).load(Ordering::Acquire));
        (0..self.high_water())
            .map(|slot| granted(slot) * UNIT)
            .collect()
    }

    /// Returns whether the ledger has another slot in use than this one.
    pub fn has_others(&self, own: usize) -> bool {
        self.find_slots();
        let mut slots = (0..self.high_water()).filter(|slot| *slot != own);
        slots.any(|slot| self.content().slots[slot].owner.pid.load(Ordering::Relaxed) != 0)
    }

    /// Raises `high_water` again if another process has lowered it. Owners have locks, which no
    /// other process can take away.
    fn find_slots(&self) {
        let first = self.high_water();
        let Ok(file) = self.open_file(false) else {
            return;
        };
        let is_locked = |bytes| matches!(lock::is_locked(&file, bytes), Ok(true));
        if first < MAX_SLOTS && self.map.writable() && is_locked(Bytes::owners_from(first)) {
            let slots = (first..MAX_SLOTS).rev();
            let last = slots
                .map(|slot| (slot, Bytes::owner(slot)))
                .find(|(_, bytes)| is_locked(*bytes));
            let high_water = last.map_or(0, |(slot, _)| slot as u64 + 1);
            (self.signals().high_water).fetch_max(high_water, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge_unchecked;
    use crate::layout::DeviceStats;
    use crate::scratch::{Scratch, level, stranger};
    use std::cell::Cell;

    /// Returns the identity of the parent process (1), of this process (2), or of a process that
    /// has ended.
    fn identity(number: u32) -> Identity {
        match number {
            1 => {
                let pid = std::os::unix::process::parent_id();
                let start_time = SeenProcess::by_pid(pid).start_time().expect("its start");
                Identity {
                    pid,
                    start_time,
                    ..Identity::of_self()
                }
            }
            2 => Identity::of_self(),
            number => stranger(number),
        }
    }

    fn stats(scratch: &Scratch, slot: usize) -> &DeviceStats {
        &scratch.content().slots[slot].stats[scratch.device.get()]
    }

    fn compared(scratch: &Scratch, counts_contexts: bool) -> Compared<'_> {
        Compared {
            ledger: scratch,
            device: scratch.device,
            counts_contexts,
        }
    }

    /// Returns the uncovered units by the driver's figures of processes, in units.
    fn beyond(scratch: &Scratch, figures: &[(u32, u64)]) -> u64 {
        let figure = |(number, units): &(u32, u64)| (identity(*number).pid, units * UNIT);
        let figures: Figures = figures.iter().map(figure).collect();
        let found = uncovered(&[compared(scratch, true)], || Some(figures.clone()));
        found.expect("figures")[0] / UNIT
    }

    #[test]
    fn what_the_driver_shows_of_a_member_beyond_its_charge_is_uncovered() {
        let scratch = Scratch::new();
        let (one, _) = (
            scratch.dead(&identity(1), 3, 0),
            scratch.dead(&identity(2), 5, 0),
        );
        assert_eq!(beyond(&scratch, &[(1, 3), (2, 5)]), 0);
        assert_eq!(beyond(&scratch, &[(1, 10), (2, 5)]), 7);
        assert_eq!(beyond(&scratch, &[(1, 10), (2, 9)]), 11);
        assert_eq!(beyond(&scratch, &[(2, 5), (7, 90)]), 0, "no member");
        // NVML may list a process twice on a MIG device.
        assert_eq!(beyond(&scratch, &[(1, 6), (1, 4), (2, 5)]), 7);
        // Only what the driver can have given counts, and it shows no managed memory.
        let word = scratch.word(one, scratch.device);
        word.store(5 | 2 << 32, Ordering::Relaxed);
        stats(&scratch, one).by[Category::Managed as usize].store(2 * UNIT, Ordering::Relaxed);
        assert_eq!(beyond(&scratch, &[(1, 1), (2, 5)]), 0);
        assert_eq!(beyond(&scratch, &[(1, 2), (2, 5)]), 1);
        // A process that has called `exec` may have two slots.
        scratch.dead(&identity(1), 4, 0);
        assert_eq!(beyond(&scratch, &[(1, 5), (2, 5)]), 0);
        assert_eq!(beyond(&scratch, &[(1, 6), (2, 5)]), 1);
        // The driver is about to free what an ended process holds.
        scratch.dead(&stranger(3), 1, 0);
        assert_eq!(beyond(&scratch, &[(1, 6), (2, 5), (3, 9)]), 1);
    }

    #[test]
    fn memory_that_moves_between_processes_is_covered_by_its_old_charge() {
        let scratch = Scratch::new();
        scratch.dead(&identity(1), 3, 0);
        let slot = scratch.join();
        charge_unchecked(&[level(&slot, scratch.device, u64::MAX)], 9 * UNIT);
        assert_eq!(
            beyond(&scratch, &[(1, 10)]),
            7,
            "the charge of a living process"
        );
        slot.orphan(scratch.device, 2 * UNIT);
        assert_eq!(beyond(&scratch, &[(1, 10)]), 5);
        assert_eq!(
            beyond(&scratch, &[(1, 10), (2, 9)]),
            7,
            "orphans cover once"
        );
        scratch.dead(&stranger(3), 4, 0);
        assert_eq!(beyond(&scratch, &[(1, 10)]), 1, "the exporter has died");
        assert_eq!(beyond(&scratch, &[(1, 10), (3, 3)]), 4, "it still has 3");
        // Orphans are no cover for the process that has let go of them, nor more than its charge.
        let forged = &stats(&scratch, slot.index()).left;
        forged.store(1 << 20, Ordering::Relaxed);
        assert_eq!(beyond(&scratch, &[(1, 20), (3, 4)]), 8);
        let word = scratch.word(slot.index(), scratch.device);
        word.store(0, Ordering::Relaxed);
        assert_eq!(beyond(&scratch, &[(1, 20), (3, 4)]), 17);
    }

    #[test]
    fn contexts_that_a_group_does_not_count_need_no_charge() {
        let scratch = Scratch::new();
        let one = scratch.dead(&identity(1), 3, 0);
        let by = &stats(&scratch, one).by;
        by[Category::Driver as usize].store(2 * UNIT, Ordering::Relaxed);
        let found = |counts| {
            let figures = || Some(vec![(identity(1).pid, 20 * UNIT)]);
            uncovered(&[compared(&scratch, counts)], figures).expect("figures")[0] / UNIT
        };
        assert_eq!((found(true), found(false)), (17, 0));
        scratch.set_context_hint(scratch.device, 4 * UNIT);
        assert_eq!((found(true), found(false)), (17, 11));
    }

    #[test]
    fn uncovered_memory_counts_as_far_as_all_looks_show_it() {
        let scratch = Scratch::new();
        let one = scratch.dead(&identity(1), 3, 0);
        let word = scratch.word(one, scratch.device);
        let looks = |figures: &dyn Fn(u32) -> Option<u64>| {
            let looks = Cell::new(0);
            let found = uncovered(&[compared(&scratch, true)], || {
                looks.set(looks.get() + 1);
                Some(vec![(identity(1).pid, figures(looks.get())? * UNIT)])
            });
            (found.map(|found| found[0] / UNIT), looks.get())
        };
        assert_eq!(looks(&|_| Some(3)), (Some(0), 1));
        assert_eq!(looks(&|_| Some(4)), (Some(1), LOOKS));
        assert_eq!(
            looks(&|look| Some(if look == 5 { 4 } else { 9 })),
            (Some(1), LOOKS)
        );
        assert_eq!(
            looks(&|look| Some(if look == 5 { 3 } else { 9 })),
            (Some(0), 5)
        );
        assert_eq!(looks(&|_| None), (None, 1));
        // The process frees memory after the figures were read, or has taken it before.
        for (before, after) in [(8, 3), (3, 8)] {
            let figures = |_| {
                word.store(after, Ordering::Relaxed);
                Some(8)
            };
            word.store(before, Ordering::Relaxed);
            assert_eq!(looks(&figures), (Some(0), 1));
        }
    }

    #[test]
    fn a_lowered_number_of_slots_hides_no_member() {
        let scratch = Scratch::new();
        let slots = [(); 3].map(|()| scratch.join());
        let high_water = &scratch.signals().high_water;
        high_water.store(0, Ordering::Relaxed);
        assert!(scratch.has_others(slots[0].index()));
        assert_eq!(high_water.load(Ordering::Relaxed), 3);
        drop(slots);
        high_water.store(1, Ordering::Relaxed);
        assert!(!scratch.has_others(0));
        assert_eq!(high_water.load(Ordering::Relaxed), 1);
    }
}
