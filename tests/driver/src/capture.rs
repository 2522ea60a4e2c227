//! Stream capture: which captures are under way, what they forbid, and what spoils them.
//!
//! Measured (H100, 580.159.04): `cuMemPoolGetAttribute` while a stream is captured in the global
//! mode spoils the capture: every later call on the stream, `cuStreamEndCapture` included, answers
//! 901; after that the stream works again. In the relaxed mode of the thread it does not. The other
//! forbidden calls are those of NVIDIA's documentation.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::graph::{Graph, Kind, Need, Node};
use crate::stream::Stream;
use crate::{Outcome, Status};

/// `CUstreamCaptureStatus`: no capture.
pub const NONE: i32 = 0;
/// A capture is under way.
pub const ACTIVE: i32 = 1;
/// A capture is spoilt, and not yet ended.
pub const INVALIDATED: i32 = 2;

/// `CUstreamCaptureMode`: forbids unsafe calls in every thread.
pub const GLOBAL: i32 = 0;
/// Forbids them in the capturing thread.
pub const THREAD_LOCAL: i32 = 1;
/// Forbids nothing.
pub const RELAXED: i32 = 2;

struct Capture {
    stream: &'static Stream,
    /// The thread that began it.
    thread: u64,
    mode: i32,
    id: u64,
    graph: &'static Graph,
    last: Option<&'static Node>,
    /// A call was captured whose node is not yet made: only some calls say what it is.
    pending: Option<Kind>,
}

/// Captures under way: the only word that an ordinary call reads.
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

/// `cuThreadExchangeStreamCaptureMode`: sets the thread's mode and returns the one before.
///
/// # Errors
/// `INVALID_VALUE` when it is none.
pub fn exchange_mode(mode: i32) -> Outcome<i32> {
    match mode {
        GLOBAL..=RELAXED => Ok(MODE.replace(mode)),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Spoils the captures that fit; whether there were any.
#[cold]
fn spoil(mut fits: impl FnMut(&Capture) -> bool) -> bool {
    let mut any = false;
    for capture in captures().iter().filter(|capture| fits(capture)) {
        capture.stream.capture.store(INVALIDATED, Release);
        any = true;
    }
    any
}

/// Says that a call begins which NVIDIA deems potentially unsafe while a stream is captured. One
/// branch when none is.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED` when a capture forbids it, which is then spoilt.
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
    if mode != RELAXED && spoil(forbids) {
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    } else {
        Ok(())
    }
}

/// Says that a context is synchronised, which no mode allows while one of its streams is captured.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED`: the captures are then spoilt.
#[inline(always)]
pub fn synchronizes(context: &Context) -> Outcome<()> {
    if COUNT.load(Relaxed) != 0 && spoil(|capture| std::ptr::eq(capture.stream.context, context)) {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

/// Says that a stream is asked for its progress, which no mode allows while it is captured.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED`: the capture is then spoilt; `STREAM_CAPTURE_INVALIDATED` when it
/// is already.
pub fn waits_for(stream: Option<&Stream>) -> Outcome<()> {
    match stream {
        Some(stream) if stream.captures()? => {
            spoil(|capture| std::ptr::eq(capture.stream, stream));
            Err(Status::STREAM_CAPTURE_UNSUPPORTED)
        }
        _ => Ok(()),
    }
}

/// Says that the legacy stream is used in a context: it waits for every stream that is not a
/// non-blocking one.
///
/// # Errors
/// `STREAM_CAPTURE_IMPLICIT` when such a stream is captured; the capture is then spoilt.
#[inline(always)]
pub fn legacy(context: &Context) -> Outcome<()> {
    if COUNT.load(Relaxed) != 0 && spoil(|capture| capture.holds_legacy(context)) {
        return Err(Status::STREAM_CAPTURE_IMPLICIT);
    }
    Ok(())
}

/// Whether a capture forbids the legacy stream of the context.
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
    /// Makes the node of a call that did not say what it is.
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

/// Begins a capture.
///
/// # Errors
/// `ILLEGAL_STATE` when one is under way on the stream, `INVALID_VALUE` for no mode.
pub fn begin(stream: &'static Stream, mode: i32) -> Outcome<()> {
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
        graph: Graph::make(),
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

/// Ends a capture and returns its graph.
///
/// # Errors
/// `ILLEGAL_STATE` when none is under way, `STREAM_CAPTURE_WRONG_THREAD` in another thread than the
/// one that began it, unless in the relaxed mode, `STREAM_CAPTURE_INVALIDATED` when it was spoilt;
/// that ends it, too.
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
    let spoilt = stream.capture.load(Acquire) == INVALIDATED;
    let mut capture = remove(&mut captures, index);
    drop(captures);
    if spoilt {
        capture.graph.destroy();
        return Err(Status::STREAM_CAPTURE_INVALIDATED);
    }
    capture.conclude()?;
    Ok(capture.graph)
}

/// What is known of the capture under way on a stream: its number and its graph.
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

/// One more node of the graph, unless the capture is spoilt.
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

/// The call just captured launches this function, which needs so many bytes of local memory per
/// thread.
pub fn add_kernel(stream: &Stream, function: usize, need: Need) {
    with(stream, |capture| {
        capture.pending = Some(Kind::Kernel { function, need });
    });
}

/// Allocates in the captured graph: an address, no memory before the graph is launched.
///
/// # Errors
/// `INVALID_VALUE` for no bytes, `OUT_OF_MEMORY` when there are no addresses.
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

/// Frees in the captured graph.
///
/// # Errors
/// `INVALID_VALUE` when no graph has allocated it.
pub fn free(stream: &Stream, address: u64) -> Outcome<()> {
    with(stream, |capture| {
        capture.pending = None;
        let after = capture.last.into_iter().collect();
        capture.last = Some(capture.graph.free(address, after)?);
        Ok(())
    })
    .ok_or(Status::STREAM_CAPTURE_INVALIDATED)?
}

/// Forgets the capture on a stream that goes.
pub(crate) fn drop_stream(stream: &Stream) {
    forget(|capture| std::ptr::eq(capture.stream, stream));
}

/// Forgets the captures of a context that goes.
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
