//! The machine's GPUs and the processes that use them, from NVML.

use super::child;
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::proc;
use gpulimit_base::process::{FIRST_PID_NS, has_own_proc};
use gpulimit_ledger::{Figures, Witness, overhead};
use gpulimit_limits::Capacity;
use nvml_wrapper::enum_wrappers::device::{Clock, GpuVirtualizationMode, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{MemoryInfo, ProcessInfo, ProcessUtilizationSample};
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A GPU that NVML lists.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// NVML's index of the GPU. CUDA may number the GPUs in another order.
    pub index: u32,
    /// The GPU's UUID.
    pub id: DeviceId,
    /// The GPU's PCI bus id, `00000000:3B:00.0`; empty if unknown.
    pub bus: String,
    /// The GPU's product name; empty if unknown.
    pub name: String,
    /// The GPU's memory in bytes; `None` if unknown.
    pub capacity: Option<u64>,
    /// Whether the GPU has no memory of its own: its memory is the host's.
    pub shares_host: bool,
    /// The UUIDs of the GPU's MIG instances; `None` if the GPU is not split into instances.
    pub instances: Option<Vec<DeviceId>>,
}

/// How busy and how hot a GPU is. A figure that NVML does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Activity {
    /// The part of the last moments in which a kernel ran, in percent.
    pub busy: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// The power that the GPU takes, and the most that it may take, in watts.
    pub power: Option<u32>,
    pub power_limit: Option<u32>,
    /// The clocks of the processors and of the memory in MHz.
    pub clock: Option<u32>,
    pub memory_clock: Option<u32>,
}

/// The loaded NVML library and the GPUs that it lists.
pub struct Driver {
    nvml: Nvml,
    gpus: Vec<Gpu>,
}

impl Driver {
    /// Loads NVML and lists the machine's GPUs. Fails if NVML does not work.
    pub fn load() -> Result<Self, NvmlError> {
        // The name without `.1` exists only if the library's development package is installed.
        let nvml = Nvml::builder()
            .lib_path(OsStr::new("libnvidia-ml.so.1"))
            .init()?;
        let count = nvml.device_count()?;
        let gpus = (0..count).filter_map(|index| gpu(&nvml, index).ok());
        let mut driver = Self {
            gpus: gpus.collect(),
            nvml,
        };
        driver.find_shared();
        Ok(driver)
    }

    /// Finds the GPUs that share the host's memory: NVML has no figure of their memory, and CUDA
    /// calls them integrated. A lost GPU has another answer in NVML, and so has a MIG instance.
    fn find_shared(&mut self) {
        let lacks_memory = |gpu: &Gpu| {
            let device = self.nvml.device_by_index(gpu.index);
            let memory = device.and_then(|device| device.memory_info().map(drop));
            gpu.instances.is_none() && matches!(memory, Err(NvmlError::NotSupported))
        };
        let lacking: Vec<_> = self.gpus.iter().map(lacks_memory).collect();
        if !lacking.contains(&true) {
            return;
        }
        let integrated = child::integrated_gpus();
        for (gpu, _) in self
            .gpus
            .iter_mut()
            .zip(lacking)
            .filter(|(_, lacks)| *lacks)
        {
            let found = integrated.iter().find(|(id, _)| *id == gpu.id);
            gpu.shares_host = found.is_some();
            gpu.capacity = found.map(|(_, bytes)| *bytes).or(gpu.capacity);
        }
    }

    /// Returns all GPUs, ordered by NVML's index.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Returns whether NVML lists this GPU or MIG instance.
    pub fn lists_gpu(&self, id: DeviceId) -> bool {
        let is_it = |gpu: &Gpu| gpu.id == id || gpu.instances.iter().flatten().any(|it| *it == id);
        self.gpus.iter().any(is_it)
    }

    /// Returns every GPU or MIG instance that can have limits, with the bytes that NVML does not
    /// reserve. Instances replace their split GPU.
    pub fn capacities(&self) -> Vec<Capacity> {
        let bytes = |memory: MemoryInfo| memory.total.checked_sub(memory.reserved);
        let all = self.memory().into_iter();
        all.map(|(_, id, memory)| (id, memory.and_then(bytes)))
            .collect()
    }

    /// Returns every GPU or MIG instance with its memory as NVML counts it: its GPU, its UUID, and
    /// the figures, if known. Instances replace their split GPU.
    pub fn memory(&self) -> Vec<(&Gpu, DeviceId, Option<MemoryInfo>)> {
        let mut all = Vec::new();
        for gpu in &self.gpus {
            let ids = gpu.instances.clone().unwrap_or_else(|| vec![gpu.id]);
            all.extend(ids.into_iter().map(|id| (gpu, id, self.memory_of(&id))));
        }
        all
    }

    /// Returns the memory of a GPU or MIG instance; `None` if unknown. If the GPU shares the host's
    /// memory, free is what the host's programs can still take, and used is the rest.
    pub fn memory_of(&self, device: &DeviceId) -> Option<MemoryInfo> {
        let Some(gpu) = self
            .gpus
            .iter()
            .find(|gpu| gpu.id == *device && gpu.shares_host)
        else {
            return self.device(device)?.memory_info().ok();
        };
        let (total, (_, available)) = gpu.capacity.zip(proc::host_memory())?;
        let free = available.min(total);
        Some(MemoryInfo {
            free,
            reserved: 0,
            total,
            used: total - free,
            version: 0,
        })
    }

    /// Returns what a GPU does. NVML tells nothing of that for a MIG instance.
    pub fn activity(&self, device: &DeviceId) -> Activity {
        let is_it = |gpu: &&Gpu| gpu.id == *device && gpu.instances.is_none();
        let gpu = self.gpus.iter().find(is_it);
        let Some(gpu) = gpu.and_then(|gpu| self.nvml.device_by_index(gpu.index).ok()) else {
            return Activity::default();
        };
        let watts = |milliwatts: u32| milliwatts.div_ceil(1_000);
        Activity {
            busy: gpu.utilization_rates().ok().map(|rates| rates.gpu),
            temperature: gpu.temperature(TemperatureSensor::Gpu).ok(),
            power: gpu.power_usage().ok().map(watts),
            power_limit: gpu.enforced_power_limit().ok().map(watts),
            clock: gpu.clock_info(Clock::SM).ok(),
            memory_clock: gpu.clock_info(Clock::Memory).ok(),
        }
    }

    /// Returns each process's mean share of a GPU's processors since a time in microseconds since
    /// 1970, in percent. A process without a sample is missing, which says nothing of its use. An
    /// H200 takes 1.4 ms for the answer (580.159.04).
    pub fn shares(&self, device: &DeviceId, since_us: u64) -> BTreeMap<u32, u32> {
        let read = || {
            self.device(device)?
                .process_utilization_stats(since_us)
                .ok()
        };
        let mut samples = read().unwrap_or_default();
        samples.retain(|sample| sample.sm_util <= 100);
        samples.sort_by_key(|sample| sample.timestamp);
        let share = |sample: &ProcessUtilizationSample| (sample.pid, sample.sm_util);
        samples.iter().map(share).collect()
    }

    /// Returns the free bytes of a GPU or MIG instance; `None` if NVML does not tell.
    pub fn free(&self, device: &DeviceId) -> Option<u64> {
        self.memory_of(device).map(|memory| memory.free)
    }

    /// Returns the pid and the bytes of every compute process on a GPU or MIG instance; `None` if
    /// NVML does not tell.
    pub fn figures(&self, device: &DeviceId) -> Option<Figures> {
        let device = self.device(device)?;
        let bytes = |process: &ProcessInfo| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some((process.pid, bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        let listed = list(|| device.running_compute_processes())?;
        Some(listed.iter().filter_map(bytes).collect())
    }

    /// Returns whether NVML lists a process on any GPU, in any list. `None` if a GPU does not
    /// answer. In a container, NVML may leave out processes: that a process is missing means
    /// something only if NVML has listed the process before.
    pub fn lists(&self, pid: u32) -> Option<bool> {
        let mut listed = false;
        for gpu in &self.gpus {
            listed |= self.entries(pid, &gpu.id)?.next().is_some();
        }
        Some(listed)
    }

    /// Returns the bytes that a process has on a GPU: 0 for a process that NVML does not list, in
    /// the sense of [`Self::lists`]. `None` if NVML does not answer, or does not know the bytes.
    pub fn used_by(&self, pid: u32, device: &DeviceId) -> Option<u64> {
        // A process that is in several lists has the same bytes in each.
        self.entries(pid, device)?
            .try_fold(0, |most, entry| match entry.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes.max(most)),
                UsedGpuMemory::Unavailable => None,
            })
    }

    /// Returns the bytes that a process has on all GPUs together, as far as NVML knows them.
    pub fn used(&self, pid: u32) -> u64 {
        let used = self
            .gpus
            .iter()
            .filter_map(|gpu| self.used_by(pid, &gpu.id));
        used.fold(0, u64::saturating_add)
    }

    /// Returns whether NVML lists a process as a client of MPS.
    pub fn lists_in_mps(&self, pid: u32) -> bool {
        self.gpus.iter().any(|gpu| {
            let device = self.device(&gpu.id);
            let listed = device.and_then(|device| list(|| device.mps_running_compute_processes()));
            listed.is_some_and(|listed| listed.iter().any(|process| process.pid == pid))
        })
    }

    /// Returns the indices of the GPUs that are split into MIG instances and list a process.
    pub fn split_gpus_of(&self, pid: u32) -> Vec<u32> {
        let is_split = |gpu: &&Gpu| gpu.instances.is_some();
        let lists = |gpu: &&Gpu| {
            let entries = self.entries(pid, &gpu.id);
            entries.is_some_and(|mut entries| entries.next().is_some())
        };
        let found = self.gpus.iter().filter(is_split).filter(lists);
        found.map(|gpu| gpu.index).collect()
    }

    /// Returns the indices of the GPUs that are virtual: parts of a GPU that a hypervisor shares
    /// out.
    pub fn virtual_gpus(&self) -> Vec<u32> {
        let is_virtual = |mode| mode == GpuVirtualizationMode::Vgpu;
        self.of_which(|gpu| gpu.virtualization_mode().is_ok_and(is_virtual))
    }

    /// Returns the indices of the GPUs that are not in persistence mode.
    pub fn without_persistence(&self) -> Vec<u32> {
        self.of_which(|gpu| gpu.is_in_persistent_mode().is_ok_and(|is| !is))
    }

    fn of_which(&self, so: impl Fn(Device<'_>) -> bool) -> Vec<u32> {
        let indices = self.gpus.iter().map(|gpu| gpu.index);
        let is_one = |index: &u32| self.nvml.device_by_index(*index).is_ok_and(&so);
        indices.filter(is_one).collect()
    }

    /// Returns the pid and the bytes of every process on a GPU or MIG instance, of all lists;
    /// `None` if NVML does not tell the list, or the bytes.
    pub fn processes(&self, device: &DeviceId) -> Option<BTreeMap<u32, Option<u64>>> {
        let mut all = BTreeMap::new();
        for process in self.listed(device)? {
            let known: &mut Option<u64> = all.entry(process.pid).or_default();
            if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
                *known = (*known).max(Some(bytes));
            }
        }
        Some(all)
    }

    /// Returns the entries of a process in the lists of a GPU.
    fn entries(
        &self,
        pid: u32,
        device: &DeviceId,
    ) -> Option<impl Iterator<Item = ProcessInfo> + use<>> {
        let all = self.listed(device)?.into_iter();
        Some(all.filter(move |process| process.pid == pid))
    }

    /// Returns the lists of a GPU: compute, graphics and MPS.
    fn listed(&self, device: &DeviceId) -> Option<Vec<ProcessInfo>> {
        let device = self.device(device)?;
        let mut all = list(|| device.running_compute_processes())?;
        all.extend(list(|| device.running_graphics_processes())?);
        all.extend(list(|| device.mps_running_compute_processes())?);
        Some(all)
    }

    fn device(&self, id: &DeviceId) -> Option<Device<'_>> {
        match self.gpus.iter().find(|gpu| gpu.id == *id) {
            Some(gpu) => self.nvml.device_by_index(gpu.index).ok(),
            None => self.nvml.device_by_uuid(id.to_string()).ok(),
        }
    }

    /// Returns the version of the NVIDIA driver, such as `580.65.06`.
    pub fn version(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }
}

/// Reads one of NVML's process lists. A list that this GPU or driver does not have is empty.
fn list(read: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>) -> Option<Vec<ProcessInfo>> {
    /// A list that grows while it is read is read again.
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        match read() {
            Ok(list) => return Some(list),
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {
                return Some(Vec::new());
            }
            Err(NvmlError::InsufficientSize(_)) => {}
            Err(_) => return None,
        }
    }
    None
}

fn gpu(nvml: &Nvml, index: u32) -> Result<Gpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let uuid = device.uuid()?;
    Ok(Gpu {
        index,
        id: uuid.parse().map_err(|_| NvmlError::UnexpectedVariant(0))?,
        bus: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
        name: device.name().unwrap_or_default(),
        capacity: device.memory_info().ok().map(|memory| memory.total),
        shares_host: false,
        instances: instances(&device),
    })
}

fn instances(gpu: &Device<'_>) -> Option<Vec<DeviceId>> {
    const ENABLED: u32 = 1;
    if gpu.mig_mode().ok()?.current != ENABLED {
        return None;
    }
    // NVML numbers the places for MIG instances on a GPU. Some of these places are empty.
    let places = gpu.mig_device_count().unwrap_or(0);
    let id = |place| {
        gpu.mig_device_by_index(place)
            .ok()?
            .uuid()
            .ok()?
            .parse()
            .ok()
    };
    Some((0..places).filter_map(id).collect())
}

impl Witness for Driver {
    /// Returns whether the driver lists the process. `None` if unknown.
    fn holds_memory(
        &self,
        identity: &Identity,
        device: &DeviceId,
        lists_nested: bool,
    ) -> Option<bool> {
        let gpu = self.gpus.iter().find(|gpu| gpu.id == *device)?;
        let device = self.nvml.device_by_index(gpu.index).ok()?;
        let own_namespace = pid_namespace()?;
        if own_namespace != identity.pid_ns {
            return None;
        }
        let listed = device.running_compute_processes().ok()?;
        let holds = listed.iter().any(|process| process.pid == identity.pid);
        // The list proves something if it has the pids of this PID namespace.
        let is_true = || match own_namespace {
            FIRST_PID_NS => true,
            _ => lists_nested && has_own_proc(),
        };
        (holds || is_true()).then_some(holds)
    }

    fn is_held_by_nobody(&self, device: &DeviceId, capacity: u64) -> Option<bool> {
        // Elsewhere the list may lack processes.
        if pid_namespace()? != FIRST_PID_NS {
            return None;
        }
        let free = self.device(device)?.memory_info().ok()?.free;
        let all = self.processes(device)?;
        let listed = all
            .values()
            .try_fold(0, |sum: u64, bytes| Some(sum + (*bytes)?))?;
        Some(capacity.saturating_sub(free) > listed + overhead(all.len()))
    }
}

fn pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}
