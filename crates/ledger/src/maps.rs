//! Finds the members of a ledger by the memory mappings in `/proc/PID/maps`.
//!
//! Only mappings prove membership. Any member can write false owners, but no process can create a
//! mapping in another.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

/// A file as `/proc/PID/maps` names it, by device number and inode. On some file systems, `stat`
/// reports another device number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MappedFile(String);

impl fmt::Display for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for MappedFile {
    /// Parses the text that [`fmt::Display`] writes for a mapped file.
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// The `maps` files of a process and of its threads. The process's own file is empty once its first
/// thread has ended.
#[derive(Debug)]
pub struct Mappings(Vec<PathBuf>);

impl Mappings {
    /// Returns the `maps` files of the process with this number in `/proc`. Never blocks.
    pub fn of(number: u32) -> io::Result<Self> {
        let process = PathBuf::from(format!("/proc/{number}"));
        let mut files = vec![process.join("maps")];
        for thread in fs::read_dir(process.join("task"))? {
            files.push(thread?.path().join("maps"));
        }
        Ok(Self(files))
    }

    /// Returns the ledgers of which the process has the mappings of a member; `None` if it has
    /// ended. The process's user can block this call forever.
    pub fn ledgers(&self) -> io::Result<Option<Vec<MappedFile>>> {
        for path in &self.0 {
            if let Some(found) = members_in(File::open(path)?)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// A parsed line of a `maps` file.
struct Line<'a> {
    start: usize,
    end: usize,
    access: &'a str,
    device: &'a str,
    inode: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        // Bytes that are not UTF-8 occur only in the path, which is the last field of a line.
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

/// Number of bytes kept of each line of a `maps` file. A longer line loses only the end of its
/// path.
const LONGEST_LINE: usize = 256;

/// Calls `take` with each parsed line of a `maps` file. Does not allocate.
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

/// Which parts of a ledger a process has mapped.
#[derive(Copy, Clone, Debug, Default)]
struct Seen {
    /// Whether the process has mapped the ledger's content for writing.
    content: bool,
    /// Whether the process has mapped an inaccessible page of the ledger, which keeps a slot's
    /// lock. Mere readers have no such page.
    anchor: bool,
}

/// Returns the files of which a process has the mappings of a member; `None` if it has none at all.
fn members_in(maps: impl Read) -> io::Result<Option<Vec<MappedFile>>> {
    let (mut contents, mut anchors, mut is_empty) = (Vec::new(), Vec::new(), true);
    each_line(maps, |line| {
        is_empty = false;
        for (access, files) in [("rw-s", &mut contents), ("---s", &mut anchors)] {
            if line.access.starts_with(access) && !files.iter().any(|it| line.is_of(it)) {
                files.push(line.file());
            }
        }
    })?;
    contents.retain(|file| anchors.contains(file));
    Ok((!is_empty).then_some(contents))
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

/// Returns the file that this process has mapped at an address.
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
    /// Returns whether a process has the mappings of a member. The process's user can block this
    /// call forever. Does not allocate.
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
    fn a_member_has_mapped_the_content_and_an_anchor() {
        let file = MappedFile("00:1b 12".into());
        let member = |maps: &str| {
            seen_in(maps.as_bytes(), &file)
                .expect("read")
                .map(|seen| seen.content && seen.anchor)
        };
        let content = "7f00-7f10 rw-s 00000000 00:1b 12 /x/ledger\n";
        let anchor = "7f20-7f21 ---s 00000000 00:1b 12 /x/ledger (deleted)\n";
        assert_eq!(member(&format!("{content}{anchor}")), Some(true));
        assert_eq!(
            member(content),
            Some(false),
            "the controller has mapped no inaccessible page"
        );
        assert_eq!(member(anchor), Some(false));
        assert_eq!(member(&content.replace("rw-s", "r--s")), Some(false));
        for other in ["00:1b 13", "00:1c 12", "00:1b 123"] {
            let maps = format!("{content}{anchor}").replace("00:1b 12", other);
            assert_eq!(member(&maps), Some(false), "{other}");
        }
        assert_eq!(member(""), None, "the process has no mappings");
        let other = anchor.replace("00:1b 12", "00:1b 13");
        let found = |maps: String| members_in(maps.as_bytes()).expect("read");
        assert_eq!(
            found(format!("{content}{other}{anchor}")),
            Some(vec![file.clone()])
        );
        assert_eq!(found(format!("{content}{other}")), Some(vec![]));
        assert_eq!(found(String::new()), None);
        // One path is longer than the kept part of a line, and one path is not UTF-8.
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
