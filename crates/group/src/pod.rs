//! The container for which the device plugin of Kubernetes has made a group.

use super::Group;
use gpulimit_base::text_file;
use std::path::{Path, PathBuf};

/// The directory in a root of groups that contains the containers' views of their groups. Groups
/// cannot have this name.
pub const VIEWS: &str = ".kubernetes";

/// The beginning of the names of containers' groups.
const PREFIX: &str = "k8s-";

/// The file in a view that names its container, as `NAMESPACE/POD/CONTAINER`.
const FILE: &str = ".pod";
/// The longest content of the file. Names of Kubernetes have at most 253 bytes each.
const LONGEST: u64 = 3 * 256;

/// A container of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pod {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The name of the container.
    pub container: String,
}

impl Pod {
    /// Returns the container that a group was made for; `None` for other groups, and if kubelet has
    /// not named the container yet.
    pub fn of(group: &Group) -> Option<Self> {
        // The groups of containers are at the top.
        if group.name().contains('/') || !group.name().starts_with(PREFIX) {
            return None;
        }
        let path = Self::file(&group.root().join(VIEWS).join(group.name()));
        let text = String::from_utf8(text_file::read(&path, LONGEST).ok()?).ok()?;
        let mut parts = text.trim_end().splitn(3, '/').map(str::to_owned);
        Some(Self {
            namespace: parts.next()?,
            pod: parts.next()?,
            container: parts.next()?,
        })
    }

    /// Returns the path of the file that names the container of a view.
    pub fn file(view: &Path) -> PathBuf {
        view.join(FILE)
    }
}
