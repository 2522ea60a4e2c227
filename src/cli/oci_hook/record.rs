//! What is known of a container that has a group: a directory in the root for each.
//!
//! ```text
//! .containers/container-4f2a0c6d8e1b/record   this
//! .containers/container-4f2a0c6d8e1b/view     the root that the container sees
//! ```

use super::process::Process;
use crate::cli::failure::Failure;
use crate::cli::replace;
use gpulimit::group::Root;
use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// In a root; no group can have this name.
const FOLDER: &str = ".containers";
const HEAD: &str = "gpulimit-container 1";

/// A container on record.
#[derive(Debug, Eq, PartialEq)]
pub struct Record {
    /// As its runtime calls it.
    pub id: String,
    /// Its first process.
    pub init: Process,
    /// The root of its file system, as the host calls it.
    pub rootfs: PathBuf,
    /// What was asked for.
    pub wanted: String,
    /// Its group.
    pub group: String,
    /// Whether the group is the container's own, and goes with it.
    pub own: bool,
}

/// The name of a container's directory and of its own group, in the short form of the id that people see.
pub fn name_of(id: &str) -> String {
    let digest = id.len() == 64 && id.bytes().all(|c| c.is_ascii_hexdigit());
    let name = format!("container-{}", if digest { &id[..12] } else { id });
    if gpulimit::group::check_name(&name).is_ok() && !name.contains('/') {
        return name;
    }
    // FNV-1a. Who gets the name of another is refused by its record.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    format!("container-{hash:016x}")
}

/// The directory of a container.
#[derive(Debug)]
pub struct Place(PathBuf);

impl Place {
    /// Of this name.
    pub fn of(root: &Root, name: &str) -> Self {
        Self(root.path().join(FOLDER).join(name))
    }

    /// All that there are, with their names.
    pub fn all(root: &Root) -> Result<Vec<(String, Self)>, Failure> {
        let folder = root.path().join(FOLDER);
        let failed = |error| cannot("list", &folder, &error);
        let entries = match fs::read_dir(&folder) {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::PermissionDenied
                ) =>
            {
                return Ok(Vec::new());
            }
            entries => entries.map_err(failed)?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_string_lossy().into_owned();
            let place = Self::of(root, &name);
            all.push((name, place));
        }
        Ok(all)
    }

    /// Makes it, for nobody but root to come in, and those whose it becomes.
    pub fn make(&self) -> Result<(), Failure> {
        let failed = |error| cannot("create", &self.0, &error);
        if let Some(folder) = self.0.parent()
            && !folder.exists()
        {
            let made = DirBuilder::new().mode(0o700).create(folder);
            made.map_err(failed)?;
            // To go through, not to look.
            fs::set_permissions(folder, Permissions::from_mode(0o711)).map_err(failed)?;
        }
        DirBuilder::new()
            .mode(0o700)
            .create(&self.0)
            .map_err(failed)
    }

    /// Lets this user come in: a container's root in a user namespace of its own.
    pub fn admit(&self, user: u32) -> Result<(), Failure> {
        std::os::unix::fs::chown(&self.0, Some(user), None)
            .map_err(|error| cannot("give away", &self.0, &error))
    }

    /// The root that the container sees.
    pub fn view(&self) -> PathBuf {
        self.0.join("view")
    }

    /// What is known; `None` where nothing is.
    pub fn read(&self) -> Result<Option<Record>, Failure> {
        let path = self.0.join("record");
        match fs::read_to_string(&path) {
            Ok(text) => match parse(&text) {
                Some(record) => Ok(Some(record)),
                None => Err(Failure::new(format_args!(
                    "{} is damaged: remove {} when the container has ended",
                    path.display(),
                    self.0.display()
                ))),
            },
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(cannot("read", &path, &error)),
        }
    }

    /// Puts it on record.
    pub fn write(&self, record: &Record) -> Result<(), Failure> {
        let path = self.0.join("record");
        let text = format!(
            "{HEAD}\n{}\n{}\n{}\n{}\n{}\n{}\n",
            record.id,
            record.init,
            record.rootfs.display(),
            record.wanted,
            record.group,
            if record.own { "own" } else { "shared" },
        );
        if parse(&text).as_ref() != Some(record) {
            return Err(Failure::new(format_args!(
                "the path of the container's file system, '{}', is no text of one line: move it",
                record.rootfs.display()
            )));
        }
        replace::replace(&path, &self.0.join("record.new"), text.as_bytes(), 0o644)
            .map_err(|error| cannot("write", &path, &error))
    }

    /// Removes it.
    pub fn remove(&self) -> Result<(), Failure> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(cannot("remove", &self.0, &error))
            }
            _ => Ok(()),
        }
    }
}

fn parse(text: &str) -> Option<Record> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    if lines.next()? != HEAD {
        return None;
    }
    let mut next = || lines.next();
    let record = Record {
        id: next()?.to_owned(),
        init: next()?.parse().ok()?,
        rootfs: next()?.into(),
        wanted: next()?.to_owned(),
        group: next()?.to_owned(),
        own: match next()? {
            "own" => true,
            "shared" => false,
            _ => return None,
        },
    };
    next().is_none().then_some(record)
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format_args!("cannot {what} {}: {error}", path.display()))
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
            assert!(gpulimit::group::check_name(&name).is_ok(), "{name}");
            assert_ne!(name, name_of(&format!("{id}.")));
        }
    }

    #[test]
    fn cut_short_it_is_none() {
        let record = Record {
            id: "a".into(),
            init: "7 8".parse().expect("a process"),
            rootfs: "/x y".into(),
            wanted: "max=8GiB".into(),
            group: "lab/a".into(),
            own: false,
        };
        let text = format!("{HEAD}\na\n7 8\n/x y\nmax=8GiB\nlab/a\nshared\n");
        assert_eq!(parse(&text), Some(record));
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None, "{end}");
        }
        assert_eq!(parse(&format!("{text}more\n")), None);
    }
}
