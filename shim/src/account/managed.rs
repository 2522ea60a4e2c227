//! Managed memory: charged in full at allocation, because the driver shows it in no per-process figure and the device may hold all of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::abi::{Context, Device as Ordinal, DevicePtr};

/// A managed allocation.
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
    by_address: Mutex<HashMap<DevicePtr, Allocation>>,
}

impl Managed {
    pub fn insert(&self, address: DevicePtr, allocation: Allocation) {
        let mut map = self.by_address.lock();
        map.insert(address, allocation);
        self.live.store(map.len(), Ordering::Release);
    }

    /// Takes the allocation at `address` out, before the driver is asked to free it: its address may be handed out again at once.
    pub fn take(&self, address: DevicePtr) -> Option<Allocation> {
        if self.live.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut map = self.by_address.lock();
        let taken = map.remove(&address);
        self.live.store(map.len(), Ordering::Release);
        taken
    }

    /// Everything of `context` is gone. Calls `gone` with device and bytes.
    pub fn drain(&self, context: Context, mut gone: impl FnMut(Ordinal, u64)) {
        let mut map = self.by_address.lock();
        map.retain(|_, allocation| {
            let stays = allocation.context != context;
            if !stays {
                gone(allocation.device, allocation.bytes);
            }
            stays
        });
        self.live.store(map.len(), Ordering::Release);
    }
}
