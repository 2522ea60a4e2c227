//! The machine, as the procedure of suspensions sees it: the driver, the ledgers, the GPUs.

use super::bound;
use super::checkpoint::{Checkpoints, Placeholder, Status};
use super::subjects::{Subject, moved};
use crate::groups::{self, above::protected_in, sizes};
use crate::machine::{nvml, obstacles::is_frozen};
use crate::shown::output;
use crate::words::{clock::rough_span, failure::Failure, text::apart};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::obstacle::Obstacle;
use gpulimit_base::proc;
use gpulimit_base::units::gib;
use gpulimit_group::{Group, Insistence, Member, Root, job_of};
use gpulimit_ledger::{
    Actor, Calls, DeviceIndex, Errand, EventKind, Ledger, Pressure, Unmoved, Witness, child_key,
};
use gpulimit_limits::{LimitSet, OnLimit};
use gpulimit_suspend::{State, World};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// What a restore takes of a GPU beyond the figure of the process (measured on an H100, driver 580:
/// 5.6 MiB), with room to spare.
const MARGIN: u64 = 16 << 20;
/// How long a step waits that others end soon: NVML's list, a locked slot, undecided requests, room
/// on a GPU for a process that comes back because its suspension failed.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// How long a request waits for more room while this process has charged some.
const TURN: Duration = Duration::from_secs(1);
/// How often in a row a placeholder may find no memory on a GPU that has enough.
const MOST_TRIES: u32 = 50;
/// How much more than its charge a process that NVML does not list can need. What its suspension
/// frees tells the true figure, but may include what other programs free at that time.
const MOST_UNCHARGED: u64 = 4 << 30;
/// How long NVML may take to show freed memory.
const FREEING: Duration = Duration::from_secs(1);
/// How long a step waits for a stopped process: a tool may have stopped it for a moment.
const STOPPED: Duration = Duration::from_secs(1);
/// How long a call under way gets at least to end, however little time is left.
const LEAST: Duration = Duration::from_secs(1);
/// How long short calls of CUDA of a process are held back before those under way have ended.
/// Shorter than the time after which a thread at the gate takes this process for dead.
const REST: Duration = Duration::from_millis(500);
/// How long a killed process may keep its slot after the driver has noticed.
const ENDING: Duration = Duration::from_secs(1);

/// The machine and the processes of a set. Processes are numbers: places in the set.
pub struct Machine<'a> {
    checkpoints: &'a Checkpoints,
    subjects: &'a [Subject],
    /// The right to act on each process; `None` for one that has ended before.
    actors: Vec<Option<Actor<'a>>>,
    /// The memberships by which this process charges the room for each process.
    rooms: Vec<Option<Member>>,
    /// The processes for which this process charges the room, and holds it on the GPUs.
    set: Vec<usize>,
    held: BTreeMap<DeviceId, Placeholder<'a>>,
    /// How long the caller wants to wait; `None` for as long as it takes.
    timeout: Option<Duration>,
    /// When waiting ends; `None` for never.
    until: Option<Instant>,
    stop: Stop,
    /// Whether a process has stayed stopped. Other processes wait, so the next one gets no time.
    lost_patience: Cell<bool>,
}

/// Tells whether the user wants this process to stop.
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Begins to take note of SIGINT, SIGTERM and SIGHUP, which do not end this process any more.
    /// A signal that the caller ignores stays ignored, as under `nohup`.
    pub fn on_signals() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        for signal in signals.into_iter().filter(|signal| !proc::ignores(*signal)) {
            // This fails for no signal that exists and can be handled.
            let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
        }
        Self(stop)
    }

    /// Returns a value that never asks.
    pub fn never() -> Self {
        Self(Arc::default())
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<'a> Machine<'a> {
    /// Takes the right to act on all processes.
    ///
    /// # Errors
    /// Another command acts on one of them.
    pub fn of(
        checkpoints: &'a Checkpoints,
        subjects: &'a [Subject],
        timeout: Option<Duration>,
        stop: Stop,
    ) -> Result<Self, Failure> {
        let mut actors = Vec::new();
        for subject in subjects {
            match subject.ledger().act_on(subject.identity()) {
                Ok(actor) => actors.push(Some(actor)),
                Err(Unmoved::Gone) => actors.push(None),
                Err(error) => return Err(subject.refused(&error)),
            }
        }
        Ok(Self {
            checkpoints,
            subjects,
            actors,
            rooms: subjects.iter().map(|_| None).collect(),
            set: Vec::new(),
            held: BTreeMap::new(),
            timeout,
            until: timeout.and_then(|time| Instant::now().checked_add(time)),
            stop,
            lost_patience: Cell::new(false),
        })
    }

    /// Returns whether another program has locked or checkpointed the process: gpulimit knows
    /// nothing of it.
    pub fn is_foreign(&self, process: usize, state: State) -> bool {
        match state {
            State::Locked => true,
            State::Checkpointed => !self.subjects[process].is_suspended(),
            _ => false,
        }
    }

    /// Asks the driver to do something with a process. Succeeds if the process has ended.
    fn drive(
        &self,
        process: usize,
        what: &str,
        call: impl FnOnce(u32) -> Result<(), Status>,
    ) -> Result<(), Failure> {
        // The call would not return before the process is continued, and others of the set may be
        // locked meanwhile.
        self.ready(process)?;
        self.ask(process, what, call)
    }

    /// Does the same as [`Self::drive`], for a process that is ready. An error is the driver's
    /// answer.
    fn ask(
        &self,
        process: usize,
        what: &str,
        call: impl FnOnce(u32) -> Result<(), Status>,
    ) -> Result<(), Failure> {
        let subject = &self.subjects[process];
        if subject.is_gone() {
            return Ok(());
        }
        match watched(subject.target.pid, &subject.name(), call) {
            Err(status) if !self.is_ending(process, status) => Err(Failure::new(format_args!(
                "cannot {what} {name}: the driver answers {status}",
                name = subject.name()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns whether the driver has answered so because the process has ended. The driver knows
    /// that a little earlier than the ledger.
    fn is_ending(&self, process: usize, status: Status) -> bool {
        let subject = &self.subjects[process];
        let until = match status {
            Status::OPERATING_SYSTEM => Instant::now() + ENDING,
            _ => Instant::now(),
        };
        while !subject.is_gone() {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(PAUSE);
        }
        true
    }

    /// Returns whether the process has called exec, and another command works on its next program.
    fn belongs_to_another(&self, process: usize) -> bool {
        let subject = &self.subjects[process];
        let (actor, identity) = (self.actors[process].as_ref(), subject.identity());
        let has_rival = || match actor {
            Some(actor) => actor.has_rival(identity),
            None => subject.ledger().has_actor(identity),
        };
        subject.is_gone() && has_rival()
    }

    /// Unlocks the next program of a process that has called exec: the driver knows processes by
    /// their pids, so it may have locked that one. Any member can make a program look like one
    /// that is gone, so this is done once more at the end.
    fn unlock_next(&self, process: usize) {
        let subject = &self.subjects[process];
        if subject.has_executed() && subject.check_runs().is_ok() {
            let _ = self.checkpoints.unlock(subject.target.pid);
        }
    }

    /// Closes the gate of a process, and waits until no call that it holds back is under way. While
    /// some are, other short calls go on: what is waited for may need them.
    fn close_gate(&self, process: usize) -> Result<u64, Failure> {
        self.ready(process)?;
        let subject = &self.subjects[process];
        let (ledger, identity) = (subject.ledger(), subject.identity());
        let until = Instant::now() + self.left().max(LEAST);
        let is_quiet = |held: Calls, counted: Calls, until: Instant| {
            let mut mark = None;
            let ended = || {
                if subject.is_gone() {
                    return true;
                }
                // A thread opens the gate of a process that runs, sooner or later.
                if !mark.is_some_and(|mark| ledger.is_held_back(identity, mark)) {
                    mark = Some(ledger.close_gate(identity, held));
                }
                ledger.calls_under_way(identity, counted) == 0
            };
            let is_quiet = self.wait_for(Some(until), ended);
            is_quiet.then(|| mark.unwrap_or_default())
        };
        let soon = || until.min(Instant::now() + REST);
        while is_quiet(Calls::Waits, Calls::Waits, until).is_some() {
            if let Some(mark) = is_quiet(Calls::Short, Calls::Short, soon()) {
                return Ok(mark);
            }
            if Instant::now() >= until || self.stop.is_asked() {
                break;
            }
            self.admit(process);
            let ended = || ledger.calls_under_way(identity, Calls::Short) == 0;
            self.wait_for(Some(soon()), || subject.is_gone() || ended());
        }
        self.go_on()?;
        Err(subject.fails(format_args!(
            "has a call of CUDA under way that did not end within {}: try again later, or with a \
             longer --timeout",
            rough_span(self.timeout.unwrap_or(LEAST))
        )))
    }

    /// Returns the time that is left to wait.
    fn left(&self) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until
            .map_or(Duration::from_secs(u32::MAX.into()), left)
    }

    /// Repeats `attempt` until it succeeds, the time is over or the user stops it.
    fn wait_for(&self, until: Option<Instant>, mut attempt: impl FnMut() -> bool) -> bool {
        loop {
            if attempt() {
                return true;
            }
            let over = until.is_some_and(|until| Instant::now() >= until);
            if over || self.stop.is_asked() {
                return false;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Charges the room for a process on one GPU, at every level.
    fn charge_on(
        &self,
        member: &Member,
        process: usize,
        (id, capacity, bytes): (DeviceId, u64, u64),
        patience: Duration,
    ) -> Result<(), Failure> {
        let device = member.device(id, capacity)?;
        let until = Instant::now() + patience;
        let left = || Insistence::Within(until.saturating_duration_since(Instant::now()));
        let subject = &self.subjects[process];
        let pressure = Resuming {
            gpus: &self.checkpoints.gpus,
            stop: &self.stop,
            subject,
            until,
        };
        let charge = || device.charge(bytes, &pressure, left());
        let entered = device.enter(bytes, &pressure, left());
        let Err(refusal) = entered.and_then(|()| charge()) else {
            return Ok(());
        };
        self.go_on()?;
        if subject.is_gone() {
            return Ok(());
        }
        Err(Failure::new(format_args!(
            "no room for the {bytes} of {name} on GPU {gpu}: {refusal}; free memory in the group \
             or raise its limit, then resume again",
            bytes = gib(bytes.max(refusal.room)),
            name = subject.name(),
            gpu = groups::label(id, Some(&self.checkpoints.gpus)),
        )))
    }

    /// Charges the room for all processes that are to have it. With an error, returns whether some
    /// room is charged.
    fn charge_wanted(&mut self) -> Result<(), (Failure, bool)> {
        let mut holds_room = self.rooms.iter().any(Option::is_some);
        for process in self.set.clone() {
            let subject = &self.subjects[process];
            let wanted = subject.devices().into_iter();
            let wanted: Vec<_> = wanted
                .map(|(id, capacity, usage)| (id, capacity, usage.suspended))
                .filter(|(_, _, bytes)| *bytes > 0)
                .collect();
            if wanted.is_empty() || self.rooms[process].is_some() || subject.is_gone() {
                continue;
            }
            let member = Root::at(subject.group.root())
                .and_then(|root| Member::join(&root, subject.group.name()))
                .map_err(|error| (error.into(), false))?;
            for each in wanted {
                let patience = match holds_room {
                    true => self.left().min(TURN),
                    false => self.left(),
                };
                self.charge_on(&member, process, each, patience)
                    .map_err(|failure| (failure, holds_room))?;
                holds_room = true;
            }
            self.rooms[process] = Some(member);
        }
        Ok(())
    }

    /// Fails if what comes back in all can never fit on a GPU or in a group: waiting would not
    /// help, and would keep room from others.
    fn check_fits(&self) -> Result<(), Failure> {
        for (id, coming) in self.coming(self.set.iter().copied()) {
            self.check_gpu(id, &coming)?;
        }
        let mut all: BTreeMap<(String, DeviceId), Arrival> = BTreeMap::new();
        for process in &self.set {
            let subject = &self.subjects[*process];
            for (id, capacity, usage) in subject.devices() {
                if usage.suspended == 0 || subject.is_gone() {
                    continue;
                }
                let mut below: Vec<(Group, u64)> = Vec::new();
                for group in subject.group.upwards() {
                    let rules = group.rules()?;
                    let max = sizes::rule(&rules, id).resolve(capacity).max;
                    let entry = all.entry((group.name().to_owned(), id));
                    let arrival = entry.or_insert_with(|| Arrival {
                        group: group.clone(),
                        id,
                        capacity,
                        bytes: BTreeMap::new(),
                        jobs: BTreeSet::new(),
                    });
                    let makes_wait = rules.options.on_limit == OnLimit::Wait && max != u64::MAX;
                    let groups = below.iter().map(|(group, max)| (group.name(), *max));
                    let needed = match job_of(groups, max).filter(|_| makes_wait) {
                        None => usage.suspended,
                        Some((job, room)) if arrival.jobs.insert(job.to_owned()) => room,
                        Some(_) => 0,
                    };
                    let part = |(group, _): &(Group, u64)| {
                        child_key(group.name().rsplit('/').next().unwrap_or_default())
                    };
                    // A member can have written any figure.
                    let bytes = arrival.bytes.entry(below.last().map(part)).or_default();
                    *bytes = bytes.saturating_add(needed);
                    below.push((group, max));
                }
            }
        }
        for arrival in all.values() {
            arrival.check(&self.checkpoints.gpus, self.set.len() > 1)?;
        }
        Ok(())
    }

    /// Fails if several processes do not fit on a GPU together. One process does, because it was
    /// there before.
    fn check_gpu(&self, id: DeviceId, coming: &Coming) -> Result<(), Failure> {
        let memory = self.checkpoints.gpus.memory_of(&id);
        // What is used on an empty GPU is not for programs.
        let room = memory.map_or(u64::MAX, |now| match now.used <= MARGIN {
            true => now.free,
            false => now.free.saturating_add(now.used),
        });
        if coming.processes < 2 || coming.bytes <= room {
            return Ok(());
        }
        let [bytes, room] = apart([coming.bytes, room]);
        let gpu = groups::label(id, Some(&self.checkpoints.gpus));
        Err(Failure::new(format_args!(
            "{bytes} come back to GPU {gpu}, more than the {room} that it has: resume fewer \
             processes at once with --pid; all processes stay suspended"
        )))
    }

    /// Returns the memory of a set that comes back, for each GPU.
    fn coming(&self, set: impl Iterator<Item = usize>) -> BTreeMap<DeviceId, Coming> {
        let mut all: BTreeMap<DeviceId, Coming> = BTreeMap::new();
        for process in set.filter(|process| !self.subjects[*process].is_gone()) {
            for (id, capacity, usage) in self.subjects[process].devices() {
                // The charge may leave out what the restore needs, as contexts that the group does
                // not count.
                let bytes = moved(&usage).max(usage.resident);
                if bytes > 0 {
                    let coming = all.entry(id).or_default();
                    // A member can have written any figure.
                    coming.bytes = coming.bytes.saturating_add(bytes).saturating_add(MARGIN);
                    coming.charged = coming.charged.saturating_add(usage.suspended);
                    coming.processes += 1;
                    let kept = self.rooms[process]
                        .as_ref()
                        .and_then(|member| member.device(id, capacity).ok()?.keep_free());
                    coming.keep_free = coming.keep_free.max(kept.map_or(0, |(keep, _)| keep));
                }
            }
        }
        all
    }
}

/// The memory of a set of processes that comes back to one GPU.
#[derive(Default)]
struct Coming {
    /// The bytes that must be free.
    bytes: u64,
    /// The bytes that this process has charged.
    charged: u64,
    processes: usize,
    /// What must be free beside them, because their groups keep it free.
    keep_free: u64,
}

/// Calls the driver about a process. Says so if the process is stopped meanwhile: the driver waits
/// for it, and so does this command.
fn watched<T>(pid: u32, name: &str, call: impl FnOnce(u32) -> T) -> T {
    let (answered, answer) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let watch = move || {
            while answer.recv_timeout(STOPPED) == Err(RecvTimeoutError::Timeout) {
                if proc::is_stopped(pid) == Some(true) || is_frozen(pid) {
                    output::note(&format!(
                        "{name} has been stopped, and the driver waits for it: continue it, as \
                         with `kill -CONT {pid}`, or thaw its cgroup"
                    ));
                    return;
                }
            }
        };
        // Without a thread for it, the command says nothing.
        let _ = thread::Builder::new().spawn_scoped(scope, watch);
        let answer = call(pid);
        drop(answered);
        answer
    })
}

/// The memory that comes back in one group, on one GPU.
struct Arrival {
    group: Group,
    id: DeviceId,
    capacity: u64,
    /// The bytes for each child group that they come back in, by the key of its name; `None` for
    /// the group's own processes.
    bytes: BTreeMap<Option<u64>, u64>,
    /// The jobs that come back when their whole limit is free here.
    jobs: BTreeSet<String>,
}

impl Arrival {
    /// Fails if the group can never have room, also without its other processes: because of its
    /// limit, and of what `min` keeps for other groups. If `several` processes come back, fewer may
    /// have room.
    fn check(&self, gpus: &nvml::Driver, several: bool) -> Result<(), Failure> {
        let bounds = |rules: &LimitSet| sizes::rule(rules, self.id).resolve(self.capacity);
        let max = bounds(&self.group.rules()?).max;
        let bytes = (self.bytes.values().copied()).fold(0, u64::saturating_add);
        let unused = protected_in(&self.group).into_iter().map(|(key, rules)| {
            let own = self.bytes.get(&Some(key)).copied().unwrap_or(0);
            bounds(&rules).min.saturating_sub(own)
        });
        let kept = unused.fold(0, u64::saturating_add);
        if bytes.saturating_add(kept) <= max {
            return Ok(());
        }
        let [bytes, left] = apart([bytes, max.saturating_sub(kept)]);
        let limit = match kept {
            0 => format!("its limit of {left}: raise the limit"),
            _ => format!(
                "the {left} that its limit of {} leaves beside what `min` keeps for other groups: \
                 raise the limit, lower `min`",
                gib(max)
            ),
        };
        let fewer = match several {
            true => ", or resume fewer processes at once with --pid",
            false => ", and resume again",
        };
        let counted = match self.jobs.is_empty() {
            true => "",
            false => ", the whole limits of jobs counted",
        };
        Err(Failure::new(format_args!(
            "{bytes} come back in group '{name}' on GPU {gpu}{counted}, more than {limit}{fewer}",
            name = self.group.name(),
            gpu = groups::label(self.id, Some(gpus)),
        )))
    }
}

/// The memory of a process on a GPU that NVML does not show, before the process is suspended.
struct Unseen {
    id: DeviceId,
    /// The bytes that the process has charged, and the most that it can have.
    charge: u64,
    most: u64,
    /// The free bytes of the GPU.
    free: u64,
}

impl Machine<'_> {
    /// Writes down how much of each GPU a process has, as NVML shows it. If NVML does not show it,
    /// as in a container, writes down the most that the process can have, in case this process dies
    /// before [`Self::note_freed`], and returns these GPUs.
    fn note_resident(&self, subject: &Subject) -> Vec<Unseen> {
        let (gpus, pid) = (&self.checkpoints.gpus, subject.target.pid);
        let is_listed = gpus.lists(pid) == Some(true);
        let counts_contexts = subject.counts_contexts();
        let mut unseen = Vec::new();
        for (id, _, usage) in subject.devices() {
            let (shown, charge) = (gpus.used_by(pid, &id), moved(&usage));
            let bytes = match (shown.filter(|_| is_listed), gpus.memory_of(&id)) {
                (Some(bytes), _) => bytes,
                // On a GPU that the process does not use, memory that others free would be mistaken
                // for the process's own.
                (None, Some(memory)) if charge > 0 || !counts_contexts => {
                    let most = charge.saturating_add(MOST_UNCHARGED).min(memory.used);
                    let free = memory.free;
                    unseen.push(Unseen {
                        id,
                        charge,
                        most,
                        free,
                    });
                    most
                }
                (None, _) => 0,
            };
            subject.set_resident(&id, bytes);
        }
        unseen
    }

    /// Writes down how much of a GPU the suspension of a process has freed.
    fn note_freed(&self, subject: &Subject, unseen: &Unseen) {
        let mut freed = 0;
        self.wait_for(Some(Instant::now() + FREEING), || {
            let now = self.checkpoints.gpus.free(&unseen.id).unwrap_or(0);
            freed = freed.max(now.saturating_sub(unseen.free));
            freed >= unseen.charge
        });
        subject.set_resident(&unseen.id, freed.min(unseen.most));
    }
}

impl Subject {
    fn refused(&self, error: &Unmoved) -> Failure {
        Failure::new(format_args!("{}: {error}", self.name()))
    }

    /// Changes the process's figures in its ledgers, if the process is still there.
    fn in_ledgers(
        &self,
        change: impl Fn(&Ledger, &Identity) -> Result<(), Unmoved>,
    ) -> Result<(), Failure> {
        for ledger in &self.ledgers {
            match change(ledger, self.identity()) {
                Ok(()) | Err(Unmoved::Gone) => {}
                Err(error) => return Err(self.refused(&error)),
            }
        }
        Ok(())
    }
}

/// The request for the room of a process that is resumed.
struct Resuming<'a> {
    gpus: &'a nvml::Driver,
    stop: &'a Stop,
    subject: &'a Subject,
    until: Instant,
}

impl Pressure for Resuming<'_> {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        self.gpus
    }

    fn is_needless(&self) -> bool {
        self.stop.is_asked() || self.subject.is_gone() || Instant::now() >= self.until
    }

    fn function(&self) -> &str {
        "gpulimit resume"
    }
}

impl World for Machine<'_> {
    type Process = usize;
    type Error = Failure;

    fn state(&self, process: usize) -> Result<State, Failure> {
        let subject = &self.subjects[process];
        if subject.is_gone() {
            return Ok(State::Gone);
        }
        self.ready(process)?;
        match self.checkpoints.state(subject.target.pid) {
            Ok(state) => Ok(state),
            Err(status) if self.is_ending(process, status) => Ok(State::Gone),
            // The process has not started CUDA, although its slot may say that a command is at
            // work on it.
            Err(Status::NOT_INITIALIZED) if subject.suspended() == 0 => Ok(State::Running),
            Err(status) => Err(Failure::new(format_args!(
                "cannot find out the state of {name}: the driver answers {status}",
                name = subject.name()
            ))),
        }
    }

    fn hold_back(&self, process: usize) -> Result<u64, Failure> {
        self.close_gate(process).inspect_err(|_| {
            // The driver was not asked, and may not answer: the process may be stopped. No charge
            // was moved.
            self.admit(process);
            self.set_errand(process, Errand::None);
        })
    }

    fn is_held_back(&self, process: usize, mark: u64) -> Result<bool, Failure> {
        let subject = &self.subjects[process];
        let (ledger, identity) = (subject.ledger(), subject.identity());
        let is_closed = || ledger.is_held_back(identity, mark);
        let is_quiet = || !is_closed() || ledger.calls_under_way(identity, Calls::Short) == 0;
        let waited = subject.is_gone() || self.wait_for(Some(Instant::now() + REST), is_quiet);
        if subject.is_gone() || waited && is_closed() {
            return Ok(true);
        }
        match self.left().is_zero() {
            true => Err(Failure::new(format_args!(
                "calls of CUDA of {name} begin all the time: try again later, or with a longer \
                 --timeout",
                name = subject.name()
            ))),
            false => Ok(false),
        }
    }

    fn lock(&self, process: usize) -> Result<(), Failure> {
        let left = self.left();
        let locked = self.drive(process, "lock", |pid| {
            match self.checkpoints.lock(pid, left) {
                // Reported below, in other words.
                Err(Status::NOT_READY) => Ok(()),
                other => other,
            }
        });
        locked?;
        match self.state(process)? {
            State::Running => Err(self.subjects[process].fails(format_args!(
                "has work on a GPU under way that did not end within {}: try again later, or with \
                 a longer --timeout",
                rough_span(self.timeout.unwrap_or(left))
            ))),
            State::Gone => {
                self.unlock_next(process);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn admit(&self, process: usize) {
        let subject = &self.subjects[process];
        if !self.belongs_to_another(process) {
            subject.ledger().open_gate(subject.identity());
            self.unlock_next(process);
        }
    }

    fn checkpoint(&self, process: usize) -> Result<(), Failure> {
        let subject = &self.subjects[process];
        if subject.is_gone() {
            return Ok(());
        }
        let unseen = self.note_resident(subject);
        // NVML lists a former program for a while. Without figures, nobody could resume it.
        if subject.bytes(None) == 0 {
            return Ok(());
        }
        self.drive(process, "suspend", |pid| self.checkpoints.checkpoint(pid))?;
        for each in &unseen {
            self.note_freed(subject, each);
        }
        Ok(())
    }

    fn restore(&self, process: usize) -> Result<Result<(), Failure>, Failure> {
        let subject = &self.subjects[process];
        // The room on the GPU is not held any more, so this is no time to wait.
        if !subject.is_gone() {
            subject.check_runs()?;
        }
        // If this process dies, a thread of the process unlocks it.
        subject.ledger().note_lock(subject.identity(), true);
        Ok(self.ask(process, "resume", |pid| self.checkpoints.restore(pid)))
    }

    fn unlock(&self, process: usize) -> Result<(), Failure> {
        self.drive(process, "unlock", |pid| self.checkpoints.unlock(pid))
    }

    fn ready(&self, process: usize) -> Result<(), Failure> {
        let subject = &self.subjects[process];
        let mut runs = Ok(());
        let patience = match self.lost_patience.get() {
            true => Duration::ZERO,
            false => STOPPED,
        };
        self.wait_for(Some(Instant::now() + patience), || {
            runs = if subject.is_gone() {
                Ok(())
            } else {
                subject.check_runs()
            };
            runs.is_ok()
        });
        self.lost_patience
            .set(self.lost_patience.get() || runs.is_err());
        runs
    }

    fn check(&self, process: usize) -> Result<(), Failure> {
        let subject = &self.subjects[process];
        let obstacle = match subject.ledger().obstacles_of(subject.identity()) {
            Some(word) => Obstacle::texts(word).next(),
            None => Some("is not in the ledger of its group"),
        };
        if let Some(text) = obstacle.filter(|_| !subject.is_gone()) {
            return Err(subject.fails(text));
        }
        // Another command may have announced processes after this one has looked.
        match bound::passed(&[subject])?.pop() {
            Some(reason) if subject.errand().0 == Errand::Suspend => Err(Failure::new(reason)),
            _ => Ok(()),
        }
    }

    fn await_absence(&self, process: usize) -> Result<(), Failure> {
        let subject = &self.subjects[process];
        let is_listed = || self.checkpoints.gpus.lists(subject.target.pid) != Some(false);
        let is_absent = || subject.is_gone() || subject.bytes(None) == 0 || !is_listed();
        let until = Instant::now() + PATIENCE;
        match self.wait_for(Some(until), is_absent) {
            true => Ok(()),
            false => self.go_on().and(Err(Failure::new(format_args!(
                "NVML still lists {name}, although the driver has moved its memory",
                name = subject.name()
            )))),
        }
    }

    fn errand(&self, process: usize) -> Errand {
        self.subjects[process].errand().0
    }

    fn set_errand(&self, process: usize, errand: Errand) {
        if !self.belongs_to_another(process) {
            self.subjects[process].set_errand(errand, false);
        }
    }

    fn move_out(&self, process: usize) -> Result<(), Failure> {
        let subject = &self.subjects[process];
        subject.in_ledgers(|ledger, identity| ledger.move_out(identity).map(drop))?;
        // A lock that the driver reports from now on is that of another tool.
        subject.ledger().note_lock(subject.identity(), false);
        Ok(())
    }

    fn take_back(&self, process: usize) -> Result<(), Failure> {
        let take_back = |ledger: &Ledger, identity: &_| ledger.take_back(identity, &|| true);
        self.subjects[process].in_ledgers(take_back)
    }

    fn forget(&self, process: usize) {
        let subject = &self.subjects[process];
        if self.belongs_to_another(process) {
            return;
        }
        for (id, _, usage) in subject.devices() {
            // After exec, the figures are in another slot than those of the subject.
            if usage.resident != 0 || subject.is_gone() {
                subject.set_resident(&id, 0);
            }
        }
    }

    fn charge(&mut self, set: &[usize]) -> Result<(), Failure> {
        self.set = set.to_vec();
        loop {
            self.check_fits()?;
            let Err((failure, holds_room)) = self.charge_wanted() else {
                return Ok(());
            };
            self.go_on()?;
            if !holds_room || self.left().is_zero() {
                return Err(failure);
            }
            // Another command may need this room, and have the room that is missing here.
            self.rooms.iter_mut().for_each(|room| *room = None);
            thread::sleep(PAUSE * (1 + std::process::id() % 16));
        }
    }

    fn hold(&mut self, set: &[usize]) -> Result<(), Failure> {
        for (id, coming) in self.coming(set.iter().copied()) {
            let gpu = groups::label(id, Some(&self.checkpoints.gpus));
            let (mut placeholder, mut tries) = (Ok(None), 0);
            let mut fits = Ok(());
            let has_room = || {
                let memory = self.checkpoints.gpus.memory_of(&id);
                let (free, used) = memory.map_or((0, u64::MAX), |now| (now.free, now.used));
                let mut held = coming.charged;
                let left = free.saturating_sub(coming.bytes);
                if left < coming.keep_free {
                    tries = 0;
                    return false;
                }
                if free < coming.bytes {
                    // A context takes more than the margin, so no program uses the GPU. There is
                    // room for one process, because it was there before. Several processes may
                    // have been there one after the other.
                    fits = self.check_gpu(id, &coming);
                    if fits.is_err() || used > MARGIN {
                        tries = 0;
                        return fits.is_err();
                    }
                    held = held.min(free);
                }
                // Without a placeholder, another program may take the room. The restore would
                // fail, and lose the process.
                if held > 0 {
                    placeholder = self.checkpoints.hold(&id, held).map(Some);
                }
                // Another program may have been faster. If it never was, this process may not have
                // the address space (`ulimit -v`).
                let is_full = matches!(placeholder, Err(Status::OUT_OF_MEMORY));
                tries = if is_full { tries + 1 } else { 0 };
                !is_full || tries == MOST_TRIES
            };
            let has_room = self.wait_for(self.until, has_room);
            fits?;
            if !has_room {
                self.go_on()?;
                let free = gib(self.checkpoints.gpus.free(&id).unwrap_or(0));
                return Err(Failure::new(format_args!(
                    "GPU {gpu} has {less}{free} free, and {coming} are needed{kept}: other \
                     programs, which `gpulimit top` and `nvidia-smi` show, use the rest; all \
                     processes stay suspended",
                    less = free.less_than(coming.bytes),
                    coming = gib(coming.bytes),
                    kept = match coming.keep_free {
                        0 => String::new(),
                        keep => format!(", with {} left free (keep_free)", gib(keep)),
                    },
                )));
            }
            let placeholder = placeholder.map_err(|status| {
                let why = match status {
                    Status::OUT_OF_MEMORY => {
                        "the driver refuses it, although the GPU has it free: \
                                              this command may have too little address space \
                                              (`ulimit -v`)"
                            .to_owned()
                    }
                    status => format!("the driver answers {status}"),
                };
                Failure::new(format_args!(
                    "cannot hold {bytes} on GPU {gpu}: {why}; all processes stay suspended",
                    bytes = gib(coming.charged),
                ))
            })?;
            self.held
                .extend(placeholder.map(|placeholder| (id, placeholder)));
        }
        Ok(())
    }

    fn hand_over(&mut self, process: usize) -> Result<(), Failure> {
        let subject = &self.subjects[process];
        let Some(member) = &self.rooms[process] else {
            return Ok(());
        };
        for (id, capacity, usage) in subject.devices() {
            if usage.suspended == 0 {
                continue;
            }
            let device = member.device(id, capacity)?;
            let until = Instant::now() + PATIENCE;
            loop {
                match device.hand_over(usage.suspended, subject.identity()) {
                    Ok(()) | Err(Unmoved::Gone) => break,
                    // Other requests are undecided for a moment.
                    Err(Unmoved::Contended) if Instant::now() < until => thread::sleep(PAUSE),
                    Err(error) => return Err(subject.refused(&error)),
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, process: usize) {
        // The processes behind this one in the set have not got their charges yet.
        let later = self.set.iter().copied().filter(|other| *other > process);
        let later = self.coming(later);
        self.held.retain(|id, placeholder| {
            let rest = later.get(id).map_or(0, |coming| coming.charged);
            placeholder.shrink(rest);
            rest > 0
        });
    }

    fn give_back(&mut self) {
        self.held.clear();
        self.set.clear();
        // Dropping a membership uncharges what is left of the room.
        self.rooms.iter_mut().for_each(|room| *room = None);
    }

    fn go_on(&self) -> Result<(), Failure> {
        match self.stop.is_asked() {
            true => Err(Failure::interrupted(
                "interrupted: the processes are as they were before",
            )),
            false => Ok(()),
        }
    }

    fn turn_back(&mut self) {
        self.stop = Stop::never();
        self.until = Some(Instant::now() + PATIENCE);
    }

    fn report_lost(&self, process: usize, why: Failure) {
        report_lost(&self.subjects[process], &why.to_string());
    }
}

/// Tells of a process that the driver cannot bring back, on standard error and by an event.
pub fn report_lost(subject: &Subject, rest: &str) {
    output::note(&format!(
        "{name} is lost, its calls of CUDA never return: {rest}",
        name = subject.name(),
    ));
    record(subject, EventKind::Lost, &subject.moved_by_gpu());
}

/// Records an event about a process: that `moved` bytes of it were moved, by GPU.
pub fn record(subject: &Subject, kind: EventKind, moved: &[(DeviceIndex, u64)]) {
    for (device, bytes) in moved {
        let (ledger, process) = (subject.ledger(), *subject.identity());
        subject
            .group
            .record_suspension(ledger, kind, process, Some(*device), *bytes);
    }
}
