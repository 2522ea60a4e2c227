//! Prints to standard output and standard error, each of which can be a closed pipe. Every verb
//! prints through these functions.
//!
//! The functions escape all text (see [`Escaped`]), because other users write much of it, such as
//! commands and group names.

use super::failure::Failure;
use super::{signals, terminal};
pub use gpulimit_base::escaped::Escaped;
use gpulimit_base::escaped::lines;
use gpulimit_base::name::hide_secrets;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

/// The version of JSON objects.
pub const SCHEMA: u32 = 1;

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
    if captures(text) {
        return Ok(Reader::There);
    }
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

thread_local! {
    /// The text of this thread since [`captured`] began; `None` while text is printed at once.
    static CAPTURED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Calls `work`, and returns what this thread would print meanwhile on both streams, escaped and
/// without the prefix of messages. `work` must not call this function.
pub fn captured<T>(work: impl FnOnce() -> T) -> (T, String) {
    CAPTURED.set(Some(String::new()));
    let done = work();
    (done, CAPTURED.take().unwrap_or_default())
}

/// Keeps text for [`captured`]. Returns false if the text must be printed.
fn captures(text: &str) -> bool {
    CAPTURED.with_borrow_mut(|captured| captured.as_mut().map(|all| all.push_str(text)).is_some())
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

/// A change that a verb has made: the name of a group or a file, and what was done.
pub type Done = (String, String);

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
    pub fn tell(&self, done: &[Done]) {
        if !self.json {
            let line = |(name, text): &Done| format!("{}: {}\n", Escaped(name), Escaped(text));
            return report(&done.iter().map(line).collect::<String>());
        }
        let entry = |(name, text): &Done| json!({ "name": name, "text": text });
        let done: Vec<Value> = done.iter().map(entry).collect();
        printed(json(&json!({ "schema": SCHEMA, "done": done })));
    }
}

/// Lists the first items, and the number of the others.
pub fn some(all: &[impl Display]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = all.iter().take(SHOWN).map(|one| one.to_string()).collect();
    match all.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Writes JSON to standard output.
pub fn json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Returns a text without the secret names of jobs: see [`hide_secrets`].
pub fn without_secrets(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let length = hide_secrets(&mut bytes);
    bytes.truncate(length);
    String::from_utf8(bytes).unwrap_or_default()
}

/// Returns a path for printing, without secret names.
pub fn shown_path(path: &Path) -> String {
    without_secrets(&path.to_string_lossy())
}

/// Writes a line to standard error. Ignores errors.
pub fn note(text: &str) {
    let text = &without_secrets(text);
    if !captures(&format!("{}\n", Escaped(text))) {
        write_note(text);
    }
}

/// Writes the messages in captured text, a message a line, to standard error. Ignores errors.
pub fn notes(captured: &str) {
    captured.lines().for_each(write_note);
}

fn write_note(text: &str) {
    let line = format!("gpulimit: {}", Escaped(text));
    let line = terminal::fit(&line, 2, &io::stderr()) + "\n";
    // One system call writes the whole line, so lines of other programs cannot get into it.
    let _ = io::stderr().lock().write_all(line.as_bytes());
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
