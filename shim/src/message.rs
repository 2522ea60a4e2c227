//! The few lines that we ever write: to standard error, whole lines, no allocation, no lock.
#![allow(unsafe_code)]

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

/// Looks whether there is a standard error, when a process comes to its group. Of a daemon that has closed it, the next file that it opens is
/// in its place, and is none of ours to write to: neither then nor in its children.
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

/// Writes `gpulimit: …` and a newline in one call. Not into a file that has come into the place of standard error: what is to be handed on
/// to children, as that is, is not closed by exec.
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
    // Not `write`, at which a thread that is cancelled would end.
    // SAFETY: the buffer is valid for `length` bytes. A failing write is nobody's business: the program may have closed the descriptor.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_write,
            libc::STDERR_FILENO,
            line.bytes.as_ptr(),
            line.length,
        )
    };
}
