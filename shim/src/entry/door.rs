//! The doors: the ways in which a program gets the address of a driver function. They are the
//! exports of `libgpulimit.so` (made from the hook table), `dlsym`, and the pointers that
//! `cuGetProcAddress` returns. For `dlsym` and `cuGetProcAddress`, [`translate`] replaces the
//! address of the driver's function by the address of its hook.

mod dlopen;
mod dlsym;
#[cfg(not(test))]
mod front;
mod hooked;
pub mod lookup;
mod redirect;

use std::ffi::c_void;

#[cfg(not(test))]
pub use front::take_precedence;
pub use hooked::Hooked;

use crate::account::limited::limited;
use crate::driver::Library;
use crate::entry::exports::{cuda, nvml};

/// Returns the address of the hook of the driver function at the address `real`; `None` where that
/// function has no hook or this process has no limit.
pub fn translate(real: *const c_void) -> Option<*const c_void> {
    if !limited() {
        return None;
    }
    cuda::CUDA
        .hook_of(real)
        .or_else(|| nvml::NVML.hook_of(real))
}

/// Changes the symbol tables of libcuda and libnvidia-ml so that lookups find the hooks. Runs
/// before a library is opened with `RTLD_DEEPBIND`, because the dynamic linker would bind such a
/// library straight to the driver.
fn before_deepbind() {
    redirect_where(Library::present);
}

/// Changes the symbol tables of libcuda and libnvidia-ml, where loaded, so that lookups find the
/// hooks. Runs before a lookup with `RTLD_NEXT`, which searches only the libraries after the
/// calling library and can skip `libgpulimit.so`.
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
