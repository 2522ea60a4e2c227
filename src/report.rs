//! `gpulimit report`: shows how much memory groups and users have used over time.

mod save;

use super::failure::Failure;
use super::figures::Gpu;
use super::groups::{self, Selection, View};
use super::nvml::Driver;
use super::table::{Column, Table, figure};
use super::{accounts, clock, csv, output};
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

    /// Append the figures of all groups and users to the file of this day, YYYY-MM-DD.csv in UTC,
    /// in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "csv", "by"])]
    save: Option<PathBuf>,
}

const HELP: &str = "\
All figures count from the time when the group was made: GIB-HOURS are memory
times time, PEAK is the highest charge, REFUSED counts refused requests, and
WAITED is the time for which requests waited. A group's figures include those of
the groups below it, so do not add them up. Only named groups keep these
figures. Those of a user are GIB-HOURS alone.

The lines of --save have the same figures, for a timer: the use in a time is the
difference of two lines of one group that have the same MADE.

Examples:
  gpulimit report
  gpulimit report lab --by user
  gpulimit report --csv > month.csv
  gpulimit report --save /var/log/gpulimit";

/// What gets a line of a report.
#[derive(Copy, Clone, Debug, Eq, PartialEq, clap::ValueEnum)]
enum By {
    Group,
    User,
}

/// Shows the report, or saves it.
pub fn report(args: &Args) -> Result<ExitCode, Failure> {
    let selection = Selection::of(args.group.as_deref())?;
    let driver = Driver::load().ok();
    let (views, status) = selection.views(driver.as_ref());
    if let Some(View {
        ledger: None,
        group,
        ..
    }) = views.first().filter(|_| selection.named)
    {
        return Err(groups::unreadable(group.ledger_path()));
    }
    let lines = |by| -> Vec<Line> {
        let lines = views
            .iter()
            .flat_map(|view| Line::of(view, by, driver.as_ref()));
        lines.collect()
    };
    if let Some(directory) = &args.save {
        let all = lines(By::Group).into_iter().chain(lines(By::User));
        save::append(directory, all)?;
        return Ok(status);
    }
    let lines = lines(args.by);
    if args.json {
        selection.print_json("uses", lines.iter().map(Line::json).collect())?;
    } else if args.csv {
        let heads = HEADS.map(String::from);
        output::print(&csv::lines(
            std::iter::once(heads).chain(lines.iter().map(Line::cells)),
        )?)?;
    } else if !lines.is_empty() {
        output::table(&table(&lines, args.by).render())?;
    } else if status == ExitCode::SUCCESS {
        output::note("no named group has used a GPU");
    }
    Ok(status)
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
    /// The figures of the whole group; `None` if the line is about a user.
    counts: Option<Counts>,
    /// Time when the group was made, in milliseconds since 1970; `None` if the file system does not
    /// tell.
    made: Option<u64>,
}

/// A user who has used memory.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum User {
    Id(u32),
    /// All users that did not fit into the ledger's table.
    Others,
}

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
        let bills = ledger.bills();
        let made = made(ledger);
        let mut lines = Vec::new();
        for device in view
            .devices
            .iter()
            .filter(|device| ledger.records(device.index))
        {
            let gpu = Gpu::of(view, device.id, driver);
            let mut users: BTreeMap<User, u128> = BTreeMap::new();
            for bill in bills.iter().filter(|bill| bill.device == device.index) {
                let user = bill.uid.map_or(User::Others, User::Id);
                let sum = users.entry(user).or_default();
                *sum = sum.saturating_add(bill.byte_seconds);
            }
            let usage = ledger.usage(device.index);
            let counts = Counts {
                peak: usage.peak,
                refusals: usage.refusals,
                waits: usage.waits,
                waited_ms: usage.waited_ms,
            };
            let all = users
                .values()
                .fold(0, |sum: u128, one| sum.saturating_add(*one));
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
                    .map(|(user, byte_seconds, counts)| Self {
                        group: view.group.name().into(),
                        root: view.group.root().to_string_lossy().into_owned(),
                        title: view.title.clone(),
                        gpu: device.id,
                        index: groups::index(device.id, driver),
                        label: gpu.label.clone(),
                        user,
                        byte_seconds,
                        counts,
                        made,
                    }),
            );
        }
        lines
    }

    fn gib_hours(&self) -> f64 {
        const GIB_HOUR: f64 = 3_600.0 * (1u64 << 30) as f64;
        self.byte_seconds as f64 / GIB_HOUR
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
const HEADS: [&str; 11] = [
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
];

fn table(lines: &[Line], by: By) -> Table {
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
    let mut table = Table::new(&columns);
    for line in lines {
        let mut cells = vec![line.title.clone(), line.label.clone()];
        let hours = format!("{:.1}", line.gib_hours());
        cells.extend(match &line.counts {
            Some(counts) => vec![
                hours,
                gib(counts.peak).to_string(),
                counts.refusals.to_string(),
                clock::span(Duration::from_millis(counts.waited_ms)),
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
