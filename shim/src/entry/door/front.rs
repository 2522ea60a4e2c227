//! Finds libraries that the dynamic linker searches before this one, and makes their symbols lead
//! to the hooks.
//!
//! The dynamic linker searches the libraries of `LD_PRELOAD` before those of /etc/ld.so.preload. So
//! `LD_PRELOAD=libc.so.6` puts the C library's `dlsym` in front of this library's, and
//! `LD_PRELOAD=libcuda.so.1` puts the driver's functions in front of the hooks. The start hook then
//! changes this process's copies of the symbol tables of the C library and the drivers, so that
//! they name this library's functions, and the pointers that the linker has already bound. A
//! wrapper of `dlsym` keeps its place: programs call the wrapper, and the wrapper finds this
//! library's `dlsym` where it looks for the C library's. The calls do not recurse, because this
//! library calls the C library by an address that it has stored.

use std::cell::Cell;
use std::ffi::c_void;

use super::Hooked;
use super::redirect::{Object, any_object, segment};
use super::{dlopen, dlsym};
use crate::entry::exports::{cuda, nvml};

/// Looks for `dlsym`, `dlopen` and the drivers in the libraries in front of this one, and redirects
/// them to this library. `cuInit` and `nvmlInit_v2` stand for the drivers, as every version has
/// them.
///
/// Runs as a constructor in every program. In most programs it looks only at the program, the
/// kernel's vDSO and this library.
pub fn take_precedence() {
    let names = [c"dlsym", c"dlopen", c"cuInit", c"nvmlInit_v2"];
    let (mut program, mut behind) = (true, false);
    any_object(&mut |info| {
        // The first object is always the program itself.
        if std::mem::replace(&mut program, false) {
            return false;
        }
        if segment(info, take_precedence as *const () as usize).is_some() {
            return true;
        }
        let object = Object::of(info);
        behind = object.is_some_and(|it| names.iter().any(|name| it.address_of(name).is_some()));
        behind
    });
    if behind {
        replace();
    }
}

#[cold]
fn replace() {
    let real = Cell::new(None);
    any_object(&mut |info| {
        let Some(object) = Object::of(info) else {
            return false;
        };
        // `dlinfo` identifies the C library, or its libdl: libraries that wrap the other two
        // functions do not define it.
        if object.address_of(c"dlinfo").is_some() {
            let pair = object
                .address_of(c"dlsym")
                .zip(object.address_of(c"dlopen"));
            real.set(pair);
        }
        real.get().is_some()
    });
    let Some((real_dlsym, real_dlopen)) = real.get() else {
        return;
    };
    crate::driver::dlsym::know(real_dlsym);
    dlopen::know(real_dlopen);
    // The loaded drivers, and their tables of addresses: loading a driver would not be allowed
    // inside `any_object`.
    let drivers: [&Hooked; 2] = [&cuda::CUDA, &nvml::NVML];
    let loaded = drivers.map(|hooked| hooked.library().loaded());
    let target = |address: *const c_void| {
        if address == real_dlsym {
            return Some(dlsym::dlsym as *const c_void);
        }
        if address == real_dlopen {
            return Some(dlopen::dlopen as *const c_void);
        }
        let mut known = drivers.iter().zip(loaded);
        known.find_map(|(hooked, loaded)| loaded.then(|| hooked.hook_of(address))?)
    };
    any_object(&mut |info| {
        if let Some(object) = Object::of(info) {
            object.redirect(&target);
            object.rebind(info, &target);
        }
        false
    });
}
