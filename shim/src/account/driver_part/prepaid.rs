//! A guard for bytes that are charged before a call in which the driver's own memory may grow.

use super::{DriverPart, Measured, RESERVE, State};
use crate::account::charged::Charged;
use crate::account::device::Device;
use crate::account::request::Request;
use crate::account::rounding::BLOCK;
use crate::refusal::Refused;

/// The most bytes that stay promised to calls whose measurement is deferred: four streams' worth.
const DEFERRED: u64 = 4 * RESERVE;

/// Bytes for the driver's own memory that are charged and promised to one call.
#[must_use = "dropping the guard uncharges its bytes"]
pub struct Prepaid<'a> {
    device: &'a Device,
    bytes: u64,
    /// Further bytes that this call may use. They were kept for memory that contexts take later.
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
        let mut state = device.driver_part.state.lock();
        let enough = state.idle() >= bytes;
        if enough {
            state.promise(bytes);
        }
        enough
    }

    /// Makes a guard for `bytes` that [`Prepaid::lend`] has promised.
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

    /// Raises the promised bytes to the bytes of `request`. Charged, unused bytes are promised
    /// first.
    ///
    /// A refusal keeps the bytes promised before. `Err` holds the bytes that the call needs.
    pub fn raise(&mut self, request: Request<'_>) -> Result<(), u64> {
        let device = self.device;
        self.raise_by(request.bytes, &|missing| {
            device.charge_for_driver(request.with_bytes(missing))
        })
        .map_err(|Refused| request.bytes)
    }

    /// Raises the promised bytes to `to` like [`Prepaid::raise`]. Calls `charge` with the bytes to
    /// charge in advance.
    pub(in crate::account) fn raise_by(
        &mut self,
        to: u64,
        charge: &dyn Fn(u64) -> Result<Charged<'a>, Refused>,
    ) -> Result<(), Refused> {
        // The loop ends, because each round charges bytes and leaves fewer bytes missing.
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
            // `charge` can wait for room in the group. So no lock is held during the call.
            let charged = charge(missing)?;
            let more = to.saturating_sub(self.bytes);
            // The new bytes are recorded and promised under one lock. Otherwise another thread
            // might uncharge them in between.
            let mut state = self.part().state.lock();
            charged.spend();
            state.held += missing;
            self.bytes += state.promise(more);
            drop(state);
            drop(paying);
        }
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
        let idle = self.part().state.lock().idle();
        match (idle + self.bytes.saturating_sub(bytes)).min(RESERVE) {
            left if left >= BLOCK => bytes + left,
            _ => bytes + RESERVE,
        }
    }

    /// Adds up to `bytes` to the guard, but no more than the group has free. Never fails.
    pub fn add_some(&mut self, bytes: u64) {
        let bytes = bytes.min(self.device.book.group_free());
        if bytes == 0 {
            return;
        }
        if let Ok(charged) = self.device.charge_for_driver(Request::reclaiming(bytes)) {
            let mut state = self.part().state.lock();
            charged.spend();
            state.held += bytes;
            self.bytes += state.promise(bytes);
        }
    }

    /// Keeps up to `bytes` of the guard charged for memory that the context will take later.
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

    /// Lets the call use `bytes` that are kept for contexts. Returns the size of the driver's own
    /// memory before the call.
    pub fn offer(&mut self, bytes: u64) -> u64 {
        let mut state = self.part().state.lock();
        state.offer(bytes);
        (self.offered, self.before) = (bytes, state.used);
        self.before
    }

    /// Hands the promised bytes over to another record of the account. They stay charged.
    pub fn hand_over(mut self) {
        let mut state = self.part().state.lock();
        let bytes = self.bytes;
        self.release(&mut state, 0);
        state.held = state.held.saturating_sub(bytes);
        self.device.book.remove_idle(bytes);
    }

    /// Ends the call and leaves its measurement to a later call, until which its bytes stay
    /// promised. They must be the most that the call can have taken, and [`RESERVE`] must be whole
    /// besides. Returns `Err(self)` if the call has to be measured now.
    pub fn defer(mut self) -> Result<(), Self> {
        let (device, part) = (self.device, self.part());
        // The figure of a measurement under way may be older than the call.
        let is_seen_later = device.has_measured() && !device.is_measuring();
        let mut state = part.state.lock();
        part.refill(&device.book, &mut state);
        let deferred = state.deferred + self.bytes;
        if !is_seen_later || deferred > DEFERRED || state.short() > 0 {
            drop(state);
            return Err(self);
        }
        self.release(&mut state, 0);
        state.deferred = deferred;
        part.settled.notify_all();
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

    /// Ends a call that cannot be measured. Its bytes count as the driver's until a measurement
    /// tells, except `known` bytes, of which the caller has another record. Where NVML lists no
    /// processes, no measurement will ever tell, and the bytes are given back.
    pub fn settle_unmeasured(mut self, known: u64) {
        if self.device.is_unlisted() {
            return;
        }
        let (Device { book, contexts, .. }, part) = (self.device, self.part());
        let mut state = part.state.lock();
        let used = state.used + self.bytes.saturating_sub(known);
        self.release(&mut state, 0);
        state.alive = true;
        part.enter(book, contexts, &mut state, used);
        part.give_back(book, &mut state);
        part.refill(book, &mut state);
    }

    /// Ends a call that has made a context, where NVML gives no figure. The context is assumed to
    /// take `bytes`.
    pub fn settle_assumed(mut self, bytes: u64) {
        let (Device { book, contexts, .. }, part) = (self.device, self.part());
        let mut state = part.state.lock();
        self.release(&mut state, 0);
        state.assumed.push(bytes);
        let used = state.used + bytes;
        part.enter(book, contexts, &mut state, used);
        part.give_back(book, &mut state);
    }

    /// Ends the promise of bytes to the call. Offered bytes beyond `taken` are kept for contexts
    /// again.
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

/// The guard is dropped when the call was not made or has taken no memory.
impl Drop for Prepaid<'_> {
    fn drop(&mut self) {
        if self.bytes == 0 && self.offered == 0 {
            return;
        }
        let part = self.part();
        let mut state = part.state.lock();
        self.release(&mut state, 0);
        // After a panic it is unknown whether the driver was called. So the bytes stay charged
        // until `Process::recover` measures.
        if !std::thread::panicking() {
            part.give_back(&self.device.book, &mut state);
        }
        part.settled.notify_all();
    }
}

/// A guard that exists while bytes are being charged for a call.
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
