//! Managed memory (`cuMemAllocManaged`). It is charged in full when it is allocated, because all of
//! it may later lie in device memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::abi::{Context, Device as Ordinal, DevicePtr};
use crate::account::maps::Map;

/// The record of a managed allocation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Allocation {
    pub device: Ordinal,
    pub context: Context,
    pub bytes: u64,
}

/// The managed allocations of a process.
#[derive(Default)]
pub struct Managed {
    live: AtomicUsize,
    by_address: Mutex<Map<DevicePtr, Allocation>>,
}

impl Managed {
    pub fn insert(&self, address: DevicePtr, allocation: Allocation) {
        let mut map = self.by_address.lock();
        map.insert(address, allocation);
        self.live.store(map.len(), Ordering::Release);
    }

    /// Returns whether the process has no managed allocations, as is the case in most programs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.live.load(Ordering::Acquire) == 0
    }

    /// Removes and returns the managed allocation at `address`. Call before the driver frees it,
    /// because the driver may reuse the address.
    pub fn take(&self, address: DevicePtr) -> Option<Allocation> {
        if self.is_empty() {
            return None;
        }
        let mut map = self.by_address.lock();
        let taken = map.remove(&address);
        self.live.store(map.len(), Ordering::Release);
        taken
    }

    /// Removes all managed allocations of the destroyed context `context`. Calls `gone` with the
    /// device and the bytes of each allocation.
    pub fn drain(&self, context: Context, mut gone: impl FnMut(Ordinal, u64)) {
        let mut map = self.by_address.lock();
        for (_, allocation) in map.extract_if(|_, allocation| allocation.context == context) {
            gone(allocation.device, allocation.bytes);
        }
        self.live.store(map.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_known_until_it_is_freed_or_its_context_is_gone() {
        let managed = Managed::default();
        let of = |context, bytes| Allocation {
            device: 1,
            context,
            bytes,
        };
        assert_eq!(managed.take(64), None);
        managed.insert(64, of(7, 10));
        managed.insert(128, of(7, 20));
        managed.insert(192, of(8, 40));
        assert_eq!(managed.take(64), Some(of(7, 10)));
        assert_eq!(managed.take(64), None);
        let mut gone = Vec::new();
        managed.drain(7, |device, bytes| gone.push((device, bytes)));
        assert_eq!(gone, [(1, 20)]);
        assert_eq!(managed.take(128), None);
        assert_eq!(managed.take(192), Some(of(8, 40)));
    }
}
