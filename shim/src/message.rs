//! The few lines that the library ever writes: to standard error, whole lines, no allocation, no
//! lock.
#![allow(unsafe_code)]

mod standard_error;

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Nobody reads what we say: see [`look`].
static MUTE: AtomicBool = AtomicBool::new(false);

/// Looks whether there is a standard error, when a process comes to its group. Of a daemon that has
/// closed it, the next file that it opens is in its place, and is none of ours to write to: neither
/// then nor in its children.
pub fn look() {
    if descriptor_flags() < 0 {
        MUTE.store(true, Ordering::Relaxed);
    }
}

/// Less than 0 where it is closed.
fn descriptor_flags() -> libc::c_int {
    // SAFETY: asks about a descriptor, whatever it is.
    unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_GETFD) }
}

/// Writes `gpulimit: …` and a newline in one call, and drops the line where that would wait. Does
/// not write into a file that has come into the place of standard error: standard error is handed
/// on to children, so exec does not close it.
pub fn line(text: fmt::Arguments<'_>) {
    if MUTE.load(Ordering::Relaxed) || descriptor_flags() & libc::FD_CLOEXEC != 0 {
        return;
    }
    let mut line = Line {
        bytes: [0; LINE_MAX],
        length: 0,
    };
    let _ = write!(line, "gpulimit: {text}");
    if let Some(end) = line.bytes.get_mut(line.length) {
        *end = b'\n';
        line.length += 1;
    }
    if let Some(line) = line.bytes.get(..line.length) {
        standard_error::write(line);
    }
}

/// Makes the library's own panics say so as its other lines do: `std` would write without asking
/// whether that waits.
pub fn tell_panics() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|panic| line(format_args!("{panic}"))));
    }
}
