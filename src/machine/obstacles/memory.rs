//! Whether the host has room for GPU memory. The memory becomes the process's own, so the host, the
//! process's memory cgroups and its limits must have the room.

use super::Obstacle;
use gpulimit_base::proc::{self, kibibytes};
use gpulimit_base::units::gib;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the places that have too little memory for the GPU memory of these processes, given as
/// pids and bytes. A tenth of every place stays free.
pub fn of_memory(processes: &[(u32, u64)]) -> Vec<Obstacle> {
    let read = |path: &str| proc::read(path).unwrap_or_default();
    let meminfo = read("/proc/meminfo");
    let strict = read("/proc/sys/vm/overcommit_memory").trim() == "2";
    let mounts = read("/proc/self/mountinfo");
    // The places with the bytes that they need and have, and what helps.
    let mut places = Vec::new();
    let sum = |bytes: &mut u64, more: u64| *bytes = bytes.saturating_add(more);
    let mut all = 0;
    let mut cgroups: BTreeMap<(PathBuf, Kind), u64> = BTreeMap::new();
    for (pid, bytes) in processes {
        sum(&mut all, *bytes);
        let cgroup = read(&format!("/proc/{pid}/cgroup"));
        for (controller, kind) in [("", Kind::V2), ("memory", Kind::V1)] {
            for path in directories(&mounts, &cgroup, controller) {
                sum(cgroups.entry((path, kind)).or_default(), *bytes);
            }
        }
        let (limits, status) = (
            read(&format!("/proc/{pid}/limits")),
            read(&format!("/proc/{pid}/status")),
        );
        for (name, used, option, resource) in [
            ("Max address space", "VmSize", 'v', "as"),
            ("Max data size", "VmData", 'd', "data"),
        ] {
            let room = limit(&limits, name).zip(kibibytes(&status, used));
            let room = room.map(|(limit, used)| limit.saturating_sub(used));
            let place = format!("the limit of process {pid} (`ulimit -{option}`)");
            let remedy = format!("raise the limit: `prlimit --pid {pid} --{resource}=unlimited`");
            places.push((*bytes, room, place, remedy));
        }
    }
    let room = kibibytes(&meminfo, "MemAvailable");
    let remedy = "end programs that use the host's memory, or suspend fewer processes";
    places.push((all, room, "the host".into(), remedy.into()));
    if strict {
        let limit = kibibytes(&meminfo, "CommitLimit").zip(kibibytes(&meminfo, "Committed_AS"));
        let room = limit.map(|(limit, used)| limit.saturating_sub(used));
        let place = "the host (vm.overcommit_memory is 2)";
        let remedy = "raise vm.overcommit_ratio, or suspend fewer processes";
        places.push((all, room, place.into(), remedy.into()));
    }
    for ((path, kind), bytes) in cgroups {
        let place = format!("the memory cgroup {}", path.display());
        let remedy = "raise the limit of the cgroup, container or job";
        places.push((bytes, kind.room(&path), place, remedy.into()));
    }
    let too_small = |(needed, room, place, remedy): (u64, Option<u64>, String, String)| {
        let room = room
            .map(|room| room - room / 10)
            .filter(|room| *room < needed)?;
        let text = format!(
            "the GPU memory ({}) does not fit into the host's memory: {place} leaves {}",
            gib(needed),
            gib(room)
        );
        Some(Obstacle::new(text, remedy))
    };
    places.into_iter().filter_map(too_small).collect()
}

/// Returns a soft limit in the text of `/proc/PID/limits`; `None` if unlimited.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The version of a cgroup hierarchy.
#[derive(Copy, Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Kind {
    V1,
    V2,
}

impl Kind {
    /// Returns the bytes that a memory cgroup may still use; `None` without a limit.
    fn room(self, cgroup: &Path) -> Option<u64> {
        let read = |file: &str| fs::read_to_string(cgroup.join(file)).unwrap_or_default();
        let (limit, usage) = match self {
            Self::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            Self::V2 => ("memory.max", "memory.current"),
        };
        self.room_in(&read(limit), &read(usage), &read("memory.stat"))
    }

    /// Returns the room from the texts of the limit, the usage and `memory.stat`. The kernel gives
    /// up the cache of files for programs.
    fn room_in(self, limit: &str, usage: &str, stat: &str) -> Option<u64> {
        /// Hierarchies of version 1 write a limit that means none as a number near 2^63.
        const NO_LIMIT: u64 = 1 << 60;
        let limit: u64 = limit.trim().parse().ok()?;
        let usage: u64 = usage.trim().parse().ok()?;
        let prefix = match self {
            Self::V1 => "total_",
            Self::V2 => "",
        };
        let cache = ["inactive_file ", "active_file "].map(|name| {
            let value = |line: &str| {
                let rest = line.strip_prefix(prefix)?.strip_prefix(name)?;
                rest.parse::<u64>().ok()
            };
            stat.lines().find_map(value).unwrap_or(0)
        });
        let used = usage.saturating_sub(cache[0].saturating_add(cache[1]));
        (limit < NO_LIMIT).then(|| limit.saturating_sub(used))
    }
}

/// Returns the directory of a process's cgroup in the hierarchy with this controller, and those
/// above it up to the mount point. The controller of version 2 is empty. The texts are those of
/// `/proc/self/mountinfo` and of `/proc/PID/cgroup`.
fn directories(mountinfo: &str, cgroup: &str, controller: &str) -> Vec<PathBuf> {
    let found = || {
        let mut lines = mountinfo.lines();
        let (root, point) = lines.find_map(|line| mount(line, controller))?;
        let path = Path::new(path_of(cgroup, controller)?);
        let below = path.strip_prefix(root).ok()?;
        // A cgroup outside of the reader's cgroup namespace begins with `/..`.
        let is_below = !below.components().any(|part| part.as_os_str() == "..");
        let directory = is_below.then(|| point.join(below))?;
        let up = directory.ancestors();
        let up = up.take_while(|path| path.starts_with(point));
        Some(up.map(Path::to_owned).collect())
    };
    found().unwrap_or_default()
}

/// Returns the cgroup at the mount point, and that point, if a line of `/proc/self/mountinfo` is of
/// the hierarchy with this controller.
fn mount<'a>(line: &'a str, controller: &str) -> Option<(&'a str, &'a Path)> {
    let (front, back) = line.split_once(" - ")?;
    let (mut front, mut back) = (front.split(' ').skip(3), back.split(' '));
    let is_it = match (back.next()?, back.nth(1)?) {
        ("cgroup2", _) => controller.is_empty(),
        ("cgroup", options) => options.split(',').any(|option| option == controller),
        _ => false,
    };
    is_it.then_some((front.next()?, Path::new(front.next()?)))
}

/// Returns the path of a process's cgroup in the hierarchy with this controller, from the text of
/// `/proc/PID/cgroup`. The hierarchy of version 2 has an empty list of controllers.
fn path_of<'a>(cgroup: &'a str, controller: &str) -> Option<&'a str> {
    cgroup.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    })
}

/// Returns whether a process's cgroup, or one above it, is frozen. `cgroup` is the text of
/// `/proc/PID/cgroup`.
pub(super) fn is_frozen(cgroup: &str) -> bool {
    let mounts = proc::read("/proc/self/mountinfo").unwrap_or_default();
    let read = |controller, file| {
        let directories = directories(&mounts, cgroup, controller);
        fs::read_to_string(directories.first()?.join(file)).ok()
    };
    let events = read("", "cgroup.events").unwrap_or_default();
    let state = read("freezer", "freezer.state").unwrap_or_default();
    events.lines().any(|line| line == "frozen 1") || matches!(state.trim(), "FROZEN" | "FREEZING")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        30 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,size=4096k\n\
        31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw\n\
        35 30 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:14 - cgroup cgroup rw,memory\n\
        36 30 0:32 / /sys/fs/cgroup/freezer rw shared:15 - cgroup cgroup rw,freezer\n";
    const CONTAINER: &str = "\
        1510 1509 0:29 /docker/4f1c /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n";

    #[test]
    fn cgroups_of_both_versions_are_found() {
        let cgroup = "9:name=systemd:/\n4:memory:/job/7\n3:freezer:/\n0::/user.slice\n";
        for (controller, expected) in [
            ("", &["unified/user.slice", "unified"][..]),
            ("memory", &["memory/job/7", "memory/job", "memory"]),
            ("freezer", &["freezer"]),
            ("cpu", &[]),
        ] {
            let below = |path: &&str| Path::new("/sys/fs/cgroup").join(path);
            let expected: Vec<PathBuf> = expected.iter().map(below).collect();
            assert_eq!(directories(HYBRID, cgroup, controller), expected);
        }
    }

    #[test]
    fn a_container_sees_its_own_part() {
        assert_eq!(
            directories(CONTAINER, "0::/docker/4f1c/a\n", ""),
            [Path::new("/sys/fs/cgroup/a"), Path::new("/sys/fs/cgroup")]
        );
        for outside in ["0::/\n", "0::/docker/9\n", "0::/docker/4f1c/../9\n", ""] {
            assert!(directories(CONTAINER, outside, "").is_empty(), "{outside}");
        }
    }

    #[test]
    fn controllers_may_share_a_hierarchy() {
        let cgroup = "3:cpu,cpuacct:/a\n2:freezer,memory:/b:c\n";
        assert_eq!(path_of(cgroup, "memory"), Some("/b:c"));
        assert_eq!(path_of(cgroup, "cpuacct"), Some("/a"));
        assert_eq!(path_of(cgroup, ""), None);
        let mounts = "31 30 0:31 / /sys/fs/cgroup/both rw - cgroup cgroup rw,freezer,memory\n";
        for controller in ["freezer", "memory"] {
            let found = directories(mounts, cgroup, controller);
            assert_eq!(found.first(), Some(&"/sys/fs/cgroup/both/b:c".into()));
        }
    }

    #[test]
    fn cached_files_make_room() {
        let stat = "anon 500\nfile 400\ninactive_file 100\nactive_file 200\nslab 9\n";
        assert_eq!(Kind::V2.room_in("1000\n", "900\n", stat), Some(400));
        assert_eq!(Kind::V2.room_in("1000\n", "1900\n", ""), Some(0));
        assert_eq!(Kind::V2.room_in("max\n", "900\n", stat), None);
        assert_eq!(Kind::V2.room_in("", "", stat), None, "the top has no limit");
        let stat = "inactive_file 7\ntotal_inactive_file 100\ntotal_active_file 200\n";
        assert_eq!(Kind::V1.room_in("1000\n", "900\n", stat), Some(400));
        assert_eq!(
            Kind::V1.room_in("9223372036854771712\n", "900\n", stat),
            None
        );
    }

    #[test]
    fn limits_and_figures_are_parsed() {
        let limits = "\
            Limit                     Soft Limit           Hard Limit           Units     \n\
            Max cpu time              unlimited            unlimited            seconds   \n\
            Max data size             1048576              unlimited            bytes     \n\
            Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(limit(limits, "Max data size"), Some(1_048_576));
        assert_eq!(limit(limits, "Max address space"), None);
        let meminfo = "MemTotal:       16374584 kB\nMemAvailable:   12 kB\nHugePages_Total:   4\n";
        assert_eq!(kibibytes(meminfo, "MemAvailable"), Some(12 << 10));
        assert_eq!(kibibytes(meminfo, "HugePages_Total"), None);
    }

    #[test]
    fn every_small_place_is_named() {
        let own = std::process::id();
        assert_eq!(of_memory(&[(own, 1)]), []);
        let found = of_memory(&[(own, 1 << 60), (own, 1 << 60)]);
        let mut found = found.iter().map(Obstacle::to_string);
        let is_host = |text: &String| text.contains(": the host leaves ");
        let host = found.find(is_host).expect("the host is too small");
        assert!(host.contains(&format!("({})", gib(1 << 61))), "{host}");
        assert!(!host.ends_with(" 0 B"), "{host}");
    }
}
