//! An event as it is printed.

use super::super::accounts;
use super::super::clock::Moment;
use super::super::groups;
use super::super::nvml::Driver;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use gpulimit_ledger::{Cause, Event, EventKind, Holding, TrailEvent};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The names of users, each looked up once.
#[derive(Default)]
pub struct Names(RefCell<BTreeMap<u32, String>>);

impl Names {
    fn of(&self, uid: u32) -> String {
        let mut known = self.0.borrow_mut();
        let name = known.entry(uid).or_insert_with(|| accounts::user_name(uid));
        name.clone()
    }
}

/// An event, with the printed names of its group and GPU.
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
    fn time(&self) -> Moment {
        Moment {
            unix_ms: self.event.time_us / 1_000,
        }
    }

    fn holders(&self) -> &[Holding] {
        self.trail.as_ref().map_or(&[], |trail| &trail.holders)
    }

    fn function(&self) -> Option<&str> {
        let trail = self.trail.as_ref();
        let function = trail.map(|trail| &*trail.function);
        function.filter(|function| !function.is_empty())
    }

    fn cause(&self) -> Option<Cause> {
        self.trail.as_ref().and_then(|trail| trail.cause)
    }

    fn by(&self) -> Option<&Holding> {
        self.trail.as_ref().and_then(|trail| trail.by.as_ref())
    }

    pub fn json(&self, driver: Option<&Driver>, names: &Names) -> Value {
        let what = &self.event.what;
        let holding = |Holding { process, bytes }: &Holding| {
            json!({
                "pid": process.pid,
                "uid": process.uid,
                "user": names.of(process.uid),
                "command": process.command().to_string(),
                "bytes": bytes,
            })
        };
        json!({
            "time": self.time().to_string(),
            "group": self.group,
            "root": self.root.to_string_lossy(),
            "number": self.event.number,
            "event": what.kind.name(),
            "gpu": self.device.map(|id| json!({
                "uuid": id.to_string(),
                "index": groups::index(id, driver),
            })),
            "pid": what.process.pid,
            "uid": what.process.uid,
            "user": names.of(what.process.uid),
            "command": what.process.command().to_string(),
            "bytes": known(what.bytes),
            "charged": what.charged,
            "max": known(what.max),
            "function": self.function(),
            "holders": self.holders().iter().map(holding).collect::<Vec<_>>(),
            "cause": self.cause().map(Cause::name),
            "by": self.by().map(holding),
        })
    }

    pub fn text(&self, driver: Option<&Driver>) -> String {
        let what = &self.event.what;
        let who = format!("pid {} ({})", what.process.pid, what.process.command());
        let bytes = gib(what.bytes);
        let state = match known(what.max) {
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
            EventKind::Kill => format!("{who} was killed or told to end while it used {bytes}"),
            EventKind::Limits => format!("changed by {who}"),
            EventKind::Oom => {
                format!(
                    "{who} asked for {bytes}, and processes are killed to make room; {state} \
                     charged"
                )
            }
        };
        let device = match self.device {
            Some(id) => format!("GPU {}: ", groups::label(id, driver)),
            None => String::new(),
        };
        format!(
            "{time}  {kind:<7}  {group}  {device}{said}{details}",
            time = self.time(),
            kind = what.kind.name(),
            group = self.title,
            details = self.details()
        )
    }

    /// Returns what the trail adds to the text.
    fn details(&self) -> String {
        let mut text = String::new();
        if let Some(by) = self.by() {
            let who = format!("pid {} ({})", by.process.pid, by.process.command());
            text += &match self.cause() {
                Some(Cause::Oom) => format!("; to make room for {} of {who}", gib(by.bytes)),
                Some(Cause::Command) | None => format!("; by {who}"),
            };
        }
        if let Some(function) = self.function() {
            text += &format!("; by {function}");
        }
        let holder = |Holding { process, bytes }: &Holding| {
            format!(
                "pid {} ({}) {}",
                process.pid,
                process.command(),
                gib(*bytes)
            )
        };
        let holders: Vec<String> = self.holders().iter().map(holder).collect();
        match holders.is_empty() {
            true => text,
            false => format!("{text}; most used by {}", holders.join(", ")),
        }
    }
}

/// Returns an event's bytes; `None` for the largest number, which means "no limit" or "unknown".
fn known(bytes: u64) -> Option<u64> {
    (bytes != u64::MAX).then_some(bytes)
}
