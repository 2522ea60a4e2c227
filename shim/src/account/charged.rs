//! The charge for one call, as a guard: the bytes are uncharged where the call takes no memory,
//! also on a panic.

use super::device::Device;

/// Bytes that are charged for a call. Dropping the guard gives them back, unless the call has taken
/// them.
#[must_use = "bytes that are not spent are given back at once"]
pub struct Charged<'a> {
    device: &'a Device,
    bytes: u64,
    is_idle: bool,
}

impl<'a> Charged<'a> {
    /// Guards `bytes` that have just been charged on `device`. `is_idle`: they were charged ahead
    /// and count as idle.
    #[inline]
    pub fn new(device: &'a Device, bytes: u64, is_idle: bool) -> Self {
        Charged {
            device,
            bytes,
            is_idle,
        }
    }

    /// Keeps the bytes charged: the call has taken the memory, or another record of the account has
    /// the bytes now.
    #[inline(always)]
    pub fn spend(self) {
        std::mem::forget(self);
    }

    /// Raises or lowers the charge to `bytes`, which the call has taken.
    pub fn spend_as(self, bytes: u64) {
        let (device, charged) = (self.device, self.bytes);
        self.spend();
        if bytes > charged {
            device.book.charge_over(bytes - charged);
        } else {
            device.book.uncharge(charged - bytes);
        }
    }
}

/// The fields are passed on one by one, so that the compiler can keep a guard in registers.
impl Drop for Charged<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        give_back(self.device, self.bytes, self.is_idle);
    }
}

#[cold]
#[inline(never)]
fn give_back(device: &Device, bytes: u64, is_idle: bool) {
    match (std::thread::panicking(), is_idle) {
        // It is not known whether the call was made: the bytes stay charged until a measurement
        // tells (`Process::recover`).
        (true, true) => device.driver_part.keep(bytes),
        (true, false) => {
            device.book.add_idle(bytes);
            device.driver_part.keep(bytes);
        }
        (false, true) => device.book.uncharge_idle(bytes),
        (false, false) => device.book.uncharge(bytes),
    }
}
