//! The account of this process: the memory that the process holds on each GPU, and the bytes that
//! it has charged.
//!
//! Invariant: the process has always charged at least the bytes that the driver has given to it. So
//! a charge precedes the driver's allocation, and an uncharge follows the driver's free. *Idle*
//! bytes are charged and unused.

pub mod arrays;
pub mod blocks;
pub mod book;
pub mod captures;
pub mod charged;
pub mod contexts;
mod current;
pub mod device;
pub mod device_runtime;
pub mod driver_part;
pub mod graphs;
pub mod green;
pub mod handles;
pub mod kernel_memory;
pub mod known_images;
pub mod launched;
pub mod libraries;
pub mod limited;
pub mod locks;
pub mod managed;
pub mod maps;
pub mod obstacles;
mod ongoing;
pub mod openings;
pub mod peaks;
pub mod pools;
pub mod registration;
pub mod request;
pub mod reserve;
mod rounding;
#[cfg(test)]
mod scratch;
pub mod shared;
pub mod spare;
pub mod tiling;
pub mod variables;
pub mod vmm;
mod waiting;

use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use gpulimit_base::order;
use gpulimit_base::units::gib;
use gpulimit_group::{Member, Undisturbed};
use gpulimit_ledger::Gate;
use once_cell::race::{OnceBox, OnceRef};
use parking_lot::Mutex;

use crate::abi::{
    ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_PERMITTED,
    CUDA_ERROR_UNKNOWN, Context, Device as Ordinal, Opaque, Status, Stream,
};
use crate::clock;
use crate::driver::dlsym::real_dlsym;
use crate::driver::gate::{self, Door};
use crate::driver::{answer, cuda, devices, inside, suspension};
use crate::membership::{self, Failed};
use crate::message;
use crate::refusal::Refused;
use arrays::Arrays;
use blocks::Blocks;
use captures::Captures;
use device::Device;
use graphs::bodies::Bodies;
use graphs::execs::Execs;
use green::Greens;
use handles::{Handles, Kind};
use launched::Launched;
use libraries::Libraries;
use locks::{Place, hold};
use managed::Managed;
use obstacles::Obstacles;
use openings::Openings;
use peaks::Peaks;
use pools::{Pools, uncharge_excess};
use registration::Registration;
pub use rounding::{BLOCK, round_up};
use variables::Variables;
use vmm::Vmm;
use waiting::Own;

/// The most CUDA devices that a process can have.
const MAX_ORDINALS: usize = 64;

/// The GPUs of a process, indexed by CUDA ordinal. Each [`Device`] is opened when it is first used.
struct Devices([OnceBox<Device>; MAX_ORDINALS]);

impl Default for Devices {
    fn default() -> Self {
        Devices([const { OnceBox::new() }; MAX_ORDINALS])
    }
}

/// The account of this process. A new account holds no memory and has joined no group. A published
/// account is never dropped.
///
/// The fields that the most frequent calls read come first, so that they share cache lines.
#[derive(Default)]
#[repr(C)]
pub struct Process {
    count: AtomicI32,
    /// The number of times that the process has read its memory usage from NVML.
    pub measurements: AtomicU64,
    member: OnceBox<Result<Member, Failed>>,
    pub blocks: Blocks,
    devices: Devices,
    joining: Mutex<()>,
    /// A lock that a thread holds while it redirects the driver's own symbols to the hooks of
    /// gpulimit.
    pub redirecting: Mutex<()>,
    pub arrays: Arrays,
    pub managed: Managed,
    pub variables: Variables,
    pub openings: Openings,
    pub vmm: Vmm,
    pub pools: Pools,
    pub bodies: Bodies,
    pub execs: Execs,
    pub launched: Launched,
    pub libraries: Libraries,
    pub greens: Greens,
    pub captures: Captures,
    peaks: Peaks,
    registration: Registration,
    obstacles: Obstacles,
    gate: OnceRef<'static, Gate>,
    pub handles: Handles,
    /// The account of the process that has forked this one.
    _parent: AtomicPtr<Self>,
}

impl Process {
    /// Returns the process's membership in its group. The first call joins the group.
    ///
    /// Errors, if joining has failed:
    /// - `CUDA_ERROR_NOT_INITIALIZED`: the limits depend on the GPUs, which are unknown before
    ///   `cuInit`. A later call joins.
    /// - `CUDA_ERROR_UNKNOWN`: the program runs without a limit.
    /// - Any other: every call that would take memory fails with this error.
    pub fn member(&'static self) -> Result<&'static Member, Status> {
        if self.member.get().is_none() {
            // Inside of a question of a thread that joins, which the driver has reported to a tool.
            if inside::is_closed() {
                return Err(CUDA_ERROR_UNKNOWN);
            }
            // Only one thread joins. A second join would make the process appear twice in the
            // ledger.
            let _undisturbed = Undisturbed::new();
            let _alone = hold(Place::Joining, || self.joining.lock());
            if self.member.get().is_none() {
                clock::find(real_dlsym);
                let joined = inside::closed(join);
                if let Err(Failed::Early) = joined {
                    return Err(CUDA_ERROR_NOT_INITIALIZED);
                }
                let _ = self.member.set(Box::new(joined));
            }
            if let Some(Ok(member)) = self.member.get() {
                let wiped = current::place_of_gate();
                let _ = wiped.unwrap_or(&self.gate).set(member.gate());
                let door = Door {
                    find: || Process::existing()?.gate.get(),
                    wait: |gate, calls, place| Own(Process::existing()).wait(gate, calls, place),
                };
                gate::reach_by(door, wiped);
            }
            self.show_registration();
            self.show_obstacles();
        }
        match self.member.get() {
            Some(Ok(member)) => Ok(member),
            Some(Err(Failed::Open)) => Err(CUDA_ERROR_UNKNOWN),
            _ => Err(CUDA_ERROR_NOT_PERMITTED),
        }
    }

    /// Returns why this process could not join its group; `None` if it could, or has not tried.
    pub fn failure(&self) -> Option<&str> {
        match self.member.get() {
            Some(Err(Failed::Closed(reason))) => Some(reason),
            _ => None,
        }
    }

    /// Returns the device with this CUDA ordinal. Fails if the driver fails or if joining the group
    /// fails.
    #[inline]
    pub fn device(&'static self, ordinal: Ordinal) -> Result<&'static Device, Status> {
        match self.place(ordinal).and_then(OnceBox::get) {
            Some(device) => Ok(device),
            None => self.open(ordinal),
        }
    }

    #[cold]
    fn open(&'static self, ordinal: Ordinal) -> Result<&'static Device, Status> {
        let _undisturbed = Undisturbed::new();
        let Some(place) = self.place(ordinal) else {
            let is_there = (0..self.device_count()).contains(&ordinal);
            return Err(if is_there {
                CUDA_ERROR_NOT_PERMITTED
            } else {
                CUDA_ERROR_INVALID_DEVICE
            });
        };
        let device = Device::open(self, ordinal, self.member()?)?;
        Ok(place.get_or_init(|| Box::new(device)))
    }

    #[inline]
    fn place(&self, ordinal: Ordinal) -> Option<&OnceBox<Device>> {
        self.devices.0.get(usize::try_from(ordinal).ok()?)
    }

    /// Uncharges this process's unused bytes if another member has asked for memory. Every hook
    /// except those of memory pools calls this function.
    #[inline]
    pub fn answer(&'static self) {
        if self.is_asked() {
            self.give_back_unused();
        }
    }

    /// Returns whether [`Process::answer`] has work to do.
    #[inline(always)]
    pub fn is_asked(&self) -> bool {
        matches!(self.member.get(), Some(Ok(member)) if member.is_asked())
    }

    #[cold]
    fn give_back_unused(&'static self) {
        if let Some(Ok(member)) = self.member.get() {
            member.take_asked();
        }
        for device in self.devices() {
            device.give_back_unused();
        }
    }

    /// Corrects the process's charges after a panic inside gpulimit. Bytes may be charged for a
    /// driver call that was never made.
    #[cold]
    pub fn recover(&'static self) {
        for device in self.devices() {
            device.recover();
        }
    }

    /// Returns the devices that this process has opened so far.
    pub fn devices(&'static self) -> impl Iterator<Item = &'static Device> {
        self.devices.0.iter().filter_map(OnceBox::get)
    }

    /// Says on standard error that this program, which ends with `status`, was refused memory and
    /// has not got as much since. Only the first program of a job says so.
    fn explain_end(&'static self, status: i32) {
        let time = |device: &&Device| device.unrecovered.at.load(Ordering::Relaxed);
        let last = self.devices().max_by_key(time);
        let Some(device) = last.filter(|device| time(device) != 0) else {
            return;
        };
        let is_first = || device.book.group.member().is_first_to_explain();
        if membership::is_quiet() || !is_first() {
            return;
        }
        message::line(format_args!(
            "ended with status {status} after a refusal: it needed {} on GPU {}. `gpulimit why \
             --pid {}` says what had the memory, and what to do",
            gib(device.unrecovered.bytes.load(Ordering::Relaxed)),
            device.gpu(),
            std::process::id(),
        ));
    }

    /// Returns the number of CUDA contexts that this process has.
    pub fn context_count(&'static self) -> usize {
        self.devices().map(|device| device.contexts.count()).sum()
    }

    /// Remembers the bytes of local memory that each thread of `kernel` needs. Skips a `CUkernel`
    /// that may have code in several contexts.
    pub fn learn_need(&'static self, kernel: Opaque, per_thread: u64) {
        match self.context_count() == 1 || !self.launched.is_kernel(kernel) {
            true => self.launched.learn_need(kernel, per_thread),
            false => self.launched.note_unasked(),
        }
    }

    /// Forgets the launches of code that no known handle names, after handles were removed.
    pub fn forget_code(&self) {
        let is_known = |handle| self.handles.origin_of_code(handle).is_some();
        self.launched.keep(is_known);
    }

    /// Forgets the launches in a context, and those of handles that may belong to it.
    pub fn forget_launches(&self, context: Context) {
        self.launched.forget_context(context, |handle| {
            let origin = self.handles.origin_of_code(handle);
            origin.is_none_or(|origin| self.greens.holder(origin.context) == context)
        });
    }

    /// Makes each launch in a context check its local memory again.
    pub fn forget_limits(&self, context: Context) {
        self.forget_launches(context);
        self.launched.forget_kernels();
    }

    /// Returns how many times the process has read its memory usage from NVML. [`Device::renew`]
    /// takes this number.
    #[inline]
    pub fn mark(&self) -> u64 {
        self.measurements.load(Ordering::SeqCst)
    }

    /// Returns the number of CUDA devices that this process sees; 0 before `cuInit`.
    pub fn device_count(&self) -> i32 {
        let known = self.count.load(Ordering::Relaxed);
        if known > 0 {
            return known;
        }
        let count = answer(cuda::cuDeviceGetCount).unwrap_or(0);
        self.count.store(count, Ordering::Relaxed);
        count
    }

    /// Returns the different compute capabilities of the devices that this process sees. The number
    /// 90 stands for the compute capability 9.0.
    pub fn capabilities(&self) -> Vec<u32> {
        let mut found: Vec<u32> = (0..self.device_count())
            .filter_map(|ordinal| {
                let major = devices::attribute(ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ordinal)?;
                let minor = devices::attribute(ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ordinal)?;
                Some(capability(major, minor))
            })
            .collect();
        order::sort(&mut found);
        found.dedup();
        found
    }

    /// Returns the devices of this process that exist, by ordinal; none before `cuInit`.
    pub fn ordinals(&self) -> impl Iterator<Item = Ordinal> {
        0..self.device_count()
    }

    /// Returns this process's membership if it has joined its group.
    pub fn joined(&'static self) -> Option<Result<&'static Member, Status>> {
        self.member.get().is_some().then(|| self.member())
    }

    /// Returns the device of the calling thread's current CUDA context.
    #[inline]
    pub fn current_device(&'static self) -> Result<&'static Device, Status> {
        if self.count.load(Ordering::Relaxed) == 1 {
            return self.device(0);
        }
        self.device(self.current_ordinal()?)
    }

    /// Does the work of [`Process::stream_device`] outside of a hook and without a lock. Returns
    /// `None` where that needs more, and for a device that was not used yet.
    #[inline(always)]
    pub fn stream_device_at_once(&'static self, stream: Stream) -> Option<&'static Device> {
        let ordinal = match self.count.load(Ordering::Relaxed) {
            1 => 0,
            _ if stream <= 2 && inside::get() == 0 => {
                inside::outermost(|| answer(cuda::cuCtxGetDevice)).ok()?
            }
            _ => return None,
        };
        self.place(ordinal)?.get()
    }

    /// Returns the device that is charged for the driver's memory on the host: the current one, if
    /// it shares the host's memory.
    pub fn host_payer(&'static self) -> Option<Ordinal> {
        let device = self.current_device().ok()?;
        device.shares_host.then_some(device.ordinal)
    }

    fn current_ordinal(&self) -> Result<Ordinal, Status> {
        if self.device_count() == 1 {
            return Ok(0);
        }
        answer(cuda::cuCtxGetDevice)
    }

    /// Returns the device on which the work in `stream` runs; `None` if the stream is unknown and
    /// the process sees several devices.
    #[inline(always)]
    pub fn stream_device(&'static self, stream: Stream) -> Option<Result<&'static Device, Status>> {
        // The stream handles 0, 1 and 2 are the default, legacy default and per-thread default
        // streams of the current context.
        if stream <= 2 || self.count.load(Ordering::Relaxed) == 1 {
            return Some(self.current_device());
        }
        self.stream_origin(stream).map(Ok)
    }

    #[inline(never)]
    fn stream_origin(&'static self, stream: Stream) -> Option<&'static Device> {
        let origin = self.handles.origin(Kind::Stream, stream)?;
        self.context_device(origin.context)
    }

    /// Returns the device of a CUDA context; `None` for an unknown context.
    pub fn context_device(&'static self, context: Context) -> Option<&'static Device> {
        let holder = self.greens.holder(context);
        let known = |device: &&Device| device.contexts.has(holder);
        self.devices().find(known).or_else(|| {
            // A thread's current context is always valid. So the driver can be asked about this
            // context.
            let is_current = context != 0 && answer(cuda::cuCtxGetCurrent) == Ok(context);
            let ordinal = is_current.then(|| answer(cuda::cuCtxGetDevice).ok())??;
            self.device(ordinal).ok()
        })
    }

    /// Updates the charges of memory pools after a synchronise call, which can shrink pools. `all`:
    /// the process has no unfinished GPU work.
    #[inline]
    pub fn synchronized(&'static self, all: bool) {
        if self.pools.is_touched(all) {
            self.refresh_pools();
            self.release_lent();
            if self.pools.left_in_use() > 0 {
                self.measure_left_in_use();
            }
        }
    }

    /// Reads from the driver how many bytes every pool has reserved.
    pub fn refresh_pools(&'static self) {
        for pool in self.pools.all() {
            if let Ok(device) = self.device(pool.device) {
                pool.refresh(&device.book);
            }
        }
    }

    /// Uncharges the bytes of destroyed managed pools whose last allocation has been freed, and
    /// forgets such imported pools.
    pub fn release_lent(&'static self) {
        for pool in self.pools.lent.left() {
            if let Ok(device) = self.device(pool.device) {
                device.book.uncharge_idle(pool.close(&device.book));
                uncharge_excess(&device.book, false);
            }
            if let Some(obstacle) = pool.obstacle() {
                self.end_obstacle(obstacle, 1);
            }
            self.pools.end(pool);
        }
    }

    #[cold]
    fn measure_left_in_use(&'static self) {
        for device in self.devices() {
            let before = device.driver_part.used();
            device.measure();
            let gone = before.saturating_sub(device.driver_part.used());
            self.pools.note_freed(gone);
        }
    }

    /// Returns the devices on which this process has CUDA contexts.
    pub fn devices_in_use(&'static self) -> Vec<&'static Device> {
        self.devices()
            .filter(|device| device.contexts.count() > 0)
            .collect()
    }

    /// Refuses to import or open memory of another process: see [`Device::may_import`].
    pub fn may_import(&'static self, symbol: &'static str) -> Result<(), Refused> {
        self.devices()
            .try_for_each(|device| device.may_import(symbol))
    }
}

/// Joins the group. If joining fails and the administrator's rule permits it, the process runs
/// without a limit from then on.
fn join() -> Result<Member, Failed> {
    let capacity = |ordinal: u32| devices::capacity(ordinal.try_into().ok()?).ok();
    let mut joined = membership::join(&devices::all, &capacity);
    if let Ok(member) = &mut joined {
        member.confirm_suspensions_by(suspension::is_suspended);
        member.is_unheard = membership::is_unheard();
        current::note_end_at_exit();
    }
    if let Err(Failed::Open) = joined {
        limited::let_go();
    }
    joined
}

/// Returns a compute capability as one number, such as 90 for 9.0.
fn capability(major: u32, minor: u32) -> u32 {
    major * 10 + minor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_the_numbers_of_images() {
        assert_eq!(
            [(8, 6), (9, 0), (12, 1)].map(|(major, minor)| capability(major, minor)),
            [86, 90, 121]
        );
    }
}
