//! Fields declare each figure of a row once: as a column of tables and CSV, and as a key of JSON.

use crate::groups;
use crate::machine::nvml::Driver;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use serde_json::{Value, json};

/// A field of rows of this type.
pub struct Field<Row> {
    /// The key in JSON; empty if the field is only in tables.
    pub key: &'static str,
    /// The column in tables.
    pub column: Option<Column>,
    pub cell: fn(&Row) -> Cell,
}

/// Declares the fields of a type, in their order in JSON: `KEY [COLUMN] => CELL;`.
macro_rules! fields {
    ($vis:vis $name:ident$(<$life:lifetime>)?($row:ident: $type:ty):
        $($key:literal $($column:expr)? => $cell:expr;)*) => {
        $vis const $name: &$($life)? [$crate::figures::fields::Field<$type>] = {
            use $crate::figures::fields::{Cell, Field};
            &[$(Field {
                key: $key,
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
    /// Whether the column comes after those that are declared later.
    pub last: bool,
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
        last: false,
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

    pub const fn last(self) -> Self {
        Self { last: true, ..self }
    }
}

/// The value of a field in one row. If it is unknown, it is `-` in a table, empty in CSV and null
/// in JSON.
pub enum Cell {
    /// A text or a number that is the same for people.
    Plain(Value),
    Bytes(Option<u64>),
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

    pub fn is_zero(&self) -> bool {
        matches!(self, Self::Bytes(Some(0))) || matches!(self, Self::Plain(value) if *value == 0)
    }

    /// Formats the cell for people; `None` if it is unknown.
    pub fn text(self, driver: Option<&Driver>) -> Option<String> {
        match self {
            Self::Plain(Value::Null) => None,
            Self::Plain(Value::String(text)) => Some(text),
            Self::Plain(value) => Some(value.to_string()),
            Self::Bytes(bytes) => Some(gib(bytes?).to_string()),
            Self::Gpu(id) => Some(groups::label(id?, driver)),
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
            Self::Bytes(bytes) => bytes.into(),
            Self::Gpu(id) => json!(id.map(|id| json!({
                "uuid": id.to_string(),
                "index": groups::index(id, driver),
            }))),
        }
    }
}

/// Returns a row as JSON.
pub fn json<'a, Row: 'a>(
    fields: impl IntoIterator<Item = &'a Field<Row>>,
    row: &Row,
    driver: Option<&Driver>,
) -> Value {
    let pair = |field: &Field<Row>| (field.key.to_owned(), (field.cell)(row).json(driver));
    keyed(fields).map(pair).collect()
}

/// Returns the heads of CSV: the keys, but `group` for the name of a group.
pub fn heads<'a, Row: 'a>(fields: impl IntoIterator<Item = &'a Field<Row>>) -> Vec<String> {
    let head = |key| if key == "name" { "group" } else { key };
    keyed(fields)
        .map(|field| head(field.key).to_owned())
        .collect()
}

/// Returns the cells of a row of CSV.
pub fn cells<'a, Row: 'a>(
    fields: impl IntoIterator<Item = &'a Field<Row>>,
    row: &Row,
) -> Vec<String> {
    keyed(fields).map(|field| (field.cell)(row).csv()).collect()
}

/// Returns the fields that are not only in tables.
fn keyed<'a, Row: 'a>(
    fields: impl IntoIterator<Item = &'a Field<Row>>,
) -> impl Iterator<Item = &'a Field<Row>> {
    fields.into_iter().filter(|field| !field.key.is_empty())
}

/// Returns the heads of the columns that are left out on a narrow terminal, in their order.
#[cfg(test)]
pub fn narrow<Row>(fields: &[Field<Row>]) -> Vec<&'static str> {
    let columns = fields.iter().filter_map(|field| field.column);
    let mut narrow: Vec<Column> = columns.filter(|column| column.narrow > 0).collect();
    narrow.sort_by_key(|column| column.narrow);
    narrow.iter().map(|column| column.head).collect()
}

/// Returns the keys that a row of the reference's tables does not name.
#[cfg(test)]
pub fn undocumented<Row>(fields: &[Field<Row>], row: &str) -> Vec<&'static str> {
    let page = include_str!("../../docs/reference.md");
    let begin = format!("| `{row}` |");
    let row = page.lines().find(|line| line.starts_with(&begin));
    let is_named = |key: &str| row.is_some_and(|row| row.contains(&format!("`{key}`")));
    let keys = keyed(fields).map(|field| field.key);
    keys.filter(|key| !is_named(key)).collect()
}
