//! Calls of ours while the program captures a graph.
//!
//! In the global capture mode the driver forbids calls that it deems unsafe, in every thread, and
//! one of ours would spoil the program's capture: `cuMemPoolGetAttribute` does (measured: error 901
//! from then on). In the relaxed mode, which is per thread, it does not mind.

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
