//! Driver calls that gpulimit makes while the program may be capturing a graph.
//!
//! During a capture in the global mode, the driver forbids every thread to make calls that the
//! driver considers unsafe. Such a call invalidates the program's capture: after
//! `cuMemPoolGetAttribute` the capture fails with error 901 (measured). The relaxed capture mode,
//! which a thread sets for itself, allows these calls.

use crate::abi::{CAPTURE_MODE_RELAXED, Out, SUCCESS};
use crate::driver::cuda;

/// Runs `calls` while the calling thread is in the relaxed capture mode.
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
