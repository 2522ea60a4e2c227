//! The kernels and graphs that this process has launched before.
//!
//! The driver loads code lazily. So the first launch of a kernel may take memory (92 MiB for the
//! very first launch of PyTorch), and later launches take none. To know which launches are first
//! ones, the hook looks up the launched function: first in a table of recently launched functions,
//! then in the set of all launched functions.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::abi::{Context, Opaque};
use crate::account::maps::{Map, Set};

/// A kernel's handle with this bit set is a number that stands for "this kernel needs no local
/// memory". Handles are aligned, so the bit is 0 in every handle.
const NEEDS_NONE: Opaque = 2;

/// Returns the number that stands for "the code of this handle is loaded". The handle itself stands
/// for "this function has been launched".
pub const fn loaded(handle: Opaque) -> Opaque {
    handle | 1
}

/// The number of entries in the table of recently launched functions. A training step of PyTorch
/// launches some seventy kernels.
const PLACES: usize = 4096;

/// The functions that were launched recently, each at the index that its handle hashes to. The
/// exported launch functions read this table without calling a handler (`hook::pass`). Threads
/// write the table only under the lock of [`Launched::functions`], so that no thread writes a
/// function into the table that another thread has just removed.
pub static RECENT: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];

/// The constants of the hash that gives a handle's index in [`RECENT`]. The hash shifts the handle
/// right by `FOLD`, XORs the result with the handle, multiplies by `SPREAD`, and shifts right by
/// `DOWN`.
pub const FOLD: u32 = 3;
pub const SPREAD: usize = 0x9e37_79b9_7f4a_7c15;
pub const DOWN: u32 = usize::BITS - PLACES.trailing_zeros();

#[inline]
fn place(function: Opaque) -> Option<&'static AtomicUsize> {
    RECENT.get(((function >> FOLD) ^ function).wrapping_mul(SPREAD) >> DOWN)
}

/// Returns whether `function` is in the table of recently launched functions. For nearly every
/// launch no other look-up is needed.
#[inline]
pub fn is_recent(function: Opaque) -> bool {
    function != 0 && place(function).is_some_and(|at| at.load(Ordering::Relaxed) == function)
}

/// Returns whether the table of recently launched functions says that the code of `handle` is
/// loaded in every context that needs it. For nearly every call of the program that asks about a
/// function, no other look-up is needed.
#[inline]
pub fn is_recently_loaded(handle: Opaque) -> bool {
    is_recent(loaded(handle))
}

fn remember(function: Opaque) {
    if let Some(place) = place(function) {
        place.store(function, Ordering::Relaxed);
    }
}

fn forget_all() {
    for place in &RECENT {
        place.store(0, Ordering::Relaxed);
    }
}

/// The record of a `CUkernel`. A record under an odd number (see [`loaded`]) stands for code that
/// the driver loads into each context separately.
#[derive(Default)]
struct Kernel {
    library: Opaque,
    /// The contexts in which the kernel has been launched, or in which its code is loaded.
    contexts: Vec<Context>,
}

/// The functions that this process has launched or whose code is loaded.
///
/// A `CUfunction` belongs to one context. A `CUkernel` can be launched in any context, and counts
/// as launched once it has been launched in all contexts of the process.
pub struct Launched {
    functions: RwLock<Set<Opaque>>,
    kernels: RwLock<Map<Opaque, Kernel>>,
    /// The bytes of local memory per thread that launched kernels and graphs need, by the context
    /// in which they were launched. Only kernels and graphs that need more than a new context has
    /// are listed. They are kept because the context may have lost that local memory since the
    /// launch.
    large: RwLock<Map<(Opaque, Context), u64>>,
    /// The bytes of local memory per thread that kernels need. Kernels that need no local memory
    /// are in `functions` instead, with the mark [`NEEDS_NONE`].
    needs: RwLock<Map<Opaque, u64>>,
    /// Whether this process has launched any kernel. Functions whose code is only known to be
    /// loaded do not count.
    begun: AtomicBool,
    /// Held during a launch on several devices. Such a launch may have to wait, in the context of
    /// each device, for other launches.
    pub on_many: Mutex<()>,
}

impl Default for Launched {
    fn default() -> Self {
        // The table is static, so a forked child inherits the entries of its parent. The child's
        // account removes them here.
        forget_all();
        Launched {
            functions: RwLock::default(),
            kernels: RwLock::default(),
            large: RwLock::default(),
            needs: RwLock::default(),
            begun: AtomicBool::new(false),
            on_many: Mutex::new(()),
        }
    }
}

impl Launched {
    /// Returns whether `function` has been launched before.
    pub fn contains(&self, function: Opaque) -> bool {
        if is_recent(function) {
            return true;
        }
        let functions = self.functions.read();
        let known = functions.contains(&function);
        if known {
            remember(function);
        }
        known
    }

    /// Returns whether the code of `handle` is known to be loaded.
    pub fn is_loaded(&self, handle: Opaque) -> bool {
        self.contains(loaded(handle)) || self.contains(handle)
    }

    /// Records that the code of `function`, a `CUfunction`, is loaded.
    pub fn note_loaded(&self, function: Opaque) {
        if !self.is_loaded(function) {
            self.insert(loaded(function));
        }
    }

    /// Records that `function` has been launched.
    pub fn insert(&self, function: Opaque) {
        let mut functions = self.functions.write();
        functions.insert(function);
        remember(function);
    }

    /// Records that `kernel` is a `CUkernel` of the library `library`; 0 stands for an unknown
    /// library.
    pub fn note_kernel(&self, kernel: Opaque, library: Opaque) {
        if !self.is_kernel(kernel) {
            self.kernels.write().entry(kernel).or_default().library = library;
        }
    }

    /// Returns the library of a `CUkernel`; `None` where no hook has seen how the program got the
    /// kernel.
    pub fn library_of(&self, kernel: Opaque) -> Option<Opaque> {
        let kernels = self.kernels.read();
        let known = kernels.get(&kernel)?;
        Some(known.library).filter(|library| *library != 0)
    }

    /// Returns whether `handle` is known to be a `CUkernel`.
    pub fn is_kernel(&self, handle: Opaque) -> bool {
        self.kernels.read().contains_key(&handle)
    }

    /// Returns whether `handle` is a `CUkernel` that has been launched in `context`.
    pub fn contains_in(&self, handle: Opaque, context: Context) -> bool {
        let kernels = self.kernels.read();
        kernels
            .get(&handle)
            .is_some_and(|kernel| kernel.contexts.contains(&context))
    }

    /// Records that `function` has been launched in `context`. `contexts` is the number of contexts
    /// of the process: a `CUkernel` counts as launched once it has been launched in all of them.
    pub fn insert_in(&self, function: Opaque, context: Context, contexts: usize) {
        if let Some(kernel) = self.kernels.write().get_mut(&function) {
            if !kernel.contexts.contains(&context) {
                kernel.contexts.push(context);
            }
            if kernel.contexts.len() < contexts {
                return;
            }
        }
        self.insert(function);
    }

    /// Records that `function` has been launched in `context` and needs `per_thread` bytes of local
    /// memory per thread. The function counts as launched only while the context has that much
    /// local memory.
    pub fn insert_large(&self, function: Opaque, context: Context, per_thread: u64) {
        self.large.write().insert((function, context), per_thread);
    }

    /// Returns the local memory per thread that [`Launched::insert_large`] has recorded.
    pub fn need(&self, function: Opaque, context: Context) -> Option<u64> {
        self.large.read().get(&(function, context)).copied()
    }

    /// Returns the bytes of local memory that every thread of `kernel` needs; `None` where the
    /// driver has not been asked yet.
    pub fn need_of(&self, kernel: Opaque) -> Option<u64> {
        if self.contains(kernel | NEEDS_NONE) {
            return Some(0);
        }
        self.needs.read().get(&kernel).copied()
    }

    /// Records the number of bytes that [`Launched::need_of`] returns for `kernel` from now on.
    pub fn learn_need(&self, kernel: Opaque, per_thread: u64) {
        match per_thread {
            0 => self.insert(kernel | NEEDS_NONE),
            _ => drop(self.needs.write().insert(kernel, per_thread)),
        }
    }

    /// Forgets which `CUkernel`s count as launched or loaded, and forgets their needs. Called when
    /// a context is made, because no `CUkernel` has been launched or loaded in the new context.
    pub fn forget_kernels(&self) {
        let kernels = self.kernels.read();
        let is_kernel = |handle: &Opaque| {
            kernels.contains_key(handle) || kernels.contains_key(&(handle & !NEEDS_NONE))
        };
        self.needs.write().retain(|kernel, _| !is_kernel(kernel));
        let mut functions = self.functions.write();
        functions.retain(|function| !is_kernel(function));
        forget_all();
    }

    /// Records that this process has launched a kernel.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Returns whether this process has launched a kernel.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Removes the handle of a destroyed function or graph.
    pub fn remove(&self, function: Opaque) {
        self.large
            .write()
            .retain(|(large, _), _| *large != function);
        let mut functions = self.functions.write();
        if functions.remove(&function)
            && let Some(place) = place(function)
        {
            let _ = place.compare_exchange(function, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Forgets all launches and needs, because the driver may hand out the same handles again for
    /// other functions with other needs. Remembers which handles are `CUkernel`s.
    pub fn forget(&self) {
        for kernel in self.kernels.write().values_mut() {
            kernel.contexts.clear();
        }
        self.large.write().clear();
        self.needs.write().clear();
        self.begun.store(false, Ordering::Relaxed);
        let mut functions = self.functions.write();
        functions.clear();
        forget_all();
    }

    /// Forgets the `CUkernel`s of a library or module that was unloaded. Forgets the `CUkernel`s of
    /// unknown libraries too, because they may belong to the unloaded one.
    pub fn forget_library(&self, library: Opaque) {
        self.kernels
            .write()
            .retain(|_, kernel| ![0, library].contains(&kernel.library));
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Held by each test of the table of recent launches, because that table belongs to the whole
    /// process.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn remembers_until_code_is_unloaded() {
        let _alone = ALONE.lock();
        let launched = Launched::default();
        for function in (1..500).map(|at| at * 64) {
            assert!(!launched.contains(function));
            launched.insert(function);
        }
        assert!((1..500).all(|at| launched.contains(at * 64)));
        assert!(is_recent(499 * 64), "it was entered last");
        launched.remove(64);
        assert!(!launched.contains(64));
        assert!((2..500).all(|at| launched.contains(at * 64)));
        launched.forget();
        assert!(!(1..500).any(|at| launched.contains(at * 64)));
    }

    #[test]
    fn a_kernel_counts_as_launched_once_it_was_in_every_context() {
        let _alone = ALONE.lock();
        let launched = Launched::default();
        launched.note_kernel(64, 1);
        launched.note_kernel(192, 0);
        assert_eq!(
            [64, 128, 192].map(|kernel| launched.library_of(kernel)),
            [Some(1), None, None]
        );
        launched.insert_in(64, 1, 2);
        launched.insert_in(128, 1, 2);
        assert!(launched.contains(128), "a function has one context");
        assert!(!launched.contains(64));
        assert!(launched.contains_in(64, 1) && !launched.contains_in(64, 2));
        launched.insert_in(64, 2, 2);
        assert!(launched.contains(64));
        launched.forget_kernels();
        assert!(!launched.contains(64) && launched.contains(128));
        assert!(launched.contains_in(64, 1) && launched.contains_in(64, 2));
        launched.forget();
        assert!(launched.is_kernel(64) && !launched.contains_in(64, 1));
        launched.forget_library(2);
        assert!(launched.is_kernel(64));
        launched.forget_library(1);
        assert!(!launched.is_kernel(64));
    }

    #[test]
    fn large_needs_are_known_by_context() {
        let _alone = ALONE.lock();
        let launched = Launched::default();
        launched.insert_large(64, 1, 4096);
        launched.insert_large(128, 1, 8192);
        assert!(!launched.contains(64));
        launched.remove(128);
        assert_eq!(launched.need(128, 1), None);
        assert_eq!(
            [launched.need(64, 1), launched.need(64, 2)],
            [Some(4096), None]
        );
        launched.forget();
        assert_eq!(launched.need(64, 1), None);
    }

    #[test]
    fn needs_are_known_until_code_is_unloaded() {
        let _alone = ALONE.lock();
        let launched = Launched::default();
        launched.learn_need(64, 0);
        launched.learn_need(128, 4096);
        assert!(!launched.contains(64), "asked, not launched");
        let needs = |launched: &Launched| [64, 128, 192].map(|kernel| launched.need_of(kernel));
        assert_eq!(needs(&launched), [Some(0), Some(4096), None]);
        launched.note_kernel(64, 1);
        launched.forget_kernels();
        assert_eq!(needs(&launched), [None, Some(4096), None]);
        launched.forget();
        assert_eq!(needs(&launched), [None; 3]);
    }

    #[test]
    fn loaded_code_has_not_been_launched() {
        let _alone = ALONE.lock();
        let launched = Launched::default();
        launched.note_loaded(64);
        launched.learn_need(64, 0);
        assert!(!launched.has_begun());
        launched.begin();
        assert!(launched.has_begun());
        launched.forget();
        assert!(!launched.has_begun());
    }

    #[test]
    fn a_new_account_has_no_launches() {
        let _alone = ALONE.lock();
        let parent = Launched::default();
        parent.insert(64);
        assert!(parent.contains(64));
        let child = Launched::default();
        assert!(!is_recent(64));
        assert!(!child.contains(64));
    }

    #[test]
    fn unknown_and_null_handles_have_not_been_launched() {
        let _alone = ALONE.lock();
        let launched = Launched::default();
        launched.insert(64);
        assert!(!launched.contains(128) && !launched.contains(0));
    }
}
