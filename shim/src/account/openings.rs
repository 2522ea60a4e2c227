//! Linear memory that other processes allocated and this process opened (`cuIpcOpenMemHandle`).
//!
//! When the owner frees this memory or ends, NVML attributes it to a process that has it open
//! (measured). No CUDA call reports this change. The account notices it by the growth of NVML's
//! figure ([`Openings::take_over`]).

use gpulimit_base::order;
use parking_lot::Mutex;

use crate::abi::{Context, Device as Ordinal, DevicePtr};
use crate::account::maps::Map;

/// Memory that another process allocated and this process opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Opening {
    pub device: Ordinal,
    pub context: Context,
    /// The total size of the 2 MiB blocks that the memory touches, in bytes.
    pub size: u64,
    /// Bytes of `size` that are charged to this process: all or none.
    pub bytes: u64,
    /// How often this process has opened the memory and not closed it yet.
    pub count: u32,
}

/// The memory of other processes that this process has opened but not closed yet.
#[derive(Default)]
pub struct Openings {
    open: Mutex<Map<DevicePtr, Opening>>,
}

impl Openings {
    /// Counts one more opening of the memory at `address`. Returns false when this memory is not
    /// recorded as open.
    pub fn again(&self, address: DevicePtr) -> bool {
        match self.open.lock().get_mut(&address) {
            Some(known) => {
                known.count += 1;
                true
            }
            None => false,
        }
    }

    /// Records that the program has opened memory, or has failed to close it. Returns true for
    /// memory that was not open.
    pub fn enter(&self, address: DevicePtr, opening: Opening) -> bool {
        let mut open = self.open.lock();
        match open.get_mut(&address) {
            Some(known) => {
                known.count += opening.count;
                false
            }
            None => {
                open.insert(address, opening);
                true
            }
        }
    }

    /// Counts a close that the program is about to make. The last close removes and returns the
    /// record.
    pub fn close(&self, address: DevicePtr) -> Option<Opening> {
        let mut open = self.open.lock();
        let known = open.get_mut(&address)?;
        if known.count > 1 {
            known.count -= 1;
            return None;
        }
        open.remove(&address)
    }

    /// Charges memory of other processes that NVML now counts for this process. Returns the charged
    /// bytes.
    ///
    /// NVML's figure for this process has grown by `grown` bytes. The largest memory is charged
    /// first, and at most `grown` bytes are charged in all.
    pub fn take_over(&self, device: Ordinal, grown: u64, charge: impl Fn(u64)) -> u64 {
        let mut open = self.open.lock();
        let elsewhere = |opening: &&mut Opening| opening.device == device && opening.bytes == 0;
        let mut candidates: Vec<_> = open.values_mut().filter(elsewhere).collect();
        order::sort_by(&mut candidates, |a, b| a.size > b.size);
        let mut taken = 0;
        for opening in candidates {
            if opening.size <= grown - taken {
                opening.bytes = opening.size;
                taken += opening.size;
                charge(opening.size);
            }
        }
        taken
    }

    /// Removes the memory that was open in the destroyed context `context`, and returns it.
    pub fn drain(&self, context: Context) -> Vec<Opening> {
        let mut open = self.open.lock();
        let gone = open.extract_if(|_, opening| opening.context == context);
        gone.map(|(_, opening)| opening).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::rounding::BLOCK;
    use super::*;

    fn opening(device: Ordinal, blocks: u64) -> Opening {
        Opening {
            device,
            context: 7,
            size: blocks * BLOCK,
            bytes: 0,
            count: 1,
        }
    }

    #[test]
    fn the_last_close_takes_the_entry_out() {
        let openings = Openings::default();
        assert!(!openings.again(5));
        assert!(openings.enter(5, opening(0, 3)));
        assert!(openings.again(5));
        assert_eq!(openings.close(5), None);
        let closed = openings.close(5).expect("the last close");
        assert_eq!(closed, opening(0, 3));
        assert_eq!(openings.close(5), None);
        assert!(openings.enter(5, closed), "the driver refused");
        assert!(!openings.enter(5, closed), "the memory was opened again");
        assert_eq!(openings.close(5), None);
        assert_eq!(openings.drain(8), []);
        assert_eq!(openings.drain(7), [opening(0, 3)]);
        assert_eq!(openings.close(5), None);
    }

    #[test]
    fn growth_takes_over_the_largest_memory_that_fits_first() {
        let openings = Openings::default();
        openings.enter(1, opening(0, 40));
        openings.enter(2, opening(0, 100));
        openings.enter(3, opening(1, 60));
        openings.enter(4, opening(0, 70));
        let take = |blocks| openings.take_over(0, blocks * BLOCK, |_| {}) / BLOCK;
        assert_eq!(take(39), 0);
        assert_eq!(take(109), 100);
        assert_eq!(take(109), 70);
        assert_eq!(take(109), 40);
        assert_eq!(take(109), 0, "the remaining memory is on another GPU");
        assert_eq!(openings.close(2).expect("open").bytes, 100 * BLOCK);
    }
}
