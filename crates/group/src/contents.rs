//! Classifies directories, because gpulimit may remove a directory only if it is a group.
//!
//! A user may name any directory as the root by mistake, so file names prove nothing. A group has a
//! file with the magic number of a limits file or of a ledger, in any version.

use super::directory::{Directory, EntryKind};
use super::{BELOW, JOB, Kind, LEDGER, LIMITS, LIMITS_LOCK, LOCK, name};
use gpulimit_base::name::SECRET;
use gpulimit_ledger::Ledger;
use gpulimit_limits::Limits;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read};

/// The kind of a directory below a root of groups.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// A group, or the remains of a group that was not fully removed.
    Group,
    /// A group that was never completed or is almost removed: the directory holds only files that
    /// gpulimit wrote.
    Unfinished,
    /// A directory that gpulimit did not make.
    Foreign,
}

/// The entries of a directory, separated into those that gpulimit made and all others.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Whether a file in the directory proves that the directory is a group.
    proven: bool,
    /// Whether the directory has files such as an empty `lock`. gpulimit makes them, but they alone
    /// do not prove a group.
    signs: bool,
    /// Whether the directory has a limits file, whose content an administrator may have written.
    pub limits: bool,
    /// Whether the directory has a subdirectory for child groups.
    pub below: bool,
    /// The names of the group's files other than its limits, ledger and lock.
    pub others: Vec<OsString>,
    /// The names of the entries that gpulimit did not make, in no particular order.
    pub foreign: Vec<OsString>,
    /// The name of a file of the group that another program has leased (`F_SETLEASE`) and that is
    /// therefore unreadable.
    pub leased: Option<OsString>,
}

impl Contents {
    /// Reads the entries of a directory; changes nothing in the directory.
    pub fn of(directory: &Directory) -> io::Result<Self> {
        let mut contents = Self::default();
        let mut named = Vec::new();
        for name in directory.names()? {
            let name = name?;
            if is_hidden(&name) {
                continue;
            }
            // The entry was removed after the directory was listed.
            let Some(entry) = directory.entry(&name)? else {
                continue;
            };
            let kind = entry.kind;
            match (name.to_str(), kind) {
                (Some(LIMITS), EntryKind::File) => {
                    match head(directory, LIMITS) {
                        Err(ErrorKind::NotFound) => continue,
                        Err(ErrorKind::WouldBlock) => contents.leased = Some(name),
                        Ok(head) if Limits::begins_with(head) => contents.proven = true,
                        _ => named.push(name),
                    }
                    contents.limits = true;
                }
                (Some(LEDGER), EntryKind::File) => match head(directory, LEDGER) {
                    Err(ErrorKind::NotFound) => {}
                    Err(ErrorKind::WouldBlock) => contents.leased = Some(name),
                    Ok(head) if Ledger::begins_with(head) => contents.proven = true,
                    _ => named.push(name),
                },
                (Some(LOCK), EntryKind::File) if entry.size == 0 => contents.signs = true,
                (Some(LOCK), EntryKind::File) => named.push(name),
                (Some(BELOW), EntryKind::Directory) => {
                    contents.below = true;
                    contents.signs = true;
                }
                (Some(LIMITS_LOCK | JOB), EntryKind::File) if entry.size == 0 => {
                    contents.signs = true;
                    contents.others.push(name);
                }
                (Some(JOB), EntryKind::File) => {
                    contents.others.push(name.clone());
                    named.push(name);
                }
                (Some(text), EntryKind::File) if has_draft_name(&name) => {
                    match head(directory, text) {
                        Err(ErrorKind::WouldBlock) => contents.leased = Some(name),
                        head if is_drafts(head) => {
                            contents.signs = true;
                            contents.others.push(name);
                        }
                        _ => contents.foreign.push(name),
                    }
                }
                _ => contents.foreign.push(name),
            }
        }
        // In a proven group, files with these names belong to the group. A leased file also counts,
        // because its content is hidden.
        if !contents.proven && contents.leased.is_none() {
            contents.foreign.append(&mut named);
        }
        // Other processes may be making or removing the group. A file that was removed or completed
        // meanwhile is not foreign.
        contents.foreign.retain(|name| match name.to_str() {
            Some(LIMITS) => !head(directory, LIMITS).is_ok_and(Limits::begins_with),
            Some(LEDGER) => !head(directory, LEDGER).is_ok_and(Ledger::begins_with),
            _ => true,
        });
        let is_gone = |name: &OsString| matches!(directory.entry(name), Ok(None));
        contents.foreign.retain(|name| !is_gone(name));
        Ok(contents)
    }

    /// Decides what kind of directory this is. An empty directory named like a job's group is an
    /// unfinished group.
    pub fn verdict(&self, name: &str) -> Verdict {
        let empty_job = || !self.signs && Kind::of(name) == Kind::Job;
        if self.proven || self.leased.is_some() {
            Verdict::Group
        } else if self.foreign.is_empty() && (self.signs || empty_job()) {
            Verdict::Unfinished
        } else {
            Verdict::Foreign
        }
    }

    /// Returns whether the directory is empty.
    pub fn is_empty(&self) -> bool {
        !self.proven && !self.signs && self.foreign.is_empty() && self.leased.is_none()
    }
}

/// Returns whether a directory has a group's limits file, proven by a magic number. An unreadable
/// limits file also counts. `proves` may prove the open file by reading all of it.
pub(super) fn has_limits(directory: &Directory, proves: impl FnOnce(&File) -> bool) -> bool {
    let is_file = || {
        let there = directory.entry(LIMITS).ok().flatten();
        there.is_some_and(|limits| limits.kind == EntryKind::File)
    };
    // An unreadable file also counts, such as a file of another user.
    let limits = directory.open_file(LIMITS, false);
    let begins = |file: File| Ok(proves(&file) || Limits::begins_with(head_of(&file)?));
    match limits.and_then(begins) {
        Ok(true) => true,
        Ok(false) => head(directory, LEDGER).is_ok_and(Ledger::begins_with),
        Err(_) => is_file(),
    }
}

/// The prefixes of the names of files that gpulimit makes directly in a root. Drafts of these files
/// have the same prefixes.
const IN_ROOT: [&str; 12] = [
    ".apply",
    ".rules",
    ".managed",
    ".containers",
    ".context-",
    ".images",
    ".kubernetes",
    SECRET,
    ".trail",
    "..trail.",
    ".python",
    ".explained-",
];

/// Returns whether an entry of a root has the name of a group's directory or of one of gpulimit's
/// own files.
pub(super) fn belongs_in_root(name: &OsStr, kind: EntryKind) -> bool {
    name.to_str().is_some_and(|name| {
        IN_ROOT.iter().any(|ours| name.starts_with(ours))
            || kind == EntryKind::Directory && name::is_part(name)
    })
}

/// Returns whether `name` is the name that FUSE gives to a removed file that is still mapped.
pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".fuse_hidden")
}

/// Returns whether a file is a draft, `.limits.PID.N` or `.ledger.PID.N.new`, that holds only what
/// gpulimit writes.
pub(super) fn is_draft(directory: &Directory, name: &str) -> bool {
    has_draft_name(OsStr::new(name)) && is_drafts(head(directory, name))
}

/// Returns whether a file is a draft of the ledger file called `file`, and holds only what gpulimit
/// writes.
pub(super) fn is_draft_of(file: &str, directory: &Directory, name: &str) -> bool {
    is_draft_name_of(file, name) && is_drafts(head(directory, name))
}

/// Returns whether `head`, the first bytes of a file, is the beginning of a draft. A missing file
/// also counts as a draft: it got its final name after the directory was listed.
fn is_drafts(head: Result<[u8; 8], ErrorKind>) -> bool {
    match head {
        Ok(head) => head == [0; 8] || Limits::begins_with(head) || Ledger::begins_with(head),
        Err(error) => error == ErrorKind::NotFound,
    }
}

pub(super) fn has_draft_name(name: &OsStr) -> bool {
    let name = name.to_str().unwrap_or_default();
    let limits = name.strip_prefix(".limits.").is_some_and(are_numbers);
    limits || is_draft_name_of(LEDGER, name)
}

/// Returns whether `name` is that of a draft of the ledger file called `file`: `.FILE.PID.N.new`.
fn is_draft_name_of(file: &str, name: &str) -> bool {
    let rest = name.strip_prefix('.').and_then(|name| {
        let rest = name.strip_prefix(file)?.strip_prefix('.')?;
        rest.strip_suffix(".new")
    });
    rest.is_some_and(are_numbers)
}

/// Returns whether a text is a pid and a number, as in the names of drafts: `12.3`.
fn are_numbers(text: &str) -> bool {
    text.split_once('.').is_some_and(|(pid, number)| {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        digits(pid) && digits(number)
    })
}

/// Returns the first eight bytes of a file, padded with zeros.
fn head(directory: &Directory, name: &str) -> Result<[u8; 8], ErrorKind> {
    let file = directory.open_file(name, false);
    file.and_then(|file| head_of(&file))
        .map_err(|error| error.kind())
}

/// Does the same as [`head`] with an open file.
fn head_of(file: &File) -> io::Result<[u8; 8]> {
    let mut bytes = Vec::with_capacity(8);
    file.take(8).read_to_end(&mut bytes)?;
    let mut head = [0; 8];
    for (to, from) in head.iter_mut().zip(bytes) {
        *to = from;
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;
    use std::fs;

    fn verdict(scratch: &Scratch, name: &str) -> Verdict {
        let directory = Directory::open(&scratch.0).expect("opened");
        Contents::of(&directory).expect("listed").verdict(name)
    }

    #[test]
    fn a_group_is_proven_by_the_first_bytes_of_a_file() {
        for (name, head) in [("limits", "GPULIMTS"), ("ledger", "gpulimit")] {
            let scratch = Scratch::new();
            let write = |name: &str, text: &str| {
                fs::write(scratch.0.join(name), text).expect("written");
            };
            for text in ["", "x", "GPULIM", "something else"] {
                write(name, text);
                assert_eq!(verdict(&scratch, "lab"), Verdict::Foreign, "{name} {text}");
            }
            write(name, &format!("{head} of any version"));
            assert_eq!(verdict(&scratch, "lab"), Verdict::Group);
            write("README", "theirs");
            assert_eq!(verdict(&scratch, "lab"), Verdict::Group);
            let directory = Directory::open(&scratch.0).expect("opened");
            let contents = Contents::of(&directory).expect("listed");
            assert_eq!(contents.foreign, ["README"]);
        }
    }

    #[test]
    fn without_proof_only_empty_files_and_drafts_are_the_groups() {
        let ours: &[(&str, &str)] = &[
            ("lock", ""),
            (".limits.lock", ""),
            (".limits.12.3", "GPULIMTS"),
            (".limits.12.3", ""),
            (".ledger.12.345.new", "\0\0\0\0\0\0\0\0\0"),
        ];
        let theirs: &[(&str, &str)] = &[
            ("lock", "1234"),
            (".limits.lock", "1234"),
            (".limits.12.3", "notes on limits"),
            (".limits.12", ""),
            (".limits.a.3", ""),
            (".ledger.12.345", ""),
            ("README", ""),
        ];
        for (name, text) in ours {
            let scratch = Scratch::new();
            fs::write(scratch.0.join(name), text).expect("written");
            assert_eq!(verdict(&scratch, "lab"), Verdict::Unfinished, "{name}");
            for (other, text) in theirs.iter().filter(|(other, _)| other != name) {
                fs::write(scratch.0.join(other), text).expect("written");
                let beside = verdict(&scratch, "lab");
                assert_eq!(beside, Verdict::Foreign, "{name} beside {other}");
                fs::remove_file(scratch.0.join(other)).expect("removed");
            }
        }
    }

    #[test]
    fn an_empty_directory_is_a_jobs_group_or_foreign() {
        let scratch = Scratch::new();
        assert_eq!(verdict(&scratch, "run-1-2"), Verdict::Unfinished);
        assert_eq!(verdict(&scratch, "projects"), Verdict::Foreign);
        fs::create_dir(scratch.0.join("sub")).expect("made");
        assert_eq!(verdict(&scratch, "projects"), Verdict::Unfinished);
        std::os::unix::fs::symlink("/", scratch.0.join("ledger")).expect("linked");
        assert_eq!(verdict(&scratch, "run-1-2"), Verdict::Foreign);
    }
}
