//! Reading a ledger: sums and per-process figures, in bytes.

use super::atomic::Ordering;
use super::charge::{self, UNIT};
use super::layout::DeviceStats;
use super::owner::is_dead;
use super::reap::{self, Witness};
use super::{Category, DeviceIndex, Ledger, orphans, os, slot};
use gpulimit_base::identity::Identity;
use std::time::Duration;

/// What a group uses of one device. Read word by word while members go on: no moment in time, but
/// never above what was granted at some moment plus what moved between members while reading.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Granted, of the living and of the dead that drain.
    pub charged: u64,
    /// Asked for and not decided at this moment; not part of `charged`.
    pub undecided: u64,
    /// The largest sum that a granted request has seen since the group began, what its own process
    /// had charged ahead not included. Never above the limit of that time.
    pub peak: u64,
    /// Refused requests since the group began; a count.
    pub refusals: u64,
    /// Requests that waited since the group began, for room in it or in one above it; a count.
    pub waits: u64,
    /// Milliseconds that they waited, in all.
    pub waited_ms: u64,
    /// Shares of `charged` as the members published them.
    pub by: [u64; Category::COUNT],
    /// Charged in advance but not used.
    pub idle: u64,
}

/// One process's part of a group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessUsage {
    /// Its place in the ledger.
    pub slot: usize,
    /// Who it is.
    pub identity: Identity,
    /// The group that it is in, relative to that of the ledger: `alice/job7`; empty: that group
    /// itself.
    pub below: String,
    /// False: dead, and the driver may still hold its memory.
    pub alive: bool,
    /// The devices on which it has, or had, a charge.
    pub devices: Vec<DeviceUsage>,
}

impl ProcessUsage {
    /// Its part of one device; nothing where it has none.
    pub fn on(&self, device: DeviceIndex) -> DeviceUsage {
        let known = self.devices.iter().find(|usage| usage.device == device);
        known.copied().unwrap_or(DeviceUsage {
            device,
            charged: 0,
            peak: 0,
            refusals: 0,
            by: [0; Category::COUNT],
            idle: 0,
            orphaned: 0,
        })
    }
}

/// One process's part of a group on one device.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct DeviceUsage {
    /// The device.
    pub device: DeviceIndex,
    /// Granted.
    pub charged: u64,
    /// The largest `charged` of the process's life, less what it had charged ahead.
    pub peak: u64,
    /// Refused requests; a count.
    pub refusals: u64,
    /// Shares of `charged` as the process published them.
    pub by: [u64; Category::COUNT],
    /// Charged in advance but not used.
    pub idle: u64,
    /// Of `charged`, what has left the process, perhaps for another member that has not charged it
    /// yet. Shown as [`Category::Vmm`].
    pub orphaned: u64,
}

impl DeviceUsage {
    /// Bytes of one category.
    pub fn of(&self, category: Category) -> u64 {
        self.by[category as usize]
    }

    /// Bytes of everything that was allocated by size: linear, VMM, arrays, graphs.
    pub fn allocations(&self) -> u64 {
        [
            Category::Linear,
            Category::Vmm,
            Category::Arrays,
            Category::Graphs,
        ]
        .into_iter()
        .map(|category| self.of(category))
        .fold(0, u64::saturating_add)
    }

    /// Charged bytes that are really in use.
    pub fn in_use(&self) -> u64 {
        self.charged.saturating_sub(self.idle)
    }
}

impl Ledger {
    /// Bytes granted on a device, of the living and of the dead that nobody has cleaned. The fast
    /// part of [`Self::usage`].
    pub fn charged(&self, device: DeviceIndex) -> u64 {
        (0..self.high_water())
            .map(|slot| charge::granted(self.word(slot, device).load(Ordering::Relaxed)))
            .sum::<u64>()
            * UNIT
    }

    /// What the group uses of a device. Sums only: the dead count until somebody cleans them.
    pub fn usage(&self, device: DeviceIndex) -> Usage {
        let header = self.header();
        let mut usage = Usage {
            peak: header.peaks[device.get()].load(Ordering::Relaxed),
            refusals: header.refusals[device.get()].load(Ordering::Relaxed),
            waits: header.waits[device.get()].load(Ordering::Relaxed),
            waited_ms: header.waited_ms[device.get()].load(Ordering::Relaxed),
            ..Usage::default()
        };
        let mut patience = Patience::default();
        for slot in 0..self.high_water() {
            if self.word(slot, device).load(Ordering::Relaxed) == 0 {
                continue;
            }
            let (word, idle) = patience.settled(self, slot, device);
            usage.charged += charge::granted(word) * UNIT;
            usage.undecided += charge::undecided(word) * UNIT;
            let stats = &self.content().slots[slot].stats[device.get()];
            for (sum, figure) in usage.by.iter_mut().zip(by(stats)) {
                *sum = sum.saturating_add(figure);
            }
            usage.idle = usage.idle.saturating_add(idle);
        }
        usage
    }

    /// The living members, and the dead that drain.
    pub fn processes(&self, witness: &dyn Witness) -> Vec<ProcessUsage> {
        // Without a descriptor nobody can be told dead.
        let file = self.place.open(false).ok();
        let now = os::boot_ms();
        let mut patience = Patience::default();
        let mut processes = Vec::new();
        for slot in 0..self.high_water() {
            let page = &self.content().slots[slot];
            let Some(identity) = page.owner.read() else {
                continue;
            };
            let dead = file.as_ref().is_some_and(|file| is_dead(file, slot));
            if dead {
                let dead_ms = match page.owner.dead_since.load(Ordering::Relaxed) {
                    0 => 0,
                    since => now.saturating_sub(since),
                };
                if !self.has_words(slot) || reap::has_drained(self, slot, witness, dead_ms) {
                    continue;
                }
            }
            processes.push(ProcessUsage {
                slot,
                identity,
                below: slot::read_below(page),
                alive: !dead,
                devices: DeviceIndex::all()
                    .filter_map(|device| device_usage(self, slot, device, &mut patience))
                    .collect(),
            });
        }
        processes
    }
}

/// How long one reading of a ledger waits, in all, for requests under way to be decided. That takes
/// a microsecond, unless a process has lost the processor or was stopped in the middle of it.
#[derive(Default)]
struct Patience {
    looks: u32,
}

impl Patience {
    const SPINS: u32 = 64;
    const NAPS: u32 = 256;
    const NAP: Duration = Duration::from_micros(200);

    fn again(&mut self) -> bool {
        self.looks += 1;
        match self.looks {
            ..=Self::SPINS => os::spin(),
            _ if self.looks <= Self::SPINS + Self::NAPS => os::sleep(Self::NAP),
            _ => return false,
        }
        true
    }

    /// What a slot is charged, and what of it is idle: both before a request that is under way, or
    /// both after it.
    fn settled(&mut self, ledger: &Ledger, slot: usize, device: DeviceIndex) -> (u64, u64) {
        let idle = &ledger.content().slots[slot].stats[device.get()].idle;
        let figure = || idle.load(Ordering::Relaxed);
        charge::settled(ledger.word(slot, device), figure, || self.again())
    }
}

fn by(stats: &DeviceStats) -> [u64; Category::COUNT] {
    let mut by = Category::ALL.map(|category| stats.by[category as usize].load(Ordering::Relaxed));
    let vmm = &mut by[Category::Vmm as usize];
    *vmm = vmm.saturating_add(orphans::orphaned(&stats.left));
    by
}

fn device_usage(
    ledger: &Ledger,
    slot: usize,
    device: DeviceIndex,
    patience: &mut Patience,
) -> Option<DeviceUsage> {
    let (word, idle) = patience.settled(ledger, slot, device);
    let stats = &ledger.content().slots[slot].stats[device.get()];
    let usage = DeviceUsage {
        device,
        charged: charge::granted(word) * UNIT,
        peak: stats.peak.load(Ordering::Relaxed),
        refusals: stats.refusals.load(Ordering::Relaxed),
        by: by(stats),
        idle,
        orphaned: orphans::orphaned(&stats.left),
    };
    (usage.charged != 0 || usage.peak != 0 || usage.refusals != 0).then_some(usage)
}

/// Bytes that the members of a ledger but the one of slot `own` could give back if they were asked,
/// at most. Members of groups that use no more than their `low` are not asked: they publish
/// nothing.
pub(super) fn reclaimable(ledger: &Ledger, own: usize, device: DeviceIndex) -> u64 {
    (0..ledger.high_water())
        .filter(|slot| *slot != own)
        .map(|slot| {
            let stats = &ledger.content().slots[slot].stats[device.get()];
            let words = ledger.word(slot, device).load(Ordering::Relaxed);
            // Not more than is charged, whatever is published.
            let charged = charge::granted(words) * UNIT;
            stats.reclaimable.load(Ordering::Relaxed).min(charged)
        })
        .sum()
}

#[cfg(all(test, not(loom)))]
mod tests;
