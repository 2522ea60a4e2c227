//! Streams and events of the simulated driver. A stream is only memory, a context, a capture, and
//! the end time of its work.
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

/// A stream. The `Stream` object is never freed, so a stale handle shows that the stream was
/// destroyed.
pub struct Stream {
    magic: AtomicU64,
    /// The context in which the stream was created. For a green context, this is its primary
    /// context.
    pub context: &'static Context,
    /// The context that `cuStreamGetCtx` returns for the stream.
    pub named: &'static Context,
    /// Creation flags.
    pub flags: u32,
    /// Priority.
    pub priority: i32,
    /// A number that no other stream of the process has.
    pub id: u64,
    /// The stream's `CUstreamCaptureStatus`. The module [`capture`] sets it.
    pub(crate) capture: AtomicI32,
    /// The time at which the stream's work ends. The module [`work`] sets it.
    pub(crate) end: AtomicU64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(3);

/// Returns whether a `CUstream` handle is the legacy stream. In functions with `twin`, handle 0 is
/// the per-thread stream.
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

    /// Returns the `CUstream`.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Returns the stream of a `CUstream` handle; `None` for the NULL, legacy and per-thread
    /// streams (0, 1, 2).
    ///
    /// # Errors
    /// - `INVALID_HANDLE`: not a stream, or destroyed.
    /// - `INVALID_CONTEXT`: the stream's context was destroyed (measured).
    pub fn from_handle(handle: usize) -> Outcome<Option<&'static Stream>> {
        if handle <= 2 {
            return Ok(None);
        }
        if !handle.is_multiple_of(align_of::<Stream>()) {
            return Err(fatal(Status::INVALID_HANDLE));
        }
        // SAFETY: the C caller promises a handle of a stream, and streams are never freed.
        let stream = unsafe { &*(handle as *const Stream) };
        match stream.magic.load(Acquire) {
            STREAM_MAGIC if stream.context.is_active() => Ok(Some(stream)),
            STREAM_MAGIC => Err(Status::INVALID_CONTEXT),
            _ => Err(fatal(Status::INVALID_HANDLE)),
        }
    }

    /// Returns the context in which the stream of a `CUstream` handle works.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, or the errors of [`context::current`].
    pub fn context_of(handle: usize) -> Outcome<&'static Context> {
        match Stream::from_handle(handle)? {
            Some(stream) => Ok(stream.context),
            None => context::current(),
        }
    }

    /// Destroys the stream and ends its capture. The context keeps the stream's memory.
    pub fn destroy(&self) {
        capture::drop_stream(self);
        self.magic.store(0, Release);
    }

    /// Returns the stream's `CUstreamCaptureStatus`.
    pub fn capture_status(&self) -> i32 {
        self.capture.load(Acquire)
    }

    /// Returns whether this stream is captured. If so, the present call becomes a graph node
    /// instead.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED` when the capture is invalid.
    #[inline(always)]
    pub fn captures(&self) -> Outcome<bool> {
        match self.capture_status() {
            capture::NONE => Ok(false),
            status => capture::add_node(self, status),
        }
    }
}

/// An event. The object is never freed, so that a stale handle points to valid memory.
pub struct Event {
    magic: AtomicU64,
    /// The context in which the event was created.
    pub context: &'static Context,
    /// The end of the work for which the event waits; 0 = the event was never recorded.
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

    /// Returns the `CUevent`.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Returns the event of a `CUevent` handle.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for any other handle, or a destroyed event.
    pub fn from_handle(handle: usize) -> Outcome<&'static Event> {
        if handle == 0 || !handle.is_multiple_of(align_of::<Event>()) {
            return Err(Status::INVALID_HANDLE);
        }
        // SAFETY: the C caller promises a handle of an event, and events are never freed.
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

    /// Records the event: the event is over when the queue's present work ends, or at once without
    /// a queue.
    pub fn record(&self, queue: Option<Queue>) {
        let end = queue.map_or_else(work::now, |queue| queue.add(0, 0));
        self.end.store(end, Release);
    }

    /// Returns the time at which the event is over; 0 when the event was never recorded.
    pub fn end(&self) -> u64 {
        self.end.load(Acquire)
    }

    /// Returns the milliseconds from the event `start` to this event.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an event that was never recorded, `NOT_READY`.
    pub fn elapsed_since(&self, start: &Event) -> Outcome<f32> {
        let (start, end) = (start.end(), self.end());
        if start == 0 || end == 0 {
            return Err(Status::INVALID_HANDLE);
        }
        work::query(start.max(end))?;
        Ok(Duration::from_nanos(end.saturating_sub(start)).as_secs_f32() * 1000.0)
    }
}
