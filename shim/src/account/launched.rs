//! Which kernels and graphs have been launched before.
//!
//! The driver loads code lazily: the first launch of a kernel may take memory (92 MiB for PyTorch's very first one), later ones do not.
//! A launch therefore looks its function up, first among the last few of its own thread.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::blocks::BlockHasher;
use crate::abi::Opaque;

/// Of each thread: a training step of PyTorch launches some seventy kernels.
const RECENT: usize = 256;

struct Recent {
    generation: u64,
    functions: [Opaque; RECENT],
}

thread_local! {
    static RECENTLY: RefCell<Recent> = const { RefCell::new(Recent { generation: 0, functions: [0; RECENT] }) };
}

/// Numbers generations across all accounts: a forked child's first one is none of its parent's.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

/// The functions that this process has launched.
pub struct Launched {
    generation: AtomicU64,
    functions: RwLock<HashSet<Opaque, BuildHasherDefault<BlockHasher>>>,
}

impl Default for Launched {
    fn default() -> Self {
        Launched {
            generation: AtomicU64::new(GENERATIONS.fetch_add(1, Ordering::Relaxed)),
            functions: RwLock::default(),
        }
    }
}

fn place(function: Opaque) -> usize {
    (function >> 3 ^ function).wrapping_mul(0x9e37_79b9_7f4a_7c15usize)
        >> (usize::BITS - RECENT.trailing_zeros())
}

impl Launched {
    /// Whether `function` has been launched before.
    #[inline]
    pub fn contains(&self, function: Opaque) -> bool {
        let generation = self.generation.load(Ordering::Acquire);
        let recent = RECENTLY.try_with(|recent| {
            let recent = recent.borrow();
            recent.generation == generation && recent.functions[place(function)] == function
        });
        if recent == Ok(true) {
            return true;
        }
        let known = self.functions.read().contains(&function);
        if known {
            self.remember(generation, function);
        }
        known
    }

    /// `function` has been launched.
    pub fn insert(&self, function: Opaque) {
        let generation = self.generation.load(Ordering::Acquire);
        self.functions.write().insert(function);
        self.remember(generation, function);
    }

    /// Nothing launched so far?
    pub fn is_empty(&self) -> bool {
        self.functions.read().is_empty()
    }

    /// One handle was destroyed.
    pub fn remove(&self, function: Opaque) {
        if self.functions.write().remove(&function) {
            self.forget_recent();
        }
    }

    /// Code was unloaded: handles may come back as other functions.
    pub fn forget(&self) {
        self.functions.write().clear();
        self.forget_recent();
    }

    /// What threads remember counts no more.
    fn forget_recent(&self) {
        self.generation.store(
            GENERATIONS.fetch_add(1, Ordering::Relaxed),
            Ordering::Release,
        );
    }

    fn remember(&self, generation: u64, function: Opaque) {
        let _ = RECENTLY.try_with(|recent| {
            let mut recent = recent.borrow_mut();
            if recent.generation != generation {
                *recent = Recent {
                    generation,
                    functions: [0; RECENT],
                };
            }
            recent.functions[place(function)] = function;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_until_code_is_unloaded() {
        let launched = Launched::default();
        for function in (1..500).map(|at| at * 64) {
            assert!(!launched.contains(function));
            launched.insert(function);
        }
        assert!((1..500).all(|at| launched.contains(at * 64)));
        launched.remove(64);
        assert!(!launched.contains(64));
        assert!((2..500).all(|at| launched.contains(at * 64)));
        launched.forget();
        assert!(!(1..500).any(|at| launched.contains(at * 64)));
    }

    #[test]
    fn accounts_do_not_share_what_a_thread_remembers() {
        let (one, other) = (Launched::default(), Launched::default());
        one.insert(64);
        assert!(one.contains(64));
        assert!(!other.contains(64));
    }
}
