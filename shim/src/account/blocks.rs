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

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::rounding::BLOCK;
use crate::abi::{Context, Device as Ordinal, DevicePtr};
use crate::account::maps::Map;

const SHARDS: usize = 64;

/// The number of blocks whose small allocations can be counted without a lock. A multiple of
/// [`SHARDS`], so that blocks with the same word are in the same shard.
const WORDS: usize = 4096;

/// The most small allocations that a word counts; more than fit into a block.
const MOST: u64 = BLOCK / 2;

/// A `cuMemAlloc` allocation that spans several 2 MiB blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Large {
    pub device: Ordinal,
    pub context: Context,
    pub blocks: u64,
    /// How often the program has asked for a handle of the allocation. If it has, other processes
    /// may have the allocation open.
    pub exports: u32,
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
    /// The exports of the block's small allocations that end with the last one of them; 0 before.
    pub exports: u32,
}

/// An export of an allocation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Export {
    pub device: Ordinal,
    /// The exported bytes.
    pub bytes: u64,
    /// Whether the memory was not exported before.
    pub first: bool,
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
    /// How often memory of this block was exported, so that other processes may have it open.
    /// Indexes: `SMALL` for small allocations, `LARGE` for a large allocation.
    exports: [u32; 2],
}

impl Block {
    fn empty(device: Ordinal, context: Context) -> Block {
        Block {
            device,
            context,
            small: 0,
            large: 0,
            exports: [0; 2],
        }
    }

    /// Returns the kind of the allocation at `address` in this block, and its blocks.
    fn kind(&self, address: DevicePtr) -> (usize, u64) {
        match self.large {
            blocks @ 1.. if address.is_multiple_of(BLOCK) => (LARGE, blocks),
            _ => (SMALL, 1),
        }
    }
}

type Shard = Mutex<Map<u64, Block>>;

/// The blocks of a process.
pub struct Blocks {
    shards: Box<[Shard]>,
    /// A *word* is 0, or the address of a block plus 1 plus a number of its small allocations.
    /// These are counted here and not in the block's entry, which counts at least one more. A word
    /// gets and loses its block under the lock of the block's shard.
    words: Box<[AtomicU64; WORDS]>,
    /// Whether this process has ever exported an allocation to other processes.
    has_exports: AtomicBool,
    /// The lowest and the highest block so far.
    lowest: AtomicU64,
    highest: AtomicU64,
}

impl Default for Blocks {
    fn default() -> Self {
        Blocks {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            words: Box::new([const { AtomicU64::new(0) }; WORDS]),
            has_exports: AtomicBool::new(false),
            lowest: AtomicU64::new(u64::MAX),
            highest: AtomicU64::new(0),
        }
    }
}

impl Blocks {
    fn shard(&self, block: u64) -> &Shard {
        &self.shards[(block % SHARDS as u64) as usize]
    }

    fn word(&self, address: DevicePtr) -> &AtomicU64 {
        &self.words[(address / BLOCK) as usize % WORDS]
    }

    /// Returns whether `word` counts at least `least` allocations of the block of `address`.
    #[inline(always)]
    fn counts(word: u64, address: DevicePtr, least: u64) -> bool {
        word.wrapping_sub(address / BLOCK * BLOCK + 1 + least) < MOST
    }

    #[inline(always)]
    fn count(&self, address: DevicePtr, least: u64, change: impl Fn(u64) -> u64) -> bool {
        let change = |word| Self::counts(word, address, least).then(|| change(word));
        let (changed, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        (self.word(address))
            .fetch_update(changed, failed, change)
            .is_ok()
    }

    /// Returns whether `address` lies in a block that [`Blocks::leave_at_once`] is for: one with
    /// small allocations, of which none was exported.
    #[inline(always)]
    pub fn is_counted(&self, address: DevicePtr) -> bool {
        Self::counts(self.word(address).load(Ordering::Relaxed), address, 0)
    }

    /// Does the work of [`Blocks::enter_small`] without a lock. Returns false, and has done
    /// nothing, where that needs the lock.
    #[inline(always)]
    pub fn enter_at_once(&self, address: DevicePtr) -> bool {
        self.count(address, 0, |word| word + 1)
    }

    /// Does the work of [`Blocks::leave_small`] without a lock. Returns false, and has done
    /// nothing, where that needs the lock, as for the last allocation of a block.
    #[inline(always)]
    pub fn leave_at_once(&self, address: DevicePtr) -> bool {
        self.count(address, 1, |word| word - 1)
    }

    /// Lets the word count the small allocations in the block of `address` from now on, unless it
    /// has a block. Called under the shard's lock.
    fn open(&self, held: &Block, address: DevicePtr) {
        let word = self.word(address);
        if held.exports[SMALL] == 0 && word.load(Ordering::Relaxed) == 0 {
            word.store(address / BLOCK * BLOCK + 1, Ordering::Release);
        }
    }

    /// Takes over what the word has counted for the block of `address`, and lets it count no more.
    /// Called under the shard's lock.
    fn close(&self, held: &mut Block, address: DevicePtr) {
        let word = self.word(address);
        if Self::counts(word.load(Ordering::Relaxed), address, 0) {
            held.small += (word.swap(0, Ordering::AcqRel) % BLOCK - 1) as u32;
        }
    }

    /// Returns whether `address` lies between addresses that this process has had. Pools have
    /// addresses of their own, at least on NVIDIA's driver.
    #[inline(always)]
    pub fn may_have(&self, address: DevicePtr) -> bool {
        let block = address / BLOCK;
        self.lowest.load(Ordering::Relaxed) <= block
            && block <= self.highest.load(Ordering::Relaxed)
    }

    /// Notes the address of a block for [`Blocks::may_have`].
    #[inline(always)]
    fn note(&self, block: u64) {
        if block < self.lowest.load(Ordering::Relaxed) {
            self.lowest.fetch_min(block, Ordering::Relaxed);
        }
        if block > self.highest.load(Ordering::Relaxed) {
            self.highest.fetch_max(block, Ordering::Relaxed);
        }
    }

    /// Records a small allocation at `address`. Returns true for the first in its block. `context`
    /// returns a new block's CUDA context.
    #[inline]
    pub fn enter_small(
        &self,
        address: DevicePtr,
        device: Ordinal,
        context: impl Fn() -> Context,
    ) -> bool {
        let block = address / BLOCK;
        let mut known = None;
        loop {
            let mut shard = self.shard(block).lock();
            if let Some(held) = shard.get_mut(&block) {
                held.small += 1;
                self.open(held, address);
                // An entry without small allocations belongs to a large allocation that the driver
                // is freeing.
                return held.small == 1;
            }
            if let Some(context) = known {
                let mut held = Block::empty(device, context);
                held.small = 1;
                self.open(&held, address);
                shard.insert(block, held);
                self.note(block);
                return true;
            }
            // No lock is held while the driver is asked for the context.
            drop(shard);
            known = Some(context());
        }
    }

    /// Removes a small allocation from its block. Call after the driver has freed the allocation.
    #[inline]
    pub fn leave_small(&self, address: DevicePtr) -> Departure {
        if self.leave_at_once(address) {
            return Departure::Held;
        }
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        let Some(held) = shard.get_mut(&block) else {
            return Departure::Unknown;
        };
        if held.small == 0 {
            return Departure::Unknown;
        }
        held.small -= 1;
        if held.small == 0 {
            self.close(held, address);
        }
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

    /// Counts an export: other processes may open the allocation at `address`. `None`: the
    /// allocation is unknown.
    pub fn exported(&self, address: DevicePtr) -> Option<Export> {
        self.has_exports.store(true, Ordering::Release);
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        let held = shard.get_mut(&block)?;
        let (kind, blocks) = held.kind(address);
        self.close(held, address);
        let before = held.exports[kind];
        held.exports[kind] = before.saturating_add(1);
        Some(Export {
            device: held.device,
            bytes: blocks * BLOCK,
            first: before == 0,
        })
    }

    /// Counts an export no more that the driver has refused. Returns false if the memory was freed
    /// meanwhile, and its exports with it.
    pub fn unexported(&self, address: DevicePtr) -> bool {
        let block = address / BLOCK;
        let mut shard = self.shard(block).lock();
        let Some(held) = shard.get_mut(&block) else {
            return false;
        };
        let exports = &mut held.exports[held.kind(address).0];
        let counted = *exports > 0;
        *exports -= u32::from(counted);
        counted
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
        if held.small == 0 || held.exports[SMALL] == 0 {
            return None;
        }
        held.small -= 1;
        let last = held.small == 0;
        let taken = Taken {
            device: held.device,
            context: held.context,
            last,
            exports: if last { held.exports[SMALL] } else { 0 },
        };
        if last {
            held.exports[SMALL] = 0;
            if held.large == 0 {
                shard.remove(&block);
            }
        }
        Some(taken)
    }

    /// Puts back a removed small allocation that the driver did not free. Returns whether it is the
    /// only small allocation in its block, and the exports that it has beyond those that were taken
    /// out: 1 if those have ended meanwhile with other allocations of the block.
    pub fn put_back(&self, address: DevicePtr, taken: Taken) -> (bool, u32) {
        let new = self.enter_small(address, taken.device, || taken.context);
        let block = address / BLOCK;
        let mut more = 0;
        if let Some(held) = self.shard(block).lock().get_mut(&block) {
            self.close(held, address);
            let exports = &mut held.exports[SMALL];
            *exports = exports.saturating_add(taken.exports);
            more = u32::from(*exports == 0);
            *exports += more;
        }
        (new, more)
    }

    /// Records a large allocation at `address`.
    pub fn enter_large(&self, address: DevicePtr, large: Large) {
        let block = address / BLOCK;
        self.note(block);
        let mut shard = self.shard(block).lock();
        shard
            .entry(block)
            .and_modify(|held| {
                held.large = large.blocks;
                held.exports[LARGE] = large.exports;
            })
            .or_insert(Block {
                large: large.blocks,
                exports: [0, large.exports],
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
            exports: held.exports[LARGE],
        };
        (held.large, held.exports[LARGE]) = (0, 0);
        if held.small == 0 {
            shard.remove(&block);
        }
        Some(taken)
    }

    /// Removes all blocks of the destroyed `context`. `gone` gets the device, the number of blocks
    /// and their exports.
    pub fn drain(&self, context: Context, mut gone: impl FnMut(Ordinal, u64, u32)) {
        for shard in &self.shards {
            // The loop uses `retain`: with `extract_if`, the compiler would no longer inline
            // `remove` into the hooks.
            shard.lock().retain(|number, block| {
                let stays = block.context != context;
                if !stays {
                    self.close(block, number * BLOCK);
                    let parts = [u64::from(block.small > 0), block.large];
                    for (blocks, exports) in parts.into_iter().zip(block.exports) {
                        gone(block.device, blocks, exports);
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

    const LARGE_OF_3: Large = Large {
        device: 0,
        context: 7,
        blocks: 3,
        exports: 0,
    };

    fn export(bytes: u64, first: bool) -> Option<Export> {
        Some(Export {
            device: 0,
            bytes,
            first,
        })
    }

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
    fn a_held_block_needs_no_lock() {
        let (blocks, far) = (Blocks::default(), BASE + WORDS as u64 * BLOCK);
        let one = |address| [blocks.enter_at_once(address), blocks.leave_at_once(address)];
        assert_eq!([0, BASE].map(one), [[false; 2]; 2], "no block");
        assert!(blocks.enter_small(BASE, 0, || 7));
        assert_eq!(
            [BASE + BLOCK, far].map(one),
            [[false; 2]; 2],
            "other blocks"
        );
        assert!(
            blocks.is_counted(BASE) && !blocks.leave_at_once(BASE),
            "the last"
        );
        assert_eq!(one(BASE + 512), [true; 2]);
        assert!(blocks.enter_at_once(BASE + 512));
        assert_eq!(blocks.leave_small(BASE), Departure::Held);
        // Two blocks with the same word: the first has it until it is free.
        assert!(blocks.enter_small(far, 0, || 8) && !blocks.enter_at_once(far));
        assert_eq!(blocks.leave_small(BASE + 512), Departure::Emptied(0));
        assert!(!blocks.enter_small(far + 512, 0, || 8) && blocks.enter_at_once(far + 1024));
        assert_eq!(blocks.exported(far), export(BLOCK, true));
        assert_eq!([far, BASE].map(one), [[false; 2]; 2], "exported");
        let lasts = [0, 1, 2].map(|_| blocks.take_shared(far).map(|taken| taken.last));
        assert_eq!(lasts, [Some(false), Some(false), Some(true)]);
        assert!(blocks.enter_small(far, 0, || 8) && blocks.enter_at_once(far));
        let mut gone = 0;
        blocks.drain(8, |_, blocks, _| gone += blocks);
        assert_eq!(gone, 1);
        assert_eq!(one(far), [false; 2], "its context is gone");
        assert_eq!(blocks.leave_small(far), Departure::Unknown);
    }

    #[test]
    fn a_word_counts_fewer_allocations_than_a_block_has_bytes() {
        let counts = |count, least| Blocks::counts(BASE + 1 + count, BASE + 512, least);
        assert_eq!(
            [0, 1, MOST].map(|least| counts(0, least)),
            [true, false, false]
        );
        assert_eq!(
            [MOST - 1, MOST].map(|count| counts(count, 0)),
            [true, false]
        );
        assert!(counts(MOST, 1) && !counts(BLOCK, 0), "the next block");
    }

    #[test]
    fn a_block_that_was_exported_needs_the_lock_until_it_is_free() {
        let blocks = Blocks::default();
        blocks.enter_small(BASE, 0, || 7);
        assert!(!blocks.unexported(BASE), "not exported");
        assert!(blocks.is_counted(BASE));
        assert_eq!(blocks.exported(BASE), export(BLOCK, true));
        assert!(!blocks.enter_small(BASE + 512, 0, || unreachable!("known")));
        assert!(!blocks.is_counted(BASE), "other processes may have it open");
        assert!(blocks.unexported(BASE) && !blocks.unexported(BASE));
        assert!(!blocks.enter_small(BASE + 1024, 0, || unreachable!("known")));
        assert!(blocks.is_counted(BASE), "the driver has refused the export");
    }

    #[test]
    fn a_word_is_of_a_block_until_the_block_is_free() {
        let (blocks, far) = (Blocks::default(), BASE + WORDS as u64 * BLOCK);
        assert!(blocks.enter_small(BASE, 0, || 7) && blocks.enter_at_once(BASE));
        assert!(!blocks.enter_small(BASE + 512, 0, || unreachable!("known")));
        // The end of another block with the same word changes nothing.
        assert!(blocks.enter_small(far, 0, || 7));
        assert_eq!(blocks.leave_small(far), Departure::Emptied(0));
        for _ in 0..2 {
            assert_eq!(blocks.leave_small(BASE), Departure::Held);
            assert!(blocks.is_counted(BASE));
        }
        assert_eq!(blocks.leave_small(BASE), Departure::Emptied(0));
        assert!(!blocks.is_counted(BASE));
    }

    #[test]
    fn small_allocations_and_a_large_one_in_their_block_end_and_are_exported_apart() {
        let (blocks, small) = (Blocks::default(), BASE + 512);
        blocks.enter_small(small, 0, || 7);
        assert_eq!(blocks.take_large(BASE), None);
        let exported = Large {
            exports: 2,
            ..LARGE_OF_3
        };
        blocks.enter_large(BASE, exported);
        assert_eq!(blocks.take_large(BASE), Some(exported));
        let drained = || {
            let mut sum = (0, 0);
            blocks.drain(7, |_, blocks, exports| {
                sum = (sum.0 + blocks, sum.1 + exports)
            });
            sum
        };
        assert_eq!(drained(), (1, 0), "without the exports of the large one");
        blocks.enter_large(BASE, LARGE_OF_3);
        for _ in 0..2 {
            assert!(blocks.enter_small(small, 0, || unreachable!("known")));
            assert_eq!(blocks.exported(small), export(BLOCK, true));
            assert!(blocks.take_shared(small).is_some_and(|it| it.exports == 1));
        }
        // One thread exports the allocation while another one frees it.
        assert!(blocks.enter_small(small, 0, || unreachable!("known")));
        assert_eq!(blocks.exported(small), export(BLOCK, true));
        assert_eq!(blocks.leave_small(small), Departure::Emptied(0));
        assert_eq!(blocks.take_shared(small), None);
        assert_eq!(drained().0, 3);
    }

    #[test]
    fn a_process_may_have_what_lies_between_its_blocks() {
        let blocks = Blocks::default();
        let have = || [0, 9, 10, 19, 20, 21, 30, 31].map(|at| blocks.may_have(at * BLOCK + 5));
        assert_eq!(have(), [false; 8]);
        assert!(blocks.enter_small(20 * BLOCK, 0, || 7));
        assert_eq!(have(), [0, 0, 0, 0, 1, 0, 0, 0].map(|has| has == 1));
        blocks.enter_large(10 * BLOCK, LARGE_OF_3);
        assert_eq!(have(), [0, 0, 1, 1, 1, 0, 0, 0].map(|has| has == 1));
        assert!(blocks.enter_small(30 * BLOCK + 512, 0, || 7));
        assert!(blocks.enter_small(15 * BLOCK, 0, || 7));
        assert_eq!(have(), [0, 0, 1, 1, 1, 1, 1, 0].map(|has| has == 1));
    }

    #[test]
    fn an_export_is_of_the_large_allocation_or_of_the_address() {
        let (blocks, small) = (Blocks::default(), BASE + 10 * BLOCK + 512);
        blocks.enter_small(small, 0, || 7);
        blocks.enter_large(BASE, LARGE_OF_3);
        assert_eq!(blocks.base(BASE + 512), Some(BASE));
        assert_eq!(blocks.base(small), Some(small));
        assert_eq!(blocks.base(BASE + BLOCK), None);
        // Nothing is left of a block that is free.
        assert_eq!(blocks.leave_small(small), Departure::Emptied(0));
        assert_eq!(blocks.base(small), None);
        blocks.enter_small(small, 0, || 7);
        assert_eq!(blocks.exported(small), export(BLOCK, true));
        assert!(blocks.take_shared(small).is_some_and(|taken| taken.last));
        assert_eq!(blocks.base(small), None);
    }

    /// A block is new as often as it is emptied, whoever counts its allocations.
    #[test]
    fn threads_that_enter_and_leave_agree_on_a_blocks_end() {
        let (blocks, balance) = (Blocks::default(), AtomicU64::new(0));
        let pair = || {
            if !blocks.enter_at_once(BASE) && blocks.enter_small(BASE, 0, || 7) {
                balance.fetch_add(1, Ordering::SeqCst);
            }
            match blocks.leave_small(BASE) {
                Departure::Held => {}
                Departure::Emptied(_) => drop(balance.fetch_sub(1, Ordering::SeqCst)),
                Departure::Unknown => unreachable!("this thread has entered"),
            }
        };
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| (0..50_000).for_each(|_| pair()));
            }
        });
        assert_eq!(balance.load(Ordering::SeqCst), 0);
        assert!(!blocks.is_counted(BASE));
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
                exports: 0,
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
                exports: 0,
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
        assert_eq!(blocks.exported(BASE + 512), export(BLOCK, true));
        assert_eq!(
            blocks.exported(BASE),
            export(BLOCK, false),
            "the same block"
        );
        assert!(blocks.unexported(BASE));
        let take = |address| blocks.take_shared(address).expect("shared");
        assert_eq!((take(BASE).last, take(BASE + 512).exports), (false, 1));
        assert!(!blocks.unexported(BASE), "the block is free");
        blocks.enter_small(BASE, 0, || 7);
        blocks.enter_small(BASE + 512, 0, || 7);
        blocks.exported(BASE);
        assert!(!take(BASE).last);
        let last = take(BASE + 512);
        assert!(last.last);
        // The driver hands out the address of a freed allocation again, this time in another block.
        assert!(blocks.enter_small(BASE, 0, || 7));
        assert_eq!(blocks.take_shared(BASE), None);
        assert_eq!(
            blocks.put_back(BASE + 512, last),
            (false, 0),
            "counted twice"
        );
        let first = take(BASE);
        let last = take(BASE + 512);
        assert_eq!(blocks.put_back(BASE + 512, last), (true, 0));
        assert!(!blocks.is_counted(BASE), "exported");
        assert!(take(BASE + 512).last);
        // The exports of the block have ended, while the driver refused to free one allocation.
        assert_eq!(blocks.put_back(BASE, first), (true, 1));
        assert_eq!(take(BASE).exports, 1);

        let large = Large {
            device: 0,
            context: 7,
            blocks: 3,
            exports: 0,
        };
        blocks.enter_large(BASE, large);
        assert_eq!(blocks.exported(BASE), export(3 * BLOCK, true));
        assert_eq!(blocks.exported(BASE), export(3 * BLOCK, false));
        assert_eq!(blocks.take_shared(BASE), None, "the allocation is large");
        assert!(
            blocks
                .take_large(BASE)
                .is_some_and(|taken| taken.exports == 2)
        );
        assert_eq!(blocks.exported(BASE), None, "the block is unknown");
    }

    #[test]
    fn draining_a_context_tells_which_blocks_were_exported() {
        let blocks = Blocks::default();
        let large = |blocks, exports| Large {
            device: 3,
            context: 7,
            blocks,
            exports,
        };
        blocks.enter_small(BASE, 3, || 7);
        blocks.exported(BASE);
        blocks.enter_small(BASE + BLOCK, 3, || 7);
        blocks.enter_large(BASE + 10 * BLOCK, large(5, 0));
        blocks.enter_large(BASE + 20 * BLOCK, large(6, 2));
        let mut gone = Vec::new();
        blocks.drain(7, |device, blocks, exports| {
            if blocks > 0 {
                gone.push((device, blocks, exports));
            }
        });
        gone.sort_unstable();
        assert_eq!(gone, [(3, 1, 0), (3, 1, 1), (3, 5, 0), (3, 6, 2)]);
        blocks.drain(7, |_, _, _| unreachable!("nothing is left"));
    }

    #[test]
    fn a_small_allocation_in_a_block_that_is_being_freed_is_a_new_block() {
        let blocks = Blocks::default();
        let large = Large {
            device: 0,
            context: 7,
            blocks: 3,
            exports: 0,
        };
        blocks.enter_large(BASE, large);
        assert_eq!(blocks.leave_small(BASE), Departure::Unknown);
        assert!(blocks.enter_small(BASE + 512, 0, || unreachable!("known")));
        assert!(!blocks.enter_small(BASE + 1024, 0, || unreachable!("known")));
        assert_eq!(
            blocks.exported(BASE + 512),
            export(BLOCK, true),
            "one block"
        );
        assert_eq!(blocks.exported(BASE), export(3 * BLOCK, true));
        assert!(!blocks.take_shared(BASE + 512).expect("shared").last);
        assert!(blocks.take_shared(BASE + 1024).expect("shared").last);
        assert_eq!(
            blocks.take_large(BASE),
            Some(Large {
                exports: 1,
                ..large
            })
        );
        assert_eq!(blocks.exported(BASE), None, "nothing is left");
    }
}
