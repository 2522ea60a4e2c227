//! Which 2 MiB blocks of device memory `cuMemAlloc` holds.
//!
//! The address tells the block: over every size mix measured, the process's physical memory was exactly 2 MiB × the distinct
//! 2 MiB-aligned blocks that its live allocations touch. Requests of up to 2 MiB lie in one block, which they share with others where there is
//! room (measured: 1,048,577 bytes beside 700,000); larger ones start on a block boundary and share none. So no entry per allocation is needed: a block
//! counts its live small allocations, and the first block of a large allocation says how many it spans.
//!
//! Order: a small allocation leaves *after* the driver has freed it. Until then its block stays held, so whoever is given an address in
//! the same block meanwhile finds it counted. A large one is taken out *before* the call, since its address may be handed out again
//! as soon as the driver has it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;

use super::BLOCK;
use crate::abi::{Context, Device as Ordinal, DevicePtr};

const SHARDS: usize = 64;

/// An allocation that spans several blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Large {
    pub device: Ordinal,
    pub context: Context,
    /// Blocks of 2 MiB.
    pub blocks: u64,
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

#[derive(Clone, Copy)]
struct Block {
    device: Ordinal,
    context: Context,
    /// Live small allocations.
    small: u32,
    /// Blocks of the large allocation that starts here; 0 for none.
    large: u64,
}

type Shard = Mutex<HashMap<u64, Block, BuildHasherDefault<BlockHasher>>>;

/// The blocks of a process.
pub struct Blocks {
    shards: Box<[Shard]>,
}

impl Default for Blocks {
    fn default() -> Self {
        Blocks {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }
}

impl Blocks {
    fn shard(&self, block: u64) -> &Shard {
        &self.shards[(block % SHARDS as u64) as usize]
    }

    /// A small allocation arrived at `address`. True when its block was not held before. `context` is asked for only then.
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
            // A stale large one here is on its way out: its blocks are no longer counted, so this is a new one.
            return held.small == 1;
        }
        shard.insert(
            block,
            Block {
                device,
                context: context(),
                small: 1,
                large: 0,
            },
        );
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

    /// A large allocation arrived at `address`.
    pub fn enter_large(&self, address: DevicePtr, large: Large) {
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        shard
            .entry(block)
            .and_modify(|held| held.large = large.blocks)
            .or_insert(Block {
                device: large.device,
                context: large.context,
                small: 0,
                large: large.blocks,
            });
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
        };
        held.large = 0;
        if held.small == 0 {
            shard.remove(&block);
        }
        Some(taken)
    }

    /// Everything of `context` is gone. Calls `gone` with device and blocks.
    pub fn drain(&self, context: Context, mut gone: impl FnMut(Ordinal, u64)) {
        for shard in &self.shards {
            shard.lock().retain(|_, block| {
                let stays = block.context != context;
                if !stays {
                    gone(block.device, block.large + u64::from(block.small > 0));
                }
                stays
            });
        }
    }
}

/// Multiplicative hashing: block numbers are dense and chosen by the driver, not by an adversary.
#[derive(Default)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, block: u64) {
        let mixed = (self.0 ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
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
        // The driver has freed the only allocation and given the address to another thread, and only then the first one leaves.
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
            },
        );
        let mut gone = 0;
        blocks.drain(7, |_, blocks| gone += blocks);
        assert_eq!(gone, 6);
        assert_eq!(blocks.leave_small(BASE + 10 * BLOCK), Departure::Emptied(0));
    }
}
