//! Compares the instructions that the library adds with upper bounds from a file.

use crate::case::{Point, SERIES, Series};
use crate::row::Row;
use crate::run::{Setup, Way};
use std::error::Error;
use std::path::Path;

/// The most times that a case is counted. The least count decides: work that is due once a second
/// comes more often between the counted calls if the machine is busy.
const COUNTS: usize = 5;

/// Counts the instructions that the library adds in each benchmark case of `file`, and prints the
/// counts. Returns an error if a case exceeds its bound, or if instructions cannot be counted.
///
/// A line of `file` has the form `CASE POINT BOUND`. POINT is `AXIS=VALUE` or `-`, and BOUND is the
/// largest allowed number of instructions. Lines that begin with `#` are comments.
pub fn check(setup: &Setup, file: &Path) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(file)?;
    let mut over = Vec::new();
    println!("{:<40} {:>12}", "case, point, bound", "added");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, point, bound) = read(line).ok_or_else(|| {
            let file = file.display();
            format!(
                "invalid line '{line}' in {file}: expected CASE AXIS=VALUE BOUND or CASE - BOUND"
            )
        })?;
        let name = series.case.name;
        let mut added = f64::INFINITY;
        for _ in 0..COUNTS {
            if added > bound {
                added = added.min(count(setup, series, point)?);
            }
        }
        println!("{line:<40} {added:>12.0}");
        if added > bound {
            over.push(format!("{name} adds {added:.0}, bound {bound}"));
        }
    }
    if over.is_empty() {
        return Ok(());
    }
    let file = file.display();
    Err(format!(
        "the library adds more instructions than {file} allows: {}",
        over.join(", ")
    )
    .into())
}

/// Counts the instructions that the library adds at a point of a series.
fn count(setup: &Setup, series: &'static Series, point: Point) -> Result<f64, Box<dyn Error>> {
    let mut row = Row::new(series, point);
    let place = setup.place(point)?;
    for way in [Way::Bare, Way::Limited] {
        row.instructions[way as usize] = place.instructions(series.case, way)?;
    }
    let name = series.case.name;
    let uncounted = || format!("cannot count the instructions of '{name}'").into();
    row.added_instructions(Way::Limited).ok_or_else(uncounted)
}

fn read(line: &str) -> Option<(&'static Series, Point, f64)> {
    let [case, point, bound] = line
        .split_whitespace()
        .collect::<Vec<_>>()
        .try_into()
        .ok()?;
    let (axis, value) = match point.split_once('=') {
        Some((axis, value)) => (Some(axis), Some(value.parse().ok()?)),
        None if point == "-" => (None, None),
        None => return None,
    };
    let series = SERIES
        .iter()
        .find(|series| series.case.name == case && series.axis.map(|axis| axis.name()) == axis)?;
    let point = series.points().find(|point| point.value() == value)?;
    Some((series, point, bound.parse().ok()?))
}
