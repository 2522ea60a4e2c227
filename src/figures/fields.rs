//! Fields declare each figure of a row once: as a column of tables, CSV, `top` and the page, and as
//! a key of JSON and of its schema.

use crate::groups;
use crate::machine::nvml::Driver;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use serde_json::{Value, json};

/// A field of rows of this type.
pub struct Field<Row> {
    /// The key in JSON; empty if the field is only in tables.
    pub key: &'static str,
    pub unit: Unit,
    /// What the figure is, in sentences.
    pub says: &'static str,
    /// The column in tables.
    pub column: Option<Column>,
    pub cell: fn(&Row) -> Cell,
}

/// The unit or the type of a field's values.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Unit {
    Text,
    Count,
    Bytes,
    Percent,
    /// Milliseconds.
    Ms,
    Number,
    /// True or false.
    Flag,
    /// A time in UTC.
    Time,
    /// A machine, where several are shown. JSON has the key only there, and CSV never.
    Machine,
    /// Bytes, or a word.
    Setting,
    /// A GPU.
    Device,
    /// A JSON object or a list of such objects, of which the schema has a description of this name.
    One(&'static str),
    Many(&'static str),
}

/// Declares the fields of a type, in their order in JSON: `/// WHAT` and
/// `KEY: UNIT [, COLUMN] => CELL;`.
macro_rules! fields {
    ($vis:vis $name:ident$(<$life:lifetime>)?($row:ident: $type:ty):
        $($(#[doc = $says:literal])*
        $key:literal: $unit:expr $(, $column:expr)? => $cell:expr;)*) => {
        $vis const $name: &$($life)? [$crate::figures::fields::Field<$type>] = {
            #[allow(unused_imports, reason = "not every type has fields of all units")]
            use $crate::figures::fields::{Cell, Field, Unit::*};
            &[$(Field {
                key: $key,
                unit: $unit,
                says: concat!($($says),*).trim_ascii_start(),
                column: [$(Some($column),)? None][0],
                cell: |$row: &$type| Cell::from($cell),
            }),*]
        };
    };
}
pub(crate) use fields;

/// A column of a table.
#[derive(Copy, Clone)]
pub struct Column {
    pub head: &'static str,
    pub look: Look,
    /// The place in the order in which columns are left out on a narrow terminal; 0: never.
    pub narrow: u8,
    /// Whether zeros are left out, and the column if nothing is in it.
    pub sparse: bool,
    /// Whether the figures change all the time: they are only for people who watch a terminal.
    pub live: bool,
    /// Whether the column comes after those that are declared later.
    pub last: bool,
    /// The place in the order in which `top` chooses columns; 0: the column is not in `top`.
    pub rank: u8,
    /// The head in `top`.
    pub short: &'static str,
}

/// How a column looks.
#[derive(Copy, Clone, Eq, PartialEq)]
pub enum Look {
    /// Text, aligned to the left.
    Left,
    /// Names of groups, aligned to the left. Both ends of a name tell groups apart.
    Path,
    /// Figures, aligned to the right.
    Right,
}

/// Returns a column of text.
pub const fn left(head: &'static str) -> Column {
    Column {
        head,
        look: Look::Left,
        narrow: 0,
        sparse: false,
        live: false,
        last: false,
        rank: 0,
        short: head,
    }
}

/// Returns a column of names of groups.
pub const fn path(head: &'static str) -> Column {
    Column {
        look: Look::Path,
        ..left(head)
    }
}

/// Returns a column of figures.
pub const fn right(head: &'static str) -> Column {
    Column {
        look: Look::Right,
        ..left(head)
    }
}

impl Column {
    pub const fn narrow(self, narrow: u8) -> Self {
        Self { narrow, ..self }
    }

    pub const fn sparse(self) -> Self {
        Self {
            sparse: true,
            ..self
        }
    }

    pub const fn live(self) -> Self {
        Self { live: true, ..self }
    }

    pub const fn last(self) -> Self {
        Self { last: true, ..self }
    }

    pub const fn top(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    pub const fn short(self, short: &'static str) -> Self {
        Self { short, ..self }
    }
}

/// The value of a field in one row. If it is unknown, it is `-` in a table, empty in CSV and null
/// in JSON.
pub enum Cell {
    /// A text, or a number of which the unit says what people read.
    Plain(Value),
    Gpu(Option<DeviceId>),
    /// A value for programs, and what people read.
    Said(Value, Option<String>),
}

impl<T: Into<Value>> From<T> for Cell {
    fn from(value: T) -> Self {
        Self::Plain(value.into())
    }
}

impl Cell {
    pub fn said(value: impl Into<Value>, text: impl Into<String>) -> Self {
        Self::Said(value.into(), Some(text.into()))
    }

    /// Returns whether the cell is unknown or a zero.
    pub fn is_dull(&self) -> bool {
        match self {
            Self::Plain(value) => value.is_null() || *value == 0,
            Self::Gpu(id) => id.is_none(),
            Self::Said(_, text) => text.is_none(),
        }
    }

    /// Returns the cell, if it says something in this column.
    pub fn known(self, column: Column) -> Option<Self> {
        (!(column.sparse && self.is_dull())).then_some(self)
    }

    /// Returns the number for programs.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Plain(value) | Self::Said(value, _) => value.as_u64(),
            Self::Gpu(_) => None,
        }
    }

    /// Formats the cell for people; `None` if it is unknown.
    pub fn text(self, unit: Unit, driver: Option<&Driver>) -> Option<String> {
        match self {
            Self::Plain(Value::Null) => None,
            Self::Plain(Value::String(text)) => Some(text),
            Self::Plain(value) if unit == Unit::Bytes => Some(gib(value.as_u64()?).to_string()),
            Self::Plain(value) if unit == Unit::Percent => Some(format!("{value}%")),
            Self::Plain(value) => Some(value.to_string()),
            Self::Gpu(id) => Some(groups::short_label(groups::index(id?, driver), id?)),
            Self::Said(_, text) => text,
        }
    }

    fn csv(self) -> String {
        match self {
            Self::Gpu(id) => id.map_or_else(String::new, |id| id.to_string()),
            cell => match cell.json(None) {
                Value::Null => String::new(),
                Value::String(text) => text,
                value => match value.as_f64().filter(|_| value.is_f64()) {
                    Some(figure) => format!("{figure:.6}"),
                    None => value.to_string(),
                },
            },
        }
    }

    fn json(self, driver: Option<&Driver>) -> Value {
        match self {
            Self::Plain(value) | Self::Said(value, _) => value,
            Self::Gpu(id) => json!(id.map(|id| json!({
                "uuid": id.to_string(),
                "index": groups::index(id, driver),
            }))),
        }
    }
}

/// Returns a text, unless it is empty.
pub fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Returns a row as JSON.
pub fn json<'a, Row: 'a>(
    fields: impl IntoIterator<Item = &'a Field<Row>>,
    row: &Row,
    driver: Option<&Driver>,
) -> Value {
    let pair = |field: &Field<Row>| {
        let cell = (field.cell)(row);
        let is_there = field.unit != Unit::Machine || !cell.is_dull();
        is_there.then(|| (field.key.to_owned(), cell.json(driver)))
    };
    keyed(fields).filter_map(pair).collect()
}

/// Returns rows as a list in JSON.
pub fn list<'a, Row: 'a>(fields: &[Field<Row>], rows: impl IntoIterator<Item = &'a Row>) -> Value {
    let rows = rows.into_iter();
    rows.map(|row| json(fields, row, None)).collect()
}

/// Returns the heads of CSV: the keys, but `group` for the name of a group.
pub fn heads<'a, Row: 'a>(fields: impl IntoIterator<Item = &'a Field<Row>>) -> Vec<String> {
    let head = |key| if key == "name" { "group" } else { key };
    of_one_machine(fields)
        .map(|field| head(field.key).to_owned())
        .collect()
}

/// Returns the cells of a row of CSV.
pub fn cells<'a, Row: 'a>(
    fields: impl IntoIterator<Item = &'a Field<Row>>,
    row: &Row,
) -> Vec<String> {
    let cell = |field: &Field<Row>| (field.cell)(row).csv();
    of_one_machine(fields).map(cell).collect()
}

/// Describes the columns with a key for the page, which puts the machine before names.
pub fn columns<Row>(fields: &[Field<Row>]) -> Value {
    let mut shown: Vec<_> = of_one_machine(fields)
        .filter_map(|field| Some((field.column?, field)))
        .collect();
    shown.sort_by_key(|(column, _)| column.last);
    let described = |(column, field): &(Column, &Field<Row>)| {
        json!({
            "key": field.key,
            "head": column.head,
            "unit": format!("{:?}", field.unit),
            "says": field.says,
            "goes": column.narrow > 0,
            "sparse": column.sparse,
        })
    };
    shown.iter().map(described).collect()
}

/// Returns the fields that are not only in tables.
fn keyed<'a, Row: 'a>(
    fields: impl IntoIterator<Item = &'a Field<Row>>,
) -> impl Iterator<Item = &'a Field<Row>> {
    fields.into_iter().filter(|field| !field.key.is_empty())
}

/// Returns the fields that are not only in tables, and that one machine has.
fn of_one_machine<'a, Row: 'a>(
    fields: impl IntoIterator<Item = &'a Field<Row>>,
) -> impl Iterator<Item = &'a Field<Row>> {
    keyed(fields).filter(|field| field.unit != Unit::Machine)
}

/// Returns the heads of the columns that are left out on a narrow terminal, in their order.
#[cfg(test)]
pub fn narrow<Row>(fields: &[Field<Row>]) -> Vec<&'static str> {
    let columns = fields.iter().filter_map(|field| field.column);
    let mut narrow: Vec<Column> = columns.filter(|column| column.narrow > 0).collect();
    narrow.sort_by_key(|column| column.narrow);
    narrow.iter().map(|column| column.head).collect()
}
