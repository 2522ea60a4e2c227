//! The way down to a group's directory, opened step by step.

use super::directory::Directory;
use super::power::{Lowered, Rights};
use super::trust::check_open;
use super::{BELOW, Group, GroupError, user};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;

/// A group's directory and the one that it is in, both open and checked, with no symbolic link on
/// the way from the root.
///
/// Root has the rights of the first user to whom a directory on the way belongs, until this is
/// dropped. Whatever that user puts in the way, root then does nothing that the user could not do.
#[derive(Debug)]
pub(super) struct Descent {
    /// Where the group's directory has its name.
    pub parent: Directory,
    /// The group's directory.
    pub directory: Directory,
    /// Dropped last.
    power: Option<Lowered>,
}

impl Descent {
    /// To this group. [`GroupError::Missing`] where a directory on the way is missing.
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

    /// The user whose rights root has; `None` where it has its own, and for everybody else.
    pub fn user(&self) -> Option<u32> {
        self.power.as_ref().map(Lowered::user)
    }
}
