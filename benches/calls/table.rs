//! The figures, for people and for programs.

use crate::case::Case;
use crate::run::Way;

/// A case with a number of live allocations.
pub struct Row {
    case: &'static Case,
    live: u32,
    /// Best so far, by [`Way`]: ns.
    times: [f64; 3],
    /// By [`Way`].
    pub instructions: [Option<f64>; 3],
}

impl Row {
    pub fn new(case: &'static Case, live: u32) -> Self {
        Row {
            case,
            live,
            times: [f64::INFINITY; 3],
            instructions: [None; 3],
        }
    }

    /// Another measurement. The least disturbed one counts.
    pub fn add_time(&mut self, way: Way, ns: f64) {
        let best = &mut self.times[way as usize];
        *best = best.min(ns);
    }

    fn bare(&self) -> f64 {
        self.times[Way::Bare as usize]
    }

    fn added_ns(&self, way: Way) -> f64 {
        self.times[way as usize] - self.bare()
    }

    fn added_instructions(&self, way: Way) -> Option<f64> {
        Some(self.instructions[way as usize]? - self.instructions[Way::Bare as usize]?)
    }
}

pub fn print(rows: &[Row]) {
    println!(
        "                                                            bare   added, no limit    added, limited        aim"
    );
    println!(
        "                                                  live        ns      ns    instr.      ns    instr.         ns"
    );
    let count = |figure: Option<f64>| figure.map_or("-".into(), |count| format!("{count:.0}"));
    for row in rows {
        let (live, aim) = (
            if row.case.counts_live {
                row.live.to_string()
            } else {
                "-".into()
            },
            row.case.aim.map_or("-".into(), |aim| format!("< {aim:.0}")),
        );
        println!(
            "{:<46} {live:>7} {:>9.0} {:>7.0} {:>9} {:>7.0} {:>9} {aim:>10}",
            row.case.what,
            row.bare(),
            row.added_ns(Way::Preloaded),
            count(row.added_instructions(Way::Preloaded)),
            row.added_ns(Way::Limited),
            count(row.added_instructions(Way::Limited)),
        );
    }
}

/// One object per line.
pub fn print_json(rows: &[Row]) {
    let figure = |figure: Option<f64>| figure.map_or("null".into(), |value| format!("{value:.1}"));
    for row in rows {
        println!(
            r#"{{"case": "{}", "live": {}, "bare_ns": {:.1}, "preloaded_ns": {:.1}, "limited_ns": {:.1}, "bare_instructions": {}, "preloaded_instructions": {}, "limited_instructions": {}, "aim_added_ns": {}}}"#,
            row.case.name,
            if row.case.counts_live {
                row.live.to_string()
            } else {
                "null".into()
            },
            row.times[0],
            row.times[1],
            row.times[2],
            figure(row.instructions[0]),
            figure(row.instructions[1]),
            figure(row.instructions[2]),
            figure(row.case.aim),
        );
    }
}
