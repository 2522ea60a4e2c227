//! The libraries (`CUlibrary`) that take much memory besides their code, and the contexts in which
//! they are loaded.
//!
//! The driver loads a library when a context first needs it. So every call that may load a library
//! charges the library's memory in advance.

use parking_lot::RwLock;

use crate::abi::{Context, Opaque};
use crate::account::maps::Map;
use crate::image::Needs;

/// The record of a library (`CUlibrary`) that the program has open.
#[derive(Default)]
pub struct Library {
    needs: Needs,
    /// The contexts in which the library has been loaded.
    loaded: Vec<Context>,
}

/// The open libraries that take much memory besides their code: for variables or for the device
/// runtime.
#[derive(Default)]
pub struct Libraries(RwLock<Map<Opaque, Library>>);

impl Libraries {
    /// Records a library that the program has opened and that takes much memory besides its code.
    pub fn insert(&self, library: Opaque, needs: Needs) {
        let entry = Library {
            needs,
            loaded: Vec::new(),
        };
        self.0.write().insert(library, entry);
    }

    /// Returns whether the process has no libraries that take much memory besides their code.
    pub fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }

    /// Returns the memory that loading a library into `context` will take. `None`: the most that
    /// any open library needs.
    pub fn pending(&self, library: Option<Opaque>, context: Context) -> Needs {
        let libraries = self.0.read();
        let pending = |entry: &Library| match entry.loaded.contains(&context) {
            true => Needs::default(),
            false => entry.needs,
        };
        match library {
            Some(library) => libraries.get(&library).map(pending).unwrap_or_default(),
            None => libraries
                .values()
                .map(pending)
                .fold(Needs::default(), Needs::or),
        }
    }

    /// Records that the library is loaded in `context`. Returns a lower bound of the bytes of
    /// variables that it takes there.
    pub fn loaded(&self, library: Opaque, context: Context) -> u64 {
        match self.0.write().get_mut(&library) {
            Some(entry) if !entry.loaded.contains(&context) => {
                entry.loaded.push(context);
                entry.needs.least
            }
            _ => 0,
        }
    }

    /// Removes a library that the program is about to close. The driver may hand out its handle
    /// again.
    pub fn take(&self, library: Opaque) -> Option<Library> {
        self.0.write().remove(&library)
    }

    /// Puts back a library that the driver has refused to close.
    pub fn put_back(&self, handle: Opaque, library: Library) {
        self.0.write().insert(handle, library);
    }

    /// Removes a destroyed context from the records of all libraries. The driver may hand out its
    /// handle again.
    pub fn forget_context(&self, context: Context) {
        for entry in self.0.write().values_mut() {
            entry.loaded.retain(|loaded| *loaded != context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_loaded_once_in_each_context() {
        let libraries = Libraries::default();
        let needs = |variables| Needs {
            variables,
            ..Needs::default()
        };
        let pending = |library, context| libraries.pending(library, context).variables;
        assert_eq!(pending(None, 1), 0);
        assert!(libraries.is_empty());
        libraries.insert(64, needs(1000));
        assert!(!libraries.is_empty());
        libraries.insert(128, needs(500));
        assert_eq!(pending(Some(64), 1), 1000);
        assert_eq!(pending(Some(192), 1), 0);
        libraries.loaded(64, 1);
        assert_eq!(pending(Some(64), 1), 0);
        assert_eq!(pending(Some(64), 2), 1000);
        assert_eq!(pending(None, 1), 500);
        libraries.forget_context(1);
        assert_eq!(pending(None, 1), 1000);
        libraries.take(64);
        assert_eq!(pending(Some(64), 1), 0);
    }
}
