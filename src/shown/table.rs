//! Formats tables as aligned text. On a terminal, a table fits the terminal's width and has bold
//! heads.

use super::output::Escaped;
use super::terminal;
use crate::figures::fields::{Column, Field, Look};
use crate::machine::nvml::Driver;
use std::fmt::Display;
use std::io;
use unicode_width::UnicodeWidthStr;

/// The text in a table cell for an unknown figure.
pub const UNKNOWN: &str = "-";

/// Formats a figure for a table cell; `None` stands for an unknown figure.
pub fn figure(figure: Option<impl Display>) -> String {
    figure.map_or_else(|| UNKNOWN.to_owned(), |figure| figure.to_string())
}

/// Shortens a text of a column to at most `width` columns of the terminal.
fn cut(look: Look, text: &str, width: usize) -> String {
    let tail = match look {
        Look::Path => width.saturating_sub(1) / 2,
        Look::Left | Look::Right => 0,
    };
    terminal::cut(text, width, tail).into_owned()
}

/// Texts of up to this many columns are not cut. The names of GPUs are shorter.
const UNCUT: usize = 16;

/// A table of columns and rows.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table with these columns and no rows.
    pub fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
        }
    }

    /// Makes the table of rows, with the fields that have a column.
    pub fn of<'a, Row: 'a>(
        fields: impl IntoIterator<Item = &'a Field<Row>>,
        rows: &[Row],
        driver: Option<&Driver>,
    ) -> Self {
        let column = |field: &'a Field<Row>| Some((field.column?, field));
        let mut shown: Vec<_> = fields.into_iter().filter_map(column).collect();
        shown.sort_by_key(|(column, _)| column.last);
        let columns: Vec<Column> = shown.iter().map(|(column, _)| *column).collect();
        let mut table = Self::new(&columns);
        for row in rows {
            let cells = shown.iter().map(|(column, field)| {
                let cell = (field.cell)(row).known(*column);
                figure(cell.and_then(|cell| cell.text(field.unit, driver)))
            });
            table.row(cells.collect());
        }
        table
    }

    /// Adds a row, with one text for each column. Escapes the texts for printing.
    pub fn row(&mut self, row: Vec<String>) {
        let escaped = row.iter().map(|cell| Escaped(cell).to_string());
        self.rows.push(escaped.collect());
    }

    /// Returns whether the table has rows.
    pub fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Returns whether every cell of a column has one of these texts.
    fn says_only(&self, at: usize, texts: &[&str]) -> bool {
        self.rows.iter().all(|row| texts.contains(&&*row[at]))
    }

    fn drop_column(&mut self, at: usize) {
        self.columns.remove(at);
        for row in &mut self.rows {
            row.remove(at);
        }
    }

    /// Drops sparse columns in which nothing is.
    fn drop_sparse(&mut self) {
        for at in (0..self.columns.len()).rev() {
            if self.columns[at].sparse && self.says_only(at, &[UNKNOWN, ""]) {
                self.drop_column(at);
            }
        }
    }

    /// Returns the table for standard output. A narrow terminal drops columns: uninteresting ones
    /// first, then in their declared order. Then cuts long texts, so that each row is one line.
    /// Where the output is no terminal, columns with live figures are missing.
    pub fn render(mut self) -> String {
        let out = io::stdout();
        self.drop_sparse();
        match terminal::width(&out) {
            Some(width) => {
                self.narrow(width);
                self.shorten(width);
            }
            None => {
                for at in (0..self.columns.len()).rev() {
                    if self.columns[at].live {
                        self.drop_column(at);
                    }
                }
            }
        }
        self.laid_out(terminal::has_style(&out))
    }

    fn narrow(&mut self, width: usize) {
        let next = |table: &Self| {
            let can_go = |at: &usize| table.columns[*at].narrow > 0;
            let order = |at: &usize| {
                let is_dull = table.says_only(*at, &["0 B", "0", "", "running", UNKNOWN]);
                (!is_dull, table.columns[*at].narrow)
            };
            (0..table.columns.len()).filter(can_go).min_by_key(order)
        };
        while self.least_width() > width
            && let Some(at) = next(self)
        {
            self.drop_column(at);
        }
    }

    /// Cuts the longest texts until the table fits.
    fn shorten(&mut self, width: usize) {
        let mut widths = self.widths();
        let whole = |widths: &[usize]| widths.iter().map(|width| width + 2).sum::<usize>();
        let longest = |widths: &[usize]| {
            let is_long = |at: &usize| widths[*at] > UNCUT && self.columns[*at].look != Look::Right;
            let texts = (0..widths.len()).filter(is_long);
            texts.max_by_key(|at| widths[*at])
        };
        while whole(&widths) > width + 2
            && let Some(at) = longest(&widths)
        {
            widths[at] -= 1;
        }
        for row in &mut self.rows {
            for ((cell, column), width) in row.iter_mut().zip(&self.columns).zip(&widths) {
                *cell = cut(column.look, cell, *width);
            }
        }
    }

    /// Returns the least width of the table, in columns of the terminal. Long texts can be
    /// cut, figures cannot.
    fn least_width(&self) -> usize {
        let columns = self.columns.iter().zip(self.widths());
        let least = columns.map(|(column, width)| match column.look {
            Look::Left | Look::Path => width.min(UNCUT) + 2,
            Look::Right => width + 2,
        });
        least.sum::<usize>().saturating_sub(2)
    }

    /// Formats the table. `bold` makes the heads bold.
    fn laid_out(&self, bold: bool) -> String {
        let widths = self.widths();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for ((cell, column), width) in cells.zip(&self.columns).zip(&widths) {
                let room = " ".repeat(width - cell.width());
                line += &match column.look {
                    Look::Left | Look::Path => format!("{cell}{room}  "),
                    Look::Right => format!("{room}{cell}  "),
                };
            }
            line.truncate(line.trim_end().len());
            line
        };
        let mut text = line(&mut self.columns.iter().map(|column| column.head));
        if bold {
            text = format!("\x1b[1m{text}\x1b[0m");
        }
        for row in &self.rows {
            text += "\n";
            text += &line(&mut row.iter().map(|cell| &**cell));
        }
        text + "\n"
    }

    /// Returns the width of each column: that of the column's longest text, in columns of the
    /// terminal.
    fn widths(&self) -> Vec<usize> {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].width());
            cells.fold(self.columns[at].head.width(), usize::max)
        };
        (0..self.columns.len()).map(width).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::fields::{fields, left, path, right};

    fn table() -> Table {
        let mut table = Table::new(&[left("NAME"), right("MAX")]);
        table.row(vec!["a".into(), "4.0 GiB".into()]);
        table.row(vec!["GPU-1a2b…".into(), "-".into()]);
        table
    }

    #[test]
    fn plain_columns_are_aligned() {
        let expected = "NAME           MAX\na          4.0 GiB\nGPU-1a2b…        -\n";
        assert_eq!(table().laid_out(false), expected);
    }

    #[test]
    fn sparse_columns_without_figures_are_dropped() {
        fields! { FIELDS(it: [Option<u32>; 2]):
            "a": Count, right("A").last()   => it[0];
            "b": Count, right("B").sparse() => it[0].filter(|_| false);
            "": Count, right("C").sparse()  => it[1];
            "d": Count                      => it[0];
        }
        let mut table = Table::of(FIELDS, &[[None, Some(0)], [Some(0), Some(1)]], None);
        table.drop_sparse();
        assert_eq!(table.laid_out(false), "C  A\n-  -\n1  0\n");
    }

    #[test]
    fn a_narrow_terminal_drops_columns() {
        let [name, zero, size, total] = [
            left("NAME"),
            right("ZERO").narrow(2),
            right("SIZE").narrow(1),
            right("TOTAL"),
        ];
        let shown = |width| {
            let mut table = Table::new(&[name, zero, size, total]);
            table.row(
                ["a", "0 B", "518.0 MiB", "1.5 GiB"]
                    .map(String::from)
                    .into(),
            );
            table.narrow(width);
            assert!(
                table
                    .laid_out(false)
                    .lines()
                    .all(|line| line.len() <= width)
            );
            table
                .columns
                .iter()
                .map(|column| column.head)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown(80), "NAME ZERO SIZE TOTAL");
        assert_eq!(shown(28), "NAME SIZE TOTAL");
        assert_eq!(shown(20), "NAME TOTAL");
        let counts = [right("REFUSED").narrow(2), right("PEAK").narrow(1)];
        let mut table = Table::new(&counts);
        table.row(vec!["0".into(), "3.0 GiB".into()]);
        table.narrow(8);
        assert_eq!(table.columns[0].head, "PEAK");
    }

    #[test]
    fn long_texts_are_cut_to_the_width_of_a_terminal() {
        let mut table = Table::new(&[path("GROUP"), right("USAGE"), left("COMMAND")]);
        let (group, command) = ("lab/a-long-name-of-a-group/run", "python train.py --a --b");
        table.row([group, "1018.0 MiB", command].map(String::from).into());
        table.shorten(53);
        assert_eq!(
            table.laid_out(false),
            "GROUP                      USAGE  COMMAND\n\
             lab/a-long…group/run  1018.0 MiB  python train.py --…\n"
        );
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let mut table = Table::new(&[right("TOTAL"), left("COMMAND")]);
        table.row(["1.0 GiB", &"模型".repeat(10)].map(String::from).into());
        table.shorten(30);
        let text = table.laid_out(false);
        assert!(
            text.ends_with(&format!("{}…\n", "模型".repeat(5))),
            "{text}"
        );
        assert!(text.lines().all(|line| line.width() <= 30), "{text}");
    }

    #[test]
    fn bold_heads_have_the_same_columns() {
        let heads = "\x1b[1mNAME           MAX\x1b[0m\n";
        assert!(table().laid_out(true).starts_with(heads));
    }
}
