//! Finds out whether this process is in the machine's initial user namespace.
//!
//! User ids mean the machine's users only in the initial user namespace: in others, users can have
//! any ids.
#![allow(unsafe_code)]

use libc::{EMFILE, ENFILE, ENOMEM};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// The user id (`overflowuid`) that a user namespace shows for users who have no id in it.
pub(super) const UNMAPPED: u32 = 65534;

/// The file in `/proc` that stands for the user namespace of this process.
pub(super) const USER: &str = "/proc/self/ns/user";
/// The inode of the initial user namespace (`PROC_USER_INIT_INO`), fixed since Linux 3.8.
const INITIAL: u64 = 0xEFFF_FFFD;
/// The `ioctl` request for the owner of a user namespace (`ioctl_ns(2)`, since Linux 4.11).
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
/// The magic number of nsfs, the file system of namespaces (`NSFS_MAGIC`), since Linux 3.19.
const NSFS: u64 = 0x6e73_6673;
/// The magic number of procfs, the file system of namespaces in older kernels (`PROC_SUPER_MAGIC`).
const PROC: u64 = 0x9fa0;

/// Returns whether this process is in the initial user namespace; false if unknown. Fails only
/// without file descriptors or memory.
pub(super) fn is_initial() -> io::Result<bool> {
    let file = match File::open(USER) {
        Ok(file) => file,
        Err(error) if matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOMEM)) => {
            return Err(error);
        }
        // A kernel that is built without user namespaces has only the initial one.
        Err(error) => {
            return Ok(error.kind() == io::ErrorKind::NotFound
                && File::open("/proc/self/ns/mnt").is_ok_and(|file| file_system(&file).is_some()));
        }
    };
    if file.metadata().map(|about| about.ino()).ok() != Some(INITIAL) {
        return Ok(false);
    }
    // A process can mount another file at this path, so also ask the kernel for the namespace's
    // owner, root.
    Ok(match file_system(&file) {
        Some(NSFS) => owner(&file).is_none_or(|uid| uid == 0),
        Some(_) => true,
        None => false,
    })
}

/// Returns the magic number of the file system that `file` is on; `None` if that file system cannot
/// hold namespaces.
fn file_system(file: &File) -> Option<u64> {
    let magic = rustix::fs::fstatfs(file).ok()?.f_type as u64;
    matches!(magic, NSFS | PROC).then_some(magic)
}

/// Returns the owner of a user namespace, as a user id in the caller's namespace; `None` if
/// unknown.
fn owner(file: &File) -> Option<u32> {
    let mut uid: libc::uid_t = libc::uid_t::MAX;
    // SAFETY: the descriptor is open, and `uid` has room for the answer.
    let told = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) } == 0;
    told.then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initial_namespace_is_recognised_by_its_map_of_users() {
        let map = std::fs::read_to_string("/proc/self/uid_map").expect("/proc");
        let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
        assert_eq!(is_initial().expect("asked"), whole);
    }

    #[test]
    fn a_file_of_another_file_system_is_not_a_namespace() {
        let file = File::open("/dev/null").expect("there");
        assert_eq!(file_system(&file), None);
        assert_eq!(owner(&file), None);
    }
}
