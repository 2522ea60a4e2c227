//! The part of a process's memory that no call gives a size for: contexts, code, streams, the driver's own buffers.
//!
//! It is what the driver's own figure for this process (NVML) has over what we can name. Calls that may let it grow are paid in advance
//! by an estimate (`prepaid`), and it is measured after them. A small `reserve` stays charged in between, because the driver also takes a
//! block now and then where nobody would expect it.
//!
//! The blocks that small arrays share are measured with it and shown as theirs ([`Packed`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::BLOCK;
use super::device::{Device, Total};
use super::packed::Packed;
use crate::abi::Context;
use crate::refusal::Refused;

/// Kept charged beyond the measured part while the process has a context: bytes.
pub const RESERVE: u64 = 4 << 20;

#[derive(Default)]
struct State {
    /// Charged for the driver's part.
    held: u64,
    /// The driver's part as last measured.
    used: u64,
    /// Of `used`, what is not charged: contexts, in a group that does not count them.
    uncounted: u64,
    /// Of `held`, promised to calls under way.
    prepaid: u64,
    /// Of `held`, kept for what contexts will take later.
    reserved: u64,
    /// The driver knows this process: there is a context.
    alive: bool,
    /// Contexts made since the last measurement, with the sizes that were assumed for them.
    assumed: Vec<u64>,
    /// Of `used`, what small arrays lie in.
    packed: Packed,
    /// The number of the latest measurement that was entered.
    measured: u64,
}

impl State {
    /// Of the driver's part, what is charged.
    fn counted(&self) -> u64 {
        self.used - self.uncounted
    }

    /// Bytes that have to be charged.
    fn needed(&self) -> u64 {
        self.counted() + self.prepaid + self.reserved
    }

    /// Of these, what is not.
    fn missing(&self) -> u64 {
        self.needed().saturating_sub(self.held)
    }

    fn idle(&self) -> u64 {
        self.held.saturating_sub(self.needed())
    }

    /// Of the idle bytes, what is to be there.
    fn wanted(&self) -> u64 {
        if self.alive { RESERVE } else { 0 }
    }

    /// Idle bytes that are too many.
    fn excess(&self) -> u64 {
        self.idle().saturating_sub(self.wanted())
    }

    /// Idle bytes that are too few.
    fn short(&self) -> u64 {
        self.wanted().saturating_sub(self.idle())
    }

    /// Promises `bytes` of what is idle to a call. `Err`: the bytes that are missing.
    fn promise(&mut self, bytes: u64) -> Result<(), u64> {
        match bytes.saturating_sub(self.idle()) {
            0 => {
                self.prepaid += bytes;
                Ok(())
            }
            missing => Err(missing),
        }
    }

    /// Promises what is idle of `bytes`, if that is a block. Returns the bytes that are promised.
    fn promise_idle(&mut self, bytes: u64) -> Option<u64> {
        let idle = self.idle().min(bytes);
        (idle >= BLOCK).then(|| {
            self.prepaid += idle;
            idle
        })
    }

    /// A call to which `bytes` were promised is over.
    fn release(&mut self, bytes: u64) {
        self.prepaid = self.prepaid.saturating_sub(bytes);
    }

    /// Promises `bytes` that were kept.
    fn offer(&mut self, bytes: u64) {
        self.reserved = self.reserved.saturating_sub(bytes);
        self.prepaid += bytes;
    }

    /// The call to which `bytes` were offered is over, and has `taken` so many of them. The others are kept on.
    fn end_offer(&mut self, bytes: u64, taken: u64) {
        self.release(bytes);
        self.reserved += bytes.saturating_sub(taken);
    }

    /// Of `bytes` by which the driver's part has grown, those that have come out of the reserve.
    fn out_of_reserve(&self, bytes: u64) -> u64 {
        (self.counted() + self.reserved + RESERVE)
            .saturating_sub(self.held)
            .min(bytes)
    }
}

/// The driver's part of a device.
#[derive(Default)]
pub struct DriverShare {
    state: Mutex<State>,
    /// Measurements begun.
    measurements: AtomicU64,
    /// A call under way has ended.
    settled: Condvar,
}

/// What a measurement brought to light.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// The driver's part, bytes.
    pub used: u64,
    /// Bytes that had to be charged although the group had no room for them.
    pub overrun: u64,
}

impl DriverShare {
    /// Charges ahead for a call that may take up to `bytes`. What the reserve covers costs nothing.
    pub fn prepay(&self, device: &Device, symbol: &'static str, bytes: u64) -> Result<(), Refused> {
        self.prepay_by(bytes, |missing| device.charge_ahead(symbol, missing))
    }

    /// As [`DriverShare::prepay`], with what `charge` charges ahead.
    pub fn prepay_by(
        &self,
        bytes: u64,
        charge: impl Fn(u64) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        loop {
            let promised = self.state.lock().promise(bytes);
            let Err(missing) = promised else {
                return Ok(());
            };
            // Not under the lock: charging may wait.
            charge(missing)?;
            self.state.lock().held += missing;
        }
    }

    /// As [`DriverShare::prepay_by`], but where the group is full what is left of the reserve will do, if that is a block. Returns the bytes that are
    /// promised.
    pub fn prepay_from_reserve(
        &self,
        device: &Device,
        bytes: u64,
        charge: impl Fn(u64) -> Result<(), Refused>,
    ) -> Result<u64, Refused> {
        let missing = {
            let mut state = self.state.lock();
            match state.promise(bytes) {
                Ok(()) => return Ok(bytes),
                Err(missing) => missing,
            }
        };
        let charged = device.charge_ahead_without_trim(missing).is_ok();
        let mut state = self.state.lock();
        if charged {
            state.held += missing;
        }
        if let Some(idle) = state.promise_idle(bytes) {
            return Ok(idle);
        }
        drop(state);
        self.prepay_by(bytes, charge).map(|()| bytes)
    }

    /// Waits, no longer than `until`, for another thread's call to give back what it did not need of its estimate. False when there is none to
    /// wait for, or no time. The caller has nothing promised to itself: two would wait for each other.
    pub fn await_others(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        state.prepaid > 0 && !self.settled.wait_until(&mut state, until).timed_out()
    }

    /// As [`DriverShare::prepay`], of what the group has left, and refuses nothing: the bytes that are charged.
    pub fn prepay_some(&self, device: &Device, bytes: u64) -> u64 {
        let bytes = bytes.min(device.group_free());
        if bytes == 0 || device.charge_ahead_without_trim(bytes).is_err() {
            return 0;
        }
        let mut state = self.state.lock();
        state.held += bytes;
        state.prepaid += bytes;
        bytes
    }

    /// Lends `bytes` of the reserve to a call that is expected not to need them. False when there is not so much.
    pub fn borrow(&self, bytes: u64) -> bool {
        self.state.lock().promise(bytes).is_ok()
    }

    /// Takes back what was lent.
    pub fn give_back(&self, bytes: u64) {
        self.state.lock().release(bytes);
    }

    /// The driver's part as last measured, bytes.
    pub fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// The call that paid `bytes` ahead is over (whatever came of it): measure, and settle the charge. `None` when there is nothing to
    /// measure with.
    pub fn settle(&self, device: &Device, bytes: u64) -> Option<Measured> {
        let measured = self.settle_if_measured(device, bytes);
        if measured.is_none() {
            self.cancel(device, bytes);
        }
        measured
    }

    /// The call that paid `bytes` ahead has not been made, or has taken nothing.
    pub fn cancel(&self, device: &Device, bytes: u64) {
        self.give_back(bytes);
        self.trim(device, &mut self.state.lock());
    }

    /// The `bytes` that a call paid ahead have become something that is counted apart: they stay charged for that.
    pub fn hand_over(&self, device: &Device, bytes: u64) {
        let mut state = self.state.lock();
        state.release(bytes);
        state.held = state.held.saturating_sub(bytes);
        device.remove_idle(bytes);
    }

    /// Pays for `bytes` of growth, as far as they have come out of the reserve.
    pub fn make_whole(
        &self,
        device: &Device,
        symbol: &'static str,
        bytes: u64,
    ) -> Result<(), Refused> {
        let missing = self.state.lock().out_of_reserve(bytes);
        if missing > 0 {
            device.charge_ahead(symbol, missing)?;
            self.state.lock().held += missing;
        }
        Ok(())
    }

    /// Changes what is known of small arrays.
    pub fn packed<T>(&self, change: impl FnOnce(&mut Packed) -> T) -> T {
        change(&mut self.state.lock().packed)
    }

    /// A context is gone, and the blocks of its small arrays with it.
    pub fn forget_packed(&self, device: &Device, context: Context) {
        let mut state = self.state.lock();
        state.packed.forget(context);
        device.set_packed(state.packed.bytes());
    }

    /// As [`DriverShare::settle`], without a measurement: the call has made a context of `bytes`.
    pub fn settle_assumed(&self, device: &Device, paid: u64, bytes: u64) {
        let mut state = self.state.lock();
        state.release(paid);
        state.assumed.push(bytes);
        let used = state.used + bytes;
        self.enter(device, &mut state, used);
        self.trim(device, &mut state);
    }

    /// Without a measurement: a context has gone.
    pub fn forget_assumed(&self, device: &Device) {
        let mut state = self.state.lock();
        if let Some(bytes) = state.assumed.pop() {
            let used = state.used.saturating_sub(bytes);
            self.enter(device, &mut state, used);
            self.trim(device, &mut state);
        }
    }

    /// Keeps `bytes` of what a call paid ahead for what its context will take later.
    pub fn reserve(&self, device: &Device, bytes: u64) {
        let mut state = self.state.lock();
        state.release(bytes);
        state.reserved += bytes;
        device.adjust_headroom(bytes as i64);
        self.refill(device, &mut state);
    }

    /// Gives back `bytes` that were kept.
    pub fn unreserve(&self, device: &Device, bytes: u64) {
        let mut state = self.state.lock();
        state.reserved = state.reserved.saturating_sub(bytes);
        device.adjust_headroom((bytes as i64).wrapping_neg());
        self.trim(device, &mut state);
    }

    /// Promises `bytes` that were kept to a call that may take them.
    pub fn offer(&self, bytes: u64) {
        self.state.lock().offer(bytes);
    }

    /// As [`DriverShare::settle`], for a call that was also offered `offered` bytes: `taken` tells from the growth of the driver's part how many of
    /// them are taken. The others are kept on.
    pub fn settle_offer(
        &self,
        device: &Device,
        bytes: u64,
        offered: u64,
        taken: impl FnOnce(u64) -> u64,
    ) -> Option<Measured> {
        let (number, total) = self.look(device);
        let mut state = self.state.lock();
        state.release(bytes);
        let grown = total.map_or(0, |total| total.beyond_named().saturating_sub(state.used));
        let taken = taken(grown).min(offered);
        state.end_offer(offered, taken);
        device.adjust_headroom((taken as i64).wrapping_neg());
        let Some(total) = total else {
            self.trim(device, &mut state);
            return None;
        };
        Some(self.conclude(device, &mut state, number, total))
    }

    /// Without a measurement: the driver's part has changed by so many bytes, for as long as its context lives.
    pub fn assume(&self, device: &Device, change: i64) {
        let mut state = self.state.lock();
        if let Some(context) = state.assumed.last_mut() {
            *context = context.saturating_add_signed(change);
        }
        let used = state.used.saturating_add_signed(change);
        self.enter(device, &mut state, used);
        self.trim(device, &mut state);
    }

    /// Measures the driver's part and brings the charge in line with it. Without a measurement everything stays as it was.
    pub fn measure(&self, device: &Device) -> Option<Measured> {
        self.settle_if_measured(device, 0)
    }

    /// As [`DriverShare::settle`], but where there is nothing to measure with, `bytes` stay promised.
    pub fn settle_if_measured(&self, device: &Device, bytes: u64) -> Option<Measured> {
        let (number, total) = self.look(device);
        let total = total?;
        let mut state = self.state.lock();
        state.release(bytes);
        Some(self.conclude(device, &mut state, number, total))
    }

    /// A measurement, with its number.
    fn look(&self, device: &Device) -> (u64, Option<Total>) {
        let number = self.measurements.fetch_add(1, Ordering::AcqRel) + 1;
        let total = device.measure_total().map(|total| Total {
            named: total.named + self.taken_over(device, total),
            ..total
        });
        (number, total)
    }

    /// What of a measurement is imported memory that has come to this process since the last one.
    fn taken_over(&self, device: &Device, total: Total) -> u64 {
        let grown = total.beyond_named().saturating_sub(self.used());
        device.take_over(grown)
    }

    fn conclude(&self, device: &Device, state: &mut State, number: u64, total: Total) -> Measured {
        // One that was begun later has been entered: it has seen whatever this one was to see, and more.
        let overrun = if number > state.measured {
            state.measured = number;
            let (before, used) = (state.used, total.beyond_named());
            state.alive = total.figure > 0;
            state.assumed.clear();
            state.packed.measured(before, used);
            let overrun = self.enter(device, state, used);
            device.set_packed(state.packed.bytes());
            overrun
        } else {
            0
        };
        self.trim(device, state);
        self.refill(device, state);
        Measured {
            used: state.used,
            overrun,
        }
    }

    /// The driver's part is `used` bytes now. Returns the bytes that had to be charged over the limit.
    fn enter(&self, device: &Device, state: &mut State, used: u64) -> u64 {
        let (before, counted_before) = (state.used, state.counted());
        state.used = used;
        state.uncounted = device.uncounted(used);
        let counted = state.counted();
        device.set_driver(before, used);
        // What came into use is no longer idle; what is charged anew is, until here.
        device.adjust_idle(counted_before.wrapping_sub(counted) as i64);
        let missing = state.missing();
        if missing == 0 {
            if used > before {
                device.note_usage();
            }
            return 0;
        }
        let overrun = if device.try_charge(missing) {
            0
        } else {
            device.charge_over(missing);
            missing
        };
        state.held += missing;
        device.add_idle(missing);
        overrun
    }

    /// After a call: gives back what is idle beyond the reserve.
    fn trim(&self, device: &Device, state: &mut State) {
        let excess = state.excess();
        state.held -= excess;
        device.uncharge_idle(excess);
        self.settled.notify_all();
    }

    fn refill(&self, device: &Device, state: &mut State) {
        let short = state.short();
        if short > 0 && device.try_charge(short) {
            state.held += short;
            device.add_idle(short);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_charged_and_neither_taken_nor_promised_is_idle() {
        let mut state = State {
            held: 100,
            used: 60,
            uncounted: 20,
            prepaid: 10,
            reserved: 5,
            ..State::default()
        };
        assert_eq!(
            (state.counted(), state.needed(), state.idle()),
            (40, 55, 45)
        );
        assert_eq!(state.promise(46), Err(1));
        assert_eq!(state.promise(45), Ok(()));
        assert_eq!((state.prepaid, state.idle()), (55, 0));
        assert_eq!(state.promise(0), Ok(()));
        assert_eq!(state.missing(), 0);
        state.used = 61;
        assert_eq!((state.missing(), state.idle()), (1, 0));
    }

    #[test]
    fn a_reserve_is_kept_as_long_as_there_is_a_context() {
        assert_eq!(RESERVE, 2 * BLOCK);
        let mut state = State {
            held: RESERVE + BLOCK,
            ..State::default()
        };
        assert_eq!((state.excess(), state.short()), (RESERVE + BLOCK, 0));
        state.alive = true;
        assert_eq!((state.excess(), state.short()), (BLOCK, 0));
        state.prepaid = 2 * BLOCK;
        assert_eq!((state.excess(), state.short()), (0, BLOCK));
        state.used = 2 * BLOCK;
        assert_eq!((state.excess(), state.short()), (0, RESERVE));
    }

    #[test]
    fn what_is_left_of_the_reserve_is_promised_where_it_is_a_block() {
        let mut state = State {
            held: RESERVE + 1,
            ..State::default()
        };
        assert_eq!(state.promise_idle(BLOCK), Some(BLOCK));
        assert_eq!(state.promise_idle(RESERVE), Some(BLOCK + 1));
        assert_eq!(state.prepaid, RESERVE + 1);
        state.release(BLOCK - 1);
        assert_eq!(state.promise_idle(RESERVE), None);
        assert_eq!(state.prepaid, BLOCK + 2);
    }

    #[test]
    fn what_is_kept_and_not_taken_is_kept_on() {
        let mut state = State {
            reserved: 30,
            prepaid: 5,
            ..State::default()
        };
        state.offer(20);
        assert_eq!((state.reserved, state.prepaid), (10, 25));
        state.end_offer(20, 15);
        assert_eq!((state.reserved, state.prepaid), (15, 5));
    }

    #[test]
    fn growth_comes_out_of_the_reserve_as_far_as_that_lacks_it() {
        let mut state = State {
            held: 100 + RESERVE,
            used: 80,
            uncounted: 10,
            reserved: 30,
            ..State::default()
        };
        assert_eq!(state.out_of_reserve(BLOCK), 0);
        state.used += 7;
        assert_eq!(state.out_of_reserve(BLOCK), 7);
        state.used += BLOCK;
        assert_eq!(state.out_of_reserve(BLOCK), BLOCK, "the rest is others'");
    }

    #[test]
    fn a_call_waits_for_others_that_are_under_way_and_for_nobody_else() {
        let share = DriverShare::default();
        let hour = Instant::now() + Duration::from_secs(3600);
        assert!(!share.await_others(hour), "there are none");
        share.state.lock().prepaid = BLOCK;
        assert!(!share.await_others(Instant::now()), "no time");
        thread::scope(|threads| {
            let waits = threads.spawn(|| share.await_others(hour));
            while !waits.is_finished() {
                share.settled.notify_all();
                thread::yield_now();
            }
            assert!(waits.join().expect("an answer"));
        });
    }
}
