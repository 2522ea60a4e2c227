//! Which kernels and graphs have been launched before.
//!
//! The driver loads code lazily: the first launch of a kernel may take memory (92 MiB for PyTorch's very first one), later ones do not.
//! A launch therefore looks its function up, first in a table of those seen lately.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::abi::{Context, Opaque};
use crate::account::maps::{Map, Set};

/// Handles are aligned: the number beside a kernel's says that it needs no local memory.
const NEEDS_NONE: Opaque = 2;

/// The number beside a handle that says that its code is loaded; the handle itself says that it was
/// launched.
pub const fn loaded(handle: Opaque) -> Opaque {
    handle | 1
}

/// As many places has the table of what was lately seen launched: a training step of PyTorch launches some seventy kernels.
const PLACES: usize = 4096;

/// What was lately seen launched, each handle in its place; the exports of launches look here by themselves (`hook::pass`). Written under the lock of
/// [`Launched::functions`], so that nothing is remembered that another thread has just forgotten.
pub static RECENT: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];

/// A handle and itself shifted by `FOLD`, times `SPREAD`, shifted by `DOWN`: its place.
pub const FOLD: u32 = 3;
pub const SPREAD: usize = 0x9e37_79b9_7f4a_7c15;
pub const DOWN: u32 = usize::BITS - PLACES.trailing_zeros();

#[inline]
fn place(function: Opaque) -> Option<&'static AtomicUsize> {
    RECENT.get(((function >> FOLD) ^ function).wrapping_mul(SPREAD) >> DOWN)
}

/// Whether `function` is known to have been launched: the whole cost of nearly every launch.
#[inline]
pub fn is_recent(function: Opaque) -> bool {
    function != 0 && place(function).is_some_and(|at| at.load(Ordering::Relaxed) == function)
}

/// Whether this thread knows that the code of `handle` is loaded wherever it is needed: the whole cost of nearly every call that asks about it.
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

/// A `CUkernel`, or the odd number beside the handle of something that is loaded in every context by itself.
#[derive(Default)]
struct Kernel {
    library: Opaque,
    /// Where it has been launched, or loaded.
    contexts: Vec<Context>,
}

/// The functions that this process has launched.
///
/// A `CUfunction` belongs to one context, a `CUkernel` is launched in any: it counts as launched when it was in all of them.
pub struct Launched {
    functions: RwLock<Set<Opaque>>,
    kernels: RwLock<Map<Opaque, Kernel>>,
    /// Where something has been launched that needs so much local memory per thread that its context may have lost it since.
    large: RwLock<Map<(Opaque, Context), u64>>,
    /// Kernels that need local memory: bytes of every thread. Those that need none are among the functions, by [`NEEDS_NONE`].
    needs: RwLock<Map<Opaque, u64>>,
    /// Something has been launched. What is only known to be loaded has not.
    begun: AtomicBool,
    /// Held through a launch on several devices, which may wait for others in each of their contexts.
    pub on_many: Mutex<()>,
}

impl Default for Launched {
    fn default() -> Self {
        // A forked child's account begins with what its parent remembered.
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
    /// Whether `function` has been launched before.
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

    /// Whether the code of `handle` is known to be loaded.
    pub fn is_loaded(&self, handle: Opaque) -> bool {
        self.contains(loaded(handle)) || self.contains(handle)
    }

    /// The code of `function`, a `CUfunction`, is loaded.
    pub fn note_loaded(&self, function: Opaque) {
        if !self.is_loaded(function) {
            self.insert(loaded(function));
        }
    }

    /// `function` has been launched.
    pub fn insert(&self, function: Opaque) {
        let mut functions = self.functions.write();
        functions.insert(function);
        remember(function);
    }

    /// `kernel` is a `CUkernel` of this library (0: of one unknown).
    pub fn note_kernel(&self, kernel: Opaque, library: Opaque) {
        if !self.is_kernel(kernel) {
            self.kernels.write().entry(kernel).or_default().library = library;
        }
    }

    /// The library that a `CUkernel` has come from; `None` where nobody has seen it being got.
    pub fn library_of(&self, kernel: Opaque) -> Option<Opaque> {
        let kernels = self.kernels.read();
        let known = kernels.get(&kernel)?;
        Some(known.library).filter(|library| *library != 0)
    }

    /// Whether `handle` is known to be a `CUkernel`.
    pub fn is_kernel(&self, handle: Opaque) -> bool {
        self.kernels.read().contains_key(&handle)
    }

    /// Whether `handle` is a kernel that has been launched in this context.
    pub fn contains_in(&self, handle: Opaque, context: Context) -> bool {
        let kernels = self.kernels.read();
        kernels
            .get(&handle)
            .is_some_and(|kernel| kernel.contexts.contains(&context))
    }

    /// `function` has been launched in one of so many contexts.
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

    /// `function` has been launched in this context and needs so many bytes of local memory per thread: it counts as launched only while there
    /// are so many.
    pub fn insert_large(&self, function: Opaque, context: Context, per_thread: u64) {
        self.large.write().insert((function, context), per_thread);
    }

    /// What was said of it in [`Launched::insert_large`].
    pub fn need(&self, function: Opaque, context: Context) -> Option<u64> {
        self.large.read().get(&(function, context)).copied()
    }

    /// Bytes of local memory that every thread of this kernel needs; `None` where it has not been asked.
    pub fn need_of(&self, kernel: Opaque) -> Option<u64> {
        if self.contains(kernel | NEEDS_NONE) {
            return Some(0);
        }
        self.needs.read().get(&kernel).copied()
    }

    /// What [`Launched::need_of`] says from here on.
    pub fn learn_need(&self, kernel: Opaque, per_thread: u64) {
        match per_thread {
            0 => self.insert(kernel | NEEDS_NONE),
            _ => drop(self.needs.write().insert(kernel, per_thread)),
        }
    }

    /// There is a new context, in which no kernel has been launched, or loaded.
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

    /// A launch has been made.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Whether one has.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// One handle was destroyed.
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

    /// Handles may come back as other functions, or need what they needed before.
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

    /// A library, or a module, was unloaded, and with it perhaps kernels of an unknown one.
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

    /// What is remembered is the process's: one test at a time.
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
        assert!(is_recent(499 * 64), "nothing has come after it");
        launched.remove(64);
        assert!(!launched.contains(64));
        assert!((2..500).all(|at| launched.contains(at * 64)));
        launched.forget();
        assert!(!(1..500).any(|at| launched.contains(at * 64)));
    }

    #[test]
    fn a_kernel_counts_once_it_was_launched_in_every_context() {
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
    fn what_needs_much_is_never_known_without_its_context() {
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
    fn what_is_loaded_has_not_been_launched() {
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
    fn a_new_account_knows_nothing() {
        let _alone = ALONE.lock();
        let parent = Launched::default();
        parent.insert(64);
        assert!(parent.contains(64));
        let child = Launched::default();
        assert!(!is_recent(64));
        assert!(!child.contains(64));
    }

    #[test]
    fn no_handle_is_never_known() {
        let _alone = ALONE.lock();
        let launched = Launched::default();
        launched.insert(64);
        assert!(!launched.contains(128) && !launched.contains(0));
    }
}
