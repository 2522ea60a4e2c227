//! Root acts below a user's directory with no more power over files than that user has.
//!
//! There he can put a symbolic link, or another directory, in the place of what root has just
//! looked at. Whatever he makes root do so he could then have done himself.
#![allow(unsafe_code)]

use super::{Group, GroupError, user};
use std::fs;
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt;

/// A group id that nothing belongs to.
const NOBODY: libc::gid_t = 65_534;

/// What a thread may do with files.
#[derive(Clone, Debug)]
pub struct Rights {
    /// The user whose files it may handle.
    pub user: u32,
    /// The unix group that files made by it belong to.
    pub group: u32,
    /// The other unix groups.
    pub groups: Vec<u32>,
}

impl Rights {
    /// Those of a user who is in no unix group.
    pub(super) fn of_user(user: u32) -> Self {
        Self {
            user,
            group: NOBODY,
            groups: Vec::new(),
        }
    }
}

/// Until drop this thread handles files as a user does who is in no unix group. Other threads are
/// as they were. One within another ends first.
#[derive(Debug)]
pub struct Lowered {
    user: u32,
    before: Rights,
    /// Of this thread alone.
    _thread: PhantomData<*const ()>,
}

impl Lowered {
    /// To the power of the first user on the way down to the group's files to whom a directory
    /// belongs; `None` where all of them are root's, and for those who are not root.
    ///
    /// What is above that directory nobody but root can change, so that the answer stays true.
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

    /// To these rights. Fails for a process that may not give up its own.
    pub fn to(rights: &Rights) -> io::Result<Self> {
        let before = Rights {
            user: current(libc::SYS_setfsuid),
            group: current(libc::SYS_setfsgid),
            groups: groups()?,
        };
        set_groups(&rights.groups)?;
        // From here on drop puts back what was changed.
        let lowered = Self {
            user: rights.user,
            before,
            _thread: PhantomData,
        };
        set(libc::SYS_setfsgid, rights.group)?;
        set(libc::SYS_setfsuid, rights.user)?;
        Ok(lowered)
    }

    /// Who it is.
    pub(super) fn user(&self) -> u32 {
        self.user
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        // None of this fails: who could give these up may have them back.
        let _ = set(libc::SYS_setfsuid, self.before.user);
        let _ = set(libc::SYS_setfsgid, self.before.group);
        let _ = set_groups(&self.before.groups);
    }
}

/// The system calls and not the C library's functions: those would change all threads.
fn set(call: libc::c_long, id: u32) -> io::Result<()> {
    // SAFETY: plain numbers. The answer is the id before, also when it stays.
    unsafe { libc::syscall(call, libc::c_long::from(id)) };
    if current(call) == id {
        Ok(())
    } else {
        Err(ErrorKind::PermissionDenied.into())
    }
}

fn current(call: libc::c_long) -> u32 {
    // SAFETY: plain numbers. That of nobody changes nothing; the answer is the id before.
    unsafe { libc::syscall(call, libc::c_long::from(u32::MAX)) as u32 }
}

fn groups() -> io::Result<Vec<libc::gid_t>> {
    // SAFETY: of length 0 nothing is written.
    let count =
        unsafe { libc::syscall(libc::SYS_getgroups, 0usize, std::ptr::null::<libc::gid_t>()) };
    let mut groups = vec![0; usize::try_from(count).map_err(|_| io::Error::last_os_error())?];
    // SAFETY: writes as many as there is room for.
    let count = unsafe { libc::syscall(libc::SYS_getgroups, groups.len(), groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
    Ok(groups)
}

fn set_groups(groups: &[libc::gid_t]) -> io::Result<()> {
    // SAFETY: reads so many numbers.
    match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_within_another_gives_back_what_was_before() {
        if user::effective() != 0 {
            eprintln!("SKIPPED: only root has power to lose");
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
