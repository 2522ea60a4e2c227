//! Charging a path of groups, as processes see it.

use super::atomic::{AtomicU64, Ordering};
use super::charge::{self, Idle, Reaped, Rung, Surroundings, UNIT};
use super::layout::{LINE_DEVICES, WordLine};
use super::protection::Protection;
use super::random::Random;
use super::reap;
use super::usage;
use super::{DeviceIndex, Slot, Witness, os, wait};
use std::time::{Duration, Instant};

/// One level of the path leaf → root.
#[derive(Copy, Clone, Debug)]
pub struct Level<'a> {
    /// This process's slot in the level's ledger.
    pub slot: &'a Slot,
    /// The device in that ledger's table.
    pub device: DeviceIndex,
    /// The limit in bytes; `u64::MAX` none.
    pub max: u64,
    /// Who knows what groups below are to keep; `None`: nothing.
    pub protection: Option<&'a dyn Protection>,
    /// Whether what they are to keep as long as there is another way counts.
    pub keeps_low: bool,
}

/// What a process can do about a full group. Asked on the slow path only.
pub trait Pressure {
    /// Gives back memory that the process holds but does not use, uncharging it; false when there
    /// was none. The device is that of the first level, the leaf.
    fn reclaim(&self, device: DeviceIndex) -> bool;
    /// Who knows what the driver still holds for dead members.
    fn witness(&self) -> &dyn Witness;
    /// Whether the limits of the levels have changed meanwhile: a request that waits is then
    /// refused, to be made anew with those that hold.
    fn is_outdated(&self) -> bool {
        false
    }
    /// Whether the request has become needless, as another thread has made the same one: it waits
    /// no longer, and nobody is killed for it.
    fn is_needless(&self) -> bool {
        false
    }
    /// Tells a person what is about to happen for the request, before it does.
    fn tell(&self, _line: std::fmt::Arguments<'_>) {}
}

/// A level has no room for a request.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// Index into the levels.
    pub level: usize,
    /// Bytes granted at that level.
    pub charged: u64,
    /// The limit of that level in bytes.
    pub max: u64,
}

/// Charges `bytes`, rounded up to 4 KiB, at every level, or at none. Before the driver is asked.
///
/// A grant takes no lock and no system call and does not allocate. A refusal is final: the request
/// does not fit with what is granted, nothing of the dead is left to clean, and this process has
/// nothing to give back. It takes up to a second when another process was stopped in the middle of
/// a charge, or of cleaning up, that stands in the way, and as long as dead members drain (a second
/// without a witness, 30 s at most) if their memory would make room. Where somebody has lowered
/// what this process has charged, nothing is granted for a second.
///
/// `levels` may not name one slot and device twice.
#[inline]
pub fn charge(levels: &[Level<'_>], bytes: u64, pressure: &dyn Pressure) -> Result<(), Refused> {
    charge_ahead(levels, bytes, pressure, &())
}

/// As [`charge()`], of bytes that are not used yet: they are added to `idle` in the moment in which
/// they are granted.
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
        return Err(refused(levels, never(levels, n).unwrap_or(0)));
    }
    match charge::attempt(levels, 0, n, idle) {
        Ok(()) => Ok(()),
        Err(level) => slow(levels, n, level, pressure, idle),
    }
}

/// As [`charge()`], but one attempt only: no reclaim, no waiting. May fail because of another
/// request that is withdrawn.
#[inline]
pub fn try_charge(levels: &[Level<'_>], bytes: u64) -> bool {
    try_charge_ahead(levels, bytes, &())
}

/// As [`try_charge`], of bytes that are added to `idle` in the moment in which they are granted.
#[inline]
pub fn try_charge_ahead(levels: &[Level<'_>], bytes: u64, idle: &(impl Idle + ?Sized)) -> bool {
    let n = bytes.div_ceil(UNIT);
    n <= charge::REQUEST_MAX && charge::attempt(levels, 0, n, idle).is_ok()
}

/// Charges `bytes` that the driver has taken without asking, whatever the limit: growth is refused
/// until usage is below it again.
pub fn charge_unchecked(levels: &[Level<'_>], bytes: u64) {
    charge::enter(levels, bytes.div_ceil(UNIT));
}

/// Notes the usage of this moment for the peaks: after bytes that were charged ahead have come into
/// use.
pub fn note_usage(levels: &[Level<'_>]) {
    for level in levels {
        let own = charge::granted(Rung::own(level).load(Ordering::Relaxed));
        level.note(charge::look(level).granted(), own);
    }
}

/// Gives `bytes`, rounded up to 4 KiB, back at every level. After the driver has freed them.
///
/// What is charged together is to be given back together or in multiples of 4 KiB, as each call
/// rounds up.
#[inline]
pub fn uncharge(levels: &[Level<'_>], bytes: u64) {
    charge::uncharge(levels, bytes.div_ceil(UNIT));
    for level in levels {
        wait::returned(level.slot.ledger());
    }
}

/// As [`uncharge`], of bytes that were charged ahead and not used: they are removed from `idle` in
/// the same moment.
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
    if let Some(level) = never(levels, n) {
        return Err(refused(levels, level));
    }
    let mut contention = Contention::new(levels, pressure);
    charge::contend(levels, n, level, &mut contention, idle).map_err(|refusal| Refused {
        level: refusal.level,
        charged: refusal.charged * UNIT,
        max: levels.get(refusal.level).map_or(0, |level| level.max),
    })
}

/// The level at which no amount of waiting helps.
fn never(levels: &[Level<'_>], n: u64) -> Option<usize> {
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
        // A file that names more slots than there are has all of them read.
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
        // What this process has charged ahead is no usage. Of the others' that cannot be told at
        // this price.
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

/// Reads first: mostly there is nothing to write, and the line stays shared.
#[inline]
fn raise(peak: &AtomicU64, bytes: u64) {
    if bytes > peak.load(Ordering::Relaxed) {
        peak.fetch_max(bytes, Ordering::Relaxed);
    }
}

/// How long undecided requests of others may stand in the way. The window in which a request is
/// undecided is a microsecond, so this is for processes that lost the processor in it, and for
/// those stopped in it. The same for those that clean up after the dead.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a request waits for other members to give back what it asked them for: they do at their
/// next call, which may be far.
const ASK_PATIENCE: Duration = Duration::from_millis(100);
const ASK_STEP: Duration = Duration::from_micros(500);
const DRAIN_STEP: Duration = Duration::from_millis(1);
/// The longest that a slot drains, and some.
const DRAIN_PATIENCE: Duration = Duration::from_millis(reap::DRAIN_MAX_MS + 1_000);

/// How long a request waits for processes that are on their way out but still hold their lock.
/// Bounded on its own: a process whose first thread has ended looks the same.
const ENDING_PATIENCE: Duration = Duration::from_secs(2);

/// One request on the slow path.
struct Contention<'a> {
    leaf: Option<DeviceIndex>,
    pressure: &'a dyn Pressure,
    random: Random,
    since: Instant,
    backing_off_since: Option<Instant>,
    /// Since when slots have been cleaned by others at every look.
    busy_since: Option<Instant>,
    back_offs: u32,
    /// Of [`ASK_PATIENCE`].
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
        // Without a descriptor (the program has used them up) the dead cannot be told from the
        // living.
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
            // Members may die all the time, and others take what each of them leaves.
            freed: swept.cleaned && self.waited() < DRAIN_PATIENCE,
            pending: swept.pending + busy,
        }
    }

    fn ask_others(&mut self, level: &Level<'_>, n: u64) -> bool {
        let ledger = level.slot.ledger();
        let reclaimable = || usage::reclaimable(ledger, level.slot.index(), level.device) / UNIT;
        let before = charge::look(level);
        // Asking for less than is needed would take from others for nothing.
        let lacking = (before.granted() + n).saturating_sub(Rung::max(level));
        if lacking == 0 && self.asked_for < ASK_PATIENCE {
            // There is room by now. Not for ever, as room is of no use to a process whose word is
            // full.
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
            // Somebody is gone, or has come to use it.
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
            // Up to a millisecond.
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
