//! Functions of the driver that take no memory and must not be called while the process is
//! suspended. Their calls wait in `driver/gate.rs`, as those of some other functions do.

use crate::abi::Status;

/// Charges nothing. Waits while the process is suspended, because the call would crash it or fail.
pub fn wait(call: impl FnOnce() -> Status) -> Status {
    call()
}
