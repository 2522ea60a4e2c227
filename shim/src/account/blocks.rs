//! The 2 MiB blocks of device memory that `cuMemAlloc` holds. Each block with a live allocation
//! takes 2 MiB of physical memory (measured).
//!
//! - A *small* allocation has up to 2 MiB. It lies in one block, which it may share with other
//!   small allocations.
//! - A *large* allocation starts on a block boundary and shares no block.
//!
//! Order of removal:
//! - A small allocation is removed *after* the driver has freed it. Another thread that gets an
//!   address in the block meanwhile finds the block recorded.
//! - A large allocation is removed *before* the driver frees it, because the driver may reuse its
//!   address during the call.
//! - A small allocation in an exported block is removed before the call too. Another process keeps
//!   the old block alive, while the driver may reuse the address in a new block.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::rounding::BLOCK;
use crate::abi::{Context, Device as Ordinal, DevicePtr};
use crate::account::maps::Map;

const SHARDS: usize = 64;

/// A `cuMemAlloc` allocation that spans several 2 MiB blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Large {
    pub device: Ordinal,
    pub context: Context,
    pub blocks: u64,
    /// Whether other processes may have the allocation open.
    pub shared: bool,
}

impl Large {
    /// Returns the bytes of device memory of the allocation.
    pub fn bytes(self) -> u64 {
        self.blocks * BLOCK
    }
}

/// The effect of removing a small allocation from its block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Departure {
    /// The map has no small allocation in the block of this address.
    Unknown,
    /// Other small allocations remain in the block.
    Held,
    /// This was the last small allocation in the block, and the driver has freed the block.
    Emptied(Ordinal),
}

/// A small allocation that was removed from a block which other processes may have open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Taken {
    pub device: Ordinal,
    context: Context,
    /// Whether this was the last small allocation in the block.
    pub last: bool,
}

const SMALL: usize = 0;
const LARGE: usize = 1;

#[derive(Clone, Copy)]
struct Block {
    device: Ordinal,
    context: Context,
    /// The number of live small allocations in the block.
    small: u32,
    /// The number of blocks of the large allocation that starts at this block; 0 if there is none.
    large: u64,
    /// Whether other processes may have memory of this block open. Indexes: `SMALL` for small
    /// allocations, `LARGE` for a large allocation.
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
    /// Whether this process has ever exported an allocation to other processes.
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

    /// Records a small allocation at `address`. Returns true for the first in its block. `context`
    /// returns a new block's CUDA context.
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
            // An entry without small allocations belongs to a large allocation that the driver is
            // freeing.
            return held.small == 1;
        }
        let new = Block {
            small: 1,
            ..Block::empty(device, context())
        };
        shard.insert(block, new);
        true
    }

    /// Removes a small allocation from its block. Call after the driver has freed the allocation.
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

    /// Returns the address under which an export is recorded: a large allocation's start, or
    /// `address`. `None`: the block is unknown.
    pub fn base(&self, address: DevicePtr) -> Option<DevicePtr> {
        let block = address / BLOCK;
        let held = *self.shard(block).lock().get(&block)?;
        Some(if held.large > 0 {
            block * BLOCK
        } else {
            address
        })
    }

    /// Records that other processes may open the allocation at `address`. Returns the device and
    /// the exported bytes at the first export only.
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

    /// Removes the small allocation at `address` if its block was exported. Call before the driver
    /// frees the allocation.
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

    /// Puts back a removed small allocation that the driver did not free. Returns true for the only
    /// small allocation in its block.
    pub fn put_back(&self, address: DevicePtr, taken: Taken) -> bool {
        let new = self.enter_small(address, taken.device, || taken.context);
        let block = address / BLOCK;
        if let Some(held) = self.shard(block).lock().get_mut(&block) {
            held.shared[SMALL] = true;
        }
        new
    }

    /// Records a large allocation at `address`.
    pub fn enter_large(&self, address: DevicePtr, large: Large) {
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        shard
            .entry(block)
            .and_modify(|held| {
                held.large = large.blocks;
                held.shared[LARGE] = large.shared;
            })
            .or_insert(Block {
                large: large.blocks,
                shared: [false, large.shared],
                ..Block::empty(large.device, large.context)
            });
    }

    /// Removes the large allocation at `address` and returns it. Call before the driver is asked to
    /// free the allocation.
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

    /// Removes all blocks of the destroyed `context`. `gone` gets the device, the number of blocks
    /// and whether they may be shared.
    pub fn drain(&self, context: Context, mut gone: impl FnMut(Ordinal, u64, bool)) {
        for shard in &self.shards {
            // The loop uses `retain`: with `extract_if`, the compiler would no longer inline
            // `remove` into the hooks.
            shard.lock().retain(|_, block| {
                let stays = block.context != context;
                if !stays {
                    let parts = [u64::from(block.small > 0), block.large];
                    for (blocks, shared) in parts.into_iter().zip(block.shared) {
                        gone(block.device, blocks, shared);
                    }
                }
                stays
            });
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
        // The driver gives an address to a second thread before the first thread has removed the
        // address.
        assert!(!blocks.enter_small(BASE, 0, || 7));
        assert_eq!(blocks.leave_small(BASE), Departure::Held);
        assert_eq!(blocks.leave_small(BASE), Departure::Emptied(0));
    }

    #[test]
    fn a_large_allocation_may_start_in_a_block_that_is_being_freed() {
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
    fn the_blocks_of_a_context_go_with_it() {
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
    fn exported_allocations_are_taken_out_before_the_call() {
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
        // The driver hands out the address of a freed allocation again, this time in another block.
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
        assert_eq!(blocks.take_shared(BASE), None, "the allocation is large");
        assert!(blocks.take_large(BASE).is_some_and(|taken| taken.shared));
        assert_eq!(blocks.exported(BASE), None, "the block is unknown");
    }

    #[test]
    fn draining_a_context_tells_which_blocks_were_exported() {
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
    fn a_small_allocation_in_a_block_that_is_being_freed_is_a_new_block() {
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
        assert_eq!(blocks.exported(BASE + 512), Some((0, BLOCK)), "one block");
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
