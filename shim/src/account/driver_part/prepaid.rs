//! Bytes of the driver's part that are paid ahead for one call, as a guard: they go back where the
//! call is not made, also on a panic.

use super::{DriverPart, Measured, RESERVE, State};
use crate::account::charged::Charged;
use crate::account::device::Device;
use crate::account::request::Request;
use crate::account::rounding::BLOCK;
use crate::refusal::Refused;

/// Bytes of the driver's part that are charged and promised to a call.
#[must_use = "bytes that are not used are given back at once"]
pub struct Prepaid<'a> {
    device: &'a Device,
    bytes: u64,
    /// Further bytes that were kept for what a context takes later, and that this call may take.
    offered: u64,
    /// The driver's part when `offered` was set: another thread may have measured since then and
    /// have seen what the call has taken.
    before: u64,
}

impl<'a> Prepaid<'a> {
    /// Returns a guard of 0 bytes.
    pub fn none(device: &'a Device) -> Self {
        Prepaid::lent(device, 0)
    }

    /// Pays for a call that may take up to the bytes of the request. Bytes that the reserve covers
    /// are not charged again.
    pub fn pay(device: &'a Device, request: Request<'_>) -> Result<Self, Refused> {
        let mut paid = Prepaid::none(device);
        match paid.raise(request) {
            Ok(()) => Ok(paid),
            Err(_) => Err(Refused),
        }
    }

    /// Lends `bytes` of the reserve to a call that is expected not to need them. There is no guard,
    /// because programs make such calls by the million. False when the reserve has fewer bytes.
    pub fn lend(device: &Device, bytes: u64) -> bool {
        let mut state = device.driver_part.state.lock();
        let enough = state.idle() >= bytes;
        if enough {
            state.promise(bytes);
        }
        enough
    }

    /// Makes a guard of `bytes` that were lent by [`Prepaid::lend`].
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

    /// Raises what is promised to the bytes of the request: first out of the idle bytes, and the
    /// rest is charged. On a refusal the guard keeps what it had before; `Err` holds the bytes that
    /// are due.
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
        // The loop ends: each round charges what is missing, and this is either promised to this
        // call or pays for memory that the driver has taken beyond all charges. So less is missing
        // in the next round, and the group's limit bounds it as well.
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
            // Charging may wait, so it happens outside of the lock.
            let charged = charge(missing)?;
            let more = to.saturating_sub(self.bytes);
            // Under one lock: otherwise another thread might give back what is charged before it is
            // promised.
            let mut state = self.part().state.lock();
            charged.spend();
            state.held += missing;
            self.bytes += state.promise(more);
            drop(state);
            drop(paying);
        }
    }

    /// As [`Prepaid::raise`] to `bytes` beside the reserve, for a call whose need is unknown. Where
    /// the group is full, what is left of the reserve will do if it is at least a block. Never
    /// waits for room in the group. `Err` holds the bytes that are due.
    pub fn raise_with_reserve(&mut self, bytes: u64) -> Result<(), u64> {
        self.raise(Request::reclaiming(bytes + RESERVE))
            .or_else(|_| self.raise(Request::trimming(self.with_reserve(bytes))))
            .map_err(|_| self.with_reserve(bytes))
    }

    /// Returns what is due for `bytes` beside what is left of the reserve; where less than a block
    /// is left, beside a whole reserve.
    fn with_reserve(&self, bytes: u64) -> u64 {
        let idle = self.part().state.lock().idle();
        match (idle + self.bytes.saturating_sub(bytes)).min(RESERVE) {
            left if left >= BLOCK => bytes + left,
            _ => bytes + RESERVE,
        }
    }

    /// Adds up to `bytes` of what the group has left. Never fails.
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

    /// Keeps up to `bytes` of the guard charged for what its context will take later.
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

    /// Offers `bytes` that are kept for contexts to the call. Returns the driver's part before the
    /// call.
    pub fn offer(&mut self, bytes: u64) -> u64 {
        let mut state = self.part().state.lock();
        state.offer(bytes);
        (self.offered, self.before) = (bytes, state.used);
        self.before
    }

    /// Hands the bytes, which stay charged, over to another record of the account.
    pub fn hand_over(mut self) {
        let mut state = self.part().state.lock();
        let bytes = self.bytes;
        self.release(&mut state, 0);
        state.held = state.held.saturating_sub(bytes);
        self.device.book.remove_idle(bytes);
    }

    /// Ends the call, whether it succeeded or not: measures, and corrects the charge. `Err` returns
    /// the guard when nothing can be measured.
    pub fn settle(self) -> Result<Measured, Self> {
        self.settle_offer(|_| 0)
    }

    /// As [`Prepaid::settle`]. `taken` says, from the growth of the driver's part, how many of the
    /// offered bytes the call has taken.
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

    /// As [`Prepaid::settle`] where nothing can be measured: the call has made a context of
    /// `bytes`.
    pub fn settle_assumed(mut self, bytes: u64) {
        let (Device { book, contexts, .. }, part) = (self.device, self.part());
        let mut state = part.state.lock();
        self.release(&mut state, 0);
        state.assumed.push(bytes);
        let used = state.used + bytes;
        part.enter(book, contexts, &mut state, used);
        part.give_back(book, &mut state);
    }

    /// Ends the promise. Of the offered bytes `taken` are taken and the others are kept again.
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

/// The call has not been made, or has taken no memory.
impl Drop for Prepaid<'_> {
    fn drop(&mut self) {
        if self.bytes == 0 && self.offered == 0 {
            return;
        }
        let part = self.part();
        let mut state = part.state.lock();
        self.release(&mut state, 0);
        // After a panic it is not known whether the call was made: the bytes stay charged until a
        // measurement tells (`Process::recover`).
        if !std::thread::panicking() {
            part.give_back(&self.device.book, &mut state);
        }
        part.settled.notify_all();
    }
}

/// A call that is being charged for, until this guard is dropped.
struct Paying<'a>(&'a DriverPart);

impl<'a> Paying<'a> {
    fn begin(part: &'a DriverPart, state: &mut State) -> Self {
        state.paying += 1;
        Paying(part)
    }
}

impl Drop for Paying<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.paying = state.paying.saturating_sub(1);
        self.0.settled.notify_all();
    }
}
