//! Who may be in a group.

use super::directory::{Directory, Entry};
use super::user;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// Who may run in a group and make groups below it.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Access {
    /// The user who may do both; `None`: who makes the group.
    pub owner: Option<u32>,
    /// Who else may run in it.
    pub members: Members,
}

/// Who may run in a group beside its owner.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Members {
    /// Nobody.
    #[default]
    Owner,
    /// This unix group.
    UnixGroup(u32),
    /// Everybody.
    All,
}

impl Members {
    /// The permissions of the files that members open.
    const fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::UnixGroup(_) => 0o660,
            Self::All => 0o666,
        }
    }
}

impl Access {
    /// Gives a file that members open to them. The file is changed by its descriptor, and only if
    /// it belongs to whom its directory does or if the directory is root's: nobody else can have
    /// put another file there.
    pub(super) fn give_file(&self, directory: &Directory, name: &str) -> io::Result<()> {
        let file = directory.open_file(name, false)?;
        let (whose, place) = (file.metadata()?.uid(), directory.about()?.uid());
        if place != 0 && whose != place {
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "{name} belongs to user {whose}, in a directory of user {place}: remove it"
                ),
            ));
        }
        self.give(&file)
    }

    /// As [`Self::give_file`], for a file that was just made.
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

    /// Gives the directory of the groups below to the owner.
    pub(super) fn give_directory(&self, below: &Directory) -> io::Result<()> {
        match self.owner {
            Some(owner) => below.set_owner(owner),
            None => Ok(()),
        }
    }

    /// What the permissions of a file at a path say.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let about = fs::symlink_metadata(path)?;
        Ok(Self::from(about.uid(), about.gid(), about.mode()))
    }

    /// What the permissions of an open file say.
    pub(super) fn of_file(about: &fs::Metadata) -> Self {
        Self::from(about.uid(), about.gid(), about.mode())
    }

    /// What the permissions of a file in a directory say.
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

    /// Whether this user may be in the group, as far as his user id tells.
    pub fn admits(&self, uid: u32) -> bool {
        let owner = self.owner.unwrap_or_else(user::effective);
        uid == 0 || uid == owner || self.members == Members::All
    }
}
