//! Sockets by their paths, and which one a path leads to.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Which file a path leads to. Kubelet's socket gets another one with every start of kubelet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    device: u64,
    inode: u64,
    /// Inodes are used again at once; seconds and nanoseconds.
    changed: (i64, i64),
}

impl Identity {
    /// `None` where there is nothing.
    pub fn of(path: &Path) -> Option<Self> {
        let about = fs::symlink_metadata(path).ok()?;
        Some(Self {
            device: about.dev(),
            inode: about.ino(),
            changed: (about.ctime(), about.ctime_nsec()),
        })
    }
}

/// A socket of ours. Dropped, its name goes away, unless somebody has put another one there.
pub struct Socket {
    path: PathBuf,
    identity: Option<Identity>,
}

impl Socket {
    /// Listens at this path. What a killed plugin has left there is replaced.
    pub fn listen(path: PathBuf) -> io::Result<(Self, UnixListener)> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        // Kubelet is root.
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let identity = Identity::of(&path);
        Ok((Self { path, identity }, listener))
    }

    /// Whether its name still leads to it. Kubelet removes all sockets when it starts.
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
