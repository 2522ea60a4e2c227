//! Who has a ledger mapped, as `/proc/PID/maps` shows it.
//!
//! What a slot says of its owner anybody can write who may be charged. A mapping nobody can make for another process.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// The device and the inode of a file as `maps` writes them. On some file systems `stat` says another device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MappedFile(String);

/// A line of `maps`.
struct Line<'a> {
    start: usize,
    end: usize,
    access: &'a str,
    device: &'a str,
    inode: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let access = fields.next()?;
        let device = fields.nth(1)?;
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            access,
            device,
            inode: fields.next()?,
        })
    }

    fn file(&self) -> MappedFile {
        MappedFile(format!("{} {}", self.device, self.inode))
    }

    fn is_of(&self, file: &MappedFile) -> bool {
        file.0.split_once(' ') == Some((self.device, self.inode))
    }
}

/// What a process has mapped of a ledger.
#[derive(Copy, Clone, Debug, Default)]
struct Seen {
    /// The content, to write.
    content: bool,
    /// A page that cannot be looked at, and keeps the lock of a slot. Who only looks at a ledger, as the controller does, has none.
    anchor: bool,
}

fn seen_in(maps: impl BufRead, file: &MappedFile) -> io::Result<Option<Seen>> {
    let mut seen = None;
    for line in maps.lines() {
        let line = line?;
        let Some(line) = Line::parse(&line) else {
            continue;
        };
        let seen = seen.get_or_insert_with(Seen::default);
        if line.is_of(file) {
            seen.content |= line.access.starts_with("rw-s");
            seen.anchor |= line.access.starts_with("---s");
        }
    }
    Ok(seen)
}

/// The file that this process has mapped at an address.
pub(super) fn at(address: usize) -> io::Result<MappedFile> {
    for line in BufReader::new(File::open("/proc/self/maps")?).lines() {
        let line = line?;
        if let Some(line) = Line::parse(&line)
            && (line.start..line.end).contains(&address)
        {
            return Ok(line.file());
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

impl MappedFile {
    /// Whether the process of a directory in `/proc` is a member of this ledger: it has the content mapped to write, and the page that keeps the
    /// lock of a slot.
    pub fn has_member(&self, process: &Path) -> io::Result<bool> {
        let is_member = |seen: Seen| seen.content && seen.anchor;
        let open = |path: &Path| File::open(path.join("maps")).map(BufReader::new);
        if let Some(seen) = seen_in(open(process)?, self)? {
            return Ok(is_member(seen));
        }
        // The first thread has ended, and shows nothing any more.
        for thread in fs::read_dir(process.join("task"))? {
            if let Some(seen) = seen_in(open(&thread?.path())?, self)? {
                return Ok(is_member(seen));
            }
        }
        Ok(false)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ledger::scratch::Scratch;

    #[test]
    fn a_member_has_the_content_and_an_anchor() {
        let file = MappedFile("00:1b 12".into());
        let member = |maps: &str| {
            seen_in(maps.as_bytes(), &file)
                .expect("read")
                .map(|seen| seen.content && seen.anchor)
        };
        let content = "7f00-7f10 rw-s 00000000 00:1b 12 /x/ledger\n";
        let anchor = "7f20-7f21 ---s 00000000 00:1b 12 /x/ledger (deleted)\n";
        assert_eq!(member(&format!("{content}{anchor}")), Some(true));
        assert_eq!(member(content), Some(false), "as the controller");
        assert_eq!(member(anchor), Some(false));
        assert_eq!(member(&content.replace("rw-s", "r--s")), Some(false));
        for other in ["00:1b 13", "00:1c 12", "00:1b 123"] {
            let maps = format!("{content}{anchor}").replace("00:1b 12", other);
            assert_eq!(member(&maps), Some(false), "{other}");
        }
        assert_eq!(member(""), None, "a process without memory");
    }

    #[test]
    fn this_process_is_a_member_as_long_as_it_has_a_slot() {
        let scratch = Scratch::new();
        let file = scratch.mapped_file().expect("mapped");
        let own = Path::new("/proc/self");
        assert!(!file.has_member(own).expect("read"));
        let slot = scratch.join();
        assert!(file.has_member(own).expect("read"));
        assert!(!file.has_member(Path::new("/proc/1")).unwrap_or(false));
        drop(slot);
        assert!(!file.has_member(own).expect("read"));
    }
}
