//! The table of the GPUs that processes of a group have used. Entries are inserted without a lock
//! and never removed.
//!
//! Three words identify a GPU. Processes set the words in order, by compare-and-swap, and finish
//! incomplete entries of the same GPU. Set words never change, so each GPU is in the table once,
//! and a process that dies halfway blocks no other.

use super::atomic::{AtomicU64, Ordering};
use super::layout::GpuEntry;
use super::{DeviceEntry, DeviceIndex, Ledger, LedgerError};
use gpulimit_base::device::{DeviceId, DeviceKind};

/// The bit that is set in every word of a GPU's identity, so that no such word is 0.
const PRESENT: u64 = 1 << 63;
const MIG: u64 = 1 << 62;
/// Number of bytes of the UUID in each word of a GPU's identity.
const PART: usize = 6;

fn words(id: &DeviceId) -> [u64; 3] {
    let mut words = [PRESENT; 3];
    for (word, bytes) in words.iter_mut().zip(id.uuid.chunks(PART)) {
        for (at, &byte) in bytes.iter().enumerate() {
            *word |= u64::from(byte) << (8 * at);
        }
    }
    if id.kind == DeviceKind::Mig {
        words[2] |= MIG;
    }
    words
}

/// Returns the identity of the GPU in a table entry. Returns `None` if the entry is empty,
/// incomplete or invalid.
fn identity(entry: &GpuEntry) -> Option<DeviceId> {
    // Most entries are empty, and readers ask for all of them.
    if entry.id[0].load(Ordering::Acquire) == 0 {
        return None;
    }
    let read = [0, 1, 2].map(|part: usize| entry.id[part].load(Ordering::Acquire));
    let mut uuid = [0; 16];
    for (word, bytes) in read.iter().zip(uuid.chunks_mut(PART)) {
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = (word >> (8 * at)) as u8;
        }
    }
    let kind = if read[2] & MIG != 0 {
        DeviceKind::Mig
    } else {
        DeviceKind::Gpu
    };
    let id = DeviceId { uuid, kind };
    (words(&id) == read).then_some(id)
}

/// Writes the identity `wanted` into a table entry. Returns false if the entry belongs to another
/// GPU: a set word differs.
fn put(id: &[AtomicU64; 3], wanted: [u64; 3]) -> bool {
    id.iter().zip(wanted).all(|(word, wanted)| {
        match word.compare_exchange(0, wanted, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(found) => found == wanted,
        }
    })
}

impl Ledger {
    /// Returns the index of a device in the table, and inserts a missing device. `capacity` is the
    /// device's memory in bytes.
    pub fn device(&self, id: DeviceId, capacity: u64) -> Result<DeviceIndex, LedgerError> {
        let path = || self.place.path.clone();
        let known = self.find_device(&id);
        if !self.map.writable() {
            return known.ok_or_else(|| LedgerError::ReadOnly { path: path() });
        }
        let wanted = words(&id);
        let index = known
            .or_else(|| self.position(|entry| put(&entry.id, wanted)))
            .ok_or_else(|| LedgerError::NoDevice { path: path() })?;
        // All processes write the same capacity, so their order does not matter.
        let entry = &self.header().gpus[index.get()];
        entry.capacity.store(capacity, Ordering::Relaxed);
        self.begin_history(index);
        Ok(index)
    }

    /// Returns the table index of a device that a process of the group has used.
    pub fn find_device(&self, id: &DeviceId) -> Option<DeviceIndex> {
        self.position(|entry| identity(entry).as_ref() == Some(id))
    }

    fn position(&self, is_it: impl FnMut(&GpuEntry) -> bool) -> Option<DeviceIndex> {
        let at = self.header().gpus.iter().position(is_it);
        at.and_then(DeviceIndex::new)
    }

    /// Returns the table entry of a device.
    pub fn device_entry(&self, index: DeviceIndex) -> Option<DeviceEntry> {
        let entry = &self.header().gpus[index.get()];
        Some(DeviceEntry {
            index,
            id: identity(entry)?,
            capacity: entry.capacity.load(Ordering::Relaxed),
            context_bytes: entry.context.load(Ordering::Relaxed),
        })
    }

    /// Returns the devices that processes of the group have used. A member can write a device into
    /// more entries; only the first one counts, as in [`Self::find_device`].
    pub fn devices(&self) -> Vec<DeviceEntry> {
        let is_first = |entry: &DeviceEntry| self.find_device(&entry.id) == Some(entry.index);
        let entry = |index| self.device_entry(index).filter(is_first);
        DeviceIndex::all().filter_map(entry).collect()
    }

    /// Returns the identity of the device with this index in the table.
    pub(super) fn device_id(&self, index: DeviceIndex) -> Option<DeviceId> {
        identity(&self.header().gpus[index.get()])
    }

    /// Returns the bytes that a CUDA context takes; 0 if unknown. The figure is a hint, because any
    /// member can write it.
    pub fn context_hint(&self, index: DeviceIndex) -> u64 {
        let entry = &self.header().gpus[index.get()];
        entry.context.load(Ordering::Relaxed)
    }

    /// Tells the other processes of the group how many bytes a CUDA context takes on the device.
    pub fn set_context_hint(&self, index: DeviceIndex, bytes: u64) {
        if self.map.writable() {
            let entry = &self.header().gpus[index.get()];
            entry.context.store(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::MAX_DEVICES;
    use crate::scratch::{GPU, Scratch};

    fn entry() -> [AtomicU64; 3] {
        [0; 3].map(AtomicU64::new)
    }

    #[test]
    fn the_words_of_an_all_zero_identity_are_not_zero() {
        let zero = words(&DeviceId::gpu([0; 16]));
        assert!(zero.iter().all(|&word| word != 0));
        let mig = words(&DeviceId::mig([0; 16]));
        assert!(mig != zero && mig.iter().all(|&word| word != 0));
        let mut last = [0; 16];
        last[15] = 0xff;
        assert_eq!(words(&DeviceId::gpu(last))[2], PRESENT | 0xff << 24);
    }

    #[test]
    fn a_half_written_entry_is_completed_or_skipped() {
        let one = words(&DeviceId::gpu([1; 16]));
        let mut alike = [1; 16];
        alike[15] = 2;
        let alike = words(&DeviceId::gpu(alike));
        for written in 0..3 {
            let half = entry();
            for (word, value) in half.iter().zip(one).take(written) {
                word.store(value, Ordering::Relaxed);
            }
            assert!(
                put(&half, one),
                "a process with the same GPU completes the entry"
            );
            assert!(
                put(&half, one),
                "a process with the same GPU finds the entry again"
            );
            assert!(
                !put(&half, alike),
                "a process with another GPU skips the entry"
            );
        }
        let half = entry();
        half[0].store(one[0], Ordering::Relaxed);
        half[1].store(one[1], Ordering::Relaxed);
        assert!(
            put(&half, alike),
            "another GPU with the same first two words can take the entry"
        );
        assert!(
            !put(&half, one),
            "the GPU that began the entry then skips it"
        );
    }

    #[test]
    fn a_gpu_in_several_entries_is_one_device() {
        let scratch = Scratch::new();
        let before = scratch.devices();
        for entry in &scratch.header().gpus[before.len()..] {
            assert!(put(&entry.id, words(&GPU)));
        }
        assert_eq!(scratch.devices().len(), before.len());
        assert_eq!(scratch.find_device(&GPU), Some(scratch.device));
    }

    #[test]
    fn racing_processes_agree_on_the_entry_of_each_gpu() {
        let table: Vec<_> = (0..MAX_DEVICES).map(|_| entry()).collect();
        // The identities differ only in the last word, so all these GPUs compete for the same
        // entries.
        let gpus: Vec<_> = (0..MAX_DEVICES as u8)
            .map(|last| {
                let mut uuid = [9; 16];
                uuid[15] = last;
                words(&DeviceId::gpu(uuid))
            })
            .collect();
        let places: Vec<Vec<_>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|turn| {
                    let (table, mut order) = (&table, gpus.clone());
                    order.rotate_left(turn * 7);
                    scope.spawn(move || {
                        let mut places: Vec<_> = order
                            .iter()
                            .map(|&gpu| (gpu, table.iter().position(|entry| put(entry, gpu))))
                            .collect();
                        places.sort_unstable();
                        places
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("thread"))
                .collect()
        });
        assert!(places.iter().all(|of| *of == places[0]), "{places:?}");
        let mut taken: Vec<_> = places[0].iter().filter_map(|(_, place)| *place).collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), MAX_DEVICES, "each GPU has its own entry");
    }
}
