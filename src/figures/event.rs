//! An event as it is printed.

pub mod watch;

use super::fields::{self, fields, left, right};
use crate::groups::{self, sizes::of_max};
use crate::machine::{accounts, nvml::Driver};
use crate::words::{clock::Moment, text};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::gib;
use gpulimit_group::Refusal;
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
        let unix_ms = self.event.time_us / 1_000;
        Moment { unix_ms }
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
        // A driver that finds the GPU full is shown with processes outside of the group.
        if self.trail.is_none() || matches!(self.cause(), Some(Cause::Outside | Cause::KeepFree)) {
            return self.event.what.charged;
        }
        let key = |process: &Identity| (process.pid, process.uid);
        let is_own = |one: &&Holding| key(&one.process) == key(&self.event.what.process);
        let own = self.holders().iter().find(is_own);
        let known = own.or(self.holders().get(HOLDERS - 1));
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
    pub fn kept(&self, by_keep_free: bool) -> Option<u64> {
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
        let mut json = fields::json(FIELDS, self, driver);
        if !with_processes {
            for key in ["pid", "uid", "user", "command", "by"] {
                json[key] = Value::Null;
            }
            json["holders"] = Value::Array(Vec::new());
        }
        json
    }

    pub fn text(&self, driver: Option<&Driver>) -> String {
        let what = &self.event.what;
        let who = who(&what.process);
        let bytes = gib(what.bytes);
        let state = of_max(what.charged, self.max());
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
            EventKind::Outside => match known(what.bytes) {
                Some(_) => format!("{who} is outside of all groups, with {bytes}"),
                None => format!("{who} is outside of all groups"),
            },
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
            group = Some(&*self.title)
                .filter(|title| !title.is_empty())
                .unwrap_or("-"),
            details = self.details()
        )
    }

    /// Returns why there was no room for a refused request.
    pub fn reason(&self) -> Option<String> {
        let (trail, what) = (self.refusal()?, &self.event.what);
        let refusal = Refusal {
            group: &self.title,
            bytes: trail.takes.max(what.bytes),
            max: what.max,
            kept: trail.kept,
            left: trail.left,
            cause: trail.cause.unwrap_or_default(),
            ..Refusal::default()
        };
        let mut text = match refusal.bytes > what.bytes && refusal.left >= what.bytes {
            true => format!("that takes {}: {refusal}", gib(refusal.bytes)),
            false => refusal.to_string(),
        };
        text += &match refusal.cause {
            Cause::Standstill => "; its programs wait for each other".to_owned(),
            Cause::Signal => "; a signal ended its wait".to_owned(),
            Cause::Context => "; a CUDA context needs more than the limit".to_owned(),
            Cause::Outside => {
                let outside = gib(trail.outside);
                format!(" on the GPU; {outside} outside of the program's groups")
            }
            _ => return Some(text),
        };
        Some(text)
    }

    /// Returns what the trail adds to the text.
    fn details(&self) -> String {
        let mut text = String::new();
        if let Some(until) = self.until() {
            text += &format!("; {} times until {}", self.count(), until.local());
        }
        if let Some(reason) = self.reason() {
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

fields! { pub FIELDS(it: Line):
    "time": Time => it.time().to_string();
    /// The full name of the group; null for `outside`.
    "group": Text => Some(&*it.group).filter(|group| !group.is_empty());
    /// The group root.
    "root": Text => text::shown_path(&it.root);
    /// The number of the event in its group.
    "number": Count => it.event.number;
    /// The kind: `gpulimit events --help` lists all.
    "event": Text => it.event.what.kind.name();
    /// The number of equal events that the line stands for; mostly 1.
    "count": Count => it.count();
    /// The time of the last of these; null for one.
    "until": Time => it.until().map(|time| time.to_string());
    "gpu": Device => Cell::Gpu(it.device);
    "pid": Count => it.event.what.process.pid;
    "uid": Count => it.event.what.process.uid;
    "user": Text => accounts::user_name(it.event.what.process.uid);
    "command": Text => it.event.what.process.command().to_string();
    /// The memory that the event is about.
    "bytes": Bytes => known(it.event.what.bytes);
    /// What a refused request would have charged: a pool takes more than its program asks for. Only
    /// of `refusal`.
    "takes": Bytes => it.refusal().map(|refusal| refusal.takes.max(it.event.what.bytes));
    /// The memory that was charged to the group.
    "charged": Bytes => it.event.what.charged;
    /// The limit of the group at this time.
    "max": Bytes => it.max();
    /// The function of the driver that asked for memory.
    "function": Text => it.function();
    /// The largest users of memory.
    "holders": Many("holder") => fields::list(HOLDER, it.holders());
    /// How many processes were asked for memory; only of `asked`.
    "processes": Count => it.counted(EventKind::Asked);
    /// How long it took until memory was given; only of `given`.
    "took_ms": Ms => it.counted(EventKind::Given);
    /// The cause of a kill or of a refusal ([concepts.md](concepts.md#events)).
    "cause": Text => it.cause().map(Cause::name);
    /// What was left for a refused request: of the limit, or of the GPU; only of `refusal`.
    "left": Bytes => it.refusal().and_then(|refusal| known(refusal.left));
    /// The part of the limit that was kept for other groups; only of `refusal`, but not of one
    /// with the cause `keep_free`.
    "kept": Bytes => it.kept(false);
    /// The group of the process, which may be below the group of the event.
    "home": Text => it.home();
    /// What was used on the GPU outside of the process's groups; only of `refusal`.
    "outside": Bytes => it.refusal().map(|refusal| refusal.outside);
    /// What `keep_free` keeps; only of `refusal` with this cause.
    "keep_free": Bytes => it.kept(true);
    /// The process that requested the kill, or suspended or resumed the process.
    "by": One("holder") => it.by().map(|by| fields::json(HOLDER, by, None));
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
