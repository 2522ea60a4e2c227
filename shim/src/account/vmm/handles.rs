//! A table of entries, found by their handle or by a number of their own. It takes few bytes for
//! each entry, because programs have tens of thousands of allocations.
//!
//! Entries never move, and the number of an entry is its position. Entries in the same hash bucket
//! form a chain.

use std::hash::Hasher;
use std::iter;

use crate::account::maps::Mix;

/// The number of an entry. After the entry is removed, another entry may get the same number.
pub type Id = u32;

const NONE: Id = Id::MAX;

/// The number of entries in one piece of memory.
const PIECE: usize = 256;

struct Slot<T> {
    handle: u64,
    /// The next entry of the chain; in a free slot, the next free slot.
    next: Id,
    entry: Option<T>,
}

/// A table of entries by handle and by number.
pub struct Handles<T> {
    pieces: Vec<Vec<Slot<T>>>,
    /// The first entry of the chain of each hash bucket. The number of buckets is a power of two,
    /// or 0.
    buckets: Vec<Id>,
    free: Id,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles {
            pieces: Vec::new(),
            buckets: Vec::new(),
            free: NONE,
        }
    }
}

impl<T> Handles<T> {
    fn slot(&self, id: Id) -> Option<&Slot<T>> {
        self.pieces
            .get(id as usize / PIECE)?
            .get(id as usize % PIECE)
    }

    fn slot_mut(&mut self, id: Id) -> Option<&mut Slot<T>> {
        let piece = self.pieces.get_mut(id as usize / PIECE)?;
        piece.get_mut(id as usize % PIECE)
    }

    fn bucket(&self, handle: u64) -> usize {
        let mut hasher = Mix::default();
        hasher.write_u64(handle);
        hasher.finish() as usize & self.buckets.len().wrapping_sub(1)
    }

    fn chain(&self, handle: u64) -> impl Iterator<Item = Id> {
        let first = self.buckets.get(self.bucket(handle)).copied();
        let next = |id: &Id| self.slot(*id).map(|slot| slot.next);
        iter::successors(first, next).take_while(|id| *id != NONE)
    }

    /// Returns the number of the latest entry with this handle; `None` when that entry has been
    /// removed.
    pub fn find(&self, handle: u64) -> Option<Id> {
        self.chain(handle)
            .find(|id| self.slot(*id).is_some_and(|slot| slot.handle == handle))
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.slot_mut(id)?.entry.as_mut()
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let slots = self.pieces.iter_mut().flatten();
        slots.filter_map(|slot| slot.entry.as_mut())
    }

    /// Inserts `entry` with `handle`. An older entry with the same handle can then be found only by
    /// its number.
    pub fn insert(&mut self, handle: u64, entry: T) {
        if let Some(before) = self.find(handle) {
            self.unlink(before);
        }
        let slot = Slot {
            handle,
            next: NONE,
            entry: Some(entry),
        };
        let id = self.free;
        let id = match self.slot_mut(id) {
            Some(free) => {
                let next = free.next;
                *free = slot;
                self.free = next;
                id
            }
            None => {
                let id = self.places();
                self.push(slot);
                id as Id
            }
        };
        if self.places() > self.buckets.len() {
            self.spread();
        }
        self.link(id);
    }

    /// Returns the number of slots in the table, free slots included.
    fn places(&self) -> usize {
        let last = self.pieces.last().map_or(PIECE, Vec::len);
        self.pieces.len() * PIECE + last - PIECE
    }

    fn push(&mut self, slot: Slot<T>) {
        if self.places().is_multiple_of(PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.push(slot);
        }
    }

    pub fn remove(&mut self, id: Id) -> Option<T> {
        self.unlink(id);
        let free = self.free;
        let slot = self.slot_mut(id)?;
        let entry = slot.entry.take()?;
        slot.next = free;
        self.free = id;
        Some(entry)
    }

    fn link(&mut self, id: Id) {
        let Some(handle) = self.slot(id).map(|slot| slot.handle) else {
            return;
        };
        let bucket = self.bucket(handle);
        let Some(first) = self.buckets.get_mut(bucket) else {
            return;
        };
        let next = std::mem::replace(first, id);
        if let Some(slot) = self.slot_mut(id) {
            slot.next = next;
        }
    }

    /// Removes an entry from the chain of its bucket, if it is in this chain.
    fn unlink(&mut self, id: Id) {
        let Some((handle, next)) = self.slot(id).map(|slot| (slot.handle, slot.next)) else {
            return;
        };
        let bucket = self.bucket(handle);
        let is_before = |at: &Id| self.slot(*at).is_some_and(|slot| slot.next == id);
        let before = self.chain(handle).find(is_before);
        let link = match before {
            Some(before) => self.slot_mut(before).map(|slot| &mut slot.next),
            None => self.buckets.get_mut(bucket).filter(|first| **first == id),
        };
        if let Some(link) = link {
            *link = next;
        }
    }

    /// Makes at least as many buckets as the table has slots, and distributes all entries over
    /// their chains.
    fn spread(&mut self) {
        let buckets = vec![NONE; self.places().next_power_of_two()];
        for mut id in std::mem::replace(&mut self.buckets, buckets) {
            while let Some(next) = self.slot(id).map(|slot| slot.next) {
                self.link(id);
                id = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_until_they_are_removed() {
        let mut handles = Handles::default();
        for round in 0..3 {
            // The handles are aligned like the driver's handles. Each round inserts more handles
            // than the round before.
            for handle in 1..=5000 * (round + 1) {
                handles.insert(handle * 64, handle);
            }
            for handle in 1..=5000 * (round + 1) {
                let id = handles.find(handle * 64).expect("entered");
                assert_eq!(handles.get_mut(id), Some(&mut handle.clone()));
                if handle % 3 != round {
                    assert_eq!(handles.remove(id), Some(handle));
                    assert_eq!(handles.remove(id), None, "it was removed");
                    assert_eq!(handles.find(handle * 64), None);
                }
            }
            let left: Vec<u64> = handles.values_mut().map(|value| *value).collect();
            assert!(left.iter().all(|handle| handle % 3 == round));
            assert_eq!(
                left.len() as u64,
                (1..=5000 * (round + 1))
                    .filter(|handle| handle % 3 == round)
                    .count() as u64
            );
            for handle in left {
                let id = handles.find(handle * 64).expect("left");
                assert_eq!(handles.remove(id), Some(handle));
            }
        }
        assert!(handles.places() <= 15_000, "free slots are used again");
    }

    #[test]
    fn a_handle_finds_its_latest_entry() {
        let mut handles = Handles::default();
        handles.insert(5, "first");
        let first = handles.find(5).expect("entered");
        handles.insert(5, "second");
        let second = handles.find(5).expect("entered");
        assert_ne!(first, second);
        for handle in 6..100 {
            handles.insert(handle, "other");
        }
        assert_eq!(
            handles.find(5),
            Some(second),
            "the entry is found after the buckets have grown"
        );
        assert_eq!(handles.get_mut(first), Some(&mut "first"));
        assert_eq!(handles.remove(second), Some("second"));
        assert_eq!(handles.find(5), None);
        assert_eq!(handles.remove(first), Some("first"));
    }

    #[test]
    fn an_allocation_takes_few_bytes() {
        // In addition to its slot, an entry takes one or two buckets of four bytes.
        assert!(size_of::<Slot<super::super::Allocation>>() <= 48);
    }
}
