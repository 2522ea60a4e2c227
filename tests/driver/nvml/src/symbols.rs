//! The table of NVML's exported functions.
#![allow(non_snake_case)]

use gpulimit_sim::abi::{Out, Site, Text};
use gpulimit_sim::cancel::Whole;

use crate::{code, device, process, system};

macro_rules! symbols {
    ($($name:ident($($argument:ident: $type:ty),*) => $handler:path;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> i32 {
            let _whole = Whole::new();
            static SITE: Site = Site::new(stringify!($name));
            SITE.run(|| $handler($($argument),*).map_or_else(|code| code.0, |()| 0))
        }
    )*};
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: i32) -> *const u8 {
    code::describe(code).as_ptr()
}

symbols! {
    nvmlInit() => system::init;
    nvmlInit_v2() => system::init;
    nvmlInitWithFlags(flags: u32) => system::init_with_flags;
    nvmlShutdown() => system::shutdown;
    nvmlSystemGetDriverVersion(version: Out<u8>, length: u32) => system::driver_version;
    nvmlSystemGetNVMLVersion(version: Out<u8>, length: u32) => system::nvml_version;
    nvmlSystemGetCudaDriverVersion(version: Out<i32>) => system::cuda_version;
    nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) => system::cuda_version;
    nvmlSystemGetProcessName(pid: u32, name: Out<u8>, length: u32) => system::process_name;
    nvmlDeviceGetCount(count: Out<u32>) => device::count;
    nvmlDeviceGetCount_v2(count: Out<u32>) => device::count;
    nvmlDeviceGetHandleByIndex(index: u32, device: Out<usize>) => device::by_index;
    nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<usize>) => device::by_index;
    nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<usize>) => device::by_uuid;
    nvmlDeviceGetHandleByPciBusId(id: Text, device: Out<usize>) => device::by_bus_id;
    nvmlDeviceGetHandleByPciBusId_v2(id: Text, device: Out<usize>) => device::by_bus_id;
    nvmlDeviceGetIndex(device: usize, index: Out<u32>) => device::index;
    nvmlDeviceGetMinorNumber(device: usize, number: Out<u32>) => device::minor_number;
    nvmlDeviceGetName(device: usize, name: Out<u8>, length: u32) => device::name;
    nvmlDeviceGetUUID(device: usize, uuid: Out<u8>, length: u32) => device::uuid;
    nvmlDeviceGetPciInfo(device: usize, pci: Out<u8>) => device::pci_info;
    nvmlDeviceGetPciInfo_v2(device: usize, pci: Out<u8>) => device::pci_info;
    nvmlDeviceGetPciInfo_v3(device: usize, pci: Out<u8>) => device::pci_info;
    nvmlDeviceGetMemoryInfo(device: usize, memory: Out<[u64; 3]>) => device::memory_v1;
    nvmlDeviceGetMemoryInfo_v2(device: usize, memory: Out<u64>) => device::memory_v2;
    nvmlDeviceGetBAR1MemoryInfo(device: usize, memory: Out<[u64; 3]>) => device::bar1;
    nvmlDeviceGetComputeRunningProcesses(device: usize, count: Out<u32>, infos: Out<u8>)
        => process::compute_v1;
    nvmlDeviceGetComputeRunningProcesses_v2(device: usize, count: Out<u32>, infos: Out<u8>)
        => process::compute_v2;
    nvmlDeviceGetComputeRunningProcesses_v3(device: usize, count: Out<u32>, infos: Out<u8>)
        => process::compute_v3;
    nvmlDeviceGetGraphicsRunningProcesses(device: usize, count: Out<u32>, infos: Out<u8>)
        => process::graphics_v1;
    nvmlDeviceGetGraphicsRunningProcesses_v2(device: usize, count: Out<u32>, infos: Out<u8>)
        => process::graphics_v2;
    nvmlDeviceGetGraphicsRunningProcesses_v3(device: usize, count: Out<u32>, infos: Out<u8>)
        => process::graphics_v3;
    nvmlDeviceGetMPSComputeRunningProcesses(device: usize, count: Out<u32>, infos: Out<u8>)
        => process::mps_v1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(device: usize, count: Out<u32>, infos: Out<u8>)
        => process::mps_v2;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device: usize, count: Out<u32>, infos: Out<u8>)
        => process::mps_v3;
    nvmlDeviceGetRunningProcessDetailList(device: usize, list: Out<u8>) => process::details;
    nvmlDeviceGetProcessUtilization(device: usize, samples: Out<u8>, count: Out<u32>, since: u64)
        => process::utilization;
    nvmlDeviceGetConfComputeMemSizeInfo(device: usize, info: Out<u8>) => device::unsupported_info;
    nvmlDeviceGetMigMode(device: usize, current: Out<u32>, pending: Out<u32>) => device::mig_mode;
    nvmlDeviceIsMigDeviceHandle(device: usize, answer: Out<u32>) => device::is_mig;
    nvmlDeviceGetMaxMigDeviceCount(device: usize, count: Out<u32>) => device::max_mig_count;
    nvmlDeviceGetMigDeviceHandleByIndex(device: usize, index: u32, mig: Out<usize>)
        => device::mig_handle;
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: usize, parent: Out<usize>)
        => device::mig_parent;
    nvmlDeviceGetGpuInstanceId(device: usize, id: Out<u32>) => device::gpu_instance;
    nvmlDeviceGetComputeInstanceId(device: usize, id: Out<u32>) => device::compute_instance;
    nvmlDeviceGetUtilizationRates(device: usize, rates: Out<[u32; 2]>) => device::utilization;
    nvmlDeviceGetTemperature(device: usize, sensor: i32, degrees: Out<u32>) => device::temperature;
    nvmlDeviceGetPowerUsage(device: usize, milliwatts: Out<u32>) => device::power;
    nvmlDeviceGetEnforcedPowerLimit(device: usize, milliwatts: Out<u32>) => device::power_limit;
    nvmlDeviceGetPowerManagementLimit(device: usize, milliwatts: Out<u32>) => device::power_limit;
    nvmlDeviceGetClockInfo(device: usize, kind: i32, mhz: Out<u32>) => device::clock;
    nvmlDeviceGetMaxClockInfo(device: usize, kind: i32, mhz: Out<u32>) => device::clock;
    nvmlDeviceGetFanSpeed(device: usize, percent: Out<u32>) => device::unsupported;
    nvmlDeviceGetPerformanceState(device: usize, state: Out<u32>) => device::zero;
    nvmlDeviceGetPersistenceMode(device: usize, mode: Out<u32>) => device::zero;
    nvmlDeviceGetDisplayActive(device: usize, active: Out<u32>) => device::zero;
    nvmlDeviceGetDisplayMode(device: usize, mode: Out<u32>) => device::zero;
    nvmlDeviceGetComputeMode(device: usize, mode: Out<u32>) => device::zero;
    nvmlDeviceGetCudaComputeCapability(device: usize, major: Out<i32>, minor: Out<i32>)
        => device::capability;
}
