//! The report of a span of time, `--since`.

use super::line::{By, Line, Subject, User, columns, waited};
use super::span::{Sample, Samples, Use};
use super::{Args, saved};
use crate::figures::fields::left;
use crate::figures::{Gpu, past};
use crate::groups::{self, Purpose, Selection, View};
use crate::machine::nvml::Driver;
use crate::shown::table::{Table, figure};
use crate::shown::{csv, output};
use crate::words::clock::{self, Moment};
use crate::words::{failure::Failure, since};
use gpulimit_base::units::gib;
use gpulimit_group::is_within;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

/// Shows what groups or users have used since the time.
pub fn report(args: &Args, since: &str) -> Result<ExitCode, Failure> {
    let now = clock::now();
    let time = |text: &str| {
        since::parse(text, &now)
            .map_err(|why| Failure::usage(format_args!("invalid time '{text}': {why}")))
    };
    let since = time(since)? * 1_000;
    let until = match &args.until {
        Some(until) => Some(time(until)? * 1_000),
        None => None,
    };
    if until.is_some_and(|until| until <= since) {
        return Err(Failure::usage("--until is not later than --since"));
    }
    let saved = match &args.from {
        Some(directory) => saved::read(directory, since)?,
        None => Vec::new(),
    };
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let scope = match &args.group {
        Some(name) => Some(groups::meant(name, Purpose::Use)?),
        None => None,
    };
    let selection = match (Selection::of(args.group.as_deref()), &scope) {
        // The group is gone. Its figures can be in a file.
        (Err(_), Some((root, _))) if args.from.is_some() => Selection::gone(root.clone()),
        (selection, _) => selection?,
    };
    let mut span = Span {
        since,
        until: until.unwrap_or_else(|| Moment::from(now.timestamp()).unix_ms),
        by: args.by,
        samples: BTreeMap::new(),
        saves: BTreeMap::new(),
        recorded: BTreeMap::new(),
    };
    let is_asked = |subject: &Subject| {
        scope.as_ref().is_none_or(|(root, name)| {
            subject.root == root.path().to_string_lossy() && is_within(&subject.group, name)
        })
    };
    for (subject, sample) in saved {
        span.saves
            .entry(subject.root.clone())
            .or_default()
            .insert(sample.time);
        if is_asked(&subject) {
            span.add(subject, sample);
        }
    }
    let mut status = ExitCode::SUCCESS;
    if until.is_none() {
        let (views, mut notes) = selection.readable(driver)?;
        notes
            .lines
            .extend(groups::unrecorded_note(&groups::unrecorded(&views)));
        status = output::told(&notes);
        views.iter().for_each(|view| span.add_view(view, driver));
    }
    let uses = span.uses();
    print(args, &selection, &uses, &span, driver)?;
    Ok(status)
}

/// What is known of the use of memory in a span of time.
struct Span {
    /// Begin and end, in milliseconds since 1970.
    since: u64,
    until: u64,
    by: By,
    samples: BTreeMap<Subject, Vec<Sample>>,
    /// The times at which figures were saved, by root.
    saves: BTreeMap<String, BTreeSet<u64>>,
    /// What the histories of the groups say.
    recorded: BTreeMap<Subject, Use>,
}

impl Span {
    fn add(&mut self, subject: Subject, sample: Sample) {
        let is_asked = match self.by {
            By::Group => subject.user.is_none(),
            By::User => subject.user.is_some(),
        };
        if is_asked && sample.time <= self.until {
            self.samples.entry(subject).or_default().push(sample);
        }
    }

    /// Adds the present figures of a group, and what its history says.
    fn add_view(&mut self, view: &View, driver: Option<&Driver>) {
        for line in Line::of(view, self.by, driver) {
            let sample = Sample {
                time: self.until,
                made: line.made,
                gib_hours: line.gib_hours(),
                counts: line.counts,
            };
            let subject = line.subject();
            if self.by == By::Group
                && let Some(recorded) = recorded(view, &subject, self.since, driver)
            {
                self.recorded.insert(subject.clone(), recorded);
            }
            self.add(subject, sample);
        }
    }

    /// Returns whether figures begin later than asked, or so much earlier that it matters. The last
    /// save, and the period of a history, may begin a quarter of an hour earlier.
    fn begins_elsewhere(&self, found: &Use) -> bool {
        const EARLY: u64 = 3_600_000;
        let near = self.since.saturating_sub(EARLY)..=self.since;
        found.from.is_some_and(|from| !near.contains(&from))
    }

    fn uses(&mut self) -> Vec<(Subject, Use)> {
        let none = BTreeSet::new();
        let mut uses = Vec::new();
        for (subject, samples) in &mut self.samples {
            samples.sort_by_key(|sample| sample.time);
            let saves = self.saves.get(&subject.root).unwrap_or(&none);
            let known = Samples { samples, saves }.after(self.since);
            let recorded = self.recorded.get(subject).copied();
            let found = match (known, recorded) {
                (Some(known), Some(recorded)) if known.peak.is_none() => Some(Use {
                    // The history knows the group that is there now, and not those before it.
                    peak: recorded.peak.filter(|_| is_one(samples)),
                    ..known
                }),
                (Some(known), _) => Some(known),
                (None, recorded) => recorded,
            };
            // A group that is there is listed even if nothing is known of its use.
            let is_there = samples.last().is_some_and(|last| last.time == self.until);
            match found {
                Some(found) => uses.push((subject.clone(), found)),
                None if is_there => uses.push((subject.clone(), Use::default())),
                None => {}
            }
        }
        uses
    }
}

/// Returns whether all samples are of one group, which was not made anew.
fn is_one(samples: &[Sample]) -> bool {
    samples.windows(2).all(|pair| pair[0].made == pair[1].made)
}

/// Returns what the history of a group says of a GPU; `None` if it does not reach back so far.
fn recorded(view: &View, subject: &Subject, since: u64, driver: Option<&Driver>) -> Option<Use> {
    let ledger = view.ledger.as_ref()?;
    let device = view
        .devices
        .iter()
        .find(|device| device.id == subject.gpu)?;
    let usage = Gpu::of(view, subject.gpu, driver).usage.unwrap_or(0);
    let sums = past::sums(ledger, device.index, since / 1_000, usage)?;
    Some(Use {
        from: Some(sums.from * 1_000),
        gib_hours: None,
        peak: Some(sums.peak),
        refusals: sums.refusals,
        waits: None,
        waited_ms: sums.waited.map(|seconds| seconds * 1_000),
    })
}

fn print(
    args: &Args,
    selection: &Selection,
    uses: &[(Subject, Use)],
    span: &Span,
    driver: Option<&Driver>,
) -> Result<(), Failure> {
    if args.json {
        let json = |(subject, found): &(Subject, Use)| json(subject, found, span.until, driver);
        return output::json(&selection.json("uses", uses.iter().map(json).collect()));
    }
    if args.csv {
        let heads = std::iter::once(HEADS.map(String::from));
        let rows = uses
            .iter()
            .map(|(subject, found)| cells(subject, found, span.until));
        return output::print(&csv::lines(heads.chain(rows))?);
    }
    if uses.is_empty() {
        output::note("nothing is known of a use of GPUs in this time");
        return Ok(());
    }
    output::table(&table(selection, uses, span, driver).render())?;
    if uses.iter().any(|(_, found)| found.gib_hours.is_none()) {
        output::note(match args.from {
            None => {
                "\"-\" is unknown: figures of groups that are older than the begin need the files \
                 of `gpulimit report --save`, in --from"
            }
            Some(_) => "\"-\" is unknown: no saved line tells the figures at the begin",
        });
    }
    if uses.iter().any(|(_, found)| span.begins_elsewhere(found)) {
        output::note("lines with a time in FROM count from then");
    }
    Ok(())
}

fn json(subject: &Subject, found: &Use, until: u64, driver: Option<&Driver>) -> Value {
    json!({
        "name": subject.group,
        "root": subject.root,
        "gpu": {
            "uuid": subject.gpu.to_string(),
            "index": groups::index(subject.gpu, driver),
        },
        "uid": subject.user.and_then(User::id),
        "user": subject.user.map(User::name),
        "from": found.from.map(moment),
        "until": moment(until),
        "gib_hours": found.gib_hours,
        "peak": found.peak,
        "refusals": found.refusals,
        "waits": found.waits,
        "waited_ms": found.waited_ms,
    })
}

/// The heads of the CSV output.
const HEADS: [&str; 12] = [
    "group",
    "root",
    "gpu",
    "uid",
    "user",
    "from",
    "until",
    "gib_hours",
    "peak",
    "refusals",
    "waits",
    "waited_ms",
];

/// Returns the cells of the CSV output.
fn cells(subject: &Subject, found: &Use, until: u64) -> [String; HEADS.len()] {
    let text = |figure: Option<u64>| figure.map_or_else(String::new, |it| it.to_string());
    [
        subject.group.clone(),
        subject.root.clone(),
        subject.gpu.to_string(),
        text(subject.user.and_then(User::id).map(u64::from)),
        subject.user.map_or_else(String::new, User::name),
        found.from.map_or_else(String::new, moment),
        moment(until),
        found
            .gib_hours
            .map_or_else(String::new, |hours| format!("{hours:.6}")),
        text(found.peak),
        text(found.refusals),
        text(found.waits),
        text(found.waited_ms),
    ]
}

fn table(
    selection: &Selection,
    uses: &[(Subject, Use)],
    span: &Span,
    driver: Option<&Driver>,
) -> Table {
    let mut columns = columns(span.by);
    let with_from = uses.iter().any(|(_, found)| span.begins_elsewhere(found));
    columns.extend(with_from.then_some(left("FROM")));
    let mut table = Table::new(&columns);
    for (subject, found) in uses {
        let mut cells = vec![
            selection.title_of(&subject.group, Path::new(&subject.root)),
            groups::label(subject.gpu, driver),
        ];
        let hours = figure(found.gib_hours.map(|hours| format!("{hours:.1}")));
        cells.extend(match span.by {
            By::Group => vec![
                hours,
                figure(found.peak.map(gib)),
                figure(found.refusals),
                figure(found.waited_ms.map(waited)),
            ],
            By::User => vec![figure(subject.user.map(User::name)), hours],
        });
        if with_from {
            let from = found.from.filter(|_| span.begins_elsewhere(found));
            cells.push(from.map_or_else(String::new, local));
        }
        table.row(cells);
    }
    table
}

/// Formats a time in milliseconds since 1970, in UTC.
fn moment(unix_ms: u64) -> String {
    Moment { unix_ms }.to_string()
}

/// Formats a time in milliseconds since 1970, in the zone of the caller.
fn local(unix_ms: u64) -> String {
    let time = Timestamp::from_millisecond(i64::try_from(unix_ms).unwrap_or(i64::MAX));
    let time = time.unwrap_or(Timestamp::MAX);
    let zoned = time.to_zoned(clock::now().time_zone().clone());
    zoned.strftime("%F %R").to_string()
}
