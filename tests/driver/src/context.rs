//! Contexts of the simulated driver: their memory, their objects, and each thread's current
//! context.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use crate::blocks::{self, SmallShard};
use crate::device::{self, THREADS_PER_MULTIPROCESSOR};
use crate::driver::driver;
use crate::machine::{BLOCK, Machine};
use crate::pool::Pool;
use crate::work::Ends;
use crate::{Outcome, Status, array, capture, graph, host, ipc};

const MAGIC: u64 = 0x6374_7863_7478_6374;
/// The number of shards of a context's small requests. Each shard has its own lock.
pub const SHARDS: usize = 16;
/// Bytes of local memory per thread that a new context has (the default stack limit).
pub const STACK: u64 = 1024;
const STACK_SIZE: i32 = 0;
const PRINTF_FIFO_SIZE: i32 = 1;
const MALLOC_HEAP_SIZE: i32 = 2;
/// The limits of a new context, by their numbers in `CUlimit` (measured). `None` is an unsupported
/// limit.
const LIMITS: [Option<u64>; 7] = [
    Some(STACK),
    Some(8_650_752),
    Some(8 << 20),
    None,
    Some(2048),
    Some(64),
    Some(9_830_400),
];
/// A context's first module with device malloc takes this many MiB and 1 MiB per multiprocessor:
/// 138 MiB on an H100 (measured).
const HEAP_TABLES: u64 = 6;
/// Bytes for a context's first module with device printf. The limits and the order of modules do
/// not matter (measured).
const PRINTF: u64 = 62 << 20;
/// Bytes for the first module with device assert, printf included. The bytes for malloc include
/// these bytes.
const ASSERT: u64 = 90 << 20;
/// The driver rejects this and every larger stack limit as invalid (measured).
const STACK_END: u64 = 512 << 10;
/// Bytes per green context: its own, and its part of shared blocks. Measured: one to four take 6,
/// 12, 16 and 22 MiB.
const GREEN: [u64; 2] = [4 << 20, 560 << 10];
/// Two kinds of memory of streams: the bytes per stream, and the streams for which a new context
/// has room.
///
/// Measured (H100, 580.159.04): the first kind takes a block at the streams 2, 6, 10 and so on. The
/// second kind takes a block at stream 36 and then at about every 43rd. 256 streams take 140 MiB,
/// and 4,096 take 2,240 MiB.
const STREAMS: [(u64, u64); 2] = [(512 << 10, 1), (48 << 10, 35)];

/// A function that the driver calls when a context is destroyed. One argument is the value that was
/// stored in the context.
pub type Destructor = extern "C" fn(usize, usize, usize);
/// Values that other libraries store in a context, by key, each with its destructor.
pub type Storage = HashMap<usize, (usize, Option<Destructor>)>;

/// A context. The `Context` object is never freed, so a stale handle shows that the context was
/// destroyed.
pub struct Context {
    magic: u64,
    /// Index of this context in the process's list of contexts.
    pub index: usize,
    device: AtomicU32,
    is_primary: bool,
    /// The primary context of a green context; `None` for other contexts.
    base: Option<&'static Context>,
    active: AtomicBool,
    /// The number of references: retains of a primary context, otherwise the creation and each
    /// `cuCtxAttach`.
    pub references: AtomicU32,
    /// Creation flags.
    pub flags: AtomicU32,
    id: AtomicU64,
    /// Bytes per thread for which the context holds local memory; 0 after a larger stack limit did
    /// not fit.
    backed: AtomicU64,
    state: Mutex<State>,
    /// The small requests of the context. The size of a request selects its shard.
    pub small: [SmallShard; SHARDS],
    storage: Mutex<Storage>,
    /// The times at which the work of the context's streams ends.
    pub(crate) work: Ends,
}

#[derive(Default)]
struct State {
    limits: HashMap<i32, u64>,
    /// Bytes of GPU memory held for local memory.
    local: u64,
    /// Whether a kernel that uses device malloc was launched in the context.
    has_heap: bool,
    /// Whether a module that uses device printf or assert was loaded in the context.
    uses_printf: bool,
    /// Bytes for the device runtime (malloc, printf, assert), taken when modules were loaded.
    tables: u64,
    /// Bytes held for the device runtime: `tables` plus the heap of device malloc.
    device_runtime: u64,
    /// The number of green contexts ever made from this context.
    greens: u64,
    /// Bytes held for green contexts of this context.
    green: u64,
    streams: u64,
    /// Bytes held for streams.
    internal: u64,
    /// Bytes held for the context itself, without its local memory.
    own: u64,
    /// Bytes held for executable graphs of this context.
    execs: u64,
    /// Bytes that the first kernel launch of the process took. Only the context of that launch
    /// holds them.
    first_launch: u64,
}

/// The functions of the device runtime that the code of a module or kernel uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// `malloc`.
    pub heap: bool,
    /// `printf`.
    pub printf: bool,
    /// `assert`.
    pub assert: bool,
}

/// Returns the bytes of local memory for all threads that the GPU can run, rounded down to blocks
/// (measured).
fn backing(machine: &Machine, per_thread: u64) -> Outcome<u64> {
    let threads = device::multiprocessors(machine) * THREADS_PER_MULTIPROCESSOR;
    let bytes = per_thread
        .checked_mul(threads)
        .ok_or(Status::INVALID_VALUE)?;
    Ok(bytes / BLOCK * BLOCK)
}

static CONTEXTS: RwLock<Vec<&'static Context>> = RwLock::new(Vec::new());
/// Destroyed contexts, which [`Context::create`] uses again.
static SPARE: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// Whether a context of this process already holds the memory of the first kernel launch.
static LAUNCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<Option<&'static Context>> = const { Cell::new(None) };
    static BELOW: RefCell<Vec<&'static Context>> = const { RefCell::new(Vec::new()) };
}

/// Returns the calling thread's current context; for a green context, its primary context.
///
/// # Errors
/// `INVALID_CONTEXT` without a current context, `CONTEXT_IS_DESTROYED`.
pub fn current() -> Outcome<&'static Context> {
    let context = CURRENT.get().ok_or(Status::INVALID_CONTEXT)?;
    if context.is_active() {
        Ok(context.base())
    } else {
        Err(Status::CONTEXT_IS_DESTROYED)
    }
}

/// Returns the top of the calling thread's context stack. This context may already be destroyed.
pub fn top() -> Option<&'static Context> {
    CURRENT.get()
}

/// Replaces the top of the calling thread's context stack; `None` pops it.
pub fn set_current(context: Option<&'static Context>) {
    match context {
        Some(_) => CURRENT.set(context),
        None => {
            pop();
        }
    }
}

/// Pushes a context on the calling thread's context stack.
pub fn push(context: &'static Context) {
    if let Some(below) = CURRENT.replace(Some(context)) {
        BELOW.with_borrow_mut(|stack| stack.push(below));
    }
}

/// Pops the top of the calling thread's context stack.
pub fn pop() -> Option<&'static Context> {
    CURRENT.replace(BELOW.with_borrow_mut(Vec::pop))
}

fn spare() -> MutexGuard<'static, Vec<&'static Context>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns every context that the process ever made, destroyed contexts included.
pub fn all() -> Vec<&'static Context> {
    CONTEXTS
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Returns the context with this index in the process's list.
pub fn by_index(index: usize) -> Option<&'static Context> {
    CONTEXTS
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(index)
        .copied()
}

impl Context {
    fn make(device: usize, is_primary: bool, base: Option<&'static Context>) -> &'static Context {
        let mut contexts = CONTEXTS.write().unwrap_or_else(PoisonError::into_inner);
        let context: &'static Context = Box::leak(Box::new(Context {
            magic: MAGIC,
            index: contexts.len(),
            device: AtomicU32::new(device as u32),
            is_primary,
            base,
            active: AtomicBool::new(false),
            references: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            id: AtomicU64::new(0),
            backed: AtomicU64::new(0),
            state: Mutex::default(),
            small: Default::default(),
            storage: Mutex::default(),
            work: Ends::default(),
        }));
        contexts.push(context);
        context
    }

    /// Makes the primary context of a GPU, in the inactive state. Called once per GPU.
    pub fn primary(device: usize) -> &'static Context {
        Context::make(device, true, None)
    }

    /// Creates a context.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the GPU has no room for it.
    pub fn create(device: usize, flags: u32) -> Outcome<&'static Context> {
        let reused = spare().pop();
        let context = reused.unwrap_or_else(|| Context::make(device, false, None));
        context.device.store(device as u32, Relaxed);
        context.flags.store(flags, Relaxed);
        match context.start() {
            Ok(()) => Ok(context),
            Err(status) => {
                spare().push(context);
                Err(status)
            }
        }
    }

    /// Takes the GPU memory that a context costs, and makes the context active.
    fn start(&self) -> Outcome<()> {
        let driver = driver()?;
        let bytes = driver.machine.knobs.context_bytes.load(Relaxed);
        let device = self.device();
        driver.take(device, bytes)?;
        let local = backing(driver.machine, STACK)?;
        {
            let mut state = self.state();
            state.own = bytes - local;
            state.local = local;
        }
        self.backed.store(STACK, Relaxed);
        self.id.store(NEXT_ID.fetch_add(1, Relaxed), Relaxed);
        self.references.store(1, Relaxed);
        driver.contexts(device).fetch_add(1, SeqCst);
        self.active.store(true, Release);
        Ok(())
    }

    /// Adds a retain to the primary context. The first retain makes the context active.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn retain(&self) -> Outcome<()> {
        let _one = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_active() {
            self.references.fetch_add(1, Relaxed);
            return Ok(());
        }
        self.start()
    }

    /// Removes a retain from the primary context. The last release destroys the context.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` when the context is not active.
    pub fn release(&self) -> Outcome<()> {
        let _one = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_active() {
            return Err(Status::INVALID_CONTEXT);
        }
        if self.references.fetch_sub(1, Relaxed) == 1 {
            self.end()?;
        }
        Ok(())
    }

    /// Destroys the primary context, even if it has retains left.
    ///
    /// # Errors
    /// `NOT_INITIALIZED` unless the driver is initialised.
    pub fn reset(&self) -> Outcome<()> {
        let _one = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_active() { self.end() } else { Ok(()) }
    }

    /// Destroys a context that [`Context::create`] made.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED` if the context was destroyed before, `INVALID_CONTEXT` for a primary
    /// or green context.
    pub fn destroy(&'static self) -> Outcome<()> {
        if self.is_primary || self.base.is_some() {
            return Err(Status::INVALID_CONTEXT);
        }
        if !self.is_active() {
            return Err(Status::CONTEXT_IS_DESTROYED);
        }
        self.end()?;
        if CURRENT
            .get()
            .is_some_and(|current| std::ptr::eq(current, self))
        {
            pop();
        }
        spare().push(self);
        Ok(())
    }

    /// Frees all memory that the context holds, and makes the context inactive.
    fn end(&self) -> Outcome<()> {
        let stored = std::mem::take(&mut *self.storage());
        for (key, (value, destructor)) in stored {
            if let Some(destructor) = destructor {
                destructor(self.handle(), key, value);
            }
        }
        let driver = driver()?;
        let device = self.device();
        self.active.store(false, Release);
        capture::drop_context(self);
        self.work.clear();
        blocks::clear(self);
        ipc::clear(self);
        array::clear(self);
        host::clear(self)?;
        if driver.contexts(device).fetch_sub(1, SeqCst) == 1 {
            Pool::clear_all(device);
            graph::clear_all(device);
        }
        let state = std::mem::take(&mut *self.state());
        let held = state.own
            + state.local
            + state.device_runtime
            + state.green
            + state.internal
            + state.execs
            + state.first_launch;
        driver.give(device, held);
        if state.first_launch > 0 {
            LAUNCHED.store(false, Relaxed);
        }
        Ok(())
    }

    /// Returns the values that other libraries store in the context, by key.
    pub fn storage(&self) -> MutexGuard<'_, Storage> {
        self.storage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index of the context's GPU in PCI order.
    pub fn device(&self) -> usize {
        self.device.load(Relaxed) as usize
    }

    /// Returns whether the context is alive. A green context is dead as soon as its primary context
    /// is destroyed.
    pub fn is_active(&self) -> bool {
        self.active.load(Acquire) && self.base.is_none_or(Context::is_active)
    }

    /// Returns the primary context of a green context. Any other context returns itself.
    pub fn base(&'static self) -> &'static Context {
        self.base.unwrap_or(self)
    }

    /// Returns whether this context is the primary context of its GPU.
    pub fn is_primary(&self) -> bool {
        self.is_primary
    }

    /// Returns a number that identifies the context. The process never uses this number again.
    pub fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    /// Returns the `CUcontext`.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Returns the context of a `CUcontext` handle, even a destroyed context.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` for a handle that is not a context.
    pub fn from_handle(handle: usize) -> Outcome<&'static Context> {
        let known = CONTEXTS.read().unwrap_or_else(PoisonError::into_inner);
        if known.iter().any(|context| context.handle() == handle) {
            // SAFETY: the handle was just found to be the address of a context, and contexts are
            // never freed.
            let context = unsafe { &*(handle as *const Context) };
            debug_assert_eq!(context.magic, MAGIC);
            return Ok(context);
        }
        Err(Status::INVALID_CONTEXT)
    }

    /// Returns the value of one limit of the context (`cuCtxGetLimit`).
    ///
    /// # Errors
    /// `UNSUPPORTED_LIMIT`, or `INVALID_VALUE` for an unknown limit.
    pub fn limit(&self, limit: i32) -> Outcome<u64> {
        let start = LIMITS.get(limit as usize).ok_or(Status::INVALID_VALUE)?;
        let start = start.ok_or(Status::UNSUPPORTED_LIMIT)?;
        Ok(self.state().limits.get(&limit).copied().unwrap_or(start))
    }

    /// Sets one limit. A new stack limit resizes the local memory at once, and frees what launches
    /// have added.
    ///
    /// # Errors
    /// - `OUT_OF_MEMORY`; `UNSUPPORTED_LIMIT`.
    /// - `INVALID_VALUE`: an unknown limit, a stack limit that is too large, or the limit of a
    ///   device function in use.
    pub fn set_limit(&self, limit: i32, value: u64) -> Outcome<()> {
        self.limit(limit)?;
        let mut state = self.state();
        // Measured: the driver rounds or caps the values of these limits.
        let value = match limit {
            STACK_SIZE if value >= STACK_END => return Err(Status::INVALID_VALUE),
            STACK_SIZE => value.next_multiple_of(16),
            4 => value.min(599_186),
            6 => value
                .checked_next_multiple_of(3_276_800)
                .ok_or(Status::INVALID_VALUE)?,
            _ => value,
        };
        match limit {
            STACK_SIZE => self.resize_local(&mut state, value)?,
            PRINTF_FIFO_SIZE if state.uses_printf => return Err(Status::INVALID_VALUE),
            MALLOC_HEAP_SIZE if state.has_heap => return Err(Status::INVALID_VALUE),
            _ => {}
        }
        state.limits.insert(limit, value);
        Ok(())
    }

    /// Takes the memory of the device runtime for a module, once. The memory is freed with the
    /// context.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn load(&self, needs: Needs) -> Outcome<()> {
        let driver = driver()?;
        let malloc = (device::multiprocessors(driver.machine) + HEAP_TABLES) << 20;
        let wanted = [
            (needs.heap, malloc),
            (needs.assert, ASSERT),
            (needs.printf, PRINTF),
        ];
        let wanted = wanted
            .into_iter()
            .find(|(uses, _)| *uses)
            .map_or(0, |(_, bytes)| bytes);
        let there = self.state().tables;
        if wanted > there {
            self.take_for_runtime(wanted - there)?;
            self.state().tables = wanted;
        }
        self.state().uses_printf |= needs.printf || needs.assert;
        Ok(())
    }

    fn take_for_runtime(&self, bytes: u64) -> Outcome<()> {
        let bytes = bytes
            .checked_next_multiple_of(BLOCK)
            .ok_or(Status::OUT_OF_MEMORY)?;
        driver()?.take(self.device(), bytes)?;
        self.state().device_runtime += bytes;
        Ok(())
    }

    /// Takes the memory for launching a kernel with `local` bytes of local memory per thread.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn launch(&self, local: u64, needs: Needs) -> Outcome<()> {
        if local <= self.backed.load(Relaxed) && LAUNCHED.load(Relaxed) && !needs.heap {
            return Ok(());
        }
        self.grow_for_launch(local, needs)
    }

    #[cold]
    fn grow_for_launch(&self, local: u64, needs: Needs) -> Outcome<()> {
        // If several threads launch their first kernels at once, only one takes the memory of the
        // first launch.
        if !LAUNCHED.swap(true, Relaxed) {
            let driver = driver()?;
            let bytes = driver.machine.knobs.first_launch_bytes.load(Relaxed);
            let mut state = self.state();
            driver
                .take(self.device(), bytes)
                .inspect_err(|_| LAUNCHED.store(false, Relaxed))?;
            state.first_launch += bytes;
        }
        self.grow_local(local, needs.heap)
    }

    /// Takes local memory of `local` bytes per thread. If `heap` is set, also takes the heap of
    /// device malloc.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn grow_local(&self, local: u64, heap: bool) -> Outcome<()> {
        if heap && !self.state().has_heap {
            let heap = self.limit(MALLOC_HEAP_SIZE)?;
            self.take_for_runtime(heap.checked_add(BLOCK).ok_or(Status::OUT_OF_MEMORY)?)?;
            self.state().has_heap = true;
        }
        if local <= self.backed.load(Relaxed) {
            return Ok(());
        }
        let limit = self.limit(STACK_SIZE)?.max(local);
        let mut state = self.state();
        self.resize_local(&mut state, limit)?;
        state.limits.insert(STACK_SIZE, limit);
        Ok(())
    }

    /// Resizes the local memory. If the GPU has too little room, frees all local memory and keeps
    /// the old stack limit (measured).
    fn resize_local(&self, state: &mut State, per_thread: u64) -> Outcome<()> {
        let driver = driver()?;
        let bytes = backing(driver.machine, per_thread)?;
        if bytes > state.local {
            if let Err(status) = driver.take(self.device(), bytes - state.local) {
                driver.give(self.device(), std::mem::take(&mut state.local));
                self.backed.store(0, Relaxed);
                return Err(status);
            }
        } else {
            driver.give(self.device(), state.local - bytes);
        }
        state.local = bytes;
        self.backed.store(per_thread, Relaxed);
        Ok(())
    }

    /// Makes a green context, whose memory is freed with this primary context (measured).
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn add_green(&'static self) -> Outcome<&'static Context> {
        let mut state = self.state();
        let (number, [own, shared]) = (state.greens + 1, GREEN);
        let bytes = number * own + (number * shared).next_multiple_of(BLOCK);
        driver()?.take(self.device(), bytes - state.green)?;
        (state.greens, state.green) = (number, bytes);
        drop(state);
        let green = Context::make(self.device(), false, Some(self));
        green.id.store(NEXT_ID.fetch_add(1, Relaxed), Relaxed);
        green.active.store(true, Release);
        Ok(green)
    }

    /// Ends a green context and returns its primary context, which keeps the memory.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` for other contexts, `CONTEXT_IS_DESTROYED`.
    pub fn end_green(&self) -> Outcome<&'static Context> {
        let base = self.base.ok_or(Status::INVALID_CONTEXT)?;
        if self.active.swap(false, SeqCst) {
            Ok(base)
        } else {
            Err(Status::CONTEXT_IS_DESTROYED)
        }
    }

    /// Takes the memory that one more stream costs. The memory is freed with the context.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn add_stream(&self) -> Outcome<()> {
        let mut state = self.state();
        let number = state.streams + 1;
        let bytes = STREAMS
            .iter()
            .map(|(bytes, start)| (number.saturating_sub(*start) * bytes).next_multiple_of(BLOCK))
            .sum();
        if bytes > state.internal {
            driver()?.take(self.device(), bytes - state.internal)?;
            state.internal = bytes;
        }
        state.streams += 1;
        Ok(())
    }

    /// Takes the memory for the first executable graph in the context; later graphs take none
    /// (measured).
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn add_exec(&self) -> Outcome<()> {
        let mut state = self.state();
        if state.execs == 0 {
            driver()?.take(self.device(), BLOCK)?;
            state.execs = BLOCK;
        }
        Ok(())
    }
}

static PRIMARY: Mutex<()> = Mutex::new(());

impl std::fmt::Debug for Context {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Context")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
