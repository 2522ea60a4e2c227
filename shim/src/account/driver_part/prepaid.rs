//! What is paid ahead for one call, as a guard: it goes back where the call is not made, also on a
//! panic.

use super::{DriverPart, Measured, RESERVE, State};
use crate::account::charged::Charged;
use crate::account::device::Device;
use crate::account::request::Request;
use crate::account::rounding::BLOCK;
use crate::refusal::Refused;

/// Bytes of the driver's part that are charged and promised to a call.
#[must_use = "what is not used is given back at once"]
pub struct Prepaid<'a> {
    device: &'a Device,
    bytes: u64,
    /// Bytes beside these that were kept for what a context takes later, and that this call may
    /// take.
    offered: u64,
    /// The driver's part when they were offered: another thread may have measured since then, and
    /// have seen what the call has taken.
    before: u64,
}

impl<'a> Prepaid<'a> {
    /// Nothing yet.
    pub fn none(device: &'a Device) -> Self {
        Prepaid::lent(device, 0)
    }

    /// Pays for a call that may take up to the bytes of the request. What the reserve covers costs
    /// nothing.
    pub fn pay(device: &'a Device, request: Request<'_>) -> Result<Self, Refused> {
        let mut paid = Prepaid::none(device);
        match paid.raise(request) {
            Ok(()) => Ok(paid),
            Err(_) => Err(Refused),
        }
    }

    /// Lends `bytes` of the reserve to a call that is expected not to need them, without a guard:
    /// programs do that by the million. False when there is not so much.
    pub fn lend(device: &Device, bytes: u64) -> bool {
        let mut state = device.driver_part.state.lock();
        let enough = state.idle() >= bytes;
        if enough {
            state.promise(bytes);
        }
        enough
    }

    /// Takes back what was lent.
    pub fn lent(device: &'a Device, bytes: u64) -> Self {
        Prepaid {
            device,
            bytes,
            offered: 0,
            before: 0,
        }
    }

    fn part(&self) -> &'a DriverPart {
        &self.device.driver_part
    }

    /// Raises what is promised to the bytes of the request: out of what is idle, and the rest is
    /// charged. On a refusal it keeps what it had before. `Err`: the bytes that are due.
    pub fn raise(&mut self, request: Request<'_>) -> Result<(), u64> {
        let device = self.device;
        self.raise_by(request.bytes, &|missing| {
            device.charge_ahead(request.with_bytes(missing))
        })
        .map_err(|Refused| request.bytes)
    }

    /// As [`Prepaid::raise`] to `to` bytes, where `charge` charges ahead.
    pub(in crate::account) fn raise_by(
        &mut self,
        to: u64,
        charge: &dyn Fn(u64) -> Result<Charged<'a>, Refused>,
    ) -> Result<(), Refused> {
        // Ends: each round charges what is missing, and what it charges is promised to this call or
        // pays for what the driver has taken beyond all charges. So less is missing in the next
        // one, which the group's limit bounds as well.
        loop {
            let (missing, paying) = {
                let mut state = self.part().state.lock();
                let more = to.saturating_sub(self.bytes);
                let missing = more.saturating_sub(state.idle());
                if missing == 0 {
                    self.bytes += state.promise(more);
                    return Ok(());
                }
                (missing, Paying::begin(self.part(), &mut state))
            };
            // Not under the lock: charging may wait.
            let charged = charge(missing)?;
            let more = to.saturating_sub(self.bytes);
            // In one section: another thread may give back what is charged and not promised.
            let mut state = self.part().state.lock();
            charged.spend();
            state.held += missing;
            self.bytes += state.promise(more);
            drop(state);
            drop(paying);
        }
    }

    /// As [`Prepaid::raise`] to `bytes` beside what the reserve has for a call whose need is not
    /// known: where the group is full what is left of the reserve will do, if that is a block.
    /// Without asking anybody for room. `Err`: the bytes that are due.
    pub fn raise_with_reserve(&mut self, bytes: u64) -> Result<(), u64> {
        self.raise(Request::reclaiming(bytes + RESERVE))
            .or_else(|_| self.raise(Request::trimming(self.with_reserve(bytes))))
            .map_err(|_| self.with_reserve(bytes))
    }

    /// What is due for `bytes` beside what the reserve has: a block of it at least.
    fn with_reserve(&self, bytes: u64) -> u64 {
        let idle = self.part().state.lock().idle();
        match (idle + self.bytes.saturating_sub(bytes)).min(RESERVE) {
            left if left >= BLOCK => bytes + left,
            _ => bytes + RESERVE,
        }
    }

    /// Adds up to `bytes` of what the group has left, and refuses nothing.
    pub fn add_some(&mut self, bytes: u64) {
        let bytes = bytes.min(self.device.book.group_free());
        if bytes == 0 {
            return;
        }
        if let Ok(charged) = self.device.charge_ahead(Request::reclaiming(bytes)) {
            let mut state = self.part().state.lock();
            charged.spend();
            state.held += bytes;
            self.bytes += state.promise(bytes);
        }
    }

    /// Keeps `bytes` of it charged for what its context will take later.
    pub fn reserve(&mut self, bytes: u64) {
        let book = &self.device.book;
        let mut state = self.part().state.lock();
        let kept = bytes.min(self.bytes);
        state.release(kept);
        self.bytes -= kept;
        state.reserved += kept;
        book.adjust_headroom(kept as i64);
        self.part().refill(book, &mut state);
    }

    /// The call may also take `bytes` that are kept. Returns the driver's part before it.
    pub fn offer(&mut self, bytes: u64) -> u64 {
        let mut state = self.part().state.lock();
        state.offer(bytes);
        (self.offered, self.before) = (bytes, state.used);
        self.before
    }

    /// They have become something that is counted apart: they stay charged for that.
    pub fn hand_over(mut self) {
        let mut state = self.part().state.lock();
        let bytes = self.bytes;
        self.release(&mut state, 0);
        state.held = state.held.saturating_sub(bytes);
        self.device.book.remove_idle(bytes);
    }

    /// The call is over, whatever came of it: measures, and settles the charge. `Err` when there is
    /// nothing to measure with.
    pub fn settle(self) -> Result<Measured, Self> {
        self.settle_offer(|_| 0)
    }

    /// As [`Prepaid::settle`]: `taken` tells from the growth of the driver's part how many of the
    /// offered bytes are taken.
    pub fn settle_offer(mut self, taken: impl FnOnce(u64) -> u64) -> Result<Measured, Self> {
        let (Device { book, contexts, .. }, part) = (self.device, self.part());
        let (number, total) = self.device.look();
        let Some(total) = total else {
            return Err(self);
        };
        let mut state = part.state.lock();
        let grown = total.beyond_named().saturating_sub(self.before);
        self.release(&mut state, taken(grown));
        Ok(part.conclude_with(book, contexts, &mut state, number, total))
    }

    /// As [`Prepaid::settle`], without a measurement: the call has made a context of `bytes`.
    pub fn settle_assumed(mut self, bytes: u64) {
        let (Device { book, contexts, .. }, part) = (self.device, self.part());
        let mut state = part.state.lock();
        self.release(&mut state, 0);
        state.assumed.push(bytes);
        let used = state.used + bytes;
        part.enter(book, contexts, &mut state, used);
        part.give_back(book, &mut state);
    }

    /// Nothing is promised any more, and of what was offered so many bytes are `taken`: the others
    /// are kept on.
    fn release(&mut self, state: &mut State, taken: u64) {
        let taken = taken.min(self.offered);
        state.release(self.bytes);
        state.end_offer(self.offered, taken);
        self.device
            .book
            .adjust_headroom((taken as i64).wrapping_neg());
        (self.bytes, self.offered) = (0, 0);
    }
}

/// The call has not been made, or has taken nothing.
impl Drop for Prepaid<'_> {
    fn drop(&mut self) {
        if self.bytes == 0 && self.offered == 0 {
            return;
        }
        let part = self.part();
        let mut state = part.state.lock();
        self.release(&mut state, 0);
        // After a panic nobody knows whether it was made: that stays charged until it is measured
        // (`Process::recover`).
        if !std::thread::panicking() {
            part.give_back(&self.device.book, &mut state);
        }
        part.settled.notify_all();
    }
}

/// A call that is being charged for.
struct Paying<'a>(&'a DriverPart);

impl<'a> Paying<'a> {
    fn begin(part: &'a DriverPart, state: &mut State) -> Self {
        state.paying += 1;
        Paying(part)
    }
}

/// It was refused.
impl Drop for Paying<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.paying = state.paying.saturating_sub(1);
        self.0.settled.notify_all();
    }
}
