//! The killing of processes for a request that does not fit: the option `oom`.

use super::at_limit::Request;
use super::look;
use super::proven::Targets;
use super::trail::happening;
use super::{name, system_log, user};
use gpulimit_base::identity::Identity;
use gpulimit_base::order;
use gpulimit_base::units::gib;
use gpulimit_ledger::{
    Cause, Details, DeviceIndex, EventKind, Happening, Holding, Ledger, ProcessUsage, Refused,
    child_key,
};
use gpulimit_limits::{OnLimit, Oom, Options};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// How long one request may look for processes to kill. Reading one memory map can take a second.
const LOOKS: Duration = Duration::from_secs(4);
/// The pause between two looks at processes that are ending.
const PAUSE: Duration = Duration::from_millis(1);
/// The most processes that a message names.
const NAMED: usize = 3;

/// A process: see [`Identity::key`].
type Key = (u32, u64, u64);

/// The processes whose end a request has awaited.
#[derive(Default)]
pub(super) struct Awaited {
    /// The processes that the request has killed, with their pids in this process's pid namespace.
    /// The request kills no process twice.
    killed: Vec<(Key, u32)>,
    /// The processes that ended without this request.
    ending: Vec<Key>,
}

impl Awaited {
    /// Notes the processes that are dead. Returns true if one is new: it may have died after the
    /// last attempt of the request, which has to be repeated before a process is killed.
    fn meets_dead(&mut self, processes: &[ProcessUsage]) -> bool {
        let before = self.ending.len();
        for process in processes.iter().filter(|process| !process.alive) {
            let key = process.identity.key();
            if !self.ending.contains(&key) {
                self.ending.push(key);
            }
        }
        self.ending.len() > before
    }
}

impl Request<'_, '_> {
    /// Kills processes as the option `oom` says, and waits for their end. Awaits a process that is
    /// ending already instead: its memory may suffice. Returns false if there is no process to kill
    /// or to await.
    pub(super) fn make_room(&self, level: usize, oom: Oom, awaited: &mut Awaited) -> bool {
        // If the ledger shows signs of tampering, a user may have forged this refusal: kill no
        // process.
        let station = self.at(level);
        if oom == Oom::None || station.slot.distrusts() || may_be_foreign(&station.ledger) {
            return false;
        }
        let mut processes = station.ledger.processes(self.pressure.witness());
        if awaited.meets_dead(&processes) {
            return true;
        }
        let own = Identity::of_self();
        self.choose(&mut processes, level, oom, &own);
        let look = look::until(Instant::now() + LOOKS);
        let Ok(targets) = Targets::of(&station.ledger, &look) else {
            return false;
        };
        let named = targets.named(processes.iter().map(|process| &process.identity));
        let (mut proven, mut victims) = (Vec::new(), Vec::new());
        let (mut ending, mut stuck) = (Vec::new(), Vec::new());
        for (target, process) in named.into_iter().zip(processes) {
            let key = process.identity.key();
            let killed = (awaited.killed.iter()).find(|(killed, _)| *killed == key);
            let was_awaited = awaited.ending.contains(&key);
            match target {
                _ if let Some((_, pid)) = killed => stuck.push((*pid, process)),
                _ if !was_awaited && process.identity.is_ending(own.pid_ns) => {
                    awaited.ending.push(key);
                    ending.push(process);
                }
                Ok(target) if !target.is_killed() => {
                    victims.push((target.pid, process));
                    proven.push(target);
                }
                Ok(target) => stuck.push((target.pid, process)),
                Err(_) => {}
            }
        }
        if !victims.is_empty() {
            self.report(level, oom, &own, &victims);
        }
        for (target, (pid, process)) in proven.iter().zip(victims) {
            match target.send(libc::SIGKILL) {
                Ok(()) => {
                    station.ledger.note_kill(self.at(level).index);
                    awaited.killed.push((process.identity.key(), pid));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    awaited.ending.push(process.identity.key());
                }
                Err(_) => continue,
            }
            ending.push(process);
        }
        if ending.is_empty() {
            if !stuck.is_empty() {
                self.pressure.tell(format_args!(
                    "{} was killed, but has not ended: a debugger or a frozen control group may \
                     hold it (oom={})",
                    Names(&stuck),
                    oom.name(),
                ));
            }
            return false;
        }
        let (ledger, slots) = (&station.ledger, ending.iter().map(|process| process.slot));
        while (slots.clone()).any(|slot| ledger.awaits_end(slot) && ledger.is_held(slot)) {
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// Leaves the living processes to kill, in this order.
    fn choose(&self, processes: &mut Vec<ProcessUsage>, level: usize, oom: Oom, own: &Identity) {
        let is_own = |one: &ProcessUsage| one.identity.key() == own.key();
        match oom {
            Oom::None => processes.clear(),
            Oom::KillLargest => {
                let index = self.at(level).index;
                let place = |one: &ProcessUsage| (!one.alive, uses(one, index));
                order::sort_by(processes, |a, b| place(a) > place(b));
                // A process never kills itself, nor a smaller one. Its request is refused instead.
                processes.truncate(processes.iter().position(is_own).unwrap_or(processes.len()));
                let gained = self.retain_useful(processes, level);
                let fits = self.fits_without(level, gained);
                processes.truncate(usize::from(fits));
            }
            // Kill this process last, so that it can kill the other processes first.
            Oom::KillGroup => {
                processes.retain(|process| process.alive);
                order::sort_by(processes, |a, b| !is_own(a) && is_own(b));
            }
        }
    }

    /// Leaves the living processes whose end gives the group at `level` room. Returns what all
    /// give, with the dead ones. What a child group protects stays kept when its processes end.
    fn retain_useful(&self, processes: &mut Vec<ProcessUsage>, level: usize) -> u64 {
        let at = self.at(level);
        let (mut groups, mut gained) = (Vec::<(u64, u64)>::new(), 0u64);
        processes.retain(|process| {
            let child = name::upwards(&process.below).last().map_or(0, child_key);
            let known = groups.iter().position(|(group, _)| *group == child);
            let known = known.unwrap_or_else(|| {
                groups.push((child, at.unprotected(child)));
                groups.len() - 1
            });
            let gives = uses(process, at.index).min(groups[known].1);
            groups[known].1 -= gives;
            gained = gained.saturating_add(gives);
            process.alive && gives > 0
        });
        gained
    }

    /// Returns whether the request fits into the group at `level`, and into those above it that
    /// would refuse it at once, if these bytes of the group are given back.
    fn fits_without(&self, level: usize, bytes: u64) -> bool {
        (level..self.device.levels().len()).all(|at| {
            let Options { on_limit, oom, .. } = self.options(at);
            let Refused { charged, max, .. } = self.refused_at(at);
            let kept = self.at(at).untaken();
            let needed = (charged.saturating_sub(bytes))
                .saturating_add(kept)
                .saturating_add(self.bytes);
            let refuses = at == level || (on_limit, oom) == (OnLimit::Fail, Oom::None);
            !refuses || needed <= max
        })
    }

    /// Reports that these processes are about to be killed. This comes first, because this process
    /// may be among them.
    fn report(&self, level: usize, oom: Oom, own: &Identity, victims: &[(u32, ProcessUsage)]) {
        let at = self.at(level);
        let refused = self.refused_at(level);
        let (charged, max) = (refused.charged, refused.max);
        self.record_at(level, EventKind::Oom, charged, max);
        self.pressure.tell(format_args!(
            "group {} has no room for {} on {}, requested by this process ({}): killing {} \
             (oom={})",
            at.name,
            gib(self.bytes),
            self.device.id().short(),
            own.pid,
            Names(victims),
            oom.name(),
        ));
        system_log::warn(format_args!(
            "group {} has no room for {} on {}, requested by pid {} ({}) of user {}: killing \
             {} (oom={})",
            at.name,
            gib(self.bytes),
            self.device.id().short(),
            own.pid,
            own.command(),
            own.uid,
            Names(victims),
            oom.name(),
        ));
        let details = Details {
            function: self.pressure.function(),
            cause: Some(Cause::Oom),
            by: Some(Holding::new(*own, self.bytes)),
            ..Details::default()
        };
        for (_, process) in victims {
            let kill = Happening {
                process: process.identity,
                ..happening(
                    EventKind::Kill,
                    at.index,
                    uses(process, at.index),
                    charged,
                    max,
                )
            };
            self.device.member().record_with(level, &kill, details);
        }
    }
}

/// Returns the bytes that a process has charged on a device.
fn uses(process: &ProcessUsage, device: DeviceIndex) -> u64 {
    let on = process.devices.iter().find(|usage| usage.device == device);
    on.map_or(0, |usage| usage.charged)
}

/// Processes as text, each with its pid in this process's pid namespace:
/// `pid 4711 (python), pid 4712 (python) and 3 more`.
struct Names<'a>(&'a [(u32, ProcessUsage)]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (pid, process)) in self.0.iter().take(NAMED).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}pid {pid} ({})", process.identity.command())?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Returns whether this process is root's and the ledger may be a user's link to another group's
/// ledger. Root must not kill there.
fn may_be_foreign(ledger: &Ledger) -> bool {
    let is_own = || {
        let directory = fs::metadata(ledger.path().parent()?).ok()?;
        let names = ledger.metadata().ok()?.nlink();
        Some(directory.uid() == 0 || names == 1 && !ledger.is_unlinked())
    };
    user::effective() == 0 && is_own() != Some(true)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use gpulimit_ledger::Errand;

    #[test]
    fn each_dead_process_has_a_request_tried_again_once() {
        let own = ProcessUsage {
            slot: 0,
            identity: Identity::of_self(),
            below: String::new(),
            alive: true,
            drains: false,
            waits: None,
            errand: Errand::None,
            frozen: false,
            devices: Vec::new(),
        };
        let dead = |pid| ProcessUsage {
            identity: Identity {
                pid,
                ..own.identity
            },
            alive: false,
            ..own.clone()
        };
        let mut awaited = Awaited::default();
        assert!(!awaited.meets_dead(std::slice::from_ref(&own)));
        assert!(awaited.meets_dead(&[own.clone(), dead(7)]));
        assert!(!awaited.meets_dead(&[own.clone(), dead(7)]));
        assert!(awaited.meets_dead(&[own.clone(), dead(7), dead(8)]));
    }
}
