//! Graph memory: the device memory that the memory nodes of CUDA graphs allocate.
//!
//! A launch or an upload of a graph takes graph memory from one pool per device, in steps of 32
//! MiB. A failed launch keeps the memory that it has taken. So the largest possible growth of the
//! pool is charged before the launch ([`nodes`]).
//!
//! **Backed graphs.** A graph that has been launched before must still run in a full group. A
//! launch takes no new memory if three conditions have held since the graph's last launch or upload
//! (NVIDIA's programming guide):
//! - All launches of graphs with memory nodes were in the same stream.
//! - No other graph has left memory allocated.
//! - The pool was not trimmed.
//!
//! An *epoch* is a period in which these conditions hold for one stream. A graph that got its
//! memory in the present epoch is *backed*, and its launch is not charged. After a launch that
//! leaves memory allocated, only the launched graph is backed.
//!
//! A launch may begin an epoch while a backed launch of another thread is under way. The launch
//! that begins the epoch then pays for both. A trim does not lower the charge of a backed launch
//! under way.
//!
//! Other launches are charged like the graph's first launch. In a full group, the pool is trimmed
//! first. The trim can free the graph's own memory, so the launch may wait for work in its stream.

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
use crate::driver::{answer, cuda, inside};
use execs::Need;
use state::State;
pub use state::{Hope, Identity, Launch};
use under_way::Paying;
pub use under_way::UnderWay;

/// Graph memory grows in multiples of this many bytes (measured).
pub const STEP: u64 = 32 << 20;

/// The graph memory of one device.
#[derive(Default)]
pub struct GraphMemory {
    state: Mutex<State>,
    /// Notified when a launch under way has ended.
    settled: Condvar,
}

impl GraphMemory {
    /// Begins a launch of a graph in `stream`; `None` is an unknown stream. `keeps`: the graph
    /// leaves memory allocated.
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

    /// Promises the bytes that `launch` may take: first unused graph memory, then bytes that
    /// `charge` charges. Waits for other launches until `until`.
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

    /// Trims the device's graph memory, and then works like [`GraphMemory::pay`] without waiting.
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
        // `charge` can wait for room in the group. So no lock is held during the call.
        let charged = payment.complete(charge);
        paying.charged = charged.is_ok();
        charged
    }

    /// Ends a launch: reads the reserved graph memory. After a failed launch, trims the memory that
    /// the launch may have kept.
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

    /// Returns the event for which a refused launch can wait. `waited`: the launch has waited for
    /// its own stream.
    pub fn hope(&self, launch: &Launch<'_>, waited: bool) -> Option<Hope> {
        self.state.lock().hope(launch, waited)
    }

    /// Reads how much graph memory the driver has reserved. Call outside of a launch.
    pub fn refresh(&self, book: &Book) {
        if inside::is_closed() {
            return;
        }
        let mut state = self.state.lock();
        self.look(book, &mut state);
        self.give_back(book, &mut state);
    }

    /// Lets the driver free the graph memory that no graph uses.
    pub fn trim(&self, book: &Book) {
        relaxed(|| cuda::cuDeviceGraphMemTrim(book.ordinal));
        self.trimmed(book);
    }

    /// Records that the driver was asked to free the graph memory that no graph uses.
    pub fn trimmed(&self, book: &Book) {
        self.state.lock().trimmed();
        self.refresh(book);
    }

    /// Uncharges graph memory that no launch needs. `trim`: the driver first frees unused graph
    /// memory. Returns true if bytes were uncharged.
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

    /// Records that the device's last context was destroyed, which frees all graph memory.
    pub fn clear(&self, book: &Book) {
        let mut state = self.state.lock();
        let gone = state.clear();
        book.remove(Category::Graphs, gone.reserved());
        book.add_idle(gone.reserved());
        book.uncharge_idle(gone.held());
    }

    fn look(&self, book: &Book, state: &mut State) {
        // The lock keeps readings in order. No deadlock: the query takes no lock that the driver
        // holds while it calls gpulimit.
        let which = GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
        let ask = |bytes| cuda::cuDeviceGetGraphMemAttribute(book.ordinal, which, bytes);
        let before = state.reserved();
        // The query fails in a context with a sticky error. Such a context keeps its graph memory,
        // so the previous figure holds.
        let reserved = inside::closed(|| relaxed(|| answer(ask))).unwrap_or(before);
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
            // The driver has taken more graph memory than was charged in advance. No driver was
            // ever observed to do so.
            book.charge_over(beyond);
            book.add_idle(beyond);
        }
        book.note_usage();
    }

    fn give_back(&self, book: &Book, state: &mut State) {
        book.uncharge_idle(state.release());
    }
}
