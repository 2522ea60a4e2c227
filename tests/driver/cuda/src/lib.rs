//! The libcuda.so.1 of the simulated driver: the C functions that CUDA programs call.
//!
//! `symbols` lists the exported functions. The other modules translate C arguments for the model in
//! `gpulimit-sim`.
#![allow(unsafe_code)]

mod array;
mod binary;
mod checkpoint;
mod context;
mod copy;
mod device;
mod external;
mod graph;
mod green;
mod host;
mod integrity;
mod lookup;
mod memory;
mod module;
mod pool;
mod stream;
mod symbols;
mod tables;
mod tool;
mod vmm;
