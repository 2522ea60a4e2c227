//! The kernel's lock on the directory of a group.
//!
//! Whoever makes or joins a group, and whoever wants it to stay, holds it shared; whoever removes it holds it alone.
//! So a group is never removed under somebody who is just coming in. It is a `flock` on the directory's descriptor
//! and ends with its process in whatever way.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Keeps a group from being removed, until drop.
#[derive(Debug)]
pub struct Hold {
    _directory: File,
}

/// How long a removal may take before nobody waits for it any longer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Hold {
    /// Holds the directory together with others, waiting for a removal for a bounded time (`TimedOut`).
    pub(super) fn shared(path: &Path) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            match Self::take(path, libc::LOCK_SH) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if start.elapsed() > PATIENCE {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                taken => return taken,
            }
        }
    }

    /// Holds the directory alone, at once or not at all (`WouldBlock`).
    pub(super) fn alone(path: &Path) -> io::Result<Self> {
        Self::take(path, libc::LOCK_EX)
    }

    fn take(path: &Path, how: libc::c_int) -> io::Result<Self> {
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)?;
        // SAFETY: an open descriptor.
        if unsafe { libc::flock(directory.as_raw_fd(), how | libc::LOCK_NB) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The directory may have been removed, and even made again, between the opening and the lock.
        let (held, there) = (directory.metadata()?, fs::symlink_metadata(path)?);
        if (held.dev(), held.ino()) != (there.dev(), there.ino()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Self {
            _directory: directory,
        })
    }
}
