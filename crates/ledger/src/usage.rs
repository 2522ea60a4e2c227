//! The figures of a ledger in bytes: sums over all processes, and figures of each process.

use super::atomic::Ordering;
use super::charge::{self, UNIT};
use super::layout::{DeviceStats, SlotPage};
use super::reap::{self, Witness};
use super::wait::Request;
use super::{Category, DeviceIndex, Errand, Ledger, Slot, moment, orphans, os, slot};
use gpulimit_base::identity::Identity;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// A group's usage of one device, not a snapshot. Members charge meanwhile, and memory that moves
/// between members may count twice.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Bytes granted to living processes, and to dead processes whose memory the driver may still
    /// hold.
    pub charged: u64,
    /// Bytes of requests that are undecided at the moment; not part of `charged`.
    pub undecided: u64,
    /// The largest usage recorded since the group was created, without the recorder's idle memory.
    /// Never above the limit at that time.
    pub peak: u64,
    /// Number of refused requests since the group was created.
    pub refusals: u64,
    /// Number of requests that have waited since the group was created. They lacked room in this
    /// group or in a parent group.
    pub waits: u64,
    /// Total waiting time of requests since the group was created, in milliseconds.
    pub waited_ms: u64,
    /// The parts of `charged` by category, as the members published them.
    pub by: [u64; Category::COUNT],
    /// Bytes that the members have charged ahead but do not use.
    pub idle: u64,
    /// Bytes of suspended members, whose memory is on the host; not part of `charged`.
    pub suspended: u64,
}

impl Usage {
    /// Returns the bytes that are charged and in use.
    pub fn in_use(&self) -> u64 {
        self.charged.saturating_sub(self.idle)
    }
}

/// The figures of one process in a group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessUsage {
    /// The index of the process's slot in the ledger.
    pub slot: usize,
    /// The process.
    pub identity: Identity,
    /// The name of the process's group relative to the ledger's group, such as `alice/job7`. Empty
    /// for the ledger's group itself.
    pub below: String,
    /// Whether the process is alive. A dead process is listed as long as the driver may still hold
    /// its memory.
    pub alive: bool,
    /// Whether requests wait for the memory of this dead process. They do not any more when the
    /// driver has kept the memory for long: then children that the process has forked live.
    pub drains: bool,
    /// The request of the process that waits in line for memory.
    pub waits: Option<Waits>,
    /// What an actor does with the process. See [`Ledger::has_actor`] for whether the actor lives.
    pub errand: Errand,
    /// Whether an actor has stopped the process, which is suspended.
    pub frozen: bool,
    /// The devices on which the process has figures, even if it is not charged there now.
    pub devices: Vec<DeviceUsage>,
}

/// A request that waits in line for memory.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Waits {
    /// The device.
    pub device: DeviceIndex,
    /// Requested bytes.
    pub bytes: u64,
    /// Time when the request began to wait, in milliseconds since boot. Never before the process
    /// joined the group.
    pub since_ms: u64,
}

impl Waits {
    /// Returns the time for which the request has waited so far.
    pub fn waited(&self) -> Duration {
        Duration::from_millis(os::boot_ms().saturating_sub(self.since_ms))
    }
}

impl ProcessUsage {
    /// Returns the process's figures for one device. All figures are 0 if there are none.
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
            suspended: 0,
            resident: 0,
        })
    }

    /// Merges the slots of each process, as a `resume` has one for each process that it brings back
    /// to the group. The figures are sums, under the number of the first slot.
    pub fn merged(all: Vec<Self>) -> Vec<Self> {
        let mut places = BTreeMap::<_, usize>::new();
        let mut merged: Vec<Self> = Vec::with_capacity(all.len());
        for one in all {
            let Identity { uid, .. } = one.identity;
            let key = (one.identity.key(), uid, one.alive, one.below.clone());
            match places.entry(key) {
                // Without a start time, the slots may be those of several processes.
                Entry::Occupied(place) if one.identity.start_time != 0 => {
                    merged[*place.get()].add(one);
                }
                Entry::Occupied(_) => merged.push(one),
                Entry::Vacant(place) => {
                    place.insert(merged.len());
                    merged.push(one);
                }
            }
        }
        merged
    }

    fn add(&mut self, other: Self) {
        self.waits = self.waits.or(other.waits);
        if self.errand == Errand::None {
            self.errand = other.errand;
        }
        self.frozen |= other.frozen;
        for more in other.devices {
            match self
                .devices
                .iter_mut()
                .find(|own| own.device == more.device)
            {
                Some(own) => own.add(&more),
                None => self.devices.push(more),
            }
        }
    }

    /// Returns whether the process is suspended: its memory of a device is on the host.
    pub fn is_suspended(&self) -> bool {
        self.devices.iter().any(DeviceUsage::is_away)
    }
}

/// The figures of one process on one device.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct DeviceUsage {
    /// The device.
    pub device: DeviceIndex,
    /// Granted bytes.
    pub charged: u64,
    /// The process's largest `charged` so far, without memory charged ahead.
    pub peak: u64,
    /// Number of refused requests of the process.
    pub refusals: u64,
    /// The parts of `charged` by category, as the process published them.
    pub by: [u64; Category::COUNT],
    /// Bytes that the process has charged ahead but does not use.
    pub idle: u64,
    /// The part of `charged` whose memory has left the process; another member may hold it.
    /// Included in [`Category::Vmm`].
    pub orphaned: u64,
    /// Bytes that the driver has moved to the host; not part of `charged`. The parts by category
    /// are 0 then.
    pub suspended: u64,
    /// Bytes that the process had before it was suspended, as the driver showed them; 0 if unknown,
    /// and while the process runs.
    pub resident: u64,
}

impl DeviceUsage {
    /// Returns the process's bytes of one category.
    pub fn of(&self, category: Category) -> u64 {
        self.by[category as usize]
    }

    /// Returns the sum of four categories: linear memory, VMM, arrays and graphs.
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

    fn is_known(&self) -> bool {
        [self.charged, self.peak, self.refusals] != [0; 3] || self.is_away()
    }

    /// Returns the figures of a dead process: the dead leave no memory on the host.
    fn without_host(self) -> Self {
        Self {
            suspended: 0,
            resident: 0,
            ..self
        }
    }

    /// Returns whether the process's memory is on the host, or an actor is about to move it. The
    /// group need not have charged any of it.
    pub fn is_away(&self) -> bool {
        self.suspended != 0 || self.resident != 0
    }

    fn add(&mut self, other: &Self) {
        let add = |sum: &mut u64, more| *sum = sum.saturating_add(more);
        self.peak = self.peak.max(other.peak);
        add(&mut self.charged, other.charged);
        add(&mut self.refusals, other.refusals);
        add(&mut self.idle, other.idle);
        add(&mut self.orphaned, other.orphaned);
        add(&mut self.suspended, other.suspended);
        add(&mut self.resident, other.resident);
        for (sum, more) in self.by.iter_mut().zip(other.by) {
            add(sum, more);
        }
    }

    /// Returns the bytes that are charged and in use.
    pub fn in_use(&self) -> u64 {
        self.charged.saturating_sub(self.idle)
    }
}

impl Ledger {
    /// Returns the bytes charged on a device, including those of dead processes whose slots are not
    /// cleaned. Faster than [`Self::usage`].
    pub fn charged(&self, device: DeviceIndex) -> u64 {
        (0..self.high_water())
            .map(|slot| charge::granted(self.word(slot, device).load(Ordering::Relaxed)))
            .sum::<u64>()
            * UNIT
    }

    /// Returns the group's usage of a device, including dead processes whose slots are not cleaned.
    pub fn usage(&self, device: DeviceIndex) -> Usage {
        self.usage_without(device, &[])
    }

    /// Returns the group's usage of a device without these slots, in their order.
    pub fn usage_without(&self, device: DeviceIndex, slots: &[usize]) -> Usage {
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
            let suspended = self.suspended(slot, device);
            // The dead leave no memory on the host.
            let suspended = if suspended > 0 && self.is_held(slot) {
                suspended
            } else {
                0
            };
            usage.suspended = usage.suspended.saturating_add(suspended);
            if self.word(slot, device).load(Ordering::Relaxed) == 0
                || slots.binary_search(&slot).is_ok()
            {
                continue;
            }
            let (word, idle) = patience.settled(self, slot, device);
            let charged = charge::granted(word) * UNIT;
            usage.charged += charged;
            usage.undecided += charge::undecided(word) * UNIT;
            let stats = &self.content().slots[slot].stats[device.get()];
            let by = by(stats, suspended, charged.saturating_sub(idle));
            for (sum, figure) in usage.by.iter_mut().zip(by) {
                *sum = sum.saturating_add(figure);
            }
            usage.idle = usage.idle.saturating_add(idle);
        }
        usage
    }

    /// Returns the living members, and the dead members whose memory the driver may still hold.
    pub fn processes(&self, witness: &dyn Witness) -> Vec<ProcessUsage> {
        if self.high_water() == 0 {
            return Vec::new();
        }
        // Finding dead processes needs a descriptor of the ledger. If opening the ledger fails, all
        // processes count as living.
        let file = self.open_file(false).ok();
        let now = os::boot_ms();
        // The words of each four devices are in another block of the file. Reading an unused block
        // would make the file system reserve pages for it.
        let devices: Vec<DeviceIndex> = self.devices().iter().map(|entry| entry.index).collect();
        let mut patience = Patience::default();
        let mut processes = Vec::new();
        for slot in 0..self.high_water() {
            let page = &self.content().slots[slot];
            let Some(identity) = page.owner.read() else {
                continue;
            };
            let dead = file.as_ref().is_some_and(|file| self.has_died(file, slot));
            let dead_ms = self.dead_ms(slot, now);
            let has_drained = || reap::has_drained(self, slot, witness, dead_ms);
            if dead && (!self.has_words(slot) || has_drained()) {
                continue;
            }
            let (errand, frozen) = self.errand(slot);
            processes.push(ProcessUsage {
                slot,
                identity,
                below: slot::read_below(page),
                alive: !dead,
                drains: dead && dead_ms < reap::DRAIN_MAX_MS,
                waits: waits(page).filter(|_| !dead),
                errand,
                frozen,
                devices: (devices.iter())
                    .map(|device| device_usage(self, slot, *device, &mut patience))
                    .map(|usage| if dead { usage.without_host() } else { usage })
                    .filter(DeviceUsage::is_known)
                    .collect(),
            });
        }
        processes
    }

    /// Returns the charged slots that [`Self::clean`] would clean if the ledger were not read-only,
    /// in their order; none of a writable ledger.
    ///
    /// Nobody may have noted in the file when a process died. `seen_ms` returns for how many
    /// milliseconds the caller has known that the process in a slot is dead.
    pub fn drained(
        &self,
        witness: &dyn Witness,
        mut seen_ms: impl FnMut(usize, &Identity) -> u64,
    ) -> Vec<usize> {
        let mut slots = Vec::new();
        if self.map.writable() || self.high_water() == 0 {
            return slots;
        }
        let Ok(file) = self.open_file(false) else {
            return slots;
        };
        let now = os::boot_ms();
        for slot in 0..self.high_water() {
            let Some(identity) = self.owner(slot) else {
                continue;
            };
            if self.has_words(slot) && self.has_died(&file, slot) {
                let dead_ms = self.dead_ms(slot, now).max(seen_ms(slot, &identity));
                if reap::has_drained(self, slot, witness, dead_ms) {
                    slots.push(slot);
                }
            }
        }
        slots
    }

    /// Returns for how many milliseconds the owner of a slot has been dead by the file; 0 if
    /// unknown.
    fn dead_ms(&self, slot: usize, now: u64) -> u64 {
        let dead_since = &self.content().slots[slot].owner.dead_since;
        moment::age(dead_since, now).unwrap_or(0)
    }

    /// Returns the figures of a slot on one device.
    pub fn usage_of(&self, slot: usize, device: DeviceIndex) -> DeviceUsage {
        device_usage(self, slot, device, &mut Patience::default())
    }
}

/// Bounds the time that one reading waits for undecided requests. A stopped process can leave a
/// request undecided for long.
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

    /// Returns a slot's word and its idle bytes, if possible as they are between two requests of
    /// the slot's owner.
    fn settled(&mut self, ledger: &Ledger, slot: usize, device: DeviceIndex) -> (u64, u64) {
        let idle = &ledger.charge(slot, device).idle;
        let figure = || idle.load(Ordering::Relaxed);
        charge::settled(ledger.word(slot, device), figure, || self.again())
    }
}

/// Returns the request that waits. Any member can write these words, so the wait is never longer
/// than the time since the process joined.
fn waits(page: &SlotPage) -> Option<Waits> {
    let [device, bytes, since] = Request::of(&page.waiting).read()?;
    let birth = page.owner.birth.load(Ordering::Relaxed);
    let seen = page.waiting.seen.load(Ordering::Relaxed);
    Some(Waits {
        device: DeviceIndex::new(device as u32 as usize)?,
        bytes,
        since_ms: by_own_clock(since.max(birth), seen),
    })
}

/// Converts the time when a request began to wait to this process's clock. The clock of a waiter in
/// another time namespace can be ahead; the waiter's last look was at most a moment ago then.
fn by_own_clock(since: u64, seen: u64) -> u64 {
    let now = os::boot_ms();
    match seen > now {
        true => now.saturating_sub(seen.saturating_sub(since)),
        false => since,
    }
}

/// Returns the parts of a slot's charge. `in_use`: the charge without what is charged ahead.
fn by(stats: &DeviceStats, suspended: u64, in_use: u64) -> [u64; Category::COUNT] {
    // The owner has published what was on the GPU, contexts that are not charged included.
    let is_away = in_use == 0 && stats.resident.load(Ordering::Relaxed) > 0;
    if suspended > 0 || is_away {
        return [0; Category::COUNT];
    }
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
) -> DeviceUsage {
    let (word, idle) = patience.settled(ledger, slot, device);
    let stats = &ledger.content().slots[slot].stats[device.get()];
    let suspended = ledger.suspended(slot, device);
    let charged = charge::granted(word) * UNIT;
    DeviceUsage {
        device,
        charged,
        peak: stats.peak.load(Ordering::Relaxed),
        refusals: stats.refusals.load(Ordering::Relaxed),
        by: by(stats, suspended, charged.saturating_sub(idle)),
        idle,
        orphaned: orphans::orphaned(&stats.left),
        suspended,
        resident: stats.resident.load(Ordering::Relaxed),
    }
}

impl Slot {
    /// Returns this process's figures for one device.
    pub fn usage(&self, device: DeviceIndex) -> DeviceUsage {
        self.ledger().usage_of(self.index(), device)
    }
}

/// Returns the bytes that members other than the owner of `own` could give back. Members of groups
/// within `low` or `min` count as 0.
pub(super) fn reclaimable(ledger: &Ledger, own: usize, device: DeviceIndex) -> u64 {
    (0..ledger.high_water())
        .filter(|slot| *slot != own)
        .map(|slot| {
            let stats = &ledger.content().slots[slot].stats[device.get()];
            let words = ledger.word(slot, device).load(Ordering::Relaxed);
            // A member may publish any number, so the number is capped at the member's charge.
            let charged = charge::granted(words) * UNIT;
            stats.reclaimable.load(Ordering::Relaxed).min(charged)
        })
        .sum()
}

#[cfg(all(test, not(loom)))]
mod tests;
