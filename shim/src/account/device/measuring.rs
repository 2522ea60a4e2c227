//! Measuring: compares NVML's figure for this process with the bytes that calls have named. The
//! difference is the driver's part (`account/driver_part.rs`).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::Device;
use crate::abi::{Context, Opaque, Status};
use crate::account::driver_part::{Measured, Total};
use crate::account::rounding::BLOCK;
use crate::clock::monotonic_ms;
use crate::driver::figures;

/// The age in milliseconds from which a call that takes a block measures again.
const MEASURE_AGE_MS: u64 = 100;

/// The most times that NVML's figure is read again because another thread took or freed memory
/// meanwhile.
pub(super) const ATTEMPTS: u32 = 12;

/// State that measurements and calls under way share.
#[derive(Default)]
pub(super) struct Measuring {
    nvml: figures::Handle,
    /// The number of measurements that have begun.
    begun: AtomicU64,
    /// The time of the last measurement, milliseconds.
    pub at: AtomicU64,
    /// The last measurement may have counted too much as the driver's part. The next call that may
    /// measure does so again, or else the thread that was destroying a context meanwhile.
    inexact: AtomicBool,
    /// The number of calls that took or freed memory, or destroyed a context, and have ended. A
    /// call is counted here before it looks whether a measurement ran across it.
    ended_calls: AtomicU64,
    /// The number of contexts that are being destroyed.
    teardowns: AtomicU32,
}

impl Device {
    /// Measures the driver's part and corrects its charge. Where nothing can be measured,
    /// everything stays as it was and `None` is returned.
    pub fn measure(&self) -> Option<Measured> {
        let (number, total) = self.look();
        let part = &self.driver_part;
        Some(part.conclude(&self.book, &self.contexts, number, total?))
    }

    /// Reads the figures. Returns the number of the measurement, and its result.
    pub fn look(&self) -> (u64, Option<Total>) {
        let number = self.measuring.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let total = self.measure_total().map(|total| {
            // Memory of other processes that has come to this one since the last measurement has a
            // name from here on.
            let grown = total.beyond_named().saturating_sub(self.driver_part.used());
            Total {
                named: total.named + self.take_over(grown),
                ..total
            }
        });
        (number, total)
    }

    /// Measures after a panic inside the library. What calls had paid ahead stayed charged, as the
    /// calls may have been made. Where nothing can be measured, the bytes are given back, as after
    /// any call that cannot be measured.
    pub fn recover(&self) {
        if self.measure().is_none() {
            self.assume(0);
        }
    }

    /// Changes the driver's part by so many bytes where it cannot be measured, for as long as its
    /// context lives.
    pub fn assume(&self, change: i64) {
        self.driver_part.assume(&self.book, &self.contexts, change);
    }

    /// Call after memory was taken or freed. Measures again when a measurement ran across the call
    /// (and may have counted its memory to the driver's part), when memory of other processes may
    /// have come to this one meanwhile, or when the last measurement is old.
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

    /// Runs a call that may destroy a context with everything in it; `after` updates the account. A
    /// measurement that runs meanwhile may see memory that is gone but still named: it shows the
    /// driver's part only as a lower bound, and is repeated here.
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

    /// Returns whether the last measurement may have counted too much as the driver's part, because
    /// other threads took and freed memory all the time.
    pub fn is_inexact(&self) -> bool {
        self.measuring.inexact.load(Ordering::SeqCst)
    }

    /// Returns NVML's figure for this process and the named bytes of it; `None` when there is no
    /// such figure (no NVML, or a PID namespace that NVML does not know).
    ///
    /// Memory is named after the driver has given it out, and loses its name before the driver
    /// frees it. So a figure into which another thread's call falls is too large, never too small,
    /// and that call measures again ([`Device::renew`]). Pools shrink inside synchronise calls and
    /// graph memory grows inside launches: both are read before and after the figure.
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

    /// Returns the bytes that the driver's part has at least, even where NVML, or a library in its
    /// place, tells less: the local memory that contexts have from the start, and the variables of
    /// code.
    fn least_of_driver(&self) -> u64 {
        let contexts = self.contexts.all();
        let memory = contexts
            .iter()
            .map(|context| self.kernels.context(*context).backing())
            // Growth beyond the start, and lowering below it, are recorded only after they were
            // measured.
            .map(|bytes| bytes.min(self.kernels.start()));
        let variables = self.process.variables.on(self.ordinal);
        memory.fold(variables, u64::saturating_add)
    }

    /// As [`Device::measure_total`]. `look` reads what changes by itself, `own_bytes` reads NVML's
    /// figure.
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
                // A call that ends from here on measures again, whatever this attempt finds.
                inexact.store(true, Ordering::SeqCst);
            }
            look();
            let ended_before = ended_calls();
            // Read before the first sum and after the second: memory that goes in between is
            // counted in `gone`, and memory that went earlier is in neither sum.
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
            // A call may have freed memory after the figure was read, and have ended before it
            // could see this measurement. So each side first counts itself and then reads the
            // other's count.
            if after == before && gone == 0 && ended_calls() == ended_before {
                self.measuring.at.store(monotonic_ms(), Ordering::Relaxed);
                inexact.store(at_least, Ordering::SeqCst);
            } else if !is_last {
                continue;
            }
            // Where other threads take and free all the time, the least that was named meanwhile is
            // used, which makes the driver's part too large rather than too small. Even equal sums
            // do not show that nothing changed: one thread may have taken as much as another freed.
            let named = before.saturating_sub(gone).min(after);
            return Some(Total {
                figure,
                named,
                at_least,
            });
        }
        None
    }

    /// Records code that was loaded in a context here with at least `bytes` of variables.
    pub fn note_variables(&'static self, code: Opaque, context: Context, bytes: u64) {
        let variables = &self.process.variables;
        variables.insert(code, context, self.ordinal, bytes);
        // Variables smaller than a block lie in the driver's reserve.
        if bytes >= BLOCK && self.measure().is_none() {
            variables.note_assumed(code, context);
            self.assume(bytes as i64);
        }
    }

    /// Removes code that was unloaded.
    pub fn forget_variables(&self, code: Opaque) {
        let assumed = self.process.variables.remove(code, self.ordinal);
        if assumed > 0 {
            self.assume((assumed as i64).wrapping_neg());
        }
    }
}

/// A call that destroys a context. It ends with this guard, also on a panic; until then no
/// measurement is exact.
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
