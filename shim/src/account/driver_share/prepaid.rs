//! What is paid ahead for one call, as a guard: it goes back where the call is not made, also on a panic.

use super::{DriverShare, Measured, RESERVE, State};
use crate::account::BLOCK;
use crate::account::device::Device;
use crate::refusal::Refused;

/// A way to charge bytes ahead.
pub type Charge<'a> = &'a dyn Fn(u64) -> Result<(), Refused>;

/// Bytes of the driver's part that are charged and promised to a call.
#[must_use = "what is not used is given back at once"]
pub struct Prepaid<'a> {
    device: &'a Device,
    bytes: u64,
}

impl<'a> Prepaid<'a> {
    /// Nothing yet.
    pub fn none(device: &'a Device) -> Self {
        Prepaid { device, bytes: 0 }
    }

    /// Charges ahead for a call that may take up to `bytes`, and waits or refuses as the group wants it. What the reserve covers costs nothing.
    pub fn pay(device: &'a Device, symbol: &'static str, bytes: u64) -> Result<Self, Refused> {
        let mut paid = Prepaid::none(device);
        paid.raise(bytes, &|missing| device.charge_ahead(symbol, missing))?;
        Ok(paid)
    }

    /// Leaves it promised without a guard: [`Prepaid::lent`] takes it back. For what programs do by the million, where a guard would be felt.
    pub fn lend(self) {
        std::mem::forget(self);
    }

    /// Takes back what was lent.
    pub fn lent(device: &'a Device, bytes: u64) -> Self {
        Prepaid { device, bytes }
    }

    fn driver_share(&self) -> &'a DriverShare {
        &self.device.driver_share
    }

    /// Takes `bytes` more of what is idle: all or nothing.
    pub(super) fn take_idle(&mut self, state: &mut State, bytes: u64) -> bool {
        let enough = state.idle() >= bytes;
        if enough {
            self.bytes += state.promise(bytes);
        }
        enough
    }

    /// Raises what is promised to `to` bytes: out of what is idle, and the rest by `charge`. On a refusal it keeps what it had before.
    pub fn raise(&mut self, to: u64, charge: Charge<'_>) -> Result<(), Refused> {
        // Ends: each round charges what is missing, and what it charges is promised to this call or pays for what the driver has taken
        // beyond all charges. So less is missing in the next one, which the group's limit bounds as well.
        loop {
            let (missing, paying) = {
                let mut state = self.driver_share().state.lock();
                let more = to.saturating_sub(self.bytes);
                if self.take_idle(&mut state, more) {
                    return Ok(());
                }
                (
                    more - state.idle(),
                    Paying::begin(self.driver_share(), &mut state),
                )
            };
            // Not under the lock: charging may wait.
            charge(missing)?;
            let more = to.saturating_sub(self.bytes);
            // In one section: another thread may give back what is charged and not promised.
            self.bytes += paying.end(|state| {
                state.held += missing;
                state.promise(more)
            });
        }
    }

    /// As [`Prepaid::raise`] to `bytes` beside what the reserve has for a call whose need is not known: where the group is full what is left of the
    /// reserve will do, if that is a block. Without asking anybody for room.
    pub fn raise_with_reserve(&mut self, bytes: u64) -> Result<(), Refused> {
        let device = self.device;
        let without_trim = |missing| device.charge_ahead_without_trim(missing);
        self.raise(bytes + RESERVE, &without_trim).or_else(|_| {
            let due = self.with_reserve(bytes);
            self.raise(due, &|missing| device.charge_ahead_quietly(missing))
        })
    }

    /// What is due for `bytes` beside what the reserve has: a block of it at least.
    pub fn with_reserve(&self, bytes: u64) -> u64 {
        let idle = self.driver_share().state.lock().idle();
        match (idle + self.bytes.saturating_sub(bytes)).min(RESERVE) {
            left if left >= BLOCK => bytes + left,
            _ => bytes + RESERVE,
        }
    }

    /// Adds up to `bytes` of what the group has left, and refuses nothing.
    pub fn add_some(&mut self, bytes: u64) {
        let bytes = bytes.min(self.device.group_free());
        if bytes == 0 || self.device.charge_ahead_without_trim(bytes).is_err() {
            return;
        }
        let mut state = self.driver_share().state.lock();
        state.held += bytes;
        self.bytes += state.promise(bytes);
    }

    /// Keeps `bytes` of it charged for what its context will take later.
    pub fn reserve(&mut self, bytes: u64) {
        let mut state = self.driver_share().state.lock();
        let kept = bytes.min(self.bytes);
        self.release(&mut state, kept);
        state.reserved += kept;
        self.device.adjust_headroom(kept as i64);
        self.driver_share().refill(self.device, &mut state);
    }

    /// They have become something that is counted apart: they stay charged for that.
    pub fn hand_over(mut self) {
        let mut state = self.driver_share().state.lock();
        let bytes = self.release_all(&mut state);
        state.held = state.held.saturating_sub(bytes);
        self.device.remove_idle(bytes);
    }

    /// The call is over, whatever came of it: measures, and settles the charge. `Err` when there is nothing to measure with.
    pub fn settle(mut self) -> Result<Measured, Self> {
        let driver = self.driver_share();
        let (number, total) = driver.look(self.device);
        let Some(total) = total else {
            return Err(self);
        };
        let mut state = driver.state.lock();
        self.release_all(&mut state);
        Ok(driver.conclude(self.device, &mut state, number, total))
    }

    /// As [`Prepaid::settle`], without a measurement: the call has made a context of `bytes`.
    pub fn settle_assumed(mut self, bytes: u64) {
        let driver = self.driver_share();
        let mut state = driver.state.lock();
        self.release_all(&mut state);
        state.assumed.push(bytes);
        let used = state.used + bytes;
        driver.enter(self.device, &mut state, used);
        driver.trim(self.device, &mut state);
    }

    /// As [`Prepaid::settle`], for a call that was also offered `offered` bytes: `taken` tells from
    /// the growth of the driver's part since `before` how many of them are taken. The others are
    /// kept on. `before` is the driver's part in use before the call: another thread may have
    /// measured since then, and have seen what the call has taken.
    pub fn settle_offer(
        mut self,
        offered: u64,
        before: u64,
        taken: impl FnOnce(u64) -> u64,
    ) -> Option<Measured> {
        let (device, driver) = (self.device, self.driver_share());
        let (number, total) = driver.look(device);
        let mut state = driver.state.lock();
        self.release_all(&mut state);
        let grown = total.map_or(0, |total| total.beyond_named().saturating_sub(before));
        let taken = taken(grown).min(offered);
        state.end_offer(offered, taken);
        device.adjust_headroom((taken as i64).wrapping_neg());
        let Some(total) = total else {
            driver.trim(device, &mut state);
            return None;
        };
        Some(driver.conclude(device, &mut state, number, total))
    }

    fn release(&mut self, state: &mut State, bytes: u64) {
        state.release(bytes);
        self.bytes -= bytes;
    }

    fn release_all(&mut self, state: &mut State) -> u64 {
        let bytes = self.bytes;
        self.release(state, bytes);
        bytes
    }
}

/// The call has not been made, or has taken nothing.
impl Drop for Prepaid<'_> {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut state = self.driver_share().state.lock();
        self.release_all(&mut state);
        // After a panic nobody knows whether it was made: that stays charged until it is measured (`Process::recover`).
        if !std::thread::panicking() {
            self.driver_share().trim(self.device, &mut state);
        }
        self.driver_share().settled.notify_all();
    }
}

/// A call that is being charged for.
struct Paying<'a>(&'a DriverShare);

impl<'a> Paying<'a> {
    fn begin(driver: &'a DriverShare, state: &mut State) -> Self {
        state.paying += 1;
        Paying(driver)
    }

    /// It has been charged for: `enter` tells the state.
    fn end<T>(self, enter: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.state.lock();
        let entered = enter(&mut state);
        self.leave(&mut state);
        std::mem::forget(self);
        entered
    }

    fn leave(&self, state: &mut State) {
        state.paying = state.paying.saturating_sub(1);
        self.0.settled.notify_all();
    }
}

/// It was refused.
impl Drop for Paying<'_> {
    fn drop(&mut self) {
        self.leave(&mut self.0.state.lock());
    }
}
