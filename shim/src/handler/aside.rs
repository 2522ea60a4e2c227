//! Why a handler does not do its work: the call is left to the driver, or it fails.

use crate::abi::{CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_OUT_OF_MEMORY, Status};
use crate::account::device::Device;
use crate::driver::Real;
use crate::refusal::Refused;

/// A reason for stepping aside.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Aside {
    /// There is no current context, no such device, or CUDA is not initialised.
    NoDevice,
    /// No bytes are asked for, or more than the GPU has: each function has a code of its own.
    NoSize,
    /// What the program points to cannot be read, or is memory that is not the GPU's.
    NothingToCharge,
    /// It becomes a node of a graph, not memory.
    Node,
    /// The group has no room. Only before the driver is asked, or after that is undone.
    Refused,
    /// The limit cannot be applied, so there is no memory.
    Closed,
}

/// Runs the `work` of a handler. Where that steps aside, the program gets what the reason says.
#[inline(always)]
pub fn attempt(real: &dyn Real, work: impl FnOnce() -> Result<Status, Aside>) -> Status {
    work().unwrap_or_else(|aside| aside.answer(real))
}

/// `bytes`, if the device may hold so many.
#[inline]
pub fn size_on(device: &Device, bytes: u64) -> Result<u64, Aside> {
    let may_hold = device.may_hold(bytes);
    may_hold.then_some(bytes).ok_or(Aside::NoSize)
}

impl Aside {
    /// What the program gets.
    #[cold]
    #[inline(never)]
    pub fn answer(self, real: &dyn Real) -> Status {
        match self {
            Aside::NoDevice | Aside::NoSize | Aside::NothingToCharge | Aside::Node => real.call(),
            Aside::Refused => CUDA_ERROR_OUT_OF_MEMORY,
            Aside::Closed => CUDA_ERROR_NOT_PERMITTED,
        }
    }
}

/// Of a device that cannot be had: [`Process::device`](crate::account::Process::device).
impl From<Status> for Aside {
    fn from(failed: Status) -> Aside {
        match failed {
            CUDA_ERROR_NOT_PERMITTED => Aside::Closed,
            _ => Aside::NoDevice,
        }
    }
}

impl From<Refused> for Aside {
    fn from(_: Refused) -> Aside {
        Aside::Refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::CUDA_ERROR_UNKNOWN;

    #[test]
    fn the_driver_answers_unless_there_is_no_memory() {
        const DRIVER: Status = 77;
        let answer = |aside| attempt(&|| DRIVER, || Err(aside));
        for aside in [Aside::NoSize, Aside::NothingToCharge, Aside::Node] {
            assert_eq!(answer(aside), DRIVER);
        }
        assert_eq!(answer(CUDA_ERROR_UNKNOWN.into()), DRIVER, "no device");
        assert_eq!(answer(Refused.into()), CUDA_ERROR_OUT_OF_MEMORY);
        let closed = CUDA_ERROR_NOT_PERMITTED;
        assert_eq!(answer(closed.into()), closed);
        assert_eq!(attempt(&|| DRIVER, || Ok(5)), 5);
    }
}
