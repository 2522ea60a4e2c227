//! A heap that places small requests in blocks of 2 MiB.
//!
//! Each request gets the smallest free extent that is large enough; of equal extents, the one that
//! was freed last. A freed extent is joined with its free neighbours. The heap never touches the
//! memory. An operation takes the same time for any number of live requests.

use crate::machine::BLOCK;

/// Sizes of small requests are rounded up to a multiple of this many bytes.
pub const GRAIN: u64 = 512;
/// The number of grains in a block.
const GRAINS: usize = (BLOCK / GRAIN) as usize;
const CHUNK: usize = 64;
/// The number that means "no extent". Element 0 of the list of extents is never used.
const NONE: u32 = 0;

/// A heap: blocks, and the requests that were placed in them.
#[derive(Default)]
pub struct Heap {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    extents: Vec<Extent>,
    unused: Vec<u32>,
    free: Free,
    /// One free extent outside the lists, so that changes to this extent touch no list.
    rest: u32,
}

/// A part of a block. It is free or holds one live request. Two free extents are never neighbours.
#[derive(Clone, Copy, Default)]
struct Extent {
    block: u32,
    start: u16,
    grains: u16,
    /// The bytes of the request; 0 = the extent is free.
    bytes: u32,
    /// The extents before and after this extent in its block.
    before: u32,
    after: u32,
    /// The extents before and after this extent in the list of free extents of the same size.
    previous: u32,
    next: u32,
}

/// The free extents, in one list for each size.
struct Free {
    /// The first free extent of each size. The index is the size in grains, minus one.
    first: Vec<u32>,
    /// Two bitmaps: `sizes` marks each size with a free extent, `words` each word of `sizes` that
    /// is not 0.
    sizes: [u64; GRAINS / 64],
    words: u64,
}

impl Default for Free {
    fn default() -> Self {
        Free {
            first: Vec::new(),
            sizes: [0; GRAINS / 64],
            words: 0,
        }
    }
}

struct Block {
    /// The address of the block; 0 = the element is vacant.
    address: u64,
    /// The numbers of the live extents, by first grain. A chunk of this table is allocated on first
    /// use.
    starts: Box<[Option<Box<[u32; CHUNK]>>; GRAINS / CHUNK]>,
}

/// What happened to a block after a request in it was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The block stays in the heap, because other requests live in it.
    Block,
    /// The block became empty and was removed from the heap.
    Nothing,
}

impl Heap {
    /// Places a request of at most one block. Returns the address, or `None` if no free extent is
    /// large enough.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let grains = bytes.div_ceil(GRAIN) as u16;
        let found = self.smallest(grains)?;
        self.detach(found);
        let Extent {
            block,
            start,
            grains: room,
            before,
            ..
        } = self.extents[found as usize];
        let mut live = found;
        if room > grains {
            live = self.extent(Extent {
                block,
                start,
                grains,
                before,
                after: found,
                ..Extent::default()
            });
            self.extents[before as usize].after = live;
            let rest = &mut self.extents[found as usize];
            rest.before = live;
            rest.start += grains;
            rest.grains -= grains;
            self.attach(found);
        }
        self.extents[live as usize].bytes = bytes as u32;
        let block = &mut self.blocks[block as usize];
        let (chunk, place) = (start as usize / CHUNK, start as usize % CHUNK);
        block.starts[chunk].get_or_insert_with(|| Box::new([NONE; CHUNK]))[place] = live;
        Some(block.address + u64::from(start) * GRAIN)
    }

    /// Adds an empty block to the heap and returns the block's index.
    pub fn add(&mut self, address: u64) -> usize {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(Block {
                address: 0,
                starts: Box::new([const { None }; GRAINS / CHUNK]),
            });
            self.blocks.len() as u32 - 1
        });
        self.blocks[index as usize].address = address;
        let whole = self.extent(Extent {
            block: index,
            grains: GRAINS as u16,
            ..Extent::default()
        });
        self.attach(whole);
        index as usize
    }

    /// Frees the request at this address in the block `index`. Returns `None` if no request starts
    /// there.
    pub fn give(&mut self, index: usize, address: u64) -> Option<Left> {
        let block = self.blocks.get_mut(index)?;
        let offset = address.checked_sub(block.address)?;
        if !offset.is_multiple_of(GRAIN) {
            return None;
        }
        let grain = (offset / GRAIN) as usize;
        let start = &mut block.starts.get_mut(grain / CHUNK)?.as_mut()?[grain % CHUNK];
        let mut gone = std::mem::replace(start, NONE);
        if gone == NONE {
            return None;
        }
        self.extents[gone as usize].bytes = 0;
        let Extent { before, after, .. } = self.extents[gone as usize];
        if self.is_free(after) {
            self.detach(after);
            self.join(gone, after);
        }
        if self.is_free(before) {
            self.detach(before);
            self.join(before, gone);
            gone = before;
        }
        if usize::from(self.extents[gone as usize].grains) < GRAINS {
            self.attach(gone);
            return Some(Left::Block);
        }
        self.unused.push(gone);
        self.blocks[index].address = 0;
        self.vacant.push(index as u32);
        Some(Left::Nothing)
    }

    /// Returns the start and the bytes of the request that contains this address.
    pub fn find(&self, index: usize, address: u64) -> Option<(u64, u64)> {
        let block = self.blocks.get(index)?;
        let grain = (address.checked_sub(block.address)? / GRAIN) as usize;
        let chunks = block.starts.get(..=grain / CHUNK)?.iter().enumerate();
        let number = chunks.rev().find_map(|(chunk, starts)| {
            let upto = (grain - chunk * CHUNK).min(CHUNK - 1);
            let mut back = starts.as_ref()?[..=upto].iter().rev();
            back.find(|number| **number != NONE)
        })?;
        let extent = self.extents[*number as usize];
        let inside = grain < usize::from(extent.start + extent.grains);
        let start = block.address + u64::from(extent.start) * GRAIN;
        inside.then_some((start, u64::from(extent.bytes)))
    }

    /// Returns the size in bytes of the largest request that fits into the heap now.
    #[inline(always)]
    pub fn room(&self) -> u64 {
        let rest = self.extents.get(self.rest as usize);
        let rest = rest.map_or(0, |rest| u64::from(rest.grains));
        self.free.largest().max(rest) * GRAIN
    }

    /// Returns the addresses of all blocks of the heap.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        let all = self.blocks.iter().map(|block| block.address);
        all.filter(|address| *address != 0)
    }

    #[inline(always)]
    fn extent(&mut self, extent: Extent) -> u32 {
        if let Some(number) = self.unused.pop() {
            self.extents[number as usize] = extent;
            return number;
        }
        if self.extents.is_empty() {
            self.extents.push(Extent::default());
        }
        self.extents.push(extent);
        self.extents.len() as u32 - 1
    }

    /// Returns the smallest free extent of at least `grains`.
    fn smallest(&self, grains: u16) -> Option<u32> {
        let listed = self.free.smallest(grains);
        let Some(rest) = self.extents.get(self.rest as usize) else {
            return listed;
        };
        match listed {
            Some(listed) if self.extents[listed as usize].grains <= rest.grains => Some(listed),
            _ if rest.grains >= grains => Some(self.rest),
            _ => listed,
        }
    }

    #[inline(always)]
    fn attach(&mut self, number: u32) {
        if self.rest == NONE {
            self.rest = number;
        } else {
            self.free.link(&mut self.extents, number);
        }
    }

    #[inline(always)]
    fn detach(&mut self, number: u32) {
        if self.rest == number {
            self.rest = NONE;
        } else {
            self.free.unlink(&mut self.extents, number);
        }
    }

    fn is_free(&self, number: u32) -> bool {
        number != NONE && self.extents[number as usize].bytes == 0
    }

    /// Joins two neighbouring extents. The joined extent keeps the number `first`.
    #[inline(always)]
    fn join(&mut self, first: u32, second: u32) {
        let Extent { grains, after, .. } = self.extents[second as usize];
        let joined = &mut self.extents[first as usize];
        joined.grains += grains;
        joined.after = after;
        // If `second` is the last extent of the block, `after` is 0, and this line writes to the
        // unused element 0.
        self.extents[after as usize].before = first;
        self.unused.push(second);
    }
}

impl Free {
    /// Returns an extent of at least `grains`: the first one in the list of the smallest such size.
    fn smallest(&self, grains: u16) -> Option<u32> {
        if self.words == 0 {
            return None;
        }
        let least = usize::from(grains) - 1;
        let word = least / 64;
        let mut sizes = self.sizes[word] & (!0 << (least % 64));
        let mut at = word;
        if sizes == 0 {
            let words = self.words & (!0 << word << 1);
            if words == 0 {
                return None;
            }
            at = words.trailing_zeros() as usize;
            sizes = self.sizes[at];
        }
        Some(self.first[at * 64 + sizes.trailing_zeros() as usize])
    }

    /// Returns the size in grains of the largest free extent in the lists; 0 if the lists are
    /// empty.
    fn largest(&self) -> u64 {
        if self.words == 0 {
            return 0;
        }
        let word = self.words.ilog2();
        u64::from(word * 64 + self.sizes[word as usize].ilog2() + 1)
    }

    fn link(&mut self, extents: &mut [Extent], number: u32) {
        if self.first.is_empty() {
            self.first = vec![NONE; GRAINS];
        }
        let size = usize::from(extents[number as usize].grains) - 1;
        let next = std::mem::replace(&mut self.first[size], number);
        let extent = &mut extents[number as usize];
        (extent.previous, extent.next) = (NONE, next);
        if next == NONE {
            self.sizes[size / 64] |= 1 << (size % 64);
            self.words |= 1 << (size / 64);
        } else {
            extents[next as usize].previous = number;
        }
    }

    fn unlink(&mut self, extents: &mut [Extent], number: u32) {
        let Extent {
            grains,
            previous,
            next,
            ..
        } = extents[number as usize];
        let size = usize::from(grains) - 1;
        if next != NONE {
            extents[next as usize].previous = previous;
        }
        if previous != NONE {
            extents[previous as usize].next = next;
            return;
        }
        self.first[size] = next;
        if next == NONE {
            self.sizes[size / 64] &= !(1 << (size % 64));
            if self.sizes[size / 64] == 0 {
                self.words &= !(1 << (size / 64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The requests that are live in the test's heap, by address.
    type Live = BTreeMap<u64, (u64, usize)>;

    fn check(heap: &Heap, live: &Live) {
        let mut end = 0;
        for (address, (bytes, block)) in live {
            assert!(*address >= end, "requests overlap");
            end = address + bytes.next_multiple_of(GRAIN);
            assert_eq!(
                address / BLOCK,
                (end - 1) / BLOCK,
                "each request lies in one block"
            );
            for inside in [0, bytes / 2, bytes - 1] {
                let found = heap.find(*block, address + inside);
                assert_eq!(found, Some((*address, *bytes)));
            }
        }
        let mut blocks: Vec<u64> = live.keys().map(|address| address / BLOCK).collect();
        blocks.dedup();
        let mut held: Vec<u64> = heap.addresses().map(|address| address / BLOCK).collect();
        held.sort_unstable();
        assert_eq!(blocks, held, "every block of the heap has a request");
        let mut room = 0;
        for block in held {
            let mut gap = 0;
            for grain in 0..GRAINS as u64 {
                let address = block * BLOCK + grain * GRAIN;
                let taken = live.range(..=address).next_back();
                let taken = taken.is_some_and(|(start, (bytes, _))| address < start + bytes);
                gap = if taken { 0 } else { gap + GRAIN };
                room = room.max(gap);
            }
        }
        assert_eq!(heap.room(), room, "free neighbours are joined");
    }

    #[test]
    fn a_long_random_mix_keeps_the_heap_consistent() {
        let (mut heap, mut live) = (Heap::default(), Live::new());
        let mut indices = BTreeMap::new();
        let mut fresh = 1;
        let mut random = gpulimit_support::random();
        let mut random = |below: u64| random.u64(..below);
        for step in 0..20_000 {
            if random(if live.len() > 200 { 2 } else { 3 }) > 0 {
                let scale = 3 + random(19);
                let bytes = 1 + random(1 << scale);
                let room = heap.room();
                let address = heap.take(bytes);
                assert_eq!(address.is_some(), bytes.next_multiple_of(GRAIN) <= room);
                let address = address.unwrap_or_else(|| {
                    let index = heap.add(fresh * BLOCK);
                    indices.insert(fresh, index);
                    fresh += 1;
                    heap.take(bytes).unwrap()
                });
                live.insert(address, (bytes, indices[&(address / BLOCK)]));
            } else if !live.is_empty() {
                let at = random(live.len() as u64) as usize;
                let address = *live.keys().nth(at).unwrap();
                let (_, block) = live.remove(&address).unwrap();
                let mates = live
                    .keys()
                    .filter(|other| *other / BLOCK == address / BLOCK);
                let left = [Left::Block, Left::Nothing][usize::from(mates.count() == 0)];
                assert_eq!(heap.give(block, address + 1), None);
                assert_eq!(heap.give(block, address), Some(left));
                assert_eq!(heap.give(block, address), None, "twice");
            }
            if step % 500 == 0 {
                check(&heap, &live);
            }
        }
        for (address, (_, block)) in std::mem::take(&mut live) {
            heap.give(block, address).unwrap();
        }
        check(&heap, &live);
    }
}
