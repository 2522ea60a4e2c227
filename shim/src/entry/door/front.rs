//! The way past us by a library in front of us: found at the start, and closed.
//!
//! The dynamic linker searches the libraries of `LD_PRELOAD` before those of /etc/ld.so.preload. So
//! `LD_PRELOAD=libc.so.6` puts the C library's `dlsym` before ours, and `LD_PRELOAD=libcuda.so.1`
//! the driver's functions. Then the symbol tables of the C library and the driver (this process's
//! copies) are made to name our functions, and so are the pointers that the linker has already
//! bound to theirs. Other libraries keep their place: a wrapper of `dlsym` is called first, and
//! finds ours where it looks for the C library's. Nothing recurses, as ours goes on to an address
//! that never changes.

use std::cell::Cell;
use std::ffi::c_void;

use super::Hooked;
use super::redirect::{Object, any_object, segment};
use super::{dlopen, dlsym};
use crate::entry::exports::{cuda, nvml};

/// Looks for `dlsym`, `dlopen` and the drivers in the libraries before us, and takes their place.
/// `cuInit` and `nvmlInit_v2` stand for the drivers: every version has them.
///
/// Runs as a constructor, in every program: mostly it looks at the program, the kernel's vDSO and
/// this library, and that is all.
pub fn take() {
    let names = [c"dlsym", c"dlopen", c"cuInit", c"nvmlInit_v2"];
    let (mut program, mut behind) = (true, false);
    any_object(&mut |info| {
        // The program itself is always the first.
        if std::mem::replace(&mut program, false) {
            return false;
        }
        if segment(info, take as *const () as usize).is_some() {
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
        // Of what wraps the other two, nothing defines this one: it is the C library, or its libdl.
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
    // Drivers that are loaded, with their tables of addresses: none can be loaded below.
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
