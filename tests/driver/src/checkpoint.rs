//! Checkpoints (`cuCheckpointProcess…`): one process moves the GPU memory of another process away
//! and back.
//!
//! Measured (H100 and H200, 580.159.04):
//! - A restore without enough room answers 2. The process is lost then: it stays checkpointed,
//!   every later restore answers 304, and an unlock 401. A restore needs exactly what the
//!   checkpoint has freed. It takes all of that at once, and copies then. NVML lists the process
//!   again at the end: until then the memory is in use, and in no process's figure.
//! - A process with managed memory cannot be checkpointed (801). It stays locked and intact.
//! - An importer of shared memory can be checkpointed, but its restore answers 1: it is lost. An
//!   exporter can be restored. The same holds for a process in which a GPU has access to memory of
//!   another one (two H200).
//! - About another user's process, and a pid without a process, every function answers 304; about a
//!   process without CUDA 3. A client of MPS cannot be locked (801).
//! - A call about a process waits while another call about it is under way, and answers by the
//!   state after that. Of a stopped process every call waits until the process is continued: a lock
//!   ignores its time.
//! - A lock waits for the work under way, and answers 600 when its time is over: the process runs.
//! - If the process is killed during a step, the call answers 304 at once.
//! - A caller that dies after a lock leaves the process locked. A step whose caller dies in the
//!   middle goes on to its end. Here the next caller that looks at the process finishes it.
//! - Most calls of a process wait from the lock to the unlock, but not all: see `Conduct`
//!   (H100, 580.159.04).
//!
//! Assumed:
//! - A process that is being checkpointed or restored, is lost or has failed treats calls as a
//!   checkpointed one does.
//! - A call that answers in a checkpointed process waits if it changes how much memory the process
//!   has: the first `cuDevicePrimaryCtxRetain`, a library that is loaded eagerly.
//! - Drivers from 13.4 on report a step under way at once, as state 4 or 5.
//! - Exported memory goes away with its exporter unless another process has opened it.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use crate::knobs::{CHECKPOINT_FAILS, DENIED, MPS, RESTORE_FAILS};
use crate::machine::{MAX_DEVICES, Machine, Slot};
use crate::process::{self, Process, StepLock};
use crate::{Outcome, Status, abi, grant, shared};

/// The process states, with the numbers of `CUprocessState`.
const RUNNING: u64 = 0;
const LOCKED: u64 = 1;
const CHECKPOINTED: u64 = 2;
const FAILED: u64 = 3;
const CHECKPOINTING: u64 = 4;
const RESTORING: u64 = 5;
/// A checkpointed process whose restore has failed. Reported as checkpointed.
const LOST: u64 = 6;

/// The first driver version that reports that a step is under way.
const REPORTS_STEPS: u32 = 13_040;
const PAUSE: Duration = Duration::from_millis(1);

/// Another process, as the functions here see it.
struct Target {
    machine: &'static Machine,
    slot: usize,
    line: &'static Slot,
    owner: u64,
    pid: i32,
}

/// Returns a living process of this pid namespace by its pid.
fn find(machine: &'static Machine, pid: i32) -> Option<Target> {
    let namespace = process::namespace();
    let slots = machine.slots.iter().enumerate();
    slots
        .take(machine.high_water.load(SeqCst) as usize)
        .map(|(slot, line)| (slot, line, line.owner.load(SeqCst)))
        .find(|(slot, line, owner)| {
            *owner != 0
                && (owner >> 32) as i32 == pid
                && line.namespace.load(Relaxed) == namespace
                && !process::has_died(*slot)
        })
        .map(|(slot, line, owner)| Target {
            machine,
            slot,
            line,
            owner,
            pid,
        })
}

/// Returns a process that the caller may act on.
///
/// # Errors
/// - `OPERATING_SYSTEM`: a pid without a process, or another user's process.
/// - `NOT_INITIALIZED`: a process without CUDA.
fn find_own(machine: &'static Machine, pid: i32) -> Outcome<Target> {
    // The real driver asks the kernel for the right to trace the process.
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|data| data.uid());
    let caller = std::fs::metadata("/proc/self").map_or(u32::MAX, |data| data.uid());
    let may = owner.is_ok_and(|owner| caller == 0 || owner == caller);
    if !may || machine.knobs.fails(DENIED) || pid <= 0 {
        return Err(Status::OPERATING_SYSTEM);
    }
    find(machine, pid).ok_or(Status::NOT_INITIALIZED)
}

impl Target {
    fn step(&self, from: u64, to: u64) -> Outcome<()> {
        let stepped = self.line.state.compare_exchange(from, to, SeqCst, SeqCst);
        stepped.map(drop).map_err(|_| Status::ILLEGAL_STATE)
    }

    /// Returns the lock on the process's steps, and finishes the step of a dead caller. Waits for
    /// the steps of other callers, and while the process is stopped.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if the process is gone.
    fn lock_steps(&self) -> Outcome<StepLock> {
        let lock = StepLock::wait(self.slot).ok_or(Status::UNKNOWN)?;
        self.check_lives()?;
        self.wait_while_stopped()?;
        self.finish()?;
        Ok(lock)
    }

    /// Fails if the process has died.
    fn check_lives(&self) -> Outcome<()> {
        let lives = self.is_there() && !process::has_died(self.slot);
        lives.then_some(()).ok_or(Status::OPERATING_SYSTEM)
    }

    /// Returns whether the slot still belongs to the process. Its slot cannot get another owner
    /// under the lock on its steps.
    fn is_there(&self) -> bool {
        self.line.owner.load(SeqCst) == self.owner
    }

    /// Finishes the step that the process's state names. The caller has the lock on the steps.
    fn finish(&self) -> Outcome<()> {
        match self.line.state.load(SeqCst) {
            CHECKPOINTING => self.move_away(),
            RESTORING => self.move_back(),
            _ => Ok(()),
        }
    }

    /// Waits until no call of the process is under way. Returns false if the time is over first.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if the process has died.
    fn is_quiet(&self, until: Option<Instant>) -> Outcome<bool> {
        while self.line.calls.load(SeqCst) > 0 {
            self.check_lives()?;
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(true)
    }

    /// Waits while the process is stopped: its own thread does the driver's work.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if the process has died.
    fn wait_while_stopped(&self) -> Outcome<()> {
        let is_stopped = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
            stat.is_ok_and(|stat| {
                let state = stat
                    .rsplit_once(')')
                    .map_or("", |(_, rest)| rest.trim_start());
                state.starts_with(['T', 't'])
            })
        };
        while is_stopped() {
            self.check_lives()?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Waits as long as the knob says that a step takes, also if the knob changes meanwhile.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if the process has died.
    fn spend_time(&self) -> Outcome<()> {
        let begin = Instant::now();
        let step = || Duration::from_nanos(self.machine.knobs.step.load(Relaxed));
        while begin.elapsed() < step() {
            self.check_lives()?;
            std::thread::sleep(PAUSE);
        }
        self.wait_while_stopped()
    }

    /// Moves all memory away. May be repeated after a caller has died inside.
    fn move_away(&self) -> Outcome<()> {
        // The process may be in the middle of a change, see [`UnderWay::begin_change`].
        self.is_quiet(None)?;
        self.spend_time()?;
        for device in 0..MAX_DEVICES {
            let blocks = grant::held(self.machine, self.slot, device);
            if blocks > 0 {
                self.line.away[device].store(blocks, SeqCst);
                grant::change(self.machine, self.slot, device, -(blocks as i64));
            }
        }
        shared::move_away(self.machine, self.owner);
        self.step(CHECKPOINTING, CHECKPOINTED)
    }

    /// Moves all memory back, or marks the process as lost. May be repeated after a caller has died
    /// inside.
    fn move_back(&self) -> Outcome<()> {
        let lost = |status| {
            self.step(RESTORING, LOST)?;
            Err(status)
        };
        if self.machine.knobs.fails(RESTORE_FAILS)
            || shared::has_imports(self.machine, self.owner)
            || self.line.peers.load(SeqCst) != 0
        {
            return lost(Status::INVALID_VALUE);
        }
        for device in 0..MAX_DEVICES {
            let blocks = self.line.away[device].load(SeqCst);
            // If a caller has died after the change, the process holds the blocks already.
            let held = grant::held(self.machine, self.slot, device);
            let more = blocks.saturating_sub(held) as i64;
            if more > 0 && !grant::change(self.machine, self.slot, device, more) {
                return self.drop_all().and_then(|()| lost(Status::OUT_OF_MEMORY));
            }
        }
        if !shared::move_back(self.machine, self.owner) {
            return self.drop_all().and_then(|()| lost(Status::OUT_OF_MEMORY));
        }
        self.spend_time()?;
        self.line.away.iter().for_each(|away| away.store(0, SeqCst));
        self.step(RESTORING, LOCKED)
    }

    /// Gives back what a restore without enough room has taken.
    fn drop_all(&self) -> Outcome<()> {
        for device in 0..MAX_DEVICES {
            let blocks = grant::held(self.machine, self.slot, device);
            if blocks > 0 {
                grant::change(self.machine, self.slot, device, -(blocks as i64));
            }
        }
        shared::move_away(self.machine, self.owner);
        Ok(())
    }
}

/// Returns the `CUprocessState` of a process.
///
/// # Errors
/// - `OPERATING_SYSTEM`: a pid without a process, or another user's process, as in all functions
///   below.
/// - `NOT_INITIALIZED`: a process without CUDA, as in all functions below.
pub fn state(machine: &'static Machine, pid: i32) -> Outcome<i32> {
    let target = find_own(machine, pid)?;
    let _steps = if machine.knobs.driver_version.load(Relaxed) >= REPORTS_STEPS {
        let steps = StepLock::attempt(target.slot);
        if steps.is_some() {
            target.check_lives()?;
            target.finish()?;
        }
        steps
    } else {
        Some(target.lock_steps()?)
    };
    Ok(match target.line.state.load(SeqCst) {
        LOST => CHECKPOINTED,
        state => state,
    } as i32)
}

/// Returns the thread that does the driver's work in a process.
///
/// # Errors
/// As for [`state`].
pub fn restore_thread(machine: &'static Machine, pid: i32) -> Outcome<i32> {
    // It is not known which thread the real driver returns.
    find_own(machine, pid).map(|target| target.pid)
}

/// Makes most driver calls of a process wait until the process is unlocked. Waits for the calls
/// under way, with a `timeout_ms` other than 0 at most so long.
///
/// # Errors
/// - `ILLEGAL_STATE`: the process is not running.
/// - `NOT_SUPPORTED`: a client of MPS.
/// - `NOT_READY`: the time is over; the process is still running.
pub fn lock(machine: &'static Machine, pid: i32, timeout_ms: u32) -> Outcome<()> {
    let target = find_own(machine, pid)?;
    let _steps = target.lock_steps()?;
    if machine.knobs.fails(MPS) {
        return Err(Status::NOT_SUPPORTED);
    }
    machine.knobs.note_locked();
    target.step(RUNNING, LOCKED)?;
    let timeout = Duration::from_millis(timeout_ms.into());
    let until = (timeout_ms != 0).then(|| Instant::now() + timeout);
    if !target.is_quiet(until)? {
        target.step(LOCKED, RUNNING)?;
        return Err(Status::NOT_READY);
    }
    Ok(())
}

/// Moves all GPU memory of a locked process away from the GPUs.
///
/// # Errors
/// - `ILLEGAL_STATE`: the process is not locked.
/// - `NOT_SUPPORTED`: the process has managed memory. It stays locked.
/// - `UNKNOWN`: the knob `checkpoint` says so. The process has failed for ever.
pub fn checkpoint(machine: &'static Machine, pid: i32) -> Outcome<()> {
    let target = find_own(machine, pid)?;
    let _steps = target.lock_steps()?;
    if target.line.state.load(SeqCst) != LOCKED {
        return Err(Status::ILLEGAL_STATE);
    }
    // A locker that died may have left calls under way.
    target.is_quiet(None)?;
    if target.line.managed.load(SeqCst) > 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    if machine.knobs.fails(CHECKPOINT_FAILS) {
        target.step(LOCKED, FAILED)?;
        return Err(Status::UNKNOWN);
    }
    target.step(LOCKED, CHECKPOINTING)?;
    target.move_away()
}

/// Brings the memory of a checkpointed process back to the GPUs. If that fails, the process is
/// lost.
///
/// # Errors
/// - `ILLEGAL_STATE`: the process is not checkpointed.
/// - `OUT_OF_MEMORY`: a GPU has too little room.
/// - `INVALID_VALUE`: the process has imported memory.
/// - `OPERATING_SYSTEM`: the process was lost before.
pub fn restore(machine: &'static Machine, pid: i32) -> Outcome<()> {
    let target = find_own(machine, pid)?;
    let _steps = target.lock_steps()?;
    match target.line.state.load(SeqCst) {
        LOST => return Err(Status::OPERATING_SYSTEM),
        _ => target.step(CHECKPOINTED, RESTORING)?,
    }
    process::scan(machine, true);
    target.move_back()
}

/// Unlocks a process. Its waiting driver calls go on.
///
/// # Errors
/// `ILLEGAL_STATE` unless the process is locked.
pub fn unlock(machine: &'static Machine, pid: i32) -> Outcome<()> {
    let target = find_own(machine, pid)?;
    let _steps = target.lock_steps()?;
    target.step(LOCKED, RUNNING)
}

thread_local! {
    /// The number of the calling thread's driver calls under way. A call from inside a call does
    /// not wait, because a lock waits for the outer call.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// How a function of the driver behaves when a locked or checkpointed process calls it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// The call waits until the process is running.
    Waits,
    /// The call does not wait. The functions that fail with 304 in a checkpointed process ask
    /// [`check_present`].
    Answers,
    /// The call answers in a locked process, unless another call waits: it may have a lock of the
    /// driver. In a checkpointed process the call crashes.
    Crashes,
    /// The call waits in a locked process, also if the process is checkpointed meanwhile. If it
    /// begins in a checkpointed process, it crashes.
    WaitsOrCrashes,
}

impl Conduct {
    /// Returns the conduct of a function.
    pub(crate) fn of(function: &str) -> Conduct {
        match function.strip_suffix("_ptsz").unwrap_or(function) {
            "cuCtxSynchronize"
            | "cuCtxSynchronize_v2"
            | "cuEventElapsedTime"
            | "cuEventElapsedTime_v2"
            | "cuEventQuery"
            | "cuEventSynchronize"
            | "cuStreamQuery"
            | "cuStreamSynchronize" => Conduct::Crashes,
            "cuMemAllocAsync"
            | "cuMemAllocFromPoolAsync"
            | "cuMemPoolDestroy"
            | "cuModuleUnload" => Conduct::WaitsOrCrashes,
            "cuCtxGetCurrent"
            | "cuCtxGetDevice"
            | "cuCtxGetDevice_v2"
            | "cuCtxGetStreamPriorityRange"
            | "cuCtxSetCurrent"
            | "cuDeviceGetAttribute"
            | "cuDeviceGetCount"
            | "cuDeviceGetName"
            | "cuDeviceGetUuid"
            | "cuDeviceGetUuid_v2"
            | "cuDevicePrimaryCtxGetState"
            | "cuDevicePrimaryCtxRetain"
            | "cuDeviceTotalMem"
            | "cuDeviceTotalMem_v2"
            | "cuDriverGetVersion"
            | "cuFuncGetAttribute"
            | "cuGetErrorName"
            | "cuGetProcAddress"
            | "cuGetProcAddress_v2"
            | "cuGraphExecDestroy"
            | "cuGraphInstantiate"
            | "cuGraphInstantiate_v2"
            | "cuGraphInstantiateWithFlags"
            | "cuGraphInstantiateWithParams"
            | "cuIpcGetMemHandle"
            | "cuLibraryGetKernel"
            | "cuLibraryLoadData"
            | "cuMemAddressReserve"
            | "cuMemGetAccess"
            | "cuMemGetAddressRange"
            | "cuMemGetAddressRange_v2"
            | "cuMemGetAllocationGranularity"
            | "cuMemGetInfo"
            | "cuMemGetInfo_v2"
            | "cuMemPoolGetAttribute"
            | "cuMemPoolTrimTo"
            | "cuMemSetAccess"
            | "cuPointerGetAttribute"
            | "cuStreamGetCtx"
            | "cuStreamGetCtx_v2"
            | "cuStreamGetPriority"
            | "cuStreamIsCapturing"
            | "cuStreamWaitEvent" => Conduct::Answers,
            _ => Conduct::Waits,
        }
    }
}

/// Fails if the memory of the calling process is not on the GPU.
///
/// # Errors
/// `OPERATING_SYSTEM`.
pub fn check_present() -> Outcome<()> {
    match Process::line() {
        Some(line) if line.state.load(SeqCst) > LOCKED => Err(Status::OPERATING_SYSTEM),
        _ => Ok(()),
    }
}

/// The number of calls of this process that wait because it is not running.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// A call that waits.
struct Waiting;

impl Waiting {
    fn begin() -> Waiting {
        WAITING.fetch_add(1, SeqCst);
        Waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, SeqCst);
    }
}

/// A driver call under way, which a lock waits for.
pub(crate) struct UnderWay(Option<&'static Slot>);

impl UnderWay {
    /// Begins a call. If the calling process is not running, the function's `conduct` decides. The
    /// checkpoint functions themselves never wait: a process can lock and unlock itself.
    pub(crate) fn begin(function: &str, conduct: Conduct) -> UnderWay {
        let line = Process::line().filter(|_| !function.starts_with("cuCheckpointProcess"));
        let Some(line) = line else {
            return UnderWay(None);
        };
        let depth = DEPTH.get();
        if depth > 0 {
            DEPTH.set(depth + 1);
            return UnderWay(Some(line));
        }
        let mut waiting = None;
        loop {
            let state = line.state.load(SeqCst);
            match conduct {
                _ if state == RUNNING => {
                    if let Some(call) = UnderWay::count(line, RUNNING) {
                        return call;
                    }
                }
                Conduct::Answers => return UnderWay(None),
                Conduct::Crashes if state == LOCKED && WAITING.load(SeqCst) == 0 => {
                    return UnderWay(None);
                }
                Conduct::Crashes | Conduct::WaitsOrCrashes
                    if state != LOCKED && waiting.is_none() =>
                {
                    crash(function)
                }
                _ => {
                    waiting.get_or_insert_with(Waiting::begin);
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Begins a change of the memory that the calling process has on the GPUs. Waits while the
    /// process is checkpointed; a checkpoint waits for the change.
    pub(crate) fn begin_change() -> UnderWay {
        let line = Process::line().filter(|_| DEPTH.get() == 0);
        let Some(line) = line else {
            return UnderWay(None);
        };
        loop {
            if line.state.load(SeqCst) <= LOCKED
                && let Some(change) = UnderWay::count(line, LOCKED)
            {
                return change;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Counts a call, unless the state is past `last`.
    fn count(line: &'static Slot, last: u64) -> Option<UnderWay> {
        // Another process changes the state and then reads the number of calls, so one of the two
        // sees the other.
        line.calls.fetch_add(1, SeqCst);
        if line.state.load(SeqCst) > last {
            line.calls.fetch_sub(1, SeqCst);
            return None;
        }
        DEPTH.set(1);
        Some(UnderWay(Some(line)))
    }
}

/// Ends the process as the real driver does.
fn crash(function: &str) -> ! {
    eprintln!("simulated driver: {function} of a checkpointed process");
    abi::crash()
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(line) = self.0 else { return };
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 {
            line.calls.fetch_sub(1, SeqCst);
        }
    }
}

/// Returns whether the owner of a slot is being restored.
pub(crate) fn is_restored(line: &Slot) -> bool {
    line.state.load(SeqCst) == RESTORING
}

/// Counts managed memory of the calling process: 1 for new memory, −1 for freed memory.
pub fn count_managed(change: i64) {
    if let Some(line) = Process::line() {
        line.managed.fetch_add(change as u64, SeqCst);
    }
}

/// Notes that the calling process gives `gpu` access to memory of the GPU `home`; `None` is the
/// host.
pub fn note_access(gpu: Option<usize>, home: Option<usize>) {
    if gpu.zip(home).is_some_and(|(gpu, home)| gpu != home)
        && let Some(line) = Process::line()
    {
        line.peers.store(1, SeqCst);
    }
}

/// Resets the checkpoint state of a slot for its new owner, a running process.
pub(crate) fn begin(line: &Slot) {
    for word in [&line.state, &line.calls, &line.managed] {
        word.store(RUNNING, Relaxed);
    }
    line.peers.store(0, Relaxed);
    line.contexts
        .iter()
        .for_each(|count| count.store(0, Relaxed));
    line.away.iter().for_each(|away| away.store(0, Relaxed));
}
