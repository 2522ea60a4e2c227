//! What we do at each hooked function. Safe Rust: out-pointers are small values, the driver's
//! function is a closure.
//!
//! A handler gets the call, the driver's own function and the arguments. It returns what the
//! program gets to see: the driver's status, or the driver's own out-of-memory.

pub mod array;
pub mod aside;
pub mod code;
pub mod context;
pub mod context_limits;
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
pub mod pool;
pub mod process_list;
pub mod stream;
pub mod synchronize;
pub mod view;
pub mod vmm;

use crate::account::Process;

/// Who called: what a handler needs besides the arguments.
#[derive(Clone, Copy)]
pub struct Call {
    /// This process's account.
    pub process: &'static Process,
    /// The symbol, for messages.
    pub symbol: &'static str,
}
