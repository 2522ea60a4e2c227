//! Measures what the preloaded library of gpulimit adds to calls of the driver and to the start of
//! a program. Run: `scripts/bench`.
//!
//! This process starts `worker` programs, each of which repeats one operation, in turns without the
//! library and with the library preloaded, and compares their times. benches/README.md explains the
//! tables.

mod bounds;
mod case;
mod crowd;
mod memory;
mod page;
mod plot;
mod row;
mod run;
mod worker;

use case::{Axis, Point, SERIES, Series};
use memory::Footprint;
use row::Row;
use run::{Setup, Way};
use std::error::Error;
use std::path::PathBuf;

const USAGE: &str = "usage: scripts/bench [--rounds N] [--case NAME] \
    [--axis live|threads|members|rivals|depth|protected] [--at N] [--no-callgrind] [--json] \
    [--write] [--check]";
const ROUNDS: u32 = 15;

struct Options {
    library: PathBuf,
    rounds: u32,
    case: Option<String>,
    axis: Option<Axis>,
    at: Option<u32>,
    callgrind: bool,
    json: bool,
    /// A file of upper bounds. With this option, only instructions are counted and compared.
    check: Option<PathBuf>,
    /// The folder for benchmarks.md and benchmarks.svg, and the date to write into these files.
    write: Option<(PathBuf, String)>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Options {
            library: PathBuf::new(),
            rounds: ROUNDS,
            case: None,
            axis: None,
            at: None,
            callgrind: true,
            json: false,
            check: None,
            write: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let missing = format!("option {argument} needs a value; {USAGE}");
                arguments.next().ok_or(missing)
            };
            match argument.as_str() {
                "--library" => options.library = value()?.into(),
                "--rounds" => options.rounds = value()?.parse()?,
                "--case" => options.case = Some(known_case(value()?)?),
                "--axis" => options.axis = Some(known_axis(&value()?)?),
                "--at" => options.at = Some(value()?.parse()?),
                "--no-callgrind" => options.callgrind = false,
                "--json" => options.json = true,
                "--check-against" => options.check = Some(value()?.into()),
                "--write-to" => options.write = Some((value()?.into(), value()?)),
                _ => return Err(format!("unknown option {argument}; {USAGE}").into()),
            }
        }
        if !options.library.is_file() {
            return Err(format!(
                "cannot find libgpulimit.so at {:?}; {USAGE}",
                options.library
            )
            .into());
        }
        if options.write.is_some() && !options.is_whole() {
            return Err(format!("--write needs a run of all cases; {USAGE}").into());
        }
        Ok(options)
    }

    /// Returns whether the options select all benchmark cases at all measurement points.
    fn is_whole(&self) -> bool {
        self.case.is_none() && self.axis.is_none() && self.at.is_none()
    }

    fn wants(&self, series: &Series, point: Point) -> bool {
        self.case
            .as_deref()
            .is_none_or(|only| only == series.case.name)
            && self.axis.is_none_or(|only| series.axis == Some(only))
            && self.at.is_none_or(|only| point.value() == Some(only))
    }
}

fn known_case(name: String) -> Result<String, String> {
    if SERIES.iter().any(|series| series.case.name == name) {
        return Ok(name);
    }
    Err(format!(
        "unknown case '{name}': benches/README.md lists the cases"
    ))
}

fn known_axis(name: &str) -> Result<Axis, String> {
    let found = Axis::ALL.into_iter().find(|axis| axis.name() == name);
    found.ok_or_else(|| format!("unknown axis '{name}'; {USAGE}"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == "worker").is_some() {
        return worker::main(arguments);
    }
    if arguments.next_if(|first| first == "crowd").is_some() {
        return crowd::main(arguments);
    }
    let options = Options::parse(arguments)?;
    let setup = Setup::new(options.library.clone(), options.callgrind)?;
    if let Some(file) = &options.check {
        return bounds::check(&setup, file);
    }
    let footprints = if options.is_whole() {
        Footprint::all(&setup)?
    } else {
        Vec::new()
    };
    let mut rows = Vec::new();
    for series in SERIES {
        for point in series.points() {
            if options.wants(series, point) {
                rows.push(measure(&setup, series, point, options.rounds)?);
            }
        }
    }
    if options.json {
        row::print_json(&rows);
        memory::print_json(&footprints);
    } else {
        print!("{}", row::tables(&rows));
        print!("{}", memory::table(&footprints));
    }
    if let Some((folder, date)) = options.write {
        page::write(&folder, &date, &rows, &footprints)?;
    }
    Ok(())
}

fn measure(
    setup: &Setup,
    series: &'static Series,
    point: Point,
    rounds: u32,
) -> Result<Row, Box<dyn Error>> {
    let mut row = Row::new(series, point);
    let place = setup.place(point)?;
    // Measure with and without the library in turns, so that other work on the machine disturbs
    // both alike.
    for _ in 0..rounds {
        for way in Way::for_point(point) {
            row.add_time(*way, place.time(series.case, *way)?);
        }
    }
    for way in Way::for_point(point) {
        row.instructions[*way as usize] = place.instructions(series.case, *way)?;
    }
    Ok(row)
}
