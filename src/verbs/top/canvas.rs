//! Writes texts into a buffer of cells. Nothing is written outside the given columns.

use super::pen::{Pen, Theme};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

/// A buffer, and how to draw in it.
pub struct Canvas<'a> {
    pub buffer: &'a mut Buffer,
    pub pen: &'a Pen,
    pub theme: &'a Theme,
}

/// The side of a column at which a text begins.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Align {
    Left,
    Right,
    /// To the left, and a text that does not fit keeps its end.
    End,
}

impl Canvas<'_> {
    pub fn area(&self) -> Rect {
        self.buffer.area
    }

    /// Writes a text into `width` columns from `x` on, and returns the columns that it took.
    pub fn text(&mut self, x: usize, y: usize, width: usize, text: &str, style: Style) -> usize {
        self.aligned(x, y, width, (text, Align::Left), style)
    }

    /// Writes a text into a column of a table.
    pub fn aligned(
        &mut self,
        x: usize,
        y: usize,
        width: usize,
        (text, align): (&str, Align),
        style: Style,
    ) -> usize {
        let area = self.area();
        let width = width.min(usize::from(area.width).saturating_sub(x));
        if width == 0 || y >= usize::from(area.height) {
            return 0;
        }
        let text = match align {
            Align::End => self.pen.fit_end(text, width),
            Align::Left | Align::Right => self.pen.fit(text, width),
        };
        let used = text.width();
        let x = match align {
            Align::Right => x + width - used,
            Align::Left | Align::End => x,
        };
        // Both are smaller than the area's sizes, which fit into 16 bits.
        let (x, y) = (x as u16, y as u16);
        self.buffer.set_stringn(x, y, &text, width, style);
        used
    }

    /// Changes the style of a whole line.
    pub fn style_line(&mut self, y: usize, style: Style) {
        let area = self.area();
        if y < usize::from(area.height) {
            let line = Rect::new(0, y as u16, area.width, 1);
            self.buffer.set_style(line, style);
        }
    }

    /// Returns the width of the buffer in columns.
    pub fn width(&self) -> usize {
        self.area().width.into()
    }
}
