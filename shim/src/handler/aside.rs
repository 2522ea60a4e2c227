//! The reasons why a handler steps aside. Either the driver answers the call without the handler,
//! or the call fails.

use crate::abi::{CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_OUT_OF_MEMORY, Status};
use crate::account::contexts::current_context;
use crate::account::device::Device;
use crate::driver::Real;
use crate::refusal::Refused;

/// The reason why a handler steps aside: it lets the driver answer the call, or it fails the call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Aside {
    /// The thread has no current context, the device does not exist, or CUDA is not initialised.
    NoDevice,
    /// The program asks for 0 bytes, or for more bytes than the GPU has. The driver chooses the
    /// error status.
    NoSize,
    /// The structure that the program passes cannot be read, or describes memory outside of the
    /// GPU.
    NothingToCharge,
    /// The call is captured into a graph: it becomes a node of the graph and takes no memory now.
    Node,
    /// The group has no room. A handler returns this reason only if the driver's call was not made
    /// or was undone.
    Refused,
    /// The group's limit cannot be applied, so the process gets no GPU memory.
    Closed,
}

/// Runs `work`, the body of a handler. Where `work` returns an [`Aside`], returns the status for
/// that reason.
#[inline(always)]
pub fn attempt(real: &dyn Real, work: impl FnOnce() -> Result<Status, Aside>) -> Status {
    work().unwrap_or_else(|aside| aside.answer(real))
}

/// Fails if the calling thread has no current context: the driver refuses the call then, however
/// much room there is.
#[inline(never)]
pub fn check_context() -> Result<(), Aside> {
    match current_context() {
        0 => Err(Aside::NoDevice),
        _ => Ok(()),
    }
}

/// Returns `bytes` if a GPU of this size can hold that many.
#[inline]
pub fn size_on(device: &Device, bytes: u64) -> Result<u64, Aside> {
    let may_hold = device.may_hold(bytes);
    may_hold.then_some(bytes).ok_or(Aside::NoSize)
}

impl Aside {
    /// Returns the status for the program: the answer of the driver's function `real`, or an error.
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

/// Converts the error of [`Process::device`](crate::account::Process::device) into a reason to step
/// aside.
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
