//! Asks the driver about a program's streams: their identity, their work and their capture state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpulimit_group::Undisturbed;

use crate::abi::{CAPTURE_STATUS_NONE, CUDA_ERROR_NOT_READY, Context, Out, SUCCESS, Stream};
use crate::account::Process;
use crate::account::graphs::Identity;
use crate::account::handles::Kind;
use crate::driver::capture::relaxed;
use crate::driver::cuda;

/// The pause between two queries that ask the driver whether the work in a stream has ended.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// Returns whether stream handle 0 means the calling thread's own stream in the driver function
/// `symbol`.
pub fn own_stream(symbol: &str) -> bool {
    symbol.ends_with("_ptsz")
}

/// The stream handle that means the calling thread's own stream in every driver function.
const PER_THREAD: Stream = 2;

thread_local! {
    /// A number that identifies this thread in the process: it is never given to another thread,
    /// and never 0.
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// Returns whether gpulimit knows the stream. The driver can crash on queries about invalid
/// handles.
pub fn is_known(stream: Stream) -> bool {
    stream <= PER_THREAD || Process::current().handles.knows(Kind::Stream, stream)
}

/// Returns an identity that is unique even where streams share a handle; `None` before CUDA 12 and
/// for unknown streams.
pub fn identity(symbol: &str, stream: Stream) -> Option<Identity> {
    if !is_known(stream) {
        return None;
    }
    let mut id = 0;
    let own = own_stream(symbol);
    let asked = match own {
        true => cuda::cuStreamGetId_ptsz(stream, Out::of(&mut id)),
        false => cuda::cuStreamGetId(stream, Out::of(&mut id)),
    };
    let thread = match stream == PER_THREAD || own && stream == 0 {
        true => THREAD.with(|thread| *thread),
        false => 0,
    };
    (asked == SUCCESS).then_some((id, thread))
}

/// Returns a number that identifies a stream while it exists, never 0. A thread's own streams get
/// the number of the thread and their context.
pub fn number(symbol: &str, stream: Stream, context: Context) -> usize {
    if stream == PER_THREAD || own_stream(symbol) && stream == 0 {
        // Handles and contexts are addresses, so the lowest bit tells the kinds of numbers apart.
        let thread = THREAD.with(|thread| *thread) as usize;
        return context.rotate_left(32) ^ (thread << 1 | 1);
    }
    stream
}

/// Waits for the stream's work, at most until the time `until`: the work may depend on this thread.
/// Skips unknown streams.
pub fn await_work(symbol: &str, stream: Stream, until: Instant) {
    if !is_known(stream) {
        return;
    }
    let _undisturbed = Undisturbed::new();
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

/// Returns whether `stream` is being captured into a graph; false for a stream that gpulimit does
/// not know.
pub fn capturing(symbol: &str, stream: Stream) -> bool {
    is_known(stream) && is_capturing(symbol, stream)
}

/// Returns whether `stream` is being captured into a graph. The driver must have accepted the
/// stream before.
pub fn is_capturing(symbol: &str, stream: Stream) -> bool {
    let mut state = CAPTURE_STATUS_NONE;
    let asked = match own_stream(symbol) {
        true => cuda::cuStreamIsCapturing_ptsz(stream, Out::of(&mut state)),
        false => cuda::cuStreamIsCapturing(stream, Out::of(&mut state)),
    };
    asked == SUCCESS && state != CAPTURE_STATUS_NONE
}
