//! The real libraries of the driver, CUDA and NVML, found with `dlopen` by their sonames.
//!
//! `RTLD_NEXT` and `RTLD_DEFAULT` could find stubs of other libraries. Looking up addresses takes
//! no lock, because a fork or a constructor could deadlock. Two threads can store the same address.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use gpulimit_group::Undisturbed;

use super::dlsym::real_dlsym;

/// One real library, CUDA or NVML, with the functions that gpulimit calls.
pub struct Library {
    soname: &'static CStr,
    /// The names of the library's functions, each followed by a NUL.
    symbols: &'static str,
    /// The addresses of the library's functions, in the order of `symbols`.
    addresses: &'static [AtomicPtr<c_void>],
    resolved: AtomicBool,
    /// The value of [`loads`] at the time when the dynamic linker last reported that the library is
    /// not loaded.
    absent_at: AtomicU64,
}

impl Library {
    pub const fn new(
        soname: &'static CStr,
        symbols: &'static str,
        addresses: &'static [AtomicPtr<c_void>],
    ) -> Self {
        Library {
            soname,
            symbols,
            addresses,
            resolved: AtomicBool::new(false),
            absent_at: AtomicU64::new(0),
        }
    }

    /// Returns the address of function `index`, null when the driver lacks it. Loads the library if
    /// necessary.
    #[cold]
    pub fn address(&self, index: usize) -> *mut c_void {
        let Some(address) = self.addresses.get(index) else {
            return std::ptr::null_mut();
        };
        let found = address.load(Ordering::Relaxed);
        if !found.is_null() || self.resolved.load(Ordering::Acquire) {
            return found;
        }
        self.resolve(libc::RTLD_NOW);
        address.load(Ordering::Relaxed)
    }

    /// Returns the addresses of all functions. Null before the library is loaded, and for functions
    /// that it lacks.
    pub fn addresses(&self) -> impl Iterator<Item = *mut c_void> {
        let known = |address: &AtomicPtr<c_void>| address.load(Ordering::Relaxed);
        self.addresses.iter().map(known)
    }

    /// Returns whether the library can be loaded. Loads the library where that is possible.
    pub fn present(&self) -> bool {
        self.resolved.load(Ordering::Acquire) || self.resolve(libc::RTLD_NOW)
    }

    /// Returns whether the library is loaded, without loading it.
    pub fn loaded(&self) -> bool {
        if self.resolved.load(Ordering::Acquire) {
            return true;
        }
        // Asking for a library that is not loaded is slow. So the linker is asked again only after
        // another library was loaded.
        let loads = loads();
        if self.absent_at.load(Ordering::Relaxed) == loads {
            return false;
        }
        let is_loaded = self.resolve(libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if !is_loaded {
            self.absent_at.store(loads, Ordering::Relaxed);
        }
        is_loaded
    }

    /// Returns the library's handle, null on failure. The handle stays open, so that function
    /// addresses stay valid.
    pub fn open(&self, flags: i32) -> *mut c_void {
        // SAFETY: the soname is NUL-terminated.
        unsafe { libc::dlopen(self.soname.as_ptr(), flags) }
    }

    #[cold]
    fn resolve(&self, flags: i32) -> bool {
        let _undisturbed = Undisturbed::new();
        let handle = self.open(flags);
        if handle.is_null() {
            return false;
        }
        let mut symbols = self.symbols.as_bytes();
        for address in self.addresses {
            let Ok(symbol) = CStr::from_bytes_until_nul(symbols) else {
                break;
            };
            address.store(real_dlsym(handle, symbol), Ordering::Relaxed);
            symbols = symbols.get(symbol.count_bytes() + 1..).unwrap_or_default();
        }
        self.resolved.store(true, Ordering::Release);
        true
    }
}

/// Returns the number of objects that the dynamic linker has loaded since the program started.
fn loads() -> u64 {
    extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        loads: *mut c_void,
    ) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a valid description, and the pointer to `loads`.
        unsafe { *loads.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut loads = 0u64;
    // SAFETY: `first` stops at the first object and writes to `loads` only.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loads).cast()) };
    loads
}
