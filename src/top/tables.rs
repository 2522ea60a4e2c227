//! The tables of groups and of processes: their columns, and which of them a width has room for.

use super::look::{ALARM, CURVE, HEADS, HEIGHTS, SELECTED};
use super::round::{Process, Round, Usage};
use super::rows::GroupRow;
use crate::table::figure;
use crate::terminal::cut;
use gpulimit_group::last_name;
use gpulimit_ledger::Category;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, Row, Widget};

/// The width of a size.
const SIZE: usize = 6;
/// Columns of this rank and more are shown only if all others have what they need.
const EXTRA: u8 = 20;

/// Formats a row's cell for a width.
type Cell<'a, R> = Box<dyn Fn(&'a R, usize) -> Line<'a> + 'a>;

/// A column that a table can have.
struct Column<'a, R> {
    head: Line<'static>,
    /// The least width, with which the column is shown at all; the width that the cells need; and
    /// the width up to which the column takes what is left.
    widths: [usize; 3],
    /// Columns of a low rank are shown on narrow screens, too.
    rank: u8,
    cell: Cell<'a, R>,
}

/// A table with all columns that it can have.
pub struct Table<'a, R> {
    rows: &'a [R],
    columns: Vec<Column<'a, R>>,
}

impl<'a, R> Table<'a, R> {
    const fn new(rows: &'a [R]) -> Self {
        let columns = Vec::new();
        Self { rows, columns }
    }

    /// Adds a column.
    fn column<L: Into<Line<'a>>>(
        mut self,
        head: &'static str,
        widths: [usize; 3],
        rank: u8,
        cell: impl Fn(&'a R, usize) -> L + 'a,
    ) -> Self {
        self.columns.push(Column {
            head: Span::styled(head, HEADS).into(),
            widths,
            rank,
            cell: Box::new(move |row, width| cell(row, width).into()),
        });
        self
    }

    /// Adds a column of texts, which are cut to the least width on narrow screens, and always to
    /// the largest width.
    fn text<L: Into<Line<'a>>>(
        self,
        head: &'static str,
        [least, most]: [usize; 2],
        rank: u8,
        text: impl Fn(&'a R, usize) -> L + 'a,
    ) -> Self {
        let cells = self.rows.iter().map(|row| text(row, most).into().width());
        let wanted = cells.fold(head.len(), usize::max).min(most);
        self.column(head, [least.min(wanted), wanted, wanted], rank, text)
    }

    /// Adds a column of figures.
    fn figure(
        self,
        head: &'static str,
        width: usize,
        rank: u8,
        figure: impl Fn(&'a R) -> String + 'a,
    ) -> Self {
        let cell = move |row, _| Line::from(figure(row)).right_aligned();
        let mut table = self.column(head, [width.max(head.len()); 3], rank, cell);
        let column = table.columns.last_mut();
        column
            .into_iter()
            .for_each(|it| it.head.alignment = Some(Alignment::Right));
        table
    }

    /// Adds a column of sizes.
    fn size(self, head: &'static str, rank: u8, bytes: impl Fn(&'a R) -> Option<u64> + 'a) -> Self {
        self.figure(head, SIZE, rank, move |row| short_or_unknown(bytes(row)))
    }

    /// Adds a column of numbers.
    fn count(
        self,
        head: &'static str,
        width: usize,
        rank: u8,
        count: impl Fn(&'a R) -> Option<u64> + 'a,
    ) -> Self {
        self.figure(head, width, rank, move |row| figure(count(row)))
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

    /// Draws the heads, and below them the rows from `first` on.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer, first: usize, selected: Option<usize>) {
        let widths = self.widths(area.width.into());
        let shown = self.columns.iter().zip(widths);
        let shown: Vec<_> = shown.filter(|(_, width)| *width > 0).collect();
        let end = self.rows.len().min(first + usize::from(area.height) - 1);
        let rows = (first..end).map(|at| {
            let cell = |(column, width): &(&Column<'a, R>, usize)| {
                fitted((column.cell)(&self.rows[at], *width), *width)
            };
            let row = Row::new(shown.iter().map(cell));
            row.style(if selected == Some(at) {
                SELECTED
            } else {
                Style::new()
            })
        });
        let heads = shown.iter().map(|(column, _)| column.head.clone());
        widgets::Table::new(rows, shown.iter().map(|(_, width)| *width as u16))
            .header(Row::new(heads))
            .render(area, buffer);
    }
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
pub fn groups<'a>(round: &'a Round, rows: &'a [GroupRow]) -> Table<'a, GroupRow> {
    let of = move |row: &'a GroupRow| row.usage(round);
    let max = |usage: &Usage| usage.max.map_or_else(|| usage.max_text.clone(), short);
    Table::new(rows)
        .text("GROUP", [12, 32], 0, move |it, _| name(round, it))
        .text("GPU", [9, 9], 3, move |it, _| of(it).label.as_str())
        .size("USAGE", 1, move |it| of(it).usage)
        .figure("MAX", SIZE, 2, move |it| max(of(it)))
        .count("%", 3, 4, move |it| of(it).percent())
        .size("PEAK", 6, move |it| of(it).peak)
        .size("FREE", EXTRA, move |it| of(it).free)
        .size("HIGH", EXTRA + 4, move |it| of(it).high)
        .count("REFUSED", 7, EXTRA + 1, move |it| of(it).refusals)
        .count("PROC", 4, EXTRA + 2, move |it| of(it).processes)
        .text("LIMITED BY", [20, 20], EXTRA + 5, move |it, _| {
            of(it).limited_by.as_str()
        })
        .column("10 MIN", [8, 8, 60], 7, move |it, width| {
            Line::styled(recent(of(it), width), CURVE)
        })
        .text("STATE", [8, 36], 5, move |it, _| {
            Line::styled(of(it).states.join(", "), ALARM)
        })
}

/// Returns the name of a group behind the branches of the tree. Only the first row of a group has
/// its name.
fn name(round: &Round, row: &GroupRow) -> String {
    let group = &round.groups[row.group];
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

/// Returns the table of processes, which are at these places in the round.
pub fn processes<'a>(round: &'a Round, rows: &'a [usize]) -> Table<'a, usize> {
    let of = move |at: &usize| &round.processes[*at];
    let all = || rows.iter().map(of);
    // A column that says nothing new is for wide screens.
    let has = |rank, is_new: &dyn Fn(&Process) -> bool| match all().any(is_new) {
        true => rank,
        false => EXTRA + rank,
    };
    let part = |rank, of: fn(&Process) -> Option<u64>| has(rank, &|it| of(it).unwrap_or(0) > 0);
    let pools: fn(&Process) -> _ = |it| it.part(Category::Pools);
    let managed: fn(&Process) -> _ = |it| it.part(Category::Managed);
    let driver: fn(&Process) -> _ = |it| it.part(Category::Driver);
    // The group's name contains the name of a job of gpulimit.
    let job = has(7, &|it| !it.title.contains(&it.place));
    let job_width = all().any(|it| !it.place.is_empty()).then_some(22);
    let pid = |it: &Process| figure(it.who.pid);
    let longest = all().map(|it| pid(it).len()).fold(5, usize::max);
    Table::new(rows)
        .figure("PID", longest, 1, move |it| pid(of(it)))
        .text("USER", [8, 10], 3, move |it, _| of(it).user.as_str())
        .text("GROUP", [10, 28], 4, move |it, width| {
            cut(&of(it).title, width, width)
        })
        .text("JOB", [22, job_width.unwrap_or(0)], job, move |it, _| {
            of(it).place.as_str()
        })
        .text("GPU", [9, 9], 6, move |it, _| of(it).label.as_str())
        .size("TOTAL", 2, move |it| of(it).total)
        .size("ALLOC", part(8, Process::allocations), move |it| {
            of(it).allocations()
        })
        .size("POOLS", part(9, pools), move |it| pools(of(it)))
        .size("MANAGED", part(10, managed), move |it| managed(of(it)))
        .size("DRIVER", part(10, driver), move |it| driver(of(it)))
        .column("COMMAND", [8, 32, usize::MAX], 5, move |it, _| {
            let (state, command) = (of(it).state.as_str(), of(it).command.as_str());
            let gap = if state.is_empty() { "" } else { " " };
            let state = Span::styled(state, ALARM);
            Line::from_iter([state, gap.into(), command.into()])
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
pub fn short_or_unknown(bytes: Option<u64>) -> String {
    figure(bytes.map(short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(width: usize) -> String {
        let table = Table::new(&[()])
            .column("a", [4, 8, 8], 1, |_, _| "")
            .column("b", [3, 3, 3], 2, |_, _| "")
            .column("x", [5, 5, 5], EXTRA, |_, _| "")
            .column("c", [2, 4, 10], 0, |_, _| "");
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
        assert_eq!(short_or_unknown(None), "-");
        assert_eq!(short(999), "999B");
        assert_eq!(short(1_000), "1.0K");
        assert_eq!(short(1_023 << 20), "1.0G");
        assert_eq!(short(u64::MAX), "16384.0P");
    }
}
