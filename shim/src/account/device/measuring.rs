//! Measures the driver's own memory (`account/driver_part.rs`): NVML's figure for this process
//! minus the *named* bytes, which are the bytes whose size the program gave in its calls.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::Device;
use crate::abi::{Context, Opaque, Status};
use crate::account::driver_part::{Measured, Total};
use crate::account::rounding::BLOCK;
use crate::clock::monotonic_ms;
use crate::driver::figures;

/// The age in milliseconds after which a measurement is too old. The next call that takes a 2 MiB
/// block then measures again.
const MEASURE_AGE_MS: u64 = 100;

/// The most times that one measurement reads this process's figure from NVML. The measurement reads
/// again when another thread has taken or freed memory meanwhile.
pub(super) const ATTEMPTS: u32 = 12;

/// State that is shared by measurements and by the calls that run at the same time.
#[derive(Default)]
pub(super) struct Measuring {
    nvml: figures::Handle,
    /// The number of measurements of the driver's own memory that have begun.
    begun: AtomicU64,
    /// The time of the last measurement, in milliseconds of the monotonic clock.
    pub at: AtomicU64,
    /// Whether the last measurement may have overestimated the driver's own memory. If so, the next
    /// call that is able to measure repeats the measurement. So does a thread that was destroying a
    /// context during the measurement.
    inexact: AtomicBool,
    /// The number of ended calls that took or freed memory or destroyed a context. Each such call
    /// first increments this number, and then checks whether a measurement ran meanwhile.
    ended_calls: AtomicU64,
    /// The number of contexts that threads are destroying at the moment.
    teardowns: AtomicU32,
}

impl Device {
    /// Measures the driver's own memory and corrects its charge. Where NVML gives no figure,
    /// changes nothing and returns `None`.
    pub fn measure(&self) -> Option<Measured> {
        let (number, total) = self.look();
        let part = &self.driver_part;
        Some(part.conclude(&self.book, &self.contexts, number, total?))
    }

    /// Reads NVML's figure for this process, and the bytes whose size the program gave in its
    /// calls. Returns the number of the measurement, and its result.
    pub fn look(&self) -> (u64, Option<Total>) {
        let number = self.measuring.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let total = self.measure_total().map(|total| {
            // NVML may have begun to attribute memory of other processes to this process. Such
            // memory is taken over here, so that it does not count as the driver's own memory.
            let grown = total.beyond_named().saturating_sub(self.driver_part.used());
            Total {
                named: total.named + self.take_over(grown),
                ..total
            }
        });
        (number, total)
    }

    /// Measures after a panic inside gpulimit, and uncharges bytes that were charged in advance and
    /// are not used. Where NVML gives no figure, uncharges all bytes that were charged in advance.
    pub fn recover(&self) {
        if self.measure().is_none() {
            self.assume(0);
        }
    }

    /// Changes the recorded size of the driver's own memory by `change` bytes. Used where NVML
    /// gives no figure. The change is part of the assumed size of the newest context.
    pub fn assume(&self, change: i64) {
        self.driver_part.assume(&self.book, &self.contexts, change);
    }

    /// Repeats the measurement where necessary. Called after a hooked call has taken or freed
    /// memory. Three cases make it necessary:
    /// - Another measurement ran during the hooked call, and may have counted the call's memory as
    ///   the driver's own.
    /// - NVML may have begun to attribute memory of other processes to this process.
    /// - The last measurement is old, or may have overestimated the driver's own memory.
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

    /// Runs `call`, which may destroy a context with all its memory, and then `after`, which
    /// updates the account. During `call`, some memory is freed already but still recorded. A
    /// measurement by another thread then gives only a lower bound of the driver's own memory. If
    /// there was such a measurement, this function measures again.
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

    /// Returns whether the last measurement may have overestimated the driver's own memory. This
    /// happens when other threads keep taking and freeing memory.
    pub fn is_inexact(&self) -> bool {
        self.measuring.inexact.load(Ordering::SeqCst)
    }

    /// Returns NVML's figure for this process and the named bytes in it (those whose size the
    /// program gave). Returns `None` when NVML is missing, or when the process runs in a PID
    /// namespace that NVML does not know.
    ///
    /// Memory becomes named only after the driver has allocated it, and stops being named before
    /// the driver frees it. So the result is never too small, even if another thread makes a call
    /// between the two readings. The result may be too large; the other thread's call then measures
    /// again ([`Device::renew`]). Pools shrink inside synchronise calls and graph memory grows
    /// inside launches. So the reserved bytes of both are read before and after NVML's figure.
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

    /// Returns a lower bound of the driver's own memory: the local memory that contexts have from
    /// the start, plus the variables of loaded code. The bound replaces a smaller figure of NVML.
    fn least_of_driver(&self) -> u64 {
        let contexts = self.contexts.all();
        let memory = contexts
            .iter()
            .map(|context| self.kernels.context(*context).backing())
            // When local memory grows, the account records its new size only after a measurement.
            // So here local memory counts with at most its size at the context's start.
            .map(|bytes| bytes.min(self.kernels.start()));
        let variables = self.process.variables.on(self.ordinal);
        memory.fold(variables, u64::saturating_add)
    }

    /// Implements [`Device::measure_total`]. `look` reads the reserved bytes of pools and graphs.
    /// `own_bytes` reads NVML's figure for this process.
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
                // The last attempt is not repeated. So the calls that run during it must measure
                // again when they end; the mark `inexact` tells them to do so.
                inexact.store(true, Ordering::SeqCst);
            }
            look();
            let ended_before = ended_calls();
            // `removed` is read before the first sum of named bytes and after the second. So `gone`
            // includes all memory that is freed between the two sums.
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
            // Another thread's call may free memory after NVML's figure was read, and end without
            // seeing this measurement. To exclude this, the call and the measurement each increment
            // a counter of their own first, and then read the counter of the other.
            if after == before && gone == 0 && ended_calls() == ended_before {
                self.measuring.at.store(monotonic_ms(), Ordering::Relaxed);
                inexact.store(at_least, Ordering::SeqCst);
            } else if !is_last {
                continue;
            }
            // If other threads take and free memory all the time, the smallest sum of named bytes
            // is used. The driver's own memory is then overestimated rather than underestimated.
            // Equal sums do not show that no memory was freed: one thread may have taken as much
            // memory as another thread freed.
            let named = before.saturating_sub(gone).min(after);
            return Some(Total {
                figure,
                named,
                at_least,
            });
        }
        None
    }

    /// Records code that was loaded in `context` on this device. Its variables take at least
    /// `bytes`.
    pub fn note_variables(&'static self, code: Opaque, context: Context, bytes: u64) {
        let variables = &self.process.variables;
        variables.insert(code, context, self.ordinal, bytes);
        // Variables smaller than a 2 MiB block fit into the reserve that is always charged for the
        // driver. They need no measurement.
        if bytes >= BLOCK && self.measure().is_none() {
            variables.note_assumed(code, context);
            self.assume(bytes as i64);
        }
    }

    /// Removes the record of code that was unloaded from this device.
    pub fn forget_variables(&self, code: Opaque) {
        let assumed = self.process.variables.remove(code, self.ordinal);
        if assumed > 0 {
            self.assume((assumed as i64).wrapping_neg());
        }
    }
}

/// A call that destroys a context, as a guard. Measurements made while the guard exists are
/// inexact.
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
