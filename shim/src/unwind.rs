//! The unwinder of panics: libgcc_s, which is loaded at the first panic of the library.
//!
//! A thread that ends in the middle of a call, and an exception that leaves one, are unwound by
//! libgcc_s, too. It asks `std` about each frame of the library, and `std` asks for the frame's
//! tables: without a panic it finds none here, so the frame stays as it is. An unwinder in the
//! library itself could not read the frames of libgcc_s.
//!
//! Where libgcc_s is missing, a panic of the library ends the process.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

type Pointer = *mut c_void;

/// `_URC_END_OF_STACK`
const END_OF_STACK: c_int = 5;

/// The handle of libgcc_s; null before the first panic.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Returns whether a panic can be caught.
pub fn is_there() -> bool {
    !library().is_null()
}

/// Returns the handle of libgcc_s, which stays open; null if it is missing.
#[cold]
fn library() -> Pointer {
    let mut library = LIBRARY.load(Ordering::Acquire);
    if library.is_null() {
        // SAFETY: the name is NUL-terminated.
        library = unsafe { libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW) };
        LIBRARY.store(library, Ordering::Release);
    }
    library
}

/// Returns a function of libgcc_s for a panic of this thread; null without a panic, and if libgcc_s
/// is missing.
fn find(name: &CStr) -> Pointer {
    if !std::thread::panicking() || !is_there() {
        return ptr::null_mut();
    }
    // SAFETY: the handle is open, and the name is NUL-terminated.
    unsafe { libc::dlsym(library(), name.as_ptr()) }
}

/// Defines functions of the unwinder, hidden from other libraries: each calls libgcc_s's, or does
/// what stands behind it.
macro_rules! functions {
    ($($name:ident($($it:ident: $of:ty),*) -> $out:ty, or $absent:expr;)*) => {$(
        #[cfg(not(test))]
        std::arch::global_asm!(concat!(".hidden ", stringify!($name)));

        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name($($it: $of),*) -> $out {
            const NAME: &CStr = match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let found = find(NAME);
            if found.is_null() {
                $absent
            } else {
                // SAFETY: libgcc_s's function of this name has these types, and gets what the
                // caller passes for it.
                unsafe {
                    let call: unsafe extern "C-unwind" fn($($of),*) -> $out = transmute(found);
                    call($($it),*)
                }
            }
        }
    )*};
}

functions! {
    _Unwind_RaiseException(exception: Pointer) -> c_int, or END_OF_STACK;
    _Unwind_Resume(exception: Pointer) -> !, or std::process::abort();
    _Unwind_DeleteException(exception: Pointer) -> (), or ();
    _Unwind_GetLanguageSpecificData(context: Pointer) -> Pointer, or ptr::null_mut();
    _Unwind_GetIPInfo(context: Pointer, before: *mut c_int) -> usize, or 0;
    _Unwind_GetRegionStart(context: Pointer) -> usize, or 0;
    _Unwind_GetTextRelBase(context: Pointer) -> usize, or 0;
    _Unwind_GetDataRelBase(context: Pointer) -> usize, or 0;
    _Unwind_SetGR(context: Pointer, index: c_int, value: usize) -> (), or ();
    _Unwind_SetIP(context: Pointer, value: usize) -> (), or ();
}

#[cfg(not(test))]
std::arch::global_asm!(".hidden _Unwind_Backtrace");

/// Tells the caller, which is `std`, that the stack has no frames. So the optimiser leaves out the
/// code that prints backtraces, which would be a quarter of the library.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn _Unwind_Backtrace(_each: *const c_void, _data: Pointer) -> c_int {
    END_OF_STACK
}
