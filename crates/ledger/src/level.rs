//! Charging of memory in a group and all its parent groups. If a group is full, a request waits for
//! what is about to be free; `at_limit.rs` of `gpulimit-group` waits in line.

use super::atomic::{AtomicU64, Ordering};
use super::charge::{self, Charged, Idle, Reaped, Rung, Surroundings, UNIT};
use super::layout;
use super::protection::Protection;
use super::random::Random;
use super::reap;
use super::tick::Tick;
use super::usage;
use super::{DeviceIndex, Slot, Witness, os, wait};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// One group whose limit a process must keep: its own group, or one of those above it.
#[derive(Copy, Clone)]
pub struct Level<'a> {
    /// This process's slot in the group's ledger.
    pub slot: &'a Slot,
    /// The device's index in the group's ledger.
    pub device: DeviceIndex,
    /// The group's limit in bytes; `u64::MAX` if unlimited.
    pub max: u64,
    /// Tells how many bytes are protected for the child groups of this group. `None` if no memory
    /// is protected.
    pub protection: Option<&'a dyn Protection>,
    /// Whether requests must also leave free the memory that `low` protects (best effort).
    pub keeps_low: bool,
    /// Bytes that members hold beyond their charges: see [`super::uncovered`]. `None` if the
    /// request does not depend on free memory.
    pub uncovered: Option<&'a std::sync::atomic::AtomicU64>,
}

/// The caller's means of making room in a full group. Used only if the first attempt fails.
pub trait Pressure {
    /// Gives back and uncharges this process's idle memory; false if none. `device` is the index in
    /// the process's own group.
    fn reclaim(&self, device: DeviceIndex) -> bool;
    /// Returns the witness: it knows how much memory the driver still holds for dead processes.
    fn witness(&self) -> &dyn Witness;
    /// Returns whether a limit has changed since the request began. The waiting request is then
    /// refused, and the caller can repeat it.
    fn is_outdated(&self) -> bool {
        false
    }
    /// Returns whether another thread has made the same request meanwhile, or a signal ends the
    /// wait. This request then stops waiting, and no process is killed for it.
    fn is_needless(&self) -> bool {
        false
    }
    /// Returns the bytes that are free on the GPU itself, whoever uses the rest; `None` if unknown.
    fn machine_free(&self) -> Option<u64> {
        None
    }
    /// Returns the name of the function that makes the request; empty if it has no name.
    fn function(&self) -> &str {
        ""
    }
    /// Tells the user what will be done to make room for the request.
    fn tell(&self, _line: std::fmt::Arguments<'_>) {}
}

/// The group that has no room for a request, with its figures.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// Index of the refusing group: 0 is the process's own group.
    pub level: usize,
    /// Bytes granted in the refusing group.
    pub charged: u64,
    /// The limit of the refusing group in bytes.
    pub max: u64,
    /// Those of the granted bytes that will soon be free, because their processes have ended.
    pub pending: u64,
}

/// Charges `bytes` of GPU memory, rounded up to 4 KiB, in all groups or in none. Call before asking
/// the driver for the memory.
///
/// - A grant takes no lock, makes no system call and does not allocate.
/// - A refusal may take a second, or 31 s if dead processes' memory would make room.
/// - After another process lowered this process's charge, all requests are refused for a second.
/// - `levels` must not contain the same slot and device twice.
#[inline]
pub fn charge(levels: &[Level<'_>], bytes: u64, pressure: &dyn Pressure) -> Result<(), Refused> {
    charge_ahead(levels, bytes, pressure, &())
}

/// Charges `bytes` that are not used yet, as [`charge()`] does. Counts the bytes in `idle` at the
/// moment of the grant.
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
    match charge::attempt(levels, n, idle) {
        Ok(()) => Ok(()),
        Err(level) => slow(levels, n, level, pressure, idle),
    }
}

/// Charges `bytes` as [`charge()`] does, but tries only once. An undecided request of another
/// process can cause a needless refusal.
#[inline]
pub fn try_charge(levels: &[Level<'_>], bytes: u64) -> bool {
    try_charge_ahead(levels, bytes, &())
}

/// Charges `bytes` as [`try_charge`] does, and counts them in `idle` at the moment of the grant.
#[inline]
pub fn try_charge_ahead(levels: &[Level<'_>], bytes: u64, idle: &dyn Idle) -> bool {
    let n = bytes.div_ceil(UNIT);
    n <= charge::REQUEST_MAX && charge::attempt(levels, n, idle).is_ok()
}

/// Charges `bytes` that the driver has already taken, even above the limit. While usage is above
/// the limit, further requests are refused.
pub fn charge_unchecked(levels: &[Level<'_>], bytes: u64) {
    charge::add_unchecked(levels, bytes.div_ceil(UNIT));
}

/// Charges `bytes` of memory that the slot of another process counts, too, even above the limit.
/// Call before emptying that slot. Returns false, and charges nothing, if an undecided request
/// could be granted without these bytes: then leave the slot as it is, and try later.
pub fn charge_moved(levels: &[Level<'_>], bytes: u64) -> bool {
    charge::add_moved(levels, bytes.div_ceil(UNIT))
}

/// Raises the recorded peaks to the present usage. Call when the process begins to use bytes that
/// it charged ahead.
pub fn note_usage(levels: &[Level<'_>]) {
    for level in levels {
        let own = Rung::own(level);
        let units = charge::granted(own.word.load(Ordering::Relaxed));
        level.note(charge::look(level).granted(), units, own.idle);
        if Rung::records(level) {
            let now = os::wall_tick();
            level.slot.keep_time(level.device, now);
            level.record(now, None, 0);
        }
    }
}

/// Uncharges `bytes` in all groups, after the driver has freed the memory. Each call rounds up:
/// split charges only at multiples of 4 KiB.
#[inline]
pub fn uncharge(levels: &[Level<'_>], bytes: u64) {
    charge::uncharge(levels, bytes.div_ceil(UNIT));
    for level in levels {
        wait::returned(level.slot.ledger());
    }
}

/// Uncharges `bytes` that were never used, as [`uncharge`] does. Removes the bytes from `idle` at
/// the same moment.
pub fn uncharge_idle(levels: &[Level<'_>], bytes: u64, idle: &dyn Idle) {
    charge::uncharge_idle(levels, bytes.div_ceil(UNIT), idle);
    for level in levels {
        wait::returned(level.slot.ledger());
    }
}

/// Restores this process's charge in all groups where another process has lowered it.
pub fn restore(levels: &[Level<'_>]) {
    for level in levels {
        level.begin(Rung::own(level).word, None);
        level.withdrawn();
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
        pending: refusal.pending * UNIT,
    })
}

/// Returns the first group whose limit is smaller than the request. Waiting cannot help such a
/// request.
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
        pending: 0,
    }
}

impl Rung for Level<'_> {
    type Word = AtomicU64;

    #[inline]
    fn own(&self) -> Charged<'_, AtomicU64> {
        let layout::Charge { word, idle } = self.slot.charge(self.device);
        Charged { word, idle }
    }

    #[inline]
    fn high_water(&self) -> &AtomicU64 {
        &self.slot.ledger().signals().high_water
    }

    #[inline]
    fn charges<'a>(&'a self, high_water: u64) -> impl Iterator<Item = Charged<'a, AtomicU64>>
    where
        Self::Word: 'a,
    {
        self.slot.ledger().charges(self.device, high_water)
    }

    #[inline]
    fn max(&self) -> u64 {
        let kept = self.protection.map_or(0, |protection| {
            protection.untaken(self.slot.ledger(), self.device, self.keeps_low)
        });
        let rooms = self.slot.rooms_of_others(self.device);
        let uncovered = self.uncovered.map_or(0, |bytes| bytes.load(Relaxed));
        let kept = kept.saturating_add(rooms).saturating_add(uncovered);
        self.max.saturating_sub(kept) / UNIT
    }

    #[inline]
    fn is_lost(&self) -> bool {
        self.slot.ledger().map.is_lost()
    }

    #[inline]
    fn records(&self) -> bool {
        self.slot.ledger().records(self.device)
    }

    #[inline]
    fn note(&self, total: u64, own: u64, idle: &AtomicU64) {
        let ledger = self.slot.ledger();
        // Memory that this process has charged ahead is not usage, so it is subtracted. The idle
        // memory of other processes is not subtracted: only a group with a history reads it.
        let idle = idle.load(Ordering::Relaxed);
        self.slot
            .raise_peak(self.device, (own * UNIT).saturating_sub(idle));
        let usage = (total * UNIT).saturating_sub(idle);
        let peak = &ledger.header().peaks[self.device.get()];
        if usage > peak.load(Ordering::Relaxed) {
            let draining = reap::draining(ledger, self.device) * UNIT;
            raise(peak, usage.saturating_sub(draining));
        }
    }

    #[inline(always)]
    fn record(&self, now: Tick, before: Option<u64>, rise: u64) {
        let (slot, device, second) = (self.slot, self.device, now.second());
        match before {
            Some(before) => slot.note_between(device, second, before + rise, before),
            None => slot.ledger().note_use(device, second, rise),
        }
    }

    #[inline]
    fn begin(&self, own: &AtomicU64, now: Option<Tick>) -> bool {
        self.slot.begin(self.device, own, now)
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

    #[cold]
    fn lacked(&self, n: u64) {
        self.slot.owe(self.device, n);
    }
}

/// Raises a peak to `bytes` if it is lower. Most calls only read, so that processors can share the
/// cache line.
#[inline]
fn raise(peak: &AtomicU64, bytes: u64) {
    if bytes > peak.load(Ordering::Relaxed) {
        peak.fetch_max(bytes, Ordering::Relaxed);
    }
}

/// How long a request waits for undecided requests and cleaning. A process that takes longer was
/// descheduled or stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a request waits after asking for unused memory. Processes give memory back at their
/// next call into the driver.
const ASK_PATIENCE: Duration = Duration::from_millis(100);
const ASK_STEP: Duration = Duration::from_micros(500);
const DRAIN_STEP: Duration = Duration::from_millis(1);
/// How long a request waits for the driver to free dead processes' memory. Longer than a dead
/// process's slot stays charged.
const DRAIN_PATIENCE: Duration = Duration::from_millis(reap::DRAIN_MAX_MS + 1_000);

/// The state of one request while it tries to make room in a full group.
struct Contention<'a> {
    leaf: Option<DeviceIndex>,
    pressure: &'a dyn Pressure,
    random: Random,
    since: Instant,
    backing_off_since: Option<Instant>,
    /// When other processes began to clean slots; `None` if no slot is being cleaned.
    busy_since: Option<Instant>,
    back_offs: u32,
    /// The part of [`ASK_PATIENCE`] that the request has already used.
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
        // Opening the ledger file fails if this process has no free descriptor. The process then
        // cannot find out which members are dead.
        let Ok(file) = level.slot.ledger().place.open(true) else {
            return Reaped::default();
        };
        let swept = reap::sweep(
            level.slot.ledger(),
            &file,
            level.device,
            level.slot.index(),
            self.pressure.witness(),
            true,
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
            // Freed memory is reported for a bounded time. Otherwise the request might retry
            // forever while processes die.
            freed: swept.cleaned && self.waited() < DRAIN_PATIENCE,
            pending: swept.pending + busy,
        }
    }

    fn ask_others(&mut self, level: &Level<'_>, n: u64, pending: u64) -> bool {
        let ledger = level.slot.ledger();
        let reclaimable = || usage::reclaimable(ledger, level.slot.index(), level.device) / UNIT;
        let before = charge::look(level);
        // The units that the request lacks. Other processes are asked only if together they can
        // give back that many.
        let there = Rung::max(level).saturating_add(pending);
        let lacking = (before.granted() + n).saturating_sub(there);
        if lacking == 0 && self.asked_for < ASK_PATIENCE {
            // The group has room now, so the request is tried again. Retries are bounded, because
            // this process's own word may be full.
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
            // A member with idle memory has ended or has begun to use the memory, so the rest no
            // longer suffices.
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
        !(self.pressure.is_outdated() || self.pressure.is_needless())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
