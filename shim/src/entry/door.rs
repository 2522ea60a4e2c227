//! The doors: the ways in which a program gets the address of a driver function.
//!
//! They are the exports of `libgpulimit.so`, `dlsym` and `cuGetProcAddress`. The last two return
//! the hook's address, which [`translate`] finds.

mod dlopen;
mod dlsym;
#[cfg(not(test))]
mod front;
mod hooked;
pub mod lookup;
mod redirect;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use redirect::{Object, any_object};

#[cfg(not(test))]
pub use front::take_place;
pub use hooked::Hooked;
pub use redirect::hash;

use crate::account::limited::limited;
use crate::driver::Library;
use crate::entry::exports::{cuda, nvml};

/// The libraries of the driver, with their hooks.
const DRIVERS: [&Hooked; 2] = [&cuda::CUDA, &nvml::NVML];

/// Returns the address of the hook of the driver function `real`; `None` if there is no hook or no
/// limit.
pub fn translate(real: *const c_void) -> Option<*const c_void> {
    if !limited() {
        return None;
    }
    DRIVERS.iter().find_map(|hooked| hooked.hook_of(real))
}

/// Redirects the driver's symbols to the hooks. A library opened with `RTLD_DEEPBIND` would
/// otherwise bind straight to the driver.
fn before_deepbind() {
    redirect_where(Library::present);
}

/// Redirects the driver's symbols to the hooks. A lookup with `RTLD_NEXT` can otherwise skip
/// `libgpulimit.so`.
fn before_next() {
    redirect_where(Library::loaded);
}

fn redirect_where(there: fn(&Library) -> bool) {
    if limited() {
        for hooked in DRIVERS {
            if there(hooked.library()) {
                hooked.redirect();
            }
        }
    }
}

/// The pid of the process that loaded this library; 0 before the start hook.
static LOADED_BY: AtomicU32 = AtomicU32::new(0);

/// Does [`keep_variables`] for the libraries that were loaded before this one.
#[cfg(not(test))]
pub fn keep_variables_at_start() {
    LOADED_BY.store(std::process::id(), Ordering::Relaxed);
    keep_variables();
}

/// Does [`keep_variables`] for the libraries that were loaded since the start. Not in a forked
/// child, where the list of libraries may stay locked by a thread that the child does not have.
fn before_driver() {
    if std::process::id() == LOADED_BY.load(Ordering::Relaxed) {
        keep_variables();
    }
}

/// Binds libraries to their own variables that have the names of driver functions, such as
/// `int (*cuInit)(unsigned)`. The dynamic linker has bound them to this library's functions.
fn keep_variables() {
    // Whoever keeps functions of the driver in variables keeps one of these.
    let names = [c"cuInit", c"nvmlInit_v2", c"nvmlInit"];
    any_object(&mut |info| {
        if let Some(object) = Object::of(info)
            && names.iter().any(|name| object.has_variable(name))
        {
            object.keep_variables(info, |bound| {
                DRIVERS.iter().any(|hooked| hooked.is_hook(bound))
            });
        }
        false
    });
}
