//! Charging of memory at all levels of a path of groups, with the waiting and reclaiming that a
//! full group requires.

use super::atomic::{AtomicU64, Ordering};
use super::charge::{self, Idle, Reaped, Rung, Surroundings, UNIT};
use super::layout::{LINE_DEVICES, WordLine};
use super::protection::Protection;
use super::random::Random;
use super::reap;
use super::usage;
use super::{DeviceIndex, Slot, Witness, os, wait};
use std::time::{Duration, Instant};

/// One level of the path from the process's group up to the root group.
#[derive(Copy, Clone, Debug)]
pub struct Level<'a> {
    /// This process's slot in the ledger of the level.
    pub slot: &'a Slot,
    /// The device's index in the level's ledger.
    pub device: DeviceIndex,
    /// The limit of the level's group in bytes; `u64::MAX` if unlimited.
    pub max: u64,
    /// The source that tells how many bytes are protected for the child groups of the level's
    /// group; `None` if no memory is protected.
    pub protection: Option<&'a dyn Protection>,
    /// Whether the best-effort protection `low` is respected too.
    pub keeps_low: bool,
}

/// The caller's means of making room in a full group. Used on the slow path only.
pub trait Pressure {
    /// Gives back memory that this process holds but does not use, and uncharges it. Returns false
    /// if this process has no such memory. `device` is the device's index at the first level, the
    /// process's own group.
    fn reclaim(&self, device: DeviceIndex) -> bool;
    /// Returns the witness that knows which memory the driver still holds for dead processes.
    fn witness(&self) -> &dyn Witness;
    /// Returns whether the limits of the levels have changed since the request began. A waiting
    /// request is then refused, so that the caller can repeat the request with the new limits.
    fn is_outdated(&self) -> bool {
        false
    }
    /// Returns whether another thread has made the same request, so that this request is needless.
    /// A needless request stops waiting, and no process is killed for it.
    fn is_needless(&self) -> bool {
        false
    }
    /// Tells the user which action the charge is about to take to make room for the request.
    fn tell(&self, _line: std::fmt::Arguments<'_>) {}
}

/// A refusal: the level that has no room for the request, with its figures.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// Index into the levels.
    pub level: usize,
    /// Bytes granted at the refusing level.
    pub charged: u64,
    /// The limit of the refusing level in bytes.
    pub max: u64,
}

/// Charges `bytes` of GPU memory, rounded up to 4 KiB, at every level or at none. Call before
/// asking the driver for the memory.
///
/// A grant takes no lock, makes no system call and does not allocate. A refusal is final. The
/// request then does not fit beside the granted memory, no slot of a dead process is left to clean,
/// and this process has no idle memory to give back. A refusal may take time for two reasons.
/// First, another process may be stopped in the middle of a charge or a cleaning that stands in the
/// way. The refusal then takes up to a second. Second, the memory of dead processes may be large
/// enough to make room. The refusal then comes after their slots have drained, which takes a second
/// without a witness, and 30 s at most. If another process has lowered this process's charge in the
/// ledger, no request of this process is granted for a second.
///
/// `levels` must not contain the same slot and device twice.
#[inline]
pub fn charge(levels: &[Level<'_>], bytes: u64, pressure: &dyn Pressure) -> Result<(), Refused> {
    charge_ahead(levels, bytes, pressure, &())
}

/// Charges `bytes` as [`charge()`] does, and adds them to `idle` at the moment of the grant,
/// because the process does not use them yet.
pub fn charge_ahead(
    levels: &[Level<'_>],
    bytes: u64,
    pressure: &dyn Pressure,
    idle: &dyn Idle,
) -> Result<(), Refused> {
    let n = bytes.div_ceil(UNIT);
    if n == 0 {
        return Ok(());
    }
    if n > charge::REQUEST_MAX {
        return Err(refused(levels, unreachable_level(levels, n).unwrap_or(0)));
    }
    match charge::attempt(levels, 0, n, idle) {
        Ok(()) => Ok(()),
        Err(level) => slow(levels, n, level, pressure, idle),
    }
}

/// Charges `bytes` as [`charge()`] does, but makes only one attempt, without reclaiming or waiting.
/// May fail because of the undecided request of another process, even if that request is withdrawn
/// later.
#[inline]
pub fn try_charge(levels: &[Level<'_>], bytes: u64) -> bool {
    try_charge_ahead(levels, bytes, &())
}

/// Charges `bytes` as [`try_charge`] does, and adds them to `idle` at the moment of the grant.
#[inline]
pub fn try_charge_ahead(levels: &[Level<'_>], bytes: u64, idle: &(impl Idle + ?Sized)) -> bool {
    let n = bytes.div_ceil(UNIT);
    n <= charge::REQUEST_MAX && charge::attempt(levels, 0, n, idle).is_ok()
}

/// Charges `bytes` that the driver has taken without a prior charge, whatever the limit. Usage may
/// then be above the limit. Further requests are refused until usage is below the limit again.
pub fn charge_unchecked(levels: &[Level<'_>], bytes: u64) {
    charge::add_unchecked(levels, bytes.div_ceil(UNIT));
}

/// Updates the peaks with the present usage. Call when the process begins to use bytes that it
/// charged ahead.
pub fn note_usage(levels: &[Level<'_>]) {
    for level in levels {
        let own = charge::granted(Rung::own(level).load(Ordering::Relaxed));
        level.note(charge::look(level).granted(), own);
    }
}

/// Uncharges `bytes`, rounded up to 4 KiB, at every level. Call after the driver has freed the
/// memory.
///
/// Because each call rounds up, bytes that were charged together must be uncharged together or in
/// multiples of 4 KiB.
#[inline]
pub fn uncharge(levels: &[Level<'_>], bytes: u64) {
    charge::uncharge(levels, bytes.div_ceil(UNIT));
    for level in levels {
        wait::returned(level.slot.ledger());
    }
}

/// Uncharges `bytes` that were charged ahead and not used. Works as [`uncharge`] does, and at the
/// same moment removes the bytes from `idle`.
pub fn uncharge_idle(levels: &[Level<'_>], bytes: u64, idle: &dyn Idle) {
    charge::uncharge_idle(levels, bytes.div_ceil(UNIT), idle);
    for level in levels {
        wait::returned(level.slot.ledger());
    }
}

#[cold]
fn slow(
    levels: &[Level<'_>],
    n: u64,
    level: usize,
    pressure: &dyn Pressure,
    idle: &dyn Idle,
) -> Result<(), Refused> {
    if let Some(level) = levels.iter().position(|level| level.slot.distrusts()) {
        return Err(refused(levels, level));
    }
    if let Some(level) = unreachable_level(levels, n) {
        return Err(refused(levels, level));
    }
    let mut contention = Contention::new(levels, pressure);
    charge::contend(levels, n, level, &mut contention, idle).map_err(|refusal| Refused {
        level: refusal.level,
        charged: refusal.charged * UNIT,
        max: levels.get(refusal.level).map_or(0, |level| level.max),
    })
}

/// Returns the first level whose limit is smaller than the request. Waiting cannot help a request
/// that exceeds such a limit.
fn unreachable_level(levels: &[Level<'_>], n: u64) -> Option<usize> {
    levels.iter().position(|level| n > level.max / UNIT)
}

#[cold]
fn refused(levels: &[Level<'_>], level: usize) -> Refused {
    let at = levels.get(level);
    Refused {
        level,
        charged: at.map_or(0, |at| charge::look(at).granted() * UNIT),
        max: at.map_or(0, |at| at.max),
    }
}

impl Rung for Level<'_> {
    type Word = AtomicU64;

    #[inline]
    fn own(&self) -> &AtomicU64 {
        self.slot.word(self.device)
    }

    #[inline]
    fn high_water(&self) -> &AtomicU64 {
        &self.slot.ledger().signals().high_water
    }

    #[inline]
    fn words<'a>(&'a self, high_water: u64) -> impl Iterator<Item = &'a AtomicU64>
    where
        Self::Word: 'a,
    {
        let index = self.device.get();
        let block = &self.slot.ledger().content().words[index / LINE_DEVICES];
        // A faulty process may have written a `high_water` above the number of slots into the
        // ledger file. All slots are then read.
        let high_water = (high_water as usize).min(block.len());
        block[..high_water]
            .iter()
            .map(move |WordLine(line)| &line[index % LINE_DEVICES])
    }

    #[inline]
    fn max(&self) -> u64 {
        let kept = self.protection.map_or(0, |protection| {
            protection.untaken(self.slot.ledger(), self.device, self.keeps_low)
        });
        self.max.saturating_sub(kept) / UNIT
    }

    #[inline]
    fn is_lost(&self) -> bool {
        self.slot.ledger().map.is_lost()
    }

    #[inline]
    fn note(&self, total: u64, own: u64) {
        let stats = self.slot.stats(self.device);
        // Memory that this process has charged ahead does not count as usage, so it is subtracted.
        // The idle memory of other processes is not subtracted, because reading their figures here
        // would cost too much.
        let idle = stats.idle.load(Ordering::Relaxed);
        raise(&stats.peak, (own * UNIT).saturating_sub(idle));
        let peaks = &self.slot.ledger().header().peaks;
        raise(
            &peaks[self.device.get()],
            (total * UNIT).saturating_sub(idle),
        );
    }

    #[inline]
    fn begin(&self) -> bool {
        self.slot.begin(self.device)
    }

    #[inline]
    fn withdrawn(&self) {
        self.slot.record(self.device).withdrawn();
    }

    #[inline]
    fn added(&self, n: u64) {
        self.slot.record(self.device).added(n);
    }

    #[inline]
    fn taken(&self, n: u64) {
        self.slot.record(self.device).taken(n);
    }
}

/// Raises a peak to at least a value. The function reads the peak before it writes, because most
/// calls need no write, and without a write the processors can share the cache line.
#[inline]
fn raise(peak: &AtomicU64, bytes: u64) {
    if bytes > peak.load(Ordering::Relaxed) {
        peak.fetch_max(bytes, Ordering::Relaxed);
    }
}

/// How long a request waits while other processes stand in the way, with undecided requests or by
/// cleaning dead processes' slots. A request is undecided for about a microsecond. If a request is
/// undecided for longer, its process was descheduled or stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a request waits after it has asked other processes for unused memory. These processes
/// give memory back at their next call into the driver, which may come much later.
const ASK_PATIENCE: Duration = Duration::from_millis(100);
const ASK_STEP: Duration = Duration::from_micros(500);
const DRAIN_STEP: Duration = Duration::from_millis(1);
/// How long a request waits for dead processes' slots to drain. This is slightly more than the
/// longest time that a slot takes to drain.
const DRAIN_PATIENCE: Duration = Duration::from_millis(reap::DRAIN_MAX_MS + 1_000);

/// How long a request waits for processes that are exiting but still hold their file lock. Some of
/// these processes only look as if they were exiting, because their first thread has ended but
/// others run on. Therefore this bound is separate from the bound for draining.
const ENDING_PATIENCE: Duration = Duration::from_secs(2);

/// The state of one request on the slow path.
struct Contention<'a> {
    leaf: Option<DeviceIndex>,
    pressure: &'a dyn Pressure,
    random: Random,
    since: Instant,
    backing_off_since: Option<Instant>,
    /// Time since which every look at the slots has found other processes cleaning slots.
    busy_since: Option<Instant>,
    back_offs: u32,
    /// The part of [`ASK_PATIENCE`] that the request has used up.
    asked_for: Duration,
}

impl<'a> Contention<'a> {
    fn new(levels: &[Level<'a>], pressure: &'a dyn Pressure) -> Self {
        Self {
            leaf: levels.first().map(|level| level.device),
            pressure,
            random: Random::new(),
            since: os::now(),
            backing_off_since: None,
            busy_since: None,
            back_offs: 0,
            asked_for: Duration::ZERO,
        }
    }

    fn waited(&self) -> Duration {
        os::now().duration_since(self.since)
    }
}

impl Surroundings<Level<'_>> for Contention<'_> {
    fn reclaim(&mut self) -> bool {
        self.leaf
            .is_some_and(|device| self.pressure.reclaim(device))
    }

    fn reap(&mut self, level: &Level<'_>) -> Reaped {
        // The ledger cannot be opened if the program has used up its descriptors. Without a
        // descriptor, this process cannot find out which processes are dead.
        let Ok(file) = level.slot.ledger().place.open(true) else {
            return Reaped::default();
        };
        let swept = reap::sweep(
            level.slot.ledger(),
            &file,
            level.device,
            level.slot.index(),
            self.pressure.witness(),
            self.waited() < ENDING_PATIENCE,
        );
        let now = os::now();
        let busy = if swept.busy == 0 {
            self.busy_since = None;
            0
        } else if now.duration_since(*self.busy_since.get_or_insert(now)) < PATIENCE {
            swept.busy
        } else {
            0
        };
        Reaped {
            // Freed memory is reported for a bounded time only. Otherwise the request might never
            // end: processes may die all the time, and other requests may take the memory that each
            // of them leaves.
            freed: swept.cleaned && self.waited() < DRAIN_PATIENCE,
            pending: swept.pending + busy,
        }
    }

    fn ask_others(&mut self, level: &Level<'_>, n: u64) -> bool {
        let ledger = level.slot.ledger();
        let reclaimable = || usage::reclaimable(ledger, level.slot.index(), level.device) / UNIT;
        let before = charge::look(level);
        // The units that the request lacks. The other processes are asked only if they can give
        // back that many units together. Less memory would not help the request.
        let lacking = (before.granted() + n).saturating_sub(Rung::max(level));
        if lacking == 0 && self.asked_for < ASK_PATIENCE {
            // The level has room now, so the request is tried again. The number of such retries is
            // bounded, because a process whose word is saturated cannot use the room.
            self.asked_for += ASK_STEP;
            return true;
        }
        if self.asked_for >= ASK_PATIENCE || reclaimable() < lacking || !ledger.ask_members() {
            return false;
        }
        while self.asked_for < ASK_PATIENCE {
            os::sleep(ASK_STEP);
            self.asked_for += ASK_STEP;
            if charge::look(level).granted() < before.granted() {
                return true;
            }
            // The idle memory has become too small for the request: a process with idle memory has
            // ended, or has begun to use that memory.
            if reclaimable() < lacking {
                return false;
            }
        }
        false
    }

    fn back_off(&mut self) -> bool {
        if self.pressure.is_outdated() {
            return false;
        }
        let now = os::now();
        let since = *self.backing_off_since.get_or_insert(now);
        if now.duration_since(since) > PATIENCE {
            return false;
        }
        self.back_offs += 1;
        match self.back_offs {
            1..=3 => {
                for _ in 0..self.random.below(64 << self.back_offs) {
                    os::spin();
                }
            }
            4..=8 => os::yield_now(),
            // Later back-offs sleep for up to a millisecond.
            n => {
                let nanos = self.random.below(50_000 << (n - 8).min(4));
                os::sleep(Duration::from_nanos(nanos as u64));
            }
        }
        true
    }

    fn wait_for_drain(&mut self) -> bool {
        self.backing_off_since = None;
        if self.waited() >= DRAIN_PATIENCE {
            return false;
        }
        os::sleep(DRAIN_STEP);
        !self.pressure.is_outdated()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
