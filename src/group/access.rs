//! Who may be in a group.

use super::user;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
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
    /// Gives a file that members open to them.
    pub(super) fn give_file(&self, path: &Path) -> io::Result<()> {
        let gid = match self.members {
            Members::UnixGroup(gid) => Some(gid),
            Members::Owner | Members::All => None,
        };
        if self.owner.is_some() || gid.is_some() {
            chown(path, self.owner, gid)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(self.members.mode()))
    }

    /// Gives the directory of the groups below to the owner.
    pub(super) fn give_directory(&self, path: &Path) -> io::Result<()> {
        match self.owner {
            Some(owner) => chown(path, Some(owner), None),
            None => Ok(()),
        }
    }

    /// What a file's permissions say.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let about = fs::symlink_metadata(path)?;
        let mode = about.mode();
        let members = if mode & 0o006 == 0o006 {
            Members::All
        } else if mode & 0o060 == 0o060 {
            Members::UnixGroup(about.gid())
        } else {
            Members::Owner
        };
        Ok(Self {
            owner: Some(about.uid()),
            members,
        })
    }

    /// Whether this user may be in the group, as far as his user id tells.
    pub fn admits(&self, uid: u32) -> bool {
        let owner = self.owner.unwrap_or_else(user::effective);
        uid == 0 || uid == owner || self.members == Members::All
    }
}
