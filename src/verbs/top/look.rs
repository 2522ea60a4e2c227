//! The styles of the screen of `top`, and what terminals with fewer characters or colours show.

use crate::shown::terminal;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};
use std::env;

pub const PLAIN: Style = Style::new();
pub const TITLE: Style = PLAIN.add_modifier(Modifier::BOLD);
/// The heads of columns.
pub const HEADS: Style = TITLE.add_modifier(Modifier::UNDERLINED);
pub const SELECTED: Style = PLAIN.add_modifier(Modifier::REVERSED);
/// The names of keys.
pub const KEY: Style = TITLE.fg(Color::Cyan);
pub const WEAK: Style = PLAIN.add_modifier(Modifier::DIM);
/// Something that needs attention.
pub const ALARM: Style = TITLE.fg(Color::Red);
pub const CURVE: Style = PLAIN.fg(Color::Green);
/// The fillings of bars and the colours of names for top groups, in turn. Red and yellow have other
/// meanings.
pub const FILLS: [(&str, Style); 6] = [
    ("█", PLAIN.fg(Color::Green)),
    ("▓", PLAIN.fg(Color::Blue)),
    ("▒", PLAIN.fg(Color::Magenta)),
    ("█", PLAIN.fg(Color::Cyan)),
    ("▓", PLAIN.fg(Color::LightGreen)),
    ("▒", PLAIN.fg(Color::LightBlue)),
];
/// The filling of a bar for memory outside all groups.
pub const OUTSIDE: (&str, Style) = ("░", PLAIN.fg(Color::Yellow));
/// The mark of the limits in a bar.
pub const LIMIT: (&str, Style) = ("│", ALARM);
/// The heights of a curve in one line, from above 0 to the highest.
pub const HEIGHTS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// The characters of the screen, and what terminals without UTF-8 show instead.
const DRAWN: [&str; 2] = ["█▓▒░│…├└─▸▁▂▃▄▅▆▇·", "#=%:|~|`-+_.:-=+*."];

/// What a terminal shows.
#[derive(Copy, Clone, Debug)]
pub struct Look {
    /// Whether the terminal shows other characters than those of ASCII.
    pub unicode: bool,
    pub colours: bool,
}

impl Look {
    /// Returns the look for the user's locale, the terminal of `TERM`, and `NO_COLOR`.
    pub fn of_terminal() -> Self {
        let none = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let term = env::var_os("TERM").unwrap_or_default();
        Self {
            unicode: terminal::is_utf8(),
            colours: !none && has_colours(&term.to_string_lossy()),
        }
    }

    /// Replaces the characters and the colours that the terminal does not show.
    pub fn apply(self, buffer: &mut Buffer) {
        for cell in &mut buffer.content {
            if !self.unicode && !cell.symbol().is_ascii() {
                let drawn = DRAWN[0].chars().zip(DRAWN[1].chars());
                let known = drawn
                    .into_iter()
                    .find(|(c, _)| cell.symbol().starts_with(*c));
                cell.set_char(known.map_or('?', |(_, ascii)| ascii));
            }
            if !self.colours {
                cell.fg = Color::Reset;
                cell.modifier.remove(Modifier::DIM);
            }
        }
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
    fn other_characters_are_replaced_without_utf_8() {
        let mut buffer = Buffer::with_lines(["naïve 模型 │ lon…"]);
        let look = Look {
            unicode: false,
            colours: true,
        };
        look.apply(&mut buffer);
        assert_eq!(buffer, Buffer::with_lines(["na?ve ? ?  | lon~"]));
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
