//! `gpulimit events`: prints the events of groups.

use super::accounts;
use super::clock::Moment;
use super::failure::Failure;
use super::groups::{self, Selection, Unreadable};
use super::nvml::Driver;
use super::output::{self, Escaped, Reader};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use gpulimit_group::Group;
use gpulimit_ledger::{Event, EventKind, Ledger};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// Options of `events`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only the events of this group and of the groups below it
    group: Option<String>,

    /// Keep printing new events until interrupted
    #[arg(long, short)]
    follow: bool,

    /// Print JSON, one object per line: sizes are in bytes, and unknown figures are null
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Prints events in the order of their time, in UTC. Each event is recorded in the
group whose limit it concerns; a group keeps its last 95 events.

  refusal  a request was refused
  wait     a request began to wait
  granted  a request that waited was granted
  high     usage went above high
  reap     the memory of a dead process was given back
  kill     a process was killed, or told to end
  oom      processes were killed to make room, as the group's oom setting says
  limits   the limits were changed

Examples:
  gpulimit events
  gpulimit events lab --follow
  gpulimit events --json | jq 'select(.event == \"refusal\").bytes'";

/// How often `--follow` looks for new events.
const INTERVAL: Duration = Duration::from_millis(200);

/// Prints the events.
pub fn events(args: &Args) -> Result<ExitCode, Failure> {
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let mut watch = Watch::default();
    let mut selection = Selection::of(args.group.as_deref())?;
    loop {
        // Note which groups were removed before this round. Drop them after this round, which
        // still prints their last events.
        let gone: Vec<bool> = watch.sources.iter().map(Source::is_gone).collect();
        watch.add(&selection)?;
        let mut lines: Vec<Line> = watch.sources.iter_mut().flat_map(Source::lines).collect();
        lines.sort_by_key(|line| line.event.time_us);
        let print = |line: Line| {
            if args.json {
                format!("{}\n", line.json(driver))
            } else {
                output::fit(&Escaped(&line.text(driver)).to_string(), 2) + "\n"
            }
        };
        let text: String = lines.into_iter().map(print).collect();
        if output::write(&text)? == Reader::Gone || !args.follow {
            return Ok(ExitCode::from(u8::from(watch.broken)));
        }
        let mut gone = gone.into_iter();
        watch.sources.retain(|_| gone.next() != Some(true));
        thread::sleep(INTERVAL);
        match Selection::of(args.group.as_deref()) {
            Ok(now) => selection = now,
            Err(failure) if watch.sources.is_empty() => return Err(failure),
            // The selected group was removed. The next round of this loop prints its last events.
            Err(_) => selection.groups.clear(),
        }
    }
}

/// The groups whose events are printed, with their open ledgers.
#[derive(Default)]
struct Watch {
    sources: Vec<Source>,
    /// The groups that could not be opened. Each is reported only once.
    failed: BTreeSet<PathBuf>,
    broken: bool,
}

impl Watch {
    /// Opens the selected groups that are not open yet.
    fn add(&mut self, selection: &Selection) -> Result<(), Failure> {
        let mut unreadable = Unreadable::default();
        for group in &selection.groups {
            let known = |source: &Source| source.group == *group && !source.is_gone();
            if self.failed.contains(group.path()) || self.sources.iter().any(known) {
                continue;
            }
            match groups::readable(group) {
                Ok(Some(ledger)) => self.sources.push(Source {
                    group: group.clone(),
                    title: selection.title(group),
                    ledger,
                    next: 0,
                    gap: Some(0),
                }),
                Ok(None) if selection.named && selection.groups.first() == Some(group) => {
                    return Err(groups::unreadable(group.ledger_path()));
                }
                Ok(None) => _ = self.failed.insert(group.path().into()),
                // The group was removed before it could be opened.
                Err(_) if !group.limits_path().exists() => {}
                Err(error) => {
                    unreadable.note(&error.to_string());
                    self.failed.insert(group.path().into());
                }
            }
        }
        self.broken |= unreadable.end();
        Ok(())
    }
}

/// A group whose events are printed, with its open ledger.
struct Source {
    group: Group,
    title: String,
    ledger: Ledger,
    /// The number of the next event to print.
    next: u64,
    /// The number of an event that the last call found unfinished: still being written, or its
    /// writer died.
    gap: Option<u64>,
}

impl Source {
    fn is_gone(&self) -> bool {
        self.ledger.is_unlinked()
    }

    /// Returns the events since the last call. An unfinished event gets one more try in the next
    /// call.
    fn lines(&mut self) -> Vec<Line> {
        let mut events = self.ledger.events(self.next);
        let numbered = events.iter().zip(self.next..);
        let whole = numbered
            .take_while(|(event, number)| event.number == *number)
            .count();
        let gap = self.next + whole as u64;
        if whole < events.len() && self.gap != Some(gap) {
            events.truncate(whole);
            self.gap = Some(gap);
        }
        if let Some(last) = events.last() {
            self.next = last.number + 1;
        }
        let device = |event: &Event| {
            let entry = self.ledger.device_entry(event.what.device?)?;
            Some(entry.id)
        };
        let line = |event: Event| Line {
            group: self.group.name().into(),
            root: self.group.root().into(),
            title: self.title.clone(),
            device: device(&event),
            event,
        };
        events.into_iter().map(line).collect()
    }
}

/// An event, with the printed names of its group and GPU.
struct Line {
    group: String,
    root: PathBuf,
    title: String,
    device: Option<DeviceId>,
    event: Event,
}

impl Line {
    fn time(&self) -> Moment {
        Moment {
            unix_ms: self.event.time_us / 1_000,
        }
    }

    fn json(&self, driver: Option<&Driver>) -> Value {
        let what = &self.event.what;
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
            "user": accounts::user_name(what.process.uid),
            "command": what.process.command().to_string(),
            "bytes": known(what.bytes),
            "charged": what.charged,
            "max": known(what.max),
        })
    }

    fn text(&self, driver: Option<&Driver>) -> String {
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
            "{time}  {kind:<7}  {group}  {device}{said}",
            time = self.time(),
            kind = what.kind.name(),
            group = self.title
        )
    }
}

/// Returns an event's bytes; `None` for the largest number, which means "no limit" or "unknown".
fn known(bytes: u64) -> Option<u64> {
    (bytes != u64::MAX).then_some(bytes)
}
