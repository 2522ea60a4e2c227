//! Stream capture in the simulated driver: which calls a capture forbids, and which calls
//! invalidate it.
//!
//! Measured (H100, 580.159.04):
//! - `cuMemPoolGetAttribute` invalidates a capture in the global mode, unless the calling thread is
//!   in the relaxed mode.
//! - Later calls on the captured stream return error 901.
//! - `cuStreamEndCapture` returns error 901, too, but then the stream works again.
//!
//! The other forbidden calls are taken from NVIDIA's documentation.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::graph::{Graph, Kind, Need, Node};
use crate::stream::Stream;
use crate::{Outcome, Status};

/// `CUstreamCaptureStatus`: the stream is not captured.
pub const NONE: i32 = 0;
/// `CUstreamCaptureStatus`: a capture is under way.
pub const ACTIVE: i32 = 1;
/// `CUstreamCaptureStatus`: the capture is invalid and not yet ended.
pub const INVALIDATED: i32 = 2;

/// `CUstreamCaptureMode`: forbids unsafe calls in every thread.
pub const GLOBAL: i32 = 0;
/// `CUstreamCaptureMode`: forbids unsafe calls in the capturing thread.
pub const THREAD_LOCAL: i32 = 1;
/// `CUstreamCaptureMode`: forbids no calls.
pub const RELAXED: i32 = 2;

struct Capture {
    stream: &'static Stream,
    /// The number of the thread that began the capture.
    thread: u64,
    mode: i32,
    id: u64,
    graph: &'static Graph,
    /// Whether the program has made the graph.
    is_given: bool,
    last: Option<&'static Node>,
    /// The last captured call, while a later step of the call can still change the kind of its
    /// graph node.
    pending: Option<Kind>,
}

/// The number of captures under way. If it is 0, driver calls read no other data about captures.
static COUNT: AtomicU32 = AtomicU32::new(0);
static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Relaxed)
    };
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

fn captures() -> MutexGuard<'static, Vec<Capture>> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `cuThreadExchangeStreamCaptureMode`: sets the thread's mode and returns the previous mode.
///
/// # Errors
/// `INVALID_VALUE` for a number that is not a mode.
pub fn exchange_mode(mode: i32) -> Outcome<i32> {
    match mode {
        GLOBAL..=RELAXED => Ok(MODE.replace(mode)),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Invalidates the captures for which `fits` is true. Returns whether it found such a capture.
#[cold]
fn invalidate(mut fits: impl FnMut(&Capture) -> bool) -> bool {
    let mut any = false;
    for capture in captures().iter().filter(|capture| fits(capture)) {
        capture.stream.capture.store(INVALIDATED, Release);
        any = true;
    }
    any
}

/// Invalidates the captures that forbid an unsafe call (NVIDIA's documentation). Without captures,
/// the function costs one branch.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED` if a capture forbids the call.
#[inline(always)]
pub fn unsafe_call() -> Outcome<()> {
    if COUNT.load(Relaxed) == 0 {
        Ok(())
    } else {
        judge_call()
    }
}

#[cold]
fn judge_call() -> Outcome<()> {
    let (mode, thread) = (MODE.get(), THREAD.with(|thread| *thread));
    let forbids = |capture: &Capture| {
        capture.thread == thread && capture.mode != RELAXED
            || mode == GLOBAL && capture.mode == GLOBAL
    };
    if mode != RELAXED && invalidate(forbids) {
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    } else {
        Ok(())
    }
}

/// Invalidates the captures of a context, for a call that waits for the whole context.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED` if there are such captures.
#[inline(always)]
pub fn synchronizes(context: &Context) -> Outcome<()> {
    if COUNT.load(Relaxed) != 0
        && invalidate(|capture| std::ptr::eq(capture.stream.context, context))
    {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

/// Invalidates the capture of a stream, for a call that queries or waits for the stream.
///
/// # Errors
/// - `STREAM_CAPTURE_UNSUPPORTED`: the stream is captured.
/// - `STREAM_CAPTURE_INVALIDATED`: its capture was already invalid.
pub fn waits_for(stream: Option<&Stream>) -> Outcome<()> {
    match stream {
        Some(stream) if stream.captures()? => {
            invalidate(|capture| std::ptr::eq(capture.stream, stream));
            Err(Status::STREAM_CAPTURE_UNSUPPORTED)
        }
        _ => Ok(()),
    }
}

/// Invalidates captures of blocking streams, for a use of the legacy stream, which waits for these
/// streams.
///
/// # Errors
/// `STREAM_CAPTURE_IMPLICIT` if a blocking stream is captured.
#[inline(always)]
pub fn legacy(context: &Context) -> Outcome<()> {
    if COUNT.load(Relaxed) != 0 && invalidate(|capture| capture.holds_legacy(context)) {
        return Err(Status::STREAM_CAPTURE_IMPLICIT);
    }
    Ok(())
}

/// Returns whether a capture under way forbids the use of the context's legacy stream.
#[inline(always)]
pub fn holds_legacy(context: &Context) -> bool {
    COUNT.load(Relaxed) != 0 && any_holds_legacy(context)
}

#[cold]
fn any_holds_legacy(context: &Context) -> bool {
    let captures = captures();
    captures.iter().any(|capture| capture.holds_legacy(context))
}

impl Capture {
    /// Adds the graph node of the last captured call if this node is not yet added.
    fn conclude(&mut self) -> Outcome<()> {
        if let Some(kind) = self.pending.take() {
            let after = self.last.into_iter().collect();
            self.last = Some(self.graph.add(kind, after)?);
        }
        Ok(())
    }

    fn holds_legacy(&self, context: &Context) -> bool {
        std::ptr::eq(self.stream.context, context) && self.stream.flags & 1 == 0
    }
}

/// Begins a capture, into `graph` or a new graph.
///
/// # Errors
/// `ILLEGAL_STATE` when the stream is already captured, `INVALID_VALUE` for an unknown mode.
pub fn begin(stream: &'static Stream, mode: i32, graph: Option<&'static Graph>) -> Outcome<()> {
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(Status::INVALID_VALUE);
    }
    let mut captures = captures();
    if stream.capture_status() != NONE {
        return Err(Status::ILLEGAL_STATE);
    }
    captures.push(Capture {
        stream,
        thread: THREAD.with(|thread| *thread),
        mode,
        id: NEXT_ID.fetch_add(1, Relaxed),
        graph: graph.unwrap_or_else(Graph::make),
        is_given: graph.is_some(),
        last: None,
        pending: None,
    });
    COUNT.fetch_add(1, Release);
    stream.capture.store(ACTIVE, Release);
    Ok(())
}

fn remove(captures: &mut Vec<Capture>, index: usize) -> Capture {
    let capture = captures.swap_remove(index);
    COUNT.fetch_sub(1, Release);
    capture.stream.capture.store(NONE, Release);
    capture
}

/// Ends the capture of a stream and returns the captured graph.
///
/// # Errors
/// - `ILLEGAL_STATE`: the stream is not captured.
/// - `STREAM_CAPTURE_WRONG_THREAD`: another thread began the capture, not in the relaxed mode.
/// - `STREAM_CAPTURE_INVALIDATED`: the capture was invalid. It ends nevertheless.
pub fn end(stream: &Stream) -> Outcome<&'static Graph> {
    let mut captures = captures();
    let index = captures
        .iter()
        .position(|capture| std::ptr::eq(capture.stream, stream))
        .ok_or(Status::ILLEGAL_STATE)?;
    let capture = &captures[index];
    if capture.mode != RELAXED && capture.thread != THREAD.with(|thread| *thread) {
        return Err(Status::STREAM_CAPTURE_WRONG_THREAD);
    }
    let invalid = stream.capture.load(Acquire) == INVALIDATED;
    let mut capture = remove(&mut captures, index);
    drop(captures);
    if invalid {
        if !capture.is_given {
            capture.graph.destroy();
        }
        return Err(Status::STREAM_CAPTURE_INVALIDATED);
    }
    capture.conclude()?;
    Ok(capture.graph)
}

/// Returns the number and the graph of the capture on a stream; `None` if the stream is not
/// captured.
pub fn info(stream: &Stream) -> Option<(u64, &'static Graph)> {
    with(stream, |capture| {
        let _ = capture.conclude();
        (capture.id, capture.graph)
    })
}

fn with<T>(stream: &Stream, work: impl FnOnce(&mut Capture) -> T) -> Option<T> {
    captures()
        .iter_mut()
        .find(|capture| std::ptr::eq(capture.stream, stream))
        .map(work)
}

/// Adds a node to the captured graph, unless the capture is invalid.
#[cold]
pub(crate) fn add_node(stream: &Stream, status: i32) -> Outcome<bool> {
    if status != ACTIVE {
        return Err(Status::STREAM_CAPTURE_INVALIDATED);
    }
    let begun = with(stream, |capture| {
        capture.conclude()?;
        capture.pending = Some(Kind::Kernel {
            function: 0,
            need: Need::default(),
        });
        Ok(true)
    });
    begun.unwrap_or(Err(Status::STREAM_CAPTURE_INVALIDATED))
}

/// Notes that the last captured call launches the kernel `function`, and how much memory this
/// kernel needs.
pub fn add_kernel(stream: &Stream, function: usize, need: Need) {
    with(stream, |capture| {
        capture.pending = Some(Kind::Kernel { function, need });
    });
}

/// Adds an allocation to the captured graph, and returns its address. A launch takes the memory.
///
/// # Errors
/// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY` without free addresses.
pub fn allocate(stream: &Stream, bytes: u64) -> Outcome<u64> {
    with(stream, |capture| {
        capture.pending = None;
        let (context, after) = (stream.context, capture.last.into_iter().collect());
        let device = context.device();
        let (node, address) = capture.graph.allocate(context, device, bytes, after)?;
        capture.last = Some(node);
        Ok(address)
    })
    .ok_or(Status::STREAM_CAPTURE_INVALIDATED)?
}

/// Adds a node to the captured graph. The node frees the address.
///
/// # Errors
/// `INVALID_VALUE` when no graph allocated the address.
pub fn free(stream: &Stream, address: u64) -> Outcome<()> {
    with(stream, |capture| {
        capture.pending = None;
        let after = capture.last.into_iter().collect();
        capture.last = Some(capture.graph.free(address, after)?);
        Ok(())
    })
    .ok_or(Status::STREAM_CAPTURE_INVALIDATED)?
}

/// Drops the capture on a stream when the stream is destroyed.
pub(crate) fn drop_stream(stream: &Stream) {
    forget(|capture| std::ptr::eq(capture.stream, stream));
}

/// Drops the captures of a context when the context is destroyed.
pub(crate) fn drop_context(context: &Context) {
    forget(|capture| std::ptr::eq(capture.stream.context, context));
}

fn forget(mut fits: impl FnMut(&Capture) -> bool) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let mut all = captures();
    let mut gone = Vec::new();
    while let Some(index) = all.iter().position(&mut fits) {
        gone.push(remove(&mut all, index));
    }
    drop(all);
    for capture in gone {
        capture.graph.destroy();
    }
}
