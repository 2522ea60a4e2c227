//! Finds out how large a terminal is and whether it shows bold type. Breaks lines to fit.

use rustix::termios::{Winsize, tcgetwinsize};
use std::env;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use unicode_width::UnicodeWidthChar;

/// Returns whether to print bold type: on a terminal with bold type (`TERM`), unless `NO_COLOR` is
/// set.
pub fn has_style(stream: &impl IsTerminal) -> bool {
    has_cursor(stream) && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns whether the stream is a terminal that obeys escape sequences (`TERM`).
fn has_cursor(stream: &impl IsTerminal) -> bool {
    let knows = |term: &std::ffi::OsString| !term.is_empty() && term != "dumb";
    stream.is_terminal() && env::var_os("TERM").as_ref().is_some_and(knows)
}

/// Returns whether standard output is a terminal that obeys escape sequences.
pub fn takes_screen() -> bool {
    has_cursor(&io::stdout())
}

/// Returns whether standard error is a terminal.
pub fn shows_notes() -> bool {
    io::stderr().is_terminal()
}

/// Returns the width of standard output, as [`width`] does.
pub fn output_width() -> Option<usize> {
    width(&io::stdout())
}

/// Breaks a line between words at the terminal's width. Indents the following lines by `indent`
/// columns, on a narrow terminal by fewer. Other streams keep the line.
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
/// is unknown.
pub fn width(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let width = usize::from(size(stream)?.ws_col);
    (width > 0).then_some(width)
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
    let indent = indent.min(width / 2);
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

/// Cuts a line to at most `width` columns. A line that was cut ends with `…`, and keeps its escape
/// sequences, which end bold type.
pub fn cut(line: &str, width: usize) -> String {
    if columns(line) <= width {
        return line.into();
    }
    let mut out = String::with_capacity(line.len());
    let mut left = Some(width.saturating_sub(1));
    for (c, columns) in measured(line) {
        match (columns, left) {
            (None, _) => out.push(c),
            (Some(columns), Some(room)) if columns <= room => {
                out.push(c);
                left = Some(room - columns);
            }
            (Some(_), Some(_)) => {
                out.push('…');
                left = None;
            }
            (Some(_), None) => {}
        }
    }
    out
}

/// Returns the width of a text in columns, without escape sequences for bold type (`ESC [ 1 m`).
fn columns(text: &str) -> usize {
    measured(text).filter_map(|(_, columns)| columns).sum()
}

/// Returns the characters of a text with their widths in columns; `None` for those of escape
/// sequences.
fn measured(text: &str) -> impl Iterator<Item = (char, Option<usize>)> {
    let mut in_sequence = false;
    text.chars().map(move |c| {
        let is_escape = in_sequence || c == '\u{1b}';
        in_sequence = is_escape && c != 'm';
        (c, (!is_escape).then(|| c.width().unwrap_or(0)))
    })
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
        assert_eq!(
            wrap("error  a word", 10, 8),
            "error  a\n    word",
            "the indent is at most half of the width"
        );
        let bare = wrapped("a b  c   d e f g h i j k l m n o p q r s t u v w x y z");
        assert!(
            bare.lines()
                .all(|line| line.len() <= 20 && line == line.trim_end()),
            "{bare}"
        );
    }

    #[test]
    fn cut_lines_end_with_a_mark() {
        assert_eq!(cut("2.0 GiB", 7), "2.0 GiB");
        assert_eq!(cut("2.0 GiB", 6), "2.0 G…");
        assert_eq!(cut("2.0 GiB", 1), "…");
        assert_eq!(
            cut("\u{1b}[1mUSAGE\u{1b}[0m FREE", 3),
            "\u{1b}[1mUS…\u{1b}[0m"
        );
        // A wide character that only fits in half is left out.
        assert_eq!(cut("模型模型", 4), "模…");
    }
}
