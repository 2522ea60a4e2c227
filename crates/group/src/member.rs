//! One process's membership in a group and in the groups above it.

use super::protection::Kept;
use super::{Group, GroupError, Root, context_size, name};
use gpulimit_base::device::DeviceId;
use gpulimit_base::file_system;
use gpulimit_base::identity::Identity;
use gpulimit_ledger::{
    self as ledger, Category, DeviceIndex, DeviceUsage, EventKind, Happening, Idle, Ledger, Level,
    MAX_DEVICES, NoWitness, ProcessUsage, Slot, Witness, child_key,
};
use gpulimit_limits::{Bounds, Limits};
use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Levels on the path from a group to the root.
pub const MAX_DEPTH: usize = 8;

/// How often somebody who comes in while the group is removed and made again tries anew.
const ATTEMPTS: u32 = 16;

/// A process in a group, until drop.
pub struct Member {
    /// From the group itself upwards; never empty, [`MAX_DEPTH`] at most.
    pub(super) levels: Vec<Station>,
    /// Where the sizes of contexts are kept.
    root: Box<Path>,
}

/// A device as a member charges it. Cheap to copy; belongs to the [`Member`] that made it.
#[derive(Copy, Clone, Debug)]
pub struct MemberDevice {
    id: DeviceId,
    capacity: u64,
    /// Its index in the ledger of each level.
    pub(super) index: [DeviceIndex; MAX_DEPTH],
}

impl MemberDevice {
    /// Which device.
    pub const fn id(&self) -> DeviceId {
        self.id
    }

    /// Its memory in bytes, as the driver says.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }
}

/// What a request leaves where it is.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Held {
    /// What is above `high`, and what is kept for others as long as there is another way.
    Back,
    /// What is kept for others as long as there is another way.
    Low,
    /// What is kept for others in any case.
    Min,
    /// Nothing: for what needs no room.
    Nothing,
}

/// One group on the path: what it allows, and our slot in it.
pub(super) struct Station {
    pub(super) name: Box<str>,
    pub(super) limits: Limits,
    // Dropped before the ledger that it is in.
    pub(super) slot: Slot,
    pub(super) ledger: Arc<Ledger>,
    bounds: [Remembered; MAX_DEVICES],
    /// What is kept for groups directly below this one.
    kept: Kept,
    /// The request for unused memory that was answered last.
    answered: AtomicU64,
}

/// A process and what it uses of one device.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Who.
    pub identity: Identity,
    /// False: dead, and the driver may still hold its memory.
    pub alive: bool,
    /// What.
    pub usage: DeviceUsage,
}

/// A charge that a group did not allow.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Refusal<'a> {
    /// The group that said no.
    pub group: &'a str,
    /// Bytes charged in it when it did.
    pub charged: u64,
    /// Bytes that it may use.
    pub max: u64,
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use gpulimit_base::units::gib;
        let Self {
            group,
            charged,
            max,
        } = *self;
        write!(f, "group {group} uses {} of {}", gib(charged), gib(max))
    }
}

impl Error for Refusal<'_> {}

impl Member {
    /// Makes this process a member of the group.
    ///
    /// Once per process, and again in a forked child that uses devices of its own. A group that is
    /// being removed is waited for, for a bounded time.
    pub fn join(root: &Root, name: &str) -> Result<Self, GroupError> {
        for _ in 0..ATTEMPTS {
            let group = root.group(name)?;
            let path = group.upwards().map(|above| Station::enter(&above, name));
            match path.collect::<Result<Vec<_>, _>>() {
                Err(error) if error.is_missing() && root.group(name).is_err() => break,
                Err(error) => return Err(error),
                // Removed by hand under us: what was entered is not the group that others see.
                Ok(levels) if levels.iter().any(Station::is_unlinked) => {}
                Ok(levels) => {
                    return Ok(Self {
                        levels,
                        root: root.path().into(),
                    });
                }
            }
        }
        Err(root.missing(name))
    }

    /// The name of the group itself.
    pub fn group(&self) -> &str {
        &self.leaf().name
    }

    fn leaf(&self) -> &Station {
        &self.levels[0]
    }

    /// Whether the group was removed, by hand, while we are in it.
    pub fn is_orphaned(&self) -> bool {
        self.levels
            .iter()
            .any(|station| station.ledger.is_unlinked())
    }

    /// What has become of the files of the group, or of one above it, where nothing can be charged
    /// in them any more: all is refused then.
    pub fn damage(&self) -> Option<GroupError> {
        self.levels.iter().find_map(Station::damage)
    }

    /// The device of this identity, which has `capacity` bytes in all.
    pub fn device(&self, id: DeviceId, capacity: u64) -> Result<MemberDevice, GroupError> {
        let first = self.leaf().ledger.device(id, capacity)?;
        let mut index = [first; MAX_DEPTH];
        for (index, station) in index.iter_mut().zip(&self.levels).skip(1) {
            *index = station.ledger.device(id, capacity)?;
        }
        Ok(MemberDevice {
            id,
            capacity,
            index,
        })
    }

    /// As [`Member::try_charge`], of bytes that are added to `idle` in the moment in which they are
    /// granted.
    pub fn try_charge_ahead(&self, device: &MemberDevice, bytes: u64, idle: &dyn Idle) -> bool {
        !self.levels.iter().any(|level| level.ledger.has_waiters())
            && self.on_path(device, Held::Back, |path| {
                ledger::try_charge_ahead(path, bytes, idle)
            })
    }

    /// As [`Member::charge`], but one attempt only: no reclaim, no waiting, nothing above `high`
    /// and nothing that is kept for others.
    #[inline]
    pub fn try_charge(&self, device: &MemberDevice, bytes: u64) -> bool {
        !self.levels.iter().any(|level| level.ledger.has_waiters())
            && self.on_path(device, Held::Back, |path| ledger::try_charge(path, bytes))
    }

    /// Charges `bytes` that the driver has taken without asking, whatever the limits.
    pub fn charge_unchecked(&self, device: &MemberDevice, bytes: u64) {
        self.on_path(device, Held::Nothing, |path| {
            ledger::charge_unchecked(path, bytes)
        });
    }

    /// Notes the usage of this moment for the peaks: after bytes that were charged ahead have come
    /// into use.
    pub fn note_usage(&self, device: &MemberDevice) {
        self.on_path(device, Held::Nothing, ledger::note_usage);
    }

    /// Gives back `bytes` that were charged, after the driver has freed them.
    pub fn uncharge(&self, device: &MemberDevice, bytes: u64) {
        self.on_path(device, Held::Nothing, |path| ledger::uncharge(path, bytes));
    }

    /// Gives back `bytes` that were charged ahead and not used: they are removed from `idle` in the
    /// same moment.
    pub fn uncharge_idle(&self, device: &MemberDevice, bytes: u64, idle: &dyn Idle) {
        self.on_path(device, Held::Nothing, |path| {
            ledger::uncharge_idle(path, bytes, idle);
        });
    }

    /// Whether no request of this process for the device is being decided at this moment: what is
    /// charged and what is idle then fit together.
    pub fn is_decided(&self, device: &MemberDevice) -> bool {
        // The levels above are decided before.
        self.leaf().slot.is_decided(device.index[0])
    }

    /// Runs `run` with the levels of a charge, from the group itself upwards.
    #[inline]
    pub(super) fn on_path<T>(
        &self,
        device: &MemberDevice,
        held: Held,
        run: impl FnOnce(&[Level<'_>]) -> T,
    ) -> T {
        match self.levels.len() {
            1 => run(&self.path::<1>(device, held)),
            2 => run(&self.path::<2>(device, held)),
            3 => run(&self.path::<3>(device, held)),
            deep => run(&self.path::<MAX_DEPTH>(device, held)[..deep]),
        }
    }

    /// The first `N` levels; beyond the last one, the last one again.
    #[inline]
    fn path<const N: usize>(&self, device: &MemberDevice, held: Held) -> [Level<'_>; N] {
        let last = self.levels.len() - 1;
        std::array::from_fn(|at| {
            let at = at.min(last);
            self.levels[at].level(device, at, held)
        })
    }

    fn stations<'a>(
        &'a self,
        device: &'a MemberDevice,
    ) -> impl Iterator<Item = (&'a Station, DeviceIndex)> {
        self.levels.iter().zip(device.index.iter().copied())
    }

    /// Whether the memory of contexts is charged: unless every group on the path wants it left out.
    pub fn counts_contexts(&self) -> bool {
        let counts = |station: &Station| station.limits.options().count_context;
        self.levels.iter().any(counts)
    }

    /// Another number whenever the limits of a group on the path have changed.
    pub(super) fn generations(&self) -> u64 {
        let all = self.levels.iter().map(|level| level.limits.generation());
        all.fold(0, u64::wrapping_add)
    }

    /// The smallest limit on the path, in bytes; `u64::MAX` when there is none. Follows changes at
    /// once.
    pub fn max(&self, device: &MemberDevice) -> u64 {
        let limits = self
            .stations(device)
            .map(|(station, index)| station.bounds(device, index).max);
        limits.min().unwrap_or(u64::MAX)
    }

    /// Whether somebody has asked the members for what they hold unused since the last time this
    /// said so. One load a level.
    #[inline]
    pub fn is_asked(&self) -> bool {
        self.levels
            .iter()
            .any(|level| level.ledger.asked() != level.answered.load(Ordering::Relaxed))
            && self.take_asked()
    }

    /// Somebody has: from now on that is answered.
    #[cold]
    fn take_asked(&self) -> bool {
        for level in &self.levels {
            level
                .answered
                .store(level.ledger.asked(), Ordering::Relaxed);
        }
        true
    }

    /// Whether the group uses no more than its `low`, or one above it no more than its own: then
    /// nothing is asked back.
    pub fn is_low(&self, device: &MemberDevice) -> bool {
        self.stations(device).any(|(station, index)| {
            let Bounds { low, min, .. } = station.bounds(device, index);
            low.max(min) > 0 && station.ledger.charged(index) <= low.max(min)
        })
    }

    /// The bytes that could still be charged; `u64::MAX` when there is no limit.
    pub fn free(&self, device: &MemberDevice) -> u64 {
        self.tightest(device).map_or(u64::MAX, |(free, _)| free)
    }

    /// The bytes charged at the level with the least left; without any limit, in the group itself.
    pub fn charged(&self, device: &MemberDevice) -> u64 {
        match self.tightest(device) {
            Some((_, charged)) => charged,
            None => self.leaf().ledger.charged(device.index[0]),
        }
    }

    /// Bytes that are charged in the group of this name, our own or one above it, and not in use:
    /// `gpulimit show` leaves them out of its usage.
    pub fn reserve(&self, device: &MemberDevice, group: &str) -> u64 {
        let mut stations = self.stations(device);
        let station = stations.find(|(station, _)| *station.name == *group);
        station.map_or(0, |(station, index)| station.ledger.usage(index).idle)
    }

    /// What is free, of which nothing is kept for others, and what is charged at the level with the
    /// least left; `None` without any limit.
    fn tightest(&self, device: &MemberDevice) -> Option<(u64, u64)> {
        let limited = self.stations(device).filter_map(|(station, index)| {
            let max = station.bounds(device, index).max;
            (max != u64::MAX).then(|| {
                let kept = station
                    .kept
                    .protection(&station.ledger)
                    .map_or(0, |kept| kept.untaken(&station.ledger, index, false));
                let charged = station.ledger.charged(index);
                if station.ledger.damage().is_some() {
                    return (0, charged);
                }
                (max.saturating_sub(kept).saturating_sub(charged), charged)
            })
        });
        limited.min()
    }

    /// Shows how many of our bytes are of this category: the whole figure, not a difference.
    pub fn publish(&self, device: &MemberDevice, category: Category, bytes: u64) {
        for (station, index) in self.stations(device) {
            station.slot.publish(index, category, bytes);
        }
    }

    /// Shows how many of our charged bytes are not in use.
    pub fn publish_idle(&self, device: &MemberDevice, bytes: u64) {
        for (station, index) in self.stations(device) {
            station.slot.publish_idle(index, bytes);
        }
    }

    /// Shows how many of our charged bytes we could give back at most.
    pub fn publish_reclaimable(&self, device: &MemberDevice, bytes: u64) {
        let bytes = if bytes > 0 && self.is_low(device) {
            0
        } else {
            bytes
        };
        for (station, index) in self.stations(device) {
            station.slot.publish_reclaimable(index, bytes);
        }
    }

    /// `bytes` more (or less) of what is charged are memory that other processes may hold, too.
    pub fn mark_shared(&self, device: &MemberDevice, bytes: i64) {
        for (station, index) in self.stations(device) {
            station.slot.mark_shared(index, bytes);
        }
    }

    /// `bytes` of ours that are charged have left this process, perhaps for another member: they
    /// stay charged until [`Member::release_orphans`], by whatever member.
    pub fn orphan(&self, device: &MemberDevice, bytes: u64) {
        for (station, index) in self.stations(device) {
            station.slot.orphan(index, bytes);
        }
    }

    /// What has left this process and is still charged to it at some level, bytes.
    pub fn orphaned(&self, device: &MemberDevice) -> u64 {
        let orphaned = |(station, index): (&Station, DeviceIndex)| station.slot.orphaned(index);
        self.stations(device).map(orphaned).max().unwrap_or(0)
    }

    /// Orphans of all levels, at the level that has the most, bytes.
    pub fn orphans(&self, device: &MemberDevice) -> u64 {
        let total =
            |(station, index): (&Station, DeviceIndex)| station.ledger.orphans(index).total();
        self.stations(device).map(total).max().unwrap_or(0)
    }

    /// Gives orphans back at every level. `keep` gets what is there and who lives there, and says
    /// how many bytes are to stay. Returns whether there were more.
    pub fn release_orphans(
        &self,
        device: &MemberDevice,
        keep: impl Fn(u64, Vec<Holder>) -> u64,
    ) -> bool {
        let mut released = false;
        for (level, (station, index)) in self.stations(device).enumerate() {
            let seen = station.ledger.orphans(index);
            if seen.total() > 0 {
                let keep = keep(seen.total(), self.living(device, level));
                released |= station.slot.release_orphans(index, &seen, keep) > 0;
            }
        }
        released
    }

    /// The living processes of all groups below the highest one on the path, also those that have
    /// charged nothing on this device: they may have memory there that others have left.
    pub fn all_living(&self, device: &MemberDevice) -> Vec<Holder> {
        self.living(device, self.levels.len() - 1)
    }

    fn living(&self, device: &MemberDevice, level: usize) -> Vec<Holder> {
        let living = self.levels[level].ledger.processes(&NoWitness);
        living
            .into_iter()
            .filter(|process| process.alive)
            .map(|process| Holder {
                identity: process.identity,
                alive: true,
                usage: process.on(device.index[level]),
            })
            .collect()
    }

    /// Counts a refusal, and writes it down in the group that refused.
    pub fn count_refusal(&self, device: &MemberDevice, bytes: u64, refusal: &Refusal<'_>) {
        for (station, index) in self.stations(device) {
            station.slot.count_refusal(index);
            if *station.name == *refusal.group {
                let kind = EventKind::Refusal;
                station.record(kind, index, bytes, refusal.charged, refusal.max);
            }
        }
    }

    /// The bytes that a context takes, as last measured by a member of this group, or of any group
    /// of the root; 0 when none did. Reads a file where the ledger does not know.
    pub fn context_hint(&self, device: &MemberDevice) -> u64 {
        match self.leaf().ledger.context_hint(device.index[0]) {
            0 => context_size::read(&self.root, &device.id),
            known => known,
        }
    }

    /// Tells other members what a context takes.
    pub fn set_context_hint(&self, device: &MemberDevice, bytes: u64) {
        if context_size::read(&self.root, &device.id) != bytes {
            context_size::write(&self.root, &device.id, bytes);
        }
        for (station, index) in self.stations(device) {
            station.ledger.set_context_hint(index, bytes);
        }
    }

    /// The processes of the group that have something on this device.
    pub fn holders(&self, device: &MemberDevice, witness: &dyn Witness) -> Vec<Holder> {
        let index = device.index[0];
        let of_device = |process: ProcessUsage| {
            let usage = process
                .devices
                .into_iter()
                .find(|usage| usage.device == index)?;
            Some(Holder {
                identity: process.identity,
                alive: process.alive,
                usage,
            })
        };
        self.leaf()
            .ledger
            .processes(witness)
            .into_iter()
            .filter_map(of_device)
            .collect()
    }

    /// The ledger of the group itself.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.leaf().ledger
    }
}

impl Station {
    /// Enters one of the groups on the path of the process, which is in `leaf`.
    fn enter(group: &Group, leaf: &str) -> Result<Self, GroupError> {
        let _hold = group.hold()?;
        // Each by itself: either may be a mount of its own.
        for file in [group.limits_path(), group.ledger_path()] {
            file_system::check(&file)?;
        }
        let limits = Limits::open(&group.limits_path())?;
        let ledger = Arc::new(Ledger::open(&group.ledger_path())?);
        let below = leaf.get(group.name().len() + 1..).unwrap_or_default();
        let slot = ledger.claim(&Identity::of_self(), below)?;
        let own = name::upwards(below).last().filter(|own| !own.is_empty());
        let station = Self {
            name: group.name().into(),
            limits,
            slot,
            kept: Kept::new(group.below_path(), own.map_or(0, child_key)),
            answered: AtomicU64::new(ledger.asked()),
            ledger,
            bounds: std::array::from_fn(|_| Remembered::default()),
        };
        // They were whole when they were opened, and somebody may have cut them before they were
        // mapped.
        station.damage().map_or(Ok(station), Err)
    }

    /// Whether a path of the group leads to another file than the one mapped here: what others
    /// charge or set there does not reach this process.
    fn is_unlinked(&self) -> bool {
        self.ledger.is_unlinked() || self.limits.is_unlinked()
    }

    fn damage(&self) -> Option<GroupError> {
        let ledger = self.ledger.damage().map(GroupError::Ledger);
        ledger.or_else(|| self.limits.damage().map(GroupError::Limits))
    }

    /// This group as a level of a charge; `at` is its place on the path.
    #[inline]
    pub(super) fn level(&self, device: &MemberDevice, at: usize, held: Held) -> Level<'_> {
        let index = device.index[at];
        let (max, protection) = match held {
            Held::Nothing => (u64::MAX, None),
            Held::Back | Held::Low | Held::Min => {
                let Bounds { max, high, .. } = self.bounds(device, index);
                let max = if held == Held::Back {
                    max.min(high)
                } else {
                    max
                };
                (max, self.kept.protection(&self.ledger))
            }
        };
        Level {
            slot: &self.slot,
            device: index,
            max,
            protection,
            keeps_low: matches!(held, Held::Back | Held::Low),
        }
    }

    /// Writes down what happened to this process here: to a request for `bytes`, with so many
    /// charged, and this limit.
    pub(super) fn record(
        &self,
        kind: EventKind,
        index: DeviceIndex,
        bytes: u64,
        charged: u64,
        max: u64,
    ) {
        self.ledger.record(&Happening {
            kind,
            device: Some(index),
            process: Identity::of_self(),
            bytes,
            charged,
            max,
        });
    }

    /// Whether other members have anything charged.
    pub(super) fn others_hold(&self, index: DeviceIndex) -> bool {
        self.ledger.charged(index) > self.slot.charged(index)
    }

    #[inline]
    pub(super) fn bounds(&self, device: &MemberDevice, index: DeviceIndex) -> Bounds {
        let compute = || self.limits.bounds_at(&device.id, device.capacity);
        match self.bounds.get(index.get()) {
            Some(remembered) => remembered.get(self.limits.generation(), compute),
            None => compute().0,
        }
    }
}

/// A limit worked out for one generation of the rules.
///
/// A sequence lock whose writers give up instead of waiting: who finds another thread storing
/// answers from the rules.
#[derive(Default)]
struct Remembered {
    /// Twice (the generation plus 1), plus 1 while a thread stores; 0 when nothing is remembered.
    stamp: AtomicU64,
    /// Max, high, low, min.
    words: [AtomicU64; 4],
}

impl Remembered {
    #[inline]
    fn get(&self, generation: u64, compute: impl FnOnce() -> (Bounds, u64)) -> Bounds {
        let wanted = Self::stamp(generation);
        let before = self.stamp.load(Ordering::Acquire);
        if before == wanted {
            let [max, high, low, min] =
                std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.stamp.load(Ordering::Relaxed) == wanted {
                return Bounds {
                    max,
                    high,
                    low,
                    min,
                };
            }
        }
        self.renew(before, compute())
    }

    #[cold]
    fn renew(&self, before: u64, (bounds, generation): (Bounds, u64)) -> Bounds {
        let busy = before | 1;
        let mine = before & 1 == 0
            && self
                .stamp
                .compare_exchange(before, busy, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if mine {
            fence(Ordering::Release);
            let Bounds {
                max,
                high,
                low,
                min,
            } = bounds;
            for (word, value) in self.words.iter().zip([max, high, low, min]) {
                word.store(value, Ordering::Relaxed);
            }
            self.stamp.store(Self::stamp(generation), Ordering::Release);
        }
        bounds
    }

    const fn stamp(generation: u64) -> u64 {
        generation.wrapping_add(1) << 1
    }
}
