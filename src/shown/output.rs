//! Prints to standard output and standard error, each of which can be a closed pipe. Every verb
//! prints through these functions.
//!
//! The functions escape all text (see [`Escaped`]), because other users write much of it, such as
//! commands and group names.

use super::terminal;
use crate::groups::SCHEMA;
use crate::machine::signals;
use crate::words::failure::Failure;
use crate::words::notes::{Change, Done, Notes};
pub use crate::words::text::{some, some_paths, without_secrets};
pub use gpulimit_base::escaped::Escaped;
use gpulimit_base::escaped::lines;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

/// The state of the program that reads standard output.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Reader {
    /// The program still reads.
    There,
    /// The program has closed the pipe, as `head` does once it has printed its last line.
    Gone,
}

/// Writes lines to standard output. It is no error if the reader has closed the pipe.
pub fn write(text: &str) -> Result<Reader, Failure> {
    escaped(&lines(text))
}

/// Writes text in which foreign parts are already escaped, such as bold heads of tables.
pub fn escaped(text: &str) -> Result<Reader, Failure> {
    let text = &without_secrets(text);
    // Rust's start-up code has opened /dev/null in its place.
    if !text.is_empty() && signals::was_closed(1) {
        return Err(Failure::new("cannot write to stdout: it is closed"));
    }
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::new(format_args!(
            "cannot write to stdout: {error}"
        ))),
        Ok(()) => Ok(Reader::There),
    }
}

/// Waits for this time, or until the reader of standard output has closed the pipe.
pub fn reader_after(time: Duration) -> Reader {
    let out = io::stdout();
    // Without a requested event, the kernel still reports a pipe without readers.
    let mut watched = [PollFd::new(&out, PollFlags::empty())];
    let time = Timespec::try_from(time).ok();
    match poll(&mut watched, time.as_ref()) {
        Ok(1..) => Reader::Gone,
        _ => Reader::There,
    }
}

/// Writes lines to standard output like [`write()`], for verbs that print nothing afterwards.
pub fn print(text: &str) -> Result<(), Failure> {
    write(text).map(drop)
}

/// Writes a table to standard output. The cells are already escaped, and the heads may be bold.
pub fn table(rendered: &str) -> Result<(), Failure> {
    escaped(rendered).map(drop)
}

/// Breaks a line at the width of the terminal: see [`terminal::fit`]. Changes nothing if standard
/// output is not a terminal.
pub fn fit(line: &str, indent: usize) -> String {
    terminal::fit(line, indent, &io::stdout())
}

/// Prints what the verb has done. If printing fails, reports that, but does not fail: the verb's
/// work is done.
pub fn report(text: &str) {
    let fitted = text.lines().map(|line| fit(line, 2) + "\n");
    printed(print(&fitted.collect::<String>()));
}

fn printed(what_was_done: Result<(), Failure>) {
    if let Err(failure) = what_was_done {
        note(&format!("done, but {failure}"));
    }
}

/// The option `--json` of verbs that change something.
#[derive(Copy, Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Answer {
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
}

impl Answer {
    /// Prints what the verb has done, by the names of groups or files: a line for each, or JSON. If
    /// printing fails, reports that as [`report`] does.
    pub fn tell(&self, changes: &[Change]) {
        if !self.json {
            return report(&text(changes));
        }
        let entry = |(name, text): &Change| json!({ "name": name, "text": text });
        let done: Vec<Value> = changes.iter().map(entry).collect();
        printed(json(&json!({ "schema": SCHEMA, "done": done })));
    }

    /// Prints what the verb has done, and its notes. Returns its exit status.
    pub fn done(&self, done: &Done) -> ExitCode {
        let status = told(&done.notes);
        self.tell(&done.changes);
        status
    }
}

/// Returns a line for each change.
pub fn text(changes: &[Change]) -> String {
    let line = |(name, text): &Change| format!("{}: {}\n", Escaped(name), Escaped(text));
    changes.iter().map(line).collect()
}

/// Writes JSON to standard output.
pub fn json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Writes a line to standard error. Ignores errors.
pub fn note(text: &str) {
    let line = format!("gpulimit: {}", Escaped(&without_secrets(text)));
    let line = terminal::fit(&line, 2, &io::stderr()) + "\n";
    // One system call writes the whole line, so lines of other programs cannot get into it.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Writes lines to standard error. Ignores errors.
pub fn notes(lines: &[String]) {
    lines.iter().for_each(|line| note(line));
}

/// Prints notes on standard error, and returns their exit status.
pub fn told(notes: &Notes) -> ExitCode {
    self::notes(&notes.lines);
    notes.status()
}

/// Prints the output of the command line parser: help or an error message. Breaks long lines of
/// error messages only.
pub fn parsing(error: &clap::Error) {
    let said = error.render();
    let plain = said.to_string();
    let escaped = lines(&plain);
    // Print bold type only if no text was escaped. An argument could imitate the escape sequences
    // of bold type.
    let text = |bold: bool| match bold && escaped == plain {
        true => said.ansi().to_string(),
        false => escaped.clone(),
    };
    // If printing fails, the exit status still reports the mistake.
    let _ = if error.use_stderr() {
        let stream = io::stderr();
        let fitted = text(terminal::has_style(&stream))
            .lines()
            .fold(String::new(), |all, line| {
                let indent = line.len() - line.trim_start().len() + 2;
                all + &terminal::fit(line, indent, &stream) + "\n"
            });
        stream.lock().write_all(fitted.as_bytes())
    } else {
        let stream = io::stdout();
        stream
            .lock()
            .write_all(text(terminal::has_style(&stream)).as_bytes())
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "a\u{9b}": "\u{1b}\n\u{7f}\u{202e}\u{e0041}\\" });
        let shown = lines(&value.to_string());
        assert!(!shown.contains(char::is_control), "{shown}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).ok(),
            Some(value)
        );
    }
}
