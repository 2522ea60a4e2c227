//! Opens paths in a root directory whose content is not trusted.

use rustix::fs::{FileType, Mode, OFlags};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

/// Opens a path in this root directory with `O_PATH`, one component at a time. Refuses symbolic
/// links, which may lead out of the directory.
pub fn open(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut way = vec![root.try_clone_to_owned()?];
    for component in path.components() {
        // As in the kernel, `..` in the root directory leads to the root directory.
        if component == Component::ParentDir && way.len() > 1 {
            way.pop();
        }
        let Component::Normal(name) = component else {
            continue;
        };
        let here = way.last().map_or(root, AsFd::as_fd);
        let found = rustix::fs::openat(here, name, flags, Mode::empty())?;
        let mode = rustix::fs::fstat(&found)?.st_mode;
        if FileType::from_raw_mode(mode) == FileType::Symlink {
            let why = format!("{} is a symbolic link: not followed", name.display());
            return Err(io::Error::new(ErrorKind::Unsupported, why));
        }
        way.push(found);
    }
    way.pop().ok_or_else(|| ErrorKind::NotFound.into())
}
