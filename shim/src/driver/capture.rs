//! Driver calls that gpulimit makes while the program may be capturing a graph.
//!
//! In the global capture mode, some driver calls invalidate the program's capture (error 901). The
//! relaxed capture mode of a thread allows these calls.

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
