//! The kernels and graphs that this process has launched before.
//!
//! The driver loads code lazily, so the first launch of a kernel may take memory. The hook
//! recognises a first launch in two steps: by a table of recent launches, and then by the set of
//! all launched functions.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::abi::{Context, Opaque};
use crate::account::maps::{Map, Set};

/// A bit that marks an entry as "the kernel needs no local memory". The bit is 0 in every handle.
const NEEDS_NONE: Opaque = 2;

/// Returns an entry that says "the code of this handle is loaded". The plain handle means "this
/// function has been launched".
pub const fn loaded(handle: Opaque) -> Opaque {
    handle | 1
}

/// Returns the handle of an entry.
const fn plain(entry: Opaque) -> Opaque {
    entry & !(1 | NEEDS_NONE)
}

/// The number of entries in the table of recently launched functions. A training step of PyTorch
/// launches some seventy kernels.
const PLACES: usize = 4096;

/// The functions that were launched recently, each at the index that its handle hashes to.
///
/// A thread writes only under the lock of [`Launched::functions`], so that a removed function is
/// not written back.
pub static RECENT: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];

/// The constants of the hash that gives a handle's index in [`RECENT`]. `FOLD` and `DOWN` shift
/// right; `SPREAD` multiplies.
pub const FOLD: u32 = 3;
pub const SPREAD: usize = 0x9e37_79b9_7f4a_7c15;
pub const DOWN: u32 = usize::BITS - PLACES.trailing_zeros();

#[inline]
fn place(function: Opaque) -> Option<&'static AtomicUsize> {
    RECENT.get(((function >> FOLD) ^ function).wrapping_mul(SPREAD) >> DOWN)
}

/// Returns whether `function` is in the table of recently launched functions. Nearly every launch
/// needs only this look-up.
#[inline]
pub fn is_recent(function: Opaque) -> bool {
    function != 0 && place(function).is_some_and(|at| at.load(Ordering::Relaxed) == function)
}

/// Returns whether the table of recent launches says that the code of `handle` is loaded in every
/// context.
#[inline]
pub fn is_recently_loaded(handle: Opaque) -> bool {
    is_recent(loaded(handle))
}

fn remember(function: Opaque) {
    if let Some(place) = place(function) {
        place.store(function, Ordering::Relaxed);
    }
}

/// Removes all but these functions from the table of recent launches.
fn sweep(functions: &Set<Opaque>) {
    for place in &RECENT {
        let function = place.load(Ordering::Relaxed);
        if function != 0 && !functions.contains(&function) {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// The record of a `CUkernel`. A record under an odd number (see [`loaded`]) says in which contexts
/// the kernel's code is loaded.
#[derive(Default)]
struct Kernel {
    library: Opaque,
    /// The contexts in which the kernel has been launched or its code is loaded.
    contexts: Vec<Context>,
}

/// The functions that this process has launched or loaded. A `CUkernel` counts as launched after a
/// launch in every context.
pub struct Launched {
    functions: RwLock<Set<Opaque>>,
    kernels: RwLock<Map<Opaque, Kernel>>,
    /// The local memory per thread, in bytes, of launched kernels and graphs. Only needs above a
    /// new context's local memory are listed.
    large: RwLock<Map<(Opaque, Context), u64>>,
    /// The bytes of local memory per thread that kernels need. A kernel that needs none has the bit
    /// [`NEEDS_NONE`] in `functions` instead.
    needs: RwLock<Map<Opaque, u64>>,
    /// The largest need that was ever learnt, in bytes of local memory per thread.
    largest: AtomicU64,
    /// Whether a graph may have a kernel whose need is unknown.
    unasked: AtomicBool,
    /// Whether this process has launched any kernel. Loading code does not count as a launch.
    begun: AtomicBool,
    /// A lock that a thread holds during a launch on several devices, which may wait for other
    /// launches on each device.
    pub on_many: Mutex<()>,
}

impl Default for Launched {
    fn default() -> Self {
        // The table is static, so a forked child inherits entries. The child removes them when it
        // makes its own account.
        let functions = Set::default();
        sweep(&functions);
        Launched {
            functions: RwLock::new(functions),
            kernels: RwLock::default(),
            large: RwLock::default(),
            needs: RwLock::default(),
            largest: AtomicU64::new(0),
            unasked: AtomicBool::new(false),
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

    /// Records that `kernel` is a `CUkernel` of the library `library` (0 for an unknown library).
    pub fn note_kernel(&self, kernel: Opaque, library: Opaque) {
        if !self.is_kernel(kernel) {
            self.kernels.write().entry(kernel).or_default().library = library;
        }
    }

    /// Returns the library of a `CUkernel`; `None` if no hook has seen how the program got the
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

    /// Records that `function` has been launched in `context`. A `CUkernel` counts as launched
    /// after its launch in all `contexts`.
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

    /// Records a launch that needs `per_thread` bytes of local memory per thread. The record is
    /// valid while the context has these bytes.
    pub fn insert_large(&self, function: Opaque, context: Context, per_thread: u64) {
        self.large.write().insert((function, context), per_thread);
    }

    /// Returns the local memory per thread that [`Launched::insert_large`] has recorded.
    pub fn need(&self, function: Opaque, context: Context) -> Option<u64> {
        self.large.read().get(&(function, context)).copied()
    }

    /// Returns the bytes of local memory that every thread of `kernel` needs; `None` if the need is
    /// unknown.
    pub fn need_of(&self, kernel: Opaque) -> Option<u64> {
        if self.contains(kernel | NEEDS_NONE) {
            return Some(0);
        }
        self.needs.read().get(&kernel).copied()
    }

    /// Records the bytes of local memory that every thread of `kernel` needs.
    pub fn learn_need(&self, kernel: Opaque, per_thread: u64) {
        self.largest.fetch_max(per_thread, Ordering::Relaxed);
        match per_thread {
            0 => self.insert(kernel | NEEDS_NONE),
            _ => drop(self.needs.write().insert(kernel, per_thread)),
        }
    }

    /// Records that a graph may have a kernel whose need is unknown. Stays so for the life of the
    /// process, because nothing tells when the last such graph has ended.
    pub fn note_unasked(&self) {
        self.unasked.store(true, Ordering::Relaxed);
    }

    /// Returns a need that no kernel of any graph exceeds, in bytes of local memory per thread;
    /// `None` if a graph may have a kernel whose need is unknown.
    pub fn largest_need(&self) -> Option<u64> {
        let largest = self.largest.load(Ordering::Relaxed);
        (!self.unasked.load(Ordering::Relaxed)).then_some(largest)
    }

    /// Forgets the launches, code and needs of all `CUkernel`s. Called for a new context, in which
    /// no `CUkernel` is loaded.
    pub fn forget_kernels(&self) {
        let kernels = self.kernels.read();
        let is_kernel = |handle: &Opaque| {
            kernels.contains_key(handle) || kernels.contains_key(&(handle & !NEEDS_NONE))
        };
        let (mut needs, mut functions) = (self.needs.write(), self.functions.write());
        let known = needs.len() + functions.len();
        needs.retain(|kernel, _| !is_kernel(kernel));
        functions.retain(|function| !is_kernel(function));
        sweep(&functions);
        if needs.len() + functions.len() < known {
            self.note_unasked();
        }
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

    /// Forgets all records of the handles for which `is_known` returns false: their code is gone,
    /// and the driver may reuse the handles.
    pub fn keep(&self, is_known: impl Fn(Opaque) -> bool) {
        let stays = |record: &Opaque| is_known(plain(*record));
        self.kernels.write().retain(|kernel, _| stays(kernel));
        self.large
            .write()
            .retain(|(function, _), _| stays(function));
        self.needs.write().retain(|kernel, _| stays(kernel));
        let mut functions = self.functions.write();
        functions.retain(stays);
        sweep(&functions);
    }

    /// Forgets the launches in a context, and those of the handles for which `is_of` returns true:
    /// the context ends. Still remembers which handles are `CUkernel`s.
    pub fn forget_context(&self, context: Context, is_of: impl Fn(Opaque) -> bool) {
        for kernel in self.kernels.write().values_mut() {
            kernel.contexts.retain(|each| *each != context);
        }
        let goes = |record: &Opaque| is_of(plain(*record));
        let is_there = |(function, each): &(Opaque, Context)| *each != context && !goes(function);
        self.large.write().retain(|large, _| is_there(large));
        self.begun.store(false, Ordering::Relaxed);
        let mut functions = self.functions.write();
        functions.retain(|function| !goes(function));
        sweep(&functions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock for tests: the table of recent launches belongs to the whole process.
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
        assert!(is_recent(499 * 64), "the last function is in the table");
        launched.remove(64);
        assert!(!launched.contains(64));
        assert!((2..500).all(|at| launched.contains(at * 64)));
        launched.keep(|handle| handle <= 250 * 64);
        assert!((1..500).all(|at| launched.contains(at * 64) == (2..=250).contains(&at)));
        assert!(is_recent(250 * 64) && !is_recent(251 * 64));
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
        assert!(launched.contains(128), "a CUfunction has just one context");
        assert!(!launched.contains(64));
        assert!(launched.contains_in(64, 1) && !launched.contains_in(64, 2));
        launched.insert_in(64, 2, 2);
        assert!(launched.contains(64));
        launched.forget_kernels();
        assert!(!launched.contains(64) && launched.contains(128));
        assert!(launched.contains_in(64, 1) && launched.contains_in(64, 2));
        launched.insert_in(64, 2, 2);
        launched.forget_context(1, |handle| handle == 128);
        assert!(launched.is_kernel(64) && !launched.contains_in(64, 1));
        assert!(
            launched.contains_in(64, 2) && launched.contains(64),
            "in every other context"
        );
        assert!(!launched.contains(128), "its context has ended");
        launched.keep(|handle| handle == 64);
        assert!(launched.is_kernel(64) && !launched.is_kernel(192));
        launched.keep(|_| false);
        assert!(!launched.is_kernel(64) && !launched.contains(64));
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
        launched.insert_large(64, 2, 4096);
        launched.insert_large(192, 2, 4096);
        launched.forget_context(1, |handle| handle == 192);
        let needs = [(64, 1), (64, 2), (192, 2)].map(|(of, context)| launched.need(of, context));
        assert_eq!(needs, [None, Some(4096), None]);
        launched.keep(|_| false);
        assert_eq!(launched.need(64, 2), None);
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
        launched.learn_need(64, 0);
        launched.keep(|handle| handle != 128);
        assert_eq!(needs(&launched), [Some(0), None, None]);
    }

    #[test]
    fn the_largest_need_is_known_while_every_kernel_in_a_graph_was_asked() {
        let _alone = ALONE.lock();
        let launched = Launched::default();
        launched.note_kernel(64, 1);
        launched.forget_kernels();
        assert_eq!(launched.largest_need(), Some(0));
        launched.learn_need(128, 4096);
        launched.learn_need(192, 0);
        launched.forget_kernels();
        assert_eq!(
            launched.largest_need(),
            Some(4096),
            "no kernel of a library"
        );
        for need in [0, 16] {
            let launched = Launched::default();
            launched.note_kernel(64, 1);
            launched.learn_need(64, need);
            launched.forget_kernels();
            assert_eq!(launched.largest_need(), None);
        }
        launched.note_unasked();
        assert_eq!(launched.largest_need(), None);
    }

    #[test]
    fn loaded_code_has_not_been_launched() {
        let _alone = ALONE.lock();
        let launched = Launched::default();
        launched.note_loaded(64);
        launched.learn_need(64, 0);
        assert!(!launched.has_begun());
        launched.begin();
        launched.keep(|_| false);
        assert!(launched.has_begun());
        launched.forget_context(1, |_| false);
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
