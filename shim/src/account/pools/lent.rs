//! Allocations from managed pools, and from pools of other processes. The driver frees a destroyed
//! pool's memory only with the pool's last allocation (measured for managed pools).

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Pool;
use crate::abi::DevicePtr;
use crate::account::maps::Map;

#[derive(Default)]
struct State {
    by_address: Map<DevicePtr, &'static Pool>,
    /// Destroyed pools of which allocations may be left.
    leaving: Vec<&'static Pool>,
}

/// The allocations of all managed and imported pools of a process.
#[derive(Default)]
pub struct Lent {
    /// The number of these allocations plus the number of destroyed pools. Both are 0 in most
    /// programs.
    count: AtomicUsize,
    state: Mutex<State>,
}

impl Lent {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = work(&mut state);
        let count = state.by_address.len() + state.leaving.len();
        self.count.store(count, Ordering::Release);
        result
    }

    /// Returns whether the process has no such allocations and no destroyed pools. This is so in
    /// most programs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Records an allocation at `address` from `pool`.
    pub fn insert(&self, address: DevicePtr, pool: &'static Pool) {
        self.with(|state| state.by_address.insert(address, pool));
    }

    /// Removes the allocation at `address` and returns its pool, if any. Call before the
    /// driver frees the allocation.
    #[inline(always)]
    pub fn take(&self, address: DevicePtr) -> Option<&'static Pool> {
        if self.is_empty() {
            return None;
        }
        self.take_one(address)
    }

    #[cold]
    #[inline(never)]
    fn take_one(&self, address: DevicePtr) -> Option<&'static Pool> {
        self.with(|state| state.by_address.remove(&address))
    }

    /// Records that the program has destroyed `pool`.
    pub fn leave(&self, pool: &'static Pool) {
        self.with(|state| state.leaving.push(pool));
    }

    /// Removes the destroyed pools that have no allocations left, and returns them.
    pub fn left(&self) -> Vec<&'static Pool> {
        if self.is_empty() {
            return Vec::new();
        }
        self.with(|state| {
            let (staying, left) =
                std::mem::take(&mut state.leaving)
                    .into_iter()
                    .partition(|pool| {
                        let mut all = state.by_address.values();
                        all.any(|other| std::ptr::eq(*other, *pool))
                    });
            state.leaving = staying;
            left
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(handle: usize) -> &'static Pool {
        Box::leak(Box::new(Pool::new(handle, 0, false)))
    }

    #[test]
    fn a_pool_leaves_with_its_last_allocation() {
        let lent = Lent::default();
        let (one, other) = (pool(1), pool(2));
        assert!(lent.take(64).is_none());
        lent.insert(64, one);
        lent.insert(128, one);
        lent.insert(192, other);
        lent.leave(one);
        assert!(lent.left().is_empty());
        assert!(lent.take(64).is_some_and(|pool| std::ptr::eq(pool, one)));
        assert!(lent.left().is_empty());
        assert!(lent.take(64).is_none());
        assert!(lent.take(128).is_some());
        assert_eq!(lent.left().len(), 1);
        assert!(lent.left().is_empty());
        assert!(lent.take(192).is_some());
        assert!(lent.is_empty());
    }
}
