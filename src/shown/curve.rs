//! Draws the past usage of a group on one GPU as lines of text.

use super::terminal::{self, NO_BREAK};
use crate::figures::{past::Past, spans::Span};
use gpulimit_base::units::gib;
use gpulimit_ledger::EventKind;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Number of lines of the curve, without its axis.
const ROWS: u64 = 8;
/// Heights are counted in eighths of a line, because there are characters for these.
const EIGHTHS: u64 = 8;
/// Smallest distance of two marks on the time axis, in columns.
const TICK_COLUMNS: u64 = 12;
/// Distances of two marks on the time axis, in seconds.
const STEPS: [u64; 14] = [
    1, 5, 10, 30, 60, 120, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400,
];

/// Returns the curve of the past usage of a group on one GPU as lines, from the first period on of
/// which something is known. Without `unicode`, they have only characters of ASCII.
pub fn of(past: &Past, zone: &TimeZone, width: usize, unicode: bool) -> Vec<String> {
    let curve = Curve {
        spans: since_known(&past.spans),
        length: past.resolution.seconds(),
        limit: past.gpu.limit(),
        zone,
        width,
        unicode,
        asked: &past.times(&[EventKind::Asked]),
        moved: &past.times(&[EventKind::Suspend, EventKind::Resume, EventKind::Lost]),
    };
    curve.lines()
}

/// Returns the periods from the first one on of which something is known.
fn since_known(spans: &[Span]) -> &[Span] {
    let is_known = |span: &Span| span.highest().is_some() || span.refusals + span.kills > 0;
    &spans[spans.iter().position(is_known).unwrap_or(0)..]
}

/// What to draw.
struct Curve<'a> {
    /// Periods of equal length, oldest first.
    pub spans: &'a [Span],
    /// The length of a period in seconds.
    pub length: u64,
    /// The limit in bytes.
    pub limit: Option<u64>,
    /// The time zone of the axis.
    pub zone: &'a TimeZone,
    /// Width of the lines in columns.
    pub width: usize,
    /// Whether the terminal has other characters than those of ASCII.
    pub unicode: bool,
    /// When members were asked for memory, in seconds since 1970.
    pub asked: &'a [u64],
    /// When processes were suspended, resumed or lost, in seconds since 1970.
    pub moved: &'a [u64],
}

/// A cell that is filled up to one eighth, two eighths, … and in full.
const FILLED: [char; EIGHTHS as usize] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const VARIED: char = '▒';
const UNCERTAIN: char = '░';
const LIMIT: char = '─';
const UNKNOWN: char = '?';
const REFUSED: char = 'R';
const KILLED: char = 'K';
const MOVED: char = 'S';
const ASKED: char = 'A';

/// The characters that are drawn, and what terminals without UTF-8 show instead.
const DRAWN: [&str; 2] = ["▁▂▃▄▅▆▇█▒░─│┤└┬", "___#####:.-|+++"];

/// One column of the curve: heights in eighths of a line.
struct Column {
    /// The usage was always at least this high.
    floor: u64,
    /// The usage was this high at some time.
    reached: u64,
    /// The usage was never higher.
    most: u64,
    /// Whether nothing at all is known.
    unknown: bool,
    /// The mark of the most important event.
    event: Option<char>,
}

impl Curve<'_> {
    /// Returns the lines of the curve: the limit, the usage, refusals and kills, the time axis, and
    /// an explanation of the characters.
    pub fn lines(&self) -> Vec<String> {
        let top = self.top();
        let labels: Vec<(String, bool)> = (0..ROWS).map(|row| self.label(top, row)).collect();
        let widths = labels.iter().map(|(text, _)| text.len());
        let width = widths.fold(gib(top).to_string().len(), usize::max);
        let margin = width + 2;
        let columns = self.columns(top, self.width.saturating_sub(margin).max(1));
        let mut lines = Vec::new();
        let mut line = |label: &str, cells: String| {
            let side = if label.is_empty() { '│' } else { '┤' };
            lines.push(format!("{label:>width$} {side}{cells}"));
        };
        if self.limit == Some(top) {
            line(
                &gib(top).to_string(),
                LIMIT.to_string().repeat(columns.len()),
            );
        }
        for (row, (label, is_limit)) in labels.iter().enumerate().rev() {
            let cell = |column: &Column| match column.cell(row as u64) {
                ' ' if *is_limit => LIMIT,
                cell => cell,
            };
            line(label, columns.iter().map(cell).collect());
        }
        let event = |column: &Column| column.event.unwrap_or(' ');
        let events: String = columns.iter().map(event).collect();
        let drawn: String = lines
            .iter()
            .flat_map(|line| line.chars().skip(margin))
            .collect();
        let legend = legend(&(drawn + &events), self.width);
        let (marks, times) = self.axis(columns.len(), margin);
        lines.push(format!("{:>width$} └{marks}", 0));
        if !events.trim().is_empty() {
            lines.push(format!("{:margin$}{events}", ""));
        }
        lines.push(times);
        lines.extend(legend);
        let shown = |line: String| -> String {
            let line = line.trim_end().chars();
            let ascii = |c| {
                DRAWN[0]
                    .chars()
                    .position(|drawn| drawn == c && !self.unicode)
            };
            line.map(|c| ascii(c).map_or(c, |at| DRAWN[1].as_bytes()[at].into()))
                .collect()
        };
        lines.into_iter().map(shown).collect()
    }

    /// Returns the usage at the top of the curve in bytes.
    fn top(&self) -> u64 {
        let highest = |span: &Span| {
            let known = span.known.map_or(0, |usage| usage.max);
            known.max(span.at_least).max(span.at_most.unwrap_or(0))
        };
        let highest = self.spans.iter().map(highest).max().unwrap_or(0);
        highest.max(self.limit.unwrap_or(0)).max(1)
    }

    /// Returns the text to the left of a row, and whether the limit's line is in the row.
    fn label(&self, top: u64, row: u64) -> (String, bool) {
        let row_of = |bytes: u64| u128::from(bytes) * u128::from(ROWS) / u128::from(top);
        match self.limit {
            Some(limit) if limit < top && row_of(limit) == u128::from(row) => {
                (gib(limit).to_string(), true)
            }
            limit if row + 1 == ROWS && limit != Some(top) => (gib(top).to_string(), false),
            _ if row + 1 == ROWS / 2 => (gib(top / 2).to_string(), false),
            _ => (String::new(), false),
        }
    }

    /// Returns the columns. If there are more periods than columns, a column shows several.
    fn columns(&self, top: u64, width: usize) -> Vec<Column> {
        let height = |bytes: u64| {
            let eighths = u128::from(bytes) * u128::from(ROWS * EIGHTHS);
            eighths.div_ceil(u128::from(top)) as u64
        };
        let count = self.spans.len();
        let column = |at: usize| {
            let first = at * count / width;
            let spans = &self.spans[first..((at + 1) * count / width).max(first + 1)];
            let reached = |span: &Span| span.known.map_or(span.at_least, |usage| usage.max);
            let unknown = |span: &Span| span.known.is_none() && span.at_most.is_none();
            let begin = spans.first().map_or(0, |span| span.start);
            let end = spans.last().map_or(0, |span| span.start + self.length);
            let has = |times: &[u64]| times.iter().any(|time| (begin..end).contains(time));
            let event = [
                (spans.iter().any(|span| span.kills > 0), KILLED),
                (spans.iter().any(|span| span.refusals > 0), REFUSED),
                (has(self.moved), MOVED),
                (has(self.asked), ASKED),
            ];
            Column {
                floor: height(spans.iter().map(|span| span.at_least).min().unwrap_or(0)),
                reached: height(spans.iter().map(reached).max().unwrap_or(0)),
                most: height(
                    spans
                        .iter()
                        .filter_map(|span| span.at_most)
                        .max()
                        .unwrap_or(0),
                ),
                unknown: spans.iter().all(unknown),
                event: event.iter().find(|(has, _)| *has).map(|(_, mark)| *mark),
            }
        };
        match count {
            0 => Vec::new(),
            _ => (0..width).map(column).collect(),
        }
    }

    /// Returns the marks of the time axis, and the line with its times.
    fn axis(&self, width: usize, margin: usize) -> (String, String) {
        let mut marks = vec!['─'; width];
        let mut times = String::new();
        for (column, text) in self.ticks(width) {
            marks[column] = '┬';
            if times.len() < margin + column && column + text.len() <= width {
                times = format!("{times:<0$}{text}", margin + column);
            }
        }
        (marks.into_iter().collect(), times)
    }

    /// Returns the marks of the time axis: the column, and the text of the time.
    fn ticks(&self, width: usize) -> Vec<(usize, String)> {
        let Some(first) = self.spans.first() else {
            return Vec::new();
        };
        let total = self.length * self.spans.len() as u64;
        let zoned = |second: u64| {
            let second = i64::try_from(second).unwrap_or(0);
            Timestamp::from_second(second)
                .unwrap_or(Timestamp::UNIX_EPOCH)
                .to_zoned(self.zone.clone())
        };
        // Marks are at round times of the zone.
        let offset = i64::from(zoned(first.start + total).offset().seconds());
        let columns_of = |step: &u64| step * width as u64 / total;
        let step = STEPS
            .into_iter()
            .find(|step| columns_of(step) >= TICK_COLUMNS);
        let step = step.unwrap_or(86_400);
        let format = match (step, total) {
            (0..60, _) => "%H:%M:%S",
            (86_400.., _) => "%b %d",
            (_, 0..=86_400) => "%H:%M",
            _ => "%a %H:%M",
        };
        let round = |column: usize| {
            let time = first.start + column as u64 * total / width as u64;
            time.saturating_add_signed(offset) / step
        };
        (1..width)
            .filter(|column| round(*column) != round(column - 1))
            .map(|column| {
                let time = (round(column) * step).saturating_add_signed(-offset);
                (column, zoned(time).strftime(format).to_string())
            })
            .collect()
    }
}

impl Column {
    /// Returns the character of the cell in a row. Row 0 is the lowest.
    fn cell(&self, row: u64) -> char {
        let bottom = row * EIGHTHS;
        let inside = |height: u64| height.saturating_sub(bottom).min(EIGHTHS);
        let (floor, reached, most) = (inside(self.floor), inside(self.reached), inside(self.most));
        let half = EIGHTHS / 2;
        match reached {
            0 if self.unknown && row == 0 => UNKNOWN,
            0 if most > 0 => UNCERTAIN,
            0 => ' ',
            EIGHTHS if floor < half => VARIED,
            // A part of the cell is filled, and the group may have used more.
            1..EIGHTHS if floor == 0 && reached >= half => VARIED,
            _ => FILLED[reached as usize - 1],
        }
    }
}

/// Explains those characters that were drawn.
fn legend(drawn: &str, width: usize) -> Vec<String> {
    let full = FILLED[EIGHTHS as usize - 1];
    let texts = [
        (full, "used"),
        (VARIED, "used at times"),
        (UNCERTAIN, "perhaps used"),
        (UNKNOWN, "unknown"),
        (LIMIT, "limit"),
        (REFUSED, "refused"),
        (KILLED, "killed"),
        (MOVED, "suspended or resumed"),
        (ASKED, "members asked for memory"),
    ];
    let is_drawn = |(c, _): &(char, &str)| match *c == full {
        true => drawn.contains(FILLED),
        false => drawn.contains(*c),
    };
    let texts = texts.into_iter().filter(is_drawn);
    // A line break does not part an explanation.
    let texts = texts.map(|(c, text)| format!("{c} {text}").replace(' ', NO_BREAK));
    let text = texts.collect::<Vec<_>>().join("   ");
    let lines = terminal::wrap(&text, 0, width);
    lines
        .iter()
        .map(|line| line.replace(NO_BREAK, " "))
        .collect()
}

#[cfg(test)]
mod tests;
