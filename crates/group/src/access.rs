//! The permissions of a group: the users who may run programs in the group.

use super::directory::{Directory, Entry};
use super::user;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// The users who may run programs in a group, and the user who may make groups below that group.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Access {
    /// The group's owner, who may make groups below it; `None` means the user who makes the group.
    pub owner: Option<u32>,
    /// The other users who may run programs in the group.
    pub members: Members,
}

/// The users besides the group's owner who may run programs in the group.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Members {
    /// Only the group's owner may run programs in the group.
    #[default]
    Owner,
    /// The members of this unix group may also run programs in the group.
    UnixGroup(u32),
    /// All users of the machine.
    All,
}

impl Members {
    /// Returns the permissions for a group's shared files: the files that the group's members open
    /// for writing.
    const fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::UnixGroup(_) => 0o660,
            Self::All => 0o666,
        }
    }
}

impl Access {
    /// Gives the users of the group access to its file `name`. In a user's directory, refuses
    /// another user's file.
    pub(super) fn give_file(&self, directory: &Directory, name: &str) -> io::Result<()> {
        let file = directory.open_file(name, false)?;
        let (whose, place) = (file.metadata()?.uid(), directory.about()?.uid());
        if place != 0 && whose != place {
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "the file {name} belongs to user {whose}, but its directory belongs to user \
                     {place}: remove {name}"
                ),
            ));
        }
        self.give(&file)
    }

    /// Does the same as [`Self::give_file`] for an open file that this process has just made.
    pub(super) fn give(&self, file: &File) -> io::Result<()> {
        let gid = match self.members {
            Members::UnixGroup(gid) => Some(gid),
            Members::Owner | Members::All => None,
        };
        if self.owner.is_some() || gid.is_some() {
            fchown(file, self.owner, gid)?;
        }
        file.set_permissions(Permissions::from_mode(self.members.mode()))
    }

    /// Gives the group's directory for child groups (`sub`) to the group's owner.
    pub(super) fn give_directory(&self, below: &Directory) -> io::Result<()> {
        match self.owner {
            Some(owner) => below.set_owner(owner),
            None => Ok(()),
        }
    }

    /// Returns which users may use the group, by the permissions of the file at `path`.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let about = fs::symlink_metadata(path)?;
        Ok(Self::from(about.uid(), about.gid(), about.mode()))
    }

    /// Returns which users may use the group, by the permissions of an open file.
    pub(super) fn of_file(about: &fs::Metadata) -> Self {
        Self::from(about.uid(), about.gid(), about.mode())
    }

    /// Returns which users may use the group, by the permissions of an entry of its directory.
    pub(super) fn of_entry(entry: &Entry) -> Self {
        Self::from(entry.owner, entry.group, entry.mode)
    }

    fn from(owner: u32, group: u32, mode: u32) -> Self {
        let members = if mode & 0o006 == 0o006 {
            Members::All
        } else if mode & 0o060 == 0o060 {
            Members::UnixGroup(group)
        } else {
            Members::Owner
        };
        Self {
            owner: Some(owner),
            members,
        }
    }

    /// Returns whether the user id alone lets this user run programs in the group. Membership in a
    /// unix group is not considered.
    pub fn admits(&self, uid: u32) -> bool {
        let owner = self.owner.unwrap_or_else(user::effective);
        uid == 0 || uid == owner || self.members == Members::All
    }
}
