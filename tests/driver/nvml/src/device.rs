//! The GPUs. NVML numbers them in PCI order and knows no visibility.

use gpulimit_sim::abi::{Out, Text};
use gpulimit_sim::machine::{BLOCK, Machine, RESERVED};
use gpulimit_sim::{device, grant, process};

use crate::code::{Answer, Code};
use crate::system::{machine, text};

/// Handles are these numbers plus the index.
const HANDLES: usize = 0x6e76_6d6c_0000;

/// The machine and the index of a device handle.
pub fn open(handle: usize) -> Result<(&'static Machine, usize), Code> {
    let machine = machine()?;
    let index = handle.wrapping_sub(HANDLES) / 16;
    if handle.is_multiple_of(16) && index < device::count(machine) {
        Ok((machine, index))
    } else {
        Err(Code::INVALID_ARGUMENT)
    }
}

fn handle(index: usize) -> usize {
    HANDLES + index * 16
}

pub fn count(out: Out<u32>) -> Answer {
    Ok(out.put(device::count(machine()?) as u32)?)
}

pub fn by_index(index: u32, out: Out<usize>) -> Answer {
    if index as usize >= device::count(machine()?) {
        return Err(Code::INVALID_ARGUMENT);
    }
    Ok(out.put(handle(index as usize))?)
}

fn search(out: Out<usize>, fits: impl Fn(usize) -> bool) -> Answer {
    let index = (0..device::count(machine()?))
        .find(|index| fits(*index))
        .ok_or(Code::NOT_FOUND)?;
    Ok(out.put(handle(index))?)
}

pub fn by_uuid(uuid: Text, out: Out<usize>) -> Answer {
    machine()?;
    let wanted = uuid.str()?;
    search(out, |index| device::uuid_text(index) == wanted)
}

pub fn by_bus_id(id: Text, out: Out<usize>) -> Answer {
    machine()?;
    let wanted = id.str()?.to_uppercase();
    search(out, |index| {
        let id = device::pci(index).bus_id();
        [&id[..], &id[..10], &id[5..], &id[5..10]].contains(&&wanted[..])
            || wanted == format!("0000{id}")
    })
}

pub fn index(handle: usize, out: Out<u32>) -> Answer {
    Ok(out.put(open(handle)?.1 as u32)?)
}

pub fn name(handle: usize, out: Out<u8>, length: u32) -> Answer {
    open(handle)?;
    text(out, device::NAME, length)
}

pub fn uuid(handle: usize, out: Out<u8>, length: u32) -> Answer {
    text(out, &device::uuid_text(open(handle)?.1), length)
}

/// `nvmlPciInfo_t`: legacy bus id (16 bytes), domain, bus, device, device id, subsystem id, bus id (32 bytes).
pub fn pci_info(handle: usize, out: Out<u8>) -> Answer {
    let (_, index) = open(handle)?;
    let pci = device::pci(index);
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

/// Total, free and used bytes; used without what the GPU keeps back.
fn memory(handle: usize) -> Result<(u64, u64, u64), Code> {
    let (machine, index) = open(handle)?;
    process::scan(machine, false);
    let capacity = device::capacity(machine, index);
    let used = grant::used(machine, index) * BLOCK;
    Ok((capacity + RESERVED, capacity.saturating_sub(used), used))
}

/// `nvmlMemory_t`: total, free, used, where used has all that is not free.
pub fn memory_v1(handle: usize, out: Out<[u64; 3]>) -> Answer {
    let (total, free, _) = memory(handle)?;
    Ok(out.put([total, free, total - free])?)
}

/// `nvmlMemory_v2_t`: version, total, reserved, free, used.
pub fn memory_v2(handle: usize, out: Out<u64>) -> Answer {
    let (total, free, used) = memory(handle)?;
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if out.cast::<u32>().read()? != 0x0200_0028 {
        return Err(Code::VERSION_MISMATCH);
    }
    for (at, value) in [total, RESERVED, free, used].into_iter().enumerate() {
        out.at(at + 1).put(value)?;
    }
    Ok(())
}

pub fn bar1(handle: usize, out: Out<[u64; 3]>) -> Answer {
    open(handle)?;
    Ok(out.put([128 << 30, (128 << 30) - (2 << 20), 2 << 20])?)
}

/// What is the same number for every GPU.
fn constant<T>(handle: usize, out: Out<T>, value: T) -> Answer {
    open(handle)?;
    Ok(out.put(value)?)
}

pub fn minor_number(handle: usize, out: Out<u32>) -> Answer {
    let (_, index) = open(handle)?;
    constant(handle, out, index as u32)
}

pub fn zero(handle: usize, out: Out<u32>) -> Answer {
    constant(handle, out, 0)
}

pub fn utilization(handle: usize, out: Out<[u32; 2]>) -> Answer {
    constant(handle, out, [0, 0])
}

pub fn temperature(handle: usize, _sensor: i32, out: Out<u32>) -> Answer {
    constant(handle, out, 35)
}

pub fn power(handle: usize, out: Out<u32>) -> Answer {
    constant(handle, out, 70_000)
}

pub fn power_limit(handle: usize, out: Out<u32>) -> Answer {
    constant(handle, out, 700_000)
}

pub fn clock(handle: usize, _kind: i32, out: Out<u32>) -> Answer {
    constant(handle, out, 1980)
}

pub fn capability(handle: usize, major: Out<i32>, minor: Out<i32>) -> Answer {
    constant(handle, major, 9)?;
    Ok(minor.put(0)?)
}

pub fn mig_mode(handle: usize, current: Out<u32>, pending: Out<u32>) -> Answer {
    constant(handle, current, 0)?;
    Ok(pending.put(0)?)
}

pub fn mig_handle(handle: usize, _index: u32, _out: Out<usize>) -> Answer {
    open(handle)?;
    Err(Code::NOT_FOUND)
}

pub fn no_mig(handle: usize, _out: Out<usize>) -> Answer {
    open(handle)?;
    Err(Code::INVALID_ARGUMENT)
}

pub fn unsupported(handle: usize, _out: Out<u32>) -> Answer {
    open(handle)?;
    Err(Code::NOT_SUPPORTED)
}
