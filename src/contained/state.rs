//! Parses the container's state, which the container runtime passes to a hook, and the
//! configuration in the container's bundle.

use crate::words::failure::Failure;
use serde::Deserialize;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

/// The maximum length of a container's state in bytes.
const LONGEST: u64 = 1 << 20;

/// The state of a container, as the container runtime passes it to a hook.
#[derive(Deserialize)]
pub struct State {
    /// The container's id, which is unique among the containers of a runtime.
    pub id: String,
    /// The pid of the container's first process; 0 if that process has ended or its pid is missing.
    #[serde(default)]
    pub pid: u32,
    /// The directory that contains the container's configuration.
    pub bundle: PathBuf,
}

/// The parts of a container's configuration that gpulimit needs.
#[derive(Deserialize)]
struct Config {
    root: Rootfs,
    #[serde(default)]
    linux: Linux,
}

#[derive(Deserialize)]
struct Rootfs {
    path: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Linux {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    #[serde(rename = "containerID")]
    container_id: u32,
    #[serde(rename = "hostID")]
    host_id: u32,
}

/// The facts from a container's bundle that gpulimit needs.
pub struct Bundle {
    /// The root directory of the container's file system, as a path of the host.
    pub rootfs: PathBuf,
    /// The host's id of the container's unix group 0. `None` if the container's root is the host's
    /// root.
    pub root_group: Option<u32>,
}

impl State {
    /// Reads a container's state from standard input.
    pub fn read() -> Result<Self, Failure> {
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::new(format_args!(
                "standard input is not the state of a container: {why}; an OCI runtime calls this \
                 hook and passes the state"
            ))
        };
        let mut text = String::new();
        let read = std::io::stdin().take(LONGEST).read_to_string(&mut text);
        read.map_err(|error| wrong(&error))?;
        let state: Self = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
        if state.id.is_empty() || state.id.contains('\n') {
            return Err(wrong(&format_args!(
                "invalid id '{}'",
                state.id.escape_debug()
            )));
        }
        Ok(state)
    }

    /// Reads the container's configuration from its bundle.
    pub fn bundle(&self) -> Result<Bundle, Failure> {
        let path = self.bundle.join("config.json");
        let failed = |why: &dyn std::fmt::Display| {
            Failure::new(format_args!("cannot read {}: {why}", path.display()))
        };
        let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        let config: Config = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        let of_root = |maps: &[Mapping]| {
            let map = maps.iter().find(|map| map.container_id == 0);
            map.map(|map| map.host_id)
        };
        let Linux {
            uid_mappings: users,
            gid_mappings: groups,
        } = &config.linux;
        let root_group = match of_root(users).is_some_and(|user| user != 0) {
            false => None,
            true => Some(of_root(groups).ok_or_else(|| {
                failed(
                    &"the configuration maps user 0 and not group 0: add linux.gidMappings for \
                      group 0",
                )
            })?),
        };
        Ok(Bundle {
            rootfs: self.bundle.join(config.root.path),
            root_group,
        })
    }
}
