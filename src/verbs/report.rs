//! `gpulimit report`: shows how much memory groups and users have used over time.

mod save;
mod saved;
mod span;
mod uses;

use crate::groups::budget::LINE;
use crate::groups::{self, Selection, View, beliefs};
use crate::machine::accounts;
use crate::machine::nvml::Driver;
use crate::shown::table::{Column, Table, figure};
use crate::shown::{csv, output};
use crate::words::clock;
use crate::words::failure::Failure;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use gpulimit_ledger::Ledger;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `report`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only this group and the groups below it
    group: Option<String>,

    /// What gets a line: each group, or each user of a group
    #[arg(long, value_enum, default_value_t = By::Group)]
    by: By,

    /// Print JSON: sizes are in bytes, and unknown figures are null
    #[arg(long)]
    json: bool,

    /// Print CSV: sizes are in bytes, and unknown figures are empty
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Show the use since this time: 2h, yesterday, 14:00, 2026-11-01. Without this option, since
    /// each group was made
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Read the files that --save has written in this directory, for groups that are older than
    /// --since or gone
    #[arg(long, value_name = "DIR", requires = "since")]
    from: Option<PathBuf>,

    /// Show the use until this time, from the files alone
    #[arg(long, value_name = "TIME", requires = "from")]
    until: Option<String>,

    /// Append the figures of all groups and users to the file of this day, YYYY-MM-DD.csv in UTC,
    /// in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "csv", "by", "since"])]
    save: Option<PathBuf>,
}

const HELP: &str = "\
All figures count from the time when the group was made: GIB-HOURS are memory
times time, PEAK is the highest charge, REFUSED counts refused requests, and
WAITED is the time for which requests waited. A group's figures include those of
the groups below it, so do not add them up. Only named groups keep these
figures. Those of a user are GIB-HOURS alone. \"1.0 (up to 3.0)\" is the use of
killed processes whose death was found later: up to 1.0 they surely lived.

With --since, a group that was made after TIME has all figures, from then on. An
older one has PEAK (the highest usage), REFUSED and WAITED for up to a week, from
its history; its GIB-HOURS are unknown, shown as \"-\". With --from, figures are
differences of saved lines, over all groups that had the name, also before a
reboot. They count from the last save before TIME or, if there is none, from the
first one after it: see FROM. PEAK is \"-\" if it may be older. What a group used
between its last save and its removal is missing.

The lines of --save have the figures without --since, for a timer.

Examples:
  gpulimit report
  gpulimit report lab --by user --since yesterday
  gpulimit report --csv > all.csv
  gpulimit report --save /var/log/gpulimit
  gpulimit report --from /var/log/gpulimit --since 2026-11-01 --by user";

/// What gets a line of a report.
#[derive(Copy, Clone, Debug, Eq, PartialEq, clap::ValueEnum)]
enum By {
    Group,
    User,
}

/// Shows the report, or saves it.
pub fn report(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(since) = &args.since {
        return uses::report(args, since);
    }
    let selection = Selection::of(args.group.as_deref())?;
    let driver = Driver::load().ok();
    if let Some(directory) = &args.save {
        return save::append(directory, &selection, driver.as_ref());
    }
    let (mut found, mut unreadable) = (Vec::new(), None);
    let (status, is_told) = visit(&selection, driver.as_ref(), |at, view| {
        if at == 0 && view.ledger.is_none() {
            unreadable = Some(view.group.ledger_path());
        }
        found.push((at, Line::of(view, args.by, driver.as_ref())));
    });
    if let Some(path) = unreadable.filter(|_| selection.named) {
        return Err(groups::unreadable(path));
    }
    found.sort_by_key(|(at, _)| *at);
    let lines: Vec<Line> = found.into_iter().flat_map(|(_, lines)| lines).collect();
    if args.json {
        output::json(&selection.json("uses", lines.iter().map(Line::json).collect()))?;
    } else if args.csv {
        let heads = HEADS.map(String::from);
        output::print(&csv::lines(
            std::iter::once(heads).chain(lines.iter().map(Line::cells)),
        )?)?;
    } else if !lines.is_empty() {
        output::table(&table(&lines, args.by).render(&[]))?;
    } else if status == ExitCode::SUCCESS && !is_told {
        output::note("no named group has used a GPU");
    }
    Ok(status)
}

/// Opens the selected groups one after the other, and passes each to `see` with its place. Names
/// those without figures. Returns the exit status, and whether there are groups that keep no
/// history.
fn visit(
    selection: &Selection,
    driver: Option<&Driver>,
    mut see: impl FnMut(usize, &View),
) -> (ExitCode, bool) {
    let (mut unrecorded, mut damages) = (Vec::new(), Vec::new());
    let mut notes = selection.visit(driver, |at, view| {
        see(at, &view);
        if let Some(damage) = view.ledger.as_ref().and_then(Ledger::damage) {
            damages.push(damage.to_string());
        }
        if groups::is_unrecorded(&view) {
            unrecorded.push(view.title);
        }
    });
    notes.lines.extend(groups::unrecorded_note(&unrecorded));
    notes.add_unopened(damages);
    (output::told(&notes), !unrecorded.is_empty())
}

/// Opens the selected groups. Fails if the caller has named a group and cannot read its ledger.
fn readable(
    selection: &Selection,
    driver: Option<&Driver>,
) -> Result<(Vec<View>, ExitCode), Failure> {
    let (views, notes) = selection.views(driver);
    let status = output::told(&notes);
    let first = views.first().filter(|_| selection.named);
    match first {
        Some(View {
            ledger: None,
            group,
            ..
        }) => Err(groups::unreadable(group.ledger_path())),
        _ => Ok((views, status)),
    }
}

/// The use of one GPU by a group, or by a user in a group, since the group was made.
struct Line {
    group: String,
    root: String,
    title: String,
    gpu: DeviceId,
    index: Option<u32>,
    label: String,
    /// The user; `None` if the line is about the whole group.
    user: Option<User>,
    byte_seconds: u128,
    /// Byte-seconds of the time in which killed processes may have lived.
    uncertain: u128,
    /// The figures of the whole group; `None` if the line is about a user.
    counts: Option<Counts>,
    /// Time when the group was made, in milliseconds since 1970; `None` if the file system does not
    /// tell.
    made: Option<u64>,
}

/// The subject of a line: a group on one GPU, or a user in such a group.
#[derive(Clone, Eq, Ord, PartialEq, PartialOrd)]
struct Subject {
    root: String,
    group: String,
    gpu: DeviceId,
    /// `None` for the whole group.
    user: Option<User>,
}

/// A user who has used memory.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum User {
    Id(u32),
    /// All users that did not fit into the ledger's table.
    Others,
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    peak: u64,
    refusals: u64,
    waits: u64,
    waited_ms: u64,
}

impl Line {
    /// Returns the lines of a group: one for each GPU, or one for each GPU and user.
    fn of(view: &View, by: By, driver: Option<&Driver>) -> Vec<Self> {
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
        let mut lines = Vec::new();
        for device in view
            .devices
            .iter()
            .filter(|device| ledger.records(device.index))
        {
            let label = groups::label(device.id, driver);
            let mut users: BTreeMap<User, [u128; 2]> = BTreeMap::new();
            for bill in bills.iter().filter(|bill| bill.device == device.index) {
                let user = bill.uid.map_or(User::Others, User::Id);
                users.insert(user, [bill.byte_seconds, bill.uncertain]);
            }
            let usage = ledger.usage(device.index);
            let counts = Counts {
                peak: usage.peak,
                refusals: usage.refusals,
                waits: usage.waits,
                waited_ms: usage.waited_ms,
            };
            let all = [0, 1].map(|at| users.values().map(|one| one[at]).sum());
            let figures = match by {
                By::Group => vec![(None, all, Some(counts))],
                By::User => {
                    let of_user = |(user, one)| (Some(user), one, None);
                    users.into_iter().map(of_user).collect()
                }
            };
            lines.extend(
                figures
                    .into_iter()
                    .map(|(user, [byte_seconds, uncertain], counts)| Self {
                        group: view.group.name().into(),
                        root: view.group.root().to_string_lossy().into_owned(),
                        title: view.title.clone(),
                        gpu: device.id,
                        index: groups::index(device.id, driver),
                        label: label.clone(),
                        user,
                        byte_seconds,
                        uncertain,
                        counts,
                        made,
                    }),
            );
        }
        lines
    }

    fn subject(&self) -> Subject {
        Subject {
            root: self.root.clone(),
            group: self.group.clone(),
            gpu: self.gpu,
            user: self.user,
        }
    }

    fn gib_hours(&self) -> f64 {
        gib_hours(self.byte_seconds)
    }

    fn json(&self) -> Value {
        let counts = self.counts.as_ref();
        json!({
            "name": self.group,
            "root": self.root,
            "gpu": { "uuid": self.gpu.to_string(), "index": self.index },
            "uid": self.user.and_then(User::id),
            "user": self.user.map(User::name),
            "gib_hours": self.gib_hours(),
            "gib_hours_uncertain": gib_hours(self.uncertain),
            "peak": counts.map(|counts| counts.peak),
            "refusals": counts.map(|counts| counts.refusals),
            "waits": counts.map(|counts| counts.waits),
            "waited_ms": counts.map(|counts| counts.waited_ms),
            "made": self.made(),
        })
    }

    /// Returns the cells of the CSV output.
    fn cells(&self) -> [String; HEADS.len()] {
        let text = |figure: Option<u64>| figure.map_or_else(String::new, |it| it.to_string());
        let counts = self.counts.as_ref();
        [
            self.group.clone(),
            self.root.clone(),
            self.gpu.to_string(),
            text(self.user.and_then(User::id).map(u64::from)),
            self.user.map_or_else(String::new, User::name),
            format!("{:.6}", self.gib_hours()),
            text(counts.map(|counts| counts.peak)),
            text(counts.map(|counts| counts.refusals)),
            text(counts.map(|counts| counts.waits)),
            text(counts.map(|counts| counts.waited_ms)),
            self.made().unwrap_or_default(),
            format!("{:.6}", gib_hours(self.uncertain)),
        ]
    }

    fn made(&self) -> Option<String> {
        let unix_ms = self.made?;
        Some(clock::Moment { unix_ms }.to_string())
    }
}

impl User {
    fn id(self) -> Option<u32> {
        match self {
            Self::Id(uid) => Some(uid),
            Self::Others => None,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Id(uid) => accounts::user_name(uid),
            Self::Others => "(others)".into(),
        }
    }
}

/// The heads of the CSV output.
const HEADS: [&str; 12] = [
    "group",
    "root",
    "gpu",
    "uid",
    "user",
    "gib_hours",
    "peak",
    "refusals",
    "waits",
    "waited_ms",
    "made",
    "gib_hours_uncertain",
];

fn gib_hours(byte_seconds: u128) -> f64 {
    const GIB_HOUR: f64 = 3_600.0 * (1u64 << 30) as f64;
    byte_seconds as f64 / GIB_HOUR
}

/// Returns GiB-hours for a table: the sure ones, and the most if that looks different.
fn hours(sure: u128, uncertain: u128) -> String {
    let [sure, most] =
        [sure, sure + uncertain].map(|byte_seconds| format!("{:.1}", gib_hours(byte_seconds)));
    match sure == most {
        true => sure,
        false => format!("{sure} (up to {most})"),
    }
}

/// Returns the columns of a report.
fn columns(by: By) -> Vec<Column> {
    let mut columns = vec![Column::Left("GROUP"), Column::Left("GPU")];
    columns.extend(match by {
        By::Group => vec![
            Column::Right("GIB-HOURS"),
            Column::Right("PEAK"),
            Column::Right("REFUSED"),
            Column::Right("WAITED"),
        ],
        By::User => vec![Column::Left("USER"), Column::Right("GIB-HOURS")],
    });
    columns
}

/// Formats milliseconds for a table.
fn waited(ms: u64) -> String {
    clock::span(Duration::from_millis(ms))
}

fn table(lines: &[Line], by: By) -> Table {
    let mut table = Table::new(&columns(by));
    for line in lines {
        let mut cells = vec![line.title.clone(), line.label.clone()];
        let hours = hours(line.byte_seconds, line.uncertain);
        cells.extend(match &line.counts {
            Some(counts) => vec![
                hours,
                gib(counts.peak).to_string(),
                counts.refusals.to_string(),
                waited(counts.waited_ms),
            ],
            None => vec![figure(line.user.map(User::name)), hours],
        });
        table.row(cells);
    }
    table
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

    #[test]
    fn an_uncertain_use_is_shown_beside_the_sure_one() {
        const GIB_HOUR: u128 = 3_600 << 30;
        assert_eq!(hours(GIB_HOUR * 5 / 2, 0), "2.5");
        assert_eq!(hours(GIB_HOUR, GIB_HOUR / 100), "1.0");
        assert_eq!(hours(GIB_HOUR, GIB_HOUR * 2), "1.0 (up to 3.0)");
    }
}
