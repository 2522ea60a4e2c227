//! The steps of a group at its limit, in this order; the group's options select steps:
//!
//! 1. The process gives back its unused memory.
//! 2. The charges of dead processes are removed.
//! 3. The other members are asked for their unused memory.
//! 4. Registered members are asked for memory that they use.
//! 5. The request waits.
//! 6. Processes are killed.
//! 7. The request is refused.

use super::demand::Asking;
use super::member::{At, MAX_DEPTH, Member, MemberDevice, Refusal, Spared};
use super::oom::Awaited;
use super::signals::Deferred;
use super::trail::{Traced, happening};
use super::undisturbed::Undisturbed;
use gpulimit_ledger::{
    self as ledger, Cause, DeviceIndex, EventKind, Idle, Line, Pressure, Refused, Standstill, Turn,
    Witness,
};
use gpulimit_limits::{OnLimit, Options};
use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

/// The most attempts of one request while the limits keep changing; then the request is refused.
pub(super) const CHANGES: u32 = 1_000;
/// The most rounds of killing for one request.
const VICTIMS: u32 = 64;
/// The pause between two attempts of a waiting thread that is not in line. One thread per process
/// is in line.
pub(super) const NAP: Duration = Duration::from_millis(50);

/// The pauses after which a waiting request asks members anew: the first, and the longest. They
/// grow while members are asked in vain, because a program that is asked all the time cannot work.
pub(super) const ANEW: Duration = Duration::from_secs(1);
pub(super) const ANEW_MOST: Duration = Duration::from_secs(8);

/// How many of the steps at a group's limit a request takes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Insistence {
    /// The request takes what is free at once. It asks no other process, and reclaims nothing.
    AtOnce,
    /// The request reclaims, and neither waits nor kills, because the caller has another way to get
    /// memory.
    Reclaiming,
    /// The request takes all steps that the group's options allow.
    Full,
    /// The request waits at most this long, whatever the group's options say, and kills no process.
    Within(Duration),
}

impl<'a> MemberDevice<'a> {
    /// Charges `bytes` in the group and in all groups above it, or in none. The group's options
    /// decide about waiting and killing.
    #[inline]
    pub fn charge(
        &self,
        bytes: u64,
        pressure: &dyn Pressure,
        insistence: Insistence,
    ) -> Result<(), Refusal<'a>> {
        let at_once = || self.on_path(Spared::Unseen, |path| ledger::try_charge(path, bytes));
        if !self.member().has_waiters() && at_once() {
            return Ok(());
        }
        charge(*self, bytes, pressure, insistence, &())
    }

    /// Does the same as [`MemberDevice::charge`], and adds the bytes to `idle`: they are not in use
    /// yet.
    pub fn charge_ahead(
        &self,
        bytes: u64,
        pressure: &dyn Pressure,
        insistence: Insistence,
        idle: &dyn Idle,
    ) -> Result<(), Refusal<'a>> {
        if !self.member().has_waiters() && self.try_sparing(Spared::Unseen, bytes, idle) {
            return Ok(());
        }
        charge(*self, bytes, pressure, insistence, idle)
    }
}

/// Charges a request whose first attempt did not fit, or which has made none because others wait.
#[cold]
fn charge<'a>(
    device: MemberDevice<'a>,
    bytes: u64,
    pressure: &dyn Pressure,
    insistence: Insistence,
    idle: &dyn Idle,
) -> Result<(), Refusal<'a>> {
    let _undisturbed = Undisturbed::new();
    let request = Request {
        device,
        bytes,
        pressure,
        idle,
        is_for_program: insistence == Insistence::Full,
        cause: Cell::default(),
        waited: Cell::default(),
        lack: Cell::new(None),
    };
    let above = match insistence {
        Insistence::AtOnce => [false; MAX_DEPTH],
        _ => request.restrain(),
    };
    let granted = request
        .first(insistence)
        .or_else(|refused| match insistence {
            Insistence::AtOnce | Insistence::Reclaiming => Err(refused),
            Insistence::Full => request.insist(refused, None),
            Insistence::Within(time) => request.insist(refused, Some(Instant::now() + time)),
        });
    // Members give memory for `high` only after the request was granted.
    if granted.is_ok() {
        let levels = above.into_iter().enumerate().filter(|(_, above)| *above);
        levels.for_each(|(level, _)| request.ask_for_high(level));
    }
    granted.map_err(|refused| request.refusal(refused))
}

/// One attempt to charge a request. If the generation of the limits changes meanwhile, the attempt
/// starts over.
pub(super) struct Current<'a> {
    member: &'a Member,
    pressure: &'a dyn Pressure,
    /// The signals that end the request's waits, if its thread holds signals back.
    signals: Option<&'a Deferred>,
    witness: Traced<'a>,
    generations: u64,
}

impl<'a> Current<'a> {
    pub(super) fn new(
        member: &'a Member,
        pressure: &'a dyn Pressure,
        signals: Option<&'a Deferred>,
    ) -> Self {
        Self {
            member,
            pressure,
            signals,
            witness: Traced {
                witness: pressure.witness(),
                trails: member,
                adopts: true,
            },
            generations: member.generations(),
        }
    }
}

impl Pressure for Current<'_> {
    fn reclaim(&self, device: DeviceIndex) -> bool {
        self.pressure.reclaim(device)
    }

    fn witness(&self) -> &dyn Witness {
        &self.witness
    }

    fn function(&self) -> &str {
        self.pressure.function()
    }

    fn tell(&self, line: fmt::Arguments<'_>) {
        self.pressure.tell(line);
    }

    fn is_outdated(&self) -> bool {
        self.member.generations() != self.generations
    }

    fn is_needless(&self) -> bool {
        self.signals.is_some_and(Deferred::has_pending) || self.pressure.is_needless()
    }
}

pub(super) struct Request<'a, 'b> {
    pub(super) device: MemberDevice<'a>,
    pub(super) bytes: u64,
    pub(super) pressure: &'b dyn Pressure,
    pub(super) idle: &'b dyn Idle,
    /// Whether a program makes the request, which waits as the group's options say.
    pub(super) is_for_program: bool,
    /// Why the request is refused, unless `keep_free` lacks something.
    pub(super) cause: Cell<Cause>,
    /// How long the request has waited, in whole seconds.
    pub(super) waited: Cell<u64>,
    /// What `keep_free` lacked at the last attempt; `None` if it was left free.
    pub(super) lack: Cell<Option<Lack>>,
}

/// A look at the GPU that showed less free memory than a request and `keep_free` need.
#[derive(Copy, Clone)]
pub(super) struct Lack {
    /// The group with the `keep_free`, and what it keeps free, in bytes.
    level: usize,
    keep: u64,
    free: u64,
    /// The group's charge at the look, and the time of the look.
    charged: u64,
    at: Instant,
}

impl<'a> Request<'a, '_> {
    pub(super) fn at(&self, level: usize) -> At<'_> {
        self.device.at(level)
    }

    pub(super) fn options(&self, level: usize) -> Options {
        self.at(level).limits.options()
    }

    fn first(&self, insistence: Insistence) -> Result<(), Refused> {
        // A request that never fits waits behind no other one.
        if insistence != Insistence::Reclaiming
            && self.bytes <= self.device.max()
            && let Some(level) = self.line_ahead()
            && !self.is_full_below(level, self.bytes)
        {
            return Err(self.refused_at(level));
        }
        if insistence == Insistence::AtOnce {
            self.look(false)?;
            let Self {
                device,
                bytes,
                idle,
                ..
            } = *self;
            let granted = device.try_sparing(Spared::Low, bytes, idle);
            return granted.then_some(()).ok_or_else(|| self.refused_at(0));
        }
        self.attempt(None)
    }

    /// Returns whether a group below `level` refuses `bytes` at once (`on_limit=fail`): the line of
    /// the group at `level` does not help.
    pub(super) fn is_full_below(&self, level: usize, bytes: u64) -> bool {
        (0..level).any(|at| {
            let Refused { charged, max, .. } = self.refused_at(at);
            self.options(at).on_limit == OnLimit::Fail && charged.saturating_add(bytes) > max
        })
    }

    /// Builds the error for a refusal by the group at `level` (0 is the process's group), with its
    /// charge and limit.
    #[cold]
    pub(super) fn refused_at(&self, level: usize) -> Refused {
        let at = self.at(level);
        Refused {
            level,
            charged: at.charged(),
            max: at.bounds().max,
            pending: 0,
        }
    }

    /// Handles a request that would take a group above `high`: reclaims unused memory of this
    /// process and of other members. Returns of each level whether that was noted now; it is once a
    /// second.
    fn restrain(&self) -> [bool; MAX_DEPTH] {
        let (mut above, mut noted) = (false, [false; MAX_DEPTH]);
        for (level, at) in self.device.levels().enumerate() {
            let bounds = at.bounds();
            if bounds.high >= bounds.max {
                continue;
            }
            let is_above = |charged: u64| charged.saturating_add(self.bytes) > bounds.high;
            if !is_above(at.charged()) {
                continue;
            }
            above = true;
            if at.ledger.note_above_high(at.index) {
                self.device.clean(self.pressure.witness());
                let charged = at.charged();
                if !is_above(charged) {
                    continue;
                }
                at.ledger.ask_members();
                self.record_at(level, EventKind::High, charged, bounds.high);
                noted[level] = true;
            }
        }
        if above {
            self.pressure.reclaim(self.device.index[0]);
        }
        noted
    }

    /// Returns the level of a group with `on_limit=wait` in which other requests wait. Level 0 is
    /// the process's group.
    fn line_ahead(&self) -> Option<usize> {
        let waits = |at: At<'_>| {
            at.ledger.somebody_waits(&at.slot, at.index)
                // No other process gets the memory that is kept for this process's job.
                && !at.slot.has_room(at.index)
                && at.limits.options().on_limit == OnLimit::Wait
        };
        self.device.levels().position(waits)
    }

    /// Tries to charge the request: reclaims, removes dead members, asks other members, and finally
    /// takes memory that `low` protects.
    fn attempt(&self, signals: Option<&Deferred>) -> Result<(), Refused> {
        self.look(true)?;
        let charge = |spared| {
            for _ in 0..CHANGES {
                let current = Current::new(self.device.member(), self.pressure, signals);
                let path = self.device.whole_path(spared);
                let path = &path[..self.device.member().levels.len()];
                let charged = ledger::charge_ahead(path, self.bytes, &current, self.idle);
                let is_protected = path.iter().any(|level| level.protection.is_some());
                if !current.is_outdated() {
                    return (charged, is_protected);
                }
                // The limits changed after the charge was granted, so undo the charge and retry.
                if charged.is_ok() {
                    self.device.uncharge_idle(self.bytes, self.idle);
                }
            }
            (Err(self.refused_at(0)), false)
        };
        match charge(Spared::Low) {
            (Err(_), true) => charge(Spared::Min).0,
            (charged, _) => charged,
        }
    }

    /// Refuses the request if less than `keep_free` would be free on the GPU after it, but for what
    /// this process can give back (`gives`). The answer to a request that waits holds for a second,
    /// unless a member gives memory back. Grants the request if the driver does not tell how much
    /// is free.
    #[cold]
    #[inline(never)]
    fn look(&self, gives: bool) -> Result<(), Refused> {
        let last = self.lack.take();
        let Some((keep, level)) = self.device.keep_free() else {
            return Ok(());
        };
        let charged = self.refused_at(level).charged;
        let lack = last
            .filter(|last| {
                let is_same = (last.keep, last.level) == (keep, level);
                is_same && charged >= last.charged && last.at.elapsed() < ANEW
            })
            .or_else(|| {
                let look = || {
                    let free = self.pressure.machine_free()?;
                    (free < self.bytes.saturating_add(keep)).then_some(free)
                };
                let mut free = look()?;
                if gives && self.pressure.reclaim(self.device.index[0]) {
                    free = look()?;
                }
                Some(Lack {
                    level,
                    keep,
                    free,
                    charged: self.refused_at(level).charged,
                    at: Instant::now(),
                })
            });
        self.lack.set(lack);
        lack.map_or(Ok(()), |_| Err(self.refused_at(level)))
    }

    /// Returns whether `keep_free` would be left free if the GPU had nothing but the `held` bytes.
    /// Without a `keep_free` in the way there is no such memory of others: returns false.
    fn is_for_outsiders(&self, held: u64) -> bool {
        self.lack.get().is_some_and(|lack| {
            let needed = held.saturating_add(self.bytes).saturating_add(lack.keep);
            needed <= self.device.capacity()
        })
    }

    /// Asks registered members, waits and kills processes, if the options of the group that refused
    /// the request say so. With the time `until`, waits until then instead.
    fn insist(&self, mut refused: Refused, until: Option<Instant>) -> Result<(), Refused> {
        let mut waited = [false; MAX_DEPTH];
        let mut asked = [false; MAX_DEPTH];
        let mut awaited = Awaited::default();
        for _ in 0..=VICTIMS {
            let options = self.options(refused.level);
            let at = self.at(refused.level);
            let own = at.slot.charged(at.index);
            let lack = self.lack.get();
            let fits_ever =
                self.bytes <= refused.max && (lack.is_none() || self.is_for_outsiders(own));
            if !fits_ever || self.pressure.is_needless() {
                return Err(refused);
            }
            let level = refused.level;
            let asking = match std::mem::replace(&mut asked[level], true) {
                true => None,
                false => self.asking(&refused),
            };
            let time = match until {
                Some(until) => until.checked_duration_since(Instant::now()),
                None => (options.on_limit == OnLimit::Wait && !waited[level])
                    .then_some(options.wait_timeout),
            };
            let again = if asking.is_some() || time.is_some() {
                waited[level] |= time.is_some();
                Some(self.wait(refused, asking, time))
            } else {
                // With `lack`, programs outside the group use the memory that `keep_free` keeps:
                // the group has room, so no member is killed.
                let may_kill = until.is_none() && lack.is_none();
                (may_kill && self.make_room(level, options.oom, &mut awaited))
                    .then(|| self.attempt(None))
            };
            match again {
                None => return Err(refused),
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => refused = error,
            }
        }
        Err(refused)
    }

    /// Waits in line for room in the group, until the request is granted, the time is over, a
    /// signal arrives, or the other members have no charge left. Without the `time` of the group's
    /// options, waits only while the members that are asked hold enough.
    fn wait(
        &self,
        refused: Refused,
        mut asking: Option<Asking>,
        time: Option<Duration>,
    ) -> Result<(), Refused> {
        let level = refused.level;
        let at = self.at(level);
        if self.lack.get().is_none() && !at.others_hold() {
            // The other members may have given their memory back since the refusal.
            return self.attempt(None);
        }
        let began = Instant::now();
        let until = time.map(|time| began + time);
        // Dropping `signals` runs signal handlers. A handler may jump out of this function, so hold
        // no lock here.
        let signals = Deferred::new();
        let asks_until = asking.as_ref().map(|asking| asking.until);
        let end = until.max(asks_until).unwrap_or_else(Instant::now);
        let mut line = Line::join(&at.station.slot, at.index, self.bytes, end);
        if until.is_some() {
            self.record(EventKind::Wait, &refused);
        }
        let mut last = refused;
        let mut still = Still::of(self.device.member());
        let (mut asked, mut pause) = (began, ANEW);
        let waited = loop {
            let asks = match &mut asking {
                Some(asking) if Instant::now() < asking.until => self.ask(asking, last.pending),
                _ => false,
            };
            let turn = match &mut line {
                Some(line) => line.turn(),
                None if Instant::now() >= end => Turn::Over,
                None => Turn::Yes,
            };
            match turn {
                Turn::Yes => match self.attempt(Some(&signals)) {
                    Ok(()) => break Ok(()),
                    Err(error) if error.level == level && self.bytes <= error.max => {
                        last = error;
                    }
                    Err(error) => break Err(error),
                },
                Turn::NotYet => {}
                Turn::Over => break Err(last),
            }
            if self.is_cut_short(&signals) {
                break Err(last);
            }
            let others_hold = at.others_hold() || self.lack.get().is_some();
            if !(asks || until.is_some()) || !others_hold {
                // The other members may have given their memory back since the attempt.
                break self.attempt(Some(&signals));
            }
            // Only the first in line: what members give goes to it.
            if until.is_some() && !asks && turn == Turn::Yes && asked.elapsed() >= pause {
                asked = Instant::now();
                if self.ask_anew(&mut asking, &last) {
                    pause = ANEW_MOST.min(2 * pause);
                    continue;
                }
            }
            if self.is_for_program && !asks && still.is_for_ever(&at) {
                // In line, the request may wait behind one that cannot be granted.
                match self.attempt(Some(&signals)) {
                    Ok(()) => break Ok(()),
                    // Outsiders may end what `keep_free` lacks.
                    Err(_) if self.is_for_outsiders(at.charged()) => {}
                    Err(error) => {
                        self.cause.set(Cause::Standstill);
                        break Err(error);
                    }
                }
            }
            match &line {
                Some(line) => line.sleep(),
                None => std::thread::sleep(NAP),
            }
        };
        // The next in line is granted its request after that.
        let is_granted = until.is_some() && waited.is_ok();
        self.end_wait(began, &asking, is_granted.then_some(&refused));
        waited
    }

    /// Returns whether a wait ends before its time.
    pub(super) fn is_cut_short(&self, signals: &Deferred) -> bool {
        if signals.has_pending() {
            self.cause.set(Cause::Signal);
            return true;
        }
        self.pressure.is_needless()
    }

    /// Records the end of a wait that began at `began`. `granted`: the refusal for which a request
    /// waited that is granted now. A suspended process does not keep what it was granted.
    #[cold]
    pub(super) fn end_wait(
        &self,
        began: Instant,
        asking: &Option<Asking>,
        granted: Option<&Refused>,
    ) {
        if let Some(refused) = granted.filter(|_| !self.pressure.is_needless()) {
            self.record(EventKind::Granted, refused);
        }
        if let Some(asking) = asking {
            self.conclude(asking);
        }
        let waited = began.elapsed();
        self.waited.set(waited.as_secs());
        for at in self.device.levels() {
            at.ledger.note_wait(at.index, waited);
        }
    }

    pub(super) fn record(&self, kind: EventKind, refused: &Refused) {
        self.record_at(refused.level, kind, refused.charged, refused.max);
    }

    /// Records an event of this request in the group at `level`, with the group's charge and limit.
    #[cold]
    pub(super) fn record_at(&self, level: usize, kind: EventKind, charged: u64, max: u64) {
        let happening = happening(kind, self.device.index[level], self.bytes, charged, max);
        (self.device.member()).record(level, &happening, self.pressure.function());
    }

    pub(super) fn refusal(&self, refused: Refused) -> Refusal<'a> {
        let at = self.at(refused.level);
        let kept = at.kept();
        let taken = kept.saturating_add(at.beyond());
        let left = (refused.max.saturating_sub(refused.charged)).saturating_sub(taken);
        let lack = self.lack.get();
        Refusal {
            group: self.device.name(refused.level),
            bytes: self.bytes,
            charged: refused.charged,
            max: refused.max,
            kept: lack.map_or(kept, |lack| lack.keep),
            left: lack.map_or(left, |lack| lack.free),
            waited: self.waited.get(),
            cause: lack.map_or(self.cause.get(), |_| Cause::KeepFree),
            ..Refusal::default()
        }
    }
}

/// The standstill of this process while a request waits, shown in all its groups.
pub(super) struct Still<'a>(&'a Member, Standstill);

impl<'a> Still<'a> {
    pub(super) fn of(member: &'a Member) -> Self {
        Self(member, Standstill::begin())
    }

    /// Returns whether this request must be refused, because the members wait for each other.
    pub(super) fn is_for_ever(&mut self, at: &At<'_>) -> bool {
        let Self(member, still) = self;
        still.look(&at.ledger, at.index, member.gate().has_calls());
        (member.levels.iter()).for_each(|level| still.show(&level.slot));
        still.is_for_ever(&at.slot, at.index)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        (self.0.levels.iter()).for_each(|level| Standstill::end(&level.slot));
    }
}
