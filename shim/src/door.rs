//! The three ways by which a program gets hold of a driver function: our exports (the table makes them), `dlsym`, and the pointers
//! that `cuGetProcAddress` returns. The latter two translate by address: "the driver's X" becomes "our X".

mod dlsym;

use std::ffi::c_void;

pub use dlsym::real_dlsym;

use crate::table::{cuda, nvml};

/// Our function for the driver's function at `real`; `None` when it is not a hooked one or this process has no limit.
pub fn translate(real: *const c_void) -> Option<*const c_void> {
    if !crate::process::limited() {
        return None;
    }
    cuda::CUDA
        .hook_of(real)
        .or_else(|| nvml::NVML.hook_of(real))
}
