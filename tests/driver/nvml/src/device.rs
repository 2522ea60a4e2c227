//! NVML's functions for GPUs and their MIG instances. NVML numbers all GPUs in PCI order, visible
//! to CUDA or not.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use gpulimit_sim::abi::{Out, Text};
use gpulimit_sim::machine::{BLOCK, Machine, RESERVED};
use gpulimit_sim::{device, grant, host, process};

use crate::code::{Answer, Code};
use crate::own;
use crate::system::{machine, text};

/// The base of all device handles. A handle adds 16 times an index to this base.
const HANDLES: usize = 0x6e76_6d6c_0000;
/// The index of a MIG instance is this number plus its device number; the index of a GPU is its PCI
/// index.
const MIG: usize = 64;

/// The object that an NVML device handle stands for: a GPU or a MIG instance.
#[derive(Clone, Copy)]
pub enum Unit {
    /// A GPU, by its PCI index. The GPU may be divided into MIG instances.
    Gpu(usize),
    /// A MIG instance, by its device number.
    Instance(usize),
}

impl Unit {
    /// Returns the PCI index of the GPU. For a MIG instance this is the GPU that contains the
    /// instance.
    fn gpu(self, machine: &Machine) -> usize {
        match self {
            Unit::Gpu(gpu) => gpu,
            Unit::Instance(device) => device::gpu_of(machine, device),
        }
    }

    /// Returns the devices with memory of their own: the GPU or MIG instance itself, or all MIG
    /// instances of a divided GPU.
    pub fn devices(self, machine: &Machine) -> Range<usize> {
        match self {
            Unit::Gpu(gpu) => device::devices_of(machine, gpu),
            Unit::Instance(device) => device..device + 1,
        }
    }

    fn uuid(self, machine: &Machine) -> String {
        match self {
            Unit::Gpu(gpu) => device::uuid_text(gpu),
            Unit::Instance(device) => device::full_name(machine, device),
        }
    }

    fn handle(self) -> usize {
        match self {
            Unit::Gpu(gpu) => HANDLES + gpu * 16,
            Unit::Instance(device) => HANDLES + (MIG + device) * 16,
        }
    }
}

fn gpus(machine: &Machine) -> impl Iterator<Item = Unit> {
    (0..device::gpus(machine)).map(Unit::Gpu)
}

fn all(machine: &Machine) -> impl Iterator<Item = Unit> {
    let instances = match device::instances(machine) {
        0 => 0,
        _ => device::count(machine),
    };
    gpus(machine).chain((0..instances).map(Unit::Instance))
}

/// Returns the simulated machine, and the GPU or MIG instance of an NVML device handle.
pub fn open(handle: usize) -> Result<(&'static Machine, Unit), Code> {
    let machine = machine()?;
    let unit = all(machine).find(|unit| unit.handle() == handle);
    Ok((machine, unit.ok_or(Code::INVALID_ARGUMENT)?))
}

/// Returns the simulated machine and the GPU of a device handle. Fails for a MIG instance.
fn open_gpu(handle: usize) -> Result<(&'static Machine, usize), Code> {
    match open(handle)? {
        (machine, Unit::Gpu(gpu)) => Ok((machine, gpu)),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Returns the simulated machine and the MIG instance of a device handle. Fails for a GPU.
fn open_instance(handle: usize) -> Result<(&'static Machine, usize), Code> {
    match open(handle)? {
        (machine, Unit::Instance(device)) => Ok((machine, device)),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

pub fn count(out: Out<u32>) -> Answer {
    Ok(out.put(device::gpus(machine()?) as u32)?)
}

pub fn by_index(index: u32, out: Out<usize>) -> Answer {
    if index as usize >= device::gpus(machine()?) {
        return Err(Code::INVALID_ARGUMENT);
    }
    Ok(out.put(Unit::Gpu(index as usize).handle())?)
}

pub fn by_uuid(uuid: Text, out: Out<usize>) -> Answer {
    let machine = machine()?;
    let wanted = uuid.str()?;
    let found = all(machine).find(|unit| unit.uuid(machine) == wanted);
    Ok(out.put(found.ok_or(Code::NOT_FOUND)?.handle())?)
}

pub fn by_bus_id(id: Text, out: Out<usize>) -> Answer {
    let machine = machine()?;
    let wanted = id.str()?;
    let found = gpus(machine).find(|unit| device::pci(unit.gpu(machine)).is_named(wanted));
    Ok(out.put(found.ok_or(Code::NOT_FOUND)?.handle())?)
}

/// Writes the index of a GPU, or the number of a MIG instance on its GPU.
pub fn index(handle: usize, out: Out<u32>) -> Answer {
    let (machine, unit) = open(handle)?;
    let index = match unit {
        Unit::Gpu(gpu) => gpu,
        Unit::Instance(device) => device % device::instances(machine),
    };
    Ok(out.put(index as u32)?)
}

pub fn name(handle: usize, out: Out<u8>, length: u32) -> Answer {
    open(handle)?;
    text(out, device::NAME, length)
}

pub fn uuid(handle: usize, out: Out<u8>, length: u32) -> Answer {
    let (machine, unit) = open(handle)?;
    text(out, &unit.uuid(machine), length)
}

/// Writes an `nvmlPciInfo_t` for a GPU. The bus id stands at the start (16 bytes) and at the end
/// (32 bytes).
pub fn pci_info(handle: usize, out: Out<u8>) -> Answer {
    let (machine, unit) = open(handle)?;
    let pci = device::pci(unit.gpu(machine));
    out.text(&pci.bus_id(), 16)?;
    for (at, value) in [
        (16, pci.domain),
        (20, pci.bus),
        (24, pci.device),
        (28, 0x2330_10de),
        (32, 0x16c1_10de),
    ] {
        out.at(at).cast().put(value)?;
    }
    Ok(out.at(36).text(&format!("0000{}", pci.bus_id()), 32)?)
}

/// Returns the total, reserved, free and used bytes of a GPU (with all its MIG instances) or of one
/// MIG instance. Reserved bytes are not used bytes.
fn memory(handle: usize) -> Result<[u64; 4], Code> {
    let (machine, unit) = open(handle)?;
    if host::is_shared(machine) && machine.knobs.nvml_memory.load(Relaxed) == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    process::scan(machine, false);
    let mut sums = [0; 4];
    for index in unit.devices(machine) {
        let capacity = device::capacity(machine, index);
        let reserved = RESERVED / device::instances(machine).max(1) as u64;
        let used = grant::used(machine, index) * BLOCK;
        let free = capacity.saturating_sub(used);
        for (sum, bytes) in sums
            .iter_mut()
            .zip([capacity + reserved, reserved, free, used])
        {
            *sum += bytes;
        }
    }
    Ok(sums)
}

/// Writes an `nvmlMemory_t`: total, free and used bytes. Here the used bytes include the reserved
/// bytes.
pub fn memory_v1(handle: usize, out: Out<[u64; 3]>) -> Answer {
    // The first word holds the version of `nvmlMemory_v2_t` and its size.
    let mut whole = [0x0200_0028, 0, 0, 0, 0];
    let (total, free) = match own::memory_v2(handle, &mut whole) {
        Some(answer) => answer.map(|()| (whole[1], whole[3]))?,
        None => memory(handle).map(|[total, _, free, _]| (total, free))?,
    };
    Ok(out.put([total, free, total - free])?)
}

/// Writes an `nvmlMemory_v2_t`: version, total, reserved, free and used bytes.
pub fn memory_v2(handle: usize, out: Out<u64>) -> Answer {
    let memory = memory(handle)?;
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if out.cast::<u32>().read()? != 0x0200_0028 {
        return Err(Code::VERSION_MISMATCH);
    }
    for (at, value) in memory.into_iter().enumerate() {
        out.at(at + 1).put(value)?;
    }
    Ok(())
}

pub fn bar1(handle: usize, out: Out<[u64; 3]>) -> Answer {
    open(handle)?;
    Ok(out.put([128 << 30, (128 << 30) - (2 << 20), 2 << 20])?)
}

/// Checks the device handle and writes `value`.
fn constant<T>(handle: usize, out: Out<T>, value: T) -> Answer {
    open(handle)?;
    Ok(out.put(value)?)
}

pub fn minor_number(handle: usize, out: Out<u32>) -> Answer {
    let (machine, unit) = open(handle)?;
    constant(handle, out, unit.gpu(machine) as u32)
}

pub fn zero(handle: usize, out: Out<u32>) -> Answer {
    constant(handle, out, 0)
}

/// Writes the part of the time in which the GPU and its memory were busy, in percent.
pub fn utilization(handle: usize, out: Out<[u32; 2]>) -> Answer {
    let (machine, gpu) = open_gpu(handle)?;
    if device::instances(machine) > 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let busy = machine.knobs.busy[gpu].load(Relaxed);
    Ok(out.put([busy, busy / 2])?)
}

pub fn temperature(handle: usize, _sensor: i32, out: Out<u32>) -> Answer {
    let (machine, gpu) = open_gpu(handle)?;
    Ok(out.put(machine.knobs.temperature[gpu].load(Relaxed))?)
}

pub fn power(handle: usize, out: Out<u32>) -> Answer {
    let (machine, gpu) = open_gpu(handle)?;
    Ok(out.put(machine.knobs.power[gpu].load(Relaxed))?)
}

pub fn power_limit(handle: usize, out: Out<u32>) -> Answer {
    open_gpu(handle)?;
    Ok(out.put(700_000)?)
}

/// Writes the clock of the processors, or of the memory (`NVML_CLOCK_MEM`), in MHz.
pub fn clock(handle: usize, kind: i32, out: Out<u32>) -> Answer {
    const MEMORY: i32 = 2;
    open_gpu(handle)?;
    Ok(out.put(if kind == MEMORY { 2619 } else { 1980 })?)
}

pub fn capability(handle: usize, major: Out<i32>, minor: Out<i32>) -> Answer {
    constant(handle, major, 9)?;
    Ok(minor.put(0)?)
}

pub fn mig_mode(handle: usize, current: Out<u32>, pending: Out<u32>) -> Answer {
    let (machine, _) = open_gpu(handle)?;
    let enabled = (device::instances(machine) > 0).into();
    current.put(enabled)?;
    Ok(pending.put(enabled)?)
}

pub fn is_mig(handle: usize, out: Out<u32>) -> Answer {
    let (_, unit) = open(handle)?;
    Ok(out.put(matches!(unit, Unit::Instance(_)).into())?)
}

pub fn max_mig_count(handle: usize, out: Out<u32>) -> Answer {
    let (machine, _) = open_gpu(handle)?;
    Ok(out.put(device::instances(machine) as u32)?)
}

pub fn mig_handle(handle: usize, index: u32, out: Out<usize>) -> Answer {
    let (machine, gpu) = open_gpu(handle)?;
    if index as usize >= device::instances(machine) {
        return Err(Code::NOT_FOUND);
    }
    let device = device::devices_of(machine, gpu).start + index as usize;
    Ok(out.put(Unit::Instance(device).handle())?)
}

pub fn mig_parent(handle: usize, out: Out<usize>) -> Answer {
    let (machine, device) = open_instance(handle)?;
    Ok(out.put(Unit::Gpu(device::gpu_of(machine, device)).handle())?)
}

/// Returns the ids of a device's GPU instance and compute instance. For a whole GPU all bits of
/// both ids are set.
pub fn instance_ids(machine: &Machine, device: usize) -> [u32; 2] {
    match device::instances(machine) {
        0 => [u32::MAX; 2],
        instances => [1 + (device % instances) as u32, 0],
    }
}

pub fn gpu_instance(handle: usize, out: Out<u32>) -> Answer {
    let (machine, device) = open_instance(handle)?;
    Ok(out.put(instance_ids(machine, device)[0])?)
}

pub fn compute_instance(handle: usize, out: Out<u32>) -> Answer {
    let (machine, device) = open_instance(handle)?;
    Ok(out.put(instance_ids(machine, device)[1])?)
}

pub fn unsupported_info(handle: usize, _out: Out<u8>) -> Answer {
    open(handle)?;
    Err(Code::NOT_SUPPORTED)
}

pub fn unsupported(handle: usize, _out: Out<u32>) -> Answer {
    open(handle)?;
    Err(Code::NOT_SUPPORTED)
}
