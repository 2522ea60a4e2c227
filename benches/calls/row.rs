//! The results of the timed operations: tables for people, JSON for programs.

use crate::case::{Axis, Point, Series};
use crate::run::{Time, Way};
use std::fmt::Write as _;

/// The results of one benchmark case at one measurement point.
pub struct Row {
    pub series: &'static Series,
    pub point: Point,
    /// The best times so far, indexed by [`Way`].
    times: [Option<Time>; 3],
    /// Instructions per iteration, indexed by [`Way`].
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

    /// Adds the times of one run. Keeps the shortest times, because they were disturbed least.
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

    /// Returns the nanoseconds of processor time that the library adds to an iteration; `None` if a
    /// measurement is missing.
    pub fn added(&self, way: Way) -> Option<f64> {
        Some(self.processor(way)? - self.processor(Way::Bare)?)
    }

    /// Returns how many more instructions an iteration takes with the library than without it;
    /// `None` if the instructions of either were not counted.
    pub fn added_instructions(&self, way: Way) -> Option<f64> {
        Some(self.instructions[way as usize]? - self.instructions[Way::Bare as usize]?)
    }

    /// Returns the elapsed time of an iteration with a limit, divided by the elapsed time without
    /// the library. The time is for all threads or processes together.
    fn ratio(&self) -> Option<f64> {
        Some(self.time(Way::Limited)?.interval / self.time(Way::Bare)?.interval)
    }
}

/// Returns the results as Markdown tables: one for each axis, and one for cases without an axis.
pub fn tables(rows: &[Row]) -> String {
    let axes = Axis::ALL.map(Some);
    let tables = [None].into_iter().chain(axes);
    tables
        .filter_map(|axis| table(rows, axis))
        .map(|table| table + "\n")
        .collect()
}

/// Returns the table of results for an axis; `None` if the axis has no results.
pub fn table(rows: &[Row], axis: Option<Axis>) -> Option<String> {
    let mut rows = rows.iter().filter(|row| row.series.axis == axis).peekable();
    rows.peek()?;
    let place = axis.map_or("", Axis::name);
    let mut table = format!(
        "| case | {place} | bare ns | no limit: added ns | instr. | limited: added ns | instr. \
         | aim ns | ratio |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
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

/// Prints the results, one JSON object per line.
pub fn print_json(rows: &[Row]) {
    let figure = |figure: Option<f64>| figure.map_or("null".into(), |value| format!("{value:.1}"));
    for row in rows {
        let axes = Axis::ALL.map(|axis| format!(r#""{}": {}"#, axis.name(), row.point.at(axis)));
        println!(
            r#"{{"case": "{}", {}, "bare_ns": {}, "preloaded_ns": {}, "limited_ns": {}, {}}}"#,
            row.series.case.name,
            axes.join(", "),
            figure(row.processor(Way::Bare)),
            figure(row.processor(Way::Preloaded)),
            figure(row.processor(Way::Limited)),
            [
                ("bare_instructions", figure(row.instructions[0])),
                ("preloaded_instructions", figure(row.instructions[1])),
                ("limited_instructions", figure(row.instructions[2])),
                (
                    "ratio",
                    row.ratio()
                        .map_or("null".into(), |ratio| format!("{ratio:.3}")),
                ),
                ("aim_added_ns", figure(row.series.aim_at(row.point))),
            ]
            .map(|(name, value)| format!(r#""{name}": {value}"#))
            .join(", "),
        );
    }
}
