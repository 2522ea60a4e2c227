//! One GPU as this process uses it: its share of the group, what it holds by category, and the charging of it.

use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use gpulimit_base::device::DeviceId;
use gpulimit_group::{Insistence, Member, MemberDevice, Refusal, Undisturbed};
use gpulimit_ledger::{Category, DeviceIndex, Idle, Pressure, Witness};
use parking_lot::Mutex;

use super::charged::Charged;
use super::contexts::Contexts;
use super::driver_share::{DriverShare, RESERVE};
use super::graphs::GraphMemory;
use super::kernel_memory::KernelMemory;
use super::pools::Pool;
use super::shared::{self, Heir};
use super::spare::{Spare, Spares};
use super::{BLOCK, Process, locks};
use crate::abi::{
    CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_UNKNOWN, Context, Device as Ordinal, MemPool, Opaque, Out,
    SUCCESS, Status,
};
use crate::clock::monotonic_ms;
use crate::driver::capture::relaxed;
use crate::driver::figures::{self, ProcessList};
use crate::driver::{cuda, devices};
use crate::refusal::{Gpu, Refused};
use crate::{message, refusal};

/// How old a measurement may grow before a call that takes a block renews it: milliseconds.
const MEASURE_AGE_MS: u64 = 100;

/// Looks at two figures that another thread's request may change between them, at most.
const SETTLING: u32 = 64;

/// Looks at the driver's figure until nothing moves under it.
const ATTEMPTS: u32 = 12;

/// Times that a figure is shown which other threads change at once.
const SHOWINGS: u32 = 1_000;

/// One GPU of this process.
pub struct Device {
    process: &'static Process,
    /// The CUDA ordinal: what the program calls it.
    pub ordinal: Ordinal,
    pub id: DeviceId,
    /// Bytes that any context here takes at least: known without making one.
    pub least_context: u64,
    /// What CUDA says that the GPU has, bytes.
    pub capacity: u64,
    member: &'static Member,
    share: MemberDevice,
    /// Bytes that have lost their name since the beginning.
    removed: AtomicU64,
    /// Calls that took or freed memory, or destroyed a context, and have ended: counted before each
    /// looks whether a measurement ran across it.
    ended_calls: AtomicU64,
    /// The last measurement erred on the safe side: the next call that may measures again, or the
    /// thread that destroyed a context meanwhile.
    inexact: AtomicBool,
    used: [AtomicU64; Category::COUNT],
    /// Of what is used as the driver's part, what small arrays lie in: shown as theirs.
    packed: AtomicU64,
    idle: AtomicI64,
    /// How often `idle` was changed.
    idle_changes: AtomicU64,
    /// Of the idle bytes, those that pools keep for their own reuse, those paid ahead for launches of graphs, and those that
    /// contexts have set aside.
    headroom: AtomicI64,
    pub spares: Spares,
    pub driver_share: DriverShare,
    pub kernels: KernelMemory,
    pub graphs: GraphMemory,
    /// Held while a context is made.
    pub making: Mutex<()>,
    /// Contexts that this process has here.
    pub contexts: Contexts,
    /// Handle of the primary context; 0 until it was retained.
    pub primary: AtomicUsize,
    /// How often the primary context is retained, as far as this process has been seen to.
    retained: AtomicUsize,
    /// Allocations of other processes here that this one has open.
    opened: AtomicUsize,
    /// The pool that `cuMemAllocAsync` takes from; null until asked for.
    current_pool: AtomicPtr<Pool>,
    nvml: figures::Handle,
    measured_at: AtomicU64,
    /// Contexts that are being destroyed right now.
    teardowns: AtomicU32,
}

/// The driver's figure for this process, and what of it has a name.
#[derive(Clone, Copy, Debug)]
pub struct Total {
    pub figure: u64,
    pub named: u64,
    /// A thread may be destroying a context: some of what is named may be gone, and the driver's
    /// part larger than this shows.
    pub at_least: bool,
}

impl Total {
    /// The driver's part, bytes.
    pub fn beyond_named(self) -> u64 {
        self.figure.saturating_sub(self.named)
    }
}

impl Device {
    /// Looks the device up and enters it into the ledger.
    pub fn open(
        process: &'static Process,
        ordinal: Ordinal,
        member: &'static Member,
    ) -> Result<Device, Status> {
        let mut total = 0usize;
        match cuda::cuDeviceTotalMem_v2(Out::of(&mut total), ordinal) {
            SUCCESS => {}
            failed => return Err(failed),
        }
        let id = devices::id(ordinal).ok_or(CUDA_ERROR_UNKNOWN)?;
        Device::enter(process, ordinal, id, total as u64, member)
    }

    fn enter(
        process: &'static Process,
        ordinal: Ordinal,
        id: DeviceId,
        capacity: u64,
        member: &'static Member,
    ) -> Result<Device, Status> {
        let share = member.device(id, capacity).map_err(|error| {
            message::line(format_args!(
                "no memory of GPU {ordinal} for this program: {error}"
            ));
            CUDA_ERROR_NOT_PERMITTED
        })?;
        let kernels = KernelMemory::of(ordinal);
        Ok(Device {
            process,
            ordinal,
            id,
            least_context: kernels.start(),
            capacity,
            member,
            share,
            used: Default::default(),
            removed: AtomicU64::new(0),
            ended_calls: AtomicU64::new(0),
            inexact: AtomicBool::new(false),
            packed: AtomicU64::new(0),
            idle: AtomicI64::new(0),
            idle_changes: AtomicU64::new(0),
            headroom: AtomicI64::new(0),
            spares: Spares::default(),
            driver_share: DriverShare::default(),
            kernels,
            graphs: GraphMemory::default(),
            making: Mutex::new(()),
            contexts: Contexts::default(),
            primary: AtomicUsize::new(0),
            retained: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            current_pool: AtomicPtr::new(null_mut()),
            nvml: figures::Handle::default(),
            measured_at: AtomicU64::new(0),
            teardowns: AtomicU32::new(0),
        })
    }

    /// Whether a request for `bytes` is one to charge. Of none, or of more than the GPU has, the driver takes care by itself, each function
    /// with its own code.
    #[inline]
    pub fn may_hold(&self, bytes: u64) -> bool {
        (1..=self.capacity).contains(&bytes)
    }

    pub fn process(&self) -> &'static Process {
        self.process
    }

    /// The smallest limit on the group's path, bytes; `u64::MAX` for none.
    pub fn max(&self) -> u64 {
        self.member.max(&self.share)
    }

    /// What this process could still get, bytes: the group's free memory and what we hold charged but unused, less what stays so: the
    /// driver's reserve, the pools' headroom and what contexts have set aside.
    pub fn free(&self) -> u64 {
        for _ in 0..SETTLING {
            if let Some(free) = self.settled_free() {
                return free;
            }
            std::thread::yield_now();
        }
        self.seen_free()
    }

    /// As [`Device::free`]; `None` while a request of another thread changes what is charged and what is idle.
    fn settled_free(&self) -> Option<u64> {
        // Such a request is undecided meanwhile, and leaves another number of changes.
        let changes = self.idle_changes.load(Ordering::Acquire);
        let before = self.member.is_decided(&self.share);
        let free = self.seen_free();
        let settled = before
            && self.member.is_decided(&self.share)
            && self.idle_changes.load(Ordering::Acquire) == changes;
        settled.then_some(free)
    }

    fn seen_free(&self) -> u64 {
        let idle = self.idle().saturating_sub(self.stays_idle());
        self.member.free(&self.share).saturating_add(idle)
    }

    /// Of the idle bytes, those that nothing else can have: the driver's reserve, the pools' headroom and what contexts have set aside.
    fn stays_idle(&self) -> u64 {
        RESERVE + u64::try_from(self.headroom.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Charges `bytes`; on refusal takes back what costs nothing, reaps the dead, then says so.
    #[inline]
    pub fn charge(&self, symbol: &'static str, bytes: u64) -> Result<Charged<'_>, Refused> {
        self.charge_loudly(symbol, bytes)?;
        Ok(Charged::new(self, bytes))
    }

    fn charge_loudly(&self, symbol: &'static str, bytes: u64) -> Result<(), Refused> {
        self.charge_with(bytes, true, Insistence::Full)
            .map_err(|refusal| self.refused(symbol, bytes, &refusal))
    }

    /// As [`Device::charge`], but says nothing: the caller has another way.
    pub fn charge_quietly(&self, bytes: u64) -> bool {
        self.charge_with(bytes, true, Insistence::None).is_ok()
    }

    /// As [`Device::charge`], for what is not in use yet.
    pub fn charge_ahead(&self, symbol: &'static str, bytes: u64) -> Result<(), Refused> {
        self.charge_ahead_of(symbol, bytes, bytes)
    }

    /// As [`Device::charge_ahead`], for what is left to pay of the `asked` bytes.
    pub fn charge_ahead_of(
        &self,
        symbol: &'static str,
        bytes: u64,
        asked: u64,
    ) -> Result<(), Refused> {
        self.charge_idle(bytes, &Reclaim::new(self, true), Insistence::Full)
            .map_err(|refusal| self.refused(symbol, asked, &refusal))
    }

    /// As [`Device::charge_ahead`], for a call that another thread may make needless: no longer than it `is_needed`. False when it is not any more.
    pub fn charge_ahead_while(
        &self,
        symbol: &'static str,
        bytes: u64,
        is_needed: &dyn Fn() -> bool,
    ) -> Result<bool, Refused> {
        let reclaim = Reclaim {
            is_needed: Some(is_needed),
            ..Reclaim::new(self, true)
        };
        match self.charge_idle(bytes, &reclaim, Insistence::Full) {
            Ok(()) => Ok(true),
            Err(refusal) if is_needed() => Err(self.refused(symbol, bytes, &refusal)),
            Err(_) => Ok(false),
        }
    }

    /// As [`Device::charge_ahead`], but says nothing.
    pub fn charge_ahead_quietly(&self, bytes: u64) -> Result<(), Refused> {
        self.charge_idle(bytes, &Reclaim::new(self, true), Insistence::None)
            .map_err(|_| Refused)
    }

    /// As [`Device::charge_ahead_quietly`], but leaves what pools and graphs hold unused where it is.
    pub fn charge_ahead_without_trim(&self, bytes: u64) -> Result<(), Refused> {
        self.charge_idle(bytes, &Reclaim::new(self, false), Insistence::None)
            .map_err(|_| Refused)
    }

    fn charge_idle(
        &self,
        bytes: u64,
        reclaim: &Reclaim<'_>,
        insistence: Insistence,
    ) -> Result<(), Refusal<'static>> {
        if insistence == Insistence::Full {
            locks::assert_none_held();
        }
        let idle = Ahead(self, bytes);
        self.member
            .charge_ahead(&self.share, bytes, reclaim, insistence, &idle)?;
        self.show_reclaimable();
        Ok(())
    }

    fn charge_with(
        &self,
        bytes: u64,
        trim: bool,
        insistence: Insistence,
    ) -> Result<(), Refusal<'static>> {
        if insistence == Insistence::Full {
            locks::assert_none_held();
        }
        let reclaim = Reclaim::new(self, trim);
        self.member.charge(&self.share, bytes, &reclaim, insistence)
    }

    fn refused(&self, symbol: &'static str, bytes: u64, refusal: &Refusal<'_>) -> Refused {
        let _undisturbed = Undisturbed::new();
        self.member.count_refusal(&self.share, bytes, refusal);
        let gpu = Gpu {
            ordinal: self.ordinal,
            id: &self.id,
            context: &|| self.context_hint().max(self.least_context),
        };
        let (member, share) = (self.member, &self.share);
        refusal::report(gpu, member, share, &ProcessList, symbol, bytes, refusal);
        Refused
    }

    /// One attempt, no reclaim, no waiting.
    pub fn try_charge(&self, bytes: u64) -> bool {
        self.member.try_charge(&self.share, bytes)
    }

    /// As [`Device::try_charge`], for what is not in use yet.
    pub fn try_charge_ahead(&self, bytes: u64) -> bool {
        let charged = self
            .member
            .try_charge_ahead(&self.share, bytes, &Ahead(self, bytes));
        if charged {
            self.show_reclaimable();
        }
        charged
    }

    /// Charges memory that the driver has taken already, limit or not: growth stops until usage is below it again.
    pub fn charge_over(&self, bytes: u64) {
        self.member.charge_unchecked(&self.share, bytes);
    }

    /// Bytes that were charged ahead have come into use.
    pub fn note_usage(&self) {
        self.member.note_usage(&self.share);
    }

    /// Gives `bytes` back, after the driver has freed them.
    pub fn uncharge(&self, bytes: u64) {
        if bytes > 0 {
            self.member.uncharge(&self.share, bytes);
        }
    }

    /// Says a refusal that was decided outside of [`Device::charge`].
    pub fn refuse(&self, symbol: &'static str, bytes: u64) -> Refused {
        let verdict = Refusal {
            group: self.member.group(),
            charged: self.member.charged(&self.share),
            max: self.max(),
        };
        self.refused(symbol, bytes, &verdict)
    }

    /// `bytes` that are charged are now in use as `category`.
    pub fn add(&self, category: Category, bytes: u64) {
        self.shift(category, |used| used.wrapping_add(bytes));
    }

    /// `bytes` are no longer in use as `category`; they stay charged until [`Device::uncharge`].
    pub fn remove(&self, category: Category, bytes: u64) {
        self.shift(category, |used| used.saturating_sub(bytes));
        self.removed.fetch_add(bytes, Ordering::AcqRel);
    }

    fn shift(&self, category: Category, change: impl Fn(u64) -> u64) {
        let Some(used) = self.used.get(category as usize) else {
            return;
        };
        let _ = used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            Some(change(used))
        });
        self.show(category);
    }

    fn show(&self, category: Category) {
        publish(
            || self.shown(category),
            |bytes| self.member.publish(&self.share, category, bytes),
        );
    }

    fn shown(&self, category: Category) -> u64 {
        let used = |category: Category| match self.used.get(category as usize) {
            Some(used) => used.load(Ordering::Acquire),
            None => 0,
        };
        let packed = self.packed.load(Ordering::Acquire);
        match category {
            Category::Arrays => used(category) + packed,
            Category::Driver => used(category).saturating_sub(packed),
            _ => used(category),
        }
    }

    /// `bytes` are charged, but not in use.
    pub fn add_idle(&self, bytes: u64) {
        self.adjust_idle(bytes as i64);
    }

    /// `bytes` of the idle ones came into use.
    pub fn remove_idle(&self, bytes: u64) {
        self.adjust_idle((bytes as i64).wrapping_neg());
    }

    /// `bytes` of the idle ones are given back.
    pub fn uncharge_idle(&self, bytes: u64) {
        if bytes > 0 {
            self.member
                .uncharge_idle(&self.share, bytes, &Ahead(self, bytes));
            self.show_reclaimable();
        }
    }

    /// Changes the idle bytes by a signed amount.
    pub fn adjust_idle(&self, change: i64) {
        if change != 0 {
            self.count_idle(change);
            self.show_reclaimable();
        }
    }

    fn count_idle(&self, change: i64) {
        self.idle_changes.fetch_add(1, Ordering::AcqRel);
        self.idle.fetch_add(change, Ordering::AcqRel);
        publish(
            || self.idle(),
            |bytes| self.member.publish_idle(&self.share, bytes),
        );
    }

    /// Shows how much others may ask for. Not inside of a charge: it takes a look at the whole group.
    fn show_reclaimable(&self) {
        publish(
            || self.reclaimable(self.idle()),
            |bytes| self.member.publish_reclaimable(&self.share, bytes),
        );
    }

    /// What this process could give back at most, with so many idle bytes.
    fn reclaimable(&self, idle: u64) -> u64 {
        // Of pools and graphs, which may hold more than is in use, only the driver knows how much that is.
        let reserves = self.shown(Category::Pools) + self.shown(Category::Graphs);
        idle.saturating_sub(self.stays_idle()) + reserves
    }

    /// `bytes` that are charged may be held by other processes, too.
    pub fn share(&self, bytes: u64) {
        self.member.share(&self.share, bytes as i64);
    }

    /// Bytes of the GPU that are in no process's figure; `None` where the driver does not tell.
    pub fn hidden(&self) -> Option<u64> {
        shared::hidden(&self.share)
    }

    /// One more allocation of another process here is open.
    pub fn opened(&self) {
        self.opened.fetch_add(1, Ordering::AcqRel);
    }

    /// One less.
    pub fn closed(&self) {
        self.opened.fetch_sub(1, Ordering::AcqRel);
    }

    /// The primary context has been retained once more.
    pub fn retained(&self) {
        self.retained.fetch_add(1, Ordering::AcqRel);
    }

    /// The primary context has been released once, and perhaps `has_ended` with that.
    pub fn released(&self, has_ended: bool) {
        let left = |count: usize| {
            if has_ended {
                0
            } else {
                count.saturating_sub(1)
            }
        };
        let _ = self
            .retained
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                Some(left(count))
            });
    }

    /// Whether the primary context may end when it is released next.
    pub fn is_last_release(&self) -> bool {
        self.retained.load(Ordering::Acquire) <= 1
    }

    /// Whether memory of others may come to this process without a call of its own.
    #[inline]
    fn may_inherit(&self) -> bool {
        self.process.vmm.imports() > 0 || self.opened.load(Ordering::Relaxed) > 0
    }

    /// This process has no part any more in memory of `size` that others may hold and of which it has charged `bytes`: all or nothing. They stay
    /// charged as long as anybody may have it. [`Device::hidden`] was `before` that.
    pub fn part_with(&self, bytes: u64, size: u64, before: Option<u64>) {
        self.member
            .share(&self.share, (bytes as i64).wrapping_neg());
        self.member.orphan(&self.share, bytes);
        // An import that was charged elsewhere, or without its size being known; or another one, of the same memory.
        if bytes == 0 || self.may_inherit() {
            self.driver_share.measure(self);
        }
        shared::settle_after(self.member, &self.share, size, before);
    }

    /// Gives back what is charged in the group for memory that has left its process and that nobody needs. True when there was some.
    pub fn settle_orphans(&self) -> bool {
        shared::settle(self.member, &self.share)
    }

    /// The driver shows `grown` bytes more for this process than it knew: those of them that are memory of others which has come to it are
    /// charged as such, and returned.
    pub fn take_over(&self, grown: u64) -> u64 {
        let orphans = || self.member.orphans(&self.share);
        let charge = |category| {
            move |bytes| {
                // Whoever had it before has not given its charge back.
                self.charge_over(bytes);
                self.share(bytes);
                self.add(category, bytes);
            }
        };
        let Process { vmm, openings, .. } = self.process;
        let mut taken = vmm.take_over(self.ordinal, grown, orphans, charge(Category::Vmm));
        if self.opened.load(Ordering::Acquire) > 0 {
            let left = grown - taken;
            taken += openings.take_over(self.ordinal, left, charge(Category::Linear));
        }
        if taken > 0 || self.member.orphaned(&self.share) > 0 {
            self.settle_orphans();
        }
        taken
    }

    /// Changes the idle bytes that nothing else can have by a signed amount.
    pub fn adjust_headroom(&self, change: i64) {
        if change != 0 {
            self.headroom.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// Charged and unused bytes. Two threads may pass through a state below zero (used before it was entered): shown as zero.
    fn idle(&self) -> u64 {
        u64::try_from(self.idle.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// The driver's part went from `before` to `after` bytes.
    pub fn set_driver(&self, before: u64, after: u64) {
        if before != after {
            self.shift(Category::Driver, |_| after);
        }
    }

    /// So much of the driver's part is what small arrays lie in.
    pub fn set_packed(&self, bytes: u64) {
        if self.packed.swap(bytes, Ordering::AcqRel) != bytes {
            self.show(Category::Arrays);
            self.show(Category::Driver);
        }
    }

    /// Bytes of a context here, as last measured by any process of the group; 0 when nobody has.
    pub fn context_hint(&self) -> u64 {
        self.member.context_hint(&self.share)
    }

    pub fn set_context_hint(&self, bytes: u64) {
        self.member.set_context_hint(&self.share, bytes);
    }

    /// Whether the group counts the memory of contexts.
    pub fn counts_contexts(&self) -> bool {
        self.member.counts_contexts()
    }

    /// Of the `used` bytes of the driver's part, what the group does not count: the contexts, where it does not want them counted.
    pub fn uncounted(&self, used: u64) -> u64 {
        if self.counts_contexts() {
            return 0;
        }
        match (self.contexts.count() as u64, self.context_hint()) {
            (0, _) => 0,
            // The first of the machine, not measured yet.
            (_, 0) => used,
            (contexts, each) => used.min(contexts.saturating_mul(each)),
        }
    }

    /// What the group could still take, bytes.
    pub fn group_free(&self) -> u64 {
        self.member.free(&self.share)
    }

    /// Whether other processes have charged something here.
    pub fn shared(&self) -> bool {
        let own = self
            .used
            .iter()
            .map(|used| used.load(Ordering::Relaxed))
            .sum::<u64>()
            + self.idle();
        self.member.charged(&self.share) > own
    }

    /// Another member has asked for what is held unused. Not as long as the group uses no more than is to be left to it.
    pub fn give_back_unused(&self) {
        if !self.member.is_low(&self.share) {
            self.reclaim(true);
        }
    }

    /// Gives back what costs nothing; true when something came back.
    fn reclaim(&self, trim: bool) -> bool {
        let orphans = self.settle_orphans();
        let spares = self.release_spares();
        let pools = self.process.pools.reclaim(self, trim);
        let graphs = self.graphs.reclaim(self, trim);
        orphans || spares || pools || graphs
    }

    /// Waits until the group has room for `bytes`, if it is one where requests wait; else refuses them. The room is not kept: others may be
    /// faster. `asked` is what the program wants.
    pub fn await_room(&self, symbol: &'static str, bytes: u64, asked: u64) -> Result<(), Refused> {
        self.charge_ahead_of(symbol, bytes, asked)?;
        self.uncharge_idle(bytes);
        Ok(())
    }

    /// A block is charged and not needed: keeps it as a spare, or gives it back.
    pub fn keep_block(&self) {
        if self.spares.own().keep() {
            self.add_idle(BLOCK);
        } else {
            self.uncharge(BLOCK);
        }
    }

    /// Gives the spare blocks back. True when there was one.
    pub fn release_spares(&self) -> bool {
        let taken = self.spares.all().filter(|spare| spare.take());
        let released = taken.map(Spare::consume).count() as u64;
        if released > 0 {
            self.uncharge_idle(released * BLOCK);
        }
        released > 0
    }

    /// The pool that `cuMemAllocAsync` takes from on this device; `None` for one that is destroyed.
    #[inline]
    pub fn current_pool(&self) -> Result<Option<&'static Pool>, Status> {
        match self.process.pools.at(&self.current_pool) {
            Some(pool) => Ok(Some(pool)),
            None => self.ask_current_pool(),
        }
    }

    #[cold]
    fn ask_current_pool(&self) -> Result<Option<&'static Pool>, Status> {
        let mut handle: MemPool = 0;
        match relaxed(|| cuda::cuDeviceGetMemPool(Out::of(&mut handle), self.ordinal)) {
            SUCCESS => {}
            failed => return Err(failed),
        }
        let pools = &self.process.pools;
        if pools.is_destroyed(handle) {
            return Ok(None);
        }
        let pool = pools.known_or(handle, || (self.ordinal, true));
        self.set_current_pool(pool);
        Ok(Some(pool))
    }

    fn set_current_pool(&self, pool: &'static Pool) {
        self.current_pool
            .store(std::ptr::from_ref(pool).cast_mut(), Ordering::Release);
    }

    /// Forgets which pool is current: it is asked for again.
    pub fn forget_current_pool(&self) {
        self.current_pool.store(null_mut(), Ordering::Release);
    }

    /// After memory was taken or freed: measures again when a measurement ran across it (and may have counted it to the driver's part),
    /// when memory of others may have come to this process meanwhile, or when the last one is old.
    pub fn renew(&self, mark: u64) {
        self.ended_calls.fetch_add(1, Ordering::SeqCst);
        if self.is_due(mark) {
            self.driver_share.measure(self);
        }
    }

    #[inline]
    fn is_due(&self, mark: u64) -> bool {
        self.process.mark() != mark || self.is_inexact() || self.may_inherit() || self.is_old()
    }

    fn is_old(&self) -> bool {
        let age = monotonic_ms().saturating_sub(self.measured_at.load(Ordering::Relaxed));
        age > MEASURE_AGE_MS
    }

    /// Runs a call that may destroy a context, with all that was in it; `after` tells the account.
    /// A measurement in between may see memory that is gone and still named: it shows only what
    /// the driver's part is at least, and is made again here.
    pub fn tear_down(&self, call: impl FnOnce() -> Status, after: impl FnOnce(Status)) -> Status {
        self.teardowns.fetch_add(1, Ordering::AcqRel);
        let teardown = Teardown(self);
        let status = call();
        after(status);
        drop(teardown);
        self.ended_calls.fetch_add(1, Ordering::SeqCst);
        if self.is_inexact() {
            self.driver_share.measure(self);
        }
        status
    }

    /// Whether the last measurement took more for the driver's part than it is, as other threads took and freed all the time.
    pub fn is_inexact(&self) -> bool {
        self.inexact.load(Ordering::SeqCst)
    }

    /// The driver's figure for this process beside the named part; `None` when there is no such figure (no NVML, or a PID namespace that
    /// it does not know).
    ///
    /// Named memory is entered after the driver has given it and taken out before it frees it, so a figure that another thread's call falls
    /// into is too large, never too small; that call then measures again ([`Device::renew`]). Pools shrink inside synchronise calls, and graph
    /// memory grows inside launches: they are looked at on both sides of the figure.
    pub fn measure_total(&self) -> Option<Total> {
        let look = || {
            self.process.pools.refresh_on(self);
            if self.contexts.count() > 0 {
                self.graphs.refresh(self);
            }
        };
        let total = self.total(look, || self.nvml.own_bytes(&self.id))?;
        let least = total.named.saturating_add(self.least_of_driver());
        Some(Total {
            figure: total.figure.max(least),
            ..total
        })
    }

    /// Code has been loaded in a context here, with at least so many bytes of variables.
    pub fn note_variables(&'static self, code: Opaque, context: Context, bytes: u64) {
        let variables = &self.process.variables;
        variables.insert(code, context, self.ordinal, bytes);
        // What is smaller lies in the reserve.
        if bytes >= BLOCK && self.driver_share.measure(self).is_none() {
            variables.note_assumed(code, context);
            self.driver_share.assume(self, bytes as i64);
        }
    }

    /// Code has been unloaded.
    pub fn forget_variables(&self, code: Opaque) {
        let assumed = self.process.variables.remove(code, self.ordinal);
        if assumed > 0 {
            self.driver_share
                .assume(self, (assumed as i64).wrapping_neg());
        }
    }

    /// Bytes of the driver's part that are there for certain, whatever a library that says it is NVML tells: the local memory that
    /// contexts have from the start, and variables of code.
    fn least_of_driver(&self) -> u64 {
        let contexts = self.contexts.all();
        let memory = contexts
            .iter()
            .map(|context| self.kernels.context(*context).backing())
            // Growth is entered, and what has been lowered left out, only after it has been measured.
            .map(|bytes| bytes.min(self.kernels.start()));
        let variables = self.process.variables.on(self.ordinal);
        memory.fold(variables, u64::saturating_add)
    }

    /// As [`Device::measure_total`]: `look` at what changes by itself, and the driver's figure by `own_bytes`.
    fn total(&self, look: impl Fn(), own_bytes: impl Fn() -> Option<u64>) -> Option<Total> {
        let removed = || self.removed.load(Ordering::Acquire);
        let ended_calls = || self.ended_calls.load(Ordering::SeqCst);
        for attempt in 1..=ATTEMPTS {
            let is_last = attempt == ATTEMPTS;
            if is_last {
                // A call that ends from here on measures again, whatever comes of this attempt.
                self.inexact.store(true, Ordering::SeqCst);
            }
            look();
            let ended_before = ended_calls();
            // Before the sum, and again after the other one: what has gone since is counted, and what has gone before is in no sum.
            let removed_before = removed();
            let before = self.named();
            let figure = own_bytes()?;
            if figure == 0 && self.contexts.count() > 0 {
                return None;
            }
            let at_least = self.teardowns.load(Ordering::Acquire) > 0;
            self.process.measurements.fetch_add(1, Ordering::SeqCst);
            look();
            let after = self.named();
            let gone = removed().wrapping_sub(removed_before);
            if at_least {
                self.inexact.store(true, Ordering::SeqCst);
            }
            // A call may have freed after the figure was read, and have ended before it could see
            // this measurement: each of the two counts first and looks at the other's count then.
            if after == before && gone == 0 && ended_calls() == ended_before {
                self.measured_at.store(monotonic_ms(), Ordering::Relaxed);
                self.inexact.store(at_least, Ordering::SeqCst);
            } else if !is_last {
                continue;
            }
            // Where other threads take and free all the time, the least that was named meanwhile errs on the safe side: the sums may be
            // equal because one thread has taken what another one freed.
            let named = before.saturating_sub(gone).min(after);
            return Some(Total {
                figure,
                named,
                at_least,
            });
        }
        None
    }

    /// Bytes in use that the driver shows for this process, without its own part.
    fn named(&self) -> u64 {
        Category::ALL
            .iter()
            .filter(|category| !matches!(category, Category::Managed | Category::Driver))
            .filter_map(|category| self.used.get(*category as usize))
            .map(|used| used.load(Ordering::Acquire))
            .sum()
    }
}

/// Shows a figure in the ledger. Threads may publish in another order than they changed it: the last one to look puts it right.
///
/// Where they change it all the time, their next change puts right what is shown.
fn publish(figure: impl Fn() -> u64, show: impl Fn(u64)) {
    for _ in 0..SHOWINGS {
        let bytes = figure();
        show(bytes);
        if figure() == bytes {
            return;
        }
    }
}

/// Ends with the call that destroys a context, also where that panics: as long as it lives nothing
/// is measured exactly.
struct Teardown<'a>(&'a Device);

impl Drop for Teardown<'_> {
    fn drop(&mut self) {
        self.0.teardowns.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Bytes that are charged ahead: idle from the moment in which they are granted to that in which they are given back.
struct Ahead<'a>(&'a Device, u64);

impl Idle for Ahead<'_> {
    fn add(&self) {
        self.0.count_idle(self.1 as i64);
    }

    fn remove(&self) {
        self.0.count_idle((self.1 as i64).wrapping_neg());
    }
}

/// What this process can do about a full group.
struct Reclaim<'a> {
    device: &'a Device,
    trim: bool,
    heir: Heir,
    is_needed: Option<&'a dyn Fn() -> bool>,
}

impl<'a> Reclaim<'a> {
    fn new(device: &'a Device, trim: bool) -> Self {
        Reclaim {
            device,
            trim,
            heir: Heir(device.member),
            is_needed: None,
        }
    }
}

impl Pressure for Reclaim<'_> {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        self.device.reclaim(self.trim)
    }

    fn witness(&self) -> &dyn Witness {
        &self.heir
    }

    fn is_needless(&self) -> bool {
        self.is_needed.is_some_and(|is_needed| !is_needed())
    }

    fn tell(&self, line: std::fmt::Arguments<'_>) {
        message::line(line);
    }
}

#[cfg(test)]
mod tests;
