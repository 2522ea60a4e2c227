//! Formats tables as aligned text. On a terminal, a table fits the terminal's width and has bold
//! heads.

use super::output::Escaped;
use super::terminal;
use std::fmt::Display;
use std::io;
use unicode_width::UnicodeWidthStr;

/// The text in a table cell for an unknown figure.
pub const UNKNOWN: &str = "-";

/// Formats a figure for a table cell; `None` stands for an unknown figure.
pub fn figure(figure: Option<impl Display>) -> String {
    figure.map_or_else(|| UNKNOWN.to_owned(), |figure| figure.to_string())
}

/// A column of a table, with its head.
#[derive(Copy, Clone, Eq, PartialEq)]
pub enum Column {
    /// A column of text, aligned to the left.
    Left(&'static str),
    /// A column of names of groups, aligned to the left. Both ends of a name tell groups apart.
    Path(&'static str),
    /// A column of figures, aligned to the right.
    Right(&'static str),
}

impl Column {
    const fn head(self) -> &'static str {
        match self {
            Self::Left(head) | Self::Path(head) | Self::Right(head) => head,
        }
    }

    /// Shortens a text of this column to at most `width` columns of the terminal.
    fn cut(self, text: &str, width: usize) -> String {
        let tail = match self {
            Self::Path(_) => width.saturating_sub(1) / 2,
            Self::Left(_) | Self::Right(_) => 0,
        };
        terminal::cut(text, width, tail).into_owned()
    }
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

    /// Adds a row, with one text for each column. Escapes the texts for printing.
    pub fn row(&mut self, row: Vec<String>) {
        let escaped = row.iter().map(|cell| Escaped(cell).to_string());
        self.rows.push(escaped.collect());
    }

    /// Returns whether the table has rows.
    pub fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Drops optional columns in which every figure is unknown.
    pub fn without_empty(&mut self, optional: &[Column]) {
        for column in optional {
            if self.says_only(*column, &[UNKNOWN]) {
                self.drop_column(*column);
            }
        }
    }

    fn position(&self, column: Column) -> Option<usize> {
        self.columns.iter().position(|there| *there == column)
    }

    /// Returns whether every cell of this column has one of these texts; false if the table has no
    /// such column.
    fn says_only(&self, column: Column, texts: &[&str]) -> bool {
        let says = |at: usize| self.rows.iter().all(|row| texts.contains(&&*row[at]));
        self.position(column).is_some_and(says)
    }

    fn drop_column(&mut self, column: Column) {
        if let Some(at) = self.position(column) {
            self.columns.remove(at);
            for row in &mut self.rows {
                row.remove(at);
            }
        }
    }

    /// Returns the table for standard output. On a narrow terminal, drops `optional` columns:
    /// uninteresting ones first, then in the given order. Then cuts long texts, so that each row is
    /// one line.
    pub fn render(mut self, optional: &[Column]) -> String {
        let out = io::stdout();
        if let Some(width) = terminal::width(&out) {
            self.narrow(optional, width);
            self.shorten(width);
        }
        self.laid_out(terminal::has_style(&out))
    }

    fn narrow(&mut self, optional: &[Column], width: usize) {
        let mut order = optional.to_vec();
        // Columns without an interesting cell come first. Otherwise, the columns keep the given
        // order, because the sort is stable.
        order.sort_by_key(|column| !self.says_only(*column, &["0 B", "running", UNKNOWN]));
        for column in order {
            if self.least_width() > width {
                self.drop_column(column);
            }
        }
    }

    /// Cuts the longest texts until the table fits.
    fn shorten(&mut self, width: usize) {
        let mut widths = self.widths();
        let whole = |widths: &[usize]| widths.iter().map(|width| width + 2).sum::<usize>();
        let longest = |widths: &[usize]| {
            let texts = (0..widths.len()).filter(|at| match self.columns[*at] {
                Column::Left(_) | Column::Path(_) => widths[*at] > UNCUT,
                Column::Right(_) => false,
            });
            texts.max_by_key(|at| widths[*at])
        };
        while whole(&widths) > width + 2
            && let Some(at) = longest(&widths)
        {
            widths[at] -= 1;
        }
        for row in &mut self.rows {
            for ((cell, column), width) in row.iter_mut().zip(&self.columns).zip(&widths) {
                *cell = column.cut(cell, *width);
            }
        }
    }

    /// Returns the least width of the table, in columns of the terminal. Long texts can be
    /// cut, figures cannot.
    fn least_width(&self) -> usize {
        let columns = self.columns.iter().zip(self.widths());
        let least = columns.map(|(column, width)| match column {
            Column::Left(_) | Column::Path(_) => width.min(UNCUT) + 2,
            Column::Right(_) => width + 2,
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
                line += &match column {
                    Column::Left(_) | Column::Path(_) => format!("{cell}{room}  "),
                    Column::Right(_) => format!("{room}{cell}  "),
                };
            }
            line.truncate(line.trim_end().len());
            line
        };
        let mut text = line(&mut self.columns.iter().map(|column| column.head()));
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
            cells.fold(self.columns[at].head().width(), usize::max)
        };
        (0..self.columns.len()).map(width).collect()
    }
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
        assert_eq!(table().laid_out(false), expected);
    }

    #[test]
    fn optional_columns_without_figures_are_dropped() {
        let columns = ["A", "B", "C"].map(Column::Right);
        let mut table = Table::new(&columns);
        table.row(["-", "-", "-"].map(String::from).into());
        table.row(["-", "-", "1"].map(String::from).into());
        table.without_empty(&columns[1..]);
        assert_eq!(table.laid_out(false), "A  C\n-  -\n-  1\n");
    }

    #[test]
    fn a_narrow_terminal_drops_columns() {
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
            assert!(
                table
                    .laid_out(false)
                    .lines()
                    .all(|line| line.len() <= width)
            );
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
    fn long_texts_are_cut_to_the_width_of_a_terminal() {
        let mut table = Table::new(&[
            Column::Path("GROUP"),
            Column::Right("USAGE"),
            Column::Left("COMMAND"),
        ]);
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
        let mut table = Table::new(&[Column::Right("TOTAL"), Column::Left("COMMAND")]);
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
