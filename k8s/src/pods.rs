//! Which units pods have now, as kubelet says.

use crate::api::{self, Empty, PodList};
use crate::grpc::{self, Status};
use crate::units::Unit;
use std::collections::BTreeMap;
use std::path::Path;

/// The units of a resource that containers have, with `namespace/pod/container`. Not those of init containers, of which kubelet does not tell.
pub async fn owners(socket: &Path, resource: &str) -> Result<BTreeMap<Unit, String>, Status> {
    let list: PodList = grpc::call(socket, api::LIST_PODS, &Empty {}).await?;
    let mut owners = BTreeMap::new();
    for pod in &list.pods {
        for container in &pod.containers {
            let devices = container.devices.iter();
            let ours = devices.filter(|devices| devices.resource == resource);
            for unit in ours.flat_map(|devices| &devices.ids) {
                if let Some(unit) = Unit::read(unit) {
                    let owner = format!("{}/{}/{}", pod.namespace, pod.name, container.name);
                    owners.insert(unit, owner);
                }
            }
        }
    }
    Ok(owners)
}
