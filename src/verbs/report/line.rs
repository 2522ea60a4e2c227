//! The lines of a report: what groups and users have used since the groups were made.

use super::span::Use;
use crate::figures::fields::{Cell, Field, fields, left, right};
use crate::figures::{bytes, past};
use crate::groups::{self, Selection, View, beliefs, budget::LINE};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output;
use crate::words::clock::{self, Moment};
use crate::words::failure::Failure;
use gpulimit_base::device::DeviceId;
use gpulimit_group::upwards;
use gpulimit_ledger::Ledger;
use gpulimit_limits::{Key, LimitSet};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::process::ExitCode;
use std::time::Duration;

/// What gets a line of a report.
#[derive(Copy, Clone, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum By {
    Group,
    User,
}

/// Opens the selected groups one after the other, and passes each to `see` with its place. Names
/// those without figures. Returns the exit status, and whether there are groups that keep no
/// history. Fails if the group that the caller named cannot be read.
pub fn visit(
    selection: &Selection,
    driver: Option<&Driver>,
    mut see: impl FnMut(usize, &View),
) -> Result<(ExitCode, bool), Failure> {
    let (mut unrecorded, mut damages, mut unreadable) = (Vec::new(), Vec::new(), None);
    let mut notes = selection.visit(driver, |at, view| {
        see(at, &view);
        if at == 0 && selection.named && view.ledger.is_none() {
            unreadable = Some(groups::unreadable(view.group.ledger_path()));
        }
        if let Some(damage) = view.ledger.as_ref().and_then(Ledger::damage) {
            damages.push(damage.to_string());
        }
        if groups::is_unrecorded(&view) {
            unrecorded.push(view.title);
        }
    });
    if let Some(failure) = unreadable {
        return Err(failure);
    }
    notes.lines.extend(groups::unrecorded_note(&unrecorded));
    notes.add_unopened(damages);
    Ok((output::told(&notes), !unrecorded.is_empty()))
}

/// The use of one GPU by a group, or by a user in a group: since the group was made, or in a span
/// of time. Times are in milliseconds since 1970.
#[derive(Default)]
pub struct Line {
    pub subject: Subject,
    pub title: String,
    pub used: Use,
    /// GiB-hours of the time in which killed processes may have lived.
    pub uncertain: f64,
    /// Time when the group was made; `None` if the file system does not tell.
    pub made: Option<u64>,
    /// When the job ended; `None` for other groups.
    pub ended: Option<u64>,
    /// The end of the span.
    pub until: Option<u64>,
    /// The begin of the figures, if it is not near the begin of the span.
    pub late: Option<u64>,
}

fields! { pub FIELDS(it: Line):
    /// The full name of the group.
    "name": Text, left("GROUP") => Cell::said(&*it.subject.group, &*it.title);
    /// The group root.
    "root": Text => &*it.subject.root;
    "gpu": Device, left("GPU") => Cell::Gpu(it.subject.gpu);
    /// The number of the user; null for a group.
    "uid": Count => it.subject.user.and_then(User::id);
    /// The name of the user; null for a group.
    "user": Text, left("USER") => it.subject.user.map(User::name);
    /// From when on the figures count, with `--since`.
    "from": Time => it.used.from.map(moment);
    /// Until when the figures count, with `--since`.
    "until": Time => it.until.map(moment);
    /// The memory that was used, over time; null where only the history knows the group.
    "gib_hours": Number, right("GIB-HOURS") => hours(it.used.gib_hours, it.uncertain);
    /// What killed processes used beyond that at most: from their last sign of life until they were
    /// found dead.
    "gib_hours_uncertain": Number => it.uncertain;
    /// The part of the present limit that was used, over time: 1 is all of it, all the time. Null
    /// without a limit, and if the memory or the time is unknown.
    "limit_share": Number, right("OF LIMIT").sparse() => share(it.share());
    /// The highest usage; null for a user, and if it may be older than `from`.
    "peak": Bytes, right("PEAK") => it.used.peak;
    /// The refused requests; null for a user, and for more than the history can count.
    "refusals": Count, right("REFUSED") => it.used.refusals;
    /// The requests that waited; null for a user, and where only the history knows the group.
    "waits": Count => it.used.waits;
    /// How long requests waited; null for a user, and for more than the history can count.
    "waited_ms": Ms, right("WAITED") => waited(it.used.waited_ms);
    /// When the group was made, without `--since`; null if the file system does not tell.
    "made": Time => it.made.map(moment);
    /// When the job ended, without `--since`; null for other groups.
    "ended": Time, left("ENDED").sparse() => Cell::Said(it.ended.map(moment).into(), it.ended.map(|unix_ms| Moment { unix_ms }.local()));
    "": Text, left("FROM").sparse() => it.late.map_or_else(String::new, |unix_ms| Moment { unix_ms }.local());
}

/// Returns the fields of a report, with `--since` or without it.
pub fn fields(is_span: bool) -> impl Iterator<Item = &'static Field<Line>> {
    FIELDS.iter().filter(move |field| match field.key {
        "from" | "until" => is_span,
        UNCERTAIN | "made" | "ended" => !is_span,
        _ => true,
    })
}

/// Returns the fields of CSV, without what depends on the present limit and what named groups do
/// not have. Files that older versions have saved lack the last one.
pub fn csv_fields(is_span: bool) -> Vec<&'static Field<Line>> {
    let is_lasting = |field: &&Field<Line>| !["limit_share", "ended"].contains(&field.key);
    let mut fields: Vec<_> = fields(is_span).filter(is_lasting).collect();
    fields.sort_by_key(|field| field.key == UNCERTAIN);
    fields
}

/// The head of the uncertain use.
pub const UNCERTAIN: &str = "gib_hours_uncertain";

/// The subject of a line: a group on one GPU, or a user in such a group.
#[derive(Clone, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Subject {
    pub root: String,
    pub group: String,
    /// `None` for the sum over all GPUs.
    pub gpu: Option<DeviceId>,
    /// `None` for the whole group.
    pub user: Option<User>,
}

/// A user who has used memory.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub enum User {
    Id(u32),
    /// All users that did not fit into the ledger's table.
    Others,
}

impl Line {
    /// Returns a line for each user of several lines: the sum over all GPUs and all groups, without
    /// groups that are below others of these.
    pub fn sums(lines: &[Self]) -> Vec<Self> {
        let name = |it: &'_ Self| (it.subject.root.clone(), it.subject.group.clone());
        let names: BTreeSet<(String, String)> = lines.iter().map(name).collect();
        let is_top = |it: &&Self| {
            let mut above = upwards(&it.subject.group).skip(1);
            !above.any(|group| names.contains(&(it.subject.root.clone(), group.to_owned())))
        };
        let mut sums: BTreeMap<User, (usize, Self)> = BTreeMap::new();
        for it in lines.iter().filter(is_top) {
            let Some(user) = it.subject.user else {
                continue;
            };
            let (count, sum) = sums.entry(user).or_default();
            sum.subject.user = Some(user);
            sum.title = "all groups".into();
            *count += 1;
            let hours = [sum.used.gib_hours, it.used.gib_hours].map(|hours| hours.unwrap_or(0.0));
            sum.used.gib_hours = Some(hours[0] + hours[1]);
            sum.uncertain += it.uncertain;
        }
        let sums = sums.into_values().filter(|(count, _)| *count > 1);
        sums.map(|(_, sum)| sum).collect()
    }

    /// Returns the part of the present limit that was used, over the time of the line.
    fn share(&self) -> Option<f64> {
        let until = self
            .ended
            .or(self.until)
            .unwrap_or_else(|| Moment::from(Timestamp::now()).unix_ms);
        let hours = until.saturating_sub(self.used.from.or(self.made)?) as f64 / 3_600_000.0;
        let all = self.used.limit? as f64 / (1u64 << 30) as f64 * hours;
        Some(self.used.gib_hours? / all).filter(|share| share.is_finite())
    }

    /// Returns the lines of a group: one for each GPU, or one for each GPU and user.
    pub fn of(view: &View, by: By) -> Vec<Self> {
        let keeps = |ledger: &&Ledger| ledger.keeps_history();
        let Some(ledger) = view.ledger.as_ref().filter(keeps) else {
            return Vec::new();
        };
        let bills = beliefs::bills(ledger);
        if by == By::User {
            let lines = bills.len();
            view.purse.spend(lines * (LINE + view.title.len()));
        }
        let made = made(ledger);
        let ended = past::ended(view).map(|end| end.saturating_mul(1_000));
        let mut lines = Vec::new();
        for device in view
            .devices
            .iter()
            .filter(|device| ledger.records(device.index))
        {
            let mut users: BTreeMap<User, [u128; 2]> = BTreeMap::new();
            for bill in bills.iter().filter(|bill| bill.device == device.index) {
                let user = bill.uid.map_or(User::Others, User::Id);
                users.insert(user, [bill.byte_seconds, bill.uncertain]);
            }
            let usage = ledger.usage(device.index);
            let capacity = view.capacity(device.id, None);
            let max = |rules: &LimitSet| bytes(rules.for_device(device.id, Key::Max), capacity);
            let above = view.above.iter().map(|above| &above.rules);
            let limit = iter::once(&view.rules).chain(above).filter_map(max).min();
            let all = [0, 1].map(|at| users.values().map(|one| one[at]).sum());
            let figures = match by {
                By::Group => vec![(None, all)],
                By::User => users
                    .into_iter()
                    .map(|(user, one)| (Some(user), one))
                    .collect(),
            };
            let of_group = |count: u64| (by == By::Group).then_some(count);
            let line = |(user, [sure, uncertain]): (_, [u128; 2])| Self {
                subject: Subject {
                    root: view.group.home().to_string_lossy().into_owned(),
                    group: view.group.name().into(),
                    gpu: Some(device.id),
                    user,
                },
                title: view.title.clone(),
                used: Use {
                    limit,
                    gib_hours: Some(gib_hours(sure)),
                    peak: of_group(usage.peak),
                    refusals: of_group(usage.refusals),
                    waits: of_group(usage.waits),
                    waited_ms: of_group(usage.waited_ms),
                    ..Use::default()
                },
                uncertain: gib_hours(uncertain),
                made,
                ended,
                ..Self::default()
            };
            lines.extend(figures.into_iter().map(line));
        }
        lines
    }
}

impl User {
    pub fn id(self) -> Option<u32> {
        match self {
            Self::Id(uid) => Some(uid),
            Self::Others => None,
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Id(uid) => accounts::user_name(uid),
            Self::Others => "(others)".into(),
        }
    }
}

fn gib_hours(byte_seconds: u128) -> f64 {
    const GIB_HOUR: f64 = 3_600.0 * (1u64 << 30) as f64;
    byte_seconds as f64 / GIB_HOUR
}

/// Returns GiB-hours, for people with the most that they may be if that looks different.
fn hours(sure: Option<f64>, uncertain: f64) -> Cell {
    let text = sure.map(|sure| {
        let [sure, most] = [sure, sure + uncertain].map(|hours| format!("{hours:.1}"));
        match sure == most {
            true => sure,
            false => format!("{sure} (up to {most})"),
        }
    });
    Cell::Said(sure.into(), text)
}

fn share(share: Option<f64>) -> Cell {
    Cell::Said(
        share.into(),
        share.map(|share| format!("{:.0}%", share * 100.0)),
    )
}

fn waited(ms: Option<u64>) -> Cell {
    let text = ms.map(|ms| clock::span(Duration::from_millis(ms)));
    Cell::Said(ms.into(), text)
}

/// Formats a time in UTC.
fn moment(unix_ms: u64) -> String {
    Moment { unix_ms }.to_string()
}

/// Returns the time when a group was made, in milliseconds since 1970.
fn made(ledger: &Ledger) -> Option<u64> {
    let made = ledger.metadata().ok()?.created().ok()?;
    let since = made.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::fields::Unit;

    /// What a group uses is also in the figures of the groups above.
    #[test]
    fn a_sum_counts_the_memory_of_a_group_once() {
        let line = |group: &str, gpu: u8, uid, hours| Line {
            subject: Subject {
                root: "/run/gpulimit".into(),
                group: group.into(),
                gpu: Some(DeviceId::gpu([gpu; 16])),
                user: Some(User::Id(uid)),
            },
            title: group.into(),
            used: Use {
                gib_hours: Some(hours),
                limit: Some(4 << 30),
                ..Use::default()
            },
            uncertain: 0.5,
            made: Some(0),
            ended: None,
            until: Some(7_200_000),
            late: None,
        };
        let lines = [
            line("lab", 1, 7, 2.0),
            line("lab/a", 1, 7, 1.5),
            line("night", 2, 7, 4.0),
            line("night", 2, 8, 3.0),
        ];
        let sums = Line::sums(&lines);
        let [sum] = &sums[..] else {
            panic!("one user has several lines")
        };
        assert_eq!((sum.used.gib_hours, sum.uncertain), (Some(6.0), 1.0));
        assert_eq!(lines[0].share(), Some(0.25));
        assert_eq!(sum.share(), None);
    }

    #[test]
    fn an_uncertain_use_is_shown_beside_the_sure_one() {
        let text = |sure, uncertain| hours(Some(sure), uncertain).text(Unit::Number, None);
        assert_eq!(text(2.5, 0.0).as_deref(), Some("2.5"));
        assert_eq!(text(1.0, 0.01).as_deref(), Some("1.0"));
        assert_eq!(text(1.0, 2.0).as_deref(), Some("1.0 (up to 3.0)"));
    }
}
