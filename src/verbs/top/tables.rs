//! The tables of groups and of processes: their columns, and which of them a width has room for.

use super::look::{ALARM, CURVE, HEADS, HEIGHTS, PLAIN, SELECTED, TITLE, WEAK};
use super::round::{Round, Tops, Who};
use super::rows::{GroupRow, Rows};
use crate::figures::fields::{Field, Look, Unit};
use crate::figures::processes::{self, Process};
use crate::figures::snapshot::GpuMemory;
use crate::figures::users::{self, Use};
use crate::figures::{Figures, Gpu, Row};
use crate::shown::output::Escaped;
use crate::shown::table::figure;
use crate::shown::terminal::cut;
use crate::words::clock::rough_span;
use gpulimit_base::units::gib;
use gpulimit_group::is_within;
use gpulimit_limits::Key;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;
use std::cmp::Reverse;
use std::slice;

/// Columns of this rank and more are shown only if all others have what they need.
const EXTRA: u8 = 20;

/// From this part of its limit on, in percent, a group is nearly full.
const NEARLY: u64 = 90;

/// A column that a table can have.
struct Column<'a, R> {
    head: String,
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

impl<'a, R: Copy + 'a> Table<'a, R> {
    const fn new(rows: Vec<R>) -> Self {
        let columns = Vec::new();
        Self { rows, columns }
    }

    /// Adds a column. A column that takes what is left needs the second width, and other columns
    /// need the width of their longest text, up to the second width. A column without a text is not
    /// shown.
    fn column<L: Into<Line<'a>>>(
        mut self,
        (head, look): (&str, Look),
        [least, wanted, most]: [usize; 3],
        rank: u8,
        cell: impl Fn(R, usize) -> L + 'a,
    ) -> Self {
        let wanted = match most {
            0 => {
                let width = |row: &R| cell(*row, wanted).into().width();
                match self.rows.iter().map(width).max() {
                    Some(0) => 0,
                    longest => longest.unwrap_or(0).max(head.len()).min(wanted),
                }
            }
            _ => wanted,
        };
        self.columns.push(Column {
            head: head.into(),
            align: match look {
                Look::Right => Alignment::Right,
                Look::Left | Look::Path => Alignment::Left,
            },
            widths: [least.min(wanted), wanted, most.max(wanted)],
            rank,
            cell: Box::new(move |row, width| cell(row, width).into()),
        });
        self
    }

    /// Adds the columns of fields that have a place in `top`. One that says nothing is for wide
    /// screens.
    fn declared<F: 'a>(mut self, fields: &'a [Field<F>], of: fn(R) -> &'a F) -> Self {
        for field in fields {
            let Some(column) = field.column.filter(|column| column.rank > 0) else {
                continue;
            };
            let is_dull = |row: &R| (field.cell)(of(*row)).is_dull();
            let is_dull = self.rows.iter().all(is_dull);
            if is_dull && column.sparse {
                continue;
            }
            let goes = is_dull && column.narrow > 0;
            let rank = column.rank + if goes { EXTRA } else { 0 };
            let widths = match (column.look, field.unit) {
                (Look::Right, Unit::Bytes) => [column.short.len().max(6); 3],
                (Look::Right, _) => [10, 10, 0],
                (Look::Left, _) => [8, 20, 0],
                (Look::Path, _) => [10, 28, 0],
            };
            // The end of a name tells groups apart.
            let is_path = column.look == Look::Path;
            self = self.column(
                (column.short, column.look),
                widths,
                rank,
                move |row, width| {
                    let text = text(field, of(row));
                    cut(&text, width, if is_path { width } else { 0 }).into_owned()
                },
            );
        }
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
    pub fn draw(&self, area: Rect, buffer: &mut Buffer, first: usize, chosen: Option<usize>) {
        let widths = self.widths(area.width.into());
        let mut lines = area.rows();
        let mut draw = |cell: &dyn Fn(&Column<'a, R>, usize) -> Line<'a>, style| {
            let Some(line) = lines.next() else { return };
            let mut x = line.x;
            let columns = self.columns.iter().zip(&widths);
            for (column, width) in columns.filter(|(_, width)| **width > 0) {
                let cell = fitted(cell(column, *width), *width).alignment(column.align);
                cell.render(Rect::new(x, line.y, *width as u16, 1), buffer);
                x += *width as u16 + 1;
            }
            buffer.set_style(line, style);
        };
        draw(
            &|column, _| Span::styled(column.head.clone(), HEADS).into(),
            PLAIN,
        );
        for at in (first..self.rows.len()).take(area.height.saturating_sub(1).into()) {
            let style = if chosen == Some(at) { SELECTED } else { PLAIN };
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

/// Formats a field of a row in few columns.
fn text<F>(field: &Field<F>, row: &F) -> String {
    let cell = (field.cell)(row);
    match (field.unit, cell.number()) {
        (Unit::Bytes, Some(bytes)) => short(bytes),
        _ => Escaped(&figure(cell.text(field.unit, None))).to_string(),
    }
}

/// Returns the table of groups, with a cell for each of these GPUs.
pub fn groups<'a>(
    rows: &'a Rows<'a>,
    gpus: &'a [&'a GpuMemory],
    tops: &'a Tops<'a>,
) -> Table<'a, &'a GroupRow<'a>> {
    let machines = gpus.chunk_by(|one, other| one.machine == other.machine);
    let most = machines.max_by_key(|gpus| gpus.len()).unwrap_or_default();
    let heads: String = most.iter().map(|gpu| last_digit(gpu.index)).collect();
    let cells = most.len();
    let (machine, figures) = Row::FIELDS.split_at(1);
    // Beside sums of several GPUs, a percentage says of which GPU it is.
    let is_sum = rows.groups.iter().any(|it| it.row.is_sum);
    let percent = if is_sum { "FULLEST" } else { "%" };
    Table::new(rows.groups.iter().collect())
        .declared(machine, |it| &it.row)
        .column(("GROUP", Look::Left), [12, 32, 0], 0, |it, _| {
            Span::styled(&*it.name, tops.fill(it.top).1)
        })
        .column((&heads, Look::Left), [cells; 3], 3, |it, _| {
            let its = gpus.iter();
            let its = its.filter(|gpu| gpu.machine == it.row.group.machine);
            Line::from_iter(its.map(|gpu| cell(it.row.group, gpu)))
        })
        .declared(figures, |it| &it.row)
        .column((percent, Look::Right), [10, 10, 0], 4, move |it, _| {
            let fullest = gpus_of(&it.row).iter().max_by_key(|gpu| gpu.percent());
            let percent = fullest.and_then(Gpu::percent);
            let (is_nearly_full, text) = (percent >= Some(NEARLY), figure(percent));
            let text = match fullest.filter(|_| is_sum && percent.is_some()) {
                Some(gpu) => format!("{}: {text}%", figure(gpu.index)),
                None => text,
            };
            Span::styled(text, if is_nearly_full { ALARM } else { PLAIN })
        })
        .column(("MEM 10 MIN", Look::Left), [10, 10, 60], 7, |it, width| {
            let recent = it.row.gpu.map(|gpu| recent(gpu, width));
            Line::styled(recent.unwrap_or_default(), CURVE)
        })
        .column(("STATE", Look::Left), [8, 36, 0], 5, |it, _| {
            let states = states(&it.row).into_iter();
            let mut spans: Vec<_> = states.flat_map(|state| [state, ", ".into()]).collect();
            spans.pop();
            Line::from(spans)
        })
}

/// Returns the last digit of a GPU's index, as the head of its cells.
fn last_digit(index: Option<u32>) -> char {
    index.map_or('-', |index| char::from(b'0' + (index % 10) as u8))
}

/// Returns the cell of a group for a GPU: the used part of the group's limit there, or of the GPU.
fn cell(group: &Figures, gpu: &GpuMemory) -> Span<'static> {
    let on = group.gpus.iter().find(|on| on.id == gpu.id);
    let Some((on, used)) = on.and_then(|on| Some((on, on.usage.filter(|used| *used > 0)?))) else {
        return Span::styled("·", WEAK);
    };
    let is_refused = on.waiting > Some(0) || on.refused_lately > 0;
    let is_alarm = is_refused || on.percent() >= Some(NEARLY);
    let whole = on.limit().or(gpu.total).unwrap_or(used);
    Span::styled(height(used, whole), if is_alarm { ALARM } else { CURVE })
}

/// Returns the GPUs of a row.
fn gpus_of<'a>(row: &Row<'a>) -> &'a [Gpu] {
    match row.is_sum {
        true => &row.group.gpus,
        false => row.gpu.map_or(&[], slice::from_ref),
    }
}

/// Returns the unusual states of a group: requests that wait or were refused lately, usage above a
/// limit, suspended, uncovered and draining memory, a leak. Those that need attention have the
/// style of an alarm.
pub fn states(row: &Row<'_>) -> Vec<Span<'static>> {
    let Some(gpu) = row.gpu else {
        return Vec::new();
    };
    let is_above = |limit: fn(&Gpu) -> Option<u64>| {
        let above = |gpu: &Gpu| limit(gpu).is_some_and(|limit| gpu.usage > Some(limit));
        gpus_of(row).iter().any(above)
    };
    let waits = gpu.longest_wait.as_ref().map(|longest| match gpu.waiting {
        Some(waiting @ 2..) => format!("{longest} (+{})", waiting - 1),
        _ => longest.to_string(),
    });
    let above = is_above(Gpu::limit).then_some("above max");
    let above = above.or(is_above(|it| it.bytes(Key::High)).then_some("above high"));
    let count = gpu.refused_lately;
    let refused = (count > 0).then(|| format!("{count} refused in 1 min"));
    let states = [
        (ALARM, waits),
        (ALARM, refused),
        (ALARM, above.map(str::to_owned)),
        (ALARM, sized("uncovered", gpu.uncovered)),
        (ALARM, gpu.trend.map(|_| "may leak".into())),
        (PLAIN, sized("suspended", gpu.suspended)),
        (PLAIN, (gpu.draining > Some(0)).then(|| "draining".into())),
    ];
    let span = |(style, state): (Style, Option<String>)| Some(Span::styled(state?, style));
    states.into_iter().filter_map(span).collect()
}

/// Returns a state with its bytes: `suspended 2.0 GiB`; `None` for none.
fn sized(state: &str, bytes: Option<u64>) -> Option<String> {
    let bytes = bytes.filter(|bytes| *bytes > 0)?;
    Some(format!("{state} {}", gib(bytes)))
}

/// Returns the recent usage as a curve of one line. The highest line is the limit, or else the
/// peak.
fn recent(usage: &Gpu, width: usize) -> String {
    let whole = usage.limit().or(usage.peak).unwrap_or(0).max(1);
    let parts = usage.recent.len();
    let columns = width.min(parts);
    let column = |column: usize| {
        let parts = &usage.recent[column * parts / columns..(column + 1) * parts / columns];
        height(parts.iter().flatten().max().copied().unwrap_or(0), whole)
    };
    (0..columns).map(column).collect()
}

/// Returns a bar of one character for a part of `whole` bytes.
fn height(part: u64, whole: u64) -> &'static str {
    let steps = HEIGHTS.len() as u128;
    let level = (u128::from(part) * steps).div_ceil(whole.max(1).into());
    match level.min(steps) {
        0 => " ",
        level => HEIGHTS[level as usize - 1],
    }
}

/// Returns the table of processes.
pub fn processes<'a>(rows: Vec<&'a Process>, round: &'a Round) -> Table<'a, &'a Process> {
    // The group's name contains the name of a job of gpulimit.
    let is_new = |it: &&Process| !it.title.contains(&it.place);
    let job_rank = 8 + if rows.iter().any(is_new) { 0 } else { EXTRA };
    let gpu = processes::FIELDS.iter().position(|it| it.key == "gpu");
    let (before, after) = processes::FIELDS.split_at(gpu.unwrap_or(0));
    Table::new(rows)
        .declared(before, |it| it)
        .column(("JOB", Look::Left), [22, 22, 0], job_rank, |it, _| {
            &*it.place
        })
        .column(("GPU", Look::Left), [9, 9, 0], 6, |it, _| {
            round.label(it.gpu())
        })
        .declared(after, |it| it)
        .column(("STATE", Look::Left), [23, 48, 0], 6, |it, width| {
            let (state, holder) = (state(it), holder(it, round).unwrap_or_default());
            let fits = state.len() + holder.len() <= width;
            Span::styled(state + if fits { &holder } else { "" }, style(it, TITLE))
        })
        .column(("COMMAND", Look::Left), [8, 24, usize::MAX], 4, |it, _| {
            Span::styled(figure(it.command.as_deref()), style(it, PLAIN))
        })
}

/// Returns the style of a process: that of an alarm if a request waits or was refused lately.
fn style(process: &Process, usual: Style) -> Style {
    match process.waits.is_some() || process.refused.is_some() {
        true => ALARM,
        false => usual,
    }
}

/// Returns which other process has the most memory of the group that is full for a request.
fn holder(process: &Process, round: &Round) -> Option<String> {
    let line = &process.waits.as_ref()?.line;
    let mut others: Vec<&Process> = round.processes.iter().collect();
    others.retain(|it| it.root == process.root && is_within(&it.group, line));
    others.retain(|it| it.gpu() == process.gpu() && Who::of(it) != Who::of(process));
    let largest = others.into_iter().max_by_key(|it| it.total())?;
    Some(format!("; {} has {}", largest.pid?, size(largest.total())))
}

/// Returns the table of users, those with the most memory first.
pub fn users(uses: &[Use]) -> Table<'_, &Use> {
    let mut rows: Vec<&Use> = uses.iter().collect();
    rows.sort_by_key(|it| Reverse(it.total));
    Table::new(rows).declared(users::FIELDS, |it| it)
}

/// Returns the state of a process, or the request that waits; empty for a process that runs.
fn state(process: &Process) -> String {
    let suspended = process.on.as_ref().map(|parts| parts.suspended);
    match (&process.waits, process.state) {
        (Some(waits), _) => waits.to_string(),
        (None, "running") => process.refused.map_or_else(String::new, |time| {
            format!("refused {} ago", rough_span(time))
        }),
        (None, "resuming") => sized("waits for", process.returning()).unwrap_or("resuming".into()),
        // On a GPU of which nothing is on the host, there is no figure.
        (None, "suspended") => sized("suspended", suspended).unwrap_or("suspended".into()),
        (None, state) => state.into(),
    }
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
            .column(("a", Look::Left), [4, 8, 8], 1, text(8))
            .column(("b", Look::Right), [3; 3], 2, text(3))
            .column(("x", Look::Right), [5; 3], EXTRA, text(5))
            .column(("c", Look::Left), [2, 4, 10], 0, text(4));
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
