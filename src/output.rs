//! Writes to stdout and stderr, which may be closed pipes. Every verb prints through this file.
//!
//! Much of what the controller prints comes from files that other users write: commands and names in ledgers, paths of
//! libraries, names of directories. So everything is escaped here, whoever has checked it before: see [`Escaped`].

use super::failure::Failure;
use super::terminal;
use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Displays a text as one line without characters that a terminal obeys or that hide other characters: control
/// characters (C0, DEL, C1), separators of lines, and marks of writing direction.
///
/// Each becomes `\u` and four hexadecimal digits per UTF-16 unit, as in JSON, so that escaped JSON has the same value.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(self.0, f, |_| false)
    }
}

/// The same for a text of several lines: line feeds and tabs stay.
fn lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Writing to a string does not fail.
    let _ = escape(text, &mut out, |c| matches!(c, '\n' | '\t'));
    out
}

fn escape(text: &str, out: &mut dyn fmt::Write, stays: impl Fn(char) -> bool) -> fmt::Result {
    for c in text.chars() {
        if is_printable(c) || stays(c) {
            out.write_char(c)?;
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
    }
    Ok(())
}

fn is_printable(c: char) -> bool {
    let invisible = matches!(
        c,
        // Marks of direction, zero widths, separators, tags.
        '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !c.is_control() && !invisible
}

/// Whether somebody is still there to read what we print.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Reader {
    There,
    /// As `head` goes when it has enough.
    Gone,
}

/// Writes lines to stdout, to the end. A reader that has gone away is no failure.
pub fn write(text: &str) -> Result<Reader, Failure> {
    write_as_is(&lines(text))
}

fn write_as_is(text: &str) -> Result<Reader, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::new(format_args!(
            "cannot write to stdout: {error}"
        ))),
        Ok(()) => Ok(Reader::There),
    }
}

/// As [`write()`], where nothing follows.
pub fn print(text: &str) -> Result<(), Failure> {
    write(text).map(drop)
}

/// Writes a table to stdout. Its cells are escaped already; its heads may be bold.
pub fn table(rendered: &str) -> Result<(), Failure> {
    write_as_is(rendered).map(drop)
}

/// Breaks a line for stdout, if that is a terminal: see [`terminal::fit`].
pub fn fit(line: &str, indent: usize) -> String {
    terminal::fit(line, indent, &io::stdout())
}

/// Writes what has been done to stdout. A failure is said and does not undo it: the status tells whether it was done.
pub fn report(text: &str) {
    let fitted = text.lines().map(|line| fit(line, 2) + "\n");
    if let Err(failure) = print(&fitted.collect::<String>()) {
        note(&format!("done, but {failure}"));
    }
}

/// Writes JSON to stdout.
pub fn json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Says one line on stderr. Nobody is there to hear of its failure.
pub fn note(text: &str) {
    let line = format!("gpulimit: {}", Escaped(text));
    let line = terminal::fit(&line, 2, &io::stderr()) + "\n";
    // In one piece, so that two programs that write at once do not share a line.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Prints what the parser of the command line says: help, which has its width, or a mistake in arguments.
pub fn parsing(error: &clap::Error) {
    let said = error.render();
    let plain = said.to_string();
    let escaped = lines(&plain);
    // What the caller wrote is in a mistake; bold letters are not told from what a terminal obeys there.
    let text = |bold: bool| match bold && escaped == plain {
        true => said.ansi().to_string(),
        false => escaped.clone(),
    };
    // Nobody is there to hear of a failure.
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
    fn characters_that_a_terminal_obeys_are_escaped() {
        let text = "a\u{1b}]0;x\u{7}\u{7f}\u{9b}2J\r\u{202e}\u{2066}\u{e0041}\tä…│\n";
        let seen = "a\\u001b]0;x\\u0007\\u007f\\u009b2J\\u000d\\u202e\\u2066\\udb40\\udc41";
        assert_eq!(lines(text), format!("{seen}\tä…│\n"));
        assert_eq!(
            Escaped(text).to_string(),
            format!("{seen}\\u0009ä…│\\u000a")
        );
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "a\u{9b}": "\u{1b}\n\u{7f}\u{202e}\u{e0041}\\" });
        let shown = lines(&value.to_string());
        assert!(shown.chars().all(is_printable), "{shown}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).ok(),
            Some(value)
        );
    }
}
