//! Streams and events. Nothing is computed, so a stream is what it costs, where it belongs, whether
//! it captures and when its work ends.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU64};
use std::time::Duration;

use crate::abi::fatal;
use crate::capture;
use crate::context::{self, Context};
use crate::work::{self, Queue};
use crate::{Outcome, Status};

const STREAM_MAGIC: u64 = 0x7374_7265_616d_5f5f;
const EVENT_MAGIC: u64 = 0x6576_656e_745f_5f5f;

/// A stream. Never freed, so that a handle that outlives it still points to something that says so.
pub struct Stream {
    magic: AtomicU64,
    /// The context it was created in; for a green one the context that this is part of.
    pub context: &'static Context,
    /// The context that `cuStreamGetCtx` names.
    pub named: &'static Context,
    /// Creation flags.
    pub flags: u32,
    /// Priority.
    pub priority: i32,
    /// A number that no other stream of the process has.
    pub id: u64,
    /// `CUstreamCaptureStatus`, kept by [`capture`].
    pub(crate) capture: AtomicI32,
    /// When its work ends, kept by [`work`].
    pub(crate) end: AtomicU64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(3);

/// Whether one of the first three `CUstream`s is the legacy stream, and not the thread's own;
/// `twin` says that it was given to a function for the per-thread default stream.
#[inline(always)]
pub fn is_legacy(handle: usize, twin: bool) -> bool {
    handle == 1 || handle == 0 && !twin
}

impl Stream {
    /// Creates a stream in the context.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn create(
        context: &'static Context,
        flags: u32,
        priority: i32,
    ) -> Outcome<&'static Stream> {
        context.base().add_stream()?;
        Ok(Box::leak(Box::new(Stream {
            magic: AtomicU64::new(STREAM_MAGIC),
            context: context.base(),
            named: context,
            flags,
            priority,
            id: NEXT_ID.fetch_add(1, Relaxed),
            capture: AtomicI32::new(capture::NONE),
            end: AtomicU64::new(0),
        })))
    }

    /// The `CUstream`.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The stream of a `CUstream`: none for the NULL, legacy and per-thread streams (0, 1, 2).
    ///
    /// # Errors
    /// `INVALID_HANDLE` when it is none, or destroyed, and `INVALID_CONTEXT` when its context has
    /// gone (measured).
    pub fn from_handle(handle: usize) -> Outcome<Option<&'static Stream>> {
        if handle <= 2 {
            return Ok(None);
        }
        if !handle.is_multiple_of(align_of::<Stream>()) {
            return Err(fatal(Status::INVALID_HANDLE));
        }
        // SAFETY: the interface's caller promises a stream handle; streams are never freed.
        let stream = unsafe { &*(handle as *const Stream) };
        match stream.magic.load(Acquire) {
            STREAM_MAGIC if stream.context.is_active() => Ok(Some(stream)),
            STREAM_MAGIC => Err(Status::INVALID_CONTEXT),
            _ => Err(fatal(Status::INVALID_HANDLE)),
        }
    }

    /// The context that a `CUstream` works in.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, or as [`context::current`].
    pub fn context_of(handle: usize) -> Outcome<&'static Context> {
        match Stream::from_handle(handle)? {
            Some(stream) => Ok(stream.context),
            None => context::current(),
        }
    }

    /// Destroys the stream, and a capture that is under way on it. Its memory stays with the
    /// context.
    pub fn destroy(&self) {
        capture::drop_stream(self);
        self.magic.store(0, Release);
    }

    /// Whether calls on the stream are captured into a graph, in the numbers of
    /// `CUstreamCaptureStatus`.
    pub fn capture_status(&self) -> i32 {
        self.capture.load(Acquire)
    }

    /// Whether a call on the stream is captured into a graph, and not done.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED` when the capture is spoilt.
    #[inline(always)]
    pub fn captures(&self) -> Outcome<bool> {
        match self.capture_status() {
            capture::NONE => Ok(false),
            status => capture::add_node(self, status),
        }
    }
}

/// An event. Never freed, as a stream.
pub struct Event {
    magic: AtomicU64,
    /// The context it was created in.
    pub context: &'static Context,
    /// When the work before it ends; 0 = never recorded.
    end: AtomicU64,
}

impl Event {
    /// Creates an event.
    pub fn create(context: &'static Context) -> &'static Event {
        Box::leak(Box::new(Event {
            magic: AtomicU64::new(EVENT_MAGIC),
            context,
            end: AtomicU64::new(0),
        }))
    }

    /// The `CUevent`.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The event of a `CUevent`.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when it is none, or destroyed.
    pub fn from_handle(handle: usize) -> Outcome<&'static Event> {
        if handle == 0 || !handle.is_multiple_of(align_of::<Event>()) {
            return Err(Status::INVALID_HANDLE);
        }
        // SAFETY: the interface's caller promises an event handle; events are never freed.
        let event = unsafe { &*(handle as *const Event) };
        match event.magic.load(Acquire) {
            EVENT_MAGIC => Ok(event),
            _ => Err(Status::INVALID_HANDLE),
        }
    }

    /// Destroys the event.
    pub fn destroy(&self) {
        self.magic.store(0, Release);
    }

    /// Records the event: after the queue's work, or now.
    pub fn record(&self, queue: Option<Queue>) {
        let end = queue.map_or_else(work::now, |queue| queue.add(0, 0));
        self.end.store(end, Release);
    }

    /// When the work before it ends; 0 when it was never recorded.
    pub fn end(&self) -> u64 {
        self.end.load(Acquire)
    }

    /// Milliseconds from another event to this one.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when one of them was never recorded, `NOT_READY` when one has not come.
    pub fn elapsed_since(&self, start: &Event) -> Outcome<f32> {
        let (start, end) = (start.end(), self.end());
        if start == 0 || end == 0 {
            return Err(Status::INVALID_HANDLE);
        }
        work::query(start.max(end))?;
        Ok(Duration::from_nanos(end.saturating_sub(start)).as_secs_f32() * 1000.0)
    }
}
