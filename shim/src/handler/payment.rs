//! The payment for a driver call that must be made under a lock of gpulimit.
//!
//! A thread must not wait for room in the group while it holds a lock ([`crate::account::locks`]).
//! So the thread first tries to pay under the lock without waiting. Where the group has no room,
//! the thread releases the lock, waits for room, and takes the lock again. Meanwhile the number of
//! bytes to pay may have changed.

use std::cell::Cell;
use std::time::Instant;

use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::pools::PATIENCE;
use crate::account::request::Request;
use crate::handler::Call;
use crate::refusal::Refused;

/// The most times that a driver call waits for room in the group. It waits again only where the
/// bytes to pay have changed while it waited.
pub const ROUNDS: u32 = 16;

/// The payment for a driver call under a lock: in full or not at all.
pub struct Payment<'b, G> {
    /// Takes the lock.
    pub lock: &'b dyn Fn() -> G,
    /// Pays for the bytes that the call needs, without waiting for room. On failure returns the
    /// number of bytes that the call needs.
    pub pay: &'b dyn Fn(&G, &mut Prepaid<'static>) -> Result<(), u64>,
    /// Returns whether the driver call still needs this many bytes. Called while the thread does
    /// not hold the lock.
    pub is_due: &'b dyn Fn(u64) -> bool,
}

impl<G> Payment<'_, G> {
    /// Takes the lock and pays. Returns the guard of the lock, and the payment. Where the thread
    /// must wait, it first gives back what it has `paid` so far.
    pub fn make(
        &self,
        call: Call,
        device: &'static Device,
        mut paid: Prepaid<'static>,
    ) -> Result<(G, Prepaid<'static>), Refused> {
        let mut rounds = 0;
        let mut until = None;
        loop {
            let guard = (self.lock)();
            let due = match (self.pay)(&guard, &mut paid) {
                Ok(()) => return Ok((guard, paid)),
                Err(due) => due,
            };
            drop(guard);
            if rounds == 0 {
                paid = Prepaid::none(device);
                // Driver calls of other threads may soon give back a part of what they have paid.
                // Waits for these calls, and then tries again to pay.
                let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
                if device.driver_part.await_others(until) {
                    continue;
                }
            }
            if rounds == ROUNDS {
                return Err(device.refuse(call.symbol, due));
            }
            rounds += 1;
            insist(call, &mut paid, due, self.is_due)?;
        }
    }

    /// Does the work of [`Payment::make`] without waiting. On failure returns the number of bytes
    /// that are still to be paid.
    pub fn quietly(&self, mut paid: Prepaid<'static>) -> Result<(G, Prepaid<'static>), u64> {
        let guard = (self.lock)();
        (self.pay)(&guard, &mut paid)?;
        Ok((guard, paid))
    }
}

/// Raises the payment to `due` bytes. Where the group has no room, waits or refuses as the group's
/// options say. Pays nothing where `is_due` says that the bytes are no longer needed.
pub fn insist(
    call: Call,
    paid: &mut Prepaid<'_>,
    due: u64,
    is_due: &dyn Fn(u64) -> bool,
) -> Result<(), Refused> {
    let is_needed = Cell::new(true);
    let look = || {
        is_needed.set(is_due(due));
        is_needed.get()
    };
    let request = Request::insisting(call.symbol, due).as_long_as(&look);
    match paid.raise(request) {
        Err(_) if is_needed.get() => Err(Refused),
        _ => Ok(()),
    }
}
