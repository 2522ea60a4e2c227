//! Green contexts, which are parts of a device's primary context. Memory of a green context belongs
//! to the primary context (measured).

use parking_lot::RwLock;

use crate::abi::{Context, Device as Ordinal, Opaque};
use crate::account::maps::Map;

/// The record of a green context.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Green {
    pub device: Ordinal,
    /// The `CUcontext` handle of the green context, for functions that expect a `CUcontext`.
    pub context: Context,
    /// The primary context that the green context is part of.
    pub primary: Context,
}

/// The green contexts of a process.
#[derive(Default)]
pub struct Greens(RwLock<Map<Opaque, Green>>);

impl Greens {
    pub fn insert(&self, handle: Opaque, green: Green) {
        self.0.write().insert(handle, green);
    }

    pub fn get(&self, handle: Opaque) -> Option<Green> {
        self.0.read().get(&handle).copied()
    }

    pub fn take(&self, handle: Opaque) -> Option<Green> {
        self.0.write().remove(&handle)
    }

    /// Returns the context that owns memory allocated in `context`: for a green context its primary
    /// context, and otherwise `context` itself.
    pub fn holder(&self, context: Context) -> Context {
        let greens = self.0.read();
        let of = greens.values().find(|green| green.context == context);
        of.map_or(context, |green| green.primary)
    }

    /// Removes the green contexts of a destroyed primary context, and returns them.
    pub fn forget(&self, primary: Context) -> Vec<Context> {
        let mut greens = self.0.write();
        let gone = greens.extract_if(|_, green| green.primary == primary);
        gone.map(|(_, green)| green.context).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_green_context_belongs_to_its_primary_context() {
        let greens = Greens::default();
        let green = Green {
            device: 0,
            context: 20,
            primary: 10,
        };
        greens.insert(21, green);
        assert_eq!(
            [10, 20, 30].map(|context| greens.holder(context)),
            [10, 10, 30]
        );
        assert_eq!((greens.get(21), greens.get(22)), (Some(green), None));
        assert_eq!(greens.take(21), Some(green));
        assert_eq!(greens.holder(20), 20);
        greens.insert(21, green);
        assert_eq!(greens.forget(10), [20]);
        assert_eq!(greens.get(21), None);
    }
}
