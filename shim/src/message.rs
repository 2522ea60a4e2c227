//! The few lines that we ever write: to standard error, whole lines, no allocation, no lock.
#![allow(unsafe_code)]

use std::fmt::{self, Write};

/// A line is cut at this many bytes.
const LINE_MAX: usize = 1024;

struct Line {
    bytes: [u8; LINE_MAX],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte stays for the newline.
        let room = LINE_MAX - 1 - self.length;
        let taken = text.len().min(room);
        if let (Some(to), Some(from)) = (
            self.bytes.get_mut(self.length..self.length + taken),
            text.as_bytes().get(..taken),
        ) {
            to.copy_from_slice(from);
            self.length += taken;
        }
        Ok(())
    }
}

/// Writes `gpulimit: …` and a newline in one call.
pub fn line(text: fmt::Arguments<'_>) {
    let mut line = Line {
        bytes: [0; LINE_MAX],
        length: 0,
    };
    let _ = write!(line, "gpulimit: {text}");
    if let Some(end) = line.bytes.get_mut(line.length) {
        *end = b'\n';
        line.length += 1;
    }
    // SAFETY: the buffer is valid for `length` bytes. A failing write is nobody's business: the program may have closed the descriptor.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.length) };
}
