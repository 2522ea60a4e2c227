//! Libraries that define the same functions as `libgpulimit.so`: those that the dynamic linker
//! searches before it, such as those of `LD_PRELOAD`, and those between it and the driver.
//!
//! The start hook changes the symbol tables of the C library and the driver, and the pointers
//! already bound. A library that only wraps `dlsym` stays in front, because its own lookup of
//! `dlsym` finds gpulimit's.

use std::cell::Cell;
use std::ffi::c_void;

use super::redirect::{Object, any_object, has_name, segment};
use super::{DRIVERS, dlopen, dlsym};

/// Redirects all loaded libraries to gpulimit's functions if a library before `libgpulimit.so`
/// defines a function such as `dlsym`. Leads the names of driver functions that a library between
/// `libgpulimit.so` and the driver defines to that library, as they would lead without
/// `libgpulimit.so`. Where such a library asks for the next definition, it gets the hook.
pub fn take_place() {
    // Every driver version has `cuInit` and `nvmlInit_v2`, so they stand for the whole driver.
    let names = [c"dlsym", c"dlopen", c"cuInit", c"nvmlInit_v2"];
    let (mut program, mut before, mut hidden, mut found) = (true, true, false, Vec::new());
    any_object(&mut |info| {
        // The dynamic linker always lists the program itself as the first object.
        if std::mem::replace(&mut program, false) {
        } else if is_own(info) {
            before = false;
        } else if before {
            hidden |= Object::of(info)
                .is_some_and(|it| names.iter().any(|name| it.address_of(name).is_some()));
        } else if !has_name(info, OTHERS)
            && let Some(object) = Object::of(info)
        {
            for row in DRIVERS.iter().flat_map(|hooked| hooked.rows()) {
                if let Some(function) = object.function(row.symbol, row.hash)
                    && found.iter().all(|(hook, _)| *hook != row.hook)
                {
                    found.push((row.hook, function));
                }
            }
        }
        false
    });
    if hidden {
        replace();
    }
    if !found.is_empty() {
        give_way(&found);
    }
}

/// Returns whether this is `libgpulimit.so`.
fn is_own(info: &libc::dl_phdr_info) -> bool {
    segment(info, take_place as *const () as usize).is_some()
}

#[cold]
fn replace() {
    let real = Cell::new(None);
    any_object(&mut |info| {
        let Some(object) = Object::of(info) else {
            return false;
        };
        // Only the C library, or its libdl, defines `dlinfo`: libraries that wrap `dlsym` do not.
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
    let loaded = DRIVERS.map(|hooked| hooked.library().loaded());
    let target = |address: *const c_void| {
        if address == real_dlsym {
            return Some(dlsym::dlsym as *const c_void);
        }
        if address == real_dlopen {
            return Some(dlopen::dlopen as *const c_void);
        }
        let mut known = DRIVERS.iter().zip(loaded);
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

/// The libraries that are no wrappers of the driver: the driver itself, and those of every program.
const OTHERS: &[&[u8]] = &[
    b"libcuda.so",
    b"libnvidia-ml.so",
    b"libc.so",
    b"libm.so",
    b"libdl.so",
    b"libpthread.so",
    b"librt.so",
    b"libgcc_s.so",
    b"ld-linux",
];

/// Leads the hooks to the functions `found` beside them.
#[cold]
fn give_way(found: &[(*const c_void, *const c_void)]) {
    let target = |bound| {
        let mut found = found.iter();
        found.find_map(|(hook, function)| (*hook == bound).then_some(*function))
    };
    any_object(&mut |info| {
        match Object::of(info) {
            Some(object) if is_own(info) => drop(object.redirect(&target)),
            Some(object) => object.rebind(info, &target),
            None => {}
        }
        false
    });
}
