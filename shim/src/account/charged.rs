//! What is charged for one call, as a guard: it goes back where the call takes nothing, also on a
//! panic.

use super::device::Device;

/// Bytes that are charged for a call. They are given back unless the call has taken them.
#[must_use = "what is not spent is given back at once"]
pub struct Charged<'a> {
    device: &'a Device,
    bytes: u64,
    is_idle: bool,
}

impl<'a> Charged<'a> {
    /// `bytes` that have just been charged on `device`; `is_idle`: ahead, so that they count as
    /// idle.
    #[inline]
    pub fn new(device: &'a Device, bytes: u64, is_idle: bool) -> Self {
        Charged {
            device,
            bytes,
            is_idle,
        }
    }

    /// The call has taken them, or somebody else has them now.
    #[inline(always)]
    pub fn spend(self) {
        std::mem::forget(self);
    }

    /// The call has taken `bytes`: the charge is raised or lowered to that.
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

/// The values are handed on one by one, so that a guard need not lie in memory.
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
        // Nobody knows whether the call was made: they stay charged until that is measured
        // (`Process::recover`).
        (true, true) => device.driver_part.keep(bytes),
        (true, false) => {
            device.book.add_idle(bytes);
            device.driver_part.keep(bytes);
        }
        (false, true) => device.book.uncharge_idle(bytes),
        (false, false) => device.book.uncharge(bytes),
    }
}
