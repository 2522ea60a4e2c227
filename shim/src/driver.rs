//! The real libraries, CUDA and NVML: the addresses of their functions, typed calls of these
//! functions, and the questions that gpulimit asks the driver.
//!
//! The code in this folder does not use the hooks that stand in front of the driver.

pub mod capture;
pub mod context_limit;
pub mod devices;
pub mod dlsym;
pub mod figures;
mod functions;
mod library;
mod real;

use crate::abi::{Out, SUCCESS, Status};
pub use functions::{cuda, nvml};
pub use library::Library;
pub use real::Real;

/// Calls a driver function with a pointer to a place for its result. Returns the result, or the
/// status with which the call failed.
#[inline]
pub fn answer<T: Copy + Default>(call: impl FnOnce(Out<T>) -> Status) -> Result<T, Status> {
    let mut value = T::default();
    match call(Out::of(&mut value)) {
        SUCCESS => Ok(value),
        failed => Err(failed),
    }
}
