//! The atomic word of models: an ordinary memory access until a model checker controls the word.
//!
//! A model *watches* the words that more than one process may change. Each operation on a watched
//! word is a step. Other words are written once, used by one process, or only displayed.

use super::super::atomic::Ordering;
use super::explorer::{self, Effect};
use super::fault::{self, Fault};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic;

type Plain = atomic::AtomicU64;
type Weak = loom::sync::atomic::AtomicU64;

/// How operations on the watched words of a model are executed.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// Operations act directly on the word, without a model checker.
    Plain,
    /// The explorer schedules each operation on a watched word as a step.
    Step,
    /// Each operation on a watched word acts on a word of loom, which simulates weak memory.
    Weak,
}

/// The watched words, sorted by address.
#[derive(Default)]
struct Watched {
    addresses: Vec<usize>,
    names: Vec<Name>,
    weak: Vec<Arc<Weak>>,
}

/// The meaning of a watched word, with the ledger (`book`) and the slot that it belongs to.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Name {
    Charged {
        book: usize,
        slot: usize,
    },
    Pid {
        book: usize,
        slot: usize,
    },
    DeadSince {
        book: usize,
        slot: usize,
    },
    HighWater {
        book: usize,
    },
    Locks {
        book: usize,
    },
    Actors {
        book: usize,
    },
    Suspended {
        book: usize,
        slot: usize,
    },
    /// Whether the driver has locked or checkpointed a process.
    State {
        process: usize,
    },
    Limit {
        book: usize,
    },
    Driver {
        process: usize,
    },
    Entrance,
    Gate,
    /// The line of a gate.
    Line,
    Clock,
    Idle,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Plain) };
    static WATCHED: RefCell<Watched> = RefCell::default();
}

#[inline]
pub(crate) fn mode() -> Mode {
    MODE.get()
}

pub(crate) fn set_mode(mode: Mode) {
    MODE.set(mode);
}

/// Replaces the set of watched words.
pub(crate) fn watch<'a>(words: impl IntoIterator<Item = (Name, &'a AtomicU64)>) {
    let mut words: Vec<_> = words
        .into_iter()
        .map(|(name, word)| (word.address(), name))
        .collect();
    words.sort_unstable_by_key(|(address, _)| *address);
    let (addresses, names) = words.into_iter().unzip();
    WATCHED.set(Watched {
        addresses,
        names,
        weak: Vec::new(),
    });
}

/// Starts a run of loom: operations on watched words now act on loom's words. Called by the first
/// thread of the run.
pub(crate) fn begin_weak_run<'a>(words: impl IntoIterator<Item = &'a AtomicU64>) {
    let mut weak: Vec<_> = words
        .into_iter()
        .map(|word| (word.address(), word.0.load(Ordering::Relaxed)))
        .collect();
    weak.sort_unstable();
    let weak = weak
        .into_iter()
        .map(|(_, value)| Arc::new(Weak::new(value)))
        .collect();
    let old = WATCHED.with_borrow_mut(|watched| std::mem::replace(&mut watched.weak, weak));
    drop(old);
    set_mode(Mode::Weak);
}

/// Ends a run of loom. Operations on watched words are ordinary memory accesses again.
pub(crate) fn end_weak_run() {
    set_mode(Mode::Plain);
    let old = WATCHED.with_borrow_mut(|watched| std::mem::take(&mut watched.weak));
    drop(old);
}

#[repr(transparent)]
#[derive(Debug, Default)]
pub struct AtomicU64(Plain);

impl AtomicU64 {
    pub(crate) const fn new(value: u64) -> Self {
        Self(Plain::new(value))
    }

    fn address(&self) -> usize {
        &raw const *self as usize
    }

    /// Reads the word without a step of the model.
    pub(crate) fn peek(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn name(&self) -> Option<Name> {
        WATCHED.with_borrow(|watched| {
            let at = watched.addresses.binary_search(&self.address()).ok()?;
            Some(watched.names[at])
        })
    }

    fn is_charge(&self) -> bool {
        mode() != Mode::Plain && matches!(self.name(), Some(Name::Charged { .. }))
    }

    #[inline]
    fn operate<T>(
        &self,
        effect: Effect,
        plain: impl FnOnce(&Plain) -> T,
        weak: impl FnOnce(&Weak) -> T,
        seen: impl FnOnce(&T) -> u64,
    ) -> T {
        let mode = mode();
        if mode == Mode::Plain {
            return plain(&self.0);
        }
        let found = WATCHED.with_borrow(|watched| {
            let at = watched.addresses.binary_search(&self.address()).ok()?;
            Some((watched.names[at], watched.weak.get(at).cloned()))
        });
        match found {
            Some((_, Some(word))) if mode == Mode::Weak => weak(&word),
            Some((name, _)) if mode == Mode::Step => {
                explorer::step(name, effect, || plain(&self.0), seen)
            }
            _ => plain(&self.0),
        }
    }

    #[inline]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        if fault::is(Fault::LineForgotten) && self.name() == Some(Name::Line) {
            return 0;
        }
        self.operate(Effect::Read, |w| w.load(order), |w| w.load(order), |v| *v)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        if fault::is(Fault::NotZeroed) && value == 0 && self.is_charge() {
            return;
        }
        self.operate(
            Effect::Write,
            |w| w.store(value, order),
            |w| w.store(value, order),
            |()| 0,
        );
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.operate(
            Effect::Write,
            |w| w.fetch_add(value, order),
            |w| w.fetch_add(value, order),
            |v| *v,
        )
    }

    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        if mode() == Mode::Plain && value > self.peek() {
            // After a run, a dead process's program runs on to its end. Its cleaned word may hold
            // fewer units than are subtracted.
            self.store_plain(0);
            return 0;
        }
        self.operate(
            Effect::Write,
            |w| w.fetch_sub(value, order),
            |w| w.fetch_sub(value, order),
            |v| *v,
        )
    }

    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        if fault::is(Fault::HighWaterMissing) && matches!(self.name(), Some(Name::HighWater { .. }))
        {
            return self.peek();
        }
        self.operate(
            Effect::Write,
            |w| w.fetch_max(value, order),
            |w| w.fetch_max(value, order),
            |v| *v,
        )
    }

    pub(crate) fn fetch_min(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_update(order, Ordering::Relaxed, |before| Some(before.min(value)))
            .unwrap_or_default()
    }

    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_update(order, Ordering::Relaxed, |before| Some(before | value))
            .unwrap_or_default()
    }

    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_update(order, Ordering::Relaxed, |before| Some(before & value))
            .unwrap_or_default()
    }

    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_update(order, Ordering::Relaxed, |_| Some(value))
            .unwrap_or_default()
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.operate(
            Effect::Write,
            |w| w.compare_exchange(current, new, success, failure),
            |w| w.compare_exchange(current, new, success, failure),
            |v| match v {
                Ok(v) => *v << 1,
                Err(v) => *v << 1 | 1,
            },
        )
    }

    pub(crate) fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        let mut before = self.load(fetch);
        while let Some(next) = change(before) {
            match self.compare_exchange(before, next, set, fetch) {
                Ok(_) => return Ok(before),
                Err(found) => before = found,
            }
        }
        Err(before)
    }

    /// Stores a value in the word without a step of the model.
    pub(crate) fn store_plain(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Changes the word in one step, as the kernel changes locks. Returns whether `change` returned
    /// a new value instead of `None`.
    pub(crate) fn change(&self, effect: Effect, change: impl Fn(u64) -> Option<u64>) -> bool {
        let plain = |w: &Plain| {
            w.fetch_update(Ordering::SeqCst, Ordering::SeqCst, &change)
                .is_ok()
        };
        let weak = |w: &Weak| {
            let mut before = w.fetch_add(0, Ordering::AcqRel);
            while let Some(next) = change(before) {
                match w.compare_exchange(before, next, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return true,
                    Err(found) => before = found,
                }
            }
            false
        };
        self.operate(effect, plain, weak, |made| u64::from(*made))
    }
}

pub(crate) fn fence(order: Ordering) {
    match mode() {
        Mode::Weak if !fault::is(Fault::FenceMissing) => loom::sync::atomic::fence(order),
        // The explorer's memory does not reorder operations, so a fence has no effect there.
        _ => {}
    }
}
