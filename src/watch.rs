//! Repeats what a verb shows: the option `--watch`.
//!
//! A terminal shows the last round, redrawn in place. Other outputs get round after round.

mod screen;

use super::clock::Moment;
use super::failure::Failure;
use super::figures::SCHEMA;
use super::output::{self, Escaped, Reader};
use gpulimit_limits::parse_duration;
use jiff::Timestamp;
use screen::Screen;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// The option `--watch`.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Show new figures every second until interrupted, or every TIME (5s, 500ms)
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
    /// The exit status of the verb if it ends after this round.
    pub status: ExitCode,
}

/// The figures of a round.
pub enum Shown {
    Json(Value),
    /// Lines for people, in which foreign text is escaped.
    Text(String),
}

impl Args {
    /// Prints what `read` returns: once, or with `--watch` until interrupted. If a later round
    /// fails, because the group was removed for instance, prints the reason and goes on.
    pub fn rounds(
        &self,
        mut read: impl FnMut() -> Result<Round, Failure>,
    ) -> Result<ExitCode, Failure> {
        let Some(interval) = self.watch else {
            let round = read()?;
            match round.shown {
                Shown::Json(value) => output::json(&value)?,
                Shown::Text(text) => output::table(&text)?,
            }
            return Ok(round.status);
        };
        let (first, said) = output::captured(&mut read);
        let first = first.inspect_err(|_| output::notes(&said))?;
        match first.shown {
            Shown::Text(_) if Screen::is_possible() => on_screen(interval, first, said, read),
            _ => in_turn(interval, first, said, read),
        }
    }
}

/// Redraws the rounds on the terminal until a signal ends this process.
fn on_screen(
    interval: Duration,
    first: Round,
    first_said: String,
    mut read: impl FnMut() -> Result<Round, Failure>,
) -> Result<ExitCode, Failure> {
    let mut screen = Screen::open()?;
    let (mut round, mut said) = (first, first_said);
    loop {
        let every = interval.as_secs_f64();
        let mut lines = vec![format!("{}, every {every} s, Ctrl-C ends", now())];
        for note in said.lines() {
            let note = output::fit(note, 2);
            lines.extend(note.lines().map(str::to_owned));
        }
        lines.extend(round.shown.text().lines().map(str::to_owned));
        screen.draw(lines)?;
        screen.wait(interval);
        (round, said) = next(&mut read, false);
    }
}

/// Prints round after round, until the reader closes the pipe. Prints messages only if they differ
/// from those of the round before.
fn in_turn(
    interval: Duration,
    first: Round,
    first_said: String,
    mut read: impl FnMut() -> Result<Round, Failure>,
) -> Result<ExitCode, Failure> {
    let as_json = matches!(first.shown, Shown::Json(_));
    let (mut round, mut said) = (first, first_said);
    let mut printed = String::new();
    let mut gap = "";
    loop {
        if said != printed {
            output::notes(&said);
            printed = said;
        }
        let text = match as_json {
            true => round.shown.text(),
            false => format!("{gap}{}\n{}", now(), round.shown.text()),
        };
        if output::write(&text)? == Reader::Gone || output::reader_after(interval) == Reader::Gone {
            return Ok(round.status);
        }
        gap = "\n";
        (round, said) = next(&mut read, as_json);
    }
}

/// Reads another round, and returns its messages, too.
fn next(read: &mut impl FnMut() -> Result<Round, Failure>, as_json: bool) -> (Round, String) {
    let (round, said) = output::captured(read);
    let round = round.unwrap_or_else(|failure| Round::failed(&failure, as_json));
    (round, said)
}

/// Returns the time of a round, in the caller's time zone.
fn now() -> String {
    crate::clock::now()
        .strftime("%Y-%m-%d %H:%M:%S")
        .to_string()
}

/// Returns a failed round as JSON: `error` says why the round could not be read.
pub fn json_of(failure: &Failure) -> Value {
    json!({
        "schema": SCHEMA,
        "time": Moment::from(Timestamp::now()).to_string(),
        "error": failure.to_string(),
    })
}

impl Round {
    /// Returns a round that only says why it could not be read.
    fn failed(failure: &Failure, as_json: bool) -> Self {
        let shown = match as_json {
            true => Shown::Json(json_of(failure)),
            false => {
                let why = Escaped(&failure.to_string()).to_string();
                Shown::Text(output::fit(&why, 2) + "\n")
            }
        };
        Self {
            shown,
            status: ExitCode::FAILURE,
        }
    }
}

impl Shown {
    /// Returns the text of a repeated round. JSON is one line, with the time.
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Json(mut value) => {
                value["time"] = Moment::from(Timestamp::now()).to_string().into();
                format!("{value}\n")
            }
        }
    }
}
