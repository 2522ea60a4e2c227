//! Mounts a container's view of the groups at /run/gpulimit, where the container's programs look
//! for groups.
#![allow(unsafe_code)]

use crate::words::failure::Failure;
use gpulimit_group::SYSTEM;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// The flags of the view's mounts: nothing in a view can be executed or used as a device.
const QUIET: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

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
    let closed = place().and_then(|place| remount(&place, QUIET | libc::MS_RDONLY));
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

/// Opens a path in the container's file system. Refuses symbolic links, which may lead out of that
/// file system.
fn open_in(rootfs: &Path, path: &Path) -> io::Result<File> {
    let open = |path: &Path, flags| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_CLOEXEC | flags);
        options.open(path)
    };
    let mut file = open(rootfs, libc::O_DIRECTORY)?;
    for part in path.components() {
        if let Component::Normal(part) = part {
            file = open(&through(&file).join(part), libc::O_NOFOLLOW)?;
            if file.metadata()?.is_symlink() {
                let why = format!(
                    "{} is a symbolic link in the image, expected a directory",
                    Path::new(part).display()
                );
                return Err(io::Error::other(why));
            }
        }
    }
    Ok(file)
}

/// Returns a path under `/proc/self/fd` that leads to this open file.
fn through(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn bind(source: &Path, target: &File) -> io::Result<()> {
    mount(source, target, libc::MS_BIND)
}

/// Changes the flags of a mount.
fn remount(target: &File, flags: libc::c_ulong) -> io::Result<()> {
    mount(
        Path::new("none"),
        target,
        libc::MS_REMOUNT | libc::MS_BIND | flags,
    )
}

fn mount(source: &Path, target: &File, flags: libc::c_ulong) -> io::Result<()> {
    let source = CString::new(source.as_os_str().as_bytes())?;
    let target = CString::new(through(target).into_os_string().as_bytes())?;
    let none = std::ptr::null();
    // SAFETY: both paths are C strings. The kernel ignores the other two pointers for a bind mount.
    match unsafe { libc::mount(source.as_ptr(), target.as_ptr(), none, flags, none.cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
