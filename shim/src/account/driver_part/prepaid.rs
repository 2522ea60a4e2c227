//! A guard for bytes that are charged before a call in which the driver's own memory may grow.

use super::{Measured, Part, RESERVE, conclude, enter};
use crate::account::charged::Charged;
use crate::account::device::Device;
use crate::account::request::Request;
use crate::account::reserve::{Promise, State};
use crate::account::rounding::BLOCK;
use crate::refusal::Refused;

/// The most bytes that stay promised to calls whose measurement is deferred: four streams' worth.
const DEFERRED: u64 = 4 * RESERVE;

/// Bytes for the driver's own memory that are charged and promised to one call.
#[must_use = "dropping the guard uncharges its bytes"]
pub struct Prepaid<'a> {
    device: &'a Device,
    pub(in crate::account) promise: Promise<'a, Part>,
    /// Further bytes that this call may use. They are kept for memory that contexts take later.
    offered: u64,
    /// The size of the driver's own memory when `offered` was set. Another thread's measurement may
    /// change the recorded size.
    before: u64,
}

impl<'a> Prepaid<'a> {
    /// Returns a guard that promises 0 bytes.
    pub fn none(device: &'a Device) -> Self {
        Prepaid::lent(device, 0)
    }

    /// Charges the bytes of `request`: the most bytes that a call can take. Unused bytes of
    /// [`RESERVE`] are used first.
    pub fn pay(device: &'a Device, request: Request<'_>) -> Result<Self, Refused> {
        let mut paid = Prepaid::none(device);
        match paid.raise(request) {
            Ok(()) => Ok(paid),
            Err(_) => Err(Refused),
        }
    }

    /// Promises `bytes` of [`RESERVE`] to a call. Returns false if fewer are left. Creates no
    /// guard, to save time.
    pub fn lend(device: &Device, bytes: u64) -> bool {
        Promise::lend(&device.driver_part.0, bytes)
    }

    /// Makes a guard for `bytes` that [`Prepaid::lend`] has promised.
    pub fn lent(device: &'a Device, bytes: u64) -> Self {
        Prepaid {
            device,
            promise: Promise::lent(&device.driver_part.0, &device.book, bytes),
            offered: 0,
            before: 0,
        }
    }

    /// Raises the promised bytes to the bytes of `request`. Charged, unused bytes are promised
    /// first.
    ///
    /// A refusal keeps the bytes promised before. `Err` holds the bytes that the call needs.
    pub fn raise(&mut self, request: Request<'_>) -> Result<(), u64> {
        let device = self.device;
        let charge = |missing| {
            let charged = device.charge_for_driver(request.with_bytes(missing));
            charged.map(Charged::spend)
        };
        let raised = self.promise.raise(request.bytes, &charge);
        raised.map_err(|Refused| request.bytes)
    }

    /// Raises the promised bytes to `bytes` plus [`RESERVE`], for a call whose need is unknown.
    /// Never waits for room.
    ///
    /// In a full group, adds only the unused rest of the reserve. `Err` holds the bytes that the
    /// call needs.
    pub fn raise_with_reserve(&mut self, bytes: u64) -> Result<(), u64> {
        self.raise(Request::reclaiming(bytes + RESERVE))
            .or_else(|_| self.raise(Request::trimming(self.with_reserve(bytes))))
            .map_err(|_| self.with_reserve(bytes))
    }

    /// Returns `bytes` plus the unused rest of [`RESERVE`], or plus a whole [`RESERVE`] if the rest
    /// is below 2 MiB.
    fn with_reserve(&self, bytes: u64) -> u64 {
        let idle = self.device.driver_part.0.read().idle();
        match (idle + self.promise.bytes.saturating_sub(bytes)).min(RESERVE) {
            left if left >= BLOCK => bytes + left,
            _ => bytes + RESERVE,
        }
    }

    /// Adds up to `bytes` to the guard, but no more than the group has free. Never fails.
    pub fn add_some(&mut self, bytes: u64) {
        let bytes = bytes.min(self.device.book.group.free());
        if bytes == 0 {
            return;
        }
        if let Ok(charged) = self.device.charge_for_driver(Request::reclaiming(bytes)) {
            charged.spend();
            self.promise.add(bytes, self.promise.bytes + bytes);
        }
    }

    /// Keeps up to `bytes` of the guard charged for memory that the context will take later.
    pub fn reserve(&mut self, bytes: u64) {
        let mut state = self.promise.change();
        let kept = bytes.min(self.promise.bytes);
        state.release(kept);
        self.promise.bytes -= kept;
        state.kept += kept;
        state.refill();
    }

    /// Lets the call use `bytes` that are kept for contexts. Returns the size of the driver's own
    /// memory before the call.
    pub fn offer(&mut self, bytes: u64) -> u64 {
        (self.offered, self.before) = (bytes, self.device.driver_part.used());
        self.before
    }

    /// Hands the promised bytes over to another record of the account. They stay charged.
    pub fn hand_over(mut self) {
        let mut state = self.promise.change();
        state.held = state.held.saturating_sub(self.promise.bytes);
        self.device.book.remove_idle(self.promise.bytes);
        self.release(&mut state, 0);
    }

    /// Ends the call and leaves its measurement to a later call, until which its bytes stay
    /// promised. They must be the most that the call can have taken, and [`RESERVE`] must be whole
    /// besides. Returns `Err(self)` if the call has to be measured now.
    pub fn defer(mut self) -> Result<(), Self> {
        // The figure of a measurement under way may be older than the call.
        let is_seen_later = self.device.has_measured() && !self.device.is_measuring();
        let mut state = self.promise.change();
        state.refill();
        let deferred = state.own.deferred + self.promise.bytes;
        if !is_seen_later || deferred > DEFERRED || state.short() > 0 {
            drop(state);
            return Err(self);
        }
        state.promised += self.promise.bytes;
        self.release(&mut state, 0);
        state.own.deferred = deferred;
        Ok(())
    }

    /// Ends the call: measures the driver's own memory and corrects its charge. Where NVML gives no
    /// figure, returns `Err(self)`.
    pub fn settle(self) -> Result<Measured, Self> {
        self.settle_offer(|_| 0)
    }

    /// Ends the call like [`Prepaid::settle`]. `taken` converts the growth of the driver's own
    /// memory into the used bytes of [`Prepaid::offer`].
    pub fn settle_offer(mut self, taken: impl FnOnce(u64) -> u64) -> Result<Measured, Self> {
        let (number, total) = self.device.look();
        let Some(total) = total else {
            return Err(self);
        };
        let mut state = self.promise.change();
        let grown = total.beyond_named().saturating_sub(self.before);
        self.release(&mut state, taken(grown));
        Ok(conclude(&self.device.contexts, state, number, total))
    }

    /// Ends a call that cannot be measured. Its bytes count as the driver's until a measurement
    /// tells, except `known` bytes, of which the caller has another record. Where NVML lists no
    /// processes, no measurement will ever tell, and the bytes are given back.
    pub fn settle_unmeasured(mut self, known: u64) {
        if self.device.is_unlisted() {
            return;
        }
        let mut state = self.promise.change();
        let used = state.own.size + self.promise.bytes.saturating_sub(known);
        self.release(&mut state, 0);
        state.headroom = RESERVE;
        enter(&self.device.contexts, &mut state, used);
        state.give_back();
        state.refill();
    }

    /// Ends a call that has made a context, where NVML gives no figure. The context is assumed to
    /// take `bytes`.
    pub fn settle_assumed(mut self, bytes: u64) {
        let mut state = self.promise.change();
        self.release(&mut state, 0);
        state.own.assumed.push(bytes);
        let used = state.own.size + bytes;
        enter(&self.device.contexts, &mut state, used);
        state.give_back();
    }

    /// Ends the promise of bytes to the call, which has taken `taken` of the offered ones.
    fn release(&mut self, state: &mut State<Part>, taken: u64) {
        self.promise.end(state);
        let taken = taken.min(std::mem::take(&mut self.offered));
        state.kept = state.kept.saturating_sub(taken);
    }
}
