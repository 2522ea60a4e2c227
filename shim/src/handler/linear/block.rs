//! The payment for the block that a small allocation may need. If the allocation takes no new
//! block, the payment is returned. After a panic, the block stays charged until a measurement.

use std::mem::ManuallyDrop;

use crate::abi::SUCCESS;
use crate::account::BLOCK;
use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::request::Request;
use crate::account::spare::Spare;
use crate::handler::aside::{self, Aside};
use crate::refusal::Refused;

/// The means by which a block is paid for.
#[derive(Clone, Copy)]
enum Means<'a> {
    /// A spare block.
    Spare(&'a Spare),
    /// A block that gpulimit charged for this allocation.
    Charged,
    /// A block lent from the driver's reserve, because the group is full. The allocation must not
    /// keep this block.
    Lent,
}

/// A block of 2 MiB that is paid for an allocation.
#[must_use = "dropping the guard keeps the block charged until a measurement"]
pub struct Block<'a> {
    device: &'a Device,
    means: Means<'a>,
}

impl<'a> Block<'a> {
    /// Pays for a block in the first way that works:
    ///
    /// - the spare block of this thread
    /// - a charge that does not wait
    /// - another thread's spare block
    /// - a block lent from the driver's reserve
    /// - a charge that waits for room
    #[inline]
    pub fn pay(device: &'a Device, symbol: &'static str) -> Result<Self, Aside> {
        let spare = device.spares.own();
        if spare.take() {
            return Ok(Block::of(device, spare));
        }
        let means = find(device, symbol)?;
        Ok(Block { device, means })
    }

    /// Returns the payment by a spare block that the caller has taken.
    pub fn of(device: &'a Device, spare: &'a Spare) -> Self {
        let means = Means::Spare(spare);
        Block { device, means }
    }

    /// Charges a block for the allocation. In a full group, waits for room or refuses, as the
    /// group's options say.
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

    /// Returns the bytes lent from the driver's reserve: one block, or 0 bytes for any other
    /// payment.
    pub fn lent(self) -> Prepaid<'a> {
        let this = ManuallyDrop::new(self);
        Prepaid::lent(this.device, if this.is_lent() { BLOCK } else { 0 })
    }

    /// Gives the payment back: the allocation did not take a new block.
    #[inline]
    pub fn give_back(self) {
        let this = ManuallyDrop::new(self);
        match this.means {
            Means::Spare(spare) => spare.put_back(),
            Means::Charged => this.device.keep_block(),
            Means::Lent => drop(Prepaid::lent(this.device, BLOCK)),
        }
    }

    /// Turns the payment into the charge for the allocation, which took a new block.
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
                device.book.group.charge_unchecked(BLOCK);
            }
        }
    }
}

/// Pays for a block where this thread has no spare block.
#[cold]
fn find<'a>(device: &'a Device, symbol: &'static str) -> Result<Means<'a>, Aside> {
    aside::check_context()?;
    if let Ok(charged) = device.charge(Request::trimming(BLOCK)) {
        charged.spend();
        device.note_answer(symbol, BLOCK, SUCCESS);
        return Ok(Means::Charged);
    }
    if let Some(spare) = device.spares.take_any() {
        return Ok(Means::Spare(spare));
    }
    // The group is full, but the allocation may fit into a block that the process already holds.
    if Prepaid::lend(device, BLOCK) {
        return Ok(Means::Lent);
    }
    device.charge(Request::insisting(symbol, BLOCK))?.spend();
    Ok(Means::Charged)
}

/// Runs only in a panic. Passes the fields one by one, so that they can stay in registers.
impl Drop for Block<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        abandon(self.device, self.means);
    }
}

/// Keeps the block charged until a measurement (`Process::recover`) finds out whether the driver
/// made the allocation before the panic.
#[cold]
#[inline(never)]
fn abandon(device: &Device, means: Means<'_>) {
    match means {
        Means::Spare(spare) => {
            spare.consume();
            device.driver_part.keep(&device.book, BLOCK);
        }
        Means::Charged => {
            device.book.add_idle(BLOCK);
            device.driver_part.keep(&device.book, BLOCK);
        }
        Means::Lent => drop(Prepaid::lent(device, BLOCK)),
    }
}
