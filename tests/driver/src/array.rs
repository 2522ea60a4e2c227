//! Arrays and mipmapped arrays of the simulated driver, and the memory that they take.
//!
//! Measured (H100, 580.159.04):
//! - An array of 2 MiB or more ([`Shape::bytes`]) takes blocks of its own.
//! - Smaller arrays of a context share blocks, but not with linear memory.
//! - One block holds 24 arrays of 64 KiB, two of 832 KiB, or one of 1.8 MiB.
//! - A block is freed with its last array.
//! - Sparse arrays and arrays with deferred mapping take no memory. Memory that is mapped into them
//!   is freed when its handle is released.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::driver::driver;
use crate::machine::BLOCK;
use crate::tiling::{DEFERRED, GRAIN, SPARSE, Shape};
use crate::{Outcome, Status, vmm};

/// The number of grains (units of 64 KiB) in a block. A `u32` bitmap has one bit for each grain.
const GRAINS: u32 = (BLOCK / GRAIN) as u32;
/// The array flags [`SPARSE`] and [`DEFERRED`], each with the first CUDA version that accepts it.
const SINCE: [(u32, u32); 2] = [(SPARSE, 11_010), (DEFERRED, 11_060)];

/// The kind of array that a handle stands for.
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
    /// The handles of the levels that the program has asked for. Only a mipmapped array has levels.
    views: Vec<u64>,
}

enum Memory {
    /// Blocks that belong to this array alone; the number is their size in bytes.
    Own(u64),
    /// Some grains of a block that several arrays share. Bit *n* of `grains` is set if this array
    /// has the grain *n*.
    Shared { block: usize, grains: u32 },
    /// The array has no memory of its own: the program maps memory into it. These mappings are not
    /// tracked.
    Mapped,
    /// The array is a level of a mipmapped array and uses the memory of this mipmapped array.
    Borrowed,
}

/// One element of the list that the program gives to `cuMemMapArrayAsync`.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// The kind of array that the field `array` stands for.
    pub kind: Kind,
    /// The handle of the array.
    pub array: u64,
    /// The part of the array.
    pub part: Part,
    /// The memory to map into the array; `None` to unmap.
    pub memory: Option<u64>,
}

/// A part of an array.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// A part of one level of the array, in elements.
    Level {
        /// The level's number.
        level: u32,
        /// The layer's number.
        layer: u32,
        /// The first element of the part on each axis.
        offset: [u64; 3],
        /// The number of elements of the part on each axis.
        extent: [u64; 3],
    },
    /// A part of the mip tail (the smallest levels, stored together), in bytes.
    Tail {
        /// The layer's number.
        layer: u32,
        /// The first byte.
        offset: u64,
        /// The number of bytes in the part.
        size: u64,
    },
}

#[derive(Default)]
struct State {
    arrays: HashMap<u64, Array>,
    last: u64,
    /// The handles of destroyed arrays. A new array gets the handle that was freed last.
    free: Vec<u64>,
    /// The handles in `free`, each with the kind of its destroyed array.
    gone: HashSet<(Kind, u64)>,
    /// The shared blocks of each context: bitmaps of used grains. A freed block has the bitmap 0.
    blocks: HashMap<usize, Vec<u32>>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates an array, or a mipmapped array with at most `levels` levels.
///
/// # Errors
/// `INVALID_VALUE` for an invalid shape, `OUT_OF_MEMORY`.
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
    let state = &mut *guard;
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

    /// Removes an array and its levels, and frees the array's memory.
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

/// Destroys an array. Does nothing for a level of a mipmapped array (measured).
///
/// # Errors
/// - `CONTEXT_IS_DESTROYED`: the array was destroyed before (measured).
/// - `INVALID_HANDLE`: the handle never was an array of this kind.
pub fn destroy(kind: Kind, handle: u64) -> Outcome<()> {
    let mut guard = state();
    let state = &mut *guard;
    if !matches!(state.array(kind, handle)?.memory, Memory::Borrowed) {
        state.remove(handle);
    }
    Ok(())
}

/// Returns the handle of one level of a mipmapped array, which is destroyed with that array.
///
/// # Errors
/// `INVALID_HANDLE`; `INVALID_VALUE` without such a level.
pub fn level(handle: u64, level: u32) -> Outcome<u64> {
    let mut guard = state();
    let state = &mut *guard;
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

/// Returns the shape with which an array was created.
///
/// # Errors
/// `INVALID_HANDLE`.
pub fn shape(handle: u64) -> Outcome<Shape> {
    Ok(state().array(Kind::Array, handle)?.shape)
}

/// Returns the bytes that the program must map into an array with deferred mapping.
///
/// # Errors
/// `INVALID_HANDLE`; `INVALID_VALUE` for other arrays (NVIDIA's documentation).
pub fn requirement(kind: Kind, handle: u64) -> Outcome<u64> {
    let guard = state();
    let array = guard.array(kind, handle)?;
    if array.shape.flags & DEFERRED == 0 {
        return Err(Status::INVALID_VALUE);
    }
    Ok(array.shape.bytes(array.levels))
}

impl Array {
    /// Checks that a part lies in this array and consists of whole tiles of the array.
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

/// Checks a call that maps or unmaps memory of arrays. Mappings are not stored: memory is freed
/// with its last handle, even if mapped (measured).
///
/// # Errors
/// - `INVALID_HANDLE`.
/// - `INVALID_VALUE`: unknown memory, an array with memory of its own, or a part of a tile.
pub fn map(mappings: &[Mapping]) -> Outcome<()> {
    let mut guard = state();
    let state = &mut *guard;
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

/// Destroys all arrays of a context when the context is destroyed.
pub fn clear(context: &Context) {
    let mut guard = state();
    let state = &mut *guard;
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
