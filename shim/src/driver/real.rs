//! A call of the driver's that the program has made, to be made when its time has come.

use crate::abi::Status;

/// The driver's function with the arguments of the program's call. A trait of our own, as a vtable
/// of `dyn Fn` has two more copies of the closure.
pub trait Real {
    /// Calls it.
    fn call(&self) -> Status;
}

impl<F: Fn() -> Status> Real for F {
    #[inline]
    fn call(&self) -> Status {
        self()
    }
}
