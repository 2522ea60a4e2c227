//! The report of a span of time, `--since`.

use super::line::{By, Line, Subject, visit};
use super::span::{Sample, Samples, Use};
use super::{Args, print, saved};
use crate::figures::{past::Past, spans};
use crate::groups::{self, Purpose, Selection, View};
use crate::machine::nvml::Driver;
use crate::shown::output;
use crate::words::{clock::Moment, failure::Failure, order::Natural};
use gpulimit_base::device::DeviceId;
use gpulimit_group::is_within;
use gpulimit_ledger::Period;
use gpulimit_limits::Selector;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

/// Shows what groups or users have used since the time.
pub fn report(args: &Args, since: u64) -> Result<ExitCode, Failure> {
    let since = since * 1_000;
    let until = args.until.map(|until| until * 1_000);
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
    let selection = match (Selection::with_past(args.group.as_deref()), &scope) {
        // The group is gone. Its figures can be in a file.
        (Err(_), Some((root, _))) if args.from.is_some() => Selection::gone(root.clone()),
        (selection, _) => selection?,
    };
    let mut span = Span {
        since,
        until: until.unwrap_or_else(|| Moment::from(Timestamp::now()).unix_ms),
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
        (status, _) = visit(&selection, driver, |_, view| span.add_view(view, driver))?;
    }
    let mut lines = span.lines(&selection, driver);
    let is_printed = print(args, &selection, &mut lines, driver)?;
    if args.json || args.csv {
        return Ok(status);
    }
    if !is_printed {
        output::note("nothing is known of a use of GPUs in this time");
    }
    if lines.iter().any(|line| line.used.gib_hours.is_none()) {
        output::note(match args.from {
            None => {
                "\"-\" is unknown: figures of groups that are older than the begin need the files \
                 of `gpulimit report --save`, in --from"
            }
            Some(_) => "\"-\" is unknown: no saved line tells the figures at the begin",
        });
    }
    if lines.iter().any(|line| line.late.is_some()) {
        output::note("lines with a time in FROM count from then");
    }
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
        for line in Line::of(view, self.by) {
            if line.ended.is_some_and(|end| end < self.since) {
                continue;
            }
            let sample = Sample {
                time: self.until,
                made: line.made,
                used: line.used,
            };
            let subject = line.subject;
            if let (By::Group, Some(gpu)) = (self.by, subject.gpu)
                && let Some(recorded) = recorded(view, gpu, self.since, driver)
            {
                self.recorded.insert(subject.clone(), recorded);
            }
            self.add(subject, sample);
        }
    }

    /// Returns a line for each subject. Tells the begin of figures that begin later than asked, or
    /// so much earlier that it matters: the last save, and the period of a history, may begin a
    /// quarter of an hour earlier.
    fn lines(&mut self, selection: &Selection, driver: Option<&Driver>) -> Vec<Line> {
        const EARLY: u64 = 3_600_000;
        let near = self.since.saturating_sub(EARLY)..=self.since;
        let until = Some(self.until);
        let line = |subject: &Subject, used: Use| Line {
            title: selection.title_of(&subject.group, Path::new(&subject.root)),
            subject: subject.clone(),
            until,
            late: used.from.filter(|from| !near.contains(from)),
            used,
            ..Line::default()
        };
        let none = BTreeSet::new();
        let mut lines: Vec<Line> = Vec::new();
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
                Some(found) => lines.push(line(subject, found)),
                None if is_there => lines.push(line(subject, Use::default())),
                None => {}
            }
        }
        lines.sort_by_cached_key(|line| {
            let Subject {
                root, group, gpu, ..
            } = &line.subject;
            let gpu = gpu
                .and_then(|gpu| groups::index(gpu, driver))
                .unwrap_or(u32::MAX);
            (root.clone(), Natural::of(group), gpu)
        });
        lines
    }
}

/// Returns whether all samples are of one group, which was not made anew.
fn is_one(samples: &[Sample]) -> bool {
    samples.windows(2).all(|pair| pair[0].made == pair[1].made)
}

/// Returns what the history of a group says of a GPU; `None` if it does not reach back so far.
///
/// The highest usage is exact: the first change of a charge in a second records the usage before
/// it, so that memory which was charged earlier is in it, too.
fn recorded(view: &View, gpu: DeviceId, since: u64, driver: Option<&Driver>) -> Option<Use> {
    let (since, now) = (since / 1_000, Timestamp::now());
    let past = Past::all(view, &[Selector::Device(gpu)], since, now, driver, None).pop()?;
    let from = past.spans.first().map(|span| span.start);
    let from = from.filter(|from| *from <= since)?;
    // A period does not count beyond a number.
    let sum = |count: fn(&spans::Span) -> u32| {
        let is_whole = past.spans.iter().all(|span| count(span) < Period::MOST);
        is_whole.then(|| past.spans.iter().map(|span| u64::from(count(span))).sum())
    };
    let usages = past.spans.iter().filter_map(|span| span.known);
    Some(Use {
        from: Some(from * 1_000),
        peak: usages.map(|usage| usage.max).max().or(past.gpu.usage),
        refusals: sum(|span| span.refusals),
        waited_ms: sum(|span| span.waited).map(|seconds: u64| seconds * 1_000),
        ..Use::default()
    })
}
