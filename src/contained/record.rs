//! The records of containers that have a group. Each such container has a directory:
//!
//! ```text
//! .containers/container-4f2a0c6d8e1b/record   the container's record
//! .containers/container-4f2a0c6d8e1b/view     the root that the container sees
//! ```

use super::process::Process;
use crate::words::failure::{Failure, cannot};
use gpulimit_base::{missing::found, text_file};
use gpulimit_group::{Directory, EntryKind, MAX_DEPTH, Root};
use gpulimit_policy::rules;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The directory that contains the containers' directories. Groups cannot have this name.
const FOLDER: &str = ".containers";
const RECORD: &str = "record";
const DRAFT: &str = "record.new";
/// The maximum length of a container's record in bytes; a longer record counts as damaged.
const LONGEST: u64 = 1 << 16;

/// The record of a container that has a group.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The container's id, as the container runtime knows it.
    pub id: String,
    /// The container's first process. The container ends with it.
    pub init: Process,
    /// The root directory of the container's file system, as a path of the host.
    pub rootfs: PathBuf,
    /// The limit or group that the container asked for, as text.
    pub wanted: String,
    /// The container's group.
    pub group: String,
    /// True if the group was made for this container alone, and is removed with the container.
    pub own: bool,
}

/// Returns the name of a container's directory and of its own group. The name contains the short
/// container id.
pub fn name_of(id: &str) -> String {
    let digest = id.len() == 64 && id.bytes().all(|c| c.is_ascii_hexdigit());
    let name = format!("container-{}", if digest { &id[..12] } else { id });
    if gpulimit_group::check_name(&name).is_ok() && !name.contains('/') {
        return name;
    }
    // An id that cannot be part of a name becomes its FNV-1a hash. If two ids collide, the second
    // container fails.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    format!("container-{hash:016x}")
}

/// A container's directory, with its record and view. Only the host's root can write there, because
/// root removes what the records name.
#[derive(Debug)]
pub struct Place {
    root: PathBuf,
    name: String,
}

/// The files that gpulimit makes in a view, besides those with the prefix [`VIEW_PREFIX`].
const VIEW_FILES: [&str; 4] = [rules::FILE, "limits", "ledger", "lock"];
const VIEW_PREFIX: &str = ".context-";
/// The maximum depth of directories in a view: the view itself, and a group and its `sub` for each
/// level.
const VIEW_DEPTH: usize = 2 * MAX_DEPTH + 1;

impl Place {
    /// Returns a container's directory, which need not exist.
    pub fn of(root: &Root, name: &str) -> Self {
        Self {
            root: root.path().into(),
            name: name.into(),
        }
    }

    /// Lists the directories of all containers, with their names. Fails if users other than root
    /// could have made them.
    pub fn all(root: &Root) -> Result<Vec<(String, Self)>, Failure> {
        let path = root.path().join(FOLDER);
        let Some(folder) = open_folder(root.path())? else {
            return Ok(Vec::new());
        };
        let failed = cannot("list", &path);
        let mut all = Vec::new();
        for name in folder.names().map_err(&failed)? {
            let name = name.map_err(&failed)?.to_string_lossy().into_owned();
            let place = Self::of(root, &name);
            all.push((name, place));
        }
        Ok(all)
    }

    /// Makes the container's directory. Only root has access to it.
    pub fn make(&self) -> Result<(), Failure> {
        let path = self.path();
        let failed = cannot("create", &path);
        let folder = match open_folder(&self.root)? {
            Some(folder) => folder,
            None => {
                let root = Directory::open(&self.root).map_err(&failed)?;
                // With this mode, users can pass through the directory, but cannot list it.
                root.create_directory(FOLDER, 0o711).map_err(&failed)?
            }
        };
        let made = folder.create_directory(&self.name, 0o700);
        made.map(drop).map_err(failed)
    }

    /// Lets a unix group pass through the container's directory. A user namespace's root must read
    /// the record and mount the view.
    pub fn admit(&self, group: u32) -> Result<(), Failure> {
        let path = self.path();
        let failed = cannot("grant access to", &path);
        let Some((_, place)) = self.open()? else {
            return Err(failed(ErrorKind::NotFound.into()));
        };
        place
            .set_group(group)
            .and_then(|()| place.set_mode(0o710))
            .map_err(failed)
    }

    fn path(&self) -> PathBuf {
        self.root.join(FOLDER).join(&self.name)
    }

    /// Returns the path of the container's view, which is the root of groups in the container.
    pub fn view(&self) -> PathBuf {
        self.path().join("view")
    }

    /// Reads the container's record; `None` if it does not exist. Fails if users other than root
    /// could have written the record.
    pub fn read(&self) -> Result<Option<Record>, Failure> {
        let Some((_, place)) = self.open()? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let read = place
            .open_file(RECORD, false)
            .and_then(|file| file.take(LONGEST).read_to_end(&mut text));
        self.parse(read.map(|_| text))
    }

    /// Reads the record inside the container's namespaces. There [`Place::read`] fails, because
    /// root's directories seem to belong to another user.
    pub fn read_inside(&self) -> Result<Option<Record>, Failure> {
        self.parse(text_file::read(&self.path().join(RECORD), LONGEST))
    }

    fn parse(&self, read: io::Result<Vec<u8>>) -> Result<Option<Record>, Failure> {
        let path = self.path().join(RECORD);
        let Some(bytes) = found(read).map_err(cannot("read", &path))? else {
            return Ok(None);
        };
        match serde_json::from_slice::<Record>(&bytes) {
            // A group made for the container alone has the directory's name. Any other name means
            // that the record is damaged.
            Ok(record) if !record.own || record.group == self.name => Ok(Some(record)),
            _ => Err(Failure::new(format_args!(
                "{} is damaged: remove {} when the container has ended",
                path.display(),
                self.path().display()
            ))),
        }
    }

    /// Writes the record.
    pub fn write(&self, record: &Record) -> Result<(), Failure> {
        let path = self.path().join(RECORD);
        let failed = cannot("write", &path);
        let text = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
        let Some((_, place)) = self.open()? else {
            return Err(failed(ErrorKind::NotFound.into()));
        };
        found(place.remove_file(DRAFT))
            .and_then(|_| place.create_file(DRAFT, 0o644))
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| place.rename(DRAFT, RECORD))
            .map_err(failed)
    }

    /// Removes a container's directory without a record. The process that made it was killed early
    /// and left at most a draft.
    pub fn remove_unrecorded(&self) -> Result<(), Failure> {
        let path = self.path();
        let failed = cannot("remove", &path);
        let Some((folder, place)) = self.open()? else {
            return Ok(());
        };
        found(place.remove_file(DRAFT)).map_err(&failed)?;
        let removed = found(folder.remove_directory(&self.name));
        removed.map(drop).map_err(failed)
    }

    /// Removes the container's directory with its view. If foreign files are in the view, these
    /// files and the record stay.
    pub fn remove(&self) -> Result<(), Failure> {
        let path = self.path();
        let failed = cannot("remove", &path);
        let Some((_, place)) = self.open()? else {
            return Ok(());
        };
        if let Some(view) = found(place.open_directory("view")).map_err(&failed)? {
            empty_view(&view, VIEW_DEPTH).map_err(&failed)?;
            found(place.remove_directory("view")).map_err(&failed)?;
        }
        found(place.remove_file(RECORD)).map_err(&failed)?;
        self.remove_unrecorded()
    }

    /// Opens the directory of all containers, and this container's directory in it; `None` if one
    /// is missing.
    fn open(&self) -> Result<Option<(Directory, Directory)>, Failure> {
        let Some(folder) = open_folder(&self.root)? else {
            return Ok(None);
        };
        let place = open_roots_own(folder.open_directory(&self.name), &self.path())?;
        Ok(place.map(|place| (folder, place)))
    }
}

/// Opens the directory of all containers in the directory `root`; `None` if it does not exist.
fn open_folder(root: &Path) -> Result<Option<Directory>, Failure> {
    let directory = Directory::open(root);
    if let Ok(directory) = &directory
        && matches!(directory.entry(FOLDER), Ok(None))
    {
        return Ok(None);
    }
    let Some(directory) = open_roots_own(directory, root)? else {
        return Ok(None);
    };
    open_roots_own(directory.open_directory(FOLDER), &root.join(FOLDER))
}

/// Fails unless the opened directory belongs to root and only root can write to it. Returns `None`
/// if it does not exist.
fn open_roots_own(
    opened: io::Result<Directory>,
    path: &Path,
) -> Result<Option<Directory>, Failure> {
    let failed = cannot("open", path);
    let Some(directory) = found(opened).map_err(&failed)? else {
        return Ok(None);
    };
    let about = directory.about().map_err(&failed)?;
    if about.uid() == 0 && about.mode() & 0o022 == 0 {
        return Ok(Some(directory));
    }
    Err(Failure::new(format_args!(
        "users other than root can write to {}, so its records of containers are ignored: remove \
         this directory if no container needs it",
        path.display()
    )))
}

/// Removes gpulimit's files from a view. Fails if the view has any other file.
fn empty_view(directory: &Directory, depth: usize) -> io::Result<()> {
    for name in directory.names()? {
        let name = name?;
        let Some(entry) = directory.entry(&name)? else {
            continue;
        };
        let text = name.to_str().unwrap_or_default();
        let is_known = VIEW_FILES.contains(&text) || text.starts_with(VIEW_PREFIX);
        match entry.kind {
            EntryKind::File if is_known => drop(found(directory.remove_file(&name))?),
            EntryKind::Directory if depth > 0 => {
                empty_view(&directory.open_directory(&name)?, depth - 1)?;
                found(directory.remove_directory(&name))?;
            }
            _ => {
                return Err(io::Error::other(format!(
                    "gpulimit did not make {}: move this file elsewhere",
                    directory.path().join(&name).display()
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let digest = "0123456789abcdef".repeat(4);
        assert_eq!(name_of(&digest), "container-0123456789ab");
        assert_eq!(name_of("web_1.a"), "container-web_1.a");
        for id in ["a+b", "a/b", "../x", "ä", &"x".repeat(100)] {
            let name = name_of(id);
            assert!(gpulimit_group::check_name(&name).is_ok(), "{name}");
            assert_ne!(name, name_of(&format!("{id}.")));
        }
    }

    #[test]
    fn a_truncated_record_is_rejected() {
        let record = Record {
            id: "a".into(),
            init: Process::living(std::process::id()).expect("this process"),
            rootfs: "/x y\n".into(),
            wanted: "max=8GiB".into(),
            group: "lab/a".into(),
            own: false,
        };
        let text = serde_json::to_string(&record).expect("written");
        let parse = |text: &str| serde_json::from_str::<Record>(text).ok();
        assert_eq!(parse(&text), Some(record));
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None, "{end}");
        }
        assert_eq!(parse(&format!("{text}more\n")), None);
        assert_eq!(parse(&text.replace("own", "one")), None);
    }
}
