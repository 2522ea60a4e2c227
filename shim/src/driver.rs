//! The real libraries, CUDA and NVML: the addresses of their functions, typed calls, and what the
//! library asks them.
//!
//! This room does not know the hooks that stand in front of the driver.

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

/// Calls the driver with a place for its answer. Returns the answer, or the status with which the
/// call fails.
#[inline]
pub fn answer<T: Copy + Default>(call: impl FnOnce(Out<T>) -> Status) -> Result<T, Status> {
    let mut value = T::default();
    match call(Out::of(&mut value)) {
        SUCCESS => Ok(value),
        failed => Err(failed),
    }
}
