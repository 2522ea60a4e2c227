//! Calls that the library makes while the program captures a graph.
//!
//! In the global capture mode the driver forbids calls that it considers unsafe, in every thread.
//! Such a call invalidates the program's capture: after `cuMemPoolGetAttribute` the capture fails
//! with error 901 (measured). The relaxed mode, which is per thread, allows these calls.

use crate::abi::{CAPTURE_MODE_RELAXED, Out, SUCCESS};
use crate::driver::cuda;

/// Runs `calls` in the relaxed capture mode.
#[inline]
pub fn relaxed<T>(calls: impl FnOnce() -> T) -> T {
    let mut mode = CAPTURE_MODE_RELAXED;
    let exchanged = cuda::cuThreadExchangeStreamCaptureMode(Out::of(&mut mode)) == SUCCESS;
    let result = calls();
    if exchanged {
        cuda::cuThreadExchangeStreamCaptureMode(Out::of(&mut mode));
    }
    result
}
