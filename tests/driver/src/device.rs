//! The simulated GPUs and their MIG instances. All GPUs are of the type H100 80GB, on which memory
//! sizes were measured.
//!
//! In this package a *device* is a whole GPU, or a MIG instance of a divided GPU. Devices and GPUs
//! are numbered in PCI order.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use crate::context::STACK;
use crate::machine::{BLOCK, MAX_DEVICES, Machine};
use crate::{Outcome, Status, host};

/// The product name.
pub const NAME: &str = "NVIDIA H100 80GB HBM3";
/// The number of multiprocessors of one GPU.
const MULTIPROCESSORS: u64 = 132;
/// The number of threads that one multiprocessor can run at once.
pub const THREADS_PER_MULTIPROCESSOR: u64 = 2048;

/// The PCI address of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pci {
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u32,
    /// PCI device.
    pub device: u32,
}

impl Pci {
    /// Returns the PCI address as text, for example `0000:1B:00.0`.
    pub fn bus_id(self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// Returns whether a text names this PCI address, with or without the domain and the function.
    pub fn is_named(self, text: &str) -> bool {
        let (id, text) = (self.bus_id(), text.to_uppercase());
        [&id[..], &id[..10], &id[5..], &id[5..10]].contains(&&text[..])
            || text == format!("0000{id}")
    }
}

/// Returns the PCI address of the GPU with this index in PCI order.
pub fn pci(index: usize) -> Pci {
    Pci {
        domain: 0,
        bus: 0x1b + 0x0d * index as u32,
        device: 0,
    }
}

/// Returns the UUID of the GPU with this index in PCI order: a version 4 UUID made from the index.
pub fn uuid(index: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(index as u64 + 0x51);
    for half in bytes.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        half.copy_from_slice(&(mixed ^ mixed >> 31).to_be_bytes());
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// Returns a GPU's UUID with the prefix `GPU-`, as NVML writes it.
pub fn uuid_text(gpu: usize) -> String {
    written("GPU", uuid(gpu))
}

fn written(kind: &str, uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{kind}-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Returns how many GPUs the simulated machine has.
pub fn gpus(machine: &Machine) -> usize {
    machine.knobs.devices.load(Relaxed) as usize
}

/// Returns the number of MIG instances of each GPU; 0 without MIG.
pub fn instances(machine: &Machine) -> usize {
    machine.knobs.mig.load(Relaxed) as usize
}

/// Returns how many devices the simulated machine has: its GPUs, or with MIG their instances.
pub fn count(machine: &Machine) -> usize {
    (gpus(machine) * instances(machine).max(1)).min(MAX_DEVICES)
}

/// Returns the GPU of a device: the device itself, or the GPU that the MIG instance is part of.
pub fn gpu_of(machine: &Machine, device: usize) -> usize {
    device / instances(machine).max(1)
}

/// Returns the devices of a GPU: the GPU itself, or its MIG instances.
pub fn devices_of(machine: &Machine, gpu: usize) -> Range<usize> {
    let each = instances(machine).max(1);
    gpu * each..(gpu + 1) * each
}

/// Returns the UUID of a MIG instance; `None` for a whole GPU.
pub fn instance_uuid(machine: &Machine, device: usize) -> Option<[u8; 16]> {
    (instances(machine) > 0).then(|| uuid(MAX_DEVICES + device))
}

/// Returns a device's UUID with the prefix `GPU-` or `MIG-`, as NVML writes it.
pub fn full_name(machine: &Machine, device: usize) -> String {
    match instance_uuid(machine, device) {
        Some(uuid) => written("MIG", uuid),
        None => uuid_text(device),
    }
}

/// Returns the total memory of a device in bytes, as CUDA reports it. MIG instances have equal
/// shares.
pub fn capacity(machine: &Machine, device: usize) -> u64 {
    let whole = machine.knobs.capacity[gpu_of(machine, device)].load(Relaxed);
    match instances(machine) {
        0 => whole,
        instances => whole / instances as u64 / BLOCK * BLOCK,
    }
}

/// Returns the number of multiprocessors, by the knob `context-bytes`. Stacks take 264 of the 518
/// MiB of an H100's context (measured).
pub fn multiprocessors(machine: &Machine) -> u64 {
    let fitting = machine.knobs.context_bytes.load(Relaxed) / (THREADS_PER_MULTIPROCESSOR * STACK);
    fitting.clamp(1, MULTIPROCESSORS)
}

/// Returns the visible devices by CUDA ordinal. With MIG, only the first device is visible
/// (NVIDIA's MIG user guide).
pub fn visible(machine: &Machine) -> &'static [usize] {
    static VISIBLE: OnceLock<Vec<usize>> = OnceLock::new();
    VISIBLE.get_or_init(|| {
        let mut order: Vec<usize> = (0..gpus(machine)).collect();
        let by_bus = std::env::var("CUDA_DEVICE_ORDER").is_ok_and(|order| order == "PCI_BUS_ID");
        if machine.knobs.reversed.load(Relaxed) != 0 && !by_bus {
            order.reverse();
        }
        let order: Vec<usize> = order
            .into_iter()
            .flat_map(|gpu| devices_of(machine, gpu))
            .filter(|device| *device < MAX_DEVICES)
            .collect();
        let mut seen = match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => select(machine, &order, &list),
            Err(_) => order,
        };
        if instances(machine) > 0 {
            seen.truncate(1);
        }
        seen
    })
}

/// Returns the devices in `list` (UUIDs, or indices into `order`) up to an invalid element; none if
/// a device is repeated.
fn select(machine: &Machine, order: &[usize], list: &str) -> Vec<usize> {
    let mut chosen = Vec::new();
    for name in list.split(',').map(str::trim) {
        let found = if name.starts_with("GPU-") {
            // With MIG, the UUID of a GPU stands for the first instance of that GPU.
            unique((0..gpus(machine)).filter(|gpu| uuid_text(*gpu).starts_with(name)))
                .map(|gpu| devices_of(machine, gpu).start)
        } else if name.starts_with("MIG-") {
            let fits = |device: &usize| full_name(machine, *device).starts_with(name);
            unique(order.iter().copied().filter(fits))
        } else {
            name.parse::<usize>()
                .ok()
                .and_then(|ordinal| order.get(ordinal).copied())
        };
        match found {
            Some(device) if chosen.contains(&device) => return Vec::new(),
            Some(device) => chosen.push(device),
            None => break,
        }
    }
    chosen
}

fn unique(mut fitting: impl Iterator<Item = usize>) -> Option<usize> {
    let first = fitting.next()?;
    fitting.next().is_none().then_some(first)
}

/// Returns the device with a CUDA ordinal in this process.
///
/// # Errors
/// `INVALID_DEVICE` when there is no such ordinal.
pub fn resolve(machine: &Machine, ordinal: i32) -> Outcome<usize> {
    usize::try_from(ordinal)
        .ok()
        .and_then(|ordinal| visible(machine).get(ordinal).copied())
        .ok_or(Status::INVALID_DEVICE)
}

/// The attributes that are read from the GPU (measured): the clock rates of the multiprocessors and
/// of the memory, and whether kernels have a time limit.
pub const READ_FROM_GPU: [i32; 3] = [13, 17, 36];

/// Returns a device attribute by its `CUdevice_attribute` number (CUDA 13.0); 0 for a missing
/// feature.
pub fn attribute(machine: &Machine, device: usize, attribute: i32) -> Option<i32> {
    let gpu = gpu_of(machine, device);
    let place = pci(gpu);
    Some(match attribute {
        1 => 1024,
        2 | 3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        8 => 49_152,
        9 => 65_536,
        10 => 32,
        11 => i32::MAX,
        12 => 65_536,
        13 => 1_980_000,
        14 => 512,
        15 => 1,
        16 => multiprocessors(machine) as i32,
        18 => i32::from(host::is_shared(machine)),
        17 | 19 => 0,
        20 => 0,
        21 => 131_072,
        22 => 131_072,
        23 => 65_536,
        24..=26 => 16_384,
        27 => 32_768,
        28 => 32_768,
        29 => 2048,
        30 => 512,
        31 => 1,
        32 => 1,
        33 => place.bus as i32,
        34 => place.device as i32,
        35 => 0,
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => THREADS_PER_MULTIPROCESSOR as i32,
        40 => 3,
        41 => 1,
        42 => 32_768,
        43 => 2048,
        45 => 32_768,
        46 => 2048,
        47..=49 => 16_384,
        50 => place.domain as i32,
        51 => 32,
        52 => 32_768,
        53 => 2046,
        54 => 32_768,
        55 => 32_768,
        56 => 65_536,
        57..=59 => 16_384,
        60 => 32_768,
        61 => 32_768,
        62 => 2046,
        63 => 32_768,
        64 => 2046,
        65..=68 => 32_768,
        69 => 268_435_456,
        70 => 131_072,
        71 => 65_000,
        72 => 2_097_136,
        73 => 32_768,
        74 => 32_768,
        75 => 9,
        76 => 0,
        77 => 32_768,
        78..=80 => 1,
        81 => 233_472,
        82 => 65_536,
        83 => 1,
        84 => 0,
        85 => gpu as i32,
        86 => 1,
        87 => 2,
        88 => 0,
        89..=91 => 1,
        92..=94 => 1,
        95 => 1,
        96 => 0,
        97 => 232_448,
        98 => 1,
        99 => 1,
        100 => 0,
        101 => 0,
        102 => 1,
        103 => 1,
        104 => 0,
        105 => 0,
        106 => 32,
        107 => 16,
        108 => 134_213_632,
        109 => 1,
        110 => 1,
        111 => 1024,
        112 => 1,
        113 => 1,
        114 => 1,
        115 => 1,
        116 => 1,
        117 => 1,
        118 => 1,
        119 => 9,
        120 => 1,
        121 => 1,
        122 => 1,
        123 => 1,
        124 => 0,
        125 => 0,
        126 => 1,
        127 => 0,
        128 => 0,
        129 => 0,
        130 => 0,
        131 => 0,
        132 => 0,
        133 => 0,
        134 => -1,
        135..=160 => 0,
        _ => return None,
    })
}
