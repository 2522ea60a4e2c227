//! Calls by NVML of its own functions by their exported names. A preloaded library with the same
//! names gets these calls.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::sync::atomic::Ordering::Relaxed;

use gpulimit_sim::abi::Out;

use crate::code::{Answer, Code};
use crate::system::machine;

/// Looks up an NVML function by its exported name. Returns `None` unless the knob `own-exports` is
/// set.
fn bound(name: &CStr) -> Result<Option<*mut c_void>, Code> {
    if machine()?.knobs.own_exports.load(Relaxed) == 0 {
        return Ok(None);
    }
    // SAFETY: dlsym only looks up a name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    Ok((!found.is_null()).then_some(found))
}

fn answer(status: i32) -> Answer {
    match status {
        0 => Ok(()),
        failed => Err(Code(failed)),
    }
}

/// Calls `nvmlDeviceGetMemoryInfo_v2` by its exported name. Returns `None` unless the knob
/// `own-exports` is set.
pub fn memory_v2(handle: usize, memory: &mut [u64; 5]) -> Option<Answer> {
    let found = match bound(c"nvmlDeviceGetMemoryInfo_v2") {
        Ok(found) => found?,
        Err(failed) => return Some(Err(failed)),
    };
    // SAFETY: every library that exports this name gives it the signature in nvml.h.
    let function: extern "C" fn(usize, *mut [u64; 5]) -> i32 = unsafe { transmute(found) };
    Some(answer(function(handle, memory)))
}

/// Gets a process list from the function exported as `name`. Returns `None` unless the knob
/// `own-exports` is set.
pub fn list(name: &CStr, handle: usize, count: Out<u32>, infos: Out<u8>) -> Option<Answer> {
    let found = match bound(name) {
        Ok(found) => found?,
        Err(failed) => return Some(Err(failed)),
    };
    // SAFETY: every library that exports this name gives it the signature in nvml.h.
    let function: extern "C" fn(usize, Out<u32>, Out<u8>) -> i32 = unsafe { transmute(found) };
    Some(answer(function(handle, count, infos)))
}
