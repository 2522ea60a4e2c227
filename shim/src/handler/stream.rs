//! What we ask of the streams that calls are given.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::abi::{CAPTURE_STATUS_NONE, CUDA_ERROR_NOT_READY, Out, SUCCESS, Stream};
use crate::capture::relaxed;
use crate::table::cuda;

/// How often a stream is looked at that a refusal waits for.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// Whether stream 0 means the thread's own stream to this function.
pub fn own_stream(symbol: &str) -> bool {
    symbol.ends_with("_ptsz")
}

/// A number that no other stream of the process ever has, also where several go by the same handle; `None` on drivers before CUDA 12.
pub fn identity(symbol: &str, stream: Stream) -> Option<u64> {
    let mut id = 0;
    let asked = match own_stream(symbol) {
        true => cuda::cuStreamGetId_ptsz(stream, Out::of(&mut id)),
        false => cuda::cuStreamGetId(stream, Out::of(&mut id)),
    };
    (asked == SUCCESS).then_some(id)
}

/// Waits for the stream's work to end, but not for ever: it may itself wait for something that this thread has yet to do.
pub fn await_work(symbol: &str, stream: Stream, until: Instant) {
    let busy = || {
        let state = relaxed(|| match own_stream(symbol) {
            true => cuda::cuStreamQuery_ptsz(stream),
            false => cuda::cuStreamQuery(stream),
        });
        state == CUDA_ERROR_NOT_READY
    };
    while busy() && Instant::now() < until {
        sleep(LOOK_AGAIN);
    }
}

/// Whether `stream` is being captured into a graph.
pub fn capturing(symbol: &str, stream: Stream) -> bool {
    let mut state = CAPTURE_STATUS_NONE;
    let asked = match own_stream(symbol) {
        true => cuda::cuStreamIsCapturing_ptsz(stream, Out::of(&mut state)),
        false => cuda::cuStreamIsCapturing(stream, Out::of(&mut state)),
    };
    asked == SUCCESS && state != CAPTURE_STATUS_NONE
}
