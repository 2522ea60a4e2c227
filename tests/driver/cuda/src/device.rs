//! The driver's functions for initialisation, errors and the GPUs.

use gpulimit_sim::driver::{self, driver};
use gpulimit_sim::machine::Machine;
use gpulimit_sim::{Outcome, Status, checkpoint, device, status};
use std::sync::atomic::Ordering::Relaxed;

use gpulimit_sim::abi::{Out, Text};

pub fn init(flags: u32) -> Outcome<()> {
    if flags != 0 {
        Err(Status::INVALID_VALUE)
    } else {
        let status = driver::init();
        crate::tool::load();
        status
    }
}

pub fn driver_version(version: Out<i32>) -> Outcome<()> {
    let machine = Machine::get().map_err(|_| Status::UNKNOWN)?;
    version.put(machine.knobs.driver_version.load(Relaxed) as i32)
}

fn describe(
    error: i32,
    text: Out<usize>,
    pick: fn((&'static str, &'static str)) -> &'static str,
) -> Outcome<()> {
    match status::describe(error) {
        Some(both) => text.put(pick(both).as_ptr() as usize),
        None => {
            text.put_if(0);
            Err(Status::INVALID_VALUE)
        }
    }
}

pub fn error_name(error: i32, text: Out<usize>) -> Outcome<()> {
    describe(error, text, |both| both.0)
}

pub fn error_string(error: i32, text: Out<usize>) -> Outcome<()> {
    describe(error, text, |both| both.1)
}

/// Takes a device's CUDA ordinal and returns the device's index in PCI order.
pub fn index(ordinal: i32) -> Outcome<usize> {
    device::resolve(driver()?.machine, ordinal)
}

/// Returns the CUDA ordinal of a device.
pub fn ordinal(index: usize) -> Outcome<i32> {
    let visible = device::visible(driver()?.machine);
    visible
        .iter()
        .position(|at| *at == index)
        .map(|at| at as i32)
        .ok_or(Status::INVALID_DEVICE)
}

pub fn get(out: Out<i32>, ordinal: i32) -> Outcome<()> {
    index(ordinal)?;
    out.put(ordinal)
}

pub fn count(count: Out<i32>) -> Outcome<()> {
    count.put(device::visible(driver()?.machine).len() as i32)
}

pub fn name(name: Out<u8>, length: i32, ordinal: i32) -> Outcome<()> {
    index(ordinal)?;
    checkpoint::check_present()?;
    name.text(device::NAME, length)
}

fn place(index: usize) -> Outcome<device::Pci> {
    Ok(device::pci(device::gpu_of(driver()?.machine, index)))
}

/// Returns the UUID of the device's GPU. For a MIG instance this is the GPU that the instance is
/// part of.
pub fn uuid(uuid: Out<[u8; 16]>, ordinal: i32) -> Outcome<()> {
    let index = index(ordinal)?;
    uuid.put(device::uuid(device::gpu_of(driver()?.machine, index)))
}

/// Returns the UUID of the device: the MIG instance's UUID, or without MIG the GPU's UUID.
pub fn uuid_v2(uuid: Out<[u8; 16]>, ordinal: i32) -> Outcome<()> {
    let index = index(ordinal)?;
    let instance = device::instance_uuid(driver()?.machine, index);
    uuid.put(instance.unwrap_or(device::uuid(index)))
}

/// Fails, because a LUID only exists on Windows.
pub fn luid(_luid: Out<u8>, _mask: Out<u32>, ordinal: i32) -> Outcome<()> {
    index(ordinal)?;
    Err(Status::NOT_SUPPORTED)
}

pub fn total(bytes: Out<usize>, ordinal: i32) -> Outcome<()> {
    let index = index(ordinal)?;
    bytes.put(device::capacity(driver()?.machine, index) as usize)
}

/// The 32-bit variant of `cuDeviceTotalMem`. It reports a larger size as the largest 32-bit number.
pub fn total_v1(bytes: Out<u32>, ordinal: i32) -> Outcome<()> {
    let index = index(ordinal)?;
    bytes.put(u32::try_from(device::capacity(driver()?.machine, index)).unwrap_or(u32::MAX))
}

pub fn attribute(value: Out<i32>, attribute: i32, ordinal: i32) -> Outcome<()> {
    let (index, machine) = (index(ordinal)?, driver()?.machine);
    if device::READ_FROM_GPU.contains(&attribute) {
        checkpoint::check_present()?;
    }
    value.put(device::attribute(machine, index, attribute).ok_or(Status::INVALID_VALUE)?)
}

pub fn capability(major: Out<i32>, minor: Out<i32>, ordinal: i32) -> Outcome<()> {
    index(ordinal)?;
    major.put(9)?;
    minor.put(0)
}

pub fn bus_id(text: Out<u8>, length: i32, ordinal: i32) -> Outcome<()> {
    text.text(&place(index(ordinal)?)?.bus_id(), length)
}

pub fn by_bus_id(out: Out<i32>, text: Text) -> Outcome<()> {
    let wanted = text.str()?;
    let machine = driver()?.machine;
    let is_wanted = |index: &usize| device::pci(device::gpu_of(machine, *index)).is_named(wanted);
    let found = device::visible(machine).iter().position(is_wanted);
    out.put(found.ok_or(Status::INVALID_DEVICE)? as i32)
}

pub fn can_access_peer(can: Out<i32>, ordinal: i32, peer: i32) -> Outcome<()> {
    can.put((index(ordinal)? != index(peer)?).into())
}

pub fn p2p_attribute(value: Out<i32>, attribute: i32, source: i32, target: i32) -> Outcome<()> {
    if index(source)? == index(target)? {
        return Err(Status::INVALID_DEVICE);
    }
    value.put((attribute != 1).into())
}

pub fn texture_width(width: Out<usize>, _format: i32, _channels: u32, ordinal: i32) -> Outcome<()> {
    index(ordinal)?;
    width.put(1 << 28)
}

pub fn affinity_support(supported: Out<i32>, _kind: i32, ordinal: i32) -> Outcome<()> {
    index(ordinal)?;
    supported.put(0)
}

pub fn profiler() -> Outcome<()> {
    driver().map(drop)
}
