//! Contexts: what they cost, what dies with them, and which one is current in a thread.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use crate::blocks::{self, SmallShard};
use crate::device::{self, THREADS_PER_MULTIPROCESSOR};
use crate::driver::driver;
use crate::machine::BLOCK;
use crate::pool::Pool;
use crate::work::Ends;
use crate::{Outcome, Status, array, capture, graph, vmm};

const MAGIC: u64 = 0x6374_7863_7478_6374;
/// Small requests of a context are kept in so many independently locked shards.
pub const SHARDS: usize = 16;
/// Local memory per thread that a context has from the start, in bytes.
pub const STACK: u64 = 1024;
/// What streams cost in two kinds of memory: bytes per stream, and how many of them a context has from the start.
/// Measured (H100, 580.159.04): blocks are taken at the streams 2, 6, 10 and so on, and besides at the 36th and about
/// every 43rd from there on; 256 streams take 140 MiB in 68 steps, 4,096 streams 2,240 MiB.
const STREAMS: [(u64, u64); 2] = [(512 << 10, 1), (48 << 10, 35)];

/// Called when a context goes, with what was stored in it.
pub type Destructor = extern "C" fn(usize, usize, usize);

/// A context. Never freed: a handle that outlives its context still points to something that says so.
pub struct Context {
    magic: u64,
    /// Index in the process's list of contexts.
    pub index: usize,
    device: AtomicU32,
    is_primary: bool,
    active: AtomicBool,
    /// Retains of a primary context, attaches of another.
    pub references: AtomicU32,
    /// Creation flags.
    pub flags: AtomicU32,
    id: AtomicU64,
    state: Mutex<State>,
    /// Small requests, by size modulo [`SHARDS`].
    pub small: [SmallShard; SHARDS],
    /// Values that other libraries keep in the context, by key.
    pub storage: Mutex<HashMap<usize, (usize, Option<Destructor>)>>,
    /// When the work of its streams ends.
    pub(crate) work: Ends,
}

#[derive(Default)]
struct State {
    limits: HashMap<i32, u64>,
    /// Local memory per thread that a launch once needed.
    launched: u64,
    /// Bytes held for local memory.
    local: u64,
    streams: u64,
    /// Bytes held for streams.
    internal: u64,
    /// Bytes held for the context itself.
    own: u64,
    /// Bytes held for executable graphs.
    execs: u64,
    /// Bytes held since the first launch.
    first_launch: u64,
}

static CONTEXTS: RwLock<Vec<&'static Context>> = RwLock::new(Vec::new());
static SPARE: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// A context holds what the first launch takes.
static LAUNCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<Option<&'static Context>> = const { Cell::new(None) };
    static BELOW: RefCell<Vec<&'static Context>> = const { RefCell::new(Vec::new()) };
}

/// The thread's current context.
///
/// # Errors
/// `INVALID_CONTEXT` when there is none, `CONTEXT_IS_DESTROYED` when it is gone.
pub fn current() -> Outcome<&'static Context> {
    let context = CURRENT.get().ok_or(Status::INVALID_CONTEXT)?;
    if context.active.load(Acquire) {
        Ok(context)
    } else {
        Err(Status::CONTEXT_IS_DESTROYED)
    }
}

/// The top of the thread's stack, gone or not.
pub fn top() -> Option<&'static Context> {
    CURRENT.get()
}

/// Replaces the top of the thread's stack; none pops it.
pub fn set_current(context: Option<&'static Context>) {
    match context {
        Some(_) => CURRENT.set(context),
        None => {
            pop();
        }
    }
}

/// Pushes a context on the thread's stack.
pub fn push(context: &'static Context) {
    if let Some(below) = CURRENT.replace(Some(context)) {
        BELOW.with_borrow_mut(|stack| stack.push(below));
    }
}

/// Pops the thread's stack.
pub fn pop() -> Option<&'static Context> {
    CURRENT.replace(BELOW.with_borrow_mut(Vec::pop))
}

/// Every context ever made, destroyed ones included.
pub fn all() -> Vec<&'static Context> {
    CONTEXTS
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// The context with this index.
pub fn by_index(index: usize) -> Option<&'static Context> {
    CONTEXTS
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(index)
        .copied()
}

impl Context {
    fn make(device: usize, is_primary: bool) -> &'static Context {
        let mut contexts = CONTEXTS.write().unwrap_or_else(PoisonError::into_inner);
        let context: &'static Context = Box::leak(Box::new(Context {
            magic: MAGIC,
            index: contexts.len(),
            device: AtomicU32::new(device as u32),
            is_primary,
            active: AtomicBool::new(false),
            references: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            id: AtomicU64::new(0),
            state: Mutex::default(),
            small: Default::default(),
            storage: Mutex::default(),
            work: Ends::default(),
        }));
        contexts.push(context);
        context
    }

    /// The primary context of a GPU, inactive. Called once per GPU.
    pub fn primary(device: usize) -> &'static Context {
        Context::make(device, true)
    }

    /// Creates a context.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the GPU has no room for it.
    pub fn create(device: usize, flags: u32) -> Outcome<&'static Context> {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let context = spare.unwrap_or_else(|| Context::make(device, false));
        context.device.store(device as u32, Relaxed);
        context.flags.store(flags, Relaxed);
        match context.start() {
            Ok(()) => Ok(context),
            Err(status) => {
                SPARE
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(context);
                Err(status)
            }
        }
    }

    /// Takes what a context costs.
    fn start(&self) -> Outcome<()> {
        let driver = driver()?;
        let bytes = driver.machine.knobs.context_bytes.load(Relaxed);
        let device = self.device();
        driver.take(device, bytes)?;
        self.state().own = bytes;
        self.id.store(NEXT_ID.fetch_add(1, Relaxed), Relaxed);
        self.references.store(1, Relaxed);
        driver.gpu(device).contexts.fetch_add(1, SeqCst);
        self.active.store(true, Release);
        Ok(())
    }

    /// Retains the primary context, which becomes active with the first retain.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the GPU has no room for it.
    pub fn retain(&self) -> Outcome<()> {
        let _one = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_active() {
            self.references.fetch_add(1, Relaxed);
            return Ok(());
        }
        self.start()
    }

    /// Releases the primary context, which goes with the last release.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` when it is not active.
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

    /// Destroys what the primary context holds, whoever retains it.
    ///
    /// # Errors
    /// Never for an initialised driver.
    pub fn reset(&self) -> Outcome<()> {
        let _one = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_active() { self.end() } else { Ok(()) }
    }

    /// Destroys a context that was created.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED` the second time, `INVALID_CONTEXT` for a primary context.
    pub fn destroy(&'static self) -> Outcome<()> {
        if self.is_primary {
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
        SPARE
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self);
        Ok(())
    }

    /// Gives back all that the context holds.
    fn end(&self) -> Outcome<()> {
        let stored =
            std::mem::take(&mut *self.storage.lock().unwrap_or_else(PoisonError::into_inner));
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
        array::clear(self);
        if driver.gpu(device).contexts.fetch_sub(1, SeqCst) == 1 {
            Pool::clear_all(device);
            vmm::clear_all(device);
            graph::clear_all(device);
        }
        let state = std::mem::take(&mut *self.state());
        let held = state.own + state.local + state.internal + state.execs + state.first_launch;
        driver.give(device, held);
        if state.first_launch > 0 {
            LAUNCHED.store(false, Relaxed);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// PCI index of the context's GPU.
    pub fn device(&self) -> usize {
        self.device.load(Relaxed) as usize
    }

    /// Whether the context lives.
    pub fn is_active(&self) -> bool {
        self.active.load(Acquire)
    }

    /// Whether it is a GPU's primary context.
    pub fn is_primary(&self) -> bool {
        self.is_primary
    }

    /// A number that no other context of the process has or had.
    pub fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    /// The `CUcontext`.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The context of a `CUcontext`, alive or not.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` when it is none.
    pub fn from_handle(handle: usize) -> Outcome<&'static Context> {
        let known = CONTEXTS.read().unwrap_or_else(PoisonError::into_inner);
        if known.iter().any(|context| context.handle() == handle) {
            // SAFETY: the address of a leaked context, as was just looked up.
            let context = unsafe { &*(handle as *const Context) };
            debug_assert_eq!(context.magic, MAGIC);
            return Ok(context);
        }
        Err(Status::INVALID_CONTEXT)
    }

    /// A limit's value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown limit.
    pub fn limit(&self, limit: i32) -> Outcome<u64> {
        let start = match limit {
            0 => STACK,
            1 => 7_864_320,
            2 => 8 << 20,
            3 => 2,
            4 => 2048,
            5 => 128,
            6 => 0,
            _ => return Err(Status::INVALID_VALUE),
        };
        Ok(self.state().limits.get(&limit).copied().unwrap_or(start))
    }

    /// Sets a limit. The stack limit takes its memory at once.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, or `INVALID_VALUE` for an unknown limit.
    pub fn set_limit(&self, limit: i32, value: u64) -> Outcome<()> {
        self.limit(limit)?;
        let mut state = self.state();
        if limit == 0 {
            let launched = state.launched;
            self.resize_local(&mut state, value.max(launched))?;
        }
        state.limits.insert(limit, value);
        Ok(())
    }

    /// Makes room for a kernel that needs so much local memory per thread; it is never given back.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn launch(&self, local: u64) -> Outcome<()> {
        let launched = LAUNCHED.load(Relaxed);
        if local <= STACK && launched {
            return Ok(());
        }
        self.grow_for_launch(local, launched)
    }

    #[cold]
    fn grow_for_launch(&self, local: u64, launched: bool) -> Outcome<()> {
        let mut state = self.state();
        if !launched {
            let driver = driver()?;
            let bytes = driver.machine.knobs.first_launch_bytes.load(Relaxed);
            driver.take(self.device(), bytes)?;
            state.first_launch += bytes;
            LAUNCHED.store(true, Relaxed);
        }
        if local <= STACK {
            return Ok(());
        }
        let limit = state.limits.get(&0).copied().unwrap_or(STACK);
        if local > state.launched.max(limit) {
            self.resize_local(&mut state, local)?;
        }
        state.launched = state.launched.max(local);
        Ok(())
    }

    /// Measured: bytes beyond the start, for every thread that the GPU can hold.
    fn resize_local(&self, state: &mut State, per_thread: u64) -> Outcome<()> {
        let driver = driver()?;
        let threads = device::multiprocessors(driver.machine) * THREADS_PER_MULTIPROCESSOR;
        let bytes = (per_thread.max(STACK) - STACK)
            .checked_mul(threads)
            .ok_or(Status::INVALID_VALUE)?
            .next_multiple_of(BLOCK);
        if bytes > state.local {
            driver.take(self.device(), bytes - state.local)?;
        } else {
            driver.give(self.device(), state.local - bytes);
        }
        state.local = bytes;
        Ok(())
    }

    /// Takes what one more stream costs; it is not given back before the context goes.
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

    /// Takes what the context's first executable graph costs (measured); it is not given back before the context goes.
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
