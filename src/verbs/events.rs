//! `gpulimit events`: prints the events of groups.

use crate::figures::event::Line;
use crate::figures::event::watch::{Scope, Watch};
use crate::groups::{self, Purpose, Selection};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output::{self, Escaped, Reader};
use crate::words::{failure::Failure, since};
use gpulimit_ledger::EventKind;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// Options of `events`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only the events of this group and of the groups below it
    group: Option<String>,

    /// Show only events since this time: 2h, yesterday, 14:00, 2026-11-20
    #[arg(long, value_name = "TIME", value_parser = since::option)]
    since: Option<u64>,

    /// Show only events of processes of this user, by name or number
    #[arg(long, value_name = "USER", value_parser = user)]
    user: Option<u32>,

    /// Show only events of these kinds, separated by commas
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    kind: Vec<EventKind>,

    /// Keep printing new events until interrupted
    #[arg(long, short)]
    follow: bool,

    /// Print JSON, one object per line: sizes are in bytes, and unknown figures are null
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Prints events in the order of their time, in UTC. Each event is recorded in the
group whose limit it concerns. A named group keeps its last 4,096 events, also
those of jobs below it that are gone. The events of a job outside all named
groups are kept in the file .trail in the directory of the groups, such as
/run/gpulimit/.trail. If a process repeats a request, its equal events of up to
ten minutes share a line with their number and the figures of the last. With
--follow, a line tells of the new ones of about a second.

  refusal  a request was refused, by the group or by the driver
  recovered  a process got as much as it was refused a second before
  wait     a request began to wait
  granted  a request that waited was granted
  high     usage went above high
  reap     the memory of a dead process was given back
  kill     a process was killed, or told to end
  oom      processes were killed to make room, as the group's oom setting says
  asked    processes were asked to give back memory that they use
  given    what came back of it, when the request was granted or gave up
  suspend  the memory of a process was moved to the host
  resume   the memory of a suspended process was moved back
  lost     the driver could not bring the memory of a suspended process back
  limits   the limits were changed
  outside  a process outside of all groups uses a GPU (only while a `gpulimit
           serve` looks: each round that it reads, for a page or a scrape)

Examples:
  gpulimit events --since 1h
  gpulimit events lab --follow
  gpulimit events --user alice --kind refusal,kill
  gpulimit events --json | jq 'select(.event == \"refusal\").bytes'";

/// How often `--follow` looks for new events.
const INTERVAL: Duration = Duration::from_millis(200);

fn user(text: &str) -> Result<u32, &'static str> {
    accounts::user_id(text).ok_or("there is no such user")
}

fn kind(text: &str) -> Result<EventKind, String> {
    let known = EventKind::ALL.into_iter().find(|(_, name)| *name == text);
    known.map(|(kind, _)| kind).ok_or_else(|| {
        let names = EventKind::ALL.map(|(_, name)| name);
        format!("expected one of {}", names.join(", "))
    })
}

impl Args {
    /// Returns whether the caller asked for an event.
    fn admits(&self, line: &Line) -> bool {
        let what = &line.event.what;
        line.last_us() / 1_000_000 >= self.since.unwrap_or(0)
            && self.user.is_none_or(|uid| what.process.uid == uid)
            && (self.kind.is_empty() || self.kind.contains(&what.kind))
    }
}

/// Prints the events.
pub fn events(args: &Args) -> Result<ExitCode, Failure> {
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let scope = match &args.group {
        Some(name) => Some(Scope::of(groups::meant(name, Purpose::Use)?)),
        None => None,
    };
    let mut watch = Watch::new(scope.clone(), args.follow);
    let select = || Selection::of(args.group.as_deref());
    let (mut selection, mut missing) = match (select(), scope) {
        (Ok(selection), _) => (selection, None),
        (Err(failure), None) => return Err(failure),
        // The group is gone, or has never existed. Its events can be in a trail.
        (Err(failure), Some(scope)) => (Selection::gone(scope.root), Some(failure)),
    };
    loop {
        watch.notes.lines.append(&mut selection.notes);
        let (lines, gone) = watch.round(&selection)?;
        output::notes(&std::mem::take(&mut watch.notes.lines));
        if let Some(failure) = missing.take_if(|_| lines.is_empty() || args.follow) {
            return Err(failure);
        }
        let print = |line: Line| {
            if args.json {
                format!("{}\n", line.json(driver, true))
            } else {
                output::fit(&Escaped(&line.text(driver)).to_string(), 2) + "\n"
            }
        };
        let lines = lines.into_iter().filter(|line| args.admits(line));
        let text: String = lines.map(print).collect();
        if output::write(&text)? == Reader::Gone || !args.follow {
            return Ok(watch.notes.status());
        }
        watch.drop_gone(&gone);
        thread::sleep(INTERVAL);
        match select() {
            Ok(now) => selection = now,
            Err(failure) if !watch.has_groups() => return Err(failure),
            // The selected group was removed. The next round of this loop prints its last events.
            Err(_) => selection.groups.clear(),
        }
    }
}
