//! Calls of the driver that must not begin while the process is suspended.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    if words.name() != "gated" {
        return Ok(None);
    }
    let function = words.at(1)?;
    let mut room = [0u64; 16];
    let (first, second) = (room.as_mut_ptr() as usize, room[8..].as_mut_ptr() as usize);
    let value = |name| scope.value(name);
    let arguments = match function.strip_suffix("_ptsz").unwrap_or(function) {
        "cuCtxSynchronize" => vec![],
        "cuCtxSynchronize_v2" | "cuStreamQuery" | "cuStreamSynchronize" => vec![0],
        "cuEventQuery" | "cuEventSynchronize" => vec![value("event")?],
        "cuEventElapsedTime" | "cuEventElapsedTime_v2" => {
            vec![first, value("event")?, value("event")?]
        }
        // The attribute is the clock rate.
        "cuDeviceGetAttribute" => vec![first, 13, 0],
        "cuDeviceGetName" => vec![first, 64, 0],
        "cuMemGetInfo" | "cuMemGetInfo_v2" => vec![first, second],
        "cuIpcGetMemHandle" => vec![first, value("memory")?],
        "cuMemAllocAsync" => vec![first, 4096, 0],
        "cuMemAllocFromPoolAsync" => vec![first, 4096, value("pool")?, 0],
        "cuMemPoolDestroy" => vec![value("pool")?],
        "cuModuleUnload" => vec![value("module")?],
        other => return Err(format!("{other} is not gated")),
    };
    Ok(Some(plain(driver.call(function, &arguments))))
}
