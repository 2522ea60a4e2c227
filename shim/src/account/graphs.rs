//! Graph memory: what the memory nodes of graphs allocate.
//!
//! A launch or an upload takes it from one pool per device, in steps of 32 MiB; that pool shrinks
//! only when it is trimmed and when the device's last context goes (measured). Adding nodes and
//! instantiating take nothing. A launch cannot be undone, and one that does not fit keeps what it
//! has taken, so its largest possible growth, which its nodes tell ([`nodes`]), is charged before
//! the call, and one look at the pool's attribute follows it.
//!
//! **Graphs that have their memory.** In a full group nothing can be charged ahead, and a graph
//! that has been launched before must run all the same. NVIDIA's programming guide says when a
//! launch may need memory anew: the driver retains a graph's mappings between launches, and remaps
//! where the graph goes to another stream, where the pool was trimmed, and where an allocation that
//! another graph has left unfreed lies in the same memory. Graphs in one stream share memory since
//! they cannot run at once; one that may run beside others needs its own, and may get that of a
//! graph in an idle stream. So a launch takes nothing new if, since the graph's last launch or
//! upload, all launches of graphs with memory nodes were in the same stream, none but its own has
//! left something allocated, and nothing was trimmed.
//!
//! An *epoch* is a time in which all of this holds, in one stream. A launch in another stream, a
//! launch of a graph that leaves something allocated (it alone is sure of its memory afterwards),
//! and a trim begin a new one. A graph that got its memory in the present epoch is *backed*, and
//! its launch is not charged. Where one thread's launch begins an epoch while another's is on its
//! way as a backed one, the former pays for both. A trim cannot take away the charge of a backed
//! launch that is on its way: what was reserved when it began stays charged until it is over.
//!
//! Any other launch is charged as if it were the first. In a full group that means a trim, which
//! gives back what the graph itself had before; what its own stream still uses is waited for.

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
    /// A launch under way has ended.
    settled: Condvar,
}

impl GraphMemory {
    /// A launch in `stream` (`None`: nobody knows which it is) of a graph that `keeps` something
    /// allocated. It is paid for by [`GraphMemory::pay`] and ends with [`UnderWay::settle`].
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

    /// Pays for what `launch` may take out of what is idle, and for the rest by `charge`, which
    /// charges ahead. Before that it waits, no longer than `until`, for launches of other threads
    /// that have it.
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

    /// As [`GraphMemory::pay`] without waiting, after a trim: what the driver gives back pays
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
        // Not under the lock: charging may wait.
        let charged = payment.complete(charge);
        paying.charged = charged.is_ok();
        charged
    }

    /// The launch is over: looks how much is reserved now. A call that failed may leave what it
    /// took: that is trimmed.
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

    /// What a launch may wait for that could not be paid for, having `waited` for its own work or
    /// not.
    pub fn hope(&self, launch: &Launch<'_>, waited: bool) -> Option<Hope> {
        self.state.lock().hope(launch, waited)
    }

    /// Looks outside of a launch.
    pub fn refresh(&self, book: &Book) {
        let mut state = self.state.lock();
        self.look(book, &mut state);
        self.give_back(book, &mut state);
    }

    /// Lets the driver give back what no graph uses.
    pub fn trim(&self, book: &Book) {
        relaxed(|| cuda::cuDeviceGraphMemTrim(book.ordinal));
        self.trimmed(book);
    }

    /// The driver was asked to give back what no graph uses.
    pub fn trimmed(&self, book: &Book) {
        self.state.lock().trimmed();
        self.refresh(book);
    }

    /// Gives back what no launch needs: the charge in any case, the memory too if `trim`. True when
    /// something came back.
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

    /// The device's last context is gone, and all graph memory with it.
    pub fn clear(&self, book: &Book) {
        let mut state = self.state.lock();
        let gone = state.clear();
        book.remove(Category::Graphs, gone.reserved());
        book.add_idle(gone.reserved());
        book.uncharge_idle(gone.held());
    }

    fn look(&self, book: &Book, state: &mut State) {
        // Read under our lock so that looks are in order; the call takes no lock that a callback of
        // ours could hold.
        let which = GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
        let ask = |bytes| cuda::cuDeviceGetGraphMemAttribute(book.ordinal, which, bytes);
        let before = state.reserved();
        // A context with a fault answers nothing, and holds its memory until it is destroyed.
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
            // No driver has been seen to do that.
            book.charge_over(beyond);
            book.add_idle(beyond);
        }
        book.note_usage();
    }

    fn give_back(&self, book: &Book, state: &mut State) {
        book.uncharge_idle(state.release());
    }
}
