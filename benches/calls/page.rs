//! Writes docs/internals/benchmarks.md and its plot, benchmarks.svg.

use crate::case::Axis;
use crate::memory::{self, Footprint};
use crate::plot;
use crate::row::{self, Row};
use std::error::Error;
use std::fs;
use std::path::Path;

const TEXT: &str = include_str!("page.md");

/// Writes benchmarks.md and benchmarks.svg into `folder`.
pub fn write(
    folder: &Path,
    date: &str,
    rows: &[Row],
    footprints: &[Footprint],
) -> Result<(), Box<dyn Error>> {
    let mut page = TEXT
        .replace("{date}", date)
        .replace("{machine}", &machine())
        .replace("{memory}", &memory::table(footprints));
    for axis in Axis::ALL.map(Some).into_iter().chain([None]) {
        let name = axis.map_or("single", Axis::name);
        let table = row::table(rows, axis).unwrap_or_default();
        page = page.replace(&format!("{{{name}}}"), &table);
    }
    fs::write(folder.join("benchmarks.md"), page)?;
    fs::write(folder.join("benchmarks.svg"), plot::draw(rows)?)?;
    Ok(())
}

/// Describes the machine that ran the benchmarks (number of cores, processor model), without its
/// host name.
fn machine() -> String {
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown", |line| line.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores ({model})")
}
