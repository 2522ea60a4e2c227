//! The real libraries of the driver, CUDA and NVML, and the addresses of their functions.
//!
//! A library of the driver is found with `dlopen` by its soname. `RTLD_NEXT` and `RTLD_DEFAULT` are
//! not used, because other libraries export stubs under the names of driver functions. Looking up
//! the addresses takes no lock. So it cannot deadlock in a program that forks or that calls a hook
//! from a constructor. Two threads that look up the addresses at the same time store the same
//! addresses twice, which does no harm.
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

    /// Returns the address of the library's function `index`, null when this driver lacks the
    /// function. Loads the library if it is not loaded yet.
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

    /// Returns the addresses of all functions of the library, by index. An address is null before
    /// the library is loaded, and for a function that this driver lacks.
    pub fn addresses(&self) -> impl Iterator<Item = *mut c_void> {
        let known = |address: &AtomicPtr<c_void>| address.load(Ordering::Relaxed);
        self.addresses.iter().map(known)
    }

    /// Returns whether the library can be loaded. Loads the library where that is possible.
    pub fn present(&self) -> bool {
        self.resolved.load(Ordering::Acquire) || self.resolve(libc::RTLD_NOW)
    }

    /// Returns whether the library is loaded. Does not load the library.
    ///
    /// For a library that is not loaded, the dynamic linker searches all directories for its name.
    /// This is slow, and programs look up hundreds of symbols. So the linker is asked again only
    /// after it has loaded another library.
    pub fn loaded(&self) -> bool {
        if self.resolved.load(Ordering::Acquire) {
            return true;
        }
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

    /// Returns the dynamic linker's handle of the library, null when the library cannot be loaded.
    /// The handle is never closed, so that the addresses of the functions stay valid.
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
        // SAFETY: `dl_iterate_phdr` passes a valid description of an object, and the pointer to the
        // variable `loads` that this function was given.
        unsafe { *loads.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut loads = 0u64;
    // SAFETY: `first` stops at the first object and writes to `loads` only.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loads).cast()) };
    loads
}
