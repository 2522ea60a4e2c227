//! What the preloaded library adds to calls of the driver and to the start of a program. Run: `scripts/bench`.
//!
//! This process measures nothing itself: it runs `worker`s, programs of one loop each, on the bare driver and with the library
//! preloaded, in turns, and compares. README.md beside this folder says how to read the table.

mod case;
mod run;
mod table;
mod worker;

use case::{CASES, Case};
use run::{Setup, Way};
use std::error::Error;
use std::path::PathBuf;
use table::Row;

const USAGE: &str = "scripts/bench [--rounds N] [--case NAME] [--live N] [--no-callgrind] [--json]";
const ROUNDS: u32 = 15;
const LIVE: [u32; 2] = [1, 100_000];

struct Options {
    library: PathBuf,
    rounds: u32,
    only: Option<String>,
    live: Option<u32>,
    callgrind: bool,
    json: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Options {
            library: PathBuf::new(),
            rounds: ROUNDS,
            only: None,
            live: None,
            callgrind: true,
            json: false,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let missing = format!("{argument} wants a value; {USAGE}");
                arguments.next().ok_or(missing)
            };
            match argument.as_str() {
                "--library" => options.library = value()?.into(),
                "--rounds" => options.rounds = value()?.parse()?,
                "--case" => options.only = Some(value()?),
                "--live" => options.live = Some(value()?.parse()?),
                "--no-callgrind" => options.callgrind = false,
                "--json" => options.json = true,
                // Cargo's own.
                "--bench" => {}
                _ => return Err(format!("unknown option {argument}; {USAGE}").into()),
            }
        }
        if !options.library.is_file() {
            return Err(format!("no library at {:?}; run it as {USAGE}", options.library).into());
        }
        Ok(options)
    }

    fn wants(&self, case: &Case, live: u32) -> bool {
        self.only.as_deref().is_none_or(|only| only == case.name)
            && self
                .live
                .is_none_or(|only| only == live || !case.counts_live)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == "worker").is_some() {
        return worker::main(arguments);
    }
    let options = Options::parse(arguments)?;
    let setup = Setup::new(options.library.clone(), options.callgrind)?;
    let mut rows = Vec::new();
    for case in CASES {
        for live in LIVE {
            if options.wants(case, live) && (case.counts_live || live == LIVE[0]) {
                rows.push(measure(&setup, case, live, options.rounds)?);
            }
        }
    }
    if options.json {
        table::print_json(&rows);
    } else {
        table::print(&rows);
    }
    Ok(())
}

fn measure(
    setup: &Setup,
    case: &'static Case,
    live: u32,
    rounds: u32,
) -> Result<Row, Box<dyn Error>> {
    let mut row = Row::new(case, live);
    // In turns: what else the machine does at a time is then borne by all of them alike.
    for _ in 0..rounds {
        for way in Way::ALL {
            row.add_time(way, setup.time(case, live, way)?);
        }
    }
    for way in Way::ALL {
        row.instructions[way as usize] = setup.instructions(case, live, way)?;
    }
    Ok(row)
}
