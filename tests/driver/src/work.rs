//! The times, in nanoseconds ([`now`]), at which the work of streams ends. Kernels take time only
//! with the knob `work`.
//!
//! Until a kernel takes time, driver calls read only `EVER` of this module. An end time only moves
//! forward, so several streams can share one number.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::context::{self, Context};
use crate::driver::driver;
use crate::stream::{Stream, is_legacy};
use crate::{Outcome, Status};

/// Whether any kernel of this process has ever taken time.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The ends of the work of this thread's default streams: one for each context, by the
    /// context's id.
    static OWN: RefCell<Vec<(u64, &'static AtomicU64)>> = const { RefCell::new(Vec::new()) };
}

/// Returns the present time in nanoseconds; never 0.
pub fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

/// Returns whether this time has passed.
#[inline(always)]
pub fn is_over(end: u64) -> bool {
    !EVER.load(Relaxed) || end <= now()
}

/// Returns an error while work that ends at this time is under way.
///
/// # Errors
/// `NOT_READY`.
#[inline(always)]
pub fn query(end: u64) -> Outcome<()> {
    if is_over(end) {
        Ok(())
    } else {
        Err(Status::NOT_READY)
    }
}

/// Sleeps until this time.
#[inline(always)]
pub fn wait(end: u64) {
    if EVER.load(Relaxed) {
        sleep(end);
    }
}

#[cold]
fn sleep(end: u64) {
    while let left @ 1.. = end.saturating_sub(now()) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Sleeps until all work of this context is done.
#[inline(always)]
pub fn wait_for(context: &Context) {
    wait(context.work.all.load(Acquire));
}

/// Sleeps until all work of the thread's current context is done. Without a current context,
/// returns at once.
#[inline(always)]
pub fn wait_for_current() {
    if EVER.load(Relaxed)
        && let Ok(context) = context::current()
    {
        wait_for(context);
    }
}

/// Adds a launched kernel or graph to a stream's work, and returns its end time.
///
/// # Errors
/// The errors of [`Stream::context_of`].
#[inline(always)]
pub fn launch(stream: Name) -> Outcome<u64> {
    if driver()?.machine.knobs.active.load(Relaxed) == 0 {
        Ok(0)
    } else {
        launch_at_length(stream)
    }
}

#[cold]
fn launch_at_length(stream: Name) -> Outcome<u64> {
    let work = driver()?.machine.knobs.work.load(Relaxed);
    if work == 0 {
        return Ok(0);
    }
    EVER.store(true, Relaxed);
    Ok(stream.find()?.add(0, work))
}

/// The times at which the work of a context's streams ends.
#[derive(Default)]
pub struct Ends {
    legacy: AtomicU64,
    /// The end of the work of the legacy stream, and of all streams that wait for it.
    blocking: AtomicU64,
    all: AtomicU64,
}

impl Ends {
    /// Resets all end times when the context is destroyed.
    pub(crate) fn clear(&self) {
        for end in [&self.legacy, &self.blocking, &self.all] {
            end.store(0, Release);
        }
    }
}

/// The queue of a stream's work. The stream may be a default stream.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    context: &'static Context,
    end: &'static AtomicU64,
    blocking: bool,
}

impl PartialEq for Queue {
    fn eq(&self, other: &Queue) -> bool {
        std::ptr::eq(self.end, other.end)
    }
}

/// The arguments by which a driver call names a stream. The queue is looked up only where needed.
#[derive(Clone, Copy)]
pub struct Name {
    /// The `CUstream` handle, already checked.
    pub handle: usize,
    /// Whether the called function uses the per-thread default stream.
    pub twin: bool,
}

impl Name {
    /// The legacy stream.
    pub const LEGACY: Name = Name {
        handle: 1,
        twin: false,
    };

    /// Returns the stream's queue; `None` as long as no kernel of the process has taken time.
    #[inline(always)]
    pub fn queue(self) -> Option<Queue> {
        if EVER.load(Relaxed) {
            self.find().ok()
        } else {
            None
        }
    }

    /// Returns a number that no other stream of the process has.
    ///
    /// # Errors
    /// The errors of [`Stream::from_handle`].
    pub fn identity(self) -> Outcome<u64> {
        Ok(std::ptr::from_ref(self.find()?.end) as u64)
    }

    #[cold]
    fn find(self) -> Outcome<Queue> {
        if let Some(stream) = Stream::from_handle(self.handle)? {
            return Ok(Queue {
                context: stream.context,
                end: &stream.end,
                blocking: stream.flags & 1 == 0,
            });
        }
        let context = context::current()?;
        let end = if is_legacy(self.handle, self.twin) {
            &context.work.legacy
        } else {
            own_stream(context)
        };
        Ok(Queue {
            context,
            end,
            blocking: true,
        })
    }
}

fn own_stream(context: &Context) -> &'static AtomicU64 {
    OWN.with_borrow_mut(|own| {
        let known = own.iter().find(|(id, _)| *id == context.id());
        if let Some((_, end)) = known {
            return *end;
        }
        let end: &'static AtomicU64 = Box::leak(Box::default());
        own.push((context.id(), end));
        end
    })
}

impl Queue {
    fn is_legacy(self) -> bool {
        std::ptr::eq(self.end, &self.context.work.legacy)
    }

    /// Returns the time at which the work of the queue ends.
    pub fn end(self) -> u64 {
        if self.is_legacy() {
            self.context.work.blocking.load(Acquire)
        } else {
            self.end.load(Acquire)
        }
    }

    /// Adds `work` nanoseconds of work after everything that the stream waits for, and after the
    /// time `after`. Returns the work's end.
    pub fn add(self, after: u64, work: u64) -> u64 {
        static ORDER: Mutex<()> = Mutex::new(());
        let _one = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = &self.context.work;
        let mut start = now().max(after).max(self.end());
        if self.blocking {
            start = start.max(ends.legacy.load(Acquire));
        }
        let end = start.saturating_add(work);
        self.end.fetch_max(end, Release);
        ends.all.fetch_max(end, Release);
        if self.blocking {
            ends.blocking.fetch_max(end, Release);
        }
        end
    }
}
