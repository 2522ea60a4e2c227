//! Repeats what a verb shows as JSON: the option `--watch`. `gpulimit top` does so on a terminal.

use super::output::{self, Reader};
use crate::groups::SCHEMA;
use crate::words::{clock::Moment, failure::Failure, notes::Notes};
use gpulimit_limits::parse_duration;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// The option `--watch`.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// With --json: print new figures every second until interrupted, or every TIME (5s, 500ms)
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1s",
        value_parser = interval
    )]
    watch: Option<Duration>,
}

/// The shortest time between two rounds.
const SHORTEST: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text)
        .filter(|interval| *interval >= SHORTEST)
        .ok_or("expected a time such as 5s or 500ms, from 100ms to 1000h")
}

/// What a verb shows in one round.
pub struct Round {
    pub shown: Shown,
    /// Lines for standard error, and the exit status of the verb if it ends after this round.
    pub notes: Notes,
}

/// The figures of a round.
pub enum Shown {
    Json(Value),
    /// Lines for people, in which foreign text is escaped.
    Text(String),
}

/// The message about `--watch` without `--json`.
const NO_SCREEN: &str =
    "--watch prints JSON: add --json. To watch on the terminal, use: gpulimit top";

impl Args {
    /// Prints what `read` returns: once, or with `--watch` an object with the time on each line,
    /// until interrupted or until the reader closes the pipe. If a later round fails, because the
    /// group was removed for instance, prints the reason and goes on. Prints messages only if they
    /// differ from those of the round before.
    pub fn rounds(
        &self,
        mut read: impl FnMut() -> Result<Round, Failure>,
    ) -> Result<ExitCode, Failure> {
        let Some(interval) = self.watch else {
            let round = read()?;
            let status = output::told(&round.notes);
            match round.shown {
                Shown::Json(value) => output::json(&value)?,
                Shown::Text(text) => output::table(&text)?,
            }
            return Ok(status);
        };
        let mut printed = Vec::new();
        let mut is_first = true;
        loop {
            let (mut value, status) = match read() {
                Ok(Round { shown, notes }) => {
                    let Shown::Json(value) = shown else {
                        return Err(Failure::usage(NO_SCREEN));
                    };
                    if notes.lines != printed {
                        output::notes(&notes.lines);
                    }
                    printed.clone_from(&notes.lines);
                    (value, notes.status())
                }
                Err(failure) if is_first => return Err(failure),
                Err(failure) => (json_of(&failure), ExitCode::FAILURE),
            };
            is_first = false;
            value["time"] = Moment::from(Timestamp::now()).to_string().into();
            if output::write(&format!("{value}\n"))? == Reader::Gone
                || output::reader_after(interval) == Reader::Gone
            {
                return Ok(status);
            }
        }
    }
}

/// Returns a failed round as JSON: `error` says why the round could not be read.
pub fn json_of(failure: &Failure) -> Value {
    json!({
        "schema": SCHEMA,
        "time": Moment::from(Timestamp::now()).to_string(),
        "error": failure.to_string(),
    })
}
