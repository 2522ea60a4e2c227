//! Moves the GPU memory of processes to the host and back: which processes, what is checked before.

pub mod abandoned;
pub mod bound;
pub mod report;
pub mod settle;
pub mod subjects;
pub mod world;
