//! `gpulimit show --mine`: shows the limit of the caller's programs, and the users who share it.

use crate::figures::fields::{fields, left, path, right};
use crate::figures::group::{Figures, Gpu, Row, bytes};
use crate::figures::waiting::Waiters;
use crate::groups::{self, SCHEMA, Selection, View};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output::{self, Escaped};
use crate::shown::table::{Table, UNKNOWN};
use crate::shown::watch::{Round, Shown};
use crate::words::{environment::env, failure::Failure, notes::Notes, text};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use gpulimit_group::{Group, effective_user, is_within};
use gpulimit_ledger::ProcessUsage;
use gpulimit_limits::{Key, Selector};
use gpulimit_policy as policy;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::slice;

/// Reads the caller's limit on these GPUs.
pub fn mine(
    devices: &[Selector],
    driver: Option<&Driver>,
    as_json: bool,
) -> Result<Round, Failure> {
    let assigned = Assigned::to_caller()?;
    let of = |group| Mine::of(group, devices, driver);
    let mine = assigned.group.as_ref().map(of).transpose()?;
    let (others, notes) = running(assigned.group.as_ref(), driver)?;
    // A group may have gone since it was read.
    let others: Vec<Mine> = others.iter().filter_map(|group| of(group).ok()).collect();
    let shown = if as_json {
        Shown::Json(json!({
            "schema": SCHEMA,
            "root": mine.as_ref().map(|mine| mine.figures.root.to_string_lossy()),
            "by": assigned.by(),
            "rule": assigned.rule,
            "new_group": assigned.new,
            "group": mine.as_ref().map(Mine::json),
            "running_in": others.iter().map(Mine::json).collect::<Vec<_>>(),
        }))
    } else {
        let has_none = assigned.group.is_none() && assigned.new.is_none();
        let mut said = match has_none && !others.is_empty() {
            true => "neither a rule nor the environment names a group".to_owned(),
            false => assigned.to_string(),
        };
        if !others.is_empty() {
            let names: Vec<&str> = others.iter().map(|mine| &*mine.figures.name).collect();
            said += &format!("; programs of yours run in {}", text::some(&names));
        }
        let mut text = output::fit(&Escaped(&said).to_string(), 2) + "\n";
        let all: Vec<Mine> = mine.into_iter().chain(others).collect();
        let own = Mine::table(&all, driver);
        if own.has_rows() {
            text += &format!("\n{}", own.render());
        }
        let shares = Mine::shares_table(&all);
        if shares.has_rows() {
            text += &format!("\nShared with:\n{}", shares.render());
        }
        Shown::Text(text)
    };
    Ok(Round { shown, notes })
}

/// Returns the groups, other than this one, in which programs of the caller run.
fn running(but: Option<&Group>, driver: Option<&Driver>) -> Result<(Vec<Group>, Notes), Failure> {
    let user = effective_user();
    let mut found = Vec::new();
    let notes = Selection::all()?.visit(driver, |at, view| {
        let is_its = |it: &ProcessUsage| it.alive && it.below.is_empty() && it.identity.uid == user;
        let is_other = but.is_none_or(|but| but.path() != view.group.path());
        if is_other && view.processes.iter().any(is_its) {
            found.push((at, view.group));
        }
    });
    found.sort_by_key(|(at, _)| *at);
    Ok((found.into_iter().map(|(_, group)| group).collect(), notes))
}

/// The group that the caller's programs are in, and the reason for that.
#[derive(Default)]
struct Assigned {
    /// The group; `None` if the programs are in no group that exists.
    group: Option<Group>,
    /// The number of the policy's rule that assigns the group.
    rule: Option<u32>,
    /// The variable that gives each program that is started here a group of its own, with its
    /// value.
    new: Option<String>,
}

impl Assigned {
    fn to_caller() -> Result<Self, Failure> {
        let Some(assignment) = policy::assignment(&env)? else {
            return Ok(Self::default());
        };
        let rule = assignment.rule.as_ref();
        let (root, opened) = (&assignment.root, assignment.root.group(&assignment.group));
        let (group, new) = match (opened, &assignment.create) {
            (Err(error), Some(request)) if error.is_missing() => {
                let value = env(&request.variable).unwrap_or_default();
                let new = format!("{}={}", request.variable, value.to_string_lossy());
                (
                    rule.map(|rule| root.group(&rule.group)).transpose()?,
                    Some(new),
                )
            }
            (opened, _) => (Some(opened?), None),
        };
        Ok(Self {
            group,
            rule: rule.map(|rule| rule.rule),
            new,
        })
    }

    /// Returns what assigns the group, as in the JSON output.
    fn by(&self) -> Option<&'static str> {
        match (self.rule, &self.group, &self.new) {
            (Some(_), ..) => Some("rule"),
            (None, None, None) => None,
            (None, ..) => Some("environment"),
        }
    }
}

/// Formats the assignment as sentences.
impl fmt::Display for Assigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.group {
            write!(f, "your programs are in group {}", group.name())?;
            match self.rule {
                Some(rule) => write!(f, ", by rule {rule} of the administrator's policy"),
                None => write!(f, ", by {}", policy::GROUP),
            }?;
        }
        match (&self.group, &self.new) {
            (None, None) => f.write_str(
                "no group limits your programs: neither a rule nor the environment names one; \
                 `gpulimit run --max 4G -- COMMAND` runs a command with a limit",
            ),
            (None, Some(new)) => write!(
                f,
                "{new} gives each program that you start here a group of its own; `gpulimit show` \
                 lists these groups"
            ),
            (Some(_), Some(new)) => write!(f, "; {new} makes a group below it for each program"),
            (Some(_), None) => Ok(()),
        }
    }
}

/// The figures of the caller's group, with the caller's part of each GPU.
struct Mine {
    figures: Figures,
    parts: Vec<Part>,
}

/// The caller's part of a GPU, and the other users of its limit.
struct Part {
    /// The bytes that the caller uses; `None` if the caller cannot read the group's ledger.
    used: Option<u64>,
    /// The outermost group with a limit on the GPU: the caller's group, or a group above it.
    group: String,
    /// The bytes that each user uses in this group. Leaves out the caller's processes in the
    /// caller's group. `None` if the caller cannot read the group's ledger.
    users: Option<BTreeMap<u32, u64>>,
}

/// A row of the table of the caller's groups.
struct Line<'a> {
    /// `None` for the only group.
    name: Option<&'a str>,
    row: Row<'a>,
    used: Option<u64>,
}

impl<'a> Line<'a> {
    fields! { FIELDS<'a>(it: Line<'a>):
        "": Text, path("GROUP").sparse() => it.name;
        "": Text, left("GPU") => it.row.label();
        "": Text, left("LIMIT") => it.row.effective().unwrap_or_else(|| it.row.max());
        "": Bytes, right("USAGE") => it.row.gpu.and_then(|gpu| gpu.usage);
        "": Bytes, right("MINE") => it.used;
        "": Bytes, right("FREE") => it.row.gpu.and_then(|gpu| gpu.free);
    }
}

impl Mine {
    fn of(group: &Group, devices: &[Selector], driver: Option<&Driver>) -> Result<Self, Failure> {
        let own = View::cleaned(group.clone(), driver)?;
        let above: Vec<View> = (group.upwards().skip(1))
            .filter_map(|group| View::cleaned(group, driver).ok())
            .collect();
        let waiters = Waiters::of(slice::from_ref(&own), driver);
        let mut figures = Figures::of(&own, &waiters, driver);
        for (id, _) in driver.iter().flat_map(|driver| driver.capacities()) {
            if !figures.gpus.iter().any(|gpu| gpu.id == id) {
                figures.gpus.push(Gpu::of(&own, id, driver));
            }
            // Each GPU of the machine has a row of its own.
            figures.others = None;
        }
        figures
            .gpus
            .sort_by_key(|gpu| groups::index(gpu.id, driver));
        figures.keep_only(devices);
        let user = effective_user();
        let part = |gpu: &Gpu| {
            let used = users(&own, gpu.id, |process, _| process.identity.uid == user);
            let has_max = |view: &&View| {
                let max = view.rules.for_device(gpu.id, Key::Max);
                bytes(max, gpu.capacity).is_some()
            };
            let outermost = above.iter().rev().find(has_max).unwrap_or(&own);
            let is_other = |process: &ProcessUsage, group: &str| {
                process.identity.uid != user || !is_within(group, own.group.name())
            };
            Part {
                used: used.map(|users| users.into_values().fold(0, u64::saturating_add)),
                group: outermost.group.name().into(),
                users: users(outermost, gpu.id, is_other),
            }
        };
        let parts = figures.gpus.iter().map(part).collect();
        Ok(Self { figures, parts })
    }

    fn json(&self) -> Value {
        let mut group = self.figures.json();
        for (at, part) in self.parts.iter().enumerate() {
            let user = |(uid, bytes): (&u32, &u64)| {
                let name = accounts::user_name(*uid);
                json!({ "uid": uid, "user": name, "usage": bytes })
            };
            let users = part.users.as_ref();
            let gpu = &mut group["gpus"][at];
            gpu["mine"] = json!(part.used);
            gpu["shared_in"] = json!(part.group);
            gpu["users"] = json!(users.map(|users| users.iter().map(user).collect::<Vec<_>>()));
        }
        group
    }

    /// Formats the figures; names the group if there are several.
    fn table(all: &[Self], driver: Option<&Driver>) -> Table {
        let lines = all.iter().flat_map(|mine| {
            let used = mine.parts.iter().map(|part| part.used);
            let rows = mine.figures.rows().zip(used.chain(iter::repeat(None)));
            let name = (all.len() > 1).then_some(&*mine.figures.name);
            rows.map(move |(row, used)| Line { name, row, used })
        });
        Table::of(Line::FIELDS, &lines.collect::<Vec<_>>(), driver)
    }

    /// Formats the users who share the limits. Groups below the same limit share it with the same
    /// users. The caller's programs in other groups have rows of their own if there are several.
    fn shares_table(all: &[Self]) -> Table {
        let caller = effective_user();
        let mut rows = Vec::new();
        for mine in all {
            for (gpu, part) in mine.figures.gpus.iter().zip(&mine.parts) {
                let users = part.users.iter().flatten();
                let users = users.filter(|(uid, _)| all.len() == 1 || **uid != caller);
                let said = |(uid, bytes): (&u32, &u64)| {
                    [accounts::user_name(*uid), gib(*bytes).to_string()]
                };
                let unknown = [UNKNOWN, UNKNOWN].map(str::to_owned);
                let unknown = part.users.is_none().then_some(unknown);
                for [user, usage] in users.map(said).chain(unknown) {
                    let row = vec![user, gpu.label.clone(), part.group.clone(), usage];
                    if !rows.contains(&row) {
                        rows.push(row);
                    }
                }
            }
        }
        let mut table = Table::new(&[left("USER"), left("GPU"), left("GROUP"), right("USAGE")]);
        rows.into_iter().for_each(|row| table.row(row));
        table
    }
}

/// Returns the bytes of a GPU that each user uses in the view's group, for the processes for which
/// `counts` is true. `counts` gets a process and the name of its group. Returns `None` if the
/// caller cannot read the group's ledger.
fn users(
    view: &View,
    id: DeviceId,
    counts: impl Fn(&ProcessUsage, &str) -> bool,
) -> Option<BTreeMap<u32, u64>> {
    view.ledger.as_ref()?;
    let mut users = BTreeMap::new();
    let Some(entry) = view.device(id) else {
        return Some(users);
    };
    for process in &view.processes {
        let bytes = process.on(entry.index).in_use();
        if bytes > 0 && counts(process, &groups::of_process(&view.group, process)) {
            let sum: &mut u64 = users.entry(process.identity.uid).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    Some(users)
}
