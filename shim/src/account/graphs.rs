//! Graph memory: the memory that the memory nodes of graphs allocate.
//!
//! A launch or an upload takes it from one pool per device, in steps of 32 MiB. That pool shrinks
//! only when it is trimmed and when the device's last context goes (measured). Adding nodes and
//! instantiating take no memory. A launch cannot be undone, and one that does not fit keeps what it
//! has taken. So its largest possible growth, which its nodes tell ([`nodes`]), is charged before
//! the call, and the pool's attribute is read after it.
//!
//! **Graphs that have their memory.** In a full group no bytes can be charged ahead, but a graph
//! that has been launched before must still run. NVIDIA's programming guide says when a launch may
//! need new memory: the driver retains a graph's mappings between launches, and remaps where the
//! graph goes to another stream, where the pool was trimmed, and where an allocation that another
//! graph has left unfreed lies in the same memory. Graphs in one stream share memory because they
//! cannot run at the same time. A graph that may run beside others needs its own memory, and may
//! get that of a graph in an idle stream. So a launch takes no new memory if, since the graph's
//! last launch or upload, all launches of graphs with memory nodes were in the same stream, no
//! other graph has left anything allocated, and the pool was not trimmed.
//!
//! An *epoch* is a time in which all of this holds, in one stream. Three things begin a new epoch:
//! a launch in another stream, a launch of a graph that leaves something allocated (only that graph
//! is sure of its memory afterwards), and a trim. A graph that got its memory in the present epoch
//! is *backed*, and its launch is not charged. Where one thread's launch begins an epoch while
//! another thread's backed launch is under way, the former pays for both. A trim cannot take away
//! the charge of a backed launch that is under way: what was reserved when that launch began stays
//! charged until it is over.
//!
//! Any other launch is charged as if it were the first. In a full group that means a trim, which
//! gives back what the graph itself had before. Memory that the graph's own stream still uses is
//! waited for.

pub mod bodies;
pub mod execs;
pub mod nodes;
mod state;
mod under_way;

use std::time::Instant;

use gpulimit_ledger::Category;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::book::Book;
use crate::abi::GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
use crate::driver::capture::relaxed;
use crate::driver::{answer, cuda};
use execs::Need;
use state::State;
pub use state::{Hope, Identity, Launch};
use under_way::Paying;
pub use under_way::UnderWay;

/// Graph memory grows in multiples of this (measured).
pub const STEP: u64 = 32 << 20;

/// The graph memory of a device.
#[derive(Default)]
pub struct GraphMemory {
    state: Mutex<State>,
    /// Notified when a launch under way has ended.
    settled: Condvar,
}

impl GraphMemory {
    /// Begins a launch in `stream` (`None` when the stream is unknown) of a graph that `keeps`
    /// something allocated or not. [`GraphMemory::pay`] pays for the launch, and
    /// [`UnderWay::settle`] ends it.
    pub fn begin<'a>(
        &'a self,
        book: &'a Book,
        need: &'a Need,
        keeps: bool,
        stream: Option<Identity>,
    ) -> UnderWay<'a> {
        let launch = self.state.lock().begin(need, keeps, stream);
        UnderWay {
            memory: self,
            book,
            launch,
        }
    }

    /// Pays for what `launch` may take: out of the idle bytes, and for the rest by `charge`, which
    /// charges ahead. Before that it waits, no longer than `until`, for launches of other threads
    /// that have the bytes.
    pub fn pay<E>(
        &self,
        book: &Book,
        launch: &mut Launch<'_>,
        until: Option<Instant>,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if launch.backed {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.approach(launch);
        if let Some(until) = until {
            while state.may_gain(launch) {
                if self.settled.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
        }
        self.pay_now(book, state, launch, charge)
    }

    /// As [`GraphMemory::pay`], after a trim and without waiting: what the driver gives back pays
    /// first.
    pub fn pay_by_trim<E>(
        &self,
        book: &Book,
        launch: &mut Launch<'_>,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        relaxed(|| cuda::cuDeviceGraphMemTrim(book.ordinal));
        let mut state = self.state.lock();
        self.look(book, &mut state);
        state.begin_anew(launch);
        self.pay_now(book, state, launch, charge)
    }

    fn pay_now<E>(
        &self,
        book: &Book,
        mut state: MutexGuard<'_, State>,
        launch: &mut Launch<'_>,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let payment = state.lend(launch);
        drop(state);
        let mut paying = Paying {
            memory: self,
            book,
            launch,
            payment: &payment,
            charged: false,
        };
        // Charging may wait, so it happens outside of the lock.
        let charged = payment.complete(charge);
        paying.charged = charged.is_ok();
        charged
    }

    /// Ends a launch: reads how much is reserved now. A call that failed may keep what it took; the
    /// pool is trimmed then.
    fn settle(&self, book: &Book, launch: &Launch<'_>, succeeded: bool) {
        let mut state = self.state.lock();
        state.end(launch);
        book.adjust_headroom((launch.paid as i64).wrapping_neg());
        self.look(book, &mut state);
        let left = state.conclude(launch, succeeded);
        self.give_back(book, &mut state);
        self.settled.notify_all();
        drop(state);
        if left {
            self.trim(book);
        }
    }

    /// Returns what a launch may wait for that could not be paid for. `waited`: it has waited for
    /// the work of its own stream already.
    pub fn hope(&self, launch: &Launch<'_>, waited: bool) -> Option<Hope> {
        self.state.lock().hope(launch, waited)
    }

    /// Reads how much is reserved, outside of a launch.
    pub fn refresh(&self, book: &Book) {
        let mut state = self.state.lock();
        self.look(book, &mut state);
        self.give_back(book, &mut state);
    }

    /// Lets the driver free the memory that no graph uses.
    pub fn trim(&self, book: &Book) {
        relaxed(|| cuda::cuDeviceGraphMemTrim(book.ordinal));
        self.trimmed(book);
    }

    /// Records that the driver was asked to free the memory that no graph uses.
    pub fn trimmed(&self, book: &Book) {
        self.state.lock().trimmed();
        self.refresh(book);
    }

    /// Gives back what no launch needs: the charge in any case, the memory too if `trim`. True when
    /// the charge has shrunk.
    pub fn reclaim(&self, book: &Book, trim: bool) -> bool {
        let before = self.state.lock().held();
        if before == 0 {
            return false;
        }
        if trim {
            self.trim(book);
        } else {
            self.refresh(book);
        }
        self.state.lock().held() < before
    }

    /// Records that the device's last context is gone, and all graph memory with it.
    pub fn clear(&self, book: &Book) {
        let mut state = self.state.lock();
        let gone = state.clear();
        book.remove(Category::Graphs, gone.reserved());
        book.add_idle(gone.reserved());
        book.uncharge_idle(gone.held());
    }

    fn look(&self, book: &Book, state: &mut State) {
        // The attribute is read under the lock so that looks are in order. The driver takes no lock
        // in this call that a callback of gpulimit could hold.
        let which = GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
        let ask = |bytes| cuda::cuDeviceGetGraphMemAttribute(book.ordinal, which, bytes);
        let before = state.reserved();
        // In a context with a fault the call fails, and the memory is held until the context is
        // destroyed.
        let reserved = relaxed(|| answer(ask)).unwrap_or(before);
        if reserved == before {
            return;
        }
        let beyond = state.see(reserved);
        if let Some(shrunk) = before.checked_sub(reserved) {
            book.remove(Category::Graphs, shrunk);
            book.add_idle(shrunk);
            return;
        }
        let grown = reserved - before;
        book.add(Category::Graphs, grown);
        book.remove_idle(grown);
        if beyond > 0 {
            // No driver was ever observed to take more than was paid.
            book.charge_over(beyond);
            book.add_idle(beyond);
        }
        book.note_usage();
    }

    fn give_back(&self, book: &Book, state: &mut State) {
        book.uncharge_idle(state.release());
    }
}
