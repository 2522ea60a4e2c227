//! Measuring: the driver's own figure for this process, beside what calls have named. The
//! difference is the driver's part ([`driver_part`]).
//!
//! [`driver_part`]: crate::account::driver_part

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::Device;
use crate::abi::{Context, Opaque, Status};
use crate::account::driver_part::{Measured, Total};
use crate::account::rounding::BLOCK;
use crate::clock::monotonic_ms;
use crate::driver::figures;

/// How old a measurement may grow before a call that takes a block renews it: milliseconds.
const MEASURE_AGE_MS: u64 = 100;

/// Looks at the driver's figure until nothing moves under it.
pub(super) const ATTEMPTS: u32 = 12;

/// What measurements and the calls beside them know of each other.
#[derive(Default)]
pub(super) struct Measuring {
    nvml: figures::Handle,
    /// Measurements begun.
    begun: AtomicU64,
    /// When the last one was made, milliseconds.
    pub at: AtomicU64,
    /// The last measurement erred on the safe side: the next call that may measures again, or the
    /// thread that destroyed a context meanwhile.
    inexact: AtomicBool,
    /// Calls that took or freed memory, or destroyed a context, and have ended: counted before each
    /// looks whether a measurement ran across it.
    ended_calls: AtomicU64,
    /// Contexts that are being destroyed right now.
    teardowns: AtomicU32,
}

impl Device {
    /// Measures the driver's part and brings the charge in line with it. Without a measurement
    /// everything stays as it was.
    pub fn measure(&self) -> Option<Measured> {
        let (number, total) = self.look();
        let part = &self.driver_part;
        Some(part.conclude(&self.book, &self.contexts, number, total?))
    }

    /// A measurement, with its number.
    pub fn look(&self) -> (u64, Option<Total>) {
        let number = self.measuring.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let total = self.measure_total().map(|total| {
            // Imported memory that has come to this process since the last one.
            let grown = total.beyond_named().saturating_sub(self.driver_part.used());
            Total {
                named: total.named + self.take_over(grown),
                ..total
            }
        });
        (number, total)
    }

    /// After a panic of the library's: what calls had paid ahead stayed charged, as they may have
    /// been made. Without a measurement nobody knows what they took, and it is given back as after
    /// any call that is not measured.
    pub fn recover(&self) {
        if self.measure().is_none() {
            self.assume(0);
        }
    }

    /// Without a measurement: the driver's part has changed by so many bytes, for as long as its
    /// context lives.
    pub fn assume(&self, change: i64) {
        self.driver_part.assume(&self.book, &self.contexts, change);
    }

    /// After memory was taken or freed: measures again when a measurement ran across it (and may
    /// have counted it to the driver's part), when memory of others may have come to this process
    /// meanwhile, or when the last one is old.
    pub fn renew(&self, mark: u64) {
        self.measuring.ended_calls.fetch_add(1, Ordering::SeqCst);
        if self.is_due(mark) {
            self.measure();
        }
    }

    #[inline]
    pub(super) fn is_due(&self, mark: u64) -> bool {
        let age = || monotonic_ms().saturating_sub(self.measuring.at.load(Ordering::Relaxed));
        self.process.mark() != mark
            || self.is_inexact()
            || self.may_inherit()
            || age() > MEASURE_AGE_MS
    }

    /// Runs a call that may destroy a context, with all that was in it; `after` tells the account.
    /// A measurement in between may see memory that is gone and still named: it shows only what
    /// the driver's part is at least, and is made again here.
    pub fn tear_down(&self, call: impl FnOnce() -> Status, after: impl FnOnce(Status)) -> Status {
        let teardown = Teardown::begin(&self.measuring.teardowns);
        let status = call();
        after(status);
        drop(teardown);
        self.measuring.ended_calls.fetch_add(1, Ordering::SeqCst);
        if self.is_inexact() {
            self.measure();
        }
        status
    }

    /// Whether the last measurement took more for the driver's part than it is, as other threads
    /// took and freed all the time.
    pub fn is_inexact(&self) -> bool {
        self.measuring.inexact.load(Ordering::SeqCst)
    }

    /// The driver's figure for this process beside the named part; `None` when there is no such
    /// figure (no NVML, or a PID namespace that it does not know).
    ///
    /// Named memory is entered after the driver has given it and taken out before it frees it, so a
    /// figure that another thread's call falls into is too large, never too small; that call then
    /// measures again ([`Device::renew`]). Pools shrink inside synchronise calls, and graph memory
    /// grows inside launches: they are looked at on both sides of the figure.
    fn measure_total(&self) -> Option<Total> {
        let look = || {
            self.process.pools.refresh_on(&self.book);
            if self.contexts.count() > 0 {
                self.graphs.refresh(&self.book);
            }
        };
        let total = self.total(look, || self.measuring.nvml.own_bytes(&self.id))?;
        let least = total.named.saturating_add(self.least_of_driver());
        Some(Total {
            figure: total.figure.max(least),
            ..total
        })
    }

    /// Bytes of the driver's part that are there for certain, whatever a library that says it is
    /// NVML tells: the local memory that contexts have from the start, and variables of code.
    fn least_of_driver(&self) -> u64 {
        let contexts = self.contexts.all();
        let memory = contexts
            .iter()
            .map(|context| self.kernels.context(*context).backing())
            // Growth is entered, and what has been lowered left out, only after it has been
            // measured.
            .map(|bytes| bytes.min(self.kernels.start()));
        let variables = self.process.variables.on(self.ordinal);
        memory.fold(variables, u64::saturating_add)
    }

    /// As [`Device::measure_total`]: `look` at what changes by itself, and the driver's figure by
    /// `own_bytes`.
    pub(super) fn total(
        &self,
        look: impl Fn(),
        own_bytes: impl Fn() -> Option<u64>,
    ) -> Option<Total> {
        let Measuring { inexact, .. } = &self.measuring;
        let ended_calls = || self.measuring.ended_calls.load(Ordering::SeqCst);
        for attempt in 1..=ATTEMPTS {
            let is_last = attempt == ATTEMPTS;
            if is_last {
                // A call that ends from here on measures again, whatever comes of this attempt.
                inexact.store(true, Ordering::SeqCst);
            }
            look();
            let ended_before = ended_calls();
            // Before the sum, and again after the other one: what has gone since is counted, and
            // what has gone before is in no sum.
            let removed_before = self.book.removed();
            let before = self.book.named();
            let figure = own_bytes()?;
            if figure == 0 && self.contexts.count() > 0 {
                return None;
            }
            let at_least = self.measuring.teardowns.load(Ordering::Acquire) > 0;
            self.process.measurements.fetch_add(1, Ordering::SeqCst);
            look();
            let after = self.book.named();
            let gone = self.book.removed().wrapping_sub(removed_before);
            if at_least {
                inexact.store(true, Ordering::SeqCst);
            }
            // A call may have freed after the figure was read, and have ended before it could see
            // this measurement: each of the two counts first and looks at the other's count then.
            if after == before && gone == 0 && ended_calls() == ended_before {
                self.measuring.at.store(monotonic_ms(), Ordering::Relaxed);
                inexact.store(at_least, Ordering::SeqCst);
            } else if !is_last {
                continue;
            }
            // Where other threads take and free all the time, the least that was named meanwhile
            // errs on the safe side: the sums may be equal because one thread has taken what
            // another one freed.
            let named = before.saturating_sub(gone).min(after);
            return Some(Total {
                figure,
                named,
                at_least,
            });
        }
        None
    }

    /// Code has been loaded in a context here, with at least so many bytes of variables.
    pub fn note_variables(&'static self, code: Opaque, context: Context, bytes: u64) {
        let variables = &self.process.variables;
        variables.insert(code, context, self.ordinal, bytes);
        // What is smaller lies in the reserve.
        if bytes >= BLOCK && self.measure().is_none() {
            variables.note_assumed(code, context);
            self.assume(bytes as i64);
        }
    }

    /// Code has been unloaded.
    pub fn forget_variables(&self, code: Opaque) {
        let assumed = self.process.variables.remove(code, self.ordinal);
        if assumed > 0 {
            self.assume((assumed as i64).wrapping_neg());
        }
    }
}

/// Ends with the call that destroys a context, also where that panics: as long as it lives nothing
/// is measured exactly.
struct Teardown<'a>(&'a AtomicU32);

impl<'a> Teardown<'a> {
    fn begin(under_way: &'a AtomicU32) -> Self {
        under_way.fetch_add(1, Ordering::AcqRel);
        Teardown(under_way)
    }
}

impl Drop for Teardown<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
