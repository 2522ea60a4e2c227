//! Uses Google's gRPC implementation for Python as kubelet. In the other tests, both sides use
//! tonic.

use crate::rig::{Node, UNITS, cached, group_of};
use gpulimit_k8s::api::{
    AllocateRequest, AllocateResponse, DeviceList, Options, RegisterRequest, Units,
};
use gpulimit_support::{repository, text};
use prost::Message;
use std::collections::HashMap;
use std::process::Command;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decoded<M: Message + Default>(answers: &HashMap<&str, &str>, name: &str) -> M {
    M::decode(&crate::wire::bytes(answers[name])[..]).expect(name)
}

#[test]
fn another_grpc_implementation_gets_the_same_answers() {
    let Some(modules) = cached("grpcio") else {
        return;
    };
    let node = Node::before_kubelet(&[("GPULIMIT_SIM_GPUS", "16")], &[]);
    let request = |ids: Vec<String>| {
        let containers = vec![Units { ids }];
        hex(&AllocateRequest { containers }.encode_to_vec())
    };
    let output = Command::new("python3")
        .arg(repository().join("k8s/tests/plugin/peer.py"))
        .arg(node.kubelet.folder())
        .arg(request(node.ids(0, 0..4)))
        .arg(request([node.ids(0, 4..5), node.ids(1, 0..1)].concat()))
        .env("PYTHONPATH", modules)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3");
    assert!(
        output.status.success(),
        "{output:?} {:?}",
        node.plugin.said()
    );
    let said = text(&output.stdout);
    let answers: HashMap<&str, &str> = said
        .lines()
        .map(|line| line.split_once(' ').unwrap_or((line, "")))
        .collect();
    let registered: RegisterRequest = decoded(&answers, "Register");
    assert_eq!(registered.endpoint, "gpulimit.sock");
    let wishes: Options = decoded(&answers, "GetDevicePluginOptions");
    assert_eq!(registered.options, Some(wishes));
    // The list has 70 KiB, which is more than an HTTP/2 window holds.
    let list: DeviceList = decoded(&answers, "ListAndWatch");
    assert_eq!(list.devices.len(), 16 * UNITS);
    let allocated: AllocateResponse = decoded(&answers, "Allocate");
    assert!(node.has_group(&group_of(&allocated.containers[0])));
    let refused = answers["Refused"];
    assert!(
        refused.starts_with("RESOURCE_EXHAUSTED a container's memory must be on one GPU"),
        "{refused}"
    );
    assert!(answers["Unknown"].starts_with("UNIMPLEMENTED"), "{said}");
    assert_eq!(answers["PreStartContainer"], "");
}
