//! The user and the unix groups of a process, as ids of the machine.
use gpulimit_base::process::{groups, id};

/// Returns all unix groups of this process: real, effective and supplementary.
pub(super) fn gids() -> Vec<u32> {
    let mut gids = vec![id(libc::SYS_getgid), id(libc::SYS_getegid)];
    gids.extend(groups().unwrap_or_default());
    gids
}

/// Returns the real user id and all unix groups of a process, as ids in the caller's user
/// namespace.
pub(super) fn of_process(pid: u32) -> std::io::Result<(u32, Vec<u32>)> {
    let status = gpulimit_base::proc::read(format!("/proc/{pid}/status"))?;
    let numbers = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let words = line.unwrap_or_default().split_whitespace();
        words
            .filter_map(|word| word.parse().ok())
            .collect::<Vec<u32>>()
    };
    let uid = numbers("Uid:").first().copied();
    let uid = uid.ok_or(std::io::ErrorKind::InvalidData)?;
    let mut gids = numbers("Gid:");
    // The `Gid:` line has the real, effective, saved and file-system group; only the first two
    // matter.
    gids.truncate(2);
    gids.extend(numbers("Groups:"));
    Ok((uid, gids))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_base::process::uid;

    #[test]
    fn ids_read_from_proc_are_those_of_the_process() {
        let (seen, gids) = of_process(std::process::id()).expect("/proc");
        assert_eq!(seen, uid());
        let sorted = |mut gids: Vec<u32>| {
            gids.sort_unstable();
            gids
        };
        assert_eq!(sorted(gids), sorted(super::gids()));
        assert!(of_process(u32::MAX).is_err());
    }

    #[test]
    fn ids_of_this_process_are_those_in_proc() {
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
        let first = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|number| number.parse().ok())
        };
        assert_eq!(first("Uid:"), Some(uid()));
        assert_eq!(first("Gid:"), gids().first().copied());
    }
}
