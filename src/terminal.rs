//! Finds out how large a terminal is and whether it shows bold type. Breaks lines to fit.

use rustix::termios::{Winsize, tcgetwinsize};
use std::env;
use std::io::IsTerminal;
use std::os::fd::AsFd;

/// The smallest width of a terminal, in columns, for which lines are broken.
const NARROWEST: usize = 40;

/// Returns whether to print bold type: on a terminal with bold type (`TERM`), unless `NO_COLOR` is
/// set.
pub fn has_style(stream: &impl IsTerminal) -> bool {
    has_cursor(stream) && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns whether the stream is a terminal that obeys escape sequences (`TERM`).
pub fn has_cursor(stream: &impl IsTerminal) -> bool {
    let knows = |term: &std::ffi::OsString| !term.is_empty() && term != "dumb";
    stream.is_terminal() && env::var_os("TERM").as_ref().is_some_and(knows)
}

/// Breaks a line between words at the terminal's width. Indents the following lines by `indent`
/// columns. Other streams keep the line.
pub fn fit(line: &str, indent: usize, stream: &(impl IsTerminal + AsFd)) -> String {
    match width(stream) {
        Some(width) => wrap(line, indent, width),
        None => line.into(),
    }
}

/// Returns whether the user's locale has the characters of UTF-8, by the variables of the
/// environment.
pub fn is_utf8() -> bool {
    let set = |name: &&str| env::var_os(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set);
    let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Returns the terminal's width in columns; `None` if the stream is not a terminal, or if its width
/// is unknown or too small.
pub fn width(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let width = usize::from(size(stream)?.ws_col);
    (width >= NARROWEST).then_some(width)
}

/// Returns the terminal's height in rows; `None` if the stream is not a terminal, or if its height
/// is unknown.
pub fn height(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let height = usize::from(size(stream)?.ws_row);
    (height > 0).then_some(height)
}

fn size(stream: &(impl IsTerminal + AsFd)) -> Option<Winsize> {
    let is_terminal = stream.is_terminal();
    is_terminal.then(|| tcgetwinsize(stream).ok()).flatten()
}

fn wrap(line: &str, indent: usize, width: usize) -> String {
    let mut out = String::with_capacity(line.len());
    let (mut column, mut gap) = (0, 0);
    // A single space separates words. Several spaces align columns, so keep them.
    for word in line.split(' ') {
        let length = columns(word);
        if length > 0 && column > indent && column + gap + length > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            (column, gap) = (indent, 0);
        }
        if length > 0 {
            out.extend(std::iter::repeat_n(' ', gap));
            column += gap + length;
            gap = 0;
        }
        out.push_str(word);
        gap += 1;
    }
    out
}

/// Returns the width of a word in columns, without escape sequences for bold type (`ESC [ 1 m`).
fn columns(word: &str) -> usize {
    let mut in_sequence = false;
    let is_seen = |c: &char| {
        let seen = !in_sequence && *c != '\u{1b}';
        in_sequence = (in_sequence || *c == '\u{1b}') && *c != 'm';
        seen
    };
    word.chars().filter(is_seen).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let wrapped = |line: &str| wrap(line, 4, 20);
        assert_eq!(wrapped("short"), "short");
        assert_eq!(wrapped("exactly twenty chars"), "exactly twenty chars");
        assert_eq!(
            wrapped("just one more than it takes"),
            "just one more than\n    it takes"
        );
        // A line with aligned columns keeps its spaces.
        assert_eq!(
            wrapped("ok   root   a path and more"),
            "ok   root   a path\n    and more"
        );
        // A word that is longer than a line is not broken.
        assert_eq!(
            wrapped("see /a/path/that/is/longer here"),
            "see /a/path/that/is/longer\n    here"
        );
        assert_eq!(
            wrapped("\u{1b}[1mfive\u{1b}[0m words that fit here"),
            "\u{1b}[1mfive\u{1b}[0m words that fit\n    here"
        );
        let bare = wrapped("a b  c   d e f g h i j k l m n o p q r s t u v w x y z");
        assert!(
            bare.lines()
                .all(|line| line.len() <= 20 && line == line.trim_end()),
            "{bare}"
        );
    }
}
