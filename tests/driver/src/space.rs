//! The device address space of the process, and the host memory behind it.
//!
//! The address space is a huge reservation of host addresses, in blocks of 2 MiB. So copies and
//! fills really move data. A host page is allocated when it is first touched, and freed with its
//! block.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::machine::BLOCK;
use crate::{Outcome, Status};

const BLOCKS: u64 = 1 << 23;
/// The start of the addresses that fit into 32 bits. Programs have no host mappings there.
const LOW: u64 = 1 << 30;
const LOW_BYTES: u64 = 3 << 30;
/// The largest number of bytes of real data that a single copy or fill moves.
pub const DATA_LIMIT: usize = 16 << 20;

/// The use of a block of the device address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Use {
    /// The block is unused, or is not the first block of a large request.
    None = 0,
    /// The block holds small requests. Its entry has the context, the shard, and the index of the
    /// block in the shard.
    Small = 1,
    /// The block is the first block of a large request.
    Large = 2,
    /// The block is part of a memory pool. Its entry has the index of the pool.
    Pool = 3,
    /// The block is part of a graph's allocations.
    Graph = 4,
}

/// The entry of a block: its use, a context, a shard, and an index that depends on the use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    /// The entry of an unused block of the address space.
    pub const NONE: Entry = Entry(0);

    /// Makes an entry: 12 bits for the context, 12 for the shard, 32 for the index.
    pub fn new(usage: Use, context: usize, shard: usize, index: usize) -> Self {
        Entry(usage as u64 | (context as u64) << 4 | (shard as u64) << 16 | (index as u64) << 32)
    }

    /// Returns the block's use.
    pub fn usage(self) -> Use {
        match self.0 & 15 {
            1 => Use::Small,
            2 => Use::Large,
            3 => Use::Pool,
            4 => Use::Graph,
            _ => Use::None,
        }
    }

    /// Returns the index of the block's context.
    pub fn context(self) -> usize {
        (self.0 >> 4 & 0xfff) as usize
    }

    /// Returns the number of the block's shard in its context.
    pub fn shard(self) -> usize {
        (self.0 >> 16 & 0xfff) as usize
    }

    /// Returns the index of the block in its shard. For a block of a pool, returns the index of the
    /// pool.
    pub fn index(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// The address space.
pub struct Space {
    base: u64,
    /// Whether device addresses have host memory behind them.
    backed: bool,
    /// Whether data was ever written to device memory. If not, no freed block has host pages.
    written: AtomicBool,
    entries: &'static [AtomicU64],
    free: Mutex<Gaps>,
    low: OnceLock<Mutex<Gaps>>,
}

/// Free ranges: the start and the length of each.
#[derive(Default, Debug)]
pub struct Gaps(BTreeMap<u64, u64>);

impl Gaps {
    fn new(blocks: Range<u64>) -> Self {
        Gaps(BTreeMap::from([(blocks.start, blocks.end - blocks.start)]))
    }

    /// Takes `wanted` bytes from the lowest gap that is large enough. `align` rounds up the start.
    pub fn take(&mut self, wanted: u64, align: impl Fn(u64) -> u64) -> Option<u64> {
        let found = self.0.iter().find_map(|(start, length)| {
            let aligned = align(*start);
            (aligned + wanted <= start + length).then_some((*start, *length, aligned))
        });
        let (start, length, aligned) = found?;
        self.0.remove(&start);
        if aligned > start {
            self.0.insert(start, aligned - start);
        }
        if start + length > aligned + wanted {
            self.0
                .insert(aligned + wanted, start + length - aligned - wanted);
        }
        Some(aligned)
    }

    /// Gives a range back, and joins it with the free ranges next to it.
    pub fn give(&mut self, mut start: u64, mut length: u64) {
        if let Some((&before, &span)) = self.0.range(..start).next_back()
            && before + span == start
        {
            self.0.remove(&before);
            start = before;
            length += span;
        }
        if let Some(span) = self.0.remove(&(start + length)) {
            length += span;
        }
        self.0.insert(start, length);
    }

    /// Removes a range from the free range that contains it.
    pub fn cut(&mut self, range: Range<u64>) {
        if let Some((&start, &length)) = self.0.range(..=range.start).next_back() {
            self.0.remove(&start);
            if range.start > start {
                self.0.insert(start, range.start - start);
            }
            if start + length > range.end {
                self.0.insert(range.end, start + length - range.end);
            }
        }
    }

    /// Returns the start and the length of every free range.
    pub fn all(&self) -> Vec<(u64, u64)> {
        self.0
            .iter()
            .map(|(start, length)| (*start, *length))
            .collect()
    }
}

/// Returns the device address space of the process. The first call makes the address space.
pub fn space() -> &'static Space {
    static SPACE: OnceLock<Space> = OnceLock::new();
    SPACE.get_or_init(Space::reserve)
}

fn map(bytes: u64, access: i32) -> Option<u64> {
    // SAFETY: a new private mapping at an address that the kernel chooses.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            access,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (address != libc::MAP_FAILED).then_some(address as u64)
}

/// Maps zeroed host memory at these addresses; returns false if another mapping is there.
fn map_at(address: u64, bytes: u64) -> bool {
    // SAFETY: with MAP_FIXED_NOREPLACE the kernel maps only addresses that have no mapping.
    let mapped = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_NORESERVE
                | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    mapped as u64 == address
}

impl Space {
    fn reserve() -> Space {
        let bytes = BLOCKS * BLOCK;
        let wanted = std::env::var_os("GPULIMIT_SIM_DATA").is_none_or(|value| value != "off");
        let writable = wanted
            .then(|| map(bytes + BLOCK, libc::PROT_READ | libc::PROT_WRITE))
            .flatten();
        // With `ulimit -v` or strict overcommit, the writable mapping fails. Device addresses then
        // have no host memory.
        let base = writable
            .or_else(|| map(bytes + BLOCK, libc::PROT_NONE))
            .unwrap_or(0x0000_2000_0000_0000);
        let base = base.next_multiple_of(BLOCK);
        if writable.is_some() {
            for advice in [
                libc::MADV_NOHUGEPAGE,
                libc::MADV_DONTDUMP,
                libc::MADV_DONTFORK,
            ] {
                // SAFETY: the range lies in the reservation made above.
                unsafe { libc::madvise(base as *mut libc::c_void, bytes as usize, advice) };
            }
        }
        let table = map(BLOCKS * 8, libc::PROT_READ | libc::PROT_WRITE);
        let entries: &'static [AtomicU64] = match table {
            // SAFETY: a new zeroed mapping of this size, which is never unmapped; any bit pattern
            // is a valid atomic.
            Some(address) => unsafe {
                std::slice::from_raw_parts(address as *const AtomicU64, BLOCKS as usize)
            },
            None => &[],
        };
        Space {
            base,
            backed: writable.is_some(),
            written: AtomicBool::new(false),
            entries,
            free: Mutex::new(Gaps::new(0..entries.len() as u64)),
            low: OnceLock::new(),
        }
    }

    /// Returns the entry of the block that contains this address.
    pub fn entry(&self, address: u64) -> Entry {
        let block = address.wrapping_sub(self.base) / BLOCK;
        self.entries
            .get(block as usize)
            .map_or(Entry::NONE, |entry| Entry(entry.load(Acquire)))
    }

    /// Sets the entries of `blocks` blocks, beginning with the block at this address.
    pub fn mark(&self, address: u64, blocks: u64, entry: Entry) {
        let first = address.wrapping_sub(self.base) / BLOCK;
        for block in first..first + blocks {
            if let Some(slot) = self.entries.get(block as usize) {
                slot.store(entry.0, std::sync::atomic::Ordering::Release);
            }
        }
    }

    /// Clears the entry of the block at this address. Returns false if another thread has changed
    /// the entry.
    pub fn unmark(&self, address: u64, entry: Entry) -> bool {
        let block = address.wrapping_sub(self.base) / BLOCK;
        self.entries
            .get(block as usize)
            .is_some_and(|slot| slot.compare_exchange(entry.0, 0, AcqRel, Relaxed).is_ok())
    }

    /// Reserves `bytes` of device addresses in the lowest gap that is large enough.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` without such a gap.
    pub fn take(&self, bytes: u64, alignment: u64) -> Outcome<u64> {
        let alignment = alignment.max(BLOCK);
        let align = |start: u64| {
            ((self.base + start * BLOCK).next_multiple_of(alignment) - self.base) / BLOCK
        };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let block = free.take(bytes.div_ceil(BLOCK), align);
        Ok(self.base + block.ok_or(Status::OUT_OF_MEMORY)? * BLOCK)
    }

    /// Reserves `bytes` of device addresses below 4 GiB.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when no gap is large enough.
    pub fn take_low(&self, bytes: u64) -> Outcome<u64> {
        let low = self.low.get_or_init(|| {
            let backed = map_at(LOW, LOW_BYTES);
            Mutex::new(Gaps::new(0..if backed { LOW_BYTES / BLOCK } else { 0 }))
        });
        let mut free = low.lock().unwrap_or_else(PoisonError::into_inner);
        let block = free.take(bytes.div_ceil(BLOCK), |start| start);
        Ok(LOW + block.ok_or(Status::OUT_OF_MEMORY)? * BLOCK)
    }

    /// Gives back device addresses and the host pages behind them.
    pub fn give(&self, address: u64, bytes: u64) {
        let blocks = bytes.div_ceil(BLOCK);
        self.forget(address, blocks * BLOCK);
        let (free, base) = match self.low.get() {
            Some(low) if address < LOW + LOW_BYTES => (low, LOW),
            _ => (&self.free, self.base),
        };
        let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
        free.give((address - base) / BLOCK, blocks);
    }

    /// Frees the host pages behind these device addresses.
    pub fn forget(&self, address: u64, bytes: u64) {
        if self.written.load(Relaxed) {
            // SAFETY: the caller has freed or unmapped this range of the reservation, so no data in
            // it is live.
            unsafe {
                libc::madvise(
                    address as *mut libc::c_void,
                    bytes as usize,
                    libc::MADV_DONTNEED,
                )
            };
        }
    }

    /// Returns whether this is an address of device memory.
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < BLOCKS * BLOCK
    }

    /// Copies memory, but at most [`DATA_LIMIT`] bytes of device memory, and none without host
    /// memory behind it.
    ///
    /// # Safety
    /// The caller must be allowed to read or write `bytes` bytes at each address outside the device
    /// space.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) {
        let device = |address| self.contains(address);
        if !self.backed && (device(to) || device(from)) {
            return;
        }
        self.written.store(true, Relaxed);
        let bytes = if device(to) || device(from) {
            bytes.min(DATA_LIMIT)
        } else {
            bytes
        };
        // SAFETY: device addresses lie in the mapped reservation. The caller promises that the
        // other addresses may be accessed.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    }

    /// Fills memory with a pattern of `width` bytes; device memory only in part, as in
    /// [`Space::copy`].
    ///
    /// # Safety
    /// If `to` is outside the device space, the caller must be allowed to write there.
    pub unsafe fn fill(&self, to: u64, pattern: u32, width: usize, count: usize) {
        if !self.backed && self.contains(to) {
            return;
        }
        self.written.store(true, Relaxed);
        let count = count.min(DATA_LIMIT / width);
        let pattern = pattern.to_le_bytes();
        for index in 0..count {
            // SAFETY: as in `copy`. The pattern has `width` bytes, because `width` is 1, 2 or 4.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    pattern.as_ptr(),
                    (to as *mut u8).add(index * width),
                    width,
                );
            }
        }
    }
}
