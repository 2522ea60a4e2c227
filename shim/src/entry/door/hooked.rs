//! A real library of the driver together with its hooks.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use gpulimit_base::order;
use once_cell::race::OnceBox;

use super::redirect::redirect;
use crate::account::Process;
use crate::account::locks::{Place, hold};
use crate::driver::Library;
use crate::hook::Row;

/// A real library, whose first functions are those of `rows`.
pub struct Hooked {
    library: &'static Library,
    rows: &'static [Row],
    /// The real addresses of the functions, each with the index of its row, sorted by address.
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

    /// Returns the hook of the function at `real`, an address from the dynamic linker or the
    /// driver; `None` where that function has no hook.
    ///
    /// Does not load the library: if it is not loaded, the address belongs to another one.
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

    /// Returns the rows, each with whether the loaded driver has the function.
    pub fn report(&self) -> impl Iterator<Item = (&Row, bool)> {
        let present = self.library.present();
        self.rows
            .iter()
            .zip(self.library.addresses())
            .map(move |(row, address)| (row, present && !address.is_null()))
    }

    /// Makes the library's own symbols lead to the hooks, for libraries that are bound to it past
    /// the exports. The library must be loaded.
    pub fn redirect(&self) {
        if self.redirected.load(Ordering::Acquire) {
            return;
        }
        let handle = self.library.open(libc::RTLD_NOW);
        // One thread at a time, because the first to finish makes the pages read-only again. The
        // work under the lock does not wait for the dynamic linker. The lock belongs to this
        // process: a child that is forked meanwhile has its own, and redirects again.
        let redirecting = &Process::current().redirecting;
        let _alone = hold(Place::Redirecting, || redirecting.lock());
        if !self.redirected.load(Ordering::Acquire) {
            redirect(handle, &|real| self.hook_of(real));
            self.redirected.store(true, Ordering::Release);
        }
    }
}
