//! The membership of this process in a group and in the groups above it.

use super::context_size::Known;
use super::entry::job_key;
use super::protection::ProtectedGroups;
use super::trail::{Traced, happening};
use super::{Group, GroupError, Kind, Root, context_size};
use gpulimit_base::device::DeviceId;
use gpulimit_base::file_system;
use gpulimit_base::identity::Identity;
use gpulimit_base::process;
use gpulimit_base::units::gib;
use gpulimit_ledger::{
    self as ledger, Category, Cause, Compared, Details, DeviceIndex, DeviceUsage, EventKind,
    Figures, Gate, HOLDERS, Holding, Idle, Ledger, Level, MAX_DEVICES, NoWitness, Outside,
    ProcessUsage, Slot, Unmoved, Witness,
};
use gpulimit_limits::{Bounds, Limits};
use once_cell::race::OnceBox;
use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The most levels of groups: a group together with the groups above it has at most this many.
pub const MAX_DEPTH: usize = 8;

/// The most attempts of a process to join a group that other processes remove and make again.
const ATTEMPTS: u32 = 16;

/// This process's membership in a group and the groups above it. Dropping it ends the membership.
pub struct Member {
    /// The process's own group first, then the groups above it upwards; at most [`MAX_DEPTH`].
    pub(super) levels: Vec<Station>,
    /// What [`Member::asked`] was when this process last answered.
    answered: AtomicU64,
    /// The root of the group, whose files store the sizes of contexts.
    pub(super) root: Box<Path>,
    /// The trail of the root, opened for the first event that belongs there.
    pub(super) root_trail: OnceBox<Option<Ledger>>,
    /// The trail of the own root of the process's user: see [`Member::users_trail`].
    pub(super) users_trail: OnceBox<Option<Ledger>>,
    /// See [`Details::is_unheard`].
    pub is_unheard: bool,
}

/// A member and a device on which it is charged. Cheap to copy.
#[derive(Copy, Clone)]
pub struct MemberDevice<'a> {
    pub(super) member: &'a Member,
    id: DeviceId,
    capacity: u64,
    /// The device's index in each ledger: first that of the process's own group, then those of the
    /// groups above it.
    pub(super) index: [DeviceIndex; MAX_DEPTH],
}

/// The memory that a charge must leave to other groups.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Spared {
    /// As [`Self::High`], and all memory if the group has a `keep_free`: see
    /// [`Station::at_once`].
    Unseen,
    /// The memory above the limit `high`, and memory that `low` or `min` protects for other groups.
    High,
    /// Memory that `low` or `min` protects for other groups.
    Low,
    /// Memory that `min` protects for other groups.
    Min,
    /// No memory: the operation does not depend on free memory.
    Nothing,
}

/// A group in which a process is charged, with the group's limits and the process's slot in the
/// ledger.
pub(super) struct Station {
    pub(super) name: Box<str>,
    pub(super) limits: Limits,
    // This process's slot. It is dropped before the ledger, which holds the slot.
    pub(super) slot: Slot,
    pub(super) ledger: Arc<Ledger>,
    bounds: [Remembered; MAX_DEVICES],
    /// The protection (`min` and `low`) of the group's child groups.
    protected: ProtectedGroups,
    /// For each device, the bytes that other members held beyond their charges when this process
    /// last looked: see [`MemberDevice::look_at_others`]. No other process can change them.
    uncovered: [AtomicU64; MAX_DEVICES],
}

/// A process of a group and its usage of one device.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The identity of the process.
    pub identity: Identity,
    /// The process's usage of the device.
    pub usage: DeviceUsage,
}

/// A refusal: a charge that a group did not allow.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Refusal<'a> {
    /// The name of the group that refused.
    pub group: &'a str,
    /// The bytes that the group was asked for; 0 if the refusal was decided without that.
    pub bytes: u64,
    /// The bytes that were charged in the group at the moment of the refusal.
    pub charged: u64,
    /// The group's limit at the moment of the refusal, in bytes.
    pub max: u64,
    /// The bytes that are kept for other groups: by `min`, or for jobs with a limit of their own.
    /// For [`Cause::KeepFree`] those that the group keeps free on the GPU.
    pub kept: u64,
    /// The bytes that the group could still charge; for [`Cause::KeepFree`] those that were free on
    /// the GPU.
    pub left: u64,
    /// The bytes that the job of the process needs at once, because its first context waits until
    /// its whole limit is free; 0 for other requests.
    pub room: u64,
    /// How long the request has waited in line, in whole seconds.
    pub waited: u64,
    /// Why the request was refused.
    pub cause: Cause,
    /// The memory that lies in none of the process's groups; `None` if a group refused.
    pub outside: Option<&'a Outside>,
}

/// Formats why there was no room: `976.0 MiB left of 3.0 GiB in lab`.
impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, bytes, .. } = *self;
        let [max, kept, left] = [self.max, self.kept, self.left].map(gib);
        let less = left.less_than(bytes);
        match self.cause {
            Cause::Capacity => write!(f, "the GPU has {left}"),
            Cause::Host => f.write_str(
                "the group and the GPU have room. The driver lacks memory of the host, or a limit \
                 such as `ulimit -v` or that of a container is reached",
            ),
            Cause::KeepFree => write!(f, "keep_free of {group} keeps {kept} free: {left} was free"),
            Cause::Outside => write!(f, "{less}{left} left"),
            _ => {
                write!(f, "{less}{left} left of {max} in {group}")?;
                match self.kept {
                    0 => Ok(()),
                    _ => write!(f, ", with {kept} kept for other groups"),
                }
            }
        }
    }
}

impl Error for Refusal<'_> {}

impl Member {
    /// Makes this process a member of the group. Call once per process, and again in a forked child
    /// with devices of its own.
    pub fn join(root: &Root, name: &str) -> Result<Self, GroupError> {
        for _ in 0..ATTEMPTS {
            let group = root.group(name)?;
            let path = group.upwards().map(|above| Station::enter(&above, name));
            match path.collect::<Result<Vec<_>, _>>() {
                Err(error) if error.is_missing() && root.group(name).is_err() => break,
                Err(error) => return Err(error),
                // A user may have removed the group's files meanwhile. Other processes would then
                // not see this process's charges.
                Ok(levels) if levels.iter().any(Station::is_unlinked) => {}
                Ok(levels) => {
                    let member = Self {
                        levels,
                        answered: AtomicU64::new(0),
                        root: root.path().into(),
                        root_trail: OnceBox::new(),
                        users_trail: OnceBox::new(),
                        is_unheard: false,
                    };
                    member.take_asked();
                    return Ok(member);
                }
            }
        }
        Err(root.missing(name))
    }

    /// Sets the function that asks the driver whether it has moved this process's memory to the
    /// host. Without it, whoever suspends this process is taken for one who falsifies its charge.
    pub fn confirm_suspensions_by(&mut self, is_suspended: fn() -> bool) {
        for station in &mut self.levels {
            station.slot.confirm_suspensions_by(is_suspended);
        }
    }

    /// Takes this process's suspended bytes back, at every level: see [`Ledger::take_back`]. May be
    /// repeated after an error.
    pub fn take_back(&self, is_due: &dyn Fn() -> bool) -> Result<(), Unmoved> {
        (self.levels.iter()).try_for_each(|station| station.slot.take_back(is_due))
    }

    /// Returns whether an actor suspends or resumes this process. The ledger of its own group has
    /// the lock.
    pub fn has_actor(&self) -> bool {
        self.leaf().slot.has_actor()
    }

    /// Notes in the histories that this process lives at this moment. Its use until now is then
    /// certain.
    pub fn note_life(&self) {
        for station in &self.levels {
            station.ledger.note_own_life(&station.slot);
        }
    }

    /// Returns this process's gate. The ledger of its own group has it.
    pub fn gate(&self) -> &Gate {
        self.leaf().slot.gate()
    }

    /// Writes why this process must not be suspended: see [`Slot::show_obstacles`]. The ledger of
    /// its own group has the word.
    pub fn show_obstacles(&self, bits: u64) {
        self.leaf().slot.show_obstacles(bits);
    }

    /// Returns the name of this process's own group.
    pub fn group(&self) -> &str {
        &self.leaf().name
    }

    fn leaf(&self) -> &Station {
        &self.levels[0]
    }

    /// Returns whether a ledger of this process's groups was removed by hand while the process was
    /// a member.
    pub fn is_orphaned(&self) -> bool {
        self.levels
            .iter()
            .any(|station| station.ledger.is_unlinked())
    }

    /// Returns an error if a file of a group is too damaged to charge. All requests are then
    /// refused.
    pub fn damage(&self) -> Option<GroupError> {
        self.levels.iter().find_map(Station::damage)
    }

    /// Returns the device with this identity, which has `capacity` bytes of memory.
    pub fn device(&self, id: DeviceId, capacity: u64) -> Result<MemberDevice<'_>, GroupError> {
        let first = self.leaf().ledger.device(id, capacity)?;
        let mut index = [first; MAX_DEPTH];
        for (index, station) in index.iter_mut().zip(&self.levels).skip(1) {
            *index = station.ledger.device(id, capacity)?;
        }
        let device = MemberDevice {
            member: self,
            id,
            capacity,
            index,
        };
        let is_new = self.levels.iter().any(|it| !it.ledger.lists_nested());
        if is_new && context_size::read(&self.root, &id).lists_nested {
            device.note_lists_nested();
        }
        Ok(device)
    }

    /// Returns whether requests wait, so that a new one must not go before them.
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        self.levels.iter().any(|level| level.ledger.has_waiters())
    }

    /// Returns whether contexts are charged. They are not if all groups of the process have
    /// `count_context=no`.
    pub fn counts_contexts(&self) -> bool {
        let counts = |station: &Station| station.limits.options().count_context;
        self.levels.iter().any(counts)
    }

    /// Returns a number that changes whenever the limits of the process's group or of a group above
    /// it change.
    pub(super) fn generations(&self) -> u64 {
        let all = self.levels.iter().map(|level| level.limits.generation());
        all.fold(0, u64::wrapping_add)
    }

    /// Returns a number that changes whenever a process asks for unused memory.
    #[inline]
    fn asked(&self) -> u64 {
        let all = self.levels.iter().map(|level| level.ledger.asked());
        all.fold(0, u64::wrapping_add)
    }

    /// Returns whether a process has asked for unused memory since [`Member::take_asked`].
    #[inline]
    pub fn is_asked(&self) -> bool {
        self.asked() != self.answered.load(Ordering::Relaxed)
    }

    /// Marks all requests for unused memory as answered by this process.
    pub fn take_asked(&self) {
        self.answered.store(self.asked(), Ordering::Relaxed);
    }

    /// Returns whether a program of this process from before `exec` is charged in its groups.
    pub fn has_former(&self) -> bool {
        self.levels.iter().any(|station| station.slot.has_former())
    }

    /// Returns whether this process is the first of its job to say at its end that it was refused.
    /// A lasting group has several jobs, which can only be told apart by time.
    pub fn is_first_to_explain(&self) -> bool {
        let lasts = Kind::of(self.group()) == Kind::Named;
        self.leaf().ledger.take_explanation(lasts)
    }

    /// Returns the ledger of the process's own group.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.leaf().ledger
    }
}

impl<'a> MemberDevice<'a> {
    /// Returns the member.
    pub const fn member(&self) -> &'a Member {
        self.member
    }

    /// Returns the identity of the device.
    pub const fn id(&self) -> DeviceId {
        self.id
    }

    /// Returns the device's memory in bytes, as the driver reports it.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the group at `level`: 0 is the process's own group.
    #[inline]
    pub(super) fn at(&self, level: usize) -> At<'_> {
        At {
            station: &self.member.levels[level],
            index: self.index[level],
            device: self,
        }
    }

    /// Returns the name of the group at `level`.
    pub(super) fn name(&self, level: usize) -> &'a str {
        &self.member.levels[level].name
    }

    fn leaf(&self) -> At<'_> {
        self.at(0)
    }

    /// Returns the process's own group, and then the groups above it upwards.
    #[inline]
    pub(super) fn levels(&self) -> impl DoubleEndedIterator<Item = At<'_>> + ExactSizeIterator {
        (0..self.member.levels.len()).map(|level| self.at(level))
    }

    /// Tries once to charge `bytes`, without reclaiming or waiting, below `high` and outside
    /// protected memory, and adds them to `idle`: they are not in use yet. Does not look at the GPU
    /// for `keep_free`.
    pub fn try_charge_ahead(&self, bytes: u64, idle: &dyn Idle) -> bool {
        !self.member.has_waiters() && self.try_sparing(Spared::High, bytes, idle)
    }

    /// Does the work of [`MemberDevice::try_charge_ahead`], and does not look at who waits.
    pub(super) fn try_sparing(&self, spared: Spared, bytes: u64, idle: &dyn Idle) -> bool {
        self.on_path(spared, |path| ledger::try_charge_ahead(path, bytes, idle))
    }

    /// Charges `bytes` that the driver has already allocated, even above the limits.
    pub fn charge_unchecked(&self, bytes: u64) {
        self.on_levels(|path| ledger::charge_unchecked(path, bytes));
    }

    /// Hands `bytes` that this process has charged over to a suspended process of the same group:
    /// its suspended bytes become its charge again. May be repeated after an error, if this process
    /// has charged for that process alone.
    pub fn hand_over(&self, bytes: u64, to: &Identity) -> Result<(), Unmoved> {
        self.on_levels(|path| ledger::hand_over(path, bytes, to))
    }

    /// Charges bytes that the slot of another process counts, too, before that slot is emptied. See
    /// [`ledger::charge_moved`].
    pub fn charge_moved(&self, bytes: u64) -> bool {
        self.on_levels(|path| ledger::charge_moved(path, bytes))
    }

    /// Updates the groups' peaks. Called when bytes that were charged in advance come into use.
    pub fn note_usage(&self) {
        self.on_levels(ledger::note_usage);
    }

    /// Uncharges `bytes`, after the driver has freed them.
    pub fn uncharge(&self, bytes: u64) {
        self.on_path(Spared::Nothing, |path| ledger::uncharge(path, bytes));
    }

    /// Uncharges `bytes` that were charged in advance and not used, and removes them from `idle` at
    /// the same moment.
    pub fn uncharge_idle(&self, bytes: u64, idle: &dyn Idle) {
        self.on_path(Spared::Nothing, |path| {
            ledger::uncharge_idle(path, bytes, idle);
        });
    }

    /// Returns whether this process has no undecided request. During a request, charged and idle
    /// bytes can disagree.
    pub fn is_decided(&self) -> bool {
        // The process's own group decides on a request last, after all groups above it.
        self.leaf().slot.is_decided(self.index[0])
    }

    /// Calls `run` with the levels of a charge: the process's own group, then the groups above it.
    #[inline]
    pub(super) fn on_path<T>(&self, spared: Spared, run: impl FnOnce(&[Level<'_>]) -> T) -> T {
        match self.member.levels.len() {
            1 => run(&self.path::<1>(spared)),
            2 => run(&self.path::<2>(spared)),
            deep => run(&self.whole_path(spared)[..deep]),
        }
    }

    /// Calls `run` with the levels of a rare operation that does not depend on free memory. Slower
    /// than [`Self::on_path`], and a quarter of its code.
    fn on_levels<T>(&self, run: impl FnOnce(&[Level<'_>]) -> T) -> T {
        run(&self.whole_path(Spared::Nothing)[..self.member.levels.len()])
    }

    #[inline(never)]
    pub(super) fn whole_path(&self, spared: Spared) -> [Level<'_>; MAX_DEPTH] {
        self.path(spared)
    }

    /// Returns the first `N` levels of a charge, from the process's own group upwards. Repeats the
    /// last level if needed.
    #[inline]
    fn path<const N: usize>(&self, spared: Spared) -> [Level<'_>; N] {
        let last = self.member.levels.len() - 1;
        std::array::from_fn(|at| self.at(at.min(last)).level(spared))
    }

    /// Calls `run` with each slot of this process: in its own group and in each group above it.
    pub(super) fn each_slot(&self, run: impl Fn(&Slot, DeviceIndex)) {
        self.levels().for_each(|at| run(&at.slot, at.index));
    }

    /// Returns the smallest limit of the process's groups, in bytes; `u64::MAX` without any limit.
    pub fn max(&self) -> u64 {
        self.levels().map(|at| at.max()).min().unwrap_or(u64::MAX)
    }

    /// Returns the bytes that the process's groups keep free on the device, and the level of the
    /// group that keeps the most; `None` if no group keeps any. Where no group says, the device's
    /// own rule holds, which [`MemberDevice::keep_by_default`] has set.
    pub fn keep_free(&self) -> Option<(u64, usize)> {
        let mut most = None;
        for (level, at) in self.levels().enumerate() {
            let [keep] = at.words([KEEP_FREE]);
            most = most.max(keep.checked_sub(1).map(|keep| (keep, level)));
        }
        let own = || self.leaf().remembered();
        let by_default = || Some((own()?.by_default.load(Ordering::Relaxed), 0));
        most.or_else(by_default).filter(|(keep, _)| *keep > 0)
    }

    /// Sets what requests of this process leave free on the device where none of its groups has a
    /// `keep_free`.
    pub fn keep_by_default(&self, bytes: u64) {
        let leaf = self.leaf();
        if let Some(own) = leaf.remembered() {
            own.by_default.store(bytes, Ordering::Relaxed);
            // Values of before this know nothing of it.
            own.stamp.store(0, Ordering::Release);
            leaf.renew();
        }
    }

    /// Returns the refusal of memory that the process has just taken, if its groups keep more free
    /// than the `free` bytes that are left on the device.
    pub fn below(&self, free: u64) -> Option<Refusal<'a>> {
        let (keep, level) = self.keep_free().filter(|(keep, _)| free < *keep)?;
        let at = self.at(level);
        Some(Refusal {
            group: self.name(level),
            charged: at.charged(),
            max: at.max(),
            kept: keep,
            left: free,
            cause: Cause::KeepFree,
            ..Refusal::default()
        })
    }

    /// Returns whether a group of the process uses no more than its `low` or `min`. Members then
    /// need not give memory back.
    pub fn is_low(&self) -> bool {
        self.levels().any(|at| {
            let [low, min] = at.words([LOW, MIN]);
            low.max(min) > 0 && at.charged() <= low.max(min)
        })
    }

    /// Uncharges the memory of dead processes in the groups of this process. Leaves memory that
    /// they have shared to requests, which charge it to its holders first.
    pub fn clean(&self, witness: &dyn Witness) {
        self.clean_where(witness, |_, _| true);
    }

    /// Does the same for readers of figures: mostly once a second in each group.
    pub fn clean_at_times(&self, witness: &dyn Witness) {
        self.clean_where(witness, Slot::should_clean);
    }

    /// Notes that NVML lists this process by its pid.
    pub fn note_listed(&self) {
        let is_new = self.levels().any(|at| !at.ledger.lists_nested());
        if is_new && process::pid_ns() != process::FIRST_PID_NS {
            self.note_lists_nested();
            let known = context_size::read(&self.member.root, &self.id);
            let lists_nested = true;
            context_size::write(
                &self.member.root,
                &self.id,
                Known {
                    lists_nested,
                    ..known
                },
            );
        }
    }

    fn note_lists_nested(&self) {
        self.levels().for_each(|at| at.ledger.note_lists_nested());
    }

    fn clean_where(&self, witness: &dyn Witness, is_due: impl Fn(&Slot, DeviceIndex) -> bool) {
        let trails = self.member;
        for at in self.levels().filter(|at| is_due(&at.slot, at.index)) {
            let witness = Traced {
                witness,
                trails,
                adopts: false,
            };
            at.slot.clean_others(at.index, &witness);
        }
    }

    /// Compares the driver's `figures` with the charges of the other members, at every level. What
    /// they hold beyond their charges leaves less room from then on. Returns whether that made room
    /// since the last look. Does not ask for figures if there are no other members.
    pub fn look_at_others(&self, figures: &dyn Fn() -> Option<Figures>) -> bool {
        let has_others = |at: At<'_>| at.max() != u64::MAX && at.ledger.has_others(at.slot.index());
        let found = self.levels().any(has_others).then(|| {
            let compared = self.levels().map(|at| Compared {
                ledger: &at.station.ledger,
                device: at.index,
                counts_contexts: at.limits.options().count_context,
            });
            ledger::uncovered(&compared.collect::<Vec<_>>(), figures)
        });
        let mut found = found.flatten().into_iter().flatten();
        let mut made_room = false;
        for at in self.levels() {
            let now = found.next().unwrap_or(0);
            let before = at.uncovered[at.index.get()].swap(now, Ordering::Relaxed);
            made_room |= before > now;
            if before < now {
                // A member whose charge was lowered restores it at its next call.
                at.ledger.ask_members();
                at.ledger.let_restore();
            }
        }
        made_room
    }

    /// Returns whether a group uses more of the device than its limit.
    pub fn is_above(&self) -> bool {
        self.levels()
            .any(|at| at.in_use().saturating_add(at.beyond()) > at.max())
    }

    /// Returns whether members held more than their charges when this process last looked.
    pub fn has_uncovered(&self) -> bool {
        self.levels().any(|at| at.beyond() > 0)
    }

    /// Restores this process's charge on the device where another process has lowered it.
    pub fn restore(&self) {
        self.on_levels(ledger::restore);
    }

    /// Returns the bytes that could still be charged on the device; `u64::MAX` without any limit.
    pub fn free(&self) -> u64 {
        self.tightest().map_or(u64::MAX, |(free, _)| free)
    }

    /// Returns the bytes charged in the group with the least free memory; without any limit, in the
    /// process's group.
    pub fn charged(&self) -> u64 {
        match self.tightest() {
            Some((_, charged)) => charged,
            None => self.leaf().charged(),
        }
    }

    /// Returns the free and the charged bytes of the group with the least free memory; `None`
    /// without any limit. Protected memory is not free.
    fn tightest(&self) -> Option<(u64, u64)> {
        let limited = self.levels().filter_map(|at| {
            let (max, charged) = (at.max(), at.charged());
            let taken = at.kept().saturating_add(at.beyond());
            let free = match at.ledger.damage() {
                Some(_) => 0,
                None => max.saturating_sub(taken).saturating_sub(charged),
            };
            (max != u64::MAX).then_some((free, charged))
        });
        limited.min()
    }

    /// Returns the smallest limit of the process's groups, in bytes, and the bytes in use in the
    /// group that sets the limit. Without any limit: `u64::MAX`, and the usage of the process's own
    /// group.
    pub fn limit_and_usage(&self) -> (u64, u64) {
        let limited = self.levels().map(|at| (at.max(), at));
        let smallest = limited.min_by_key(|(max, _)| *max);
        smallest.map_or((u64::MAX, 0), |(max, at)| (max, at.in_use()))
    }

    /// Returns this process's own figures for the device.
    pub fn own_usage(&self) -> DeviceUsage {
        self.leaf().slot.usage(self.index[0])
    }

    /// Returns whether this process has suspended bytes on the device, in its own group. Any member
    /// may have written them.
    #[inline]
    pub fn has_suspended(&self) -> bool {
        self.leaf().slot.has_suspended(self.index[0])
    }

    /// Returns this process's largest usage of the device since the last call, in bytes.
    pub fn restart_peak(&self) -> u64 {
        self.leaf().slot.restart_peak(self.index[0])
    }

    /// Publishes this process's total bytes in a category of memory, such as pools.
    pub fn publish(&self, category: Category, bytes: u64) {
        self.each_slot(|slot, index| slot.publish(index, category, bytes));
    }

    /// Publishes in the ledgers how many charged bytes of this process are not in use. When bytes
    /// come into use, call [`Self::note_use`] next.
    pub fn publish_idle(&self, bytes: u64) {
        self.each_slot(|slot, index| slot.publish_idle(index, bytes));
    }

    /// Records in the histories that `bytes` have come into use, which were charged before.
    pub fn note_use(&self, bytes: u64) {
        self.each_slot(|slot, index| slot.note_use(index, bytes));
    }

    /// Publishes in the ledgers how many charged bytes this process could give back at most.
    pub fn publish_reclaimable(&self, bytes: u64) {
        let bytes = if bytes > 0 && self.is_low() { 0 } else { bytes };
        self.each_slot(|slot, index| slot.publish_reclaimable(index, bytes));
    }

    /// Adds `bytes`, which may be negative, to the part of this process's charge that is marked as
    /// shareable with other processes.
    pub fn mark_shared(&self, bytes: i64) {
        self.each_slot(|slot, index| slot.mark_shared(index, bytes));
    }

    /// Turns `bytes` of this process's charge into orphans: freed shared memory that another member
    /// may still use. See [`MemberDevice::release_orphans`].
    pub fn orphan(&self, bytes: u64) {
        self.each_slot(|slot, index| slot.orphan(index, bytes));
    }

    /// Returns the orphaned bytes still charged to this process: the largest figure in the ledgers
    /// of its groups.
    pub fn orphaned(&self) -> u64 {
        let orphaned = self.levels().map(|at| at.slot.orphaned(at.index));
        orphaned.max().unwrap_or(0)
    }

    /// Returns the orphaned bytes of all processes: the largest figure in the ledgers of this
    /// process's groups.
    pub fn orphans(&self) -> u64 {
        let total = self.levels().map(|at| at.ledger.orphans(at.index).total());
        total.max().unwrap_or(0)
    }

    /// Uncharges orphans in the process's groups, except the bytes that `keep` returns. Returns
    /// whether any bytes were uncharged.
    pub fn release_orphans(&self, keep: impl Fn(u64, Vec<Holder>) -> u64) -> bool {
        let mut released = false;
        for at in self.levels() {
            let seen = at.ledger.orphans(at.index);
            if seen.total() > 0 {
                let keep = keep(seen.total(), at.living());
                released |= at.slot.release_orphans(at.index, &seen, keep) > 0;
            }
        }
        released
    }

    /// Returns the living processes of the topmost group in which this process is charged, even
    /// those without a charge.
    pub fn all_living(&self) -> Vec<Holder> {
        self.top().living()
    }

    /// The topmost group, in whose ledger members are asked.
    pub(super) fn top(&self) -> At<'_> {
        self.at(self.member.levels.len() - 1)
    }

    /// Counts a refusal in the process's group and in every group above it. Records it as an event
    /// in the group that refused. Returns that group's level, and the largest holders on record.
    /// `function` is the function that made the request.
    pub fn count_refusal(
        &self,
        function: &str,
        bytes: u64,
        refusal: &Refusal<'_>,
    ) -> (usize, [Option<Holding>; HOLDERS]) {
        let mut level = 0;
        for (number, at) in self.levels().enumerate() {
            at.slot.count_refusal(at.index);
            if *at.name == *refusal.group {
                level = number;
            }
        }
        let Refusal { charged, max, .. } = *refusal;
        let index = self.index[level];
        let refused = happening(EventKind::Refusal, index, bytes, charged, max);
        let outside = refusal.outside.copied().unwrap_or_default();
        let details = Details {
            function,
            cause: Some(refusal.cause),
            left: refusal.left,
            kept: refusal.kept,
            takes: refusal.bytes,
            outside: outside.bytes,
            holders: outside.holders,
            is_unheard: self.member.is_unheard,
            ..Details::default()
        };
        (level, self.member.record_with(level, &refused, details))
    }

    /// Records that this process was granted `bytes` shortly after the group at `level` had refused
    /// as much.
    pub fn record_recovered(&self, level: usize, bytes: u64, function: &str) {
        if level < self.member.levels.len() {
            let at = self.at(level);
            let kind = EventKind::Recovered;
            let granted = happening(kind, at.index, bytes, at.charged(), at.max());
            self.member.record(level, &granted, function);
        }
    }

    /// Returns the last measured size of a context in bytes, by any process; 0 where it is unknown.
    pub fn context_hint(&self) -> u64 {
        // A new job's ledger has none, and its user may not write files in the root.
        let mut told = self.levels().map(|at| at.ledger.context_hint(at.index));
        let known = told.find(|bytes| *bytes > 0);
        known.unwrap_or_else(|| context_size::read(&self.member.root, &self.id).bytes)
    }

    /// Publishes the size of a context for other processes.
    pub fn set_context_hint(&self, bytes: u64) {
        let known = context_size::read(&self.member.root, &self.id);
        if known.bytes != bytes {
            context_size::write(&self.member.root, &self.id, Known { bytes, ..known });
        }
        for at in self.levels() {
            at.ledger.set_context_hint(at.index, bytes);
        }
    }
}

impl Station {
    /// Joins `group`, which is the process's own group `leaf` or a group above it.
    fn enter(group: &Group, leaf: &str) -> Result<Self, GroupError> {
        let _hold = group.hold()?;
        // Check both files, because a file can be a mount of another file system.
        for file in [group.limits_path(), group.ledger_path()] {
            file_system::check(&file)?;
        }
        let limits = Limits::open(&group.limits_path())?;
        let ledger = Arc::new(Ledger::open(&group.ledger_path())?);
        let below = leaf.get(group.name().len() + 1..).unwrap_or_default();
        let slot = ledger.claim(&Identity::of_self(), below)?;
        slot.belong_to(job_key(group.name(), leaf));
        let station = Self {
            name: group.name().into(),
            limits,
            slot,
            protected: ProtectedGroups::of(group, leaf),
            uncovered: Default::default(),
            ledger,
            bounds: std::array::from_fn(|_| Remembered::default()),
        };
        // A user may have truncated a file after it was opened and before it was mapped.
        station.damage().map_or(Ok(station), Err)
    }

    /// Returns whether a mapped file is no longer at its path. Changes by other processes may then
    /// be invisible.
    fn is_unlinked(&self) -> bool {
        self.ledger.is_unlinked() || self.limits.is_unlinked()
    }

    fn damage(&self) -> Option<GroupError> {
        let ledger = self.ledger.damage().map(GroupError::Ledger);
        ledger.or_else(|| self.limits.damage().map(GroupError::Limits))
    }
}

/// One of the groups of a process, and a device on which the process is charged there.
#[derive(Copy, Clone)]
pub(super) struct At<'a> {
    pub station: &'a Station,
    /// The device's index in the group's ledger.
    pub index: DeviceIndex,
    device: &'a MemberDevice<'a>,
}

impl Deref for At<'_> {
    type Target = Station;

    #[inline]
    fn deref(&self) -> &Station {
        self.station
    }
}

impl<'a> At<'a> {
    /// Returns the bytes charged in the group.
    #[inline]
    pub(super) fn charged(&self) -> u64 {
        self.ledger.charged(self.index)
    }

    /// Returns the bytes that the group has charged and uses.
    pub(super) fn in_use(&self) -> u64 {
        self.ledger.usage(self.index).in_use()
    }

    /// Returns the living members of the group.
    fn living(&self) -> Vec<Holder> {
        let living = self.ledger.processes(&NoWitness);
        let living = living.into_iter().filter(|process| process.alive);
        let holder = |process: ProcessUsage| Holder {
            identity: process.identity,
            usage: process.on(self.index),
        };
        living.map(holder).collect()
    }

    #[inline]
    fn remembered(&self) -> Option<&'a Remembered> {
        self.station.bounds.get(self.index.get())
    }

    /// Returns this group as one level of a charge.
    #[inline]
    pub(super) fn level(&self, spared: Spared) -> Level<'a> {
        let station = self.station;
        let (max, protection) = match spared {
            Spared::Nothing => (u64::MAX, None),
            Spared::Unseen | Spared::High | Spared::Low | Spared::Min => {
                let max = match spared {
                    Spared::Unseen => self.at_once(),
                    _ => self.most(spared == Spared::High),
                };
                (max, station.protected.protection(&station.ledger))
            }
        };
        Level {
            slot: &station.slot,
            device: self.index,
            max,
            protection,
            keeps_low: matches!(spared, Spared::Unseen | Spared::High | Spared::Low),
            uncovered: (spared != Spared::Nothing).then(|| &station.uncovered[self.index.get()]),
        }
    }

    /// Returns the bytes that members held beyond their charges at the last look.
    pub(super) fn beyond(&self) -> u64 {
        self.uncovered[self.index.get()].load(Ordering::Relaxed)
    }

    /// Returns the bytes of the device that are kept for other groups: by `min`, or for jobs.
    pub(super) fn kept(&self) -> u64 {
        self.untaken()
            .saturating_add(self.slot.rooms_of_others(self.index))
    }

    /// Returns the bytes of the device that `min` keeps for other groups.
    pub(super) fn untaken(&self) -> u64 {
        let protected = self.protected.protection(&self.ledger);
        protected.map_or(0, |it| it.untaken(&self.ledger, self.index, false))
    }

    /// Returns the bytes that the child group with this key has charged above its protection;
    /// `u64::MAX` for a group without protection, and for this process's own.
    pub(super) fn unprotected(&self, child: u64) -> u64 {
        self.protected.above(&self.ledger, self.index, child)
    }

    /// Returns whether members other than this process have anything charged on the device, or
    /// anything is kept for their jobs.
    pub(super) fn others_hold(&self) -> bool {
        self.charged() > self.slot.charged(self.index) || self.slot.rooms_of_others(self.index) > 0
    }

    /// Returns the most bytes that a charge may reach, with or without those above `high`.
    #[inline(never)]
    fn most(&self, spares_high: bool) -> u64 {
        let [max, high] = self.words([MAX, HIGH]);
        if spares_high { max.min(high) } else { max }
    }

    /// Returns the bytes up to which a request is granted without further looks: `high`, or nothing
    /// in a group with a `keep_free`, whose requests look at the GPU.
    #[inline]
    fn at_once(&self) -> u64 {
        self.words([AT_ONCE])[0]
    }

    #[inline(never)]
    pub(super) fn max(&self) -> u64 {
        self.words([MAX])[0]
    }

    pub(super) fn bounds(&self) -> Bounds {
        let words = [MAX, HIGH, LOW, MIN, KEEP_FREE];
        let [max, high, low, min, keep_free] = self.words(words);
        Bounds {
            max,
            high,
            low,
            min,
            keep_free: keep_free.checked_sub(1),
        }
    }

    /// Returns the words at these places of [`Remembered`] for the device.
    #[inline]
    fn words<const N: usize>(&self, at: [usize; N]) -> [u64; N] {
        let known = self
            .remembered()
            .and_then(|it| it.get(self.limits.generation(), at));
        known.unwrap_or_else(|| self.renewed(at))
    }

    #[cold]
    #[inline(never)]
    fn renewed<const N: usize>(&self, at: [usize; N]) -> [u64; N] {
        let words = self.renew();
        at.map(|at| words[at])
    }

    #[inline(never)]
    fn renew(&self) -> [u64; WORDS] {
        let (bounds, generation) = self.limits.bounds_at(&self.device.id, self.device.capacity);
        let remembered = self.remembered();
        let by_default = remembered.map_or(0, |it| it.by_default.load(Ordering::Relaxed));
        let words = words(&bounds, by_default);
        if let Some(remembered) = remembered {
            remembered.set(&words, generation);
        }
        words
    }
}

/// The places of the words of [`Remembered`].
const AT_ONCE: usize = 0;
const MAX: usize = 1;
const HIGH: usize = 2;
const LOW: usize = 3;
const MIN: usize = 4;
/// `keep_free` plus 1; 0 if it is not set.
const KEEP_FREE: usize = 5;
const WORDS: usize = 6;

fn words(bounds: &Bounds, by_default: u64) -> [u64; WORDS] {
    let Bounds {
        max,
        high,
        low,
        min,
        keep_free,
    } = *bounds;
    let at_once = match keep_free.unwrap_or(by_default) {
        0 => max.min(high),
        _ => 0,
    };
    let keep_free = keep_free.map_or(0, |keep| keep.saturating_add(1));
    [at_once, max, high, low, min, keep_free]
}

/// The limits and the protection on a device, in bytes, for one version of the limits file. A
/// sequence lock protects the values.
#[derive(Default)]
struct Remembered {
    /// `2 * (generation + 1)`, plus 1 while a thread stores values; 0 before values were ever
    /// stored.
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
    /// What requests leave free where no group on the path has a `keep_free`; 0 but in the
    /// process's own group.
    by_default: AtomicU64,
}

impl Remembered {
    /// Returns the words at these places, if they are of this generation. Does not wait for a
    /// thread that is storing values.
    #[inline]
    fn get<const N: usize>(&self, generation: u64, at: [usize; N]) -> Option<[u64; N]> {
        let wanted = Self::stamp(generation);
        if self.stamp.load(Ordering::Acquire) != wanted {
            return None;
        }
        let words = at.map(|at| self.words[at].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.stamp.load(Ordering::Relaxed) == wanted).then_some(words)
    }

    fn set(&self, words: &[u64; WORDS], generation: u64) {
        let before = self.stamp.load(Ordering::Relaxed);
        let busy = before | 1;
        let mine = before & 1 == 0
            && self
                .stamp
                .compare_exchange(before, busy, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if mine {
            fence(Ordering::Release);
            for (word, value) in self.words.iter().zip(words) {
                word.store(*value, Ordering::Relaxed);
            }
            self.stamp.store(Self::stamp(generation), Ordering::Release);
        }
    }

    const fn stamp(generation: u64) -> u64 {
        generation.wrapping_add(1) << 1
    }
}
