//! The tables of groups and of processes: their columns, and which of them a width has room for.

use super::look::{ALARM, CURVE, HEADS, HEIGHTS, PLAIN, SELECTED};
use super::round::{Process, Usage};
use super::rows::{GroupRow, Rows};
use crate::shown::table::figure;
use crate::shown::terminal::cut;
use gpulimit_group::last_name;
use gpulimit_ledger::Category;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

/// Columns of this rank and more are shown only if all others have what they need.
const EXTRA: u8 = 20;

/// A column that a table can have.
struct Column<'a, R> {
    head: &'static str,
    align: Alignment,
    /// The least width, with which the column is shown at all; the width that the cells need; and
    /// the width up to which the column takes what is left.
    widths: [usize; 3],
    /// Columns of a low rank are shown on narrow screens, too.
    rank: u8,
    /// Formats a row's cell for a width.
    cell: Box<dyn Fn(R, usize) -> Line<'a> + 'a>,
}

/// A table with all columns that it can have.
pub struct Table<'a, R> {
    pub rows: Vec<R>,
    columns: Vec<Column<'a, R>>,
}

impl<'a, R: Copy> Table<'a, R> {
    const fn new(rows: Vec<R>) -> Self {
        let columns = Vec::new();
        Self { rows, columns }
    }

    /// Adds a column. A `>` before the head aligns figures to the right, in a column of the least
    /// width. A column that takes what is left needs the second width, and other columns need the
    /// width of their longest text, up to the second width.
    fn column<L: Into<Line<'a>>>(
        mut self,
        head: &'static str,
        [least, wanted, most]: [usize; 3],
        rank: u8,
        cell: impl Fn(R, usize) -> L + 'a,
    ) -> Self {
        let is_figure = head.starts_with('>');
        let wanted = match (is_figure, most) {
            (true, _) => least,
            (false, 0) => {
                let width = |row: &R| cell(*row, wanted).into().width();
                let longest = self.rows.iter().map(width).max().unwrap_or(0);
                longest.max(head.len()).min(wanted)
            }
            (false, _) => wanted,
        };
        self.columns.push(Column {
            head: head.trim_start_matches('>'),
            align: [Alignment::Left, Alignment::Right][usize::from(is_figure)],
            widths: [least.min(wanted), wanted, most.max(wanted)],
            rank,
            cell: Box::new(move |row, width| cell(row, width).into()),
        });
        self
    }

    /// Returns the widths of the columns, 0 for those that are not shown. Columns are chosen by
    /// rank, as many as fit. The remaining width goes to what cells need, then to columns that can
    /// grow, in both cases to those of a high rank first.
    fn widths(&self, width: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.columns.len()).collect();
        order.sort_by_key(|at| self.columns[*at].rank);
        let is_usual = |at: &usize| self.columns[*at].rank < EXTRA;
        let (usual, extra) = order.split_at(order.partition_point(is_usual));
        let (mut widths, mut left) = (vec![0; order.len()], width + 1);
        let mut give = |at: &usize, need: usize| {
            let more = self.columns[*at].widths[need] - widths[*at];
            // A new column is shown as a whole, and a gap precedes it.
            let (more, gap) = match widths[*at] {
                0 if need < 2 && more < left => (more, more.min(1)),
                0 => (0, 0),
                _ => (more.min(left), 0),
            };
            widths[*at] += more;
            left -= more + gap;
        };
        usual.iter().for_each(|at| give(at, 0));
        usual.iter().rev().for_each(|at| give(at, 1));
        extra.iter().for_each(|at| give(at, 1));
        order.iter().rev().for_each(|at| give(at, 2));
        widths
    }

    /// Draws the heads, and below them the rows from `first` on. The solver of ratatui's own table
    /// would take a third of the time of `top --once` (measured).
    pub fn draw(&self, area: Rect, buffer: &mut Buffer, first: usize, selected: Option<usize>) {
        let widths = self.widths(area.width.into());
        let mut lines = area.rows();
        let mut draw = |cell: &dyn Fn(&Column<'a, R>, usize) -> Line<'a>, style| {
            let Some(line) = lines.next() else { return };
            let mut x = line.x;
            for (column, width) in self
                .columns
                .iter()
                .zip(&widths)
                .filter(|(_, width)| **width > 0)
            {
                let cell = fitted(cell(column, *width), *width).alignment(column.align);
                cell.render(Rect::new(x, line.y, *width as u16, 1), buffer);
                x += *width as u16 + 1;
            }
            buffer.set_style(line, style);
        };
        draw(&|column, _| Span::styled(column.head, HEADS).into(), PLAIN);
        for at in (first..self.rows.len()).take(area.height.saturating_sub(1).into()) {
            let style = if selected == Some(at) {
                SELECTED
            } else {
                PLAIN
            };
            draw(&|column, width| (column.cell)(self.rows[at], width), style);
        }
    }
}

/// Draws a line, cut to the width of the area.
pub fn line(line: Line<'_>, area: Rect, buffer: &mut Buffer) {
    fitted(line, area.width.into()).render(area, buffer);
}

/// Cuts a line to at most `width` columns.
pub fn fitted(mut line: Line<'_>, mut width: usize) -> Line<'_> {
    if line.width() > width {
        for span in &mut line.spans {
            span.content = cut(&span.content, width, 0).into_owned().into();
            width -= span.width();
        }
    }
    line
}

/// Returns the table of groups.
pub fn groups<'a>(rows: &'a Rows<'a>) -> Table<'a, &'a GroupRow<'a>> {
    let max = |it: &Usage| it.max.map_or_else(|| it.max_text.clone(), short);
    Table::new(rows.groups.iter().collect())
        .column("GROUP", [12, 32, 0], 0, |it, _| name(it))
        .column("GPU", [9, 9, 0], 3, |it, _| it.usage.label.as_str())
        .column(">USAGE", [6; 3], 1, |it, _| size(it.usage.usage))
        .column(">MAX", [6; 3], 2, move |it, _| max(it.usage))
        .column(">%", [3; 3], 4, |it, _| figure(it.usage.percent()))
        .column(">PEAK", [6; 3], 6, |it, _| size(it.usage.peak))
        .column(">FREE", [6; 3], 20, |it, _| size(it.usage.free))
        .column(">HIGH", [6; 3], 24, |it, _| size(it.usage.high))
        .column(">REFUSED", [7; 3], 21, |it, _| figure(it.usage.refusals))
        .column(">PROC", [4; 3], 22, |it, _| figure(it.usage.processes))
        .column("LIMITED BY", [20, 20, 0], 25, |it, _| &*it.usage.limited_by)
        .column("10 MIN", [8, 8, 60], 7, |it, width| {
            Line::styled(recent(it.usage, width), CURVE)
        })
        .column("STATE", [8, 36, 0], 5, |it, _| {
            Line::styled(it.usage.states.join(", "), ALARM)
        })
}

/// Returns the name of a group behind the branches of the tree. Only the first row of a group has
/// its name.
fn name(row: &GroupRow<'_>) -> String {
    let group = row.group;
    let mut text = String::new();
    for (at, follows) in row.levels.iter().enumerate() {
        let is_own = at + 1 == row.levels.len() && row.first;
        text += match (is_own, follows) {
            (true, true) => "├─ ",
            (true, false) => "└─ ",
            (false, true) => "│  ",
            (false, false) => "   ",
        };
    }
    let last = match row.levels.is_empty() {
        true => &group.title,
        false => last_name(&group.name.name),
    };
    match (row.first, row.hidden) {
        (false, _) => text,
        (true, 0) => text + last,
        (true, hidden) => format!("{text}▸ {last} (+{hidden})"),
    }
}

/// Returns the recent usage as a curve of one line. The highest line is the limit, or else the
/// peak.
fn recent(usage: &Usage, width: usize) -> String {
    let whole = usage.limit.or(usage.peak).unwrap_or(0).max(1);
    let parts = usage.recent.len();
    let columns = width.min(parts);
    let column = |column: usize| {
        let parts = &usage.recent[column * parts / columns..(column + 1) * parts / columns];
        let highest = parts.iter().flatten().max().copied().unwrap_or(0);
        let steps = HEIGHTS.len() as u128;
        let level = (u128::from(highest) * steps).div_ceil(whole.into());
        match level.min(steps) {
            0 => " ",
            level => HEIGHTS[level as usize - 1],
        }
    };
    (0..columns).map(column).collect()
}

/// A part of what a process has, with its head and its rank.
type Part = (&'static str, u8, fn(&Process) -> Option<u64>);

const PARTS: [Part; 4] = [
    (">ALLOC", 8, Process::allocations),
    (">POOLS", 9, |it| it.part(Category::Pools)),
    (">MANAGED", 10, |it| it.part(Category::Managed)),
    (">DRIVER", 10, |it| it.part(Category::Driver)),
];

/// Returns the table of processes.
pub fn processes<'a>(rows: &Rows<'a>) -> Table<'a, &'a Process> {
    let rows = rows.processes.clone();
    // A column that says nothing new is for wide screens.
    let has = |rank, is_new: &dyn Fn(&Process) -> bool| match rows.iter().any(|it| is_new(it)) {
        true => rank,
        false => EXTRA + rank,
    };
    // The group's name contains the name of a job of gpulimit.
    let job_rank = has(7, &|it| !it.title.contains(&it.place));
    let parts = PARTS.map(|(head, rank, of)| {
        let rank = has(rank, &|it| of(it).unwrap_or(0) > 0);
        (head, rank, of)
    });
    let pids = rows.iter().map(|it| figure(it.who.pid).len());
    let pid = pids.fold(5, usize::max);
    let job = if rows.iter().any(|it| !it.place.is_empty()) {
        22
    } else {
        0
    };
    let mut table = Table::new(rows)
        .column(">PID", [pid; 3], 1, |it, _| figure(it.who.pid))
        .column("USER", [8, 10, 0], 3, |it, _| it.user.as_str())
        .column("GROUP", [10, 28, 0], 4, |it, width| {
            cut(&it.title, width, width)
        })
        .column("JOB", [job, job, 0], job_rank, |it, _| it.place.as_str())
        .column("GPU", [9, 9, 0], 6, |it, _| it.label.as_str())
        .column(">TOTAL", [6; 3], 2, |it, _| size(it.total));
    for (head, rank, of) in parts {
        table = table.column(head, [head.len().max(7) - 1; 3], rank, move |it, _| {
            size(of(it))
        });
    }
    table.column("COMMAND", [8, 24, usize::MAX], 5, |it, _| {
        let gap = if it.state.is_empty() { "" } else { " " };
        let state = Span::styled(it.state.as_str(), ALARM);
        Line::from_iter([state, gap.into(), it.command.as_str().into()])
    })
}

/// Formats bytes in at most six columns: `23.8G`, `518.0M`, `17B`.
pub fn short(bytes: u64) -> String {
    const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];
    if bytes < 1_000 {
        return format!("{bytes}B");
    }
    let tenths = |shift: u32| (u128::from(bytes) * 10 + (1 << (shift - 1))) >> shift;
    let fits = |(_, shift): &(char, u32)| tenths(*shift) < 10_000;
    let (unit, shift) = UNITS.into_iter().find(fits).unwrap_or(UNITS[4]);
    format!("{}.{}{unit}", tenths(shift) / 10, tenths(shift) % 10)
}

/// Formats bytes; `-` if unknown.
pub fn size(bytes: Option<u64>) -> String {
    figure(bytes.map(short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(width: usize) -> String {
        let text = |length: usize| move |(), _| "-".repeat(length);
        let table = Table::new(vec![()])
            .column("a", [4, 8, 8], 1, text(8))
            .column(">b", [3; 3], 2, text(3))
            .column(">x", [5; 3], EXTRA, text(5))
            .column("c", [2, 4, 10], 0, text(4));
        let widths = table.widths(width).into_iter().zip(&table.columns);
        let shown = widths.filter(|(width, _)| *width > 0);
        let texts = shown.map(|(width, column)| format!("{}{width}", column.head));
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn columns_are_chosen_by_rank_and_fit() {
        for (width, expected) in [
            (0, ""),
            (2, "c2"),
            (7, "a4 c2"),
            (11, "a4 b3 c2"),
            // What texts need comes before further columns.
            (17, "a8 b3 c4"),
            (22, "a8 b3 c9"),
            (23, "a8 b3 x5 c4"),
            (40, "a8 b3 x5 c10"),
        ] {
            assert_eq!(placed(width), expected, "{width}");
        }
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(short(0), "0B");
        assert_eq!(short(518 << 20), "518.0M");
        assert_eq!(short((80 << 30) - 1), "80.0G");
        assert_eq!(size(None), "-");
        assert_eq!(short(999), "999B");
        assert_eq!(short(1_000), "1.0K");
        assert_eq!(short(1_023 << 20), "1.0G");
        assert_eq!(short(u64::MAX), "16384.0P");
    }
}
