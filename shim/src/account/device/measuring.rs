//! Measures the driver's own memory: NVML's figure for this process minus the *named* bytes, whose
//! size the program gave.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::Device;
use crate::abi::{Context, Opaque, Status};
use crate::account::driver_part::{Measured, Total};
use crate::account::ongoing::Ongoing;
use crate::account::rounding::BLOCK;
use crate::clock::monotonic_ms;
use crate::driver::{figures, inside};

/// The age in milliseconds after which the next call that takes a 2 MiB block measures again.
const MEASURE_AGE_MS: u64 = 100;

/// The most readings of NVML's figure in one measurement. Memory that another thread takes or frees
/// causes a new reading.
pub(super) const ATTEMPTS: u32 = 12;

/// State that is shared by measurements and by the calls that run at the same time.
#[derive(Default)]
pub(super) struct Measuring {
    pub(super) nvml: figures::Handle,
    /// The number of measurements of the driver's own memory that have begun.
    pub(super) begun: AtomicU64,
    /// The time of the last measurement, in milliseconds of the monotonic clock.
    pub at: AtomicU64,
    /// Whether the last measurement has failed, or may have overestimated the driver's own memory.
    /// If so, a later call measures again.
    inexact: AtomicBool,
    /// Whether NVML answers, and does not list this process although it has a context: in a
    /// container, NVML may list no process at all. Then no later measurement would correct an
    /// estimate, and estimates would add up.
    unlisted: AtomicBool,
    /// The number of ended calls that took or freed memory or destroyed a context. A measurement
    /// notices such calls by this number.
    ended_calls: AtomicU64,
    /// The number of contexts that threads are destroying at the moment.
    teardowns: AtomicU32,
}

impl Device {
    /// Measures the driver's own memory and corrects its charge. Where NVML gives no figure,
    /// changes nothing and returns `None`; a later call measures again.
    pub fn measure(&self) -> Option<Measured> {
        let (number, total) = self.look();
        let part = &self.driver_part;
        Some(part.conclude(&self.book, &self.contexts, number, total?))
    }

    /// Returns whether a measurement has begun since the start of this process.
    pub fn has_measured(&self) -> bool {
        self.measuring.begun.load(Ordering::Acquire) > 0
    }

    /// Returns whether another thread has begun a measurement and not recorded it yet: its figure
    /// may be older than a call that has just ended.
    pub fn is_measuring(&self) -> bool {
        self.measuring.begun.load(Ordering::Acquire) > self.driver_part.measured()
    }

    /// Returns whether NVML does not list this process: what no call names is then not charged.
    pub fn is_unlisted(&self) -> bool {
        self.measuring.unlisted.load(Ordering::Relaxed)
    }

    /// Measures; returns whether NVML has failed, so that estimates count until it answers.
    pub fn measure_fails(&self) -> bool {
        self.measure().is_none() && !self.is_unlisted()
    }

    /// Reads NVML's figure and the bytes whose size the program gave. Returns the measurement's
    /// number and result.
    pub fn look(&self) -> (u64, Option<Total>) {
        if inside::is_closed() {
            // The outer call holds a lock that the measurement takes. A later call measures.
            self.measuring.inexact.store(true, Ordering::SeqCst);
            return (0, None);
        }
        let number = self.measuring.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let total = self.measure_total().map(|total| {
            // NVML may attribute memory of other processes to this process. Such memory is not the
            // driver's own.
            let grown = total.beyond_named().saturating_sub(self.driver_part.used());
            Total {
                named: total.named + self.take_over(grown),
                ..total
            }
        });
        // A process that NVML does not list would otherwise measure in vain at every block.
        if total.is_none() && !self.is_unlisted() {
            self.measuring.inexact.store(true, Ordering::SeqCst);
        }
        (number, total)
    }

    /// Measures after a panic inside gpulimit, and uncharges unused bytes. Where NVML gives no
    /// figure, uncharges all bytes charged in advance.
    pub fn recover(&self) {
        if self.measure().is_none() {
            self.assume(0);
        }
    }

    /// Counts charged bytes as the driver's own: the program has freed them, and the driver gives
    /// them back at a later synchronise call, which measures again.
    pub fn let_go(&self, bytes: u64) {
        self.book.add_idle(bytes);
        self.let_go_idle(bytes);
    }

    /// Does the work of [`Device::let_go`] for bytes that the book counts as idle already.
    pub fn let_go_idle(&self, bytes: u64) {
        let part = &self.driver_part;
        let before = part.used();
        part.keep(&self.book, bytes);
        if self.measure().is_none() {
            self.assume(if self.is_unlisted() { 0 } else { bytes as i64 });
        }
        let pools = &self.process.pools;
        pools.note_left_in_use(part.used().saturating_sub(before));
        pools.touch();
    }

    /// Changes the recorded size of the driver's own memory, where NVML gives no figure. The change
    /// belongs to the newest context.
    pub fn assume(&self, change: i64) {
        self.driver_part.assume(&self.book, &self.contexts, change);
    }

    /// Repeats the measurement after a call that took or freed memory, in these cases:
    /// - Another measurement ran during the call.
    /// - NVML may attribute memory of other processes to this process.
    /// - The last measurement is old or inexact.
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

    /// Runs `call`, which may destroy a context, and then `after`, which updates the account.
    /// Repeats a measurement that ran during `call`.
    pub fn tear_down(&self, call: impl FnOnce() -> Status, after: impl FnOnce(Status)) -> Status {
        // Measurements made meanwhile are inexact.
        let teardown = Ongoing::begin(&self.measuring.teardowns);
        let status = call();
        after(status);
        drop(teardown);
        self.measuring.ended_calls.fetch_add(1, Ordering::SeqCst);
        if self.is_inexact() {
            self.measure();
        }
        status
    }

    /// Returns whether the last measurement has failed, or may have overestimated the driver's own
    /// memory because other threads kept taking and freeing memory.
    pub fn is_inexact(&self) -> bool {
        self.measuring.inexact.load(Ordering::SeqCst)
    }

    /// Returns NVML's figure and the named bytes in it (whose size the program gave). `None`: NVML
    /// cannot report this process.
    ///
    /// The difference is never too small, because memory is named only while it is allocated.
    /// Another thread's call can make the difference too large; that call then measures again
    /// ([`Device::renew`]).
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

    /// Returns a lower bound of the driver's own memory: initial local memory plus the variables of
    /// loaded code.
    fn least_of_driver(&self) -> u64 {
        let contexts = self.contexts.all();
        let memory = contexts
            .iter()
            .map(|context| self.kernels.context(*context).backing())
            // The account records grown local memory only after a measurement. So only the size at
            // the context's start counts here.
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
                // The last attempt is not repeated. The mark `inexact` makes the calls that run
                // during it measure again.
                inexact.store(true, Ordering::SeqCst);
            }
            // Other calls change pools and graph memory, so both are read before and after NVML's
            // figure.
            look();
            let ended_before = ended_calls();
            // `removed` is read before the first sum and after the second. So `gone` includes all
            // memory freed in between.
            let removed_before = self.book.removed();
            let before = self.book.named();
            let figure = own_bytes()?;
            let unlisted = figure == 0 && self.contexts.count() > 0;
            self.measuring.unlisted.store(unlisted, Ordering::Relaxed);
            if figure > 0 {
                self.book.group.note_listed();
            }
            if unlisted {
                // The answer is as good for a while as a figure would be.
                self.measuring.at.store(monotonic_ms(), Ordering::Relaxed);
                return None;
            }
            let at_least = self.measuring.teardowns.load(Ordering::Acquire) > 0;
            self.process.measurements.fetch_add(1, Ordering::SeqCst);
            look();
            let after = self.book.named();
            // Equal sums do not prove that no memory was freed: one thread may take what another
            // frees.
            let gone = self.book.removed().wrapping_sub(removed_before);
            if at_least {
                inexact.store(true, Ordering::SeqCst);
            }
            // The call and the measurement each increment their own counter before they read the
            // other's. So at least one notices the other.
            if after == before && gone == 0 && ended_calls() == ended_before {
                self.measuring.at.store(monotonic_ms(), Ordering::Relaxed);
                inexact.store(at_least, Ordering::SeqCst);
            } else if !is_last {
                continue;
            }
            // The smallest sum of named bytes is used: the driver's own memory is overestimated
            // rather than underestimated.
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
    /// `bytes`, and the code itself `most` at most; 0 if unknown.
    pub fn note_variables(&'static self, code: Opaque, context: Context, bytes: u64, most: u64) {
        let variables = &self.process.variables;
        variables.insert(code, context, self.ordinal, bytes, most);
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
