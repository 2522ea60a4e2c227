//! The tables of groups and of processes, row by row.

use super::canvas::{Align, Canvas};
use super::columns::{Column, Placed, place, short, short_or_unknown};
use super::pen::Pen;
use super::round::{Process, Round, Usage};
use super::rows::{GroupRow, Rows};
use gpulimit_group::last_name;
use gpulimit_ledger::Category;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

/// The width of a size.
const SIZE: usize = 6;
/// The width that keeps `waits for 12.0 GiB, 40 min` whole.
const STATE: usize = 26;
/// Columns of this rank and more are only for wide screens.
const EXTRA: u8 = 20;

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum OfGroup {
    Name,
    Gpu,
    Usage,
    Max,
    Percent,
    Peak,
    Free,
    High,
    Refused,
    Processes,
    LimitedBy,
    Recent,
    State,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum OfProcess {
    Pid,
    User,
    Group,
    Place,
    Gpu,
    Total,
    Allocations,
    Pools,
    Managed,
    Driver,
    State,
    Command,
}

const fn text<T>(kind: T, head: &'static str, least: usize, wanted: usize, rank: u8) -> Column<T> {
    Column {
        kind,
        head,
        align: Align::Left,
        least,
        wanted,
        most: wanted,
        rank,
    }
}

const fn figure<T>(kind: T, head: &'static str, width: usize, rank: u8) -> Column<T> {
    Column {
        kind,
        head,
        align: Align::Right,
        least: width,
        wanted: width,
        most: width,
        rank,
    }
}

/// Returns the width of the longest text, within bounds.
fn longest<T: AsRef<str>>(texts: impl Iterator<Item = T>, least: usize, most: usize) -> usize {
    let longest = texts.map(|text| text.as_ref().width()).max().unwrap_or(0);
    longest.clamp(least, most)
}

/// The table of groups.
pub struct Groups<'a> {
    round: &'a Round,
    rows: &'a [GroupRow],
    columns: Vec<Placed<OfGroup>>,
}

impl<'a> Groups<'a> {
    pub fn new(round: &'a Round, rows: &'a Rows, pen: &Pen, width: usize) -> Self {
        let rows = &rows.groups[..];
        let of = |row: &GroupRow| usage(round, row);
        let name = longest(rows.iter().map(|row| name(round, row, pen)), 14, 32);
        let gpu = longest(rows.iter().map(|row| &of(row).label), 3, 9);
        let state = longest(rows.iter().map(|row| state(of(row))), 12, 36);
        let by = longest(rows.iter().map(|row| &of(row).limited_by), 10, 20);
        let columns = [
            text(OfGroup::Name, "GROUP", 12, name, 0),
            text(OfGroup::Gpu, "GPU", gpu, gpu, 3),
            figure(OfGroup::Usage, "USAGE", SIZE, 1),
            figure(OfGroup::Max, "MAX", SIZE, 2),
            figure(OfGroup::Percent, "%", 3, 4),
            figure(OfGroup::Peak, "PEAK", SIZE, 6),
            figure(OfGroup::Free, "FREE", SIZE, EXTRA),
            figure(OfGroup::High, "HIGH", SIZE, EXTRA + 4),
            figure(OfGroup::Refused, "REFUSED", 7, EXTRA + 1),
            figure(OfGroup::Processes, "PROC", 4, EXTRA + 2),
            text(OfGroup::LimitedBy, "LIMITED BY", by, by, EXTRA + 5),
            Column {
                most: 60,
                ..text(OfGroup::Recent, "10 MIN", 8, 8, 7)
            },
            Column {
                most: 60,
                ..text(OfGroup::State, "STATE", 8, state, 5)
            },
        ];
        Self {
            round,
            rows,
            columns: place(&columns, width, EXTRA),
        }
    }

    pub fn heads(&self, canvas: &mut Canvas<'_>, y: usize) {
        heads(canvas, y, &self.columns);
    }

    pub fn row(&self, canvas: &mut Canvas<'_>, y: usize, at: usize) {
        let row = &self.rows[at];
        let usage = usage(self.round, row);
        for placed in &self.columns {
            let cell = self.cell(placed, row, usage, canvas);
            let align = placed.column.align;
            let style = match placed.column.kind {
                OfGroup::State => canvas.theme.alarm,
                OfGroup::Recent => canvas.theme.curve,
                _ => canvas.theme.plain,
            };
            canvas.aligned(placed.x, y, placed.width, (&cell, align), style);
        }
    }

    fn cell(
        &self,
        placed: &Placed<OfGroup>,
        row: &GroupRow,
        usage: &Usage,
        canvas: &Canvas<'_>,
    ) -> String {
        let count = |count: Option<u64>| count.map_or_else(|| "-".into(), |it| it.to_string());
        match placed.column.kind {
            OfGroup::Name => name(self.round, row, canvas.pen),
            OfGroup::Gpu => usage.label.clone(),
            OfGroup::Usage => short_or_unknown(usage.usage),
            OfGroup::Max => usage.max.map_or_else(|| usage.max_text.clone(), short),
            OfGroup::Percent => count(usage.percent()),
            OfGroup::Peak => short_or_unknown(usage.peak),
            OfGroup::Free => short_or_unknown(usage.free),
            OfGroup::High => short_or_unknown(usage.high),
            OfGroup::Refused => count(usage.refusals),
            OfGroup::Processes => count(usage.processes.map(|count| count as u64)),
            OfGroup::LimitedBy => usage.limited_by.clone(),
            OfGroup::Recent => recent(usage, placed.width, canvas.pen),
            OfGroup::State => state(usage),
        }
    }
}

fn heads<T>(canvas: &mut Canvas<'_>, y: usize, columns: &[Placed<T>]) {
    let style = canvas.theme.heads;
    for Placed { column, x, width } in columns {
        let align = match column.align {
            Align::End => Align::Left,
            align => align,
        };
        canvas.aligned(*x, y, *width, (column.head, align), style);
    }
}

/// Returns the figures of a row.
fn usage<'a>(round: &'a Round, row: &GroupRow) -> &'a Usage {
    let group = &round.groups[row.group];
    let usage = row.usage.and_then(|usage| group.usages.get(usage));
    usage.unwrap_or(&group.unlisted)
}

/// Returns the name of a group behind the branches of the tree. Only the first row of a group has
/// its name.
fn name(round: &Round, row: &GroupRow, pen: &Pen) -> String {
    let group = &round.groups[row.group];
    let [last, branch, trunk, gap] = pen.branches;
    let mut text = String::new();
    for (at, follows) in row.levels.iter().enumerate() {
        let is_own = at + 1 == row.levels.len() && row.first;
        text += match (is_own, follows) {
            (true, true) => branch,
            (true, false) => last,
            (false, true) => trunk,
            (false, false) => gap,
        };
    }
    if !row.first {
        return text;
    }
    if row.hidden > 0 {
        text += pen.folded;
    }
    text += match row.levels.is_empty() {
        true => &group.title,
        false => last_name(&group.name.name),
    };
    if row.hidden > 0 {
        text += &format!(" (+{})", row.hidden);
    }
    text
}

fn state(usage: &Usage) -> String {
    usage.states.join(", ")
}

/// Returns the recent usage as a curve of one line. The highest line is the limit, or else the
/// peak.
fn recent(usage: &Usage, width: usize, pen: &Pen) -> String {
    let whole = usage.limit.or(usage.peak).unwrap_or(0).max(1);
    let parts = usage.recent.len();
    let columns = width.min(parts);
    let level = |column: usize| {
        let parts = &usage.recent[column * parts / columns..(column + 1) * parts / columns];
        let highest = parts.iter().flatten().max()?;
        let steps = pen.heights.len() as u128;
        let level = (u128::from(*highest) * steps).div_ceil(u128::from(whole));
        Some(level.min(steps) as usize)
    };
    let character = |column| match level(column) {
        None | Some(0) => ' ',
        Some(level) => pen.heights[level - 1],
    };
    (0..columns).map(character).collect()
}

/// The table of processes.
pub struct Processes<'a> {
    round: &'a Round,
    rows: &'a [usize],
    columns: Vec<Placed<OfProcess>>,
}

impl<'a> Processes<'a> {
    pub fn new(round: &'a Round, rows: &'a Rows, width: usize) -> Self {
        let rows = &rows.processes[..];
        let all = || rows.iter().map(|at| &round.processes[*at]);
        let pid = longest(all().map(pid), 5, 10);
        let user = longest(all().map(|process| &process.user), 4, 10);
        let group = longest(all().map(|process| &process.title), 8, 28);
        let job = longest(all().map(|process| &process.place), 3, 22);
        let gpu = longest(all().map(|process| &process.label), 3, 9);
        let state = longest(all().map(|process| &process.state), 5, STATE);
        let has = |part: fn(&Process) -> Option<u64>| all().any(|it| part(it).unwrap_or(0) > 0);
        let part = |kind, head, part: fn(&Process) -> Option<u64>, rank| {
            // A part of which all have none is for wide screens.
            figure(
                kind,
                head,
                SIZE.max(head.len()),
                if has(part) { rank } else { EXTRA + rank },
            )
        };
        let mut columns = vec![
            figure(OfProcess::Pid, "PID", pid, 1),
            text(OfProcess::User, "USER", user.min(8), user, 3),
            Column {
                align: Align::End,
                ..text(OfProcess::Group, "GROUP", 10.min(group), group, 4)
            },
            text(OfProcess::Gpu, "GPU", gpu, gpu, 6),
            figure(OfProcess::Total, "TOTAL", SIZE, 2),
            part(OfProcess::Allocations, "ALLOC", Process::allocations, 8),
            part(OfProcess::Pools, "POOLS", |it| it.part(Category::Pools), 9),
            part(
                OfProcess::Managed,
                "MANAGED",
                |it| it.part(Category::Managed),
                10,
            ),
            part(
                OfProcess::Driver,
                "DRIVER",
                |it| it.part(Category::Driver),
                10,
            ),
            text(OfProcess::State, "STATE", state, state, EXTRA),
            Column {
                most: usize::MAX,
                ..text(OfProcess::Command, "COMMAND", 8, 24, 5)
            },
        ];
        if all().any(|process| !process.place.is_empty()) {
            // The group's name contains the name of a job of gpulimit.
            let is_new = |process: &Process| !process.title.contains(&process.place);
            let rank = if all().any(is_new) { 7 } else { EXTRA };
            columns.insert(3, text(OfProcess::Place, "JOB", job, job, rank));
        }
        Self {
            round,
            rows,
            columns: place(&columns, width, EXTRA),
        }
    }

    pub fn heads(&self, canvas: &mut Canvas<'_>, y: usize) {
        heads(canvas, y, &self.columns);
    }

    pub fn row(&self, canvas: &mut Canvas<'_>, y: usize, at: usize) {
        let process = &self.round.processes[self.rows[at]];
        let is_state = |placed: &Placed<OfProcess>| placed.column.kind == OfProcess::State;
        let has_state = self.columns.iter().any(is_state);
        for placed in &self.columns {
            let align = placed.column.align;
            let (mut x, mut width) = (placed.x, placed.width);
            let theme = canvas.theme;
            // Without a column of its own, the state precedes the command.
            if placed.column.kind == OfProcess::Command && !has_state && !process.state.is_empty() {
                let used = canvas.text(x, y, width, &process.state, theme.alarm);
                (x, width) = (x + used + 1, width.saturating_sub(used + 1));
            }
            let style: Style = match placed.column.kind {
                OfProcess::State => theme.alarm,
                _ => theme.plain,
            };
            let cell = cell(placed.column.kind, process);
            canvas.aligned(x, y, width, (&cell, align), style);
        }
    }
}

fn pid(process: &Process) -> String {
    process
        .pid
        .map_or_else(|| "-".into(), |pid| pid.to_string())
}

fn cell(column: OfProcess, process: &Process) -> String {
    let part = |category| short_or_unknown(process.part(category));
    match column {
        OfProcess::Pid => pid(process),
        OfProcess::User => process.user.clone(),
        OfProcess::Group => process.title.clone(),
        OfProcess::Place => process.place.clone(),
        OfProcess::Gpu => process.label.clone(),
        OfProcess::Total => short_or_unknown(process.total),
        OfProcess::Allocations => short_or_unknown(process.allocations()),
        OfProcess::Pools => part(Category::Pools),
        OfProcess::Managed => part(Category::Managed),
        OfProcess::Driver => part(Category::Driver),
        OfProcess::State => process.state.clone(),
        OfProcess::Command => process.command.clone(),
    }
}
