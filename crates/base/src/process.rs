//! Facts about processes that the system provides outside `/proc/PID`.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::fs::MetadataExt;

/// The inode of the first pid namespace of every machine (`PROC_PID_INIT_INO` in linux/proc_ns.h).
/// A process in it sees all processes, with the pids under which NVML lists them.
pub const FIRST_PID_NS: u64 = 0xEFFF_FFFC;

/// Returns the real user id of this process.
pub fn uid() -> u32 {
    id(libc::SYS_getuid)
}

/// Returns a user or group id of this process, by a system call without arguments that cannot fail.
/// A preloaded library such as libfakeroot makes the C library's functions lie.
pub fn id(call: libc::c_long) -> u32 {
    // SAFETY: the call accesses no memory.
    unsafe { libc::syscall(call) as u32 }
}

/// Returns the supplementary group ids of this process.
pub fn groups() -> io::Result<Vec<u32>> {
    // SAFETY: with a length of 0 the call writes nothing.
    let count = unsafe { libc::syscall(libc::SYS_getgroups, 0usize, std::ptr::null::<u32>()) };
    let mut groups = vec![0; usize::try_from(count).map_err(|_| io::Error::last_os_error())?];
    // SAFETY: the call writes at most `groups.len()` ids, for which there is room.
    let count = unsafe { libc::syscall(libc::SYS_getgroups, groups.len(), groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
    Ok(groups)
}

/// Returns the inode of this process's pid namespace; 0 if unknown.
pub fn pid_ns() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |ns| ns.ino())
}

/// Returns whether `/proc` shows the processes of this process's own pid namespace.
pub fn has_own_proc() -> bool {
    let link = std::fs::read_link("/proc/self").ok();
    link.is_some_and(|link| link.as_os_str() == std::process::id().to_string().as_str())
}

/// Returns whether a process of any user has this pid. Does not use `/proc`, where `hidepid` can
/// hide processes.
pub fn exists(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return false;
    };
    // SAFETY: signal 0 is only a check; no signal is sent.
    let sent = unsafe { libc::kill(pid, 0) } == 0;
    sent || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_all_users_exist() {
        assert!(exists(std::process::id()) && exists(1));
        assert!(!exists(1 << 23) && !exists(u32::MAX));
    }

    #[test]
    fn the_user_id_is_the_real_one() {
        let owner = std::fs::metadata("/proc/self").expect("there").uid();
        assert_eq!(uid(), owner);
        let other = std::thread::spawn(|| {
            // SAFETY: the raw system call changes the user of this thread alone, and takes plain
            // integers.
            let changed =
                unsafe { libc::syscall(libc::SYS_setreuid, 65_534usize, libc::c_long::from(-1)) }
                    == 0;
            (changed, uid())
        });
        let (changed, other) = other.join().expect("thread");
        assert_eq!(other, if changed { 65_534 } else { owner });
    }

    #[test]
    fn the_namespace_is_that_of_this_process() {
        let link = std::fs::read_link("/proc/self/ns/pid").expect("readable");
        assert_eq!(link.to_string_lossy(), format!("pid:[{}]", pid_ns()));
    }
}
