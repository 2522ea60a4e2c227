//! The driver's functions that move the GPU memory of another process to the host and back
//! (`cuCheckpointProcess…`), and what the procedure around them must know about the GPUs.

mod driver;
mod placeholder;
#[cfg(test)]
mod tests;

pub use driver::{Checkpoints, Status};
pub use placeholder::Placeholder;
