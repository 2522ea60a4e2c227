//! Linear memory of the simulated driver. Small requests share blocks of 2 MiB; large requests do
//! not.
//!
//! A small request that fits into a block takes one uncontended lock and touches no shared memory.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::context::{self, Context, SHARDS};
use crate::driver::driver;
use crate::heap::{GRAIN, Heap, Left};
use crate::machine::BLOCK;
use crate::pool::Pool;
use crate::space::{Entry, Use, space};
use crate::work::{self, Name, Queue};
use crate::{Outcome, Status, checkpoint, graph, ipc};

/// The largest request, in bytes, that shares a block with other requests.
const SHARED: u64 = BLOCK - GRAIN;

/// One shard of a context's small requests. A request uses the shard for its size; if that shard is
/// full, another shard.
#[derive(Default)]
pub struct SmallShard {
    heap: Mutex<Heap>,
    /// The largest request that might fit: [`Heap::room`] after a failed request, one block after
    /// new or freed memory.
    room: AtomicU64,
}

/// The kind of memory that a large request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `cuMemAlloc` and its variants.
    Linear,
    /// `cuMemAllocManaged`. Managed memory takes addresses but no GPU memory.
    Managed,
    /// The `__device__` variables of a module. Only unloading the module frees them.
    Module,
}

/// A request that has blocks of its own.
#[derive(Clone, Copy, Debug)]
pub struct Large {
    /// Bytes that the program asked for.
    pub bytes: u64,
    /// The kind of the request.
    pub kind: Kind,
    context: usize,
    physical: u64,
}

/// Linear memory that `cuMemFreeAsync` has freed. It stays used until a synchronising call after
/// the earlier work on the stream (measured, H200, 580.159.04).
struct Leaving {
    context: &'static Context,
    address: u64,
    span: u64,
    physical: u64,
    /// The end of the earlier work.
    end: u64,
}

static LEAVING: Mutex<Vec<Leaving>> = Mutex::new(Vec::new());

impl Leaving {
    fn end_all(is_over: impl Fn(&Leaving) -> bool) {
        let mut all = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
        let (over, staying) = std::mem::take(&mut *all).into_iter().partition(is_over);
        *all = staying;
        drop(all);
        over.into_iter().for_each(Leaving::give);
    }

    fn give(self) {
        ipc::give(self.context.device(), self.address, self.physical);
        space().give(self.address, self.span);
    }

    /// Gives the memory back now, or after the work until `end`.
    fn leave(self) {
        match self.end {
            0 => self.give(),
            _ => LEAVING
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self),
        }
    }
}

/// Gives back what `cuMemFreeAsync` has freed on a GPU behind work that is over.
pub(crate) fn synchronize(device: usize) {
    Leaving::end_all(|one| one.context.device() == device && work::query(one.end).is_ok());
}

static LARGE: Mutex<BTreeMap<u64, Large>> = Mutex::new(BTreeMap::new());

fn large() -> MutexGuard<'static, BTreeMap<u64, Large>> {
    LARGE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SmallShard {
    fn lock(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: u64) -> Option<u64> {
        let mut heap = self.lock();
        let place = heap.take(bytes);
        if place.is_none() {
            self.room.store(heap.room(), Relaxed);
        }
        place
    }
}

/// Allocates linear memory (`cuMemAlloc`) in a context.
///
/// # Errors
/// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
pub fn allocate(context: &Context, bytes: u64) -> Outcome<u64> {
    match bytes {
        0 => Err(Status::INVALID_VALUE),
        1..=SHARED => allocate_small(context, bytes),
        _ => allocate_large(context, bytes, Kind::Linear),
    }
}

fn allocate_small(context: &Context, bytes: u64) -> Outcome<u64> {
    let home = bytes.div_ceil(GRAIN) as usize % SHARDS;
    if let Some(address) = context.small[home].take(bytes) {
        return Ok(address);
    }
    allocate_elsewhere(context, bytes, home)
}

/// Allocates a small request outside its `home` shard, or in a new block if all shards are full.
#[cold]
fn allocate_elsewhere(context: &Context, bytes: u64, home: usize) -> Outcome<u64> {
    let (before, after) = context.small.split_at(home);
    let others = after.iter().chain(before).skip(1);
    for other in others.filter(|other| bytes <= other.room.load(Relaxed)) {
        if let Some(address) = other.take(bytes) {
            return Ok(address);
        }
    }
    let own = &context.small[home];
    let mut heap = own.lock();
    // Another thread may have freed memory in this shard while this thread did not hold the lock.
    if let Some(address) = heap.take(bytes) {
        return Ok(address);
    }
    add(&mut heap, context, home)?;
    own.room.store(BLOCK, Relaxed);
    heap.take(bytes).ok_or(Status::UNKNOWN)
}

/// Takes a block of GPU memory and adds it to the heap of a shard.
fn add(heap: &mut Heap, context: &Context, shard: usize) -> Outcome<()> {
    let driver = driver()?;
    driver.take(context.device(), BLOCK)?;
    let address = space()
        .take(BLOCK, BLOCK)
        .inspect_err(|_| driver.give(context.device(), BLOCK))?;
    let index = heap.add(address);
    let entry = Entry::new(Use::Small, context.index, shard, index);
    space().mark(address, 1, entry);
    Ok(())
}

/// Allocates linear memory, in blocks of its own, whose address fits into 32 bits.
///
/// # Errors
/// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
pub fn allocate_low(context: &Context, bytes: u64) -> Outcome<u64> {
    if bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let take = |span| space().take_low(span);
    allocate_at(context, bytes, Kind::Linear, take)
}

fn allocate_large(context: &Context, bytes: u64, kind: Kind) -> Outcome<u64> {
    allocate_at(context, bytes, kind, |span| space().take(span, BLOCK))
}

/// Allocates blocks for a large request. The function `place` chooses their addresses.
fn allocate_at(
    context: &Context,
    bytes: u64,
    kind: Kind,
    place: impl FnOnce(u64) -> Outcome<u64>,
) -> Outcome<u64> {
    let driver = driver()?;
    let span = bytes
        .checked_next_multiple_of(BLOCK)
        .ok_or(Status::OUT_OF_MEMORY)?;
    let physical = if kind == Kind::Managed { 0 } else { span };
    driver.take(context.device(), physical)?;
    let address = place(span).inspect_err(|_| driver.give(context.device(), physical))?;
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

/// Allocates managed memory, which takes addresses but no GPU memory.
///
/// # Errors
/// `INVALID_VALUE` for 0 bytes.
pub fn allocate_managed(context: &Context, bytes: u64) -> Outcome<u64> {
    if bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let address = allocate_large(context, bytes, Kind::Managed)?;
    driver()?.take_host(bytes);
    checkpoint::count_managed(1);
    Ok(address)
}

/// Allocates the memory of a module's `__device__` variables.
///
/// # Errors
/// `OUT_OF_MEMORY`.
pub fn allocate_module(context: &Context, bytes: u64) -> Outcome<u64> {
    allocate_large(context, bytes, Kind::Module)
}

/// Frees memory of any kind; pool memory once the earlier work on `stream` is done. Ignores address
/// 0.
///
/// # Errors
/// `INVALID_VALUE` if no allocation starts there.
pub fn free(address: u64, stream: Name) -> Outcome<()> {
    free_until(address, stream, 0)
}

/// Frees memory in the order of a stream.
///
/// # Errors
/// Those of [`free`]; `NOT_SUPPORTED` for managed memory.
pub fn free_async(address: u64, stream: Name) -> Outcome<()> {
    if large()
        .get(&address)
        .is_some_and(|it| it.kind == Kind::Managed)
    {
        return Err(Status::NOT_SUPPORTED);
    }
    let end = stream.queue().map_or(0, Queue::end);
    free_until(address, stream, end.max(1))
}

/// `end`: when linear memory may be given back.
fn free_until(address: u64, stream: Name, end: u64) -> Outcome<()> {
    if address == 0 {
        return Ok(());
    }
    let entry = space().entry(address);
    match entry.usage() {
        Use::Small => free_small(address, entry, end),
        Use::Pool => Pool::by_index(entry.index())
            .ok_or(Status::INVALID_VALUE)?
            .free(address, stream),
        Use::Graph => graph::free(address),
        Use::Large | Use::None => free_large(address, Some(Kind::Module), end),
    }
}

/// Frees the memory of a module's `__device__` variables.
///
/// # Errors
/// `INVALID_VALUE` when the address is not the start of an allocation.
pub fn free_module(address: u64) -> Outcome<()> {
    free_large(address, None, 0)
}

fn free_small(address: u64, entry: Entry, end: u64) -> Outcome<()> {
    let context = context::by_index(entry.context()).ok_or(Status::INVALID_VALUE)?;
    let shard = &context.small[entry.shard()];
    let mut heap = shard.lock();
    // `entry` was read before this thread took the lock. Another thread may have freed and reused
    // the block since then.
    if space().entry(address) != entry {
        return Err(Status::INVALID_VALUE);
    }
    let left = heap.give(entry.index(), address);
    shard.room.store(BLOCK, Relaxed);
    if left.ok_or(Status::INVALID_VALUE)? == Left::Nothing {
        let gone = address / BLOCK * BLOCK;
        space().unmark(gone, entry);
        let gone = Leaving {
            context,
            address: gone,
            span: BLOCK,
            physical: BLOCK,
            end,
        };
        gone.leave();
    }
    Ok(())
}

fn free_large(address: u64, except: Option<Kind>, end: u64) -> Outcome<()> {
    let mut all = large();
    match all.get(&address) {
        Some(request) if Some(request.kind) != except => {}
        _ => return Err(Status::INVALID_VALUE),
    }
    let request = all.remove(&address).ok_or(Status::INVALID_VALUE)?;
    drop(all);
    give_large(address, request, end);
    Ok(())
}

fn give_large(address: u64, request: Large, end: u64) {
    space().mark(address, 1, Entry::NONE);
    if request.kind == Kind::Managed {
        checkpoint::count_managed(-1);
        if let Ok(driver) = driver() {
            driver.give_host(request.bytes);
        }
    }
    let span = request.bytes.next_multiple_of(BLOCK);
    match context::by_index(request.context) {
        Some(context) => {
            let gone = Leaving {
                context,
                address,
                span,
                physical: request.physical,
                end,
            };
            gone.leave();
        }
        None => space().give(address, span),
    }
}

/// Frees all linear memory of a context when the context is destroyed.
pub fn clear(context: &Context) {
    for shard in &context.small {
        for address in std::mem::take(&mut *shard.lock()).addresses() {
            space().mark(address, 1, Entry::NONE);
            ipc::give(context.device(), address, BLOCK);
            space().give(address, BLOCK);
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
        give_large(address, request, 0);
    }
    Leaving::end_all(|one| one.context.index == context.index);
}

/// The allocation that contains a given address.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The first byte.
    pub start: u64,
    /// Bytes that the program asked for.
    pub bytes: u64,
    /// The context of the allocation; `None` if the memory belongs to no context.
    pub context: Option<&'static Context>,
    /// The pool of the allocation, if it has one.
    pub pool: Option<&'static Pool>,
    /// Whether the allocation is managed memory.
    pub managed: bool,
}

/// Finds the allocation that contains an address.
pub fn find(address: u64) -> Option<Found> {
    let entry = space().entry(address);
    match entry.usage() {
        Use::Small => {
            let context = context::by_index(entry.context())?;
            let heap = context.small[entry.shard()].lock();
            let (start, bytes) = heap.find(entry.index(), address)?;
            Some(Found {
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
                managed: pool.is_managed(),
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
