//! Asks kubelet which units its pods have.

use crate::api::Empty;
use crate::api::pod_resources_lister_client::PodResourcesListerClient;
use crate::grpc;
use crate::units::Unit;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The answer of kubelet.
pub struct Pods {
    /// The units in kubelet's list, each with its container, `namespace/pod/container`. Kubelet
    /// does not list init containers.
    pub owners: BTreeMap<Unit, String>,
    /// The names of all pods that kubelet lists, `namespace/pod`, with or without units.
    pub names: BTreeSet<String>,
}

/// Asks kubelet for its pods, and for their units of a resource.
pub async fn list(socket: &Path, resource: &str) -> Result<Pods, String> {
    let list = grpc::ask(socket, async |kubelet| {
        PodResourcesListerClient::new(kubelet).list(Empty {}).await
    });
    let list = list.await?;
    let mut pods = Pods {
        owners: BTreeMap::new(),
        names: BTreeSet::new(),
    };
    for pod in &list.pods {
        let name = format!("{}/{}", pod.namespace, pod.name);
        for container in &pod.containers {
            let devices = container.devices.iter();
            let matching = devices.filter(|devices| devices.resource == resource);
            let units = matching.flat_map(|devices| &devices.ids);
            for unit in units.filter_map(|id| Unit::read(id)) {
                let owner = format!("{name}/{}", container.name);
                pods.owners.insert(unit, owner);
            }
        }
        pods.names.insert(name);
    }
    Ok(pods)
}
