//! Lowers the rights of the user root to those of a given user.
//!
//! A user can replace a directory that root has just checked. With the user's rights, root then
//! does only what the user could also have done.
#![allow(unsafe_code)]

use super::{Group, GroupError, user};
use gpulimit_base::process::groups;
use std::fs;
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt;

/// A unix group id to which no file belongs.
const NOBODY: libc::gid_t = 65_534;

/// The user and group ids by which the kernel decides on a thread's access to files.
#[derive(Clone, Debug)]
pub struct Rights {
    /// The user whose files the thread may use.
    pub user: u32,
    /// The unix group of files that the thread makes.
    pub group: u32,
    /// The supplementary unix groups, which the kernel also considers.
    pub groups: Vec<u32>,
}

impl Rights {
    /// Returns the rights of a user who is not a member of any unix group.
    pub(super) fn of_user(user: u32) -> Self {
        Self {
            user,
            group: NOBODY,
            groups: Vec::new(),
        }
    }
}

/// Lowered rights of this thread to files, until this value is dropped. Drop nested values in
/// reverse order.
#[derive(Debug)]
pub struct Lowered {
    user: u32,
    before: Rights,
    /// Keeps the value from moving to another thread, because the rights belong to this thread.
    _thread: PhantomData<*const ()>,
}

impl Lowered {
    /// Lowers root's rights to those of the first other user who owns a directory on the group's
    /// path; `None` without such a user.
    pub(super) fn to_owner_of(group: &Group) -> Result<Option<Self>, GroupError> {
        if user::effective() != 0 {
            return Ok(None);
        }
        for directory in group.directories() {
            let about = match fs::symlink_metadata(&directory) {
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                about => about.map_err(|error| group.failed("open", error))?,
            };
            if about.uid() != 0 {
                let lowered = Self::to(&Rights::of_user(about.uid()));
                return lowered
                    .map(Some)
                    .map_err(|error| GroupError::io("act as the owner of", &directory, error));
            }
        }
        Ok(None)
    }

    /// Lowers this thread's rights to `rights`. Fails where the process may not change its rights.
    pub fn to(rights: &Rights) -> io::Result<Self> {
        let before = Rights {
            user: current(libc::SYS_setfsuid),
            group: current(libc::SYS_setfsgid),
            groups: groups()?,
        };
        set_groups(&rights.groups)?;
        // From this line on, dropping the value restores the rights that were changed.
        let lowered = Self {
            user: rights.user,
            before,
            _thread: PhantomData,
        };
        set(libc::SYS_setfsgid, rights.group)?;
        set(libc::SYS_setfsuid, rights.user)?;
        Ok(lowered)
    }

    /// Returns the user whose rights the thread has now.
    pub(super) fn user(&self) -> u32 {
        self.user
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        // Ignore errors: a thread that could give up these rights can take them back.
        let _ = set(libc::SYS_setfsuid, self.before.user);
        let _ = set(libc::SYS_setfsgid, self.before.group);
        let _ = set_groups(&self.before.groups);
    }
}

/// Sets a file-system id of this thread by a system call: the C library's function would change all
/// threads.
fn set(call: libc::c_long, id: u32) -> io::Result<()> {
    // SAFETY: the call gets plain numbers. It returns the previous id, even on failure.
    unsafe { libc::syscall(call, libc::c_long::from(id)) };
    if current(call) == id {
        Ok(())
    } else {
        Err(ErrorKind::PermissionDenied.into())
    }
}

fn current(call: libc::c_long) -> u32 {
    // SAFETY: the call gets plain numbers. An invalid id changes nothing, and the call returns the
    // current id.
    unsafe { libc::syscall(call, libc::c_long::from(u32::MAX)) as u32 }
}

fn set_groups(groups: &[libc::gid_t]) -> io::Result<()> {
    // SAFETY: the call reads `groups.len()` ids.
    match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_lowered_rights_are_restored_in_order() {
        if !gpulimit_support::is_root() {
            return;
        }
        let now = || {
            let (user, group) = (current(libc::SYS_setfsuid), current(libc::SYS_setfsgid));
            (user, group, groups().expect("told"))
        };
        let before = now();
        let outer = Lowered::to(&Rights::of_user(40_001)).expect("lowered");
        assert_eq!(now(), (40_001, NOBODY, Vec::new()));
        let inner = Lowered::to(&Rights::of_user(40_002)).expect("lowered");
        assert_eq!(now(), (40_002, NOBODY, Vec::new()));
        drop(inner);
        assert_eq!(now(), (40_001, NOBODY, Vec::new()));
        drop(outer);
        assert_eq!(now(), before);
    }
}
