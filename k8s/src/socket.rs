//! Unix sockets, and the identity of the file that a path leads to.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// The identity of a file. Kubelet's socket is a new file after each start of kubelet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    device: u64,
    inode: u64,
    /// The change time in seconds and nanoseconds: inode numbers can be reused at once.
    changed: (i64, i64),
}

impl Identity {
    /// Returns `None` if the path leads nowhere.
    pub fn of(path: &Path) -> Option<Self> {
        let about = fs::symlink_metadata(path).ok()?;
        Some(Self {
            device: about.dev(),
            inode: about.ino(),
            changed: (about.ctime(), about.ctime_nsec()),
        })
    }
}

/// A socket of the plugin. Dropping it removes its file, unless another file has that name by then.
pub struct Socket {
    path: PathBuf,
    identity: Option<Identity>,
}

impl Socket {
    /// Listens at this path. Replaces a socket that a killed plugin has left.
    pub fn listen(path: PathBuf) -> io::Result<(Self, UnixListener)> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        // Only root may connect: kubelet is root.
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let identity = Identity::of(&path);
        Ok((Self { path, identity }, listener))
    }

    /// Returns whether the path still leads to this socket. Kubelet removes all sockets when it
    /// starts.
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
