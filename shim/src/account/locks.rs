//! The locks of `libgpulimit.so`: their order, and what a thread may do while it holds one.
//!
//! All locks belong to one process and are new in a forked child (`account::current`). A thread
//! takes locks in the order of this table: while it holds a lock, it may take only later ones.
//!
//! | lock | what it guards | while it is held |
//! |---|---|---|
//! | `Process::joining` | joining the group, once | the thread opens files and asks the driver for its devices |
//! | `Process::redirecting` | the driver's symbol table while it is changed | the driver and the ledger are not called |
//! | `Launched::on_many` | launches on several devices, which take several `alone` locks | the driver is called |
//! | `Contexts::making` | making a context, so that two threads that retain the same context make it once | the driver is called |
//! | `ContextMemory::alone` | the memory that a context sets aside for kernels: a change holds the lock exclusively, and launches that rely on this memory share it; a thread holds several of these locks only while it holds `on_many` | the driver is called |
//! | `Pools::by_handle`, `Pools::unused`, in this order | the lists of pools | the driver and the ledger are not called: a thread copies the list first |
//! | `GraphMemory`, `Pool::state` | figures of a pool | the driver is asked for the pool's reserved bytes (so that readings are recorded in order) or told to trim the pool; the ledger is changed |
//! | `Book::pools`, `DriverPart` | the reserves of pools and of the driver's own memory | the ledger is changed |
//! | `Vmm::state`, `Openings::open` | memory that processes share | the ledger is changed |
//! | `Peaks` | the open measurements of peaks | the ledger is read |
//! | `Launched::{kernels, needs, functions, large}`, in this order | the launched functions and their needs | the driver and the ledger are not called |
//! | `Obstacles` | the number of each obstacle to a suspension, and the word of them in the ledger | the ledger is changed |
//! | all others (`Blocks`, `Arrays`, `Handles`, `Captures`, `Managed`, `Libraries`, `Greens`, `Execs`, `Bodies`, `Contexts`, `KernelMemory`, `Variables`, `Lent`, `Pools::destroyed`) | one map | neither the driver nor the ledger is called, and no other lock is taken |
//!
//! **While a thread holds a lock, its requests never wait for room in the group and never have
//! other processes killed**, because a thread that is about to free memory may need the lock. Such
//! a request does not *insist*. It only asks other members for unused memory, for 100 ms at most,
//! and waits for the memory of dead members. If the request is refused, the call releases the lock
//! and all bytes promised to it. Then the call waits and starts again (`handler::payment`).
//!
//! **A nested call** (`driver/inside.rs`), which the program makes inside of one of the driver's
//! that this table allows under a lock, takes none of the locks from `on_many` to `alone`. What two
//! calls then take in the same moment is charged for both, and corrected by a measurement. While
//! the outer call holds `joining`, `GraphMemory` or `Pool::state`, the thread is marked as
//! *closed*: nested calls measure nothing, and only those that need no such lock are handled
//! (`hook.rs`).
//!
//! The crate `group` takes its lock `Kept::groups` during a charge, after every lock of this table.
//! Directories are read while a thread holds `Kept::groups`.
//!
//! Builds with debug assertions check the order of the locks from `joining` to `alone`. They also
//! check that a waiting request holds none of these locks.

use crate::driver::inside;

/// The locks whose order is checked, in that order.
#[derive(Clone, Copy, Debug, Eq, PartialEq, PartialOrd)]
pub enum Place {
    /// `Process::joining`.
    Joining,
    /// `Process::redirecting`.
    Redirecting,
    /// `Launched::on_many`.
    OnMany,
    /// `Contexts::making`.
    Making,
    /// `ContextMemory::alone`.
    Alone,
}

/// A lock that the thread holds, as a guard. A nested call holds none.
pub struct Held<G>(Option<(G, Place)>);

/// Takes a lock, unless this call is nested: the outer call may hold the lock, or one after it.
/// Builds with debug assertions panic when taking it breaks the order of the locks.
#[inline]
pub fn hold<G>(place: Place, take: impl FnOnce() -> G) -> Held<G> {
    if inside::is_nested() {
        return Held(None);
    }
    if cfg!(debug_assertions) {
        checked::enter(place);
    }
    Held(Some((take(), place)))
}

/// Checks that the calling thread holds none of the checked locks. Called before a request waits
/// for room in the group.
#[inline]
pub fn assert_none_held() {
    if cfg!(debug_assertions) {
        checked::assert_none();
    }
}

impl<G> Drop for Held<G> {
    #[inline]
    fn drop(&mut self) {
        if cfg!(debug_assertions)
            && let Some((_, place)) = self.0
        {
            checked::leave(place);
        }
    }
}

mod checked {
    use super::Place;
    use std::cell::RefCell;

    thread_local! {
        /// The checked locks that this thread holds, in the order in which it took them. Handlers
        /// that run at the end of the program find it gone.
        static HELD: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
    }

    pub fn enter(place: Place) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let several = place == Place::Alone && held.contains(&Place::OnMany);
            let last = held.last().copied();
            let in_order = last.is_none_or(|last| last < place || several && last == place);
            assert!(
                in_order,
                "lock order: {place:?} is taken while this thread holds {held:?}"
            );
            held.push(place);
        });
    }

    pub fn leave(place: Place) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let at = held.iter().rposition(|taken| *taken == place);
            at.map(|at| held.remove(at))
        });
    }

    pub fn assert_none() {
        let _ = HELD.try_with(|held| {
            assert!(
                held.borrow().is_empty(),
                "lock order: a request waits while this thread holds {held:?}"
            )
        });
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    fn panics(work: impl FnOnce()) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
    }

    #[test]
    fn locks_are_taken_in_order() {
        let making = hold(Place::Making, || ());
        assert!(!panics(|| drop(hold(Place::Alone, || ()))));
        assert!(panics(|| drop(hold(Place::Making, || ()))));
        assert!(panics(|| drop(hold(Place::OnMany, || ()))));
        drop(making);
        assert!(!panics(|| drop(hold(Place::OnMany, || ()))));
    }

    #[test]
    fn several_contexts_are_locked_below_one_lock_only() {
        let one = hold(Place::Alone, || ());
        assert!(panics(|| drop(hold(Place::Alone, || ()))));
        drop(one);
        let _many = hold(Place::OnMany, || ());
        let _one = hold(Place::Alone, || ());
        assert!(!panics(|| drop(hold(Place::Alone, || ()))));
    }

    #[test]
    fn a_wait_while_a_lock_is_held_panics() {
        assert!(!panics(assert_none_held));
        let making = hold(Place::Making, || ());
        assert!(panics(assert_none_held));
        drop(making);
        assert!(!panics(assert_none_held));
    }
}
