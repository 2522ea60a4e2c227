//! The figures of calls, for people and for programs.

use crate::case::{Axis, Point, Series};
use crate::run::{Time, Way};
use std::fmt::Write as _;

/// A case at a point.
pub struct Row {
    pub series: &'static Series,
    pub point: Point,
    /// Best so far, by [`Way`].
    times: [Option<Time>; 3],
    /// By [`Way`].
    pub instructions: [Option<f64>; 3],
}

impl Row {
    pub fn new(series: &'static Series, point: Point) -> Self {
        Row {
            series,
            point,
            times: [None; 3],
            instructions: [None; 3],
        }
    }

    /// Another measurement. The least disturbed one counts.
    pub fn add_time(&mut self, way: Way, time: Time) {
        let best = self.times[way as usize].get_or_insert(time);
        best.processor = best.processor.min(time.processor);
        best.interval = best.interval.min(time.interval);
    }

    fn time(&self, way: Way) -> Option<Time> {
        self.times[way as usize]
    }

    fn processor(&self, way: Way) -> Option<f64> {
        Some(self.time(way)?.processor)
    }

    /// The processor's time that an iteration takes longer: ns.
    pub fn added(&self, way: Way) -> Option<f64> {
        Some(self.processor(way)? - self.processor(Way::Bare)?)
    }

    fn added_instructions(&self, way: Way) -> Option<f64> {
        Some(self.instructions[way as usize]? - self.instructions[Way::Bare as usize]?)
    }

    /// How many times as long a number of iterations takes, of whichever thread or process.
    fn ratio(&self) -> Option<f64> {
        Some(self.time(Way::Limited)?.interval / self.time(Way::Bare)?.interval)
    }
}

/// Tables in Markdown, one for each axis, and one of what has none.
pub fn tables(rows: &[Row]) -> String {
    let axes = Axis::ALL.map(Some);
    let tables = [None].into_iter().chain(axes);
    tables
        .filter_map(|axis| table(rows, axis))
        .map(|table| table + "\n")
        .collect()
}

/// The table of an axis; `None` when nothing of it was measured.
pub fn table(rows: &[Row], axis: Option<Axis>) -> Option<String> {
    let mut rows = rows.iter().filter(|row| row.series.axis == axis).peekable();
    rows.peek()?;
    let place = axis.map_or("", Axis::name);
    let mut table = format!(
        "| case | {place} | bare ns | no limit: added ns | instr. | limited: added ns | instr. | aim ns | ratio |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    );
    for row in rows {
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.series.case.what,
            row.point.value().map_or(String::new(), thousands),
            figure(row.processor(Way::Bare)),
            figure(row.added(Way::Preloaded)),
            figure(row.added_instructions(Way::Preloaded)),
            figure(row.added(Way::Limited)),
            figure(row.added_instructions(Way::Limited)),
            row.series
                .aim_at(row.point)
                .map_or(String::new(), |aim| format!("< {}", figure(Some(aim)))),
            row.ratio()
                .map_or(String::new(), |ratio| format!("{ratio:.2}")),
        );
    }
    Some(table)
}

fn figure(figure: Option<f64>) -> String {
    let Some(figure) = figure else {
        return String::new();
    };
    let sign = if figure.round() < 0.0 { "−" } else { "" };
    format!("{sign}{}", thousands(figure.abs().round() as u32))
}

fn thousands(value: u32) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// One object per line.
pub fn print_json(rows: &[Row]) {
    let figure = |figure: Option<f64>| figure.map_or("null".into(), |value| format!("{value:.1}"));
    for row in rows {
        let axes = Axis::ALL.map(|axis| format!(r#""{}": {}"#, axis.name(), row.point.at(axis)));
        println!(
            r#"{{"case": "{}", {}, "bare_ns": {}, "preloaded_ns": {}, "limited_ns": {}, "bare_instructions": {}, "preloaded_instructions": {}, "limited_instructions": {}, "ratio": {}, "aim_added_ns": {}}}"#,
            row.series.case.name,
            axes.join(", "),
            figure(row.processor(Way::Bare)),
            figure(row.processor(Way::Preloaded)),
            figure(row.processor(Way::Limited)),
            figure(row.instructions[0]),
            figure(row.instructions[1]),
            figure(row.instructions[2]),
            row.ratio()
                .map_or("null".into(), |ratio| format!("{ratio:.3}")),
            figure(row.series.aim_at(row.point)),
        );
    }
}
