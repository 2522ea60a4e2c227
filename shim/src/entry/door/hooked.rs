//! A library of the driver (libcuda or libnvidia-ml) together with its hooks.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use gpulimit_base::order;
use once_cell::race::OnceBox;

use super::redirect::redirect;
use crate::account::Process;
use crate::account::locks::{Place, hold};
use crate::driver::Library;
use crate::hook::Row;

/// A library of the driver with its hooks. The functions of `rows` come first in the library's
/// list.
pub struct Hooked {
    library: &'static Library,
    rows: &'static [Row],
    /// The addresses of the driver's hooked functions, each with the index of its row in `rows`,
    /// sorted by address.
    by_address: OnceBox<Vec<(usize, usize)>>,
    redirected: AtomicBool,
}

impl Hooked {
    pub const fn new(library: &'static Library, rows: &'static [Row]) -> Self {
        Hooked {
            library,
            rows,
            by_address: OnceBox::new(),
            redirected: AtomicBool::new(false),
        }
    }

    /// Returns the real library.
    pub fn library(&self) -> &Library {
        self.library
    }

    /// Returns the address of the hook of the driver function `real`; `None` if it has no hook.
    /// Never loads the library.
    pub fn hook_of(&self, real: *const c_void) -> Option<*const c_void> {
        if !self.library.loaded() {
            return None;
        }
        let table = self.by_address.get_or_init(|| {
            let mut table: Vec<(usize, usize)> = self
                .library
                .addresses()
                .take(self.rows.len())
                .enumerate()
                .map(|(row, address)| (address as usize, row))
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

    /// Returns the rows of the hooked functions.
    pub fn rows(&self) -> &'static [Row] {
        self.rows
    }

    /// Returns whether this is the address of a hook.
    pub fn is_hook(&self, address: *const c_void) -> bool {
        self.rows.iter().any(|row| row.hook == address)
    }

    /// Returns the rows of the hook table. The flag beside a row tells whether the driver has the
    /// function.
    pub fn report(&self) -> impl Iterator<Item = (&Row, bool)> {
        let present = self.library.present();
        self.rows
            .iter()
            .zip(self.library.addresses())
            .map(move |(row, address)| (row, present && !address.is_null()))
    }

    /// Changes the symbol table of the driver's library, which must be loaded, so that its names
    /// lead to the hooks.
    pub fn redirect(&self) {
        if self.redirected.load(Ordering::Acquire) {
            return;
        }
        let handle = self.library.open(libc::RTLD_NOW);
        // One thread at a time changes the table: the first to finish makes its pages read-only
        // again.
        let redirecting = &Process::current().redirecting;
        // The holder of this lock never waits for the dynamic linker. A forked child has its own
        // lock.
        let _alone = hold(Place::Redirecting, || redirecting.lock());
        if !self.redirected.load(Ordering::Acquire) {
            redirect(handle, &|real| self.hook_of(real));
            self.redirected.store(true, Ordering::Release);
        }
    }
}
