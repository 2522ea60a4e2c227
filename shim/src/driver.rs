//! The real libraries behind us: their addresses, the calls of their functions, and what we ask
//! them about themselves.
//!
//! Knows nothing of what stands in front of them.

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

/// Returns what `call` writes to the place that it is given, or the status with which it fails.
#[inline]
pub fn answer<T: Copy + Default>(call: impl FnOnce(Out<T>) -> Status) -> Result<T, Status> {
    let mut value = T::default();
    match call(Out::of(&mut value)) {
        SUCCESS => Ok(value),
        failed => Err(failed),
    }
}
