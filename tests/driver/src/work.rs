//! When the work of streams ends, once the knob `work` lets kernels take time. Until a process's
//! first such kernel all of this costs an ordinary call one look at `EVER`.
//!
//! Times are nanoseconds of [`now`]. Ends only grow, so the end of several streams' work is one
//! number, too.

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

/// A kernel of this process has taken time.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The thread's own default streams: where each one's work ends, by the id of its context.
    static OWN: RefCell<Vec<(u64, &'static AtomicU64)>> = const { RefCell::new(Vec::new()) };
}

/// The present; never 0.
pub fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

/// Whether it is past this time.
#[inline(always)]
pub fn is_over(end: u64) -> bool {
    !EVER.load(Relaxed) || end <= now()
}

/// Answers that what ends then is not yet over.
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

/// Sleeps until then.
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

/// Sleeps until all work of the context is done.
#[inline(always)]
pub fn wait_for(context: &Context) {
    wait(context.work.all.load(Acquire));
}

/// Sleeps until all work of the thread's current context is done, if it has one.
#[inline(always)]
pub fn wait_for_current() {
    if EVER.load(Relaxed)
        && let Ok(context) = context::current()
    {
        wait_for(context);
    }
}

/// Says that a kernel or a graph was launched on a stream; when it ends.
///
/// # Errors
/// As [`Stream::context_of`].
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

/// What a context's streams have yet to do.
#[derive(Default)]
pub struct Ends {
    legacy: AtomicU64,
    /// Of the legacy stream and of those that wait for it.
    blocking: AtomicU64,
    all: AtomicU64,
}

impl Ends {
    /// The context goes, and its work with it.
    pub(crate) fn clear(&self) {
        for end in [&self.legacy, &self.blocking, &self.all] {
            end.store(0, Release);
        }
    }
}

/// A stream, default ones included, as the order of its work.
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

/// A stream as calls name it, which its queue is looked up by only where needed: two words cost no
/// call anything.
#[derive(Clone, Copy)]
pub struct Name {
    /// The `CUstream`, found to be one.
    pub handle: usize,
    /// Given to a function for the per-thread default stream.
    pub twin: bool,
}

impl Name {
    /// The legacy stream.
    pub const LEGACY: Name = Name {
        handle: 1,
        twin: false,
    };

    /// The queue; none as long as no kernel has taken time.
    #[inline(always)]
    pub fn queue(self) -> Option<Queue> {
        if EVER.load(Relaxed) {
            self.find().ok()
        } else {
            None
        }
    }

    /// A number that no other stream of the process has.
    ///
    /// # Errors
    /// As [`Stream::from_handle`].
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

    /// When the stream's work ends.
    pub fn end(self) -> u64 {
        if self.is_legacy() {
            self.context.work.blocking.load(Acquire)
        } else {
            self.end.load(Acquire)
        }
    }

    /// Adds work of so many ns, which begins after what the stream waits for and not before a given
    /// time; its end.
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
