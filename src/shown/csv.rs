//! Formats lines of comma-separated values (RFC 4180, with line feeds).

use crate::words::failure::Failure;
use ::csv::WriterBuilder;
use std::fmt::Display;

/// Returns a line for each row.
pub fn lines(rows: impl IntoIterator<Item = Vec<String>>) -> Result<String, Failure> {
    let failure = |why: &dyn Display| Failure::new(format_args!("cannot format CSV: {why}"));
    let mut writer = WriterBuilder::new().from_writer(Vec::new());
    for row in rows {
        writer.write_record(&row).map_err(|error| failure(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| failure(&error))?;
    String::from_utf8(bytes).map_err(|error| failure(&error))
}
