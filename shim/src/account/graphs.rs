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

use std::time::Instant;

use gpulimit_ledger::Category;

use super::book::Book;
use super::reserve::{Changes, Promise, Reserve};
use crate::abi::GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
use crate::driver::capture::relaxed;
use crate::driver::{answer, cuda, inside};
use execs::Need;
pub use state::{Hope, Identity};
use state::{Launch, Launches};

/// Graph memory grows in multiples of this many bytes (measured).
pub const STEP: u64 = 32 << 20;

/// The graph memory of one device.
#[derive(Default)]
pub struct GraphMemory(Reserve<Launches>);

/// A graph launch under way, until the driver's launch function has returned.
pub struct UnderWay<'a> {
    memory: &'a GraphMemory,
    launch: Launch<'a>,
    promise: Promise<'a, Launches>,
}

impl UnderWay<'_> {
    /// Returns the most bytes of graph memory that the launch takes.
    pub fn bytes(&self) -> u64 {
        self.launch.bytes
    }

    /// Promises the bytes that the launch may take: first unused graph memory, then bytes that
    /// `charge` charges. Waits for other launches until `until`.
    pub fn pay<E>(
        &mut self,
        until: Option<Instant>,
        charge: &dyn Fn(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.launch.backed {
            return Ok(());
        }
        let mut state = self.promise.change();
        state.approach(&mut self.launch);
        if let Some(until) = until {
            while state.may_gain(&self.launch) && state.wait(until) {}
        }
        drop(state);
        self.pay_now(charge)
    }

    /// Trims the device's graph memory, and then works like [`UnderWay::pay`] without waiting.
    pub fn pay_by_trim<E>(&mut self, charge: &dyn Fn(u64) -> Result<(), E>) -> Result<(), E> {
        relaxed(|| cuda::cuDeviceGraphMemTrim(self.promise.book.ordinal));
        let mut state = self.promise.change();
        look(&mut state);
        state.begin_anew(&mut self.launch);
        drop(state);
        self.pay_now(charge)
    }

    fn pay_now<E>(&mut self, charge: &dyn Fn(u64) -> Result<(), E>) -> Result<(), E> {
        let due = self.promise.change().due(&self.launch);
        let paid = self.promise.raise(due, charge);
        let mut state = self.promise.change();
        match paid {
            Ok(()) => state.paid(&mut self.launch, self.promise.bytes),
            Err(_) => self.promise.end(&mut state),
        }
        paid
    }

    /// Returns the event for which the launch can wait after a refusal. `waited`: the launch has
    /// waited for its own stream.
    pub fn hope(&self, waited: bool) -> Option<Hope> {
        self.memory.0.read().hope(&self.launch, waited)
    }

    /// Ends the launch: reads how much graph memory the driver has reserved now. `succeeded`: the
    /// driver's launch function has succeeded. After a failed launch, trims the memory that the
    /// launch may have kept.
    pub fn settle(mut self, succeeded: bool) {
        let mut state = self.promise.change();
        self.promise.end(&mut state);
        state.end(&self.launch);
        look(&mut state);
        let left = state.conclude(&self.launch, succeeded);
        state.give_back();
        drop(state);
        if left {
            self.memory.trim(self.promise.book);
        }
        std::mem::forget(self);
    }
}

/// Only a panic drops this guard without `settle`. The bytes stay charged until `Process::recover`
/// reads the reserved bytes.
impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.promise.change();
        state.end(&self.launch);
        state.conclude(&self.launch, false);
    }
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
        UnderWay {
            memory: self,
            launch: self.0.change(book).begin(need, keeps, stream),
            promise: Promise::lent(&self.0, book, 0),
        }
    }

    /// Reads how much graph memory the driver has reserved. Call outside of a launch.
    pub fn refresh(&self, book: &Book) {
        if inside::is_closed() {
            return;
        }
        let mut state = self.0.change(book);
        look(&mut state);
        state.give_back();
    }

    /// Lets the driver free the graph memory that no graph uses.
    pub fn trim(&self, book: &Book) {
        relaxed(|| cuda::cuDeviceGraphMemTrim(book.ordinal));
        self.trimmed(book);
    }

    /// Records that the driver was asked to free the graph memory that no graph uses.
    pub fn trimmed(&self, book: &Book) {
        self.0.own(Launches::trimmed);
        self.refresh(book);
    }

    /// Uncharges graph memory that no launch needs. `trim`: the driver first frees unused graph
    /// memory. Returns true if bytes were uncharged.
    pub fn reclaim(&self, book: &Book, trim: bool) -> bool {
        let before = self.0.read().held;
        if before == 0 {
            return false;
        }
        if trim {
            self.trim(book);
        } else {
            self.refresh(book);
        }
        self.0.read().held < before
    }

    /// Records that the device's last context was destroyed, which frees all graph memory.
    pub fn clear(&self, book: &Book) {
        let mut state = self.0.change(book);
        let gone = state.clear();
        book.remove(Category::Graphs, gone.used);
        drop(state);
        book.uncharge_idle(gone.held);
    }
}

fn look(state: &mut Changes<'_, Launches>) {
    // The lock keeps readings in order. No deadlock: the query takes no lock that the driver holds
    // while it calls gpulimit.
    let (book, which) = (state.book, GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    let ask = |bytes| cuda::cuDeviceGetGraphMemAttribute(book.ordinal, which, bytes);
    let before = state.used;
    // The query fails in a context with a sticky error. Such a context keeps its graph memory, so
    // the previous figure holds.
    let used = inside::closed(|| relaxed(|| answer(ask))).unwrap_or(before);
    if used == before {
        return;
    }
    // No driver was ever observed to take more graph memory than was charged in advance.
    let beyond = state.see(used);
    state.cover(beyond);
    book.add(Category::Graphs, used.saturating_sub(before));
    book.remove(Category::Graphs, before.saturating_sub(used));
}
