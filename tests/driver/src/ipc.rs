//! Linear memory that several processes share through handles (`cuIpc…MemHandle`), in whole blocks.
//!
//! Measured (H100, 580.159.04):
//! - NVML counts the memory for its owner. After the owner has freed the memory, NVML counts it for
//!   the process that has it open.
//! - The owner can reuse the freed address at once.
//! - A second open returns the same address. Each open needs a close.
//!
//! NVIDIA's documentation: opening memory of another GPU enables the current one's access to it.
//!
//! Assumed: a process that opens two small allocations in one block maps the block once.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::driver::driver;
use crate::machine::{BLOCK, MAX_DEVICES};
use crate::shared::Shared;
use crate::space::space;
use crate::{Outcome, Status, blocks, checkpoint};

const MAGIC: u64 = 0x6770_756c_696d_0104;

/// `CUipcMemHandle`, passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Handle(pub [u64; 8]);

/// Memory of another process that this process has opened.
struct Mapping {
    shared: Shared,
    context: usize,
    /// The allocations in this memory that this process has opened: the address, the bytes, and the
    /// number of opens without a close.
    open: BTreeMap<u64, (u64, u32)>,
}

#[derive(Default)]
struct State {
    /// The memory that this process has exported, by the address of its first block.
    exported: HashMap<u64, Shared>,
    /// The memory of other processes that this process has opened, by the address of the first
    /// block.
    mapped: BTreeMap<u64, Mapping>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a handle with which other processes can open this linear memory.
///
/// # Errors
/// `INVALID_VALUE` for other addresses, `OUT_OF_MEMORY` for too many exports.
pub fn export(address: u64) -> Outcome<Handle> {
    let found = blocks::find(address).ok_or(Status::INVALID_VALUE)?;
    let context = found.context.filter(|_| !found.managed);
    let device = context.ok_or(Status::INVALID_VALUE)?.device();
    let first = found.start / BLOCK * BLOCK;
    let _change = checkpoint::UnderWay::begin_change();
    let bytes = (found.start - first + found.bytes).next_multiple_of(BLOCK);
    let mut guard = state();
    let [object, birth] = match guard.exported.entry(first) {
        Entry::Occupied(known) => known.get().name(),
        Entry::Vacant(place) => {
            let (shared, ()) = Shared::share(Some(device), bytes, |_| Ok(()))?;
            place.insert(shared).name()
        }
    };
    Ok(Handle([
        MAGIC,
        device as u64,
        bytes,
        object,
        birth,
        found.start - first,
        found.bytes,
        0,
    ]))
}

/// Gives back the blocks at an address. Blocks that other processes have open stay in use.
pub fn give(device: usize, address: u64, bytes: u64) {
    let shared = state().exported.remove(&address);
    match (shared, driver()) {
        (Some(shared), _) => shared.let_go(),
        (None, Ok(driver)) => driver.give(device, bytes),
        _ => {}
    }
}

/// Opens another process's memory in a context of this process.
///
/// # Errors
/// - `INVALID_CONTEXT`: this process exported the memory.
/// - `INVALID_VALUE`: an invalid handle.
/// - `OUT_OF_MEMORY`.
pub fn open(context: &Context, handle: Handle) -> Outcome<u64> {
    let Handle([magic, device, span, object, birth, offset, bytes, _]) = handle;
    if magic != MAGIC || device >= MAX_DEVICES as u64 {
        return Err(Status::INVALID_VALUE);
    }
    let mut guard = state();
    let mapped = &mut guard.mapped;
    let same = |mapping: &Mapping| {
        mapping.context == context.index && mapping.shared.name() == [object, birth]
    };
    let known = mapped.iter().find(|(_, mapping)| same(mapping));
    let first = match known.map(|(first, _)| *first) {
        Some(first) => first,
        None => {
            let shared = Shared::open(device as usize, span, [object, birth])?;
            let first = space().take(span, BLOCK).inspect_err(|_| shared.let_go())?;
            let (context, open) = (context.index, BTreeMap::new());
            let mapping = Mapping {
                shared,
                context,
                open,
            };
            mapped.insert(first, mapping);
            first
        }
    };
    let mapping = mapped.get_mut(&first).ok_or(Status::UNKNOWN)?;
    checkpoint::note_access(Some(context.device()), Some(device as usize));
    mapping.open.entry(first + offset).or_insert((bytes, 0)).1 += 1;
    Ok(first + offset)
}

/// Undoes one open of the memory, which stays open until all opens are undone.
///
/// # Errors
/// `INVALID_VALUE` if the address is not open.
pub fn close(address: u64) -> Outcome<()> {
    let mut guard = state();
    let mapped = &mut guard.mapped;
    let found = mapped.range_mut(..=address).next_back();
    let (first, mapping) = found.ok_or(Status::INVALID_VALUE)?;
    let (_, count) = mapping
        .open
        .get_mut(&address)
        .ok_or(Status::INVALID_VALUE)?;
    *count -= 1;
    if *count > 0 {
        return Ok(());
    }
    mapping.open.remove(&address);
    let first = *first;
    if mapping.open.is_empty()
        && let Some(mapping) = mapped.remove(&first)
    {
        mapping.end(first);
    }
    Ok(())
}

impl Mapping {
    fn end(self, first: u64) {
        self.shared.let_go();
        space().give(first, self.shared.bytes);
    }
}

/// Finds the opened memory that contains an address. Returns its start, its bytes and its GPU.
pub fn find(address: u64) -> Option<(u64, u64, Option<usize>)> {
    let guard = state();
    let (_, mapping) = guard.mapped.range(..=address).next_back()?;
    let (start, (bytes, _)) = mapping.open.range(..=address).next_back()?;
    (address < start + bytes).then_some((*start, *bytes, mapping.shared.device))
}

/// Closes all memory that was opened in a context when that context is destroyed.
pub fn clear(context: &Context) {
    let mut guard = state();
    let mapped = &mut guard.mapped;
    let all = std::mem::take(mapped).into_iter();
    let (gone, stay): (BTreeMap<_, _>, _) =
        all.partition(|(_, mapping)| mapping.context == context.index);
    *mapped = stay;
    for (first, mapping) in gone {
        mapping.end(first);
    }
}
