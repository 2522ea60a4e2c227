//! The processes that hold memory.

use std::sync::atomic::Ordering::Relaxed;

use gpulimit_sim::abi::Out;
use gpulimit_sim::process;

use crate::code::{Answer, Code};
use crate::device::open;

/// The count protocol: too little room says how much is needed.
fn list(handle: usize, count: Out<u32>, infos: Out<u8>, stride: usize) -> Answer {
    let (machine, index) = open(handle)?;
    let room = count.read()? as usize;
    let mut holders = Vec::new();
    if machine.knobs.no_proc.load(Relaxed) == 0 {
        holders = process::holders(machine);
    }
    let listed: Vec<(u32, u64)> = holders
        .iter()
        .filter(|holder| holder.held[index] > 0)
        .filter_map(|holder| Some((process::visible_pid(holder)?, holder.held[index])))
        .collect();
    count.put(listed.len() as u32)?;
    if listed.len() > room {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    for (at, (pid, bytes)) in listed.into_iter().enumerate() {
        let info = infos.at(at * stride);
        info.cast().put([u64::from(pid), bytes])?;
        if stride >= 24 {
            // No GPU instance, no compute instance.
            info.at(16).cast().put([u32::MAX; 2])?;
        }
    }
    Ok(())
}

/// Elements of pid and bytes.
pub fn compute_v1(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    list(handle, count, infos, 16)
}

/// Elements with the instances, too.
pub fn compute_v2(handle: usize, count: Out<u32>, infos: Out<u8>) -> Answer {
    list(handle, count, infos, 24)
}

pub fn none(handle: usize, count: Out<u32>, _infos: Out<u8>) -> Answer {
    open(handle)?;
    Ok(count.put(0)?)
}
