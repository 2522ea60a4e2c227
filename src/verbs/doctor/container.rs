//! Finds the first process of a container by the container's id or name.

use super::finding::{Check, Finding};
use gpulimit_base::identity::SeenProcess;
use gpulimit_policy::containers_of;
use std::process::{Command, Stdio};

const CHECK: Check = Check("container");

/// The length of the short container ids that container engines show.
const SHORTEST: usize = 12;

/// Returns the pid of a container's first process. `name` is the beginning of an id, or a name
/// known to an engine.
pub(super) fn pid(name: &str) -> Result<(u32, Finding), Finding> {
    let Some(pid) = by_id(name).or_else(|| by_name(name)) else {
        let text = format!("found no process in a container with the id or name '{name}'");
        let remedy = "give the id of a container (at least 12 digits) or a name that docker, \
                      podman or nerdctl knows, or check one of the container's processes with \
                      --pid";
        return Err(CHECK.error(text, remedy));
    };
    let text = format!("the first process of {name} is {pid}");
    Ok((pid, CHECK.fine(text)))
}

fn by_id(id: &str) -> Option<u32> {
    if id.len() < SHORTEST || !id.bytes().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let id = id.to_ascii_lowercase();
    let is_in = |pid: &u32| {
        containers_of(*pid)
            .iter()
            .any(|found| found.starts_with(&id))
    };
    // Pids usually increase, so the lowest pid in the container is nearly always the first
    // process's.
    SeenProcess::numbers().filter(is_in).min()
}

fn by_name(name: &str) -> Option<u32> {
    ["docker", "podman", "nerdctl"].iter().find_map(|engine| {
        let output = Command::new(engine)
            .args(["inspect", "--format", "{{.State.Pid}}", "--", name])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let pid = String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .ok()?;
        (output.status.success() && pid != 0).then_some(pid)
    })
}
