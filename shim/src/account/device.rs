//! One GPU as this process uses it: the GPU's [`Book`], and the parts of the account that change
//! the book's figures.
//!
//! Operations across these parts: charging ([`Device::charge`]), also for a call of the driver
//! ([`take`]), giving bytes back ([`reclaim`]), measuring ([`measuring`]), shared memory
//! ([`inherited`]) and refusals ([`refusals`]).

mod inherited;
mod measuring;
mod others;
mod reclaim;
mod refusals;
mod take;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use gpulimit_base::device::DeviceId;
use gpulimit_base::proc;
use gpulimit_group::{Insistence, Member, Refusal, Undisturbed};
use gpulimit_ledger::{Pressure, Says};

use super::book::Book;
use super::charged::Charged;
use super::contexts::Contexts;
use super::driver_part::DriverPart;
use super::graphs::GraphMemory;
use super::kernel_memory::KernelMemory;
use super::pools::{CurrentPool, Pool};
use super::request::Request;
use super::spare::Spares;
use super::{Process, locks};
use crate::abi::{
    CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_UNKNOWN, Device as Ordinal, Out, SUCCESS, Status,
};
use crate::clock;
use crate::driver::figures::{self, ProcessList};
use crate::driver::{answer, cuda, devices, inside, suspension};
use crate::message;
use crate::refusal::Refused;
use measuring::Measuring;
use others::Others;
use reclaim::Reclaim;
use refusals::Unrecovered;

/// How often a thread of a suspended process looks whether its process is back.
const LOOK: Duration = Duration::from_millis(50);

/// One GPU of this process.
pub struct Device {
    process: &'static Process,
    /// The CUDA ordinal of the GPU.
    pub ordinal: Ordinal,
    pub id: DeviceId,
    /// A lower bound of the bytes that a CUDA context takes on this GPU.
    pub least_context: u64,
    /// The size of the GPU's memory in bytes, as CUDA reports it.
    pub capacity: u64,
    /// Whether the GPU has no memory of its own: its memory is the host's.
    pub shares_host: bool,
    pub book: Book,
    pub spares: Spares,
    pub driver_part: DriverPart,
    pub kernels: KernelMemory,
    pub graphs: GraphMemory,
    /// The contexts that this process has on this GPU.
    pub contexts: Contexts,
    /// The number of other processes' allocations on this GPU that this process has opened.
    opened: AtomicUsize,
    current_pool: CurrentPool,
    measuring: Measuring,
    /// Whether this process has made its first context and not asked for memory since, in a group
    /// whose requests wait.
    has_entered: AtomicBool,
    others: Others,
    /// Whether requests look at the GPU for a `keep_free`; true until the first look.
    pub(super) looks: AtomicBool,
    pub unrecovered: Unrecovered,
    /// NVML's index of the GPU plus 1; 0 while it is unknown.
    index: AtomicU32,
}

impl Device {
    /// Looks up the GPU with this CUDA ordinal and adds it to the group's ledger.
    pub fn open(
        process: &'static Process,
        ordinal: Ordinal,
        member: &'static Member,
    ) -> Result<Device, Status> {
        let capacity = devices::capacity(ordinal)?;
        let id = devices::id(ordinal).ok_or(CUDA_ERROR_UNKNOWN)?;
        Device::enter(process, ordinal, id, capacity, member)
    }

    fn enter(
        process: &'static Process,
        ordinal: Ordinal,
        id: DeviceId,
        capacity: u64,
        member: &'static Member,
    ) -> Result<Device, Status> {
        let device = member.device(id, capacity).map_err(|error| {
            message::line(format_args!(
                "this program cannot allocate memory on GPU {ordinal}: {error}"
            ));
            CUDA_ERROR_NOT_PERMITTED
        })?;
        if member.has_former() {
            if figures::await_former(&id) {
                device.note_listed();
            }
            device.clean(&ProcessList);
        }
        let kernels = KernelMemory::of(ordinal);
        let shares_host = devices::is_integrated(ordinal) && figures::lacks_memory(&id);
        if shares_host {
            devices::note_shared_host();
            let (total, _) = proc::host_memory().unwrap_or_default();
            device.keep_by_default(proc::host_reserve(total));
        }
        Ok(Device {
            process,
            ordinal,
            id,
            least_context: kernels.start(),
            capacity,
            shares_host,
            book: Book::new(ordinal, device),
            spares: Spares::default(),
            driver_part: DriverPart::default(),
            kernels,
            graphs: GraphMemory::default(),
            contexts: Contexts::default(),
            opened: AtomicUsize::new(0),
            current_pool: CurrentPool::default(),
            measuring: Measuring::default(),
            has_entered: AtomicBool::new(false),
            others: Others::default(),
            looks: AtomicBool::new(true),
            unrecovered: Unrecovered::default(),
            index: AtomicU32::new(0),
        })
    }

    /// Returns the bytes that the GPU itself has free, by NVML or else by CUDA; `None` if unknown.
    pub fn machine_free(&self) -> Option<u64> {
        if let Some(free) = self.host_free() {
            return Some(free);
        }
        let _undisturbed = Undisturbed::new();
        self.measuring.nvml.free(&self.id).or_else(|| {
            let (mut free, mut total) = (0, 0);
            let places = (Out::of(&mut free), Out::of(&mut total));
            let is_known = answer(cuda::cuCtxGetDevice) == Ok(self.ordinal)
                && cuda::cuMemGetInfo_v2(places.0, places.1) == SUCCESS;
            is_known.then_some(free as u64)
        })
    }

    /// Returns the bytes that the host's programs can still take, if the GPU shares the host's
    /// memory. CUDA's own figure leaves out what the kernel would take back from its page cache.
    #[inline]
    pub fn host_free(&self) -> Option<u64> {
        if self.shares_host {
            self.read_host_free()
        } else {
            None
        }
    }

    #[cold]
    #[inline(never)]
    fn read_host_free(&self) -> Option<u64> {
        let _undisturbed = Undisturbed::new();
        let (_, available) = proc::host_memory()?;
        Some(available)
    }

    /// Returns whether an allocation of `bytes` needs a charge. The driver itself refuses 0 bytes,
    /// and more bytes than the GPU has.
    #[inline]
    pub fn may_hold(&self, bytes: u64) -> bool {
        (1..=self.capacity).contains(&bytes)
    }

    pub fn process(&self) -> &'static Process {
        self.process
    }

    /// Charges the bytes of `request` to the group, and counts them as in use from the start.
    #[inline]
    pub fn charge(&self, request: Request<'_>) -> Result<Charged<'_>, Refused> {
        self.watch_inherited();
        let charge = |pressure: &dyn Pressure, insistence| {
            self.book.charge(request.bytes, pressure, insistence)
        };
        let answer = self.ask(&request, charge, || self.book.uncharge(request.bytes));
        self.note_asked();
        answer?;
        Ok(Charged::new(self, request.bytes, false))
    }

    /// Charges the bytes of `request` in advance: they count as idle until they come into use.
    pub fn charge_ahead(&self, request: Request<'_>) -> Result<Charged<'_>, Refused> {
        self.watch_inherited();
        let charged = self.charge_for_driver(request);
        self.note_asked();
        charged
    }

    /// Charges the bytes of `request` in advance like [`Device::charge_ahead`], for the driver's
    /// own memory.
    pub fn charge_for_driver(&self, request: Request<'_>) -> Result<Charged<'_>, Refused> {
        if self.has_entered.load(Ordering::Relaxed) {
            self.book.group.stay();
        }
        let charge = |pressure: &dyn Pressure, insistence| {
            self.book.charge_ahead(request.bytes, pressure, insistence)
        };
        self.ask(&request, charge, || self.book.uncharge_idle(request.bytes))?;
        Ok(Charged::new(self, request.bytes, true))
    }

    /// Waits until this process may make its first context, which takes `bytes`: see `enter` of
    /// the book's group. Does not wait on when another thread has made one.
    pub fn enter_group(&self, symbol: &'static str, bytes: u64) -> Result<Entered<'_>, Refused> {
        locks::assert_none_held();
        let is_first = || self.contexts.count() == 0;
        let request = Request::insisting(symbol, bytes).as_long_as(&is_first);
        let group = &self.book.group;
        let pressure = Reclaim::new(self, &request);
        let entered = group.enter(bytes, &pressure, request.insistence());
        if let (Err(refusal), true) = (entered, is_first()) {
            group.turn_back();
            return Err(self.tell(&request, &refusal));
        }
        Ok(Entered(self))
    }

    /// Lets the next process make its first context, once this one has asked for memory.
    #[inline]
    fn note_asked(&self) {
        if self.has_entered.load(Ordering::Relaxed) {
            self.leave_entrance();
        }
    }

    #[cold]
    fn leave_entrance(&self) {
        self.has_entered.store(false, Ordering::Relaxed);
        self.book.group.leave_entrance();
    }

    /// Charges a request. While this process is suspended, an insisting request waits, and others
    /// are refused.
    ///
    /// A request of a suspended process would take room that the process needs to come back. Its
    /// call of the driver would wait for that return, and the return for the room.
    #[inline]
    fn ask(
        &self,
        request: &Request<'_>,
        charge: impl Fn(&dyn Pressure, Insistence) -> Result<(), Refusal<'static>>,
        undo: impl Fn(),
    ) -> Result<(), Refused> {
        let insistence = match inside::is_nested() {
            true => Insistence::AtOnce,
            false => request.insistence(),
        };
        if insistence == Insistence::Full {
            locks::assert_none_held();
        }
        self.watch_others();
        if self.book.group.has_suspended() {
            self.take_back();
        }
        let pressure = Reclaim::new(self, request);
        loop {
            let answer = charge(&pressure, insistence);
            // Looks after the charge: whoever moves the charge of this process out has either moved
            // these bytes, too, or is seen here.
            if !self.is_away() {
                return answer.map_err(|refusal| self.tell(request, &refusal));
            }
            if answer.is_ok() {
                undo();
            }
            if insistence != Insistence::Full {
                return Err(Refused);
            }
            self.await_return();
        }
    }

    /// Returns whether this process is suspended, or is about to be, and the driver confirms that.
    /// Before its charge has moved to its suspended bytes, the gate is closed; other processes may
    /// have left their room then. A call inside of another one is not held back by the gate: a lock
    /// under way may wait for the outer call, and the driver's answer for the lock.
    #[inline]
    pub(super) fn is_away(&self) -> bool {
        let group = &self.book.group;
        let is_held = || group.member().gate().is_closed() && !inside::is_nested();
        (group.has_suspended() || is_held()) && suspension::says() != Says::Runs
    }

    /// Charges this process's suspended bytes if another tool has brought them back.
    #[cold]
    fn take_back(&self) {
        let _undisturbed = Undisturbed::new();
        let is_back = || suspension::says() == Says::Runs;
        if is_back() {
            // After an error, the request is refused, and restores the charge.
            let _ = self.book.group.member().take_back(&is_back);
        }
    }

    #[cold]
    fn await_return(&self) {
        while self.is_away() {
            clock::nap(LOOK);
        }
    }

    #[cold]
    fn tell(&self, request: &Request<'_>, refusal: &Refusal<'_>) -> Refused {
        match request.asker() {
            Some((symbol, asked)) if !request.is_needless() => self.refused(symbol, asked, refusal),
            _ => Refused,
        }
    }

    /// Returns the pool from which `cuMemAllocAsync` takes memory on this device; `None` if the
    /// program has destroyed that pool.
    #[inline]
    pub fn current_pool(&self) -> Result<Option<&'static Pool>, Status> {
        self.current_pool.get(&self.process.pools, self.ordinal)
    }

    /// Returns the current pool of this device if the driver was asked for it.
    #[inline(always)]
    pub fn known_pool(&self) -> Option<&'static Pool> {
        self.current_pool.known()
    }

    /// Forgets the current pool of this device; the next use asks the driver for it again.
    pub fn forget_current_pool(&self) {
        self.current_pool.set(None);
    }
}

/// A process that makes its first context. Dropped when the context is made, or has failed.
pub struct Entered<'a>(&'a Device);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let Device { book, contexts, .. } = self.0;
        match contexts.count() {
            0 => book.group.turn_back(),
            _ => {
                book.group.stay();
                self.0.has_entered.store(true, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
