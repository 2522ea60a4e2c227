//! Mounts a container's view of the groups at /run/gpulimit, where the container's programs look
//! for groups.

use crate::machine::inside;
use crate::words::failure::Failure;
use gpulimit_group::SYSTEM;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount_bind, mount_remount};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The flags of the view's mounts: nothing in a view can be executed or used as a device.
const QUIET: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// Mounts `view` at [`SYSTEM`] in the container's file system `rootfs`. Only the files in
/// `writable` can be written.
pub fn mount_view(view: &Path, writable: &[PathBuf], rootfs: &Path) -> Result<(), Failure> {
    let failed = |what: &Path, error: &io::Error| {
        Failure::new(format_args!(
            "cannot mount {} at {SYSTEM} in the container's root file system {}: {error}",
            what.display(),
            rootfs.display()
        ))
    };
    let place = || open_in(rootfs, Path::new(SYSTEM));
    let bound = place().and_then(|place| bind(view, &place));
    bound.map_err(|error| failed(view, &error))?;
    // Open the path again: only now it leads to the mounted view.
    let closed = place().and_then(|place| remount(&place, QUIET | MountFlags::RDONLY));
    closed.map_err(|error| failed(view, &error))?;
    for file in writable {
        let inside = file.strip_prefix(view).unwrap_or(file);
        let inside = Path::new(SYSTEM).join(inside);
        let place = || open_in(rootfs, &inside);
        place()
            .and_then(|place| bind(file, &place))
            .and_then(|()| place())
            .and_then(|place| remount(&place, QUIET))
            .map_err(|error| failed(file, &error))?;
    }
    Ok(())
}

/// Opens a path in the container's file system.
fn open_in(rootfs: &Path, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let root = rustix::fs::open(rootfs, flags, Mode::empty())?;
    inside::open(root.as_fd(), path)
}

/// Returns a path under `/proc/self/fd` that leads to this open file.
fn through(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn bind(source: &Path, target: &OwnedFd) -> io::Result<()> {
    Ok(mount_bind(source, through(target))?)
}

/// Changes the flags of a mount.
fn remount(target: &OwnedFd, flags: MountFlags) -> io::Result<()> {
    Ok(mount_remount(
        through(target),
        MountFlags::BIND | flags,
        "",
    )?)
}
