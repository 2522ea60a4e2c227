//! The properties of a process that conditions in the administrator's rules can refer to.

use super::credentials;
use super::namespace;
use super::rules::{Rules, RulesError};
use gpulimit_base::proc;
use gpulimit_base::process;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

/// The properties of a process that rules are compared with.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Facts {
    /// Whether the process is in a user namespace of its own, where it can forge the other
    /// properties.
    pub in_user_namespace: bool,
    /// The real user id of the process.
    pub uid: u32,
    /// All unix groups of the process.
    pub gids: Vec<u32>,
    /// The process's paths in all cgroup hierarchies; read only if a rule has a condition on them.
    pub cgroups: Vec<String>,
    /// The file that the process executes; read only if a rule has a condition on it.
    pub executable: Vec<u8>,
    /// The ids of the containers that the process is in; read only if a rule has a condition on
    /// them.
    pub containers: Vec<String>,
}

impl Facts {
    /// Reads those properties of this process that the rules have conditions on.
    pub fn of_self(rules: &Rules) -> Result<Self, RulesError> {
        let facts = Self {
            in_user_namespace: !is_in_initial_namespace()?,
            uid: process::uid(),
            ..Self::default()
        };
        facts.gather("/proc/self", credentials::gids, rules)
    }

    /// Reads those properties of a process that the rules have conditions on. `pid` is the
    /// process's number in the caller's pid namespace.
    pub fn of_process(pid: u32, rules: &Rules) -> Result<Self, RulesError> {
        let folder = format!("/proc/{pid}");
        let unknown = RulesError::unknown("/proc/PID/status");
        let (uid, gids) = credentials::of_process(pid).map_err(unknown)?;
        let user_namespace = |folder: &str| fs::read_link(format!("{folder}/ns/user")).ok();
        let facts = Self {
            in_user_namespace: !is_in_initial_namespace()?
                || user_namespace(&folder) != user_namespace("/proc/self"),
            uid,
            ..Self::default()
        };
        facts.gather(&folder, || gids, rules)
    }

    /// Adds the properties that the rules have conditions on. `process` is the process's folder in
    /// `/proc`.
    fn gather(
        self,
        process: &str,
        gids: impl FnOnce() -> Vec<u32>,
        rules: &Rules,
    ) -> Result<Self, RulesError> {
        let unknown = RulesError::unknown;
        let mut facts = self;
        if facts.in_user_namespace {
            return Ok(facts);
        }
        if rules.iter().any(|rule| rule.unix_group.is_some()) {
            facts.gids = gids();
        }
        let asks_container = rules.iter().any(|rule| !rule.container.is_empty());
        if asks_container || rules.iter().any(|rule| !rule.cgroup.is_empty()) {
            let text =
                proc::read(format!("{process}/cgroup")).map_err(unknown("/proc/self/cgroup"))?;
            facts.cgroups = cgroups(&text).map(str::to_owned).collect();
        }
        if asks_container {
            let ids = facts.cgroups.iter().flat_map(|path| containers(path));
            facts.containers = ids.map(str::to_owned).collect();
            if facts.containers.is_empty() {
                // A cgroup namespace hides the container's id. The sources of the container's
                // mounts still contain the id.
                let text = fs::read(format!("{process}/mountinfo"))
                    .map_err(unknown("/proc/self/mountinfo"))?;
                let text = String::from_utf8_lossy(&text);
                facts.containers = mounted(&text).map(str::to_owned).collect();
            }
        }
        if rules.iter().any(|rule| !rule.executable.is_empty()) {
            let path =
                fs::read_link(format!("{process}/exe")).map_err(unknown("/proc/self/exe"))?;
            facts.executable = path.as_os_str().as_bytes().into();
        }
        Ok(facts)
    }
}

fn is_in_initial_namespace() -> Result<bool, RulesError> {
    namespace::is_initial().map_err(RulesError::unknown(namespace::USER))
}

/// Returns the ids of the containers that a process is in. `pid` is the process's number in the
/// caller's pid namespace.
pub fn containers_of(pid: u32) -> Vec<String> {
    // Limit the bytes read per file, because a process can have any number of mounts.
    const LONGEST: u64 = 4 << 20;
    let read = |file: &str| {
        let mut bytes = Vec::new();
        let file = fs::File::open(format!("/proc/{pid}/{file}"));
        let _ = file.and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
        bytes
    };
    let text = read("cgroup");
    let text = String::from_utf8_lossy(&text);
    let mut ids: Vec<String> = cgroups(&text)
        .flat_map(containers)
        .map(str::to_owned)
        .collect();
    let text = read("mountinfo");
    ids.extend(mounted(&String::from_utf8_lossy(&text)).map(str::to_owned));
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Iterates over the paths in the text of `/proc/PID/cgroup`, whose lines look like
/// `0::/user.slice` and `4:memory:/docker/<id>`.
fn cgroups(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .filter(|path| path.starts_with('/'))
}

/// Iterates over the container ids in a cgroup's path, such as `docker-<id>.scope`, `/docker/<id>`
/// and `cri-containerd-<id>.scope`.
fn containers(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| {
        let name = part.strip_suffix(".scope").unwrap_or(part);
        let (before, id) = name.rsplit_once('-').unwrap_or(("", name));
        // The cgroup of `conmon` holds the container engine's own process, which is not in the
        // container.
        (is_id(id) && !before.ends_with("conmon")).then_some(id)
    })
}

/// Iterates over the container ids in the text of `/proc/PID/mountinfo`, where the source of a
/// mount looks like `…/containers/<id>/hostname`.
fn mounted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let source = line.split(' ').nth(3)?;
        let mut parts = source.split('/').zip(source.split('/').skip(1));
        let is_container = |(above, id): &(&str, &str)| above.ends_with("containers") && is_id(id);
        parts.find(is_container).map(|(_, id)| id)
    })
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_both_versions() {
        let text =
            "12:devices:/docker/ab\n1:name=systemd:/x:y\n0::/user.slice/user-1000.slice\nbroken\n";
        let found: Vec<_> = cgroups(text).collect();
        assert_eq!(found, ["/docker/ab", "/x:y", "/user.slice/user-1000.slice"]);
    }

    #[test]
    fn containers_of_every_engine() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("/system.slice/docker-{id}.scope"),
            format!("/docker/{id}"),
            format!("/docker/{id}/init"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
            format!("/kubepods/burstable/pod1/{id}"),
            format!("/kubepods.slice/crio-{id}.scope"),
            format!("/user.slice/libpod-{id}.scope/container"),
        ] {
            assert_eq!(containers(&path).collect::<Vec<_>>(), [&id], "{path}");
        }
        for path in [
            "/",
            "/user.slice/user-1000.slice/session-2.scope",
            "/docker/0123",
            &format!("/machine.slice/libpod-conmon-{id}.scope"),
        ] {
            assert_eq!(containers(path).count(), 0, "{path}");
        }
    }

    #[test]
    fn containers_behind_a_cgroup_namespace() {
        let id = "f".repeat(64);
        let text = format!(
            "1 2 0:1 / /proc rw - proc proc rw\n\
             3 2 8:1 /var/lib/docker/containers/{id}/hostname /etc/hostname rw - ext4 /dev/sda rw\n\
             4 2 0:5 /containers/overlay-containers/{id}/userdata/hosts /etc/hosts rw - tmpfs \
             tmpfs rw\n"
        );
        assert_eq!(mounted(&text).collect::<Vec<_>>(), [&id, &id]);
        assert_eq!(mounted("1 2 0:1 / / rw - ext4 /dev/sda rw\n").count(), 0);
    }

    #[test]
    fn only_facts_that_rules_ask_for_are_read() {
        let facts = Facts::of_self(&Rules::default()).expect("facts");
        assert_eq!(facts.uid, process::uid());
        let rest = Facts {
            in_user_namespace: facts.in_user_namespace,
            uid: facts.uid,
            ..Facts::default()
        };
        assert_eq!(facts, rest);
    }
}
