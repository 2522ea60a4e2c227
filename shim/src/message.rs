//! Writes gpulimit's messages to standard error: a whole line per call, without allocating memory
//! or taking a lock.
#![allow(unsafe_code)]

mod standard_error;

use gpulimit_base::name::hide_secrets;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// The largest length of a message line, bytes; longer lines are cut.
const LINE_MAX: usize = 1024;

struct Line {
    bytes: [u8; LINE_MAX],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Keeps one byte of the line for the newline at its end.
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

/// Set when this process has closed its standard error: see [`check_standard_error`].
static MUTE: AtomicBool = AtomicBool::new(false);

/// Checks whether standard error is open. Otherwise descriptor 2 becomes another file, to which
/// gpulimit must not write.
pub fn check_standard_error() {
    if descriptor_flags() < 0 {
        MUTE.store(true, Ordering::Relaxed);
    }
}

/// Returns the flags of descriptor 2; less than 0 where descriptor 2 is closed.
fn descriptor_flags() -> libc::c_int {
    // SAFETY: the call only asks for the flags of a descriptor, whether or not it is open.
    unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_GETFD) }
}

/// Writes `gpulimit: `, `text` and a newline to standard error in one call. Drops the line instead
/// of waiting.
pub fn line(text: fmt::Arguments<'_>) {
    // A descriptor 2 that closes on exec is another file: a real standard error stays open.
    let other = || descriptor_flags() & libc::FD_CLOEXEC != 0 || standard_error::is_read();
    if MUTE.load(Ordering::Relaxed) || other() {
        return;
    }
    let mut line = Line {
        bytes: [0; LINE_MAX],
        length: 0,
    };
    let _ = write!(line, "gpulimit: {text}");
    if let Some(text) = line.bytes.get_mut(..line.length) {
        line.length = hide_secrets(text);
    }
    if let Some(end) = line.bytes.get_mut(line.length) {
        *end = b'\n';
        line.length += 1;
    }
    if let Some(line) = line.bytes.get(..line.length) {
        standard_error::write(line);
    }
}

/// Makes gpulimit's panics write their message by [`line()`], because the panic hook of `std` can
/// wait.
pub fn tell_panics() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|panic| line(format_args!("{panic}"))));
    }
}
