//! A table of entries, found by their handle or by a number of their own. It takes few bytes for
//! each entry, because programs have tens of thousands of allocations.

use crate::account::maps::Map;

/// The number of an entry. After the entry is removed, another entry may get the same number.
pub type Id = u32;

/// A table of entries by handle and by number.
pub struct Handles<T> {
    /// The entries by their numbers, each with its handle.
    entries: Vec<Option<(u64, T)>>,
    /// The numbers that no entry has.
    free: Vec<Id>,
    /// The number of the latest entry of each handle, if that entry is still there.
    latest: Map<u64, Id>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles {
            entries: Vec::new(),
            free: Vec::new(),
            latest: Map::default(),
        }
    }
}

impl<T> Handles<T> {
    /// Returns the number of the latest entry with this handle; `None` when that entry has been
    /// removed.
    pub fn find(&self, handle: u64) -> Option<Id> {
        self.latest.get(&handle).copied()
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let (_, entry) = self.entries.get_mut(id as usize)?.as_mut()?;
        Some(entry)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten().map(|(_, entry)| entry)
    }

    /// Inserts `entry` with `handle`. An older entry with the same handle can then be found only by
    /// its number.
    pub fn insert(&mut self, handle: u64, entry: T) {
        let entry = Some((handle, entry));
        let free = self.free.pop();
        let id = match free.and_then(|id| Some((id, self.entries.get_mut(id as usize)?))) {
            Some((id, place)) => {
                *place = entry;
                id
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as Id
            }
        };
        self.latest.insert(handle, id);
    }

    pub fn remove(&mut self, id: Id) -> Option<T> {
        let (handle, entry) = self.entries.get_mut(id as usize)?.take()?;
        if self.find(handle) == Some(id) {
            self.latest.remove(&handle);
        }
        self.free.push(id);
        Some(entry)
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
        assert!(
            handles.entries.len() <= 15_000,
            "free numbers are used again"
        );
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
            "the entry is found after the table has grown"
        );
        assert_eq!(handles.get_mut(first), Some(&mut "first"));
        assert_eq!(handles.remove(second), Some("second"));
        assert_eq!(handles.find(5), None);
        assert_eq!(handles.remove(first), Some("first"));
    }

    #[test]
    fn an_allocation_takes_few_bytes() {
        // An entry also takes 17 bytes in the map, or twice as many where it is half full.
        assert!(size_of::<Option<(u64, super::super::Allocation)>>() <= 48);
    }
}
