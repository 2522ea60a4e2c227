//! How a small request's possible new block is paid, as a guard: it goes back where the request
//! takes none, also on a panic.

use std::mem::ManuallyDrop;

use crate::account::BLOCK;
use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::request::Request;
use crate::account::spare::Spare;
use crate::refusal::Refused;

/// What a block is paid with.
#[derive(Clone, Copy)]
enum Means<'a> {
    /// A spare block.
    Spare(&'a Spare),
    /// A block charged for it.
    Charged,
    /// A block of the driver's reserve, which the request must not keep: the group is full.
    Lent,
}

/// A block that is paid for a request.
#[must_use = "what is not spent is given back at once"]
pub struct Block<'a> {
    device: &'a Device,
    means: Means<'a>,
}

impl<'a> Block<'a> {
    /// Pays for a block: with a spare one of this thread's, or in another way.
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

    /// As [`Block::pay`], by a charge of its own.
    pub fn charge(device: &'a Device, symbol: &'static str) -> Result<Self, Refused> {
        device.charge(Request::insisting(symbol, BLOCK))?.spend();
        let means = Means::Charged;
        Ok(Block { device, means })
    }

    /// Whether it is of the driver's reserve.
    #[inline]
    pub fn is_lent(&self) -> bool {
        matches!(self.means, Means::Lent)
    }

    /// The block of the driver's reserve, where it is that.
    pub fn lent(self) -> Prepaid<'a> {
        let this = ManuallyDrop::new(self);
        Prepaid::lent(this.device, if this.is_lent() { BLOCK } else { 0 })
    }

    /// It was not needed.
    #[inline]
    pub fn give_back(self) {
        let this = ManuallyDrop::new(self);
        match this.means {
            Means::Spare(spare) => spare.put_back(),
            Means::Charged => this.device.keep_block(),
            Means::Lent => drop(Prepaid::lent(this.device, BLOCK)),
        }
    }

    /// It has become a block of the program's.
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

/// Pays without a spare block of this thread's.
#[cold]
fn find<'a>(device: &'a Device, symbol: &'static str) -> Result<Means<'a>, Refused> {
    if let Ok(charged) = device.charge(Request::trimming(BLOCK)) {
        charged.spend();
        return Ok(Means::Charged);
    }
    if let Some(spare) = device.spares.take_any() {
        return Ok(Means::Spare(spare));
    }
    // In a full group a request may still fit into a block that is held. Whether it does, its
    // address tells.
    if Prepaid::lend(device, BLOCK) {
        return Ok(Means::Lent);
    }
    device.charge(Request::insisting(symbol, BLOCK))?.spend();
    Ok(Means::Charged)
}

/// A panic. The values are handed on one by one, so that a guard need not lie in memory.
impl Drop for Block<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        abandon(self.device, self.means);
    }
}

/// Nobody knows whether the call was made: the block stays charged until that is measured
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
