//! NVML's functions that concern NVML itself or the machine as a whole.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use gpulimit_sim::abi::Out;
use gpulimit_sim::machine::Machine;

use crate::code::{Answer, Code};

static USERS: AtomicU32 = AtomicU32::new(0);

/// The driver version that NVML reports as a string.
pub const DRIVER: &str = "580.159.03";

pub fn init() -> Answer {
    Machine::get().map_err(|error| {
        eprintln!("gpulimit-sim: {error}");
        Code::DRIVER_NOT_LOADED
    })?;
    USERS.fetch_add(1, SeqCst);
    Ok(())
}

pub fn init_with_flags(_flags: u32) -> Answer {
    init()
}

pub fn shutdown() -> Answer {
    let before = USERS.fetch_update(SeqCst, SeqCst, |users| users.checked_sub(1));
    before.map(drop).map_err(|_| Code::UNINITIALIZED)
}

/// Returns the simulated machine. Fails while NVML is not initialised.
pub fn machine() -> Result<&'static Machine, Code> {
    if USERS.load(Relaxed) == 0 {
        return Err(Code::UNINITIALIZED);
    }
    Machine::get().map_err(|_| Code::DRIVER_NOT_LOADED)
}

/// Writes a text into the caller's buffer. Fails if the buffer is too small for the whole text.
pub fn text(out: Out<u8>, text: &str, length: u32) -> Answer {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if (length as usize) <= text.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    Ok(out.text(text, length as i32)?)
}

pub fn driver_version(out: Out<u8>, length: u32) -> Answer {
    machine()?;
    text(out, DRIVER, length)
}

pub fn nvml_version(out: Out<u8>, length: u32) -> Answer {
    machine()?;
    text(out, &format!("13.{DRIVER}"), length)
}

/// Writes the CUDA version of the driver, even before NVML is initialised.
pub fn cuda_version(version: Out<i32>) -> Answer {
    let machine = Machine::get().map_err(|_| Code::DRIVER_NOT_LOADED)?;
    Ok(version.put(machine.knobs.driver_version.load(Relaxed) as i32)?)
}

pub fn process_name(pid: u32, out: Out<u8>, length: u32) -> Answer {
    machine()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Code::NOT_FOUND)?;
    let name = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).into_owned();
    if length == 0 {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    Ok(out.text(&name, length as i32)?)
}
