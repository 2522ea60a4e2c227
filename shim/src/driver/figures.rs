//! The driver's own figures: what NVML says this process holds, and which processes it still lists.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_group::Undisturbed;
use gpulimit_ledger::Witness;
use once_cell::race::OnceBool;

use crate::abi::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_NOT_AVAILABLE, NvmlDevice, NvmlMemory, NvmlProcessDetail,
    NvmlProcessV1, NvmlProcessV2, Opaque, Out, SUCCESS, Status,
};
use crate::driver::{answer, nvml};

/// Whether NVML answers. Initialises it at first use and never shuts it down: it counts its users.
fn ready() -> bool {
    static READY: OnceBool = OnceBool::new();
    READY.get_or_init(|| nvml::NVML.present() && nvml::nvmlInit_v2() == SUCCESS)
}

/// The NVML handle of a device, found once.
#[derive(Default)]
pub struct Handle(AtomicUsize);

impl Handle {
    fn get(&self, id: &DeviceId) -> Option<NvmlDevice> {
        let known = self.0.load(Ordering::Acquire);
        if known != 0 {
            return Some(known);
        }
        let found = find(id)?;
        self.0.store(found, Ordering::Release);
        Some(found)
    }

    /// Bytes that the driver shows for this process on the device, 0 when it lists none; `None`
    /// when it cannot tell.
    pub fn own_bytes(&self, id: &DeviceId) -> Option<u64> {
        let mut bytes = 0u64;
        let pid = std::process::id();
        each_process(self.get(id)?, &mut |listed, used| {
            if listed == pid {
                // A MIG device may list a process more than once.
                bytes = bytes.saturating_add(used);
            }
        })?;
        Some(bytes)
    }
}

fn find(id: &DeviceId) -> Option<NvmlDevice> {
    let _undisturbed = Undisturbed::new();
    if !ready() {
        return None;
    }
    let text = CString::new(id.to_string()).ok()?;
    answer(|device| nvml::nvmlDeviceGetHandleByUUID(text.as_ptr() as Opaque, device)).ok()
}

/// The device behind a handle of the program's.
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

/// Whether a whole GPU is cut into MIG instances: its memory is then theirs.
pub fn is_cut(device: NvmlDevice) -> bool {
    const ENABLED: u32 = 1;
    let (mut current, mut pending) = (0, 0);
    nvml::nvmlDeviceGetMigMode(device, Out::of(&mut current), Out::of(&mut pending)) == SUCCESS
        && current == ENABLED
}

/// An element of a process list.
pub trait Listed: Copy + Default {
    /// The pid, and bytes or [`NVML_NOT_AVAILABLE`].
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

/// Whether the elements of `_v3` lists are larger than the header of today says: in the first R535
/// drivers, which are those with the one function but not the other.
pub fn is_early_535() -> bool {
    use nvml::has;
    has::nvmlDeviceGetConfComputeMemSizeInfo() && !has::nvmlDeviceGetRunningProcessDetailList()
}

/// Bytes of the device that are not free, of the `capacity` that CUDA says that it has.
pub fn used(id: &DeviceId, capacity: u64) -> Option<u64> {
    let device = find(id)?;
    let memory: NvmlMemory = answer(|memory| nvml::nvmlDeviceGetMemoryInfo(device, memory)).ok()?;
    Some(capacity.saturating_sub(memory.free))
}

/// Pid and bytes of every compute process on the device; `None` when the driver does not tell.
pub fn processes(id: &DeviceId) -> Option<Vec<(u32, u64)>> {
    let mut all = Vec::new();
    each_process(find(id)?, &mut |pid, bytes| all.push((pid, bytes)))?;
    Some(all)
}

/// Calls `seen` with pid and bytes of every compute process on the device. `None` when the list
/// cannot be had.
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

/// Hands `seen` the whole list, fetched by `call` into room of ours. Fails with the driver's
/// status, or when the list grows faster than we can ask.
pub fn whole_list<T: Listed, R>(
    call: &dyn Fn(Out<u32>, Out<T>) -> Status,
    seen: impl FnOnce(&[T]) -> R,
) -> Result<R, Status> {
    const AT_ONCE: usize = 64;
    const ATTEMPTS: u32 = 8;
    /// More processes than a GPU can have.
    const MOST: u32 = 1 << 16;
    let mut few = [T::default(); AT_ONCE];
    let mut many;
    let mut room: &mut [T] = &mut few;
    for _ in 0..ATTEMPTS {
        let mut count = room.len() as u32;
        match call(Out::of(&mut count), Out::of_all(room)) {
            SUCCESS => return Ok(seen(room.get(..count as usize).unwrap_or(room))),
            NVML_ERROR_INSUFFICIENT_SIZE if count <= MOST => {
                // More may come before the next call.
                many = vec![T::default(); count as usize + AT_ONCE];
                room = &mut many;
            }
            failed => return Err(failed),
        }
    }
    Err(NVML_ERROR_INSUFFICIENT_SIZE)
}

/// Tells from the driver's process list whether a dead process's memory is still held.
pub struct ProcessList;

impl Witness for ProcessList {
    fn holds_memory(&self, identity: &Identity, device: &DeviceId, covered: u64) -> Option<bool> {
        // Pids of another namespace mean nothing here.
        if identity.pid_ns != Identity::of_self().pid_ns {
            return None;
        }
        let (mut held, mut self_listed) = (None, false);
        let own = std::process::id();
        each_process(find(device)?, &mut |pid, used| {
            if pid == identity.pid {
                held = Some(held.unwrap_or(0u64).saturating_add(used));
            }
            self_listed |= pid == own;
        })?;
        match held {
            // One that is listed with nothing may be about to take or to lose something.
            Some(held) => Some(held > covered || covered == 0),
            // Where the list does not even know ourselves it may be blind to this namespace.
            None => self_listed.then_some(false),
        }
    }
}
