//! The ways by which a program gets hold of a driver function: our exports (the table makes them),
//! `dlsym`, and the pointers that `cuGetProcAddress` returns. The latter two translate by address:
//! "the driver's X" becomes "our X".

mod dlopen;
mod dlsym;
#[cfg(not(test))]
mod front;
mod hooked;
pub mod lookup;
mod redirect;

use std::ffi::c_void;

#[cfg(not(test))]
pub use front::take as take_the_front;
pub use hooked::Hooked;

use crate::account::limited::limited;
use crate::driver::Library;
use crate::entry::exports::{cuda, nvml};

/// Our function for the driver's function at `real`; `None` when it is not a hooked one or this
/// process has no limit.
pub fn translate(real: *const c_void) -> Option<*const c_void> {
    if !limited() {
        return None;
    }
    cuda::CUDA
        .hook_of(real)
        .or_else(|| nvml::NVML.hook_of(real))
}

/// A library is about to be bound past us: from now on the driver's own symbols lead to our
/// functions.
fn before_deepbind() {
    redirect_where(Library::present);
}

/// Somebody asks for what comes after him, past us if he comes after us himself: the same, of
/// drivers that are there to be found.
fn before_next() {
    redirect_where(Library::loaded);
}

fn redirect_where(there: fn(&Library) -> bool) {
    if limited() {
        for hooked in [&cuda::CUDA, &nvml::NVML] {
            if there(hooked.library()) {
                hooked.redirect();
            }
        }
    }
}
