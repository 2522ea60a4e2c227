//! gRPC as kubelet needs it: single answers and one kind of stream, over Unix sockets, without compression.
//!
//! On the `h2` crate, which is below tonic as well: tonic with its server and client took 100 s of a processor to build here, all of this
//! 30 s beyond what the workspace has anyway.

mod client;
mod frame;
mod server;
mod status;

pub use client::{Watch, call, watch};
pub use server::{Answer, Service, serve};
pub use status::{Code, Status};
