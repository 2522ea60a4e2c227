//! Linear memory: small requests packed into 2 MiB blocks, large ones with blocks of their own.
//!
//! The path of a small request inside a block that is already there takes one uncontended lock of this process and
//! touches no shared memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::context::{self, Context, SHARDS};
use crate::driver::driver;
use crate::machine::BLOCK;
use crate::pool::Pool;
use crate::space::{Entry, Use, space};
use crate::{Outcome, Status, graph};

/// Requests up to this many bytes share blocks.
pub const SMALL: u64 = 1 << 20;
/// Small requests are rounded up to this many bytes.
pub const GRAIN: u64 = 512;

const NOT_OPEN: u32 = u32::MAX;

/// One shard of a context's small requests.
#[derive(Default)]
pub struct SmallHeap {
    blocks: Vec<Option<SmallBlock>>,
    vacant: Vec<u32>,
    /// By class divided by [`SHARDS`]: blocks with room.
    open: Vec<Vec<u32>>,
}

struct SmallBlock {
    address: u64,
    /// Bytes asked for, per place; 0 = free.
    sizes: Box<[u32]>,
    free: Vec<u16>,
    /// Position in the list of open blocks.
    position: u32,
}

/// What a request of its own is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `cuMemAlloc` and its like.
    Linear,
    /// `cuMemAllocManaged`: addresses only.
    Managed,
    /// The `__device__` variables of a module; not the program's to free.
    Module,
}

/// A request with blocks of its own.
#[derive(Clone, Copy, Debug)]
pub struct Large {
    /// Bytes asked for.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
    context: usize,
    physical: u64,
}

static LARGE: Mutex<BTreeMap<u64, Large>> = Mutex::new(BTreeMap::new());

fn large() -> MutexGuard<'static, BTreeMap<u64, Large>> {
    LARGE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shard(context: &Context, class: usize) -> MutexGuard<'_, SmallHeap> {
    context.small[class % SHARDS]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Allocates linear memory in the context.
///
/// # Errors
/// `INVALID_VALUE` for no bytes, `OUT_OF_MEMORY`.
pub fn allocate(context: &Context, bytes: u64) -> Outcome<u64> {
    match bytes {
        0 => Err(Status::INVALID_VALUE),
        1..=SMALL => allocate_small(context, bytes),
        _ => allocate_large(context, bytes, Kind::Linear),
    }
}

fn allocate_small(context: &Context, bytes: u64) -> Outcome<u64> {
    let class = bytes.div_ceil(GRAIN) as usize;
    let size = class as u64 * GRAIN;
    let mut heap = shard(context, class);
    let heap = &mut *heap;
    let row = class / SHARDS;
    if heap.open.len() <= row {
        heap.open.resize_with(row + 1, Vec::new);
    }
    let index = match heap.open[row].last() {
        Some(index) => *index,
        None => heap.add(context, class)?,
    };
    let block = heap.blocks[index as usize]
        .as_mut()
        .ok_or(Status::UNKNOWN)?;
    let place = block.free.pop().ok_or(Status::UNKNOWN)?;
    block.sizes[place as usize] = bytes as u32;
    if block.free.is_empty() {
        heap.close(row, index);
    }
    let block = heap.blocks[index as usize]
        .as_ref()
        .ok_or(Status::UNKNOWN)?;
    Ok(block.address + u64::from(place) * size)
}

impl SmallHeap {
    /// Takes a block for the class and opens it.
    fn add(&mut self, context: &Context, class: usize) -> Outcome<u32> {
        let driver = driver()?;
        driver.take(context.device(), BLOCK)?;
        let address = space()
            .take(BLOCK, BLOCK)
            .inspect_err(|_| driver.give(context.device(), BLOCK))?;
        let places = (BLOCK / (class as u64 * GRAIN)) as u16;
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() as u32 - 1
        });
        self.blocks[index as usize] = Some(SmallBlock {
            address,
            sizes: vec![0; places as usize].into(),
            free: (0..places).rev().collect(),
            position: NOT_OPEN,
        });
        space().mark(
            address,
            1,
            Entry::new(Use::Small, context.index, class, index as usize),
        );
        self.open(class / SHARDS, index);
        Ok(index)
    }

    fn open(&mut self, row: usize, index: u32) {
        if let Some(block) = &mut self.blocks[index as usize] {
            block.position = self.open[row].len() as u32;
            self.open[row].push(index);
        }
    }

    fn close(&mut self, row: usize, index: u32) {
        let Some(block) = &mut self.blocks[index as usize] else {
            return;
        };
        let position = std::mem::replace(&mut block.position, NOT_OPEN);
        self.open[row].swap_remove(position as usize);
        if let Some(moved) = self.open[row].get(position as usize)
            && let Some(moved) = &mut self.blocks[*moved as usize]
        {
            moved.position = position;
        }
    }
}

fn allocate_large(context: &Context, bytes: u64, kind: Kind) -> Outcome<u64> {
    let driver = driver()?;
    let span = bytes
        .checked_next_multiple_of(BLOCK)
        .ok_or(Status::OUT_OF_MEMORY)?;
    let physical = if kind == Kind::Managed { 0 } else { span };
    driver.take(context.device(), physical)?;
    let address = space()
        .take(span, BLOCK)
        .inspect_err(|_| driver.give(context.device(), physical))?;
    large().insert(
        address,
        Large {
            bytes,
            kind,
            context: context.index,
            physical,
        },
    );
    space().mark(address, 1, Entry::new(Use::Large, context.index, 0, 0));
    Ok(address)
}

/// Allocates managed memory: addresses, no memory of the GPU.
///
/// # Errors
/// `INVALID_VALUE` for no bytes.
pub fn allocate_managed(context: &Context, bytes: u64) -> Outcome<u64> {
    if bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    allocate_large(context, bytes, Kind::Managed)
}

/// Allocates the variables of a module.
///
/// # Errors
/// `OUT_OF_MEMORY`.
pub fn allocate_module(context: &Context, bytes: u64) -> Outcome<u64> {
    allocate_large(context, bytes, Kind::Module)
}

/// Frees memory by its address, whatever kind it is; nothing happens for 0.
///
/// # Errors
/// `INVALID_VALUE` when nothing was allocated there.
pub fn free(address: u64) -> Outcome<()> {
    if address == 0 {
        return Ok(());
    }
    let entry = space().entry(address);
    match entry.usage() {
        Use::Small => free_small(address, entry),
        Use::Pool => Pool::by_index(entry.index())
            .ok_or(Status::INVALID_VALUE)?
            .free(address),
        Use::Graph => graph::free(address),
        Use::Large | Use::None => free_large(address, Some(Kind::Module)),
    }
}

/// Frees the variables of a module.
///
/// # Errors
/// `INVALID_VALUE` when nothing was allocated there.
pub fn free_module(address: u64) -> Outcome<()> {
    free_large(address, None)
}

fn free_small(address: u64, entry: Entry) -> Outcome<()> {
    let context = context::by_index(entry.context()).ok_or(Status::INVALID_VALUE)?;
    let class = entry.class();
    let mut heap = shard(context, class);
    let block = match heap.blocks.get_mut(entry.index()) {
        // The block may have gone and come back as another between the look at the entry and the lock.
        Some(Some(block)) if space().entry(address) == entry => block,
        _ => return Err(Status::INVALID_VALUE),
    };
    let offset = address - block.address;
    let size = class as u64 * GRAIN;
    let place = (offset / size) as usize;
    match block.sizes.get_mut(place) {
        Some(live) if *live != 0 && offset.is_multiple_of(size) => *live = 0,
        _ => return Err(Status::INVALID_VALUE),
    }
    let row = class / SHARDS;
    let index = entry.index() as u32;
    block.free.push(place as u16);
    if block.free.len() == block.sizes.len() {
        let gone = block.address;
        if block.position != NOT_OPEN {
            heap.close(row, index);
        }
        heap.blocks[index as usize] = None;
        heap.vacant.push(index);
        space().unmark(gone, entry);
        driver()?.give(context.device(), BLOCK);
        space().give(gone, BLOCK);
    } else if block.position == NOT_OPEN {
        heap.open(row, index);
    }
    Ok(())
}

fn free_large(address: u64, except: Option<Kind>) -> Outcome<()> {
    let mut all = large();
    match all.get(&address) {
        Some(request) if Some(request.kind) != except => {}
        _ => return Err(Status::INVALID_VALUE),
    }
    let request = all.remove(&address).ok_or(Status::INVALID_VALUE)?;
    drop(all);
    give_large(address, request)
}

fn give_large(address: u64, request: Large) -> Outcome<()> {
    space().mark(address, 1, Entry::NONE);
    if let Some(context) = context::by_index(request.context) {
        driver()?.give(context.device(), request.physical);
    }
    space().give(address, request.bytes.next_multiple_of(BLOCK));
    Ok(())
}

/// Gives back all linear memory of a context that goes.
pub fn clear(context: &Context) {
    let Ok(driver) = driver() else { return };
    for heap in &context.small {
        let heap = std::mem::take(&mut *heap.lock().unwrap_or_else(PoisonError::into_inner));
        for block in heap.blocks.into_iter().flatten() {
            space().mark(block.address, 1, Entry::NONE);
            driver.give(context.device(), BLOCK);
            space().give(block.address, BLOCK);
        }
    }
    let gone: Vec<(u64, Large)> = {
        let mut all = large();
        let gone: Vec<u64> = all
            .iter()
            .filter(|(_, request)| request.context == context.index)
            .map(|(address, _)| *address)
            .collect();
        gone.into_iter()
            .filter_map(|address| Some((address, all.remove(&address)?)))
            .collect()
    };
    for (address, request) in gone {
        let _ = give_large(address, request);
    }
}

/// The allocation in which an address lies.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its first byte.
    pub start: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Its context, if it has one.
    pub context: Option<&'static Context>,
    /// Its pool, if it has one.
    pub pool: Option<&'static Pool>,
    /// Managed memory.
    pub managed: bool,
}

/// Looks an address up.
pub fn find(address: u64) -> Option<Found> {
    let entry = space().entry(address);
    match entry.usage() {
        Use::Small => {
            let context = context::by_index(entry.context())?;
            let heap = shard(context, entry.class());
            let block = heap.blocks.get(entry.index())?.as_ref()?;
            let size = entry.class() as u64 * GRAIN;
            let place = address.checked_sub(block.address)? / size;
            let bytes = u64::from(*block.sizes.get(place as usize)?);
            let start = block.address + place * size;
            (bytes > 0).then_some(Found {
                start,
                bytes,
                context: Some(context),
                pool: None,
                managed: false,
            })
        }
        Use::Pool => {
            let pool = Pool::by_index(entry.index())?;
            let (start, bytes) = pool.find(address)?;
            Some(Found {
                start,
                bytes,
                context: None,
                pool: Some(pool),
                managed: false,
            })
        }
        Use::Graph => {
            let (start, bytes, context) = graph::find(address)?;
            Some(Found {
                start,
                bytes,
                context,
                pool: None,
                managed: false,
            })
        }
        Use::Large | Use::None => {
            let all = large();
            let (start, request) = all.range(..=address).next_back()?;
            (address < start + request.bytes.next_multiple_of(BLOCK)).then_some(Found {
                start: *start,
                bytes: request.bytes,
                context: context::by_index(request.context),
                pool: None,
                managed: request.kind == Kind::Managed,
            })
        }
    }
}
