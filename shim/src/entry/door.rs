//! The doors: the ways in which a program gets the address of a driver function. They are the
//! library's exports (made from the hook table), `dlsym`, and the pointers that `cuGetProcAddress`
//! returns. The latter two translate by address, from the driver's function to the hook.

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

/// Returns the hook of the driver's function at `real`; `None` where the function has no hook or
/// this process has no limit.
pub fn translate(real: *const c_void) -> Option<*const c_void> {
    if !limited() {
        return None;
    }
    cuda::CUDA
        .hook_of(real)
        .or_else(|| nvml::NVML.hook_of(real))
}

/// Makes the symbols of the drivers lead to the hooks. Called before a library is opened with
/// `RTLD_DEEPBIND`, which the dynamic linker binds to the driver past the hooks.
fn before_deepbind() {
    redirect_where(Library::present);
}

/// Makes the symbols of loaded drivers lead to the hooks. Called before a lookup with `RTLD_NEXT`,
/// which searches the libraries after the caller, and so skips this library where it comes before
/// the caller.
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
