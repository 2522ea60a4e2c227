//! A call of the program, to be passed on to the driver when its memory is charged.

use crate::abi::Status;

/// The driver's function with the arguments of the program's call. This trait stands in for `dyn
/// Fn`, whose vtable has two more copies of the closure.
pub trait Real {
    /// Calls the driver's function.
    fn call(&self) -> Status;
}

impl<F: Fn() -> Status> Real for F {
    #[inline]
    fn call(&self) -> Status {
        self()
    }
}
