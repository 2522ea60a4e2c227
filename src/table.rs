//! Columns: bold heads and fitted widths on a terminal, plain aligned text elsewhere.

use super::output::Escaped;
use super::terminal;
use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Width, presets,
};
use std::fmt::Display;
use std::io::{self, IsTerminal};

/// What stands for a figure that is not known.
pub const UNKNOWN: &str = "-";

/// A figure, where it is known.
pub fn figure(figure: Option<impl Display>) -> String {
    figure.map_or_else(|| UNKNOWN.to_owned(), |figure| figure.to_string())
}

/// A column's head and side.
#[derive(Copy, Clone, Eq, PartialEq)]
pub enum Column {
    /// Text.
    Left(&'static str),
    /// Figures.
    Right(&'static str),
}

impl Column {
    const fn head(self) -> &'static str {
        match self {
            Self::Left(head) | Self::Right(head) => head,
        }
    }
}

/// Texts of so many characters are never broken: a GPU is one of them.
const WHOLE: u16 = 16;

/// Rows under heads.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// No rows yet.
    pub fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with a text for each column, and escapes it.
    pub fn row(&mut self, row: Vec<String>) {
        let escaped = row.iter().map(|cell| Escaped(cell).to_string());
        self.rows.push(escaped.collect());
    }

    /// Drops those of the columns in which nothing is known.
    pub fn without_empty(&mut self, optional: &[Column]) {
        for at in (0..self.columns.len()).rev() {
            let empty = || self.rows.iter().all(|row| row[at] == UNKNOWN);
            if optional.contains(&self.columns[at]) && empty() {
                self.columns.remove(at);
                for row in &mut self.rows {
                    row.remove(at);
                }
            }
        }
    }

    /// The text for stdout.
    pub fn render(&self) -> String {
        if io::stdout().is_terminal() {
            self.fitted(terminal::has_style(&io::stdout()))
        } else {
            self.plain()
        }
    }

    /// The text for stdout. On a terminal that is too narrow it lacks some of the `optional`
    /// columns: first those that say the same in all rows, then as many as have to go, in this
    /// order.
    pub fn render_without(mut self, optional: &[Column]) -> String {
        // Only a terminal has a width.
        if let (true, Some(width)) = (
            io::stdout().is_terminal(),
            comfy_table::Table::new().width(),
        ) {
            self.narrow(optional, width.into());
        }
        self.render()
    }

    fn narrow(&mut self, optional: &[Column], width: usize) {
        let says_nothing = |table: &Self, column: &Column| {
            let at = table.columns.iter().position(|there| there == column);
            at.is_some_and(|at| {
                let mut cells = table.rows.iter().map(|row| row[at].as_str());
                cells.all(|cell| ["0 B", "running", UNKNOWN].contains(&cell))
            })
        };
        let same: Vec<Column> = optional
            .iter()
            .copied()
            .filter(|column| says_nothing(self, column))
            .collect();
        for column in same.iter().chain(optional) {
            if self.least_width() <= width {
                return;
            }
            if let Some(at) = self.columns.iter().position(|there| there == column) {
                self.columns.remove(at);
                for row in &mut self.rows {
                    row.remove(at);
                }
            }
        }
    }

    /// Characters that a line needs at least: long texts can be broken.
    fn least_width(&self) -> usize {
        let columns = self.columns.iter().zip(self.widths());
        let least = columns.map(|(column, width)| match column {
            Column::Left(_) => width.min(usize::from(WHOLE)),
            Column::Right(_) => width,
        });
        least
            .map(|width| width + 2)
            .sum::<usize>()
            .saturating_sub(2)
    }

    fn fitted(&self, color: bool) -> String {
        let mut table = comfy_table::Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic);
        let head = |column: &Column| {
            let cell = Cell::new(column.head());
            if color {
                cell.add_attribute(Attribute::Bold)
            } else {
                cell
            }
        };
        table.set_header(self.columns.iter().map(head));
        for row in &self.rows {
            table.add_row(row);
        }
        let shown = table.column_iter_mut();
        for ((column, width), shown) in self.columns.iter().zip(self.widths()).zip(shown) {
            shown.set_padding((0, 2));
            // Where the terminal is narrow, long texts are broken, and figures are not.
            shown.set_constraint(match column {
                Column::Left(_) if width > usize::from(WHOLE) => {
                    ColumnConstraint::LowerBoundary(Width::Fixed(WHOLE))
                }
                _ => ColumnConstraint::ContentWidth,
            });
            if let Column::Right(_) = column {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = table.trim_fmt();
        text.push('\n');
        text
    }

    /// The characters of the longest text in each column.
    fn widths(&self) -> Vec<usize> {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| length(&row[at]));
            cells.fold(length(self.columns[at].head()), usize::max)
        };
        (0..self.columns.len()).map(width).collect()
    }

    fn plain(&self) -> String {
        let heads = self
            .columns
            .iter()
            .map(|column| column.head().to_owned())
            .collect();
        let lines = std::iter::once(&heads).chain(&self.rows);
        let widths = self.widths();
        let mut out = String::new();
        for line in lines {
            let mut text = String::new();
            for ((cell, column), width) in line.iter().zip(&self.columns).zip(&widths) {
                let space = " ".repeat(width - length(cell));
                match column {
                    Column::Left(_) => text.extend([cell, &*space, "  "]),
                    Column::Right(_) => text.extend([&*space, cell, "  "]),
                }
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[Column::Left("NAME"), Column::Right("MAX")]);
        table.row(vec!["a".into(), "4.0 GiB".into()]);
        table.row(vec!["GPU-1a2b…".into(), "-".into()]);
        table
    }

    #[test]
    fn plain_columns_are_aligned() {
        let expected = "NAME           MAX\na          4.0 GiB\nGPU-1a2b…        -\n";
        assert_eq!(table().plain(), expected);
    }

    #[test]
    fn columns_without_figures_go_where_they_may() {
        let columns = ["A", "B", "C"].map(Column::Right);
        let mut table = Table::new(&columns);
        table.row(["-", "-", "-"].map(String::from).into());
        table.row(["-", "-", "1"].map(String::from).into());
        table.without_empty(&columns[1..]);
        assert_eq!(table.plain(), "A  C\n-  -\n-  1\n");
    }

    #[test]
    fn a_narrow_terminal_gets_the_columns_that_say_most() {
        let [name, zero, size, total] = [
            Column::Left("NAME"),
            Column::Right("ZERO"),
            Column::Right("SIZE"),
            Column::Right("TOTAL"),
        ];
        let shown = |width| {
            let mut table = Table::new(&[name, zero, size, total]);
            table.row(
                ["a", "0 B", "518.0 MiB", "1.5 GiB"]
                    .map(String::from)
                    .into(),
            );
            table.narrow(&[size, zero], width);
            assert!(table.plain().lines().all(|line| line.len() <= width));
            table
                .columns
                .iter()
                .map(|column| column.head())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown(80), "NAME ZERO SIZE TOTAL");
        assert_eq!(shown(28), "NAME SIZE TOTAL");
        assert_eq!(shown(20), "NAME TOTAL");
    }

    #[test]
    fn the_terminal_form_has_the_same_words() {
        let text = table().fitted(false);
        let words = |text: &str| {
            text.split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&text), words(&table().plain()));
        assert!(!text.contains('\u{1b}'));
    }
}
