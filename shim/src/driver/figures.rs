//! NVML's figures: how much GPU memory each process holds, and which processes NVML lists.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use gpulimit_base::device::{DeviceId, DeviceKind};
use gpulimit_base::identity::Identity;
use gpulimit_base::process;
use gpulimit_group::Undisturbed;
use gpulimit_ledger::Witness;

use crate::abi::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_UNINITIALIZED,
    NVML_NOT_AVAILABLE, NvmlDevice, NvmlMemory, NvmlProcessDetail, NvmlProcessV1, NvmlProcessV2,
    Opaque, Out, SUCCESS, Status,
};
use crate::clock::{self, monotonic_ms};
use crate::driver::{answer, nvml};

/// The process that has started NVML for gpulimit, by pid; 0 before the first start.
static STARTED_BY: AtomicU32 = AtomicU32::new(0);

/// Returns whether NVML answers. Starts NVML once in each process. gpulimit never shuts NVML down.
fn ready() -> bool {
    STARTED_BY.load(Ordering::Acquire) == std::process::id() || start()
}

/// Starts NVML. NVML counts its starts and ends, and a program may end it once more than it has
/// started it. A start that has failed, as without a free descriptor, is tried again later.
fn start() -> bool {
    const AGAIN_MS: u64 = 100;
    static FAILED_AT: AtomicU64 = AtomicU64::new(0);
    let (failed, now) = (FAILED_AT.load(Ordering::Relaxed), monotonic_ms().max(1));
    if failed != 0 && now.saturating_sub(failed) < AGAIN_MS {
        return false;
    }
    let is_started = nvml::NVML.present() && nvml::nvmlInit_v2() == SUCCESS;
    FAILED_AT.store(if is_started { 0 } else { now }, Ordering::Relaxed);
    if is_started {
        STARTED_BY.store(std::process::id(), Ordering::Release);
    }
    is_started
}

/// The NVML handle of a device. The first use looks it up.
#[derive(Default)]
pub struct Handle(AtomicUsize);

impl Handle {
    /// Returns the bytes of this process on the device, 0 when NVML does not list the process;
    /// `None` when NVML fails, also with NVML and the handle made anew.
    pub fn own_bytes(&self, id: &DeviceId) -> Option<u64> {
        self.ask(id, own_bytes)
    }

    /// Returns the free bytes of the device; `None` as for [`Handle::own_bytes`].
    pub fn free(&self, id: &DeviceId) -> Option<u64> {
        self.ask(id, free)
    }

    fn ask(&self, id: &DeviceId, ask: fn(NvmlDevice) -> Option<u64>) -> Option<u64> {
        let known = self.0.load(Ordering::Acquire);
        let answer = (known != 0).then(|| ask(known)).flatten();
        answer.or_else(|| {
            let found = find(id)?;
            self.0.store(found, Ordering::Release);
            ask(found)
        })
    }
}

fn free(device: NvmlDevice) -> Option<u64> {
    Some(memory(device).ok()?.free)
}

fn own_bytes(device: NvmlDevice) -> Option<u64> {
    let mut bytes = 0u64;
    let pid = std::process::id();
    each_process(device, &mut |listed, used| {
        if listed == pid {
            // NVML can list a process more than once on a MIG device.
            bytes = bytes.saturating_add(used);
        }
    })?;
    Some(bytes)
}

/// Returns the only GPU of a machine; `None` if there are several.
pub fn only() -> Option<NvmlDevice> {
    let _undisturbed = Undisturbed::new();
    let is_only = ready() && answer(nvml::nvmlDeviceGetCount_v2) == Ok(1);
    let get = |device| nvml::nvmlDeviceGetHandleByIndex_v2(0, device);
    is_only.then(|| answer(get).ok())?
}

/// Returns the NVML handle of a device.
pub fn find(id: &DeviceId) -> Option<NvmlDevice> {
    let _undisturbed = Undisturbed::new();
    if !ready() {
        return None;
    }
    let text = CString::new(id.to_string()).ok()?;
    let find = || answer(|to| nvml::nvmlDeviceGetHandleByUUID(text.as_ptr() as Opaque, to));
    match find() {
        Err(NVML_ERROR_UNINITIALIZED) if start() => find().ok(),
        found => found.ok(),
    }
}

/// Returns NVML's index of a whole GPU.
pub fn index(id: &DeviceId) -> Option<u32> {
    let device = (id.kind == DeviceKind::Gpu).then(|| find(id)).flatten()?;
    let _undisturbed = Undisturbed::new();
    answer(|index| nvml::nvmlDeviceGetIndex(device, index)).ok()
}

/// Returns the identity of the device behind an NVML handle that the program has passed.
pub fn identify(device: NvmlDevice) -> Option<DeviceId> {
    let mut text = [0u8; 96];
    if nvml::nvmlDeviceGetUUID(device, text.as_mut_ptr() as Opaque, text.len() as u32) != SUCCESS {
        return None;
    }
    std::ffi::CStr::from_bytes_until_nul(&text)
        .ok()?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// Returns whether MIG divides the whole GPU `device` into instances, which then hold its memory.
pub fn is_cut(device: NvmlDevice) -> bool {
    const ENABLED: u32 = 1;
    let (mut current, mut pending) = (0, 0);
    nvml::nvmlDeviceGetMigMode(device, Out::of(&mut current), Out::of(&mut pending)) == SUCCESS
        && current == ENABLED
}

/// An element of NVML's process list.
pub trait Listed: Copy + Default {
    /// Returns the process's pid and its bytes of device memory.
    fn pid_and_bytes(&self) -> (u32, u64);
}
impl Listed for NvmlProcessV1 {
    fn pid_and_bytes(&self) -> (u32, u64) {
        (self.pid, self.used)
    }
}
impl Listed for NvmlProcessV2 {
    fn pid_and_bytes(&self) -> (u32, u64) {
        (self.pid, self.used)
    }
}
impl Listed for NvmlProcessDetail {
    fn pid_and_bytes(&self) -> (u32, u64) {
        self.base.pid_and_bytes()
    }
}

/// Returns whether this is an early R535 driver, whose `_v3` functions return larger elements than
/// today's header.
pub fn is_early_535() -> bool {
    use nvml::has;
    has::nvmlDeviceGetConfComputeMemSizeInfo() && !has::nvmlDeviceGetRunningProcessDetailList()
}

/// Returns the used bytes of the device: `capacity`, the size in CUDA, minus NVML's free bytes.
pub fn used(id: &DeviceId, capacity: u64) -> Option<u64> {
    Some(capacity.saturating_sub(free(find(id)?)?))
}

/// Returns whether NVML says that the device has no memory to tell about. A lost GPU has another
/// answer, and so has a MIG instance.
pub fn lacks_memory(id: &DeviceId) -> bool {
    let answer = find(id).map(|device| memory(device).map(drop));
    answer == Some(Err(NVML_ERROR_NOT_SUPPORTED))
}

fn memory(device: NvmlDevice) -> Result<NvmlMemory, Status> {
    answer(|memory| nvml::nvmlDeviceGetMemoryInfo(device, memory))
}

/// Returns the pid and the bytes of every compute process on the device; `None` when NVML gives no
/// list.
pub fn processes(id: &DeviceId) -> Option<Vec<(u32, u64)>> {
    let mut all = Vec::new();
    each_process(find(id)?, &mut |pid, bytes| all.push((pid, bytes)))?;
    Some(all)
}

/// Calls `seen` with the pid and the bytes of every compute process; `None` when NVML gives no
/// list.
fn each_process(device: NvmlDevice, seen: &mut dyn FnMut(u32, u64)) -> Option<()> {
    use nvml::has;
    if has::nvmlDeviceGetComputeRunningProcesses_v3() && is_early_535() {
        let list = |device, count, infos: Out<NvmlProcessDetail>| {
            nvml::nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos.cast())
        };
        each(device, list, seen)
    } else if has::nvmlDeviceGetComputeRunningProcesses_v3() {
        each(device, nvml::nvmlDeviceGetComputeRunningProcesses_v3, seen)
    } else if has::nvmlDeviceGetComputeRunningProcesses_v2() {
        each(device, nvml::nvmlDeviceGetComputeRunningProcesses_v2, seen)
    } else {
        each(device, nvml::nvmlDeviceGetComputeRunningProcesses, seen)
    }
}

fn each<T: Listed>(
    device: NvmlDevice,
    list: fn(NvmlDevice, Out<u32>, Out<T>) -> Status,
    seen: &mut dyn FnMut(u32, u64),
) -> Option<()> {
    let _undisturbed = Undisturbed::new();
    let see = |all: &[T]| {
        all.iter()
            .map(Listed::pid_and_bytes)
            .filter(|(_, bytes)| *bytes != NVML_NOT_AVAILABLE)
            .for_each(|(pid, bytes)| seen(pid, bytes));
    };
    whole_list(&|count, infos| list(device, count, infos), see).ok()
}

/// Fetches the whole process list with `call` and passes it to `seen`. Fails with NVML's status.
pub fn whole_list<T: Listed, R>(
    call: &dyn Fn(Out<u32>, Out<T>) -> Status,
    seen: impl FnOnce(&[T]) -> R,
) -> Result<R, Status> {
    const AT_ONCE: usize = 64;
    const ATTEMPTS: u32 = 8;
    /// An upper bound of the number of processes on a GPU.
    const MOST: u32 = 1 << 16;
    let mut few = [T::default(); AT_ONCE];
    let mut many;
    let mut room: &mut [T] = &mut few;
    for _ in 0..ATTEMPTS {
        let mut count = room.len() as u32;
        match call(Out::of(&mut count), Out::of_all(room)) {
            SUCCESS => return Ok(seen(room.get(..count as usize).unwrap_or(room))),
            NVML_ERROR_INSUFFICIENT_SIZE if count <= MOST => {
                // The larger array leaves room for processes that start before the next call.
                many = vec![T::default(); count as usize + AT_ONCE];
                room = &mut many;
            }
            failed => return Err(failed),
        }
    }
    Err(NVML_ERROR_INSUFFICIENT_SIZE)
}

/// A [`Witness`] that searches NVML's process list for the memory of a dead process.
pub struct ProcessList;

impl Witness for ProcessList {
    fn holds_memory(
        &self,
        identity: &Identity,
        device: &DeviceId,
        lists_nested: bool,
    ) -> Option<bool> {
        // The list has only pids of this process's PID namespace.
        let own_namespace = Identity::of_self().pid_ns;
        if identity.pid_ns != own_namespace {
            return None;
        }
        let (mut is_listed, mut self_listed) = (false, false);
        each_process(find(device)?, &mut |pid, _| {
            is_listed |= pid == identity.pid;
            self_listed |= pid == std::process::id();
        })?;
        // The list proves something if it has the pids of this PID namespace.
        let is_true = || match own_namespace {
            process::FIRST_PID_NS => true,
            _ => lists_nested && process::has_own_proc(),
        };
        (is_listed || self_listed || is_true()).then_some(is_listed)
    }
}

/// How long the first use of a GPU waits for the end of the memory that this process had before
/// `exec`, and how often it looks, in milliseconds. The driver takes up to 130 (measured, H200).
const EXEC_MS: u64 = 300;
const LOOK_MS: u64 = 5;

/// Waits until the driver has freed the memory that this process had on the GPU before `exec`. The
/// process has no context yet, so what NVML lists for it is the memory of its earlier program.
/// Returns whether NVML has listed it.
pub fn await_former(device: &DeviceId) -> bool {
    let end = monotonic_ms() + EXEC_MS;
    let mut was_listed = false;
    while lists_self(device) == Some(true) && monotonic_ms() < end {
        was_listed = true;
        clock::nap(Duration::from_millis(LOOK_MS));
    }
    was_listed
}

/// Returns whether NVML lists this process on the GPU.
fn lists_self(device: &DeviceId) -> Option<bool> {
    let mut is_listed = false;
    each_process(find(device)?, &mut |pid, _| {
        is_listed |= pid == std::process::id();
    })?;
    Some(is_listed)
}
