//! The GPUs of the machine and who uses them, as NVML says.

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_ledger::Witness;
use gpulimit_limits::Capacity;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A GPU that NVML lists.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// NVML's index, which CUDA's ordinal need not be.
    pub index: u32,
    /// Its UUID.
    pub id: DeviceId,
    /// PCI bus id, `00000000:3B:00.0`; empty when unknown.
    pub bus: String,
    /// The product; empty when unknown.
    pub name: String,
    /// Memory in bytes; `None` unknown.
    pub capacity: Option<u64>,
    /// Its MIG instances; `None` where it is not cut into any.
    pub instances: Option<Vec<DeviceId>>,
}

/// NVML, where there is one.
pub struct Driver {
    nvml: Nvml,
    gpus: Vec<Gpu>,
}

impl Driver {
    /// Loads and asks NVML; the error says why there is none.
    pub fn load() -> Result<Self, NvmlError> {
        // The plain name comes with development packages only.
        let nvml = Nvml::builder()
            .lib_path(OsStr::new("libnvidia-ml.so.1"))
            .init()?;
        let count = nvml.device_count()?;
        let gpus = (0..count)
            .filter_map(|index| gpu(&nvml, index).ok())
            .collect();
        Ok(Self { nvml, gpus })
    }

    /// All GPUs, by index.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// All GPUs that can have limits, MIG instances in place of the GPUs that are cut, and the
    /// bytes that programs can have of each: what NVML calls reserved is not theirs.
    pub fn capacities(&self) -> Vec<Capacity> {
        let bytes = |device: Result<Device<'_>, NvmlError>| {
            let memory = device.ok()?.memory_info().ok()?;
            memory.total.checked_sub(memory.reserved)
        };
        let mut all = Vec::new();
        for gpu in &self.gpus {
            match &gpu.instances {
                None => all.push((gpu.id, bytes(self.nvml.device_by_index(gpu.index)))),
                Some(instances) => all.extend(instances.iter().map(|id| {
                    let device = self.nvml.device_by_uuid(id.to_string());
                    (*id, bytes(device))
                })),
            }
        }
        all
    }

    /// The driver's version, `580.65.06`.
    pub fn version(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }
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
        instances: instances(&device),
    })
}

fn instances(gpu: &Device<'_>) -> Option<Vec<DeviceId>> {
    const ENABLED: u32 = 1;
    if gpu.mig_mode().ok()?.current != ENABLED {
        return None;
    }
    // NVML numbers the places for instances, of which some are empty.
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

/// Inode of the first pid namespace, in which NVML sees pids as they are (linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

impl Witness for Driver {
    /// A process that is listed holds memory, where no other program of it accounts for that. That
    /// one is not listed says something only where NVML's pids are those of the ledger: without pid
    /// namespaces in between.
    fn holds_memory(&self, identity: &Identity, device: &DeviceId, covered: u64) -> Option<bool> {
        let gpu = self.gpus.iter().find(|gpu| gpu.id == *device)?;
        let device = self.nvml.device_by_index(gpu.index).ok()?;
        let ours = pid_namespace()?;
        if ours != identity.pid_ns {
            return None;
        }
        let listed = device.running_compute_processes().ok()?;
        let bytes = |process: &ProcessInfo| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => bytes,
            UsedGpuMemory::Unavailable => u64::MAX,
        };
        let own = listed.iter().filter(|process| process.pid == identity.pid);
        let held = own.map(bytes).reduce(u64::saturating_add);
        let holds = held.is_some_and(|held| held > covered || covered == 0);
        (holds || ours == FIRST_PID_NAMESPACE).then_some(holds)
    }
}

fn pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}
