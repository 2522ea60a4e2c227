//! The payment for the new block that a small request may take, as a guard: it goes back where the
//! request takes no block, also by a panic.

use std::mem::ManuallyDrop;

use crate::account::BLOCK;
use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::request::Request;
use crate::account::spare::Spare;
use crate::refusal::Refused;

/// The means by which a block is paid.
#[derive(Clone, Copy)]
enum Means<'a> {
    /// A spare block.
    Spare(&'a Spare),
    /// A block that was charged for this request.
    Charged,
    /// A block lent from the driver's reserve, because the group is full. The request must not keep
    /// it.
    Lent,
}

/// A block that is paid for a request.
#[must_use = "what is not spent is given back at once"]
pub struct Block<'a> {
    device: &'a Device,
    means: Means<'a>,
}

impl<'a> Block<'a> {
    /// Pays for a block: with a spare block of this thread, or else by another means.
    #[inline]
    pub fn pay(device: &'a Device, symbol: &'static str) -> Result<Self, Refused> {
        let spare = device.spares.own();
        let means = if spare.take() {
            Means::Spare(spare)
        } else {
            find(device, symbol)?
        };
        Ok(Block { device, means })
    }

    /// Charges a block for the request, as the last means of [`Block::pay`] does.
    pub fn charge(device: &'a Device, symbol: &'static str) -> Result<Self, Refused> {
        device.charge(Request::insisting(symbol, BLOCK))?.spend();
        let means = Means::Charged;
        Ok(Block { device, means })
    }

    /// Returns whether the block was lent from the driver's reserve.
    #[inline]
    pub fn is_lent(&self) -> bool {
        matches!(self.means, Means::Lent)
    }

    /// Returns the bytes lent from the driver's reserve: a block or nothing.
    pub fn lent(self) -> Prepaid<'a> {
        let this = ManuallyDrop::new(self);
        Prepaid::lent(this.device, if this.is_lent() { BLOCK } else { 0 })
    }

    /// Gives the block back: the request did not take a new one.
    #[inline]
    pub fn give_back(self) {
        let this = ManuallyDrop::new(self);
        match this.means {
            Means::Spare(spare) => spare.put_back(),
            Means::Charged => this.device.keep_block(),
            Means::Lent => drop(Prepaid::lent(this.device, BLOCK)),
        }
    }

    /// Hands the block over to the program: the request took a new one.
    pub fn spend(self) {
        let Block { device, means } = *ManuallyDrop::new(self);
        match means {
            Means::Spare(spare) => {
                spare.consume();
                device.book.remove_idle(BLOCK);
            }
            Means::Charged => {}
            Means::Lent => {
                drop(Prepaid::lent(device, BLOCK));
                device.book.charge_over(BLOCK);
            }
        }
    }
}

/// Pays where this thread has no spare block.
#[cold]
fn find<'a>(device: &'a Device, symbol: &'static str) -> Result<Means<'a>, Refused> {
    if let Ok(charged) = device.charge(Request::trimming(BLOCK)) {
        charged.spend();
        return Ok(Means::Charged);
    }
    if let Some(spare) = device.spares.take_any() {
        return Ok(Means::Spare(spare));
    }
    // In a full group the request may still fit into a block that is already held. The address of
    // the allocation will tell.
    if Prepaid::lend(device, BLOCK) {
        return Ok(Means::Lent);
    }
    device.charge(Request::insisting(symbol, BLOCK))?.spend();
    Ok(Means::Charged)
}

/// Runs only in a panic. Passes the fields one by one, so that the guard need not lie in memory.
impl Drop for Block<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        abandon(self.device, self.means);
    }
}

/// Keeps the block charged until a measurement finds out whether the driver's call was made
/// (`Process::recover`).
#[cold]
#[inline(never)]
fn abandon(device: &Device, means: Means<'_>) {
    match means {
        Means::Spare(spare) => {
            spare.consume();
            device.driver_part.keep(BLOCK);
        }
        Means::Charged => {
            device.book.add_idle(BLOCK);
            device.driver_part.keep(BLOCK);
        }
        Means::Lent => drop(Prepaid::lent(device, BLOCK)),
    }
}
