//! Which process a slot belongs to.

use super::atomic::Ordering;
use super::layout::{COMMAND_WORDS, Owner};
use super::os;
use std::fmt;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

/// A process as it says of itself. For people and for asking the driver; whether it lives is the lock's to say.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// In the process's own pid namespace.
    pub pid: u32,
    /// Inode of `/proc/self/ns/pid`; 0 unknown.
    pub pid_ns: u64,
    /// In clock ticks since boot, field 22 of `/proc/self/stat`; 0 unknown.
    pub start_time: u64,
    /// Real user id.
    pub uid: u32,
    /// Begin of the command line, without the program's directory, filled up with zeros.
    pub command: [u8; 64],
}

impl Identity {
    /// The calling process. What `/proc` does not tell is 0.
    pub fn of_self() -> Self {
        let mut stat = [0; 1024];
        let stat = head("/proc/self/stat", &mut stat);
        let mut line = [0; 512];
        let line = head("/proc/self/cmdline", &mut line);
        Self {
            pid: std::process::id(),
            pid_ns: fs::metadata("/proc/self/ns/pid").map_or(0, |ns| ns.ino()),
            start_time: start_time(stat).unwrap_or(0),
            uid: os::uid(),
            command: command(line),
        }
    }

    /// The command for people: not UTF-8 and control characters are replaced. Does not allocate.
    pub fn command(&self) -> impl fmt::Display + '_ {
        Command(&self.command)
    }

    pub(super) fn write(&self, owner: &Owner) {
        for (word, bytes) in owner.command.iter().zip(self.command.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        owner.pid_ns.store(self.pid_ns, Ordering::Relaxed);
        owner.start_time.store(self.start_time, Ordering::Relaxed);
        owner.uid.store(u64::from(self.uid), Ordering::Relaxed);
        owner.pid.store(u64::from(self.pid), Ordering::Release);
    }

    /// `None` when nobody is written. Outside the claim lock it may be a mix of two owners.
    pub(super) fn read(owner: &Owner) -> Option<Self> {
        let pid = owner.pid.load(Ordering::Acquire) as u32;
        if pid == 0 {
            return None;
        }
        let mut command = [0; 8 * COMMAND_WORDS];
        for (bytes, word) in command
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(&owner.command)
        {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Some(Self {
            pid,
            pid_ns: owner.pid_ns.load(Ordering::Relaxed),
            start_time: owner.start_time.load(Ordering::Relaxed),
            uid: owner.uid.load(Ordering::Relaxed) as u32,
            command,
        })
    }

    pub(super) fn erase(owner: &Owner) {
        owner.pid.store(0, Ordering::Relaxed);
        for word in [&owner.pid_ns, &owner.start_time, &owner.uid, &owner.birth] {
            word.store(0, Ordering::Relaxed);
        }
        for word in &owner.command {
            word.store(0, Ordering::Relaxed);
        }
        owner.dead_since.store(0, Ordering::Relaxed);
    }
}

struct Command<'a>(&'a [u8; 64]);

impl fmt::Display for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        for chunk in self.0[..len].utf8_chunks() {
            for c in chunk.valid().chars() {
                f.write_char(if c.is_control() { '?' } else { c })?;
            }
            if !chunk.invalid().is_empty() {
                f.write_char('?')?;
            }
        }
        Ok(())
    }
}

/// The first bytes of a file; none when it cannot be read.
fn head<'a>(path: &str, buffer: &'a mut [u8]) -> &'a [u8] {
    let mut len = 0;
    if let Ok(mut file) = fs::File::open(path) {
        while let Some(rest) = buffer.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match file.read(rest) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
    buffer.get(..len).unwrap_or(&[])
}

/// Field 22. The name, field 2, may hold spaces and parentheses; the last `)` ends it.
fn start_time(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn command(line: &[u8]) -> [u8; 64] {
    let program = line.split(|&b| b == 0).next().unwrap_or(&[]);
    let skip = program
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(0, |slash| slash + 1);
    let line = line.get(skip..).unwrap_or(&[]);
    let end = line
        .iter()
        .rposition(|&b| b != 0)
        .map_or(0, |last| last + 1);
    let mut command = [0; 64];
    for (to, &from) in command.iter_mut().zip(line.iter().take(end)) {
        *to = if from == 0 { b' ' } else { from };
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_survives_a_name_with_spaces_and_parentheses() {
        let stat = b"42 (a) b) R (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(start_time(stat), Some(777));
        assert_eq!(start_time(b"42 (cut"), None);
        assert_eq!(start_time(b"42 (cut) S 1 2"), None);
    }

    #[test]
    fn self_is_known() {
        let id = Identity::of_self();
        assert_eq!(id.pid, std::process::id());
        assert!(id.pid_ns != 0 && id.start_time != 0);
        assert!(
            id.command().to_string().starts_with("gpulimit-"),
            "{}",
            id.command()
        );
    }

    #[test]
    fn command_drops_the_directory_and_bounds_the_length() {
        let shown = |line: &[u8]| {
            let command = command(line);
            Command(&command).to_string()
        };
        assert_eq!(
            shown(b"/usr/bin/python3\0train.py\0--dir\0/a/b\0"),
            "python3 train.py --dir /a/b"
        );
        assert_eq!(shown(b""), "");
        assert_eq!(shown(b"a\x1b[2J\xff\0"), "a?[2J?");
        assert_eq!(shown(&[b'x'; 500]).len(), 64);
    }
}
