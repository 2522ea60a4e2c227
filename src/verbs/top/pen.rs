//! The characters and the styles with which `top` draws.

use crate::shown::terminal;
use ratatui::style::{Color, Modifier, Style};
use std::env;
use unicode_width::UnicodeWidthStr;

/// The characters of a drawing.
#[derive(Copy, Clone, Debug)]
pub struct Pen {
    /// Whether the terminal shows other characters than those of ASCII.
    pub unicode: bool,
    /// Fillings of a bar for groups, in turn.
    pub fills: [char; 3],
    /// The filling of a bar for memory outside all groups.
    pub outside: char,
    /// The mark of the limits in a bar.
    pub limit: char,
    /// The end of a text that was cut.
    pub cut: char,
    /// The heights of a curve in one line, from above 0 to the highest.
    pub heights: [char; 8],
    /// What precedes the name of a group: the last one directly below its parent, another one, a
    /// line past them, and the space below the last one.
    pub branches: [&'static str; 4],
    /// The mark of a group whose subtree is folded.
    pub folded: &'static str,
}

/// The end of the short form of a GPU's UUID, and of a text that was cut.
const UNICODE_CUT: char = '…';

const UNICODE: Pen = Pen {
    unicode: true,
    fills: ['█', '▓', '▒'],
    outside: '░',
    limit: '│',
    cut: UNICODE_CUT,
    heights: ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
    branches: ["└─ ", "├─ ", "│  ", "   "],
    folded: "▸ ",
};

const ASCII: Pen = Pen {
    unicode: false,
    fills: ['#', '=', '%'],
    outside: ':',
    limit: '|',
    cut: '~',
    heights: ['_', '.', ':', '-', '=', '+', '*', '#'],
    branches: ["`- ", "|- ", "|  ", "   "],
    folded: "+ ",
};

impl Pen {
    /// Returns the characters for the user's locale.
    pub fn of_locale() -> Self {
        Self::new(terminal::is_utf8())
    }

    pub const fn new(unicode: bool) -> Self {
        if unicode { UNICODE } else { ASCII }
    }

    /// Returns a text of at most this many columns. Marks a text that was cut.
    pub fn fit(&self, text: &str, width: usize) -> String {
        let text = self.shown(text);
        if text.width() <= width {
            return text;
        }
        let mut cut = String::new();
        for part in parts(&text) {
            if cut.width() + part.width() + 1 > width {
                break;
            }
            cut.push_str(part);
        }
        if width > 0 {
            cut.push(self.cut);
        }
        cut
    }

    /// Returns the end of a text, of at most this many columns. Marks a text that was cut.
    pub fn fit_end(&self, text: &str, width: usize) -> String {
        let text = self.shown(text);
        if text.width() <= width {
            return text;
        }
        let parts = parts(&text);
        let mut kept = parts.len();
        let mut used = 1;
        while kept > 0 && used + parts[kept - 1].width() <= width {
            kept -= 1;
            used += parts[kept].width();
        }
        match width {
            0 => String::new(),
            _ => format!("{}{}", self.cut, parts[kept..].concat()),
        }
    }

    /// Replaces the characters that the terminal does not show.
    fn shown(&self, text: &str) -> String {
        let known = |c: char| match c {
            UNICODE_CUT if !self.unicode => self.cut,
            c if self.unicode || c.is_ascii() => c,
            _ => '?',
        };
        text.chars().map(known).collect()
    }
}

/// Returns the characters of a text, each with the marks that are drawn on it.
fn parts(text: &str) -> Vec<&str> {
    let mut starts: Vec<usize> = Vec::new();
    let mut before = 0;
    for (at, c) in text.char_indices() {
        let width = text[..at + c.len_utf8()].width();
        if width != before || starts.is_empty() {
            starts.push(at);
            before = width;
        }
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| &text[*start..end])
        .collect()
}

/// The styles of the parts of a screen.
#[derive(Copy, Clone, Debug)]
pub struct Theme {
    pub plain: Style,
    pub title: Style,
    /// The heads of columns.
    pub heads: Style,
    pub selected: Style,
    /// The names of keys.
    pub key: Style,
    pub weak: Style,
    /// Something that needs attention.
    pub alarm: Style,
    /// The groups in a bar, in turn.
    pub fills: [Style; 3],
    pub outside: Style,
    pub limit: Style,
    pub curve: Style,
}

const NONE: Style = Style::new();
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// A theme without colours, for `NO_COLOR` and for monochrome terminals.
const PLAIN: Theme = Theme {
    plain: NONE,
    title: BOLD,
    heads: BOLD.add_modifier(Modifier::UNDERLINED),
    selected: NONE.add_modifier(Modifier::REVERSED),
    key: BOLD,
    weak: NONE,
    alarm: BOLD,
    fills: [NONE; 3],
    outside: NONE,
    limit: BOLD,
    curve: NONE,
};

/// A theme of the eight colours that each terminal lets its user choose.
const COLOURS: Theme = Theme {
    plain: NONE,
    title: BOLD,
    heads: BOLD.add_modifier(Modifier::UNDERLINED),
    selected: NONE.add_modifier(Modifier::REVERSED),
    key: BOLD.fg(Color::Cyan),
    weak: NONE.add_modifier(Modifier::DIM),
    alarm: BOLD.fg(Color::Red),
    fills: [
        NONE.fg(Color::Green),
        NONE.fg(Color::Blue),
        NONE.fg(Color::Magenta),
    ],
    outside: NONE.fg(Color::Yellow),
    limit: BOLD.fg(Color::Red),
    curve: NONE.fg(Color::Green),
};

impl Theme {
    /// Returns the theme for the terminal of `TERM`, and for `NO_COLOR`.
    pub fn of_terminal() -> Self {
        let none = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let term = env::var_os("TERM").unwrap_or_default();
        Self::new(!none && has_colours(&term.to_string_lossy()))
    }

    pub const fn new(colours: bool) -> Self {
        if colours { COLOURS } else { PLAIN }
    }
}

/// Returns whether a terminal of this name shows colours.
fn has_colours(term: &str) -> bool {
    let monochrome = ["", "dumb", "vt52", "vt100", "vt102", "vt220", "vt320"];
    !monochrome.contains(&term) && !term.ends_with("-m") && !term.ends_with("-mono")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_columns() {
        let pen = Pen::new(true);
        for (text, width, expected) in [
            ("train.py", 8, "train.py"),
            ("train.py", 5, "trai…"),
            ("train.py", 1, "…"),
            ("train.py", 0, ""),
            // Wide characters are never cut in two.
            ("模型训练", 8, "模型训练"),
            ("模型训练", 6, "模型…"),
            // A mark stays with its letter.
            ("e\u{301}e\u{301}e\u{301}", 2, "e\u{301}…"),
        ] {
            assert_eq!(pen.fit(text, width), expected, "{text} {width}");
            assert!(pen.fit(text, width).width() <= width);
        }
        assert_eq!(pen.fit_end("lab/alice/run-7", 6), "…run-7");
        assert_eq!(pen.fit_end("模型训练", 4), "…练");
        assert_eq!(pen.fit_end("lab", 3), "lab");
        assert_eq!(pen.fit_end("lab", 0), "");
    }

    #[test]
    fn other_characters_are_replaced_without_utf_8() {
        let pen = Pen::new(false);
        assert_eq!(pen.fit("naïve 模型", 20), "na?ve ??");
        assert_eq!(pen.fit("long name", 5), "long~");
    }

    #[test]
    fn monochrome_terminals_are_known_by_name() {
        for term in ["", "dumb", "vt100", "xterm-mono", "linux-m"] {
            assert!(!has_colours(term), "{term}");
        }
        for term in [
            "xterm",
            "xterm-256color",
            "screen",
            "tmux-256color",
            "linux",
        ] {
            assert!(has_colours(term), "{term}");
        }
    }
}
