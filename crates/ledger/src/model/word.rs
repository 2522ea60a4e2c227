//! The atomic word of models: a plain one, until a model says what else its operations are to be.
//!
//! The words that a model watches are those that more than one process may change: each operation
//! on one of them is a step. All other words (figures for people, what is written once, what is a
//! process's own) are plain.

use super::super::atomic::Ordering;
use super::explorer::{self, Effect};
use super::fault::{self, Fault};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic;

type Plain = atomic::AtomicU64;
type Weak = loom::sync::atomic::AtomicU64;

/// What an operation on a watched word is.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// An operation.
    Plain,
    /// A step that the explorer decides about.
    Step,
    /// An operation on a word of loom's.
    Weak,
}

/// The watched words, by address.
#[derive(Default)]
struct Watched {
    addresses: Vec<usize>,
    names: Vec<Name>,
    weak: Vec<Arc<Weak>>,
}

/// What a watched word is, of which book.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Name {
    Charged { book: usize, slot: usize },
    Pid { book: usize, slot: usize },
    DeadSince { book: usize, slot: usize },
    HighWater { book: usize },
    Locks { book: usize },
    Limit { book: usize },
    Driver { process: usize },
    Clock,
    Idle,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Plain) };
    static WATCHED: RefCell<Watched> = RefCell::default();
}

pub(crate) fn mode() -> Mode {
    MODE.get()
}

pub(crate) fn set_mode(mode: Mode) {
    MODE.set(mode);
}

/// From here on these are the watched words.
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

/// To be said in a run of loom's, by its first thread: watched words are loom's from here on.
pub(crate) fn weaken<'a>(words: impl IntoIterator<Item = &'a AtomicU64>) {
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

/// To be said at the end of a run of loom's: the watched words are plain ones again.
pub(crate) fn rest() {
    set_mode(Mode::Plain);
    let old = WATCHED.with_borrow_mut(|watched| std::mem::take(&mut watched.weak));
    drop(old);
}

#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct AtomicU64(Plain);

impl AtomicU64 {
    pub(crate) const fn new(value: u64) -> Self {
        Self(Plain::new(value))
    }

    fn address(&self) -> usize {
        &raw const *self as usize
    }

    /// What is there, seen by nobody of the model.
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
            // The rest of a dead one's program, after its slot was cleaned.
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

    /// As [`Self::peek`].
    pub(crate) fn store_plain(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// One indivisible change as the kernel makes it, on what is really there. Says whether it was
    /// made; nothing else is seen.
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
        // In a world in which one step comes after the other there is nothing to order.
        _ => {}
    }
}
