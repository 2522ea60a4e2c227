//! `gpulimit report`: shows how much memory groups and users have used over time.

pub mod line;
mod save;
mod saved;
mod span;
mod uses;

use crate::figures::fields;
use crate::groups::Selection;
use crate::machine::nvml::Driver;
use crate::shown::table::Table;
use crate::shown::{csv, output};
use crate::words::{failure::Failure, since};
use line::{By, Line, csv_fields, visit};
use std::iter;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `report`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only this group and the groups below it
    group: Option<String>,

    /// What gets a line: each group, or each user of a group
    #[arg(long, value_enum, default_value_t = By::Group)]
    by: By,

    /// Print JSON: sizes are in bytes, and unknown figures are null
    #[arg(long)]
    json: bool,

    /// Print CSV: sizes are in bytes, and unknown figures are empty
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Show the use since this time: 2h, yesterday, 14:00, 2026-11-01. Without this option, since
    /// each group was made
    #[arg(long, value_name = "TIME", value_parser = since::option)]
    since: Option<u64>,

    /// Read the files that --save has written in this directory, for groups that are older than
    /// --since or gone
    #[arg(long, value_name = "DIR", requires = "since")]
    from: Option<PathBuf>,

    /// Show the use until this time, from the files alone
    #[arg(long, value_name = "TIME", value_parser = since::option, requires = "from")]
    until: Option<u64>,

    /// Append the figures of all groups and users to the file of this day, YYYY-MM-DD.csv in UTC,
    /// in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "csv", "by", "since"])]
    save: Option<PathBuf>,
}

const HELP: &str = "\
All figures count from the time when the group was made: GIB-HOURS are memory
times time, PEAK is the highest charge, REFUSED counts refused requests, and
WAITED is the time for which requests waited. A group's figures include those
of the groups below it, so do not add them up. Only named groups keep these
figures, and jobs of `gpulimit run` that are in no group, the last 16 for a day
after they ENDED. Those of a user are GIB-HOURS alone, with a sum over all
groups at the end of the table. OF LIMIT is the part of the present limit that
was used, over time. \"1.0 (up to 3.0)\" is the use of killed processes whose
death was found later: up to 1.0 they surely lived.

With --since, a group that was made after TIME has all figures, from then on. An
older one has PEAK (the highest usage), REFUSED and WAITED for up to a week,
from its history; its GIB-HOURS are unknown, shown as \"-\". With --from, figures
are differences of saved lines, over all groups that had the name, also before a
reboot. They count from the last save before TIME or, if there is none, from the
first one after it: see FROM. PEAK is \"-\" if it may be older. What a group used
between its last save and its removal is missing.

The lines of --save have the figures without --since, for a timer, of named
groups alone.

Examples:
  gpulimit report
  gpulimit report lab --by user --since yesterday
  gpulimit report --csv > all.csv
  gpulimit report --save /var/log/gpulimit
  gpulimit report --from /var/log/gpulimit --since 2026-11-01 --by user";

/// Shows the report, or saves it.
pub fn report(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(since) = args.since {
        return uses::report(args, since);
    }
    let selection = Selection::with_past(args.group.as_deref())?;
    let driver = Driver::load().ok();
    if let Some(directory) = &args.save {
        return save::append(directory, &selection, driver.as_ref());
    }
    let mut found = Vec::new();
    let (status, is_told) = visit(&selection, driver.as_ref(), |at, view| {
        found.push((at, Line::of(view, args.by)));
    })?;
    found.sort_by_key(|(at, _)| *at);
    let mut lines: Vec<Line> = found.into_iter().flat_map(|(_, lines)| lines).collect();
    let is_printed = print(args, &selection, &mut lines, driver.as_ref())?;
    if !is_printed && status == ExitCode::SUCCESS && !is_told {
        output::note("no named group or job of `gpulimit run` has used a GPU");
    }
    Ok(status)
}

/// Prints lines as the caller asked. Returns whether there was something to print.
fn print(
    args: &Args,
    selection: &Selection,
    lines: &mut Vec<Line>,
    driver: Option<&Driver>,
) -> Result<bool, Failure> {
    let is_span = args.since.is_some();
    if args.json {
        let json = |line| fields::json(line::fields(is_span), line, driver);
        output::json(&selection.json("uses", lines.iter().map(json).collect()))?;
    } else if args.csv {
        let fields = csv_fields(is_span);
        let rows = lines
            .iter()
            .map(|line| fields::cells(fields.iter().copied(), line));
        output::print(&csv::lines(
            iter::once(fields::heads(fields.iter().copied())).chain(rows),
        )?)?;
    } else if !lines.is_empty() {
        lines.extend(Line::sums(lines));
        let shown = line::fields(is_span).filter(|field| match field.key {
            "user" => args.by == By::User,
            "peak" | "refusals" | "waited_ms" => args.by == By::Group,
            _ => true,
        });
        output::table(&Table::of(shown, lines, driver).render())?;
    }
    Ok(args.json || args.csv || !lines.is_empty())
}
