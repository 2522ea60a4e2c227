//! Files that need not exist.

use std::io::{self, ErrorKind};

/// Returns `None` instead of the error that a file does not exist.
pub fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
