//! Payment for a call that is made under a lock.
//!
//! A request must not wait for room while its thread holds a lock ([`crate::account::locks`]). So a
//! call first pays quietly under its lock. Where there is no room it releases the lock, waits for
//! room, and takes the lock again. The bytes that are due may have changed by then.

use std::cell::Cell;
use std::time::Instant;

use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::pools::PATIENCE;
use crate::account::request::Request;
use crate::handler::Call;
use crate::refusal::Refused;

/// The most times that a call waits for room. It waits again only where other bytes have become due
/// meanwhile.
pub const ROUNDS: u32 = 16;

/// Pays for a call under a lock, in full or not at all.
pub struct Payment<'b, G> {
    /// Takes the lock.
    pub lock: &'b dyn Fn() -> G,
    /// Pays for the bytes that are due, without waiting in the group's line. On failure returns
    /// these bytes.
    pub pay: &'b dyn Fn(&G, &mut Prepaid<'static>) -> Result<(), u64>,
    /// Returns whether this many bytes are still due. Called without the lock.
    pub is_due: &'b dyn Fn(u64) -> bool,
}

impl<G> Payment<'_, G> {
    /// Returns the lock and the payment. Gives back what the call has `paid` before while it waits.
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
                // Other threads' calls may give back a part of what they have paid.
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

    /// Does the work of [`Payment::make`] without waiting. On failure returns the bytes that are
    /// due.
    pub fn quietly(&self, mut paid: Prepaid<'static>) -> Result<(G, Prepaid<'static>), u64> {
        let guard = (self.lock)();
        (self.pay)(&guard, &mut paid)?;
        Ok((guard, paid))
    }
}

/// Raises the payment to the bytes that are due; waits or refuses as the group's options say. Pays
/// nothing where they are no longer due.
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
