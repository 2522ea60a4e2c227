//! Functions that go by way of others' exported names: the dynamic linker decides where such a call leads, so that a preload that has
//! the name gets it.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::sync::atomic::Ordering::Relaxed;

use gpulimit_sim::abi::Out;

use crate::code::{Answer, Code};
use crate::system::machine;

/// What a name that this library exports is bound to, where the library is to use such names; `None` where it is not.
fn bound(name: &CStr) -> Result<Option<*mut c_void>, Code> {
    if machine()?.knobs.own_exports.load(Relaxed) == 0 {
        return Ok(None);
    }
    // SAFETY: only looks for a name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    Ok((!found.is_null()).then_some(found))
}

fn answer(status: i32) -> Answer {
    match status {
        0 => Ok(()),
        failed => Err(Code(failed)),
    }
}

/// `nvmlDeviceGetMemoryInfo_v2`, found that way.
pub fn memory_v2(handle: usize, memory: &mut [u64; 5]) -> Option<Answer> {
    let found = match bound(c"nvmlDeviceGetMemoryInfo_v2") {
        Ok(found) => found?,
        Err(failed) => return Some(Err(failed)),
    };
    // SAFETY: whoever exports the name has the function of nvml.h.
    let function: extern "C" fn(usize, *mut [u64; 5]) -> i32 = unsafe { transmute(found) };
    Some(answer(function(handle, memory)))
}

/// A function with the arguments of a process list, found that way.
pub fn list(name: &CStr, handle: usize, count: Out<u32>, infos: Out<u8>) -> Option<Answer> {
    let found = match bound(name) {
        Ok(found) => found?,
        Err(failed) => return Some(Err(failed)),
    };
    // SAFETY: as above.
    let function: extern "C" fn(usize, Out<u32>, Out<u8>) -> i32 = unsafe { transmute(found) };
    Some(answer(function(handle, count, infos)))
}
