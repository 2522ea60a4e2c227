//! Whether this process is in the machine's initial user namespace.
//!
//! Anybody may make a user namespace where `user.max_user_namespaces` allows it, and number the
//! users in it as they like. Only in the initial one do the numbers that a process has mean the
//! users of the machine.
#![allow(unsafe_code)]

use libc::{EMFILE, ENFILE, ENOMEM};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// The number that the kernel shows in a user namespace for users who have none there
/// (`overflowuid`).
pub(super) const UNMAPPED: u32 = 65534;

/// The user namespace of this process.
pub(super) const USER: &str = "/proc/self/ns/user";
/// The inode of the initial user namespace (`PROC_USER_INIT_INO`), fixed since Linux 3.8.
const INITIAL: u64 = 0xEFFF_FFFD;
/// `ioctl_ns(2)`: the user who made a user namespace, in the numbers of the caller's. Since Linux
/// 4.11.
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
/// The file system of namespaces (`NSFS_MAGIC`), since Linux 3.19.
const NSFS: u64 = 0x6e73_6673;
/// Where older kernels have them (`PROC_SUPER_MAGIC`).
const PROC: u64 = 0x9fa0;

/// Returns whether this process is in the initial user namespace. False where that cannot be told,
/// as without `/proc`; an error where only a descriptor is lacking, or memory, to ask for it.
///
/// A process can mount something else at `/proc` in a mount namespace of its own, even a file of
/// the initial namespace. The kernel still says who owns that one in the numbers of the namespace
/// that asks: root, who is user 0 only where the machine's root has that number.
pub(super) fn is_initial() -> io::Result<bool> {
    let file = match File::open(USER) {
        Ok(file) => file,
        Err(error) if matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOMEM)) => {
            return Err(error);
        }
        // A kernel that is built without user namespaces has only one.
        Err(error) => {
            return Ok(error.kind() == io::ErrorKind::NotFound
                && File::open("/proc/self/ns/mnt").is_ok_and(|file| file_system(&file).is_some()));
        }
    };
    if file.metadata().map(|about| about.ino()).ok() != Some(INITIAL) {
        return Ok(false);
    }
    Ok(match file_system(&file) {
        Some(NSFS) => owner(&file).is_none_or(|uid| uid == 0),
        Some(_) => true,
        None => false,
    })
}

/// The magic number of the file system that `file` is on; `None` unless namespaces live there.
fn file_system(file: &File) -> Option<u64> {
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: an open descriptor, and room for the answer.
    if unsafe { libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the kernel has filled it in.
    let magic = unsafe { about.assume_init() }.f_type as u64;
    matches!(magic, NSFS | PROC).then_some(magic)
}

/// The user who made the user namespace behind `file`, in our numbers; `None` where the kernel does
/// not tell.
fn owner(file: &File) -> Option<u32> {
    let mut uid: libc::uid_t = libc::uid_t::MAX;
    // SAFETY: an open descriptor, and room for the answer.
    let told = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) } == 0;
    told.then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_as_the_map_of_users_says() {
        let map = std::fs::read_to_string("/proc/self/uid_map").expect("/proc");
        let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
        assert_eq!(is_initial().expect("asked"), whole);
    }

    #[test]
    fn only_namespaces_are_on_their_file_system() {
        let file = File::open("/dev/null").expect("there");
        assert_eq!(file_system(&file), None);
        assert_eq!(owner(&file), None);
    }
}
