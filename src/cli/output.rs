//! Writing to people and to pipes, which may be closed.

use super::failure::Failure;
use std::io::{self, ErrorKind, Write};

/// Writes to stdout. A reader that has gone away, as `head` does, is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(format_args!(
            "cannot write to stdout: {error}"
        ))),
        Ok(()) => Ok(()),
    }
}

/// Writes JSON to stdout.
pub fn json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Says one line on stderr. Nobody is there to hear of its failure.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "gpulimit: {text}");
}
