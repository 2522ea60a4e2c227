//! Graph memory: what the memory nodes of graphs allocate.
//!
//! A launch or an upload takes it from one pool per device, in steps of 32 MiB; that pool shrinks only when it is trimmed and when the
//! device's last context goes (measured). Adding nodes and instantiating take nothing. A launch cannot be undone, and one that does not fit
//! keeps what it has taken, so its largest possible growth, which its nodes tell ([`nodes`]), is charged before the call, and one look at the
//! pool's attribute follows it.
//!
//! **Graphs that have their memory.** In a full group nothing can be charged ahead, and a graph that has been launched before must run all the
//! same. NVIDIA's programming guide says when a launch may need memory anew: the driver retains a graph's mappings between launches, and remaps
//! where the graph goes to another stream, where the pool was trimmed, and where an allocation that another graph has left unfreed lies in
//! the same memory. Graphs in one stream share memory since they cannot run at once; one that may run beside others needs its own, and may
//! get that of a graph in an idle stream. So a launch takes nothing new if, since the graph's last launch or upload, all launches of graphs
//! with memory nodes were in the same stream, none but its own has left something allocated, and nothing was trimmed.
//!
//! An *epoch* is a time in which all of this holds, in one stream. A launch in another stream, a launch of a graph that leaves something
//! allocated (it alone is sure of its memory afterwards), and a trim begin a new one. A graph that got its memory in the present epoch is
//! *backed*, and its launch is not charged. Where one thread's launch begins an epoch while another's is on its way as a backed one, the
//! former pays for both. A trim cannot take away the charge of a backed launch that is on its way: what was reserved when it began stays charged
//! until it is over.
//!
//! Any other launch is charged as if it were the first. In a full group that means a trim, which gives back what the graph itself had before;
//! what its own stream still uses is waited for.

pub mod bodies;
pub mod execs;
pub mod nodes;

use std::time::Instant;

use gpulimit_core::ledger::Category;
use parking_lot::{Condvar, Mutex};

use super::device::Device;
use crate::abi::{GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, Out, SUCCESS};
use crate::capture::relaxed;
use crate::table::cuda;
use execs::Need;

/// Graph memory grows in multiples of this (measured).
pub const STEP: u64 = 32 << 20;

/// Which stream it is: the driver's number of it, and for threads' own default streams the thread's.
pub type Identity = (u64, u64);

#[derive(Default)]
struct State {
    /// Charged for graph memory.
    held: u64,
    /// Of `held`, promised to launches under way that may make it grow.
    prepaid: u64,
    /// Reserved by the driver as last seen.
    reserved: u64,
    /// Launches that are being charged for.
    paying: u32,
    /// Needs of backed launches under way.
    backed: u64,
    /// Stays charged while there are any.
    floor: u64,
    /// Launches under way that begin an epoch.
    beginning: u32,
    epoch: u64,
    /// The stream of the present epoch.
    stream: Option<Identity>,
    /// Launches begun, and ended, so far.
    begun: u64,
    ended: u64,
}

impl State {
    fn idle(&self) -> u64 {
        let floor = if self.backed > 0 { self.floor } else { 0 };
        self.held
            .saturating_sub(self.reserved.max(floor) + self.prepaid)
    }

    fn under_way(&self) -> bool {
        self.prepaid > 0 || self.paying > 0 || self.backed > 0
    }

    /// Bytes to be charged ahead for a launch: where it begins an epoch, also for the backed ones that it may cost their memory.
    fn due(&self, launch: &Launch<'_>) -> u64 {
        match (launch.backed, launch.begins) {
            (true, _) => 0,
            (false, true) => launch.bytes.saturating_add(self.backed),
            (false, false) => launch.bytes,
        }
    }

    /// Promises as much of what is idle as there is of what is due to a launch, which then pays the rest.
    fn lend(&mut self, due: u64) -> u64 {
        let lent = self.idle().min(due);
        self.prepaid += lent;
        self.paying += 1;
        lent
    }
}

/// A launch or an upload under way.
pub struct Launch<'a> {
    need: &'a Need,
    bytes: u64,
    paid: u64,
    backed: bool,
    /// Begins an epoch.
    begins: bool,
    epoch: u64,
    number: u64,
    /// Reserved before it.
    reserved: u64,
    /// There was no graph memory, and no other launch under way, when it was paid for.
    alone: bool,
}

impl Launch<'_> {
    /// Bytes that it takes at most.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The graph memory of a device.
#[derive(Default)]
pub struct GraphMemory {
    state: Mutex<State>,
    /// A launch under way has ended.
    settled: Condvar,
}

impl GraphMemory {
    /// A launch in `stream` (`None`: nobody knows which it is) of a graph that `keeps` something allocated. It is paid for by
    /// [`GraphMemory::pay`] and ends with [`GraphMemory::settle`], whatever comes of it.
    pub fn begin<'a>(&self, need: &'a Need, keeps: bool, stream: Option<Identity>) -> Launch<'a> {
        let mut state = self.state.lock();
        let bytes = need.bytes();
        let same = stream.is_some() && stream == state.stream;
        // One that leaves something allocated must not meet another thread's on its way.
        let apart = state.beginning == 0 && !(keeps && state.backed > 0);
        let backed = same && apart && need.epoch() == state.epoch;
        let begins = keeps || !same;
        if begins {
            state.epoch += 1;
            state.stream = stream;
            state.beginning += 1;
        }
        if backed {
            let floor = if state.backed > 0 { state.floor } else { 0 };
            state.floor = state.reserved.max(floor);
            state.backed = state.backed.saturating_add(bytes);
        }
        state.begun += 1;
        Launch {
            need,
            bytes,
            paid: 0,
            backed,
            begins,
            epoch: state.epoch,
            number: state.begun,
            reserved: state.reserved,
            alone: false,
        }
    }

    /// Pays for what `launch` may take out of what is idle, and for the rest by `charge`, which charges ahead. Before that it waits, no
    /// longer than `until`, for launches of other threads that have it.
    pub fn pay<E>(
        &self,
        device: &Device,
        launch: &mut Launch<'_>,
        until: Option<Instant>,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if launch.backed {
            return Ok(());
        }
        let mut state = self.state.lock();
        if let Some(until) = until {
            while state.under_way() && state.idle() < state.due(launch) {
                if self.settled.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
        }
        let due = state.due(launch);
        let lent = state.lend(due);
        drop(state);
        self.pay_rest(device, launch, due, lent, charge)
    }

    /// As [`GraphMemory::pay`] without waiting, after a trim: what the driver gives back pays first.
    pub fn pay_by_trim<E>(
        &self,
        device: &Device,
        launch: &mut Launch<'_>,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        relaxed(|| cuda::cuDeviceGraphMemTrim(device.ordinal));
        let mut state = self.state.lock();
        self.look(device, &mut state);
        state.epoch += 1;
        launch.epoch = state.epoch;
        launch.reserved = state.reserved;
        let due = state.due(launch);
        let lent = state.lend(due);
        drop(state);
        self.pay_rest(device, launch, due, lent, charge)
    }

    fn pay_rest<E>(
        &self,
        device: &Device,
        launch: &mut Launch<'_>,
        due: u64,
        lent: u64,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let rest = due - lent;
        // Not under the lock: charging may wait.
        let charged = if rest > 0 { charge(rest) } else { Ok(()) };
        let mut state = self.state.lock();
        state.paying -= 1;
        if charged.is_ok() {
            state.held += rest;
            state.prepaid += rest;
            launch.paid = due;
            launch.alone = state.reserved == 0 && state.prepaid == launch.paid && state.backed == 0;
            device.adjust_headroom(launch.paid as i64);
        } else {
            state.prepaid = state.prepaid.saturating_sub(lent);
            self.settled.notify_all();
        }
        charged
    }

    /// The launch is over: looks how much is reserved now. A call that failed may leave what it took: that is trimmed.
    pub fn settle(&self, device: &Device, launch: Launch<'_>, succeeded: bool) {
        let mut state = self.state.lock();
        state.prepaid = state.prepaid.saturating_sub(launch.paid);
        device.adjust_headroom((launch.paid as i64).wrapping_neg());
        if launch.backed {
            state.backed = state.backed.saturating_sub(launch.bytes);
        }
        self.look(device, &mut state);
        if launch.begins {
            state.beginning = state.beginning.saturating_sub(1);
            // Who got its memory meanwhile, in an epoch that this launch did not see, is not sure of it.
            state.epoch += u64::from(state.epoch != launch.epoch);
        }
        if succeeded {
            if state.epoch == launch.epoch {
                launch.need.set_epoch(launch.epoch);
            }
            if launch.alone && launch.number == state.begun && state.reserved > 0 {
                launch.need.learn(state.reserved);
            }
        }
        self.give_back(device, &mut state);
        state.ended += 1;
        self.settled.notify_all();
        let left = !succeeded && state.reserved > launch.reserved;
        drop(state);
        if left {
            self.trim(device);
        }
    }

    /// Bytes that the driver has reserved, as last seen.
    pub fn reserved(&self) -> u64 {
        self.state.lock().reserved
    }

    /// Whether launches that are paid for, or backed, are on their way.
    pub fn under_way(&self) -> bool {
        self.state.lock().under_way()
    }

    /// How many launches have ended so far.
    pub fn ended(&self) -> u64 {
        self.state.lock().ended
    }

    /// Looks outside of a launch.
    pub fn refresh(&self, device: &Device) {
        let mut state = self.state.lock();
        self.look(device, &mut state);
        self.give_back(device, &mut state);
    }

    /// Lets the driver give back what no graph uses.
    pub fn trim(&self, device: &Device) {
        relaxed(|| cuda::cuDeviceGraphMemTrim(device.ordinal));
        self.trimmed(device);
    }

    /// The driver was asked to give back what no graph uses.
    pub fn trimmed(&self, device: &Device) {
        self.state.lock().epoch += 1;
        self.refresh(device);
    }

    /// Gives back what no launch needs: the charge in any case, the memory too if `trim`. True when something came back.
    pub fn reclaim(&self, device: &Device, trim: bool) -> bool {
        let before = self.state.lock().held;
        if before == 0 {
            return false;
        }
        if trim {
            self.trim(device);
        } else {
            self.refresh(device);
        }
        self.state.lock().held < before
    }

    /// The device's last context is gone, and all graph memory with it.
    pub fn clear(&self, device: &Device) {
        let mut state = self.state.lock();
        let gone = State {
            epoch: state.epoch + 1,
            paying: state.paying,
            begun: state.begun,
            ended: state.ended,
            ..State::default()
        };
        let gone = std::mem::replace(&mut *state, gone);
        device.remove(Category::Graphs, gone.reserved);
        device.add_idle(gone.reserved);
        device.uncharge_idle(gone.held);
    }

    fn look(&self, device: &Device, state: &mut State) {
        // Read under our lock so that looks are in order; the call takes no lock that a callback of ours could hold.
        let mut reserved = 0u64;
        let attribute = GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
        let place = Out::of(&mut reserved);
        let asked =
            relaxed(|| cuda::cuDeviceGetGraphMemAttribute(device.ordinal, attribute, place));
        let before = state.reserved;
        // A context with a fault answers nothing, and holds its memory until it is destroyed.
        if asked != SUCCESS || reserved == before {
            return;
        }
        state.reserved = reserved;
        if reserved > before {
            device.add(Category::Graphs, reserved - before);
        } else {
            device.remove(Category::Graphs, before - reserved);
            state.epoch += 1;
        }
        device.adjust_idle(before.wrapping_sub(reserved) as i64);
        if reserved > state.held {
            // Grown by more than was paid, which no driver has been seen to do.
            let beyond = reserved - state.held;
            device.charge_over(beyond);
            device.add_idle(beyond);
            state.held = reserved;
        }
        if reserved > before {
            device.note_usage();
        }
    }

    fn give_back(&self, device: &Device, state: &mut State) {
        let idle = state.idle();
        if idle > 0 {
            state.held -= idle;
            device.uncharge_idle(idle);
        }
    }
}
