//! A CUDA call of the program, which a handler passes on to the driver once its memory is charged.

use super::inside;
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

/// A call of the driver as the program has made it, during which the program may run.
pub struct Visit<'a>(pub &'a dyn Fn() -> Status);

impl Real for Visit<'_> {
    fn call(&self) -> Status {
        inside::visit(self.0)
    }
}
