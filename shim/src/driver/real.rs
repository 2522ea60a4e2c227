//! A CUDA call of the program, which a handler passes on to the driver once its memory is charged.

use crate::abi::Status;

/// The driver's function with the program's arguments. A `dyn Fn` would hold two more copies of the
/// closure's code.
pub trait Real {
    /// Calls the driver's function with the arguments of the program's call.
    fn call(&self) -> Status;
}

impl<F: Fn() -> Status> Real for F {
    #[inline]
    fn call(&self) -> Status {
        self()
    }
}
