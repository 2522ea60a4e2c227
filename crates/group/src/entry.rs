//! The first context of a process on a device, in groups whose requests wait (`on_limit=wait`).
//!
//! Processes that hold a context each, and wait for the memory beyond it, wait for each other. So
//! first contexts enter one after the other: see `entry` of the ledger. A job with a limit of its
//! own enters when the whole limit is free, and it is kept for the job.

use super::at_limit::{Current, NAP, Request};
use super::member::{Member, MemberDevice, Refusal, Spared};
use super::name::Kind;
use super::signals::Deferred;
use super::undisturbed::Undisturbed;
use gpulimit_ledger::{
    self as ledger, DeviceIndex, EventKind, Idle, Line, Pressure, Refused, Slot, Turn, child_key,
};
use gpulimit_limits::OnLimit;
use std::cell::Cell;
use std::time::Instant;

impl Member {
    /// Waits until this process may make its first context on the device, where its groups make
    /// requests wait. `bytes`: what the context takes. Call [`Member::stay`] when it is made.
    pub fn enter(
        &self,
        device: &MemberDevice,
        bytes: u64,
        pressure: &dyn Pressure,
    ) -> Result<(), Refusal<'_>> {
        let _undisturbed = Undisturbed::new();
        let request = Request {
            member: self,
            device,
            bytes,
            pressure,
            idle: &(),
            is_stuck: Cell::new(false),
        };
        let levels = (0..self.levels.len()).rev();
        let mut waiting = levels.filter(|level| request.options(*level).on_limit == OnLimit::Wait);
        let entered = waiting.try_for_each(|level| request.enter(level));
        entered.map_err(|refused| {
            self.leave_entrance(device);
            request.refusal(refused)
        })
    }

    /// Notes that this process has its first context on the device, or works on what belongs to it:
    /// the next process waits a second more, unless this one asks for memory.
    pub fn stay(&self, device: &MemberDevice) {
        self.each_slot(device, Slot::stay_at_entrance);
    }

    /// Lets the next process make its first context.
    pub fn leave_entrance(&self, device: &MemberDevice) {
        self.each_slot(device, Slot::leave_entrance);
    }
}

impl Request<'_, '_> {
    fn enter(&self, level: usize) -> Result<(), Refused> {
        let (station, index) = (self.station(level), self.device.index[level]);
        if station.bounds(self.device, index).max == u64::MAX {
            return Ok(());
        }
        let job = self.job_below(level);
        let bytes = job.map_or(self.bytes, |(_, max)| max);
        let signals = Deferred::new();
        let (began, time) = (Instant::now(), self.options(level).wait_timeout);
        let until = began + time;
        let mut line = Line::join_first(&station.slot, index, bytes, until);
        let mut refused = None;
        loop {
            let turn = match &mut line {
                Some(line) => line.turn(),
                None if Instant::now() >= until => Turn::Over,
                None => Turn::Yes,
            };
            let entered = match job {
                Some((job, max)) if station.slot.job_has_room(index, job) => {
                    station.slot.keep_room(index, job, max);
                    Ok(true)
                }
                _ if turn == Turn::Yes => self.try_to_enter(level, job),
                _ => Ok(false),
            };
            match entered {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => {
                    if refused.is_none() {
                        self.record(EventKind::Wait, &error);
                    }
                    refused = Some(error);
                }
            }
            if turn == Turn::Over || signals.has_pending() || self.pressure.is_needless() {
                return Err(refused.unwrap_or_else(|| self.refused_at(level)));
            }
            match &line {
                Some(line) => line.sleep(),
                None => std::thread::sleep(NAP),
            }
        }
        if let Some(refused) = refused {
            self.record(EventKind::Granted, &refused);
            station.ledger.note_wait(index, began.elapsed());
        }
        Ok(())
    }

    /// Returns a key for the outermost job with a limit of its own that this process is in, below
    /// the group at `level`, and the limit. A limit that the group never has free counts as none.
    fn job_below(&self, level: usize) -> Option<(u64, u64)> {
        let max_at = |at: usize| {
            self.station(at)
                .bounds(self.device, self.device.index[at])
                .max
        };
        let is_job = |at: &usize| Kind::of(&self.station(*at).name) == Kind::Job;
        let mut jobs = (0..level).rev().filter(is_job);
        let at = jobs.find(|at| max_at(*at) <= max_at(level))?;
        Some((child_key(&self.station(at).name), max_at(at)))
    }

    /// Lets this process enter if the entrance is free and there is room for the context, or for
    /// the whole limit of the `job`. The room is charged for a moment, so that of several processes
    /// one gets it. Returns false if another process has the entrance.
    fn try_to_enter(&self, level: usize, job: Option<(u64, u64)>) -> Result<bool, Refused> {
        let (station, index) = (self.station(level), self.device.index[level]);
        let slot = &station.slot;
        if slot.is_entrance_held(index) {
            return Ok(false);
        }
        let bytes = job.map_or(self.bytes, |(_, max)| max);
        let current = Current::new(self.member, self.pressure);
        let path = [station.level(self.device, level, Spared::Min)];
        let idle = Trial { slot, index, bytes };
        match ledger::charge_ahead(&path, bytes, &current, &idle) {
            Ok(()) => {
                let entered = match job {
                    Some((job, max)) => {
                        slot.keep_room(index, job, max);
                        true
                    }
                    None => slot.take_entrance(index),
                };
                ledger::uncharge_idle(&path, bytes, &idle);
                Ok(entered)
            }
            // The request itself says what a process that is alone gets.
            Err(_) if !station.others_hold(index) && slot.rooms_of_others(index) == 0 => {
                Ok(slot.take_entrance(index))
            }
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
