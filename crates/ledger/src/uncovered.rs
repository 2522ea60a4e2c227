//! Uncovered memory: what the driver shows of members beyond what the ledger counts for them.
//!
//! Any member can lower the charge of another one, and some memory is taken past the library. Both
//! show in a comparison with the driver's figures. A process charges before it asks the driver, and
//! uncharges after the driver has freed: at each moment its charge is at least the driver's figure
//! of it. Two reasons let a comparison see less, for a moment:
//!
//! - The figure and the charge are read one after the other. So charges are read before and after
//!   the figures, and the larger ones count.
//! - Memory moves between processes that share it: its old charge, in the slot of a dead process or
//!   as an orphan, covers the figure of its new holder.
//!
//! What is left is only believed if several looks show it: see [`Uncovered::least`].

use super::atomic::Ordering;
use super::charge::{self, UNIT};
use super::orphans::orphaned;
use super::{Category, DeviceIndex, Ledger, os};
use gpulimit_base::identity::{Identity, SeenProcess};
use std::time::Duration;

/// The driver's figures of a device: the pid in the caller's namespace and the bytes of each
/// process.
pub type Figures = Vec<(u32, u64)>;

/// How often the driver's figures are read while they show uncovered memory. A process that takes
/// and frees memory between two readings of its charge can spoil one look, but hardly all.
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
        let (mut lacking, mut known) = (0_u64, Vec::new());
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
            if needed(&slots) == 0 && slots.iter().all(|(_, owner)| owner.pid_ns == own_ns) {
                continue;
            }
            let process = SeenProcess::by_pid(*pid);
            slots.retain(|(_, owner)| process.is(owner));
            if !slots.is_empty() {
                lacking = lacking.saturating_add(needed(&slots));
                known.extend(slots.iter().map(|(slot, _)| (*slot, bytes)));
            }
        }
        if lacking == 0 {
            return 0;
        }
        // Charges for memory that their process does not hold: another one may.
        let file = ledger.open_file(false).ok();
        let elsewhere = owners.iter().fold(0_u64, |sum, (slot, _)| {
            let is_dead = file
                .as_ref()
                .is_some_and(|file| ledger.has_died(file, *slot));
            let own = known.iter().find(|(known, _)| known == slot);
            let more = match is_dead {
                true => charge(*slot).saturating_sub(own.map_or(0, |(_, bytes)| *bytes)),
                false => self.orphaned(*slot, charge(*slot)),
            };
            sum.saturating_add(more)
        });
        lacking.saturating_sub(elsewhere)
    }

    /// Returns what is left of the driver's `bytes` of a process after what one of its slots covers
    /// with `charge`.
    fn needed(&self, bytes: u64, slot: usize, charge: u64) -> u64 {
        let by = &self.ledger.content().slots[slot].stats[self.device.get()].by;
        let part = |category| by[category as usize].load(Ordering::Relaxed);
        // The charge pays for managed memory and orphans, too, which are not in the figure.
        let bytes = bytes.saturating_add(part(Category::Managed));
        let covered = charge.saturating_sub(self.orphaned(slot, charge));
        let uncounted = match (self.counts_contexts, self.ledger.context_hint(self.device)) {
            (true, _) => 0,
            (false, 0) => u64::MAX,
            // The process may be making one more context.
            (false, context) => context.saturating_add(part(Category::Driver)),
        };
        bytes.saturating_sub(covered).saturating_sub(uncounted)
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
        let mut slots = (0..self.high_water()).filter(|slot| *slot != own);
        slots.any(|slot| self.content().slots[slot].owner.pid.load(Ordering::Relaxed) != 0)
    }
}
