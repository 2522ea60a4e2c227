//! One real library and our functions in front of its own.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use gpulimit_base::order;
use once_cell::race::OnceBox;

use super::redirect::redirect;
use crate::account::Process;
use crate::account::locks::{Place, hold};
use crate::driver::Library;
use crate::hook::Row;

/// A real library whose first functions are those of `rows`.
pub struct Hooked {
    library: &'static Library,
    rows: &'static [Row],
    /// Real address → index of the row, sorted.
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

    /// The real library.
    pub fn library(&self) -> &Library {
        self.library
    }

    /// The hook that stands for `real`, an address that the dynamic linker or the driver handed
    /// out; `None` when it is none of ours.
    ///
    /// Does not load the library: an address cannot be of a library that is not there.
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

    /// Rows with whether the loaded driver has them.
    pub fn report(&self) -> impl Iterator<Item = (&Row, bool)> {
        let present = self.library.present();
        self.rows
            .iter()
            .zip(self.library.addresses())
            .map(move |(row, address)| (row, present && !address.is_null()))
    }

    /// Makes the library's own symbols lead to our hooks, for whoever is bound to it past us. Only
    /// for one that is loaded.
    pub fn redirect(&self) {
        if self.redirected.load(Ordering::Acquire) {
            return;
        }
        let handle = self.library.open(libc::RTLD_NOW);
        // Two at a time would take the right to write from each other. Nothing in it waits for the
        // dynamic linker. The lock is this process's: a child that is forked meanwhile has one of
        // its own, and does all of it again.
        let redirecting = &Process::current().redirecting;
        let _alone = hold(Place::Redirecting, || redirecting.lock());
        if !self.redirected.load(Ordering::Acquire) {
            redirect(handle, &|real| self.hook_of(real));
            self.redirected.store(true, Ordering::Release);
        }
    }
}
