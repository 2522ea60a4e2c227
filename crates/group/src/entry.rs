//! The first context of a process on a device, in groups whose requests wait (`on_limit=wait`).
//!
//! Processes that hold a context each, and wait for the memory beyond it, wait for each other. So
//! first contexts enter one after the other: see `entry` of the ledger. A job with a limit of its
//! own enters when the whole limit is free, and it is kept for the job. A suspended job gives it
//! up, and enters again when it is resumed.

use super::at_limit::{ANEW, ANEW_MOST, Current, Insistence, NAP, Request, Still};
use super::member::{MemberDevice, Refusal, Spared};
use super::name::{self, Kind};
use super::oom::Awaited;
use super::signals::Deferred;
use super::undisturbed::Undisturbed;
use gpulimit_ledger::{
    self as ledger, Cause, DeviceIndex, EventKind, Idle, Line, Pressure, Refused, Slot, Turn,
    child_key,
};
use gpulimit_limits::OnLimit;
use std::cell::Cell;
use std::time::{Duration, Instant};

impl<'a> MemberDevice<'a> {
    /// Waits until this process may make its first context on the device, where its groups make
    /// requests wait. `bytes`: what the context takes. Call [`MemberDevice::stay`] when it is made,
    /// and [`MemberDevice::turn_back`] if it is not.
    ///
    /// With [`Insistence::Within`], only waits for what is kept for the job of this process, and
    /// keeps it as long as this membership lasts.
    pub fn enter(
        &self,
        bytes: u64,
        pressure: &dyn Pressure,
        insistence: Insistence,
    ) -> Result<(), Refusal<'a>> {
        let _undisturbed = Undisturbed::new();
        let mut request = Request {
            device: *self,
            bytes,
            pressure,
            idle: &(),
            is_for_program: insistence == Insistence::Full,
            lack: Cell::new(None),
            cause: Cell::default(),
            waited: Cell::default(),
        };
        for (level, at) in self.levels().enumerate().rev() {
            // Only a group with a limit makes requests wait.
            if at.limits.options().on_limit != OnLimit::Wait || at.bounds().max == u64::MAX {
                continue;
            }
            if !request.is_for_program && request.job_below(level).is_none() {
                continue;
            }
            let time = match insistence {
                Insistence::Within(time) => time,
                _ => request.options(level).wait_timeout,
            };
            if let Err(refused) = request.enter(level, bytes, time) {
                let room = request.job_below(level).map_or(0, |(_, max)| max);
                let refusal = request.refusal(refused);
                return Err(Refusal { room, ..refusal });
            }
        }
        Ok(())
    }

    /// Notes that this process makes no first context: it keeps nothing for its job, and the next
    /// process enters.
    pub fn turn_back(&self) {
        self.each_slot(Slot::leave_room);
        self.leave_entrance();
    }

    /// Notes that this process has its first context on the device, or works on what belongs to it:
    /// the next process waits a second more, unless this one asks for memory.
    pub fn stay(&self) {
        self.each_slot(Slot::stay_at_entrance);
    }

    /// Lets the next process make its first context.
    pub fn leave_entrance(&self) {
        self.each_slot(Slot::leave_entrance);
    }
}

/// Returns a key for the outermost job that the group `leaf` is in, below the group `above`; 0 if
/// it is in none.
pub fn job_key(above: &str, leaf: &str) -> u64 {
    let below = name::upwards(leaf).take_while(|name| name.len() > above.len());
    let jobs = below.filter(|name| Kind::of(name) == Kind::Job);
    jobs.last().map_or(0, child_key)
}

/// Returns the outermost job with a limit of its own among the groups `below` a group with the
/// limit `max`: the names and limits, the outermost last. A limit above that of a group above it
/// counts as none.
pub fn job_of<'a>(
    below: impl DoubleEndedIterator<Item = (&'a str, u64)>,
    max: u64,
) -> Option<(&'a str, u64)> {
    let mut least = max;
    below.rev().find(|(name, own)| {
        let is_own = *own <= least && Kind::of(name) == Kind::Job;
        least = least.min(*own);
        is_own
    })
}

impl Request<'_, '_> {
    /// Enters the group at `level` with a context of `context` bytes, within `time`.
    fn enter(&mut self, level: usize, context: u64, time: Duration) -> Result<(), Refused> {
        let device = self.device;
        let at = device.at(level);
        let signals = Deferred::new();
        let (began, options) = (Instant::now(), self.options(level));
        let until = began + time;
        let bytes = |job: Option<(u64, u64)>| job.map_or(context, |(_, max)| max);
        let mut line = Line::join_first(&at.station.slot, at.index, context, until);
        let mut still = Still::of(self.device.member());
        let mut waits: Option<Refused> = None;
        let (mut asking, mut asked, mut pause) = (None, began, Duration::ZERO);
        let entered = loop {
            // The limits may change meanwhile.
            let job = self.job_below(level);
            self.bytes = bytes(job);
            // A context that never fits does not wait: the request for its memory is refused. Nor
            // does one that does not fit into a group that refuses at once. A job, of which dead
            // processes may fill the group, enters with its whole limit.
            if context > self.device.max() || job.is_none() && self.is_full_below(level, context) {
                break Ok(false);
            }
            let turn = match &mut line {
                Some(line) => {
                    line.note_bytes(self.bytes);
                    line.turn()
                }
                None if Instant::now() >= until => Turn::Over,
                None => Turn::Yes,
            };
            let key = job.map(|(key, _)| key);
            let (is_full, refused) = match self.try_to_enter(level, key, turn, &signals) {
                Ok(true) if self.job_below(level) == job => break Ok(true),
                Ok(true) => continue,
                Ok(false) => (false, self.refused_at(level)),
                Err(refused) => (true, refused),
            };
            // For the entrance alone, the first in line waits seconds at most: no wait for memory.
            if waits.is_none() && (is_full || turn != Turn::Yes) {
                self.record(EventKind::Wait, &refused);
                waits = Some(refused);
            }
            if is_full && asked.elapsed() >= pause && self.ask_anew(&mut asking, &refused) {
                (asked, pause) = (Instant::now(), ANEW.max(2 * pause).min(ANEW_MOST));
            }
            let asks = match &mut asking {
                Some(asking) if Instant::now() < asking.until => self.ask(asking, refused.pending),
                _ => false,
            };
            let is_over = turn == Turn::Over;
            if is_over
                && self.is_for_program
                && self.make_room(level, options.oom, &mut Awaited::default())
            {
                break Ok(true);
            }
            if is_over || self.is_cut_short(&signals) {
                break Err(refused);
            }
            if self.is_for_program && !asks && still.is_for_ever(&at) {
                self.cause.set(Cause::Standstill);
                break Err(refused);
            }
            match &line {
                Some(line) => line.sleep(),
                None => std::thread::sleep(NAP),
            }
        };
        if let Some(waits) = &waits {
            let granted = (entered == Ok(true)).then_some(waits);
            self.end_wait(began, &asking, granted);
        }
        entered.map(|_| ())
    }

    /// Returns a key for the outermost job with a limit of its own that this process is in, below
    /// the group at `level`, and the limit. A limit that the group never has free counts as none.
    #[cold]
    fn job_below(&self, level: usize) -> Option<(u64, u64)> {
        let max_at = |at: usize| self.at(at).bounds().max;
        let below = (0..level).map(|at| (&*self.at(at).station.name, max_at(at)));
        job_of(below, max_at(level)).map(|(name, max)| (child_key(name), max))
    }

    /// Lets this process enter if the entrance is free and there is room for the context, or for
    /// the whole limit of the `job`; at once, if the room is kept for the job already. The room is
    /// charged for a moment, so that of several processes one gets it. Returns false if it is not
    /// the turn of this process.
    fn try_to_enter(
        &self,
        level: usize,
        job: Option<u64>,
        turn: Turn,
        signals: &Deferred,
    ) -> Result<bool, Refused> {
        let at = self.at(level);
        let (slot, index, bytes) = (&at.slot, at.index, self.bytes);
        if let Some(job) = job.filter(|job| slot.job_has_room(index, *job)) {
            slot.keep_room(index, job, bytes);
            return Ok(true);
        }
        let is_over = turn == Turn::Over;
        let must_wait = match turn {
            Turn::NotYet => true,
            Turn::Yes => slot.is_entrance_held(index),
            // For want of memory a process is refused, and not for first contexts before it.
            Turn::Over => at.ledger.somebody_waits(slot, index),
        };
        if must_wait {
            return Ok(false);
        }
        let current = Current::new(self.device.member(), self.pressure, Some(signals));
        let path = [at.level(Spared::Min)];
        // The limits may have changed since other processes of the job entered.
        let has = job.map_or(0, |job| at.ledger.charged_by_job(index, job));
        let lacks = bytes.saturating_sub(has);
        let idle = Trial {
            slot,
            index,
            bytes: lacks,
        };
        match ledger::charge_ahead(&path, lacks, &current, &idle) {
            Ok(()) => {
                let entered = match job {
                    Some(job) => {
                        slot.keep_room(index, job, bytes);
                        true
                    }
                    None => slot.take_entrance(index) || is_over,
                };
                ledger::uncharge_idle(&path, lacks, &idle);
                Ok(entered)
            }
            // The request itself says what a process that is alone gets.
            Err(_) if !at.others_hold() => Ok(slot.take_entrance(index) || is_over),
            Err(refused) => Err(Refused { level, ..refused }),
        }
    }
}

/// Bytes that are charged to see whether they are free, and never used.
struct Trial<'a> {
    slot: &'a Slot,
    index: DeviceIndex,
    bytes: u64,
}

impl Idle for Trial<'_> {
    fn add(&self) {
        self.slot.publish_idle(self.index, self.bytes);
    }

    fn remove(&self) {
        self.slot.publish_idle(self.index, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_above_that_of_a_group_above_it_counts_as_none() {
        let job = |limits: [u64; 3]| {
            let names = ["lab/a/run-1-1/run-2-2", "lab/a/run-1-1", "lab/a"];
            job_of(names.into_iter().zip(limits), 6)
        };
        let none = u64::MAX;
        assert_eq!(job([none, 3, 4]), Some(("lab/a/run-1-1", 3)));
        assert_eq!(job([none, 5, none]), Some(("lab/a/run-1-1", 5)));
        assert_eq!(job([none, 5, 4]), None);
        assert_eq!(job([none, 7, none]), None);
        assert_eq!(job([2, 5, 4]), Some(("lab/a/run-1-1/run-2-2", 2)));
        assert_eq!(job([5, 5, 4]), None);
    }
}
