//! The real libraries behind us, and the addresses of their functions.
//!
//! A library is found through our own `dlopen` by soname, never through `RTLD_NEXT` or `RTLD_DEFAULT`: other libraries export stubs
//! under the driver's names. Resolution is idempotent and takes no lock, so that it cannot deadlock in a program that forks or calls us
//! from a constructor; two threads that race resolve the same addresses twice.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use gpulimit_base::order;
use gpulimit_group::Undisturbed;
use once_cell::race::OnceBox;

use crate::account::locks::{Place, hold};
use crate::door::{real_dlsym, redirect};
use crate::hook::Row;
use crate::process::Process;

/// One real library: the functions we hook (`rows`) and those we only call (`calls`), in this order in `addresses`.
pub struct Library {
    soname: &'static CStr,
    rows: &'static [Row],
    calls: &'static [&'static CStr],
    addresses: &'static [AtomicPtr<c_void>],
    resolved: AtomicBool,
    /// Real address → index of the row, sorted.
    by_address: OnceBox<Vec<(usize, usize)>>,
    redirected: AtomicBool,
}

impl Library {
    pub const fn new(
        soname: &'static CStr,
        rows: &'static [Row],
        calls: &'static [&'static CStr],
        addresses: &'static [AtomicPtr<c_void>],
    ) -> Self {
        Library {
            soname,
            rows,
            calls,
            addresses,
            resolved: AtomicBool::new(false),
            by_address: OnceBox::new(),
            redirected: AtomicBool::new(false),
        }
    }

    /// Address of function `index`, null when this driver lacks it. Loads the library at first use.
    #[cold]
    pub fn address(&self, index: usize) -> *mut c_void {
        let address = match self.addresses.get(index) {
            Some(address) => address,
            None => return std::ptr::null_mut(),
        };
        let found = address.load(Ordering::Relaxed);
        if !found.is_null() || self.resolved.load(Ordering::Acquire) {
            return found;
        }
        self.resolve(libc::RTLD_NOW);
        address.load(Ordering::Relaxed)
    }

    /// Whether the library can be loaded.
    pub fn present(&self) -> bool {
        self.resolved.load(Ordering::Acquire) || self.resolve(libc::RTLD_NOW)
    }

    /// Whether the library is loaded. Does not load it.
    pub fn loaded(&self) -> bool {
        self.resolved.load(Ordering::Acquire) || self.resolve(libc::RTLD_NOW | libc::RTLD_NOLOAD)
    }

    /// The hook that stands for `real`, an address that the dynamic linker or the driver handed out; `None` when it is none of ours.
    ///
    /// Does not load the library: an address cannot be of a library that is not there.
    pub fn hook_of(&self, real: *const c_void) -> Option<*const c_void> {
        if !self.loaded() {
            return None;
        }
        let table = self.by_address.get_or_init(|| {
            let mut table: Vec<(usize, usize)> = self
                .addresses
                .iter()
                .take(self.rows.len())
                .enumerate()
                .map(|(row, address)| (address.load(Ordering::Relaxed) as usize, row))
                .filter(|(address, _)| *address != 0)
                .collect();
            order::sort(&mut table);
            Box::new(table)
        });
        let at = table
            .binary_search_by_key(&(real as usize), |(address, _)| *address)
            .ok()?;
        Some(self.rows.get(table.get(at)?.1)?.hook)
    }

    /// Rows with whether the loaded driver has them.
    pub fn report(&self) -> impl Iterator<Item = (&Row, bool)> {
        let present = self.present();
        self.rows
            .iter()
            .zip(self.addresses)
            .map(move |(row, address)| (row, present && !address.load(Ordering::Relaxed).is_null()))
    }

    /// Makes the library's own symbols lead to our hooks, for whoever is bound to it past us. Only for one that is loaded.
    pub fn redirect(&self) {
        if self.redirected.load(Ordering::Acquire) {
            return;
        }
        let handle = self.open(libc::RTLD_NOW);
        // Two at a time would take the right to write from each other. Nothing in it waits for the dynamic linker. The lock is this process's: a child
        // that is forked meanwhile has one of its own, and does all of it again.
        let redirecting = &Process::current().redirecting;
        let _alone = hold(Place::Redirecting, || redirecting.lock());
        if !self.redirected.load(Ordering::Acquire) {
            redirect(handle, &|real| self.hook_of(real));
            self.redirected.store(true, Ordering::Release);
        }
    }

    /// Null when it cannot be loaded. The handle is never closed: its functions stay valid.
    fn open(&self, flags: i32) -> *mut c_void {
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
        let names = self
            .rows
            .iter()
            .map(|row| row.symbol)
            .chain(self.calls.iter().copied());
        for (name, address) in names.zip(self.addresses) {
            address.store(real_dlsym(handle, name), Ordering::Relaxed);
        }
        self.resolved.store(true, Ordering::Release);
        true
    }
}
