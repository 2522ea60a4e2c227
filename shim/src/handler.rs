//! The handlers: the work of gpulimit at each hooked function, in safe Rust.
//!
//! A handler gets the [`Call`], the driver's function, and the arguments named in the hook table.
//! It returns the driver's own status or the driver's code for out of memory.

pub mod array;
pub mod aside;
pub mod capture;
pub mod code;
pub mod context;
pub mod context_limits;
pub mod external;
pub mod gate;
pub mod graph;
pub mod graph_node;
pub mod graph_update;
pub mod green;
pub mod handles;
pub mod ipc;
pub mod launch;
pub mod lazy;
pub mod linear;
pub mod loading;
pub mod managed;
pub mod measured;
pub mod payment;
pub mod peer;
pub mod pool;
pub mod process_list;
pub mod stream;
pub mod synchronize;
pub mod view;
pub mod vmm;

use crate::account::Process;

/// A hooked call: everything a handler needs besides the arguments of the function.
#[derive(Clone, Copy)]
pub struct Call {
    /// The account of this process: the record of the GPU memory that it holds.
    pub process: &'static Process,
    /// The name of the hooked function, for messages.
    pub symbol: &'static str,
}
