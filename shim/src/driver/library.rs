//! The real libraries, and the addresses of their functions.
//!
//! A library is found through our own `dlopen` by soname, never through `RTLD_NEXT` or
//! `RTLD_DEFAULT`: other libraries export stubs under the driver's names. Resolution is idempotent
//! and takes no lock, so that it cannot deadlock in a program that forks or calls us from a
//! constructor; two threads that race resolve the same addresses twice.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use gpulimit_group::Undisturbed;

use super::dlsym::real_dlsym;

/// One real library, with the functions that we call.
pub struct Library {
    soname: &'static CStr,
    /// Each ended by a NUL.
    symbols: &'static str,
    /// In the order of the symbols.
    addresses: &'static [AtomicPtr<c_void>],
    resolved: AtomicBool,
    /// What [`loads`] returned before the library was last found not to be loaded.
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

    /// Address of function `index`, null when this driver lacks it. Loads the library at first use.
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

    /// Addresses of all functions, by index; null where this driver lacks one, and before the
    /// library was loaded.
    pub fn addresses(&self) -> impl Iterator<Item = *mut c_void> {
        let known = |address: &AtomicPtr<c_void>| address.load(Ordering::Relaxed);
        self.addresses.iter().map(known)
    }

    /// Whether the library can be loaded.
    pub fn present(&self) -> bool {
        self.resolved.load(Ordering::Acquire) || self.resolve(libc::RTLD_NOW)
    }

    /// Whether the library is loaded. Does not load it.
    ///
    /// The dynamic linker searches all directories for the name of a library that is not loaded, so
    /// it is asked again only when it has loaded something since. Programs look up hundreds of
    /// names.
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

    /// The dynamic linker's handle. Null when it cannot be loaded. Never closed: the functions stay
    /// valid.
    pub fn open(&self, flags: i32) -> *mut c_void {
        // SAFETY: a NUL-terminated name.
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

/// How many objects the dynamic linker has loaded since the program's start.
fn loads() -> u64 {
    extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        loads: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker passes what it knows of an object, and the place below.
        unsafe { *loads.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut loads = 0u64;
    // SAFETY: the function ends at the first object, and writes to the place alone.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loads).cast()) };
    loads
}
