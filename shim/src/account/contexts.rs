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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_once() {
        let contexts = Contexts::default();
        for context in [7, 8, 9, 8] {
            contexts.insert(context);
        }
        assert_eq!((contexts.count(), contexts.all()), (3, vec![7, 8, 9]));
        contexts.remove(8);
        contexts.remove(8);
        assert_eq!((contexts.count(), contexts.all()), (2, vec![7, 9]));
    }
}
