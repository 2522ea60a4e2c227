//! Escaping of text from other users and programs, so that a terminal can show it safely.

use std::fmt;

/// A text displayed as one line. Control characters, line separators and marks of writing direction
/// become escapes such as `\u001b`.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(self.0, f, |_| false)
    }
}

/// Escapes a text of several lines as [`Escaped`] escapes one line, but keeps line feeds and tabs.
pub fn lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Writing to a `String` never fails.
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

/// Returns whether a terminal shows the character and does not obey it.
pub fn is_printable(c: char) -> bool {
    let invisible = matches!(
        c,
        // The invisible characters: marks of writing direction, characters without width, line
        // separators, and tags.
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
}
