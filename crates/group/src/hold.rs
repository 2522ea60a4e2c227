//! The lock on a group.
//!
//! Processes that make, join or keep a group share the lock. A process that removes the group holds
//! the lock exclusively.
//!
//! The lock is a `flock` on a file in the group's directory, so it ends with its process. Only
//! users who may run programs in the group can open the file, because others could block the
//! members.
#![allow(unsafe_code)]

use super::directory::{Directory, leased};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// A lock on a group, which keeps other processes from removing the group until the value is
/// dropped.
#[derive(Debug)]
pub struct Hold {
    file: File,
}

/// How long a process waits for another process that is removing the group.
const PATIENCE: Duration = Duration::from_secs(2);

impl Hold {
    /// Takes a group's lock shared with other processes. Fails with `TimedOut` if another process's
    /// removal takes too long.
    pub(super) fn with_others(path: &Path) -> io::Result<Self> {
        Self::wait_for(|| Self::take(path, libc::LOCK_SH))
    }

    /// Takes the lock as [`Hold::with_others`] does, on the file called `name` in a directory.
    pub(super) fn with_others_in(directory: &Directory, name: &str) -> io::Result<Self> {
        Self::wait_for(|| Self::take_in(directory, name, libc::LOCK_SH))
    }

    fn wait_for(mut take: impl FnMut() -> io::Result<Option<Self>>) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            if let Some(hold) = take()? {
                return Ok(hold);
            }
            if start.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes a group's lock exclusively, without waiting. Fails with `WouldBlock` while another
    /// process has the lock.
    pub(super) fn alone(path: &Path) -> io::Result<Self> {
        Self::take(path, libc::LOCK_EX)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Takes the lock as [`Hold::alone`] does; `None` while the lock is taken. Fails with
    /// `WouldBlock` if the lock file is leased.
    pub(super) fn alone_in(directory: &Directory, name: &str) -> io::Result<Option<Self>> {
        Self::take_in(directory, name, libc::LOCK_EX)
    }

    fn take_in(directory: &Directory, name: &str, how: libc::c_int) -> io::Result<Option<Self>> {
        Self::lock(directory.open_file(name, false)?, how, || {
            Ok(directory.entry(name)?.map(|entry| entry.id))
        })
    }

    fn take(path: &Path, how: libc::c_int) -> io::Result<Option<Self>> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => leased(path),
                _ => error,
            })?;
        Self::lock(file, how, || match fs::symlink_metadata(path) {
            Ok(there) => Ok(Some((there.dev(), there.ino()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// Locks an open file; `None` if the lock is taken, or if `there` finds another file (device,
    /// inode) at the path.
    fn lock(
        file: File,
        how: libc::c_int,
        there: impl FnOnce() -> io::Result<Option<(u64, u64)>>,
    ) -> io::Result<Option<Self>> {
        // SAFETY: `file` is an open descriptor, and the flags are plain numbers.
        if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EWOULDBLOCK) => Ok(None),
                Some(libc::EPERM | libc::ENOSYS) => {
                    Err(io::Error::other("a sandbox forbids flock"))
                }
                _ => Err(error),
            };
        }
        let held = Self { file };
        let about = held.file.metadata()?;
        Ok((there()? == Some((about.dev(), about.ino()))).then_some(held))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Unlock explicitly: a child forked by another thread keeps a copy of the descriptor until
        // `exec`. SAFETY: `self.file` is an open descriptor.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;

    #[test]
    fn a_dropped_lock_ends_although_a_child_has_the_descriptor() {
        let scratch = Scratch::new();
        let path = scratch.at("lock");
        fs::write(&path, "").expect("written");
        let hold = Hold::alone(&path).expect("nobody");
        let _childs = hold.file.try_clone().expect("a descriptor");
        drop(hold);
        drop(Hold::alone(&path).expect("nobody"));
    }
}
