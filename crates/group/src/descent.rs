//! The path from the root down to a group's directory, opened one directory at a time.

use super::directory::Directory;
use super::power::{Lowered, Rights};
use super::trust::check_open;
use super::{BELOW, Group, GroupError, user};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;

/// A group's directory and its parent directory, both open, reached without symbolic links and with
/// lowered rights of root.
#[derive(Debug)]
pub(super) struct Descent {
    /// The open directory that contains the group's directory.
    pub parent: Directory,
    /// The group's directory.
    pub directory: Directory,
    /// The lowered rights of the user root. The last field is dropped last, so the rights are
    /// restored last.
    power: Option<Lowered>,
}

impl Descent {
    /// Opens the directories down to this group. Fails with [`GroupError::Missing`] where one of
    /// them does not exist.
    pub fn to(group: &Group) -> Result<Self, GroupError> {
        let mut power = None;
        let mut enter = |directory: io::Result<Directory>| -> Result<Directory, GroupError> {
            let directory = directory.map_err(|error| match error.kind() {
                ErrorKind::NotFound => group.missing(),
                _ => group.failed("open", error),
            })?;
            let about = check_open(&directory)?;
            if user::effective() == 0 && about.uid() != 0 && power.is_none() {
                let lowered = Lowered::to(&Rights::of_user(about.uid())).map_err(|error| {
                    GroupError::io("act as the owner of", directory.path(), error)
                })?;
                power = Some(lowered);
            }
            Ok(directory)
        };
        let mut parts = group.name.split('/');
        let mut parent = enter(Directory::open(&group.root))?;
        let first = parts.next().unwrap_or_default();
        let mut directory = enter(parent.open_directory(first))?;
        for part in parts {
            parent = enter(directory.open_directory(BELOW))?;
            directory = enter(parent.open_directory(part))?;
        }
        Ok(Self {
            parent,
            directory,
            power,
        })
    }

    /// Returns the user to whose rights root was lowered; `None` if no rights were lowered.
    pub fn user(&self) -> Option<u32> {
        self.power.as_ref().map(Lowered::user)
    }
}
