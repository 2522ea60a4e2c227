//! Writes the library's lines to standard error: a whole line per call, without allocating memory
//! or taking a lock.
#![allow(unsafe_code)]

mod standard_error;

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest line, bytes; longer ones are cut.
const LINE_MAX: usize = 1024;

struct Line {
    bytes: [u8; LINE_MAX],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The newline takes one byte.
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

/// Set when this process has no standard error: see [`check_standard_error`].
static MUTE: AtomicBool = AtomicBool::new(false);

/// Checks whether standard error is open; called when the process joins its group. In a daemon that
/// has closed standard error, the next file that it opens gets descriptor 2, and the library must
/// never write to that file, in the daemon or in its children.
pub fn check_standard_error() {
    if descriptor_flags() < 0 {
        MUTE.store(true, Ordering::Relaxed);
    }
}

/// Returns the flags of descriptor 2; less than 0 where it is closed.
fn descriptor_flags() -> libc::c_int {
    // SAFETY: the call only asks for the flags of a descriptor, whether or not it is open.
    unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_GETFD) }
}

/// Writes `gpulimit: `, the text and a newline in one call. Drops the line where the write would
/// wait. Also drops it where descriptor 2 closes on exec: standard error is inherited by children,
/// so such a descriptor is another file that was opened in its place.
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

/// Makes panics of the library write their message by [`line()`], because the hook of `std` would
/// write even if the write blocks.
pub fn tell_panics() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|panic| line(format_args!("{panic}"))));
    }
}
