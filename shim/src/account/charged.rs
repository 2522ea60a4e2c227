//! The bytes that are charged for one call, as a guard.

use super::device::Device;

/// Bytes that are charged for one call. Dropping the guard uncharges the bytes, unless the call has
/// taken the memory.
#[must_use = "dropping the guard uncharges its bytes"]
pub struct Charged<'a> {
    device: &'a Device,
    bytes: u64,
    is_idle: bool,
}

impl<'a> Charged<'a> {
    /// Makes a guard for `bytes` charged on `device`. `is_idle`: the bytes count as idle (not in
    /// use).
    #[inline]
    pub fn new(device: &'a Device, bytes: u64, is_idle: bool) -> Self {
        Charged {
            device,
            bytes,
            is_idle,
        }
    }

    /// Keeps the bytes charged, because the call has taken the memory or another record counts the
    /// bytes.
    #[inline(always)]
    pub fn spend(self) {
        std::mem::forget(self);
    }

    /// Raises or lowers the charge to `bytes`, the number of bytes that the call has really taken.
    pub fn spend_as(self, bytes: u64) {
        let (device, charged) = (self.device, self.bytes);
        self.spend();
        if bytes > charged {
            device.book.group.charge_unchecked(bytes - charged);
        } else {
            device.book.uncharge(charged - bytes);
        }
    }
}

/// `drop` passes the fields one by one, so that the compiler can keep a guard in registers.
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
        // After a panic it is unknown whether the driver was called. So the bytes stay charged
        // until `Process::recover` measures.
        (true, true) => device.driver_part.keep(&device.book, bytes),
        (true, false) => {
            device.book.add_idle(bytes);
            device.driver_part.keep(&device.book, bytes);
        }
        (false, true) => device.book.uncharge_idle(bytes),
        (false, false) => device.book.uncharge(bytes),
    }
}
