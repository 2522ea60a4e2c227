//! Finds libraries that the dynamic linker searches before `libgpulimit.so`, and makes their
//! symbols lead to the hooks.
//!
//! The dynamic linker searches the libraries of `LD_PRELOAD` before those of /etc/ld.so.preload. So
//! `LD_PRELOAD=libc.so.6` puts the C library's `dlsym` in front of gpulimit's, and
//! `LD_PRELOAD=libcuda.so.1` puts the driver's functions in front of the hooks. In such a process,
//! the start hook changes the symbol tables of the C library and the drivers so that they name
//! gpulimit's functions. It also changes the pointers that the linker has already bound. Only the
//! memory of this process changes.
//!
//! Any other library that wraps `dlsym` stays in front, and programs call the wrapper. When the
//! wrapper looks up the C library's `dlsym`, it finds gpulimit's. gpulimit's `dlsym` reaches the C
//! library by a stored address, so it never calls itself.

use std::cell::Cell;
use std::ffi::c_void;

use super::Hooked;
use super::redirect::{Object, any_object, segment};
use super::{dlopen, dlsym};
use crate::entry::exports::{cuda, nvml};

/// Searches the libraries in front of `libgpulimit.so` for `dlsym`, `dlopen`, `cuInit` and
/// `nvmlInit_v2`. Where it finds one of these names, redirects the symbols of all loaded libraries
/// to gpulimit's functions. `cuInit` and `nvmlInit_v2` stand for the whole driver, because every
/// driver version has them.
///
/// Runs as a constructor in every program. In most programs it only looks at the program itself,
/// the kernel's vDSO and `libgpulimit.so`.
pub fn take_precedence() {
    let names = [c"dlsym", c"dlopen", c"cuInit", c"nvmlInit_v2"];
    let (mut program, mut behind) = (true, false);
    any_object(&mut |info| {
        // The dynamic linker always lists the program itself as the first object.
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
        // The library that defines `dlinfo` is the C library, or its libdl. Libraries that wrap
        // `dlsym` and `dlopen` do not define it.
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
    // Looks up the loaded drivers and their addresses now, because it is forbidden to load a
    // library inside `any_object`.
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
