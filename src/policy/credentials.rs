//! Who this process is, as the machine's administrator numbers users and unix groups.
#![allow(unsafe_code)]

use std::fs;

/// What the kernel shows for users who have no number in a user namespace.
const OVERFLOW: u32 = 65534;

/// The real user id.
pub(super) fn uid() -> u32 {
    // SAFETY: asks the kernel a question that cannot fail.
    unsafe { libc::getuid() }
}

/// All unix groups of this process: real, effective and supplementary.
pub(super) fn gids() -> Vec<u32> {
    // SAFETY: as above.
    let mut gids = unsafe { vec![libc::getgid(), libc::getegid()] };
    // SAFETY: with a size of 0 it only counts.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut more = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: room for as many as we say.
    let count = unsafe { libc::getgroups(count.max(0), more.as_mut_ptr()) };
    more.truncate(usize::try_from(count).unwrap_or(0));
    gids.append(&mut more);
    gids
}

/// The real user id and all unix groups of a process, in the numbers of our user namespace.
#[cfg(feature = "cli")]
pub(super) fn of_process(pid: u32) -> std::io::Result<(u32, Vec<u32>)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
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
    // Real and effective; not the saved and the one for files.
    gids.truncate(2);
    gids.extend(numbers("Groups:"));
    Ok((uid, gids))
}

/// How the numbers of a user namespace lead to those outside of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Map(Vec<[u32; 3]>);

impl Map {
    /// That of this process's users. Without `/proc` every number means itself.
    pub(super) fn of_users() -> Self {
        Self::read(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
    }

    /// That of this process's unix groups.
    pub(super) fn of_groups() -> Self {
        Self::read(&fs::read_to_string("/proc/self/gid_map").unwrap_or_default())
    }

    /// Lines of: first inside, first outside, how many.
    fn read(text: &str) -> Self {
        let line = |line: &str| {
            let mut numbers = line.split_whitespace().map(str::parse);
            let mut next = || numbers.next()?.ok();
            Some([next()?, next()?, next()?])
        };
        Self(text.lines().filter_map(line).collect())
    }

    fn is_whole(&self) -> bool {
        matches!(self.0[..], [] | [[0, 0, u32::MAX]])
    }

    /// The number outside. One that has none means itself.
    pub(super) fn outside(&self, inside: u32) -> u32 {
        let found = self.0.iter().find_map(|[first, outside, count]| {
            let step = inside.checked_sub(*first)?;
            (step < *count).then(|| outside.saturating_add(step))
        });
        found.unwrap_or(inside)
    }

    /// Whether a file that shows this owner may be `owner`'s of the machine. A user namespace shows one number for all that it has no
    /// number for; who can put such files in the place of others needs no such way around the rules.
    pub(super) fn may_be(&self, shown: u32, owner: u32) -> bool {
        self.outside(shown) == owner || (!self.is_whole() && shown == OVERFLOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_namespace_changes_nothing() {
        let map = Map::read("         0          0 4294967295\n");
        assert_eq!(map.outside(1000), 1000);
        assert!(map.may_be(0, 0) && !map.may_be(OVERFLOW, 0) && !map.may_be(1000, 0));
        assert_eq!(Map::read("").outside(7), 7);
    }

    #[test]
    fn root_in_a_namespace_is_who_made_it() {
        let map = Map::read("0 1000 1\n1 100000 65535\n");
        assert_eq!(map.outside(0), 1000);
        assert_eq!(map.outside(10), 100_009);
        assert_eq!(map.outside(70_000), 70_000);
        assert!(!map.may_be(0, 0), "a file of the user's own");
        assert!(map.may_be(OVERFLOW, 0));
    }

    #[cfg(feature = "cli")]
    #[test]
    fn from_outside_a_process_has_the_same_ids() {
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
    fn this_process_has_its_own_ids() {
        let status = fs::read_to_string("/proc/self/status").expect("/proc");
        let first = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|number| number.parse().ok())
        };
        assert_eq!(first("Uid:"), Some(uid()));
        assert_eq!(first("Gid:"), gids().first().copied());
    }
}
