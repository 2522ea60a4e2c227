//! Measuring: compares NVML's figure for this process with the *named* bytes, the bytes for which
//! calls of the process gave a size. The difference is the driver's own memory
//! (`account/driver_part.rs`).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::Device;
use crate::abi::{Context, Opaque, Status};
use crate::account::driver_part::{Measured, Total};
use crate::account::rounding::BLOCK;
use crate::clock::monotonic_ms;
use crate::driver::figures;

/// The greatest age of the last measurement, in milliseconds. If the last measurement is older, a
/// call that takes a block measures again.
const MEASURE_AGE_MS: u64 = 100;

/// A measurement reads NVML's figure again if another thread takes or frees memory meanwhile. This
/// is the most times that it reads the figure.
pub(super) const ATTEMPTS: u32 = 12;

/// The state that measurements share with the calls that run at the same time.
#[derive(Default)]
pub(super) struct Measuring {
    nvml: figures::Handle,
    /// The number of measurements of the driver's own memory that have begun.
    begun: AtomicU64,
    /// The time of the last measurement, in milliseconds of the monotonic clock.
    pub at: AtomicU64,
    /// Whether the last measurement may have overestimated the driver's own memory. If so, the
    /// measurement is repeated by the next call that may measure, or by the thread that was
    /// destroying a context during the measurement.
    inexact: AtomicBool,
    /// The number of ended calls that took or freed memory or destroyed a context. Each such call
    /// first increments this number and then checks whether a measurement ran during the call.
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

    /// Reads NVML's figure for this process, and the named bytes (those for which calls gave a
    /// size). Returns the number of the measurement, and its result.
    pub fn look(&self) -> (u64, Option<Total>) {
        let number = self.measuring.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let total = self.measure_total().map(|total| {
            // Since the last measurement, NVML may have attributed memory of other processes to
            // this process. From now on such memory counts as named, and not as the driver's own
            // memory.
            let grown = total.beyond_named().saturating_sub(self.driver_part.used());
            Total {
                named: total.named + self.take_over(grown),
                ..total
            }
        });
        (number, total)
    }

    /// Measures after a panic inside gpulimit. Calls had charged bytes in advance. These bytes have
    /// stayed charged, because the driver may have been called. Where NVML gives no figure,
    /// uncharges them, as after any call that cannot be measured.
    pub fn recover(&self) {
        if self.measure().is_none() {
            self.assume(0);
        }
    }

    /// Changes the recorded size of the driver's own memory by `change` bytes where NVML gives no
    /// figure. The change holds for as long as the context lives.
    pub fn assume(&self, change: i64) {
        self.driver_part.assume(&self.book, &self.contexts, change);
    }

    /// Repeats the measurement where necessary. Called after a hooked call has taken or freed
    /// memory. A new measurement is necessary in three cases. Another measurement ran during the
    /// hooked call, and may have counted the call's memory as the driver's own. Or NVML may have
    /// begun to attribute memory of other processes to this process. Or the last measurement is
    /// old.
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

    /// Runs `call`, which may destroy a context with everything in it; `after` updates the account.
    /// During the call, memory may be freed already but still count as named. So a measurement that
    /// another thread makes meanwhile gives only a lower bound of the driver's own memory. In this
    /// case the function measures again at the end.
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

    /// Returns whether the last measurement may have overestimated the driver's own memory, because
    /// other threads took and freed memory all the time.
    pub fn is_inexact(&self) -> bool {
        self.measuring.inexact.load(Ordering::SeqCst)
    }

    /// Returns NVML's figure for this process and the named bytes in it; `None` when NVML gives no
    /// such figure (NVML is missing, or this process runs in a PID namespace that NVML does not
    /// know).
    ///
    /// Memory becomes named only after the driver has given it out, and stops being named before
    /// the driver frees it. Another thread's call may fall between the readings of the two numbers.
    /// The difference is then too large, never too small, and that other call measures again
    /// ([`Device::renew`]). Pools shrink inside synchronise calls and graph memory grows inside
    /// launches, so the reserved bytes of both are read before and after NVML's figure.
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
    /// the start, plus the variables of loaded code. The bound is used where NVML, or a library
    /// that stands in for NVML, shows less.
    fn least_of_driver(&self) -> u64 {
        let contexts = self.contexts.all();
        let memory = contexts
            .iter()
            .map(|context| self.kernels.context(*context).backing())
            // Local memory that has grown since the start of the context counts with its size at
            // the start. The account records the new size only after a measurement.
            .map(|bytes| bytes.min(self.kernels.start()));
        let variables = self.process.variables.on(self.ordinal);
        memory.fold(variables, u64::saturating_add)
    }

    /// Implements [`Device::measure_total`]. `look` reads the reserved bytes of pools and graphs,
    /// which change without an allocation call, and `own_bytes` reads NVML's figure.
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
                // This is the last attempt. Whatever it finds, every call of another thread that
                // ends from now on measures again.
                inexact.store(true, Ordering::SeqCst);
            }
            look();
            let ended_before = ended_calls();
            // `removed` is read before the first sum of named bytes and after the second sum:
            // memory freed between the two sums is counted in `gone`, and memory freed before the
            // first sum is in neither.
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
            // Another thread's call may have freed memory after NVML's figure was read, and have
            // ended before it could see this measurement. To exclude this, both the measurement and
            // the call first increment their own counter, and then read the counter of the other.
            if after == before && gone == 0 && ended_calls() == ended_before {
                self.measuring.at.store(monotonic_ms(), Ordering::Relaxed);
                inexact.store(at_least, Ordering::SeqCst);
            } else if !is_last {
                continue;
            }
            // Other threads take and free memory all the time here. So the smallest sum of named
            // bytes is used: the driver's own memory then comes out too large rather than too
            // small. Two equal sums do not show that no memory changed, because one thread may have
            // taken as much as another thread freed.
            let named = before.saturating_sub(gone).min(after);
            return Some(Total {
                figure,
                named,
                at_least,
            });
        }
        None
    }

    /// Records code that was loaded in `context` on this device and that has at least `bytes` of
    /// variables.
    pub fn note_variables(&'static self, code: Opaque, context: Context, bytes: u64) {
        let variables = &self.process.variables;
        variables.insert(code, context, self.ordinal, bytes);
        // Variables smaller than a 2 MiB block fit into the reserve that is always charged for the
        // driver, so they need no measurement.
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

/// A call that destroys a context, as a guard. The call counts as under way until the guard is
/// dropped, also on a panic; measurements made meanwhile are inexact.
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
