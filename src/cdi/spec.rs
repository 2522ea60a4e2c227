//! The file, in the words of the Container Device Interface.

use crate::failure::Failure;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The first version in which a device's name may begin with a digit.
const WITH_DIGITS: &str = "0.5.0";
/// The first version.
const OLDEST: &str = "0.3.0";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    cdi_version: &'static str,
    kind: &'a str,
    container_edits: Edits,
    devices: Vec<Device<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device<'a> {
    name: &'a str,
    container_edits: Edits,
}

/// What is changed in a container.
#[derive(Serialize)]
pub struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    pub hooks: Vec<Hook>,
}

impl Edits {
    /// Nothing but these.
    pub fn hooks(hooks: Vec<Hook>) -> Self {
        Self {
            mounts: Vec::new(),
            hooks,
        }
    }
}

/// A file or directory of the host in containers.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    host_path: PathBuf,
    container_path: &'static str,
    options: [&'static str; 4],
}

impl Mount {
    /// One that cannot be written there.
    pub fn read_only(host: &Path, container: &'static str) -> Self {
        Self {
            host_path: host.into(),
            container_path: container,
            options: ["rbind", "ro", "nosuid", "nodev"],
        }
    }
}

/// A command that the runtime runs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    hook_name: &'static str,
    path: PathBuf,
    args: Vec<String>,
}

impl Hook {
    /// This program at this stage.
    pub fn new<'a>(
        stage: &'static str,
        program: &Path,
        arguments: impl Iterator<Item = &'a str>,
    ) -> Self {
        Self {
            hook_name: stage,
            path: program.into(),
            args: arguments.map(str::to_owned).collect(),
        }
    }
}

/// The file's text: in the lowest version that allows these names, for the oldest engines. `edits`
/// are made for each device.
pub fn write<'a>(
    kind: &str,
    devices: impl Iterator<Item = (&'a str, Edits)>,
    edits: Edits,
) -> Result<String, Failure> {
    let devices: Vec<_> = devices
        .map(|(name, container_edits)| Device {
            name,
            container_edits,
        })
        .collect();
    let digit = |device: &Device<'_>| device.name.starts_with(|c: char| c.is_ascii_digit());
    let spec = Spec {
        cdi_version: if devices.iter().any(digit) {
            WITH_DIGITS
        } else {
            OLDEST
        },
        kind,
        container_edits: edits,
        devices,
    };
    serde_json::to_string_pretty(&spec)
        .map(|text| text + "\n")
        .map_err(|error| Failure::new(format_args!("cannot write a path that is no text: {error}")))
}
