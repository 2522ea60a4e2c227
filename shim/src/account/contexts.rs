//! The contexts that this process has on one device.

use parking_lot::RwLock;

use crate::abi::Context;

#[derive(Default)]
pub struct Contexts(RwLock<Vec<Context>>);

impl Contexts {
    /// One was made.
    pub fn insert(&self, context: Context) {
        let mut contexts = self.0.write();
        if !contexts.contains(&context) {
            contexts.push(context);
        }
    }

    /// One has gone.
    pub fn remove(&self, context: Context) {
        self.0.write().retain(|known| *known != context);
    }

    pub fn count(&self) -> usize {
        self.0.read().len()
    }

    pub fn all(&self) -> Vec<Context> {
        self.0.read().clone()
    }
}
