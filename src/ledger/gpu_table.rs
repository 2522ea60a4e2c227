//! The GPUs that a group has seen: inserted without a lock, never removed.
//!
//! An identity is three words, each written once by compare-and-swap, in order. Who finds an entry whose words so far
//! agree with his own writes the next one, whoever began it: a process that dies half-way blocks nobody, and two that
//! insert the same GPU end at the same entry. An entry is passed over only for a word that is set and differs, which
//! stays so; hence all pass over the same entries, and no GPU is in the table twice. What a death can leave behind is
//! one entry with the first words of a GPU that nobody asks for again.

use super::atomic::{AtomicU64, Ordering};
use super::layout::{GpuEntry, Header};
use super::{DeviceEntry, DeviceIndex, MAX_DEVICES};
use crate::device::{DeviceId, DeviceKind};

/// Set in every word of an identity, so that none is 0.
const PRESENT: u64 = 1 << 63;
const MIG: u64 = 1 << 62;
/// Bytes of the UUID in each word.
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

/// `None` for an entry that is not, or not wholly, written, or that nobody of this version wrote.
fn identity(entry: &GpuEntry) -> Option<DeviceId> {
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

/// Writes `id` into an entry unless another GPU is, or is going to be, there.
fn put(id: &[AtomicU64; 3], wanted: [u64; 3]) -> bool {
    id.iter().zip(wanted).all(|(word, wanted)| {
        match word.compare_exchange(0, wanted, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(found) => found == wanted,
        }
    })
}

pub(super) fn find(header: &Header, id: &DeviceId) -> Option<DeviceIndex> {
    header
        .gpus
        .iter()
        .position(|entry| identity(entry).as_ref() == Some(id))
        .and_then(DeviceIndex::new)
}

/// `None` when the table is full.
pub(super) fn insert(header: &Header, id: &DeviceId, capacity: u64) -> Option<DeviceIndex> {
    let wanted = words(id);
    let index = find(header, id).or_else(|| {
        header
            .gpus
            .iter()
            .position(|entry| put(&entry.id, wanted))
            .and_then(DeviceIndex::new)
    })?;
    // Everyone writes the same figure.
    header.gpus[index.get()]
        .capacity
        .store(capacity, Ordering::Relaxed);
    Some(index)
}

pub(super) fn entries(header: &Header) -> Vec<DeviceEntry> {
    let entry = |index: usize| {
        let entry = &header.gpus[index];
        Some(DeviceEntry {
            index: DeviceIndex::new(index)?,
            id: identity(entry)?,
            capacity: entry.capacity.load(Ordering::Relaxed),
            context_bytes: entry.context.load(Ordering::Relaxed),
        })
    };
    (0..MAX_DEVICES).filter_map(entry).collect()
}

/// The identity of a device that is in the table.
pub(super) fn id(header: &Header, index: DeviceIndex) -> Option<DeviceId> {
    identity(&header.gpus[index.get()])
}
