//! The payment for a driver call that must be made under a lock of gpulimit.
//!
//! A thread must not wait for room while it holds a lock ([`crate::account::locks`]). So the thread
//! first tries to pay under the lock, and releases the lock before it waits.

use std::cell::Cell;
use std::time::Instant;

use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::pools::patience;
use crate::account::request::Request;
use crate::handler::Call;
use crate::refusal::Refused;

/// The most times that a driver call waits for room. The bytes to pay can change during each wait.
pub const ROUNDS: u32 = 16;

/// The payment for a driver call under a lock: in full or not at all.
pub struct Payment<'b, G> {
    /// Takes the lock.
    pub lock: &'b dyn Fn() -> G,
    /// Pays for the bytes that the call needs, without waiting. On failure returns the number of
    /// these bytes.
    pub pay: &'b dyn Fn(&G, &mut Prepaid<'static>) -> Result<(), u64>,
    /// Returns whether the driver call still needs this many bytes. Called while the thread does
    /// not hold the lock.
    pub is_due: &'b dyn Fn(u64) -> bool,
}

impl<G> Payment<'_, G> {
    /// Takes the lock and pays. Returns the guard and the payment. A thread that must wait first
    /// gives back `paid`.
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
                // Driver calls of other threads may soon give back a part of their payments. Waits
                // for these calls.
                let until = *until.get_or_insert_with(|| Instant::now() + patience());
                if device.driver_part.await_others(until) {
                    continue;
                }
            }
            if rounds == ROUNDS {
                return Err(device.refuse(call.symbol, due, None));
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

/// Raises the payment to `due` bytes. Waits or refuses if the group is full; pays nothing unless
/// `is_due`.
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
