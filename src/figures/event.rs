//! An event as it is printed.

pub mod watch;

use super::fields::{self, fields, left, right};
use crate::groups;
use crate::machine::{accounts, nvml::Driver};
use crate::words::{clock::Moment, text};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::gib;
use gpulimit_ledger::{Cause, Event, EventKind, HOLDERS, Holding, TrailEvent};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// An event, with the printed names of its group and GPU.
#[derive(Clone)]
pub struct Line {
    pub group: String,
    pub root: PathBuf,
    pub title: String,
    pub device: Option<DeviceId>,
    pub event: Event,
    /// What the trail stores of the event; `None` for an event that is only in its group's ring.
    pub trail: Option<TrailEvent>,
}

impl Line {
    pub fn time(&self) -> Moment {
        Moment {
            unix_ms: self.event.time_us / 1_000,
        }
    }

    /// Returns the group's limit at the time of the event; `None` for no limit or an unknown one.
    pub fn max(&self) -> Option<u64> {
        known(self.event.what.max)
    }

    /// Returns the time of the last event that the line stands for, in microseconds since 1970.
    pub fn last_us(&self) -> u64 {
        let trail = self.trail.as_ref();
        trail.map_or(self.event.time_us, |trail| trail.last_us)
    }

    /// Returns the number of events that the line stands for.
    pub fn count(&self) -> u64 {
        1 + self.trail.as_ref().map_or(0, |trail| trail.repeats)
    }

    /// Returns the time of the last event if the line stands for several.
    fn until(&self) -> Option<Moment> {
        let unix_ms = self.last_us() / 1_000;
        (self.count() > 1).then_some(Moment { unix_ms })
    }

    /// Returns whether this line, which stands for several events, stands for the other line's. The
    /// other line is of a ring.
    pub fn includes(&self, other: &Self) -> bool {
        let (own, others) = (&self.event.what, &other.event.what);
        other.trail.is_none()
            && (self.event.time_us..=self.last_us()).contains(&other.event.time_us)
            && (own.kind, own.process.pid, own.process.pid_ns)
                == (others.kind, others.process.pid, others.process.pid_ns)
            && (&self.root, &self.group, self.device) == (&other.root, &other.group, other.device)
    }

    /// Makes the line stand for its first event alone.
    pub fn forget_repeats(&mut self) {
        if let Some(trail) = &mut self.trail {
            trail.repeats = 0;
            trail.last_us = self.event.time_us;
        }
    }

    pub fn holders(&self) -> &[Holding] {
        self.trail.as_ref().map_or(&[], |trail| &trail.holders)
    }

    /// Returns what the process of the event held at most. If it was not one of the largest
    /// holders, it held no more than the smallest of these; if they are unknown, no more than its
    /// group.
    pub fn held(&self) -> u64 {
        let process = &self.event.what.process;
        let holders = self.holders();
        // A driver that finds the GPU full is shown with processes outside of the group.
        if self.trail.is_none() || matches!(self.cause(), Some(Cause::Outside | Cause::KeepFree)) {
            return self.event.what.charged;
        }
        let is_own =
            |one: &&Holding| one.process.pid == process.pid && one.process.uid == process.uid;
        let own = holders.iter().find(is_own);
        let known = own.or(holders.get(HOLDERS - 1));
        known.map_or(0, |one| one.bytes.saturating_add(one.reserve))
    }

    /// Returns the name of the group of the process, as far as it is known.
    pub fn home(&self) -> String {
        let below = self.trail.as_ref().map_or("", |trail| &*trail.home);
        match below.is_empty() || below.starts_with(TrailEvent::CUT) {
            true => self.group.clone(),
            false => format!("{}/{below}", self.group),
        }
    }

    pub fn function(&self) -> Option<&str> {
        let trail = self.trail.as_ref();
        let function = trail.map(|trail| &*trail.function);
        function.filter(|function| !function.is_empty())
    }

    pub fn cause(&self) -> Option<Cause> {
        self.trail.as_ref().and_then(|trail| trail.cause)
    }

    /// Returns the trail's record of a refusal.
    pub fn refusal(&self) -> Option<&TrailEvent> {
        let trail = self.trail.as_ref();
        trail.filter(|_| self.event.what.kind == EventKind::Refusal)
    }

    /// Returns what was kept from a refused request: by `keep_free`, or for other groups.
    fn kept(&self, by_keep_free: bool) -> Option<u64> {
        let refusal = self.refusal()?;
        (by_keep_free == (refusal.cause == Some(Cause::KeepFree))).then_some(refusal.kept)
    }

    fn by(&self) -> Option<&Holding> {
        self.trail.as_ref().and_then(|trail| trail.by.as_ref())
    }

    /// Returns the number that events of this kind alone have.
    fn counted(&self, kind: EventKind) -> Option<u64> {
        (self.event.what.kind == kind).then_some(self.event.count)
    }

    /// Returns the event as JSON. Unless `with_processes`, all that tells of processes and their
    /// users is null.
    pub fn json(&self, driver: Option<&Driver>, with_processes: bool) -> Value {
        let line = self;
        let shown = Shown {
            line,
            with_processes,
        };
        fields::json(Shown::FIELDS, &shown, driver)
    }

    pub fn text(&self, driver: Option<&Driver>) -> String {
        let what = &self.event.what;
        let who = who(&what.process);
        let bytes = gib(what.bytes);
        let state = match self.max() {
            Some(max) => format!("{} of {}", gib(what.charged).in_unit_of(max), gib(max)),
            None => gib(what.charged).to_string(),
        };
        let said = match what.kind {
            EventKind::Refusal => format!("{who} was refused {bytes}, with {state} charged"),
            EventKind::Wait => format!("{who} waits for {bytes}, with {state} charged"),
            EventKind::Granted => format!("{who} got the {bytes} that it waited for"),
            EventKind::High => {
                format!(
                    "{who} exceeds the group's `high` by asking for {bytes}, with {state} charged"
                )
            }
            EventKind::Reap => {
                format!("{who} ended, and the {bytes} that it held were given back to the group")
            }
            EventKind::Kill => format!("{who} was killed or told to end while it held {bytes}"),
            EventKind::Limits => format!("changed by {who}"),
            EventKind::Oom => {
                format!(
                    "{who} asked for {bytes}, and processes are killed to make room; {state} \
                     charged"
                )
            }
            EventKind::Asked => {
                let processes = match self.event.count {
                    1 => "1 process was".to_owned(),
                    count => format!("{count} processes were"),
                };
                format!("{processes} asked to give back {bytes} for {who}; {state} charged")
            }
            EventKind::Given => {
                let seconds = Duration::from_millis(self.event.count).as_secs_f64();
                format!("{bytes} came back in {seconds:.1} s after {who} had asked for memory")
            }
            EventKind::Suspend => format!("{bytes} of {who} suspended"),
            EventKind::Resume => format!("{bytes} of {who} resumed"),
            EventKind::Recovered => format!("{who} got {bytes} after all"),
            EventKind::Lost => {
                format!("{who} is lost: the driver could not bring its {bytes} back")
            }
        };
        let device = match self.device {
            Some(id) => format!("GPU {}: ", groups::label(id, driver)),
            None => String::new(),
        };
        format!(
            "{time}  {kind:<7}  {group}  {device}{said}{details}",
            time = self.time().local(),
            kind = what.kind.name(),
            group = self.title,
            details = self.details()
        )
    }

    /// Returns whether a limit of the group was the cause of a refusal, as far as it is known.
    pub fn is_of_group(&self) -> bool {
        use Cause::{Capacity, Host, KeepFree, Outside};
        !matches!(self.cause(), Some(Capacity | Host | KeepFree | Outside))
    }

    /// Returns why the request of a refusal was refused, besides the figures of the limit.
    pub fn reasons(&self) -> Vec<String> {
        let Some(refusal) = self.refusal() else {
            return Vec::new();
        };
        let (left, outside, keep) = (refusal.left, refusal.outside, refusal.kept);
        let (left, outside, keep) = (gib(left), gib(outside), gib(keep));
        let cause = match refusal.cause {
            Some(Cause::Standstill) => "its programs wait for each other".to_owned(),
            Some(Cause::Context) => "a CUDA context needs more than the limit".to_owned(),
            Some(Cause::Capacity) => format!("larger than the GPU, which has {left}"),
            Some(Cause::KeepFree) => format!("keep_free keeps {keep} free: {left} was free"),
            Some(Cause::Outside) => format!(
                "by the driver: the GPU had {left} left, and {outside} was used outside of the \
                 program's groups"
            ),
            Some(Cause::Host) => "by the driver, with room in the group and on the GPU: the host \
                                  had no memory for it"
                .to_owned(),
            _ => String::new(),
        };
        let kept = self.kept(false).filter(|kept| *kept > 0);
        let kept = kept.map(|kept| format!("{} was kept for other groups", gib(kept)));
        let cause = Some(cause).filter(|cause| !cause.is_empty());
        cause.into_iter().chain(kept).collect()
    }

    /// Returns what the trail adds to the text.
    fn details(&self) -> String {
        let mut text = String::new();
        if let Some(until) = self.until() {
            text += &format!("; {} times until {}", self.count(), until.local());
        }
        for reason in self.reasons() {
            text += &format!("; {reason}");
        }
        if let Some(by) = self.by() {
            let who = who(&by.process);
            text += &match (self.cause(), self.event.what.kind) {
                (Some(Cause::Oom), _) => format!("; to make room for {} of {who}", gib(by.bytes)),
                (_, EventKind::Suspend | EventKind::Resume) => format!(" by {who}"),
                (_, EventKind::Lost) => format!("; resumed by {who}"),
                _ => format!("; by {who}"),
            };
        }
        if let Some(function) = self.function() {
            text += &format!("; by {function}");
        }
        let holder = |held: &Holding| format!("{} {}", who(&held.process), gib(held.bytes));
        let holders: Vec<String> = self.holders().iter().map(holder).collect();
        match holders.is_empty() {
            true => text,
            false => format!("{text}; most used by {}", holders.join(", ")),
        }
    }
}

/// Formats a process: `pid 4711 (python)`.
pub fn who(process: &Identity) -> String {
    format!("pid {} ({})", process.pid, process.command())
}

/// Returns an event's bytes; `None` for the largest number, which means "no limit" or "unknown".
fn known(bytes: u64) -> Option<u64> {
    (bytes != u64::MAX).then_some(bytes)
}

/// A line, perhaps without what tells of processes.
pub struct Shown<'a> {
    line: &'a Line,
    with_processes: bool,
}

impl<'a> Shown<'a> {
    fields! { pub FIELDS<'a>(it: Shown<'a>):
        "time": Time => it.line.time().to_string();
        /// The full name of the group.
        "group": Text => &*it.line.group;
        /// The group root.
        "root": Text => text::shown_path(&it.line.root);
        /// The number of the event in its group.
        "number": Count => it.line.event.number;
        /// The kind: `gpulimit events --help` lists all.
        "event": Text => it.line.event.what.kind.name();
        /// The number of equal events that the line stands for; mostly 1.
        "count": Count => it.line.count();
        /// The time of the last of these; null for one.
        "until": Time => it.line.until().map(|time| time.to_string());
        "gpu": Device => Cell::Gpu(it.line.device);
        "pid": Count => it.who(|process| process.pid);
        "uid": Count => it.who(|process| process.uid);
        "user": Text => it.who(|process| accounts::user_name(process.uid));
        "command": Text => it.who(|process| process.command().to_string());
        /// The memory that the event is about.
        "bytes": Bytes => known(it.line.event.what.bytes);
        /// The memory that was charged to the group.
        "charged": Bytes => it.line.event.what.charged;
        /// The limit of the group at this time.
        "max": Bytes => it.line.max();
        /// The function of the driver that asked for memory.
        "function": Text => it.line.function();
        /// The largest users of memory.
        "holders": Many("holder") => fields::list(HOLDER, it.holders());
        /// How many processes were asked for memory; only of `asked`.
        "processes": Count => it.line.counted(EventKind::Asked);
        /// How long it took until memory was given; only of `given`.
        "took_ms": Ms => it.line.counted(EventKind::Given);
        /// The cause of a kill or of a refusal ([concepts.md](concepts.md#events)).
        "cause": Text => it.line.cause().map(Cause::name);
        /// What was left for a refused request: of the limit, or of the GPU; only of `refusal`.
        "left": Bytes => it.line.refusal().and_then(|refusal| known(refusal.left));
        /// The part of the limit that was kept for other groups; only of `refusal`, but not of one
        /// with the cause `keep_free`.
        "kept": Bytes => it.line.kept(false);
        /// The group of the process, which may be below the group of the event.
        "home": Text => it.line.home();
        /// What was used on the GPU outside of the process's groups; only of `refusal`.
        "outside": Bytes => it.line.refusal().map(|refusal| refusal.outside);
        /// What `keep_free` keeps; only of `refusal` with this cause.
        "keep_free": Bytes => it.line.kept(true);
        /// The process that requested the kill, or suspended or resumed the process.
        "by": One("holder") => it.by();
    }

    fn who<T>(&self, of: impl Fn(&Identity) -> T) -> Option<T> {
        self.with_processes
            .then(|| of(&self.line.event.what.process))
    }

    fn holders(&self) -> &[Holding] {
        match self.with_processes {
            true => self.line.holders(),
            false => &[],
        }
    }

    fn by(&self) -> Option<Value> {
        let by = self.line.by().filter(|_| self.with_processes)?;
        Some(fields::json(HOLDER, by, None))
    }
}

fields! { pub HOLDER(it: Holding):
    "pid": Count, right("PID") => it.process.pid;
    "uid": Count => it.process.uid;
    "user": Text, left("USER") => accounts::user_name(it.process.uid);
    "command": Text, left("COMMAND").last() => it.process.command().to_string();
    "bytes": Bytes, right("IN USE") => it.bytes;
    /// Charged and not in use.
    "reserve": Bytes, right("RESERVE").sparse() => it.reserve;
    "suspended": Bytes, right("SUSPENDED").sparse() => it.suspended;
    /// Whether the process can be asked for memory that it uses.
    "registered": Flag, left("GIVES BACK").sparse() => Cell::Said(
        it.is_registered.into(),
        it.is_registered.then(|| "yes".into()),
    );
}
