//! Unix sockets, and the identity of a socket's file.

use gpulimit_base::missing::found;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// The identity of a file. Each start of kubelet makes a socket file with a new identity.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    device: u64,
    inode: u64,
    /// The file's change time in seconds and nanoseconds: a new file may reuse the inode number of
    /// a removed file.
    changed: (i64, i64),
}

impl Identity {
    /// Returns the identity of the file at `path`; `None` if there is no such file.
    pub fn of(path: &Path) -> Option<Self> {
        let about = fs::symlink_metadata(path).ok()?;
        Some(Self {
            device: about.dev(),
            inode: about.ino(),
            changed: (about.ctime(), about.ctime_nsec()),
        })
    }
}

/// A listening socket of the plugin. Dropping it removes the socket's file, unless the path leads
/// to another file.
pub struct Socket {
    path: PathBuf,
    identity: Option<Identity>,
}

impl Socket {
    /// Listens at this path. Replaces the socket file that an earlier plugin left at this path when
    /// it was killed.
    pub fn listen(path: PathBuf) -> io::Result<(Self, UnixListener)> {
        found(fs::remove_file(&path))?;
        let listener = UnixListener::bind(&path)?;
        // Only root may connect to the plugin's socket; kubelet runs as root.
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let identity = Identity::of(&path);
        Ok((Self { path, identity }, listener))
    }

    /// Returns whether the socket's path still leads to this socket. When kubelet starts, it
    /// removes the sockets of all plugins.
    pub fn is_there(&self) -> bool {
        self.identity.is_some() && Identity::of(&self.path) == self.identity
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
