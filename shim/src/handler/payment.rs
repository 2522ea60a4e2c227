//! Paying ahead for a call that is made under a lock.
//!
//! No request stands in the group's line under a lock ([`crate::account::locks`]). So a call pays
//! quietly under its lock; where there is no room it lets go of the lock, waits, and takes the lock
//! again: what is due may have changed meanwhile.

use std::cell::Cell;
use std::time::Instant;

use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::pools::PATIENCE;
use crate::account::request::Request;
use crate::handler::Call;
use crate::refusal::Refused;

/// A call waits so often for room at most: each time something else has become due meanwhile.
pub const ROUNDS: u32 = 16;

/// Pays for a call under a lock, all or nothing.
pub struct Payment<'b, G> {
    /// Takes the lock.
    pub lock: &'b dyn Fn() -> G,
    /// Pays for what is due, without asking anybody for room. `Err`: the bytes that are due.
    pub pay: &'b dyn Fn(&G, &mut Prepaid<'static>) -> Result<(), u64>,
    /// Whether so many bytes are still due. Asked without the lock.
    pub is_due: &'b dyn Fn(u64) -> bool,
}

impl<G> Payment<'_, G> {
    /// Returns the lock and what is paid. Of what the call has `paid` already nothing is kept while
    /// it waits.
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
                // Other threads' calls may not need all that they have paid.
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

    /// As [`Payment::make`], without waiting. `Err`: the bytes that are due.
    pub fn quietly(&self, mut paid: Prepaid<'static>) -> Result<(G, Prepaid<'static>), u64> {
        let guard = (self.lock)();
        (self.pay)(&guard, &mut paid)?;
        Ok((guard, paid))
    }
}

/// Raises what is paid to the bytes that are due, and waits or refuses as the group wants it. Pays
/// nothing where they are due no more.
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
