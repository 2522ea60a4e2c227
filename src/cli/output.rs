//! Writing to people and to pipes, which may be closed.

use super::failure::Failure;
use std::io::{self, ErrorKind, Write};

/// Whether somebody is still there to read what we print.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Reader {
    There,
    /// As `head` goes when it has enough.
    Gone,
}

/// Writes to stdout, to the end. A reader that has gone away is no failure.
pub fn write(text: &str) -> Result<Reader, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::new(format_args!(
            "cannot write to stdout: {error}"
        ))),
        Ok(()) => Ok(Reader::There),
    }
}

/// As [`write()`], where nothing follows.
pub fn print(text: &str) -> Result<(), Failure> {
    write(text).map(drop)
}

/// Writes JSON to stdout.
pub fn json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Says one line on stderr. Nobody is there to hear of its failure.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "gpulimit: {text}");
}
