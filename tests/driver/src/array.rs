//! Arrays and mipmapped arrays: what they take, how small ones share blocks, and what can be mapped
//! into those without memory of their own.
//!
//! Measured (H100, 580.159.04): what needs 2 MiB or more ([`Shape::bytes`]) takes blocks of its
//! own. Smaller ones share blocks with others of their context, not with linear memory: 24 of 64
//! KiB lie in one, two of 832 KiB, one of 1.8 MiB; a block goes back with its last array. Sparse
//! ones and those with deferred mapping take nothing, and what is mapped into them lives by its own
//! handle alone.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::driver::driver;
use crate::machine::BLOCK;
use crate::tiling::{DEFERRED, GRAIN, SPARSE, Shape};
use crate::{Outcome, Status, vmm};

/// In a block, which a `u32` has a bit for each of.
const GRAINS: u32 = (BLOCK / GRAIN) as u32;
/// The first CUDA version that knows [`SPARSE`] and [`DEFERRED`].
const SINCE: [(u32, u32); 2] = [(SPARSE, 11_010), (DEFERRED, 11_060)];

/// Which of the two kinds of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `CUarray`.
    Array,
    /// `CUmipmappedArray`.
    Mipmapped,
}

struct Array {
    kind: Kind,
    context: usize,
    device: usize,
    shape: Shape,
    levels: u32,
    memory: Memory,
    /// The handles of its levels that were asked for.
    views: Vec<u64>,
}

enum Memory {
    /// Blocks of its own, in bytes.
    Own(u64),
    /// Grains of a block that it shares.
    Shared { block: usize, grains: u32 },
    /// What is mapped into its tiles, which is no concern of the array.
    Mapped,
    /// A mipmapped array's.
    Borrowed,
}

/// One element of what `cuMemMapArrayAsync` is given.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// What kind of handle.
    pub kind: Kind,
    /// The array.
    pub array: u64,
    /// Where in it.
    pub part: Part,
    /// The memory; none to unmap.
    pub memory: Option<u64>,
}

/// A part of an array.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// Of a level, in elements.
    Level {
        /// Which level.
        level: u32,
        /// Which layer.
        layer: u32,
        /// From where on.
        offset: [u64; 3],
        /// How much.
        extent: [u64; 3],
    },
    /// Of the tail of the levels, in bytes.
    Tail {
        /// Which layer.
        layer: u32,
        /// From where on.
        offset: u64,
        /// How much.
        size: u64,
    },
}

#[derive(Default)]
struct State {
    arrays: HashMap<u64, Array>,
    last: u64,
    /// Handles that are free; the last one is handed out next, as a heap does.
    free: Vec<u64>,
    /// Those of them that were of this kind.
    gone: HashSet<(Kind, u64)>,
    /// The shared blocks by context: which grains are taken. One without any is not there.
    blocks: HashMap<usize, Vec<u32>>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

struct Guard(MutexGuard<'static, Option<State>>);

impl Guard {
    fn get(&mut self) -> &mut State {
        self.0.get_or_insert_default()
    }
}

fn state() -> Guard {
    Guard(STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Creates an array, or a mipmapped one with as many levels as it can have of those asked for.
///
/// # Errors
/// `INVALID_VALUE` for a shape that there is not, `OUT_OF_MEMORY`.
pub fn create(context: &Context, shape: Shape, levels: Option<u32>) -> Outcome<u64> {
    shape.check()?;
    let version = driver()?.machine.knobs.driver_version.load(Relaxed);
    let unknown = |(flag, since)| shape.flags & flag != 0 && version < since;
    if SINCE.into_iter().any(unknown) {
        return Err(Status::INVALID_VALUE);
    }
    let (kind, levels) = match levels {
        None => (Kind::Array, 1),
        Some(levels) => (Kind::Mipmapped, levels.clamp(1, shape.levels())),
    };
    let mut guard = state();
    let state = guard.get();
    let memory = if shape.flags & (SPARSE | DEFERRED) != 0 {
        Memory::Mapped
    } else {
        state.take(context, shape.bytes(levels))?
    };
    Ok(state.add(Array {
        kind,
        context: context.index,
        device: context.device(),
        shape,
        levels,
        memory,
        views: Vec::new(),
    }))
}

impl State {
    fn add(&mut self, array: Array) -> u64 {
        let handle = self.free.pop().unwrap_or_else(|| {
            self.last += 0x40;
            self.last
        });
        self.gone.retain(|(_, free)| *free != handle);
        self.arrays.insert(handle, array);
        handle
    }

    fn array(&self, kind: Kind, handle: u64) -> Outcome<&Array> {
        match self.arrays.get(&handle).filter(|array| array.kind == kind) {
            Some(array) => Ok(array),
            None if self.gone.contains(&(kind, handle)) => Err(Status::CONTEXT_IS_DESTROYED),
            None => Err(Status::INVALID_HANDLE),
        }
    }

    fn take(&mut self, context: &Context, bytes: u64) -> Outcome<Memory> {
        let driver = driver()?;
        if bytes >= BLOCK {
            let bytes = bytes.next_multiple_of(BLOCK);
            driver.take(context.device(), bytes)?;
            return Ok(Memory::Own(bytes));
        }
        let wanted = (1u32 << (bytes / GRAIN)) - 1;
        let places = GRAINS - (bytes / GRAIN) as u32;
        let blocks = self.blocks.entry(context.index).or_default();
        let found = blocks.iter().enumerate().find_map(|(block, taken)| {
            let free = |place: &u32| taken & wanted << place == 0;
            let place = (0..=places).filter(|_| *taken != 0).find(free)?;
            Some((block, wanted << place))
        });
        let (block, grains) = match found {
            Some(found) => found,
            None => {
                driver.take(context.device(), BLOCK)?;
                let gap = blocks.iter().position(|taken| *taken == 0);
                let block = gap.unwrap_or_else(|| {
                    blocks.push(0);
                    blocks.len() - 1
                });
                (block, wanted)
            }
        };
        blocks[block] |= grains;
        Ok(Memory::Shared { block, grains })
    }

    /// Takes an array and the handles of its levels out, and gives back what it has.
    fn remove(&mut self, handle: u64) {
        let Some(array) = self.arrays.remove(&handle) else {
            return;
        };
        for view in array.views {
            self.arrays.remove(&view);
            self.free.push(view);
            self.gone.insert((Kind::Array, view));
        }
        self.free.push(handle);
        self.gone.insert((array.kind, handle));
        let Ok(driver) = driver() else { return };
        match array.memory {
            Memory::Own(bytes) => driver.give(array.device, bytes),
            Memory::Shared { block, grains } => {
                let blocks = self.blocks.entry(array.context).or_default();
                blocks[block] &= !grains;
                if blocks[block] == 0 {
                    driver.give(array.device, BLOCK);
                }
            }
            Memory::Mapped | Memory::Borrowed => {}
        }
    }
}

/// Destroys an array. Measured: nothing happens to a level of a mipmapped one.
///
/// # Errors
/// `CONTEXT_IS_DESTROYED` the second time (measured), `INVALID_HANDLE` when it is none.
pub fn destroy(kind: Kind, handle: u64) -> Outcome<()> {
    let mut guard = state();
    let state = guard.get();
    if !matches!(state.array(kind, handle)?.memory, Memory::Borrowed) {
        state.remove(handle);
    }
    Ok(())
}

/// A level of a mipmapped array as an array, which goes with it.
///
/// # Errors
/// `INVALID_HANDLE`, `INVALID_VALUE` when there is no such level.
pub fn level(handle: u64, level: u32) -> Outcome<u64> {
    let mut guard = state();
    let state = guard.get();
    let whole = state.array(Kind::Mipmapped, handle)?;
    if level >= whole.levels {
        return Err(Status::INVALID_VALUE);
    }
    let [width, height, depth] = whole.shape.extent(level);
    let is = |length: u64, value: u64| if length == 0 { 0 } else { value };
    let shape = Shape {
        width,
        height: is(whole.shape.height, height),
        depth: match whole.shape.layers() {
            1 => is(whole.shape.depth, depth),
            layers => layers,
        },
        ..whole.shape
    };
    let view = Array {
        kind: Kind::Array,
        context: whole.context,
        device: whole.device,
        shape,
        levels: 1,
        memory: Memory::Borrowed,
        views: Vec::new(),
    };
    let view = state.add(view);
    if let Some(whole) = state.arrays.get_mut(&handle) {
        whole.views.push(view);
    }
    Ok(view)
}

/// What an array is.
///
/// # Errors
/// `INVALID_HANDLE`.
pub fn shape(handle: u64) -> Outcome<Shape> {
    Ok(state().get().array(Kind::Array, handle)?.shape)
}

/// The bytes that are to be mapped into an array with deferred mapping.
///
/// # Errors
/// `INVALID_HANDLE`, `INVALID_VALUE` for other arrays (NVIDIA's documentation).
pub fn requirement(kind: Kind, handle: u64) -> Outcome<u64> {
    let mut guard = state();
    let array = guard.get().array(kind, handle)?;
    if array.shape.flags & DEFERRED == 0 {
        return Err(Status::INVALID_VALUE);
    }
    Ok(array.shape.bytes(array.levels))
}

impl Array {
    /// Whether a part consists of tiles.
    fn check(&self, part: Part) -> Outcome<()> {
        let is_part = match (&self.memory, part) {
            (
                Memory::Mapped,
                Part::Tail {
                    layer,
                    offset,
                    size,
                },
            ) => {
                let end = offset.checked_add(size);
                u64::from(layer) < self.shape.layers()
                    && size > 0
                    && offset.is_multiple_of(GRAIN)
                    && end.is_some_and(|end| end <= self.shape.bytes(self.levels))
            }
            (
                Memory::Mapped,
                Part::Level {
                    level,
                    layer,
                    offset,
                    extent,
                },
            ) => {
                let (whole, tile) = (self.shape.extent(level), self.shape.tile());
                let fits = |axis: usize| {
                    let Some(end) = offset[axis].checked_add(extent[axis]) else {
                        return false;
                    };
                    let at_edge = end == whole[axis] || end.is_multiple_of(tile[axis]);
                    extent[axis] > 0
                        && end <= whole[axis]
                        && at_edge
                        && offset[axis].is_multiple_of(tile[axis])
                };
                level < self.levels && u64::from(layer) < self.shape.layers() && (0..3).all(fits)
            }
            _ => false,
        };
        is_part.then_some(()).ok_or(Status::INVALID_VALUE)
    }
}

/// Maps memory into arrays and unmaps it. Measured (H100, 580.159.04): memory that is mapped goes
/// with its last handle all the same, so that there is nothing to remember.
///
/// # Errors
/// `INVALID_HANDLE`, `INVALID_VALUE` for parts that do not consist of tiles of an array without
/// memory of its own, or for unknown memory.
pub fn map(mappings: &[Mapping]) -> Outcome<()> {
    let mut guard = state();
    let state = guard.get();
    for mapping in mappings {
        state
            .array(mapping.kind, mapping.array)?
            .check(mapping.part)?;
        if let Some(memory) = mapping.memory {
            vmm::check(memory)?;
        }
    }
    Ok(())
}

/// Destroys the arrays of a context that goes.
pub fn clear(context: &Context) {
    let mut guard = state();
    let state = guard.get();
    let gone = state
        .arrays
        .iter()
        .filter(|(_, array)| array.context == context.index)
        .filter(|(_, array)| !matches!(array.memory, Memory::Borrowed))
        .map(|(handle, _)| *handle);
    for handle in gone.collect::<Vec<u64>>() {
        state.remove(handle);
    }
    state.blocks.remove(&context.index);
}
