//! The lines of a report: what groups and users have used since the groups were made.

use crate::figures::fields::{Column, left, right};
use crate::groups::{self, Selection, View, beliefs, budget::LINE};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output;
use crate::shown::table::{Table, figure};
use crate::words::clock;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use gpulimit_ledger::Ledger;
use serde_json::{Value, json};
use std::collections::BTreeMap;
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
/// history.
pub fn visit(
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

/// The heads of the CSV output.
pub const HEADS: [&str; 12] = [
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

/// The use of one GPU by a group, or by a user in a group, since the group was made.
pub struct Line {
    pub group: String,
    pub root: String,
    pub title: String,
    pub gpu: DeviceId,
    pub index: Option<u32>,
    pub label: String,
    /// The user; `None` if the line is about the whole group.
    pub user: Option<User>,
    pub byte_seconds: u128,
    /// Byte-seconds of the time in which killed processes may have lived.
    pub uncertain: u128,
    /// The figures of the whole group; `None` if the line is about a user.
    pub counts: Option<Counts>,
    /// Time when the group was made, in milliseconds since 1970; `None` if the file system does not
    /// tell.
    pub made: Option<u64>,
}

/// The subject of a line: a group on one GPU, or a user in such a group.
#[derive(Clone, Eq, Ord, PartialEq, PartialOrd)]
pub struct Subject {
    pub root: String,
    pub group: String,
    pub gpu: DeviceId,
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

#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub peak: u64,
    pub refusals: u64,
    pub waits: u64,
    pub waited_ms: u64,
}

impl Line {
    /// Returns the lines of a group: one for each GPU, or one for each GPU and user.
    pub fn of(view: &View, by: By, driver: Option<&Driver>) -> Vec<Self> {
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

    pub fn subject(&self) -> Subject {
        Subject {
            root: self.root.clone(),
            group: self.group.clone(),
            gpu: self.gpu,
            user: self.user,
        }
    }

    pub fn gib_hours(&self) -> f64 {
        gib_hours(self.byte_seconds)
    }

    pub fn json(&self) -> Value {
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
    pub fn cells(&self) -> [String; HEADS.len()] {
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

    pub fn made(&self) -> Option<String> {
        let unix_ms = self.made?;
        Some(clock::Moment { unix_ms }.to_string())
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
pub fn columns(by: By) -> Vec<Column> {
    let mut columns = vec![left("GROUP"), left("GPU")];
    columns.extend(match by {
        By::Group => vec![
            right("GIB-HOURS"),
            right("PEAK"),
            right("REFUSED"),
            right("WAITED"),
        ],
        By::User => vec![left("USER"), right("GIB-HOURS")],
    });
    columns
}

/// Formats milliseconds for a table.
pub fn waited(ms: u64) -> String {
    clock::span(Duration::from_millis(ms))
}

pub fn table(lines: &[Line], by: By) -> Table {
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
