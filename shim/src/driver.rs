//! The real CUDA and NVML libraries: typed calls of their functions, which bypass the hooks.

pub mod capture;
pub mod context_limit;
pub mod devices;
pub mod dlsym;
pub mod figures;
mod functions;
pub mod gate;
pub mod inside;
mod library;
mod real;
pub mod suspension;

use crate::abi::{Out, SUCCESS, Status};
pub use functions::{cuda, nvml};
pub use library::Library;
pub use real::Real;

/// Calls a driver function that writes one result. Returns the result, or the status of the
/// failure.
#[inline]
pub fn answer<T: Copy + Default>(call: impl FnOnce(Out<T>) -> Status) -> Result<T, Status> {
    let mut value = T::default();
    match call(Out::of(&mut value)) {
        SUCCESS => Ok(value),
        failed => Err(failed),
    }
}
