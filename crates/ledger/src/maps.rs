//! Who has a ledger mapped, as `/proc/PID/maps` shows it.
//!
//! What a slot says of its owner anybody can write who may be charged. A mapping nobody can make
//! for another process.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

/// The device and the inode of a file as `maps` writes them. On some file systems `stat` says
/// another device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MappedFile(String);

impl fmt::Display for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for MappedFile {
    /// Reads what [`fmt::Display`] has written.
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// The files of `/proc` that show the mappings of a process: its own, then those of its threads, as
/// the first thread shows nothing any more once it has ended.
#[derive(Debug)]
pub struct Mappings(Vec<PathBuf>);

impl Mappings {
    /// Of the process that has this number in `/proc`. Does not wait for that process.
    pub fn of(number: u32) -> io::Result<Self> {
        let process = PathBuf::from(format!("/proc/{number}"));
        let mut files = vec![process.join("maps")];
        for thread in fs::read_dir(process.join("task"))? {
            files.push(thread?.path().join("maps"));
        }
        Ok(Self(files))
    }
}

/// A line of `maps`.
struct Line<'a> {
    start: usize,
    end: usize,
    access: &'a str,
    device: &'a str,
    inode: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        // What is no text is in the path, the last field.
        let text = line.utf8_chunks().next()?.valid();
        let mut fields = text.split_ascii_whitespace();
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

/// The bytes of a line that are looked at: all but the end of a long path.
const LONGEST_LINE: usize = 256;

/// Calls `take` with the beginning of each line. Allocates nothing.
fn each_line(mut file: impl Read, mut take: impl FnMut(&Line<'_>)) -> io::Result<()> {
    let (mut line, mut length) = ([0; LONGEST_LINE], 0);
    let mut buffer = [0; 4096];
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for byte in buffer.get(..read).unwrap_or_default() {
            if *byte != b'\n' {
                if let Some(place) = line.get_mut(length) {
                    *place = *byte;
                    length += 1;
                }
                continue;
            }
            if let Some(line) = line.get(..length).and_then(Line::parse) {
                take(&line);
            }
            length = 0;
        }
    }
}

/// What a process has mapped of a ledger.
#[derive(Copy, Clone, Debug, Default)]
struct Seen {
    /// The content, to write.
    content: bool,
    /// A page that cannot be looked at, and keeps the lock of a slot. Who only looks at a ledger,
    /// as the controller does, has none.
    anchor: bool,
}

fn seen_in(maps: impl Read, file: &MappedFile) -> io::Result<Option<Seen>> {
    let mut seen = None;
    each_line(maps, |line| {
        let seen = seen.get_or_insert_with(Seen::default);
        if line.is_of(file) {
            seen.content |= line.access.starts_with("rw-s");
            seen.anchor |= line.access.starts_with("---s");
        }
    })?;
    Ok(seen)
}

/// The file that this process has mapped at an address.
pub(super) fn at(address: usize) -> io::Result<MappedFile> {
    let mut found = None;
    each_line(File::open("/proc/self/maps")?, |line| {
        if (line.start..line.end).contains(&address) {
            found = Some(line.file());
        }
    })?;
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl MappedFile {
    /// Whether a process is a member of this ledger: it has the content mapped to write, and the
    /// page that keeps the lock of a slot.
    ///
    /// Waits for the lock of that process's memory, which its user can have held for ever.
    /// Allocates nothing.
    pub fn has_member(&self, mappings: &Mappings) -> io::Result<bool> {
        for path in &mappings.0 {
            if let Some(seen) = seen_in(File::open(path)?, self)? {
                return Ok(seen.content && seen.anchor);
            }
        }
        Ok(false)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

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
        // A path longer than anything that is kept of a line, and one that is no text.
        let long = content.replace("/x", &format!("/{}", "x/".repeat(LONGEST_LINE)));
        assert_eq!(member(&format!("{long}{anchor}")), Some(true));
        let bytes = [content.as_bytes(), b"7f30-7f31 ---s 0 00:1b 12 /\xff\n"].concat();
        let seen = seen_in(&*bytes, &file).expect("read").expect("lines");
        assert!(seen.content && seen.anchor);
    }

    #[test]
    fn this_process_is_a_member_as_long_as_it_has_a_slot() {
        let scratch = Scratch::new();
        let file = scratch.mapped_file().expect("mapped");
        let has = |number: u32| file.has_member(&Mappings::of(number)?);
        let own = std::process::id();
        assert!(!has(own).expect("read"));
        let slot = scratch.join();
        assert!(has(own).expect("read"));
        assert!(!has(1).unwrap_or(false));
        drop(slot);
        assert!(!has(own).expect("read"));
    }
}
