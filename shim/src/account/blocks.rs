//! Which 2 MiB blocks of device memory `cuMemAlloc` holds.
//!
//! The address tells the block: over every size mix measured, the process's physical memory was
//! exactly 2 MiB × the distinct 2 MiB-aligned blocks that its live allocations touch. Requests of
//! up to 2 MiB lie in one block, which they share with others where there is room (measured:
//! 1,048,577 bytes beside 700,000); larger ones start on a block boundary and share none. So no
//! entry per allocation is needed: a block counts its live small allocations, and the first block
//! of a large allocation says how many it spans.
//!
//! Order: a small allocation leaves *after* the driver has freed it. Until then its block stays
//! held, so whoever is given an address in the same block meanwhile finds it counted. A large one
//! is taken out *before* the call, since its address may be handed out again as soon as the driver
//! has it; so is a small one of a block that another process may have open: that keeps the block,
//! and the address may come back in another.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::rounding::BLOCK;
use crate::abi::{Context, Device as Ordinal, DevicePtr};
use crate::account::maps::Map;

const SHARDS: usize = 64;

/// An allocation that spans several blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Large {
    pub device: Ordinal,
    pub context: Context,
    /// Blocks of 2 MiB.
    pub blocks: u64,
    /// Other processes may have it open.
    pub shared: bool,
}

impl Large {
    /// Bytes of device memory.
    pub fn bytes(self) -> u64 {
        self.blocks * BLOCK
    }
}

/// What the departure of a small allocation did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Departure {
    /// Not one of ours.
    Unknown,
    /// Others live on in its block.
    Held,
    /// It was the last: the driver has let the block go.
    Emptied(Ordinal),
}

/// A small allocation that was taken out of a block which other processes may have open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Taken {
    pub device: Ordinal,
    context: Context,
    /// It was the last.
    pub last: bool,
}

const SMALL: usize = 0;
const LARGE: usize = 1;

#[derive(Clone, Copy)]
struct Block {
    device: Ordinal,
    context: Context,
    /// Live small allocations.
    small: u32,
    /// Blocks of the large allocation that starts here; 0 for none.
    large: u64,
    /// Other processes may have it open: as one of small allocations, as a large one's.
    shared: [bool; 2],
}

impl Block {
    fn empty(device: Ordinal, context: Context) -> Block {
        Block {
            device,
            context,
            small: 0,
            large: 0,
            shared: [false; 2],
        }
    }
}

type Shard = Mutex<Map<u64, Block>>;

/// The blocks of a process.
pub struct Blocks {
    shards: Box<[Shard]>,
    /// Something was exported.
    has_exports: AtomicBool,
}

impl Default for Blocks {
    fn default() -> Self {
        Blocks {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            has_exports: AtomicBool::new(false),
        }
    }
}

impl Blocks {
    fn shard(&self, block: u64) -> &Shard {
        &self.shards[(block % SHARDS as u64) as usize]
    }

    /// A small allocation arrived at `address`. True when its block was not held before. `context`
    /// is asked for only then.
    #[inline]
    pub fn enter_small(
        &self,
        address: DevicePtr,
        device: Ordinal,
        context: impl FnOnce() -> Context,
    ) -> bool {
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        if let Some(held) = shard.get_mut(&block) {
            held.small += 1;
            // A stale large one here is on its way out: its blocks are no longer counted, so this
            // is a new one.
            return held.small == 1;
        }
        let mut new = Block::empty(device, context());
        new.small = 1;
        shard.insert(block, new);
        true
    }

    /// A small allocation at `address` has been freed by the driver.
    #[inline]
    pub fn leave_small(&self, address: DevicePtr) -> Departure {
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        let Some(held) = shard.get_mut(&block) else {
            return Departure::Unknown;
        };
        if held.small == 0 {
            return Departure::Unknown;
        }
        held.small -= 1;
        if held.small > 0 {
            return Departure::Held;
        }
        let device = held.device;
        if held.large == 0 {
            shard.remove(&block);
        }
        Departure::Emptied(device)
    }

    /// Where the allocation starts that an address of a held block lies in: a large one at the
    /// block, a small one at the address or in the same block; `None` where nothing is known of the
    /// block.
    pub fn base(&self, address: DevicePtr) -> Option<DevicePtr> {
        let block = address / BLOCK;
        let held = *self.shard(block).lock().get(&block)?;
        Some(if held.large > 0 {
            block * BLOCK
        } else {
            address
        })
    }

    /// Other processes may open the allocation that starts at `address` from now on, a small one
    /// with its whole block. Device and bytes, the first time.
    pub fn exported(&self, address: DevicePtr) -> Option<(Ordinal, u64)> {
        self.has_exports.store(true, Ordering::Release);
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        let held = shard.get_mut(&block)?;
        let (kind, blocks) = match held.large {
            blocks @ 1.. if address.is_multiple_of(BLOCK) => (LARGE, blocks),
            _ => (SMALL, 1),
        };
        let first = !std::mem::replace(&mut held.shared[kind], true);
        first.then_some((held.device, blocks * BLOCK))
    }

    /// Takes the small allocation at `address` out of a block that other processes may have open,
    /// before the driver is asked to free it.
    #[inline(always)]
    pub fn take_shared(&self, address: DevicePtr) -> Option<Taken> {
        if !self.has_exports.load(Ordering::Relaxed) {
            return None;
        }
        self.take_exported(address)
    }

    #[cold]
    #[inline(never)]
    fn take_exported(&self, address: DevicePtr) -> Option<Taken> {
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        let held = shard.get_mut(&block)?;
        if held.small == 0 || !held.shared[SMALL] {
            return None;
        }
        held.small -= 1;
        let taken = Taken {
            device: held.device,
            context: held.context,
            last: held.small == 0,
        };
        if taken.last {
            held.shared[SMALL] = false;
            if held.large == 0 {
                shard.remove(&block);
            }
        }
        Some(taken)
    }

    /// The driver has not freed what was taken out at `address`. True when its block was not held
    /// any more.
    pub fn put_back(&self, address: DevicePtr, taken: Taken) -> bool {
        let new = self.enter_small(address, taken.device, || taken.context);
        let block = address / BLOCK;
        if let Some(held) = self.shard(block).lock().get_mut(&block) {
            held.shared[SMALL] = true;
        }
        new
    }

    /// A large allocation arrived at `address`.
    pub fn enter_large(&self, address: DevicePtr, large: Large) {
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        let new = Block::empty(large.device, large.context);
        let held = shard.entry(block).or_insert(new);
        held.large = large.blocks;
        held.shared[LARGE] = large.shared;
    }

    /// Takes the large allocation at `address` out, before the driver is asked to free it.
    pub fn take_large(&self, address: DevicePtr) -> Option<Large> {
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        let held = shard.get_mut(&block)?;
        if held.large == 0 {
            return None;
        }
        let taken = Large {
            device: held.device,
            context: held.context,
            blocks: held.large,
            shared: held.shared[LARGE],
        };
        held.large = 0;
        if held.small == 0 {
            shard.remove(&block);
        }
        Some(taken)
    }

    /// Everything of `context` is gone. Calls `gone` with device and blocks, and whether other
    /// processes may have them open.
    pub fn drain(&self, context: Context, mut gone: impl FnMut(Ordinal, u64, bool)) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for (_, block) in shard.extract_if(|_, block| block.context == context) {
                let small = u64::from(block.small > 0);
                gone(block.device, small, block.shared[SMALL]);
                gone(block.device, block.large, block.shared[LARGE]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: DevicePtr = 0x7f00_0000_0000;

    #[test]
    fn small_allocations_share_a_block_until_the_last_leaves() {
        let blocks = Blocks::default();
        assert!(blocks.enter_small(BASE, 0, || 7));
        assert!(!blocks.enter_small(BASE + 512, 0, || unreachable!()));
        assert!(blocks.enter_small(BASE + BLOCK, 0, || 7));
        assert_eq!(blocks.leave_small(BASE), Departure::Held);
        assert_eq!(blocks.leave_small(BASE + 512), Departure::Emptied(0));
        assert_eq!(blocks.leave_small(BASE + 512), Departure::Unknown);
        assert_eq!(blocks.leave_small(BASE + BLOCK), Departure::Emptied(0));
    }

    #[test]
    fn an_address_handed_out_again_before_the_old_owner_left_is_counted_once() {
        let blocks = Blocks::default();
        assert!(blocks.enter_small(BASE, 0, || 7));
        // The driver has freed the only allocation and given the address to another thread, and
        // only then the first one leaves.
        assert!(!blocks.enter_small(BASE, 0, || 7));
        assert_eq!(blocks.leave_small(BASE), Departure::Held);
        assert_eq!(blocks.leave_small(BASE), Departure::Emptied(0));
    }

    #[test]
    fn a_large_allocation_may_take_the_place_of_a_leaving_small_one() {
        let blocks = Blocks::default();
        assert!(blocks.enter_small(BASE, 0, || 7));
        blocks.enter_large(
            BASE,
            Large {
                device: 0,
                context: 7,
                blocks: 3,
                shared: false,
            },
        );
        assert_eq!(blocks.leave_small(BASE), Departure::Emptied(0));
        assert_eq!(blocks.take_large(BASE).map(Large::bytes), Some(3 * BLOCK));
        assert_eq!(blocks.take_large(BASE), None);
    }

    #[test]
    fn a_context_takes_its_blocks_along() {
        let blocks = Blocks::default();
        blocks.enter_small(BASE, 0, || 7);
        blocks.enter_small(BASE + 10 * BLOCK, 0, || 8);
        blocks.enter_large(
            BASE + 20 * BLOCK,
            Large {
                device: 0,
                context: 7,
                blocks: 5,
                shared: false,
            },
        );
        let mut gone = 0;
        blocks.drain(7, |_, blocks, _| gone += blocks);
        assert_eq!(gone, 6);
        assert_eq!(blocks.leave_small(BASE + 10 * BLOCK), Departure::Emptied(0));
    }

    #[test]
    fn what_others_may_have_open_leaves_before_the_call() {
        let blocks = Blocks::default();
        blocks.enter_small(BASE, 0, || 7);
        blocks.enter_small(BASE + 512, 0, || 7);
        assert_eq!(blocks.take_shared(BASE), None);
        assert_eq!(blocks.exported(BASE + 512), Some((0, BLOCK)));
        assert_eq!(blocks.exported(BASE), None, "the same block");
        let take = |address| blocks.take_shared(address).expect("shared");
        assert!(!take(BASE).last);
        let last = take(BASE + 512);
        assert!(last.last);
        // The address has come back with another block.
        assert!(blocks.enter_small(BASE, 0, || 7));
        assert_eq!(blocks.take_shared(BASE), None);
        assert!(!blocks.put_back(BASE + 512, last), "counted twice");
        assert!(!take(BASE).last);
        let last = take(BASE + 512);
        assert!(blocks.put_back(BASE + 512, last));
        assert!(take(BASE + 512).last);

        let large = Large {
            device: 0,
            context: 7,
            blocks: 3,
            shared: false,
        };
        blocks.enter_large(BASE, large);
        assert_eq!(blocks.exported(BASE), Some((0, 3 * BLOCK)));
        assert_eq!(blocks.take_shared(BASE), None, "a large one");
        assert!(blocks.take_large(BASE).is_some_and(|taken| taken.shared));
        assert_eq!(blocks.exported(BASE), None, "nobody's");
    }

    #[test]
    fn what_a_context_takes_along_is_told_with_what_others_may_have_open() {
        let blocks = Blocks::default();
        let large = |blocks, shared| Large {
            device: 3,
            context: 7,
            blocks,
            shared,
        };
        blocks.enter_small(BASE, 3, || 7);
        blocks.exported(BASE);
        blocks.enter_small(BASE + BLOCK, 3, || 7);
        blocks.enter_large(BASE + 10 * BLOCK, large(5, false));
        blocks.enter_large(BASE + 20 * BLOCK, large(6, true));
        let mut gone = Vec::new();
        blocks.drain(7, |device, blocks, shared| {
            if blocks > 0 {
                gone.push((device, blocks, shared));
            }
        });
        gone.sort_unstable();
        assert_eq!(
            gone,
            [(3, 1, false), (3, 1, true), (3, 5, false), (3, 6, true)]
        );
        blocks.drain(7, |_, _, _| unreachable!("nothing is left"));
    }

    #[test]
    fn a_small_one_in_the_place_of_a_leaving_large_one_is_a_new_block() {
        let blocks = Blocks::default();
        let large = Large {
            device: 0,
            context: 7,
            blocks: 3,
            shared: false,
        };
        blocks.enter_large(BASE, large);
        assert_eq!(blocks.leave_small(BASE), Departure::Unknown);
        assert!(blocks.enter_small(BASE + 512, 0, || unreachable!("known")));
        assert!(!blocks.enter_small(BASE + 1024, 0, || unreachable!("known")));
        assert_eq!(
            blocks.exported(BASE + 512),
            Some((0, BLOCK)),
            "its block alone"
        );
        assert_eq!(blocks.exported(BASE), Some((0, 3 * BLOCK)));
        assert!(!blocks.take_shared(BASE + 512).expect("shared").last);
        assert!(blocks.take_shared(BASE + 1024).expect("shared").last);
        assert_eq!(
            blocks.take_large(BASE),
            Some(Large {
                shared: true,
                ..large
            })
        );
        assert_eq!(blocks.exported(BASE), None, "nothing is left");
    }
}
