//! The state of the simulated driver in one process: its initialisation, and the physical memory
//! that the process takes and frees.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::context::Context;
use crate::host::{self, HOST};
use crate::machine::{MAX_DEVICES, Machine};
use crate::pool::Pool;
use crate::process::Process;
use crate::{Outcome, Status, device};

const READY: u32 = 1;
const FORKED: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(0);

/// The driver's objects for one GPU in this process.
pub struct Gpu {
    /// The GPU's primary context, the same object for the life of the process.
    pub primary: &'static Context,
    /// The default pool.
    pub default_pool: &'static Pool,
    /// The memory pool that `cuMemAllocAsync` uses on this GPU.
    current_pool: Mutex<&'static Pool>,
}

/// The initialised driver.
pub struct Driver {
    /// The simulated machine whose GPUs the driver uses.
    pub machine: &'static Machine,
    process: &'static Process,
    gpus: [OnceLock<Gpu>; MAX_DEVICES],
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

extern "C" fn forked() {
    let _ = STATE.compare_exchange(READY, FORKED, SeqCst, SeqCst);
}

/// Initialises the simulated driver in this process.
///
/// # Errors
/// `NOT_INITIALIZED` in a forked child of an initialised process, `NO_DEVICE`.
pub fn init() -> Outcome<()> {
    if STATE.load(Acquire) == FORKED {
        return Err(Status::NOT_INITIALIZED);
    }
    let machine = Machine::get().map_err(|error| {
        eprintln!("gpulimit-sim: {error}");
        Status::UNKNOWN
    })?;
    if device::visible(machine).is_empty() {
        return Err(Status::NO_DEVICE);
    }
    if DRIVER.get().is_none() {
        let process = Process::own().map_err(|error| {
            eprintln!("gpulimit-sim: {error}");
            Status::UNKNOWN
        })?;
        DRIVER.get_or_init(|| {
            // SAFETY: the handler only touches an atomic.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            Driver {
                machine,
                process,
                gpus: [const { OnceLock::new() }; MAX_DEVICES],
            }
        });
        STATE.store(READY, Release);
    }
    Ok(())
}

/// Returns the simulated driver of this process.
///
/// # Errors
/// `NOT_INITIALIZED` before the initialisation, and in a forked child.
pub fn driver() -> Outcome<&'static Driver> {
    if STATE.load(Acquire) != READY {
        return Err(Status::NOT_INITIALIZED);
    }
    DRIVER.get().ok_or(Status::NOT_INITIALIZED)
}

impl Driver {
    /// Returns the driver's objects for the GPU with this PCI index.
    pub fn gpu(&self, index: usize) -> &Gpu {
        self.gpus[index].get_or_init(|| {
            let default_pool = Pool::make(Some(index));
            Gpu {
                primary: Context::primary(index),
                default_pool,
                current_pool: Mutex::new(default_pool),
            }
        })
    }

    /// Returns the number of live contexts on a GPU.
    pub fn contexts(&self, device: usize) -> &AtomicU32 {
        self.process.contexts(device)
    }

    /// Takes physical memory of a GPU. Returns false when the GPU has too little left. Does not
    /// trim memory pools.
    pub fn take_bare(&self, device: usize, bytes: u64) -> bool {
        bytes == 0 || self.process.take(device, bytes)
    }

    /// Takes physical memory of a GPU. Trims the memory pools if the GPU has too little left.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn take(&self, device: usize, bytes: u64) -> Outcome<()> {
        if self.take_bare(device, bytes) {
            return Ok(());
        }
        Pool::trim_all(device);
        if self.take_bare(device, bytes) {
            Ok(())
        } else {
            Err(Status::OUT_OF_MEMORY)
        }
    }

    /// Returns the owner number, by which the simulated machine identifies this process.
    pub fn owner(&self) -> u64 {
        self.process.owner()
    }

    /// Frees physical memory.
    pub fn give(&self, device: usize, bytes: u64) {
        if bytes > 0 {
            self.process.give(device, bytes);
        }
    }

    /// Takes memory of a host that the GPUs share; 0 bytes, or a host of its own, nothing.
    pub fn take_host(&self, bytes: u64) {
        if bytes > 0 && host::is_shared(self.machine) {
            self.process.take(HOST, bytes);
        }
    }

    /// Frees memory of [`Driver::take_host`].
    pub fn give_host(&self, bytes: u64) {
        if bytes > 0 && host::is_shared(self.machine) {
            self.process.give(HOST, bytes);
        }
    }

    /// Returns the pool that `cuMemAllocAsync` uses on the GPU. The caller may replace this pool
    /// through the returned lock.
    pub fn current_pool(&self, device: usize) -> MutexGuard<'_, &'static Pool> {
        let pool = &self.gpu(device).current_pool;
        pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
