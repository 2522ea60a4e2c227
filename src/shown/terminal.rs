//! Finds out how large a terminal is and whether it shows bold type. Breaks lines to fit.

use rustix::termios::{Winsize, tcgetwinsize};
use std::borrow::Cow;
use std::env;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use textwrap::WordSplitter;
use unicode_truncate::UnicodeTruncateStr;
use unicode_width::UnicodeWidthStr;

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
        Some(width) => wrap(line, indent, width).join("\n"),
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

/// A space at which [`wrap`] breaks no line.
pub const NO_BREAK: &str = "\u{a0}";

/// Breaks a line between words into lines of at most `width` columns, and indents the following
/// lines. Longer words stay whole. Escape sequences of bold type take no columns.
pub fn wrap<'a>(line: &'a str, indent: usize, width: usize) -> Vec<Cow<'a, str>> {
    let indent = " ".repeat(indent.min(width / 2));
    let words = line.trim_start_matches(' ');
    let options = textwrap::Options::new(width)
        .initial_indent(&line[..line.len() - words.len()])
        .subsequent_indent(&indent)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(words, options)
}

/// Cuts a text to at most `width` columns. A text that was cut has a `…`, and after that `tail`
/// columns of its end.
pub fn cut(text: &str, width: usize, tail: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return text.into();
    }
    let Some(room) = width.checked_sub(1) else {
        return "".into();
    };
    let tail = tail.min(room);
    let (begin, _) = text.unicode_truncate(room - tail);
    let (end, _) = text.unicode_truncate_start(tail);
    format!("{begin}…{end}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let wrapped = |line: &str| wrap(line, 4, 20).join("\n");
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
            wrapped("  /a/path/that/is/longer"),
            "  /a/path/that/is/longer"
        );
        assert_eq!(
            wrapped("see /a/path/that/is/longer here"),
            "see\n    /a/path/that/is/longer\n    here"
        );
        assert_eq!(
            wrapped("\u{1b}[1mfive\u{1b}[0m words that fit here"),
            "\u{1b}[1mfive\u{1b}[0m words that fit\n    here"
        );
        assert_eq!(
            wrap("error  a word", 10, 8).join("\n"),
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
    fn texts_are_cut_to_columns() {
        for (text, width, tail, expected) in [
            ("2.0 GiB", 7, 0, "2.0 GiB"),
            ("2.0 GiB", 6, 0, "2.0 G…"),
            ("2.0 GiB", 1, 0, "…"),
            ("2.0 GiB", 0, 0, ""),
            // Wide characters are never cut in two.
            ("模型训练", 8, 0, "模型训练"),
            ("模型训练", 6, 0, "模型…"),
            // A mark stays with its letter.
            ("e\u{301}e\u{301}e\u{301}", 2, 0, "e\u{301}…"),
            ("lab/alice/run-7", 10, 4, "lab/a…un-7"),
            ("lab/alice/run-7", 6, 6, "…run-7"),
            ("模型训练", 4, 4, "…练"),
            ("lab", 0, 3, ""),
        ] {
            assert_eq!(cut(text, width, tail), expected, "{text} {width} {tail}");
            assert!(cut(text, width, tail).width() <= width);
        }
    }
}
