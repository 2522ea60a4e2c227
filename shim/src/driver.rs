//! The real libraries behind us: their addresses, the calls of their functions, and what we ask
//! them about themselves.
//!
//! Knows nothing of what stands in front of them.

pub mod capture;
pub mod devices;
pub mod dlsym;
pub mod figures;
mod functions;
mod library;
pub mod limit;
mod real;

pub use functions::{cuda, nvml};
pub use library::Library;
pub use real::Real;
