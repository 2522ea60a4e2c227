//! Tests that the plugin's messages have kubelet's encoding. Google's protobuf wrote the expected
//! bytes, from `api.proto` of Kubernetes 1.37.

use gpulimit_k8s::api::{
    AllocateRequest, AllocateResponse, CdiDevice, Choice, Container, ContainerDevices, Device,
    DeviceList, Edits, Mount, Options, Pod, PodList, PreStartRequest, PreferenceRequest,
    PreferenceResponse, RegisterRequest, Units,
};
use prost::Message;
use std::collections::HashMap;
use std::fmt::{Debug, Write};

pub fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn hex(message: &impl Message) -> String {
    let mut text = String::new();
    for byte in message.encode_to_vec() {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

/// Checks that the plugin reads kubelet's bytes, and writes the same bytes.
#[track_caller]
fn same<M: Message + Default + Debug + PartialEq>(message: &M, wire: &str) {
    assert_eq!(M::decode(&bytes(wire)[..]).as_ref(), Ok(message));
    assert_eq!(hex(message), wire);
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).into()).collect()
}

fn units(ids: &[&str]) -> Units {
    Units { ids: texts(ids) }
}

#[test]
fn registration() {
    let message = RegisterRequest {
        version: "v1beta1".into(),
        endpoint: "gpulimit.sock".into(),
        resource: "gpulimit.dev/gpu-memory".into(),
        options: Some(Options {
            pre_start_required: false,
            preference_available: true,
        }),
    };
    same(&message, REGISTER);
    let message = Options {
        pre_start_required: true,
        preference_available: false,
    };
    same(&message, OPTIONS_PRE);
}

#[test]
fn lists() {
    let device = |id: &str, health: &str| Device {
        id: id.into(),
        health: health.into(),
    };
    let devices = vec![
        device("GPU-a::0", "Healthy"),
        device("GPU-a::1", "Unhealthy"),
    ];
    same(&DeviceList { devices }, LIST);
    // The plugin ignores fields of newer versions of kubelet.
    let list = DeviceList::decode(&bytes(LIST_WITH_TOPOLOGY)[..]).expect("read");
    assert_eq!(list.devices, [device("x", "Healthy")]);
}

#[test]
fn preferences() {
    let choice = Choice {
        available: texts(&["a", "b", "c"]),
        must_include: texts(&["b"]),
        size: 2,
    };
    let containers = vec![choice];
    same(&PreferenceRequest { containers }, PREFER);
    let containers = vec![units(&["b", "a"])];
    same(&PreferenceResponse { containers }, PREFERRED);
}

#[test]
fn allocations() {
    let containers = vec![units(&["a", "b"]), units(&["c"])];
    same(&AllocateRequest { containers }, ALLOCATE);
    let edits = Edits {
        variables: HashMap::from([("K".into(), "V".into())]),
        mounts: vec![Mount {
            container_path: "/in".into(),
            host_path: "/out".into(),
            read_only: true,
        }],
        cdi: vec![CdiDevice {
            name: "nvidia.com/gpu=0".into(),
        }],
    };
    let containers = vec![edits];
    same(&AllocateResponse { containers }, ALLOCATED);
    let ids = texts(&["a"]);
    same(&PreStartRequest { ids }, PRE_START);
}

#[test]
fn pods() {
    let container = Container {
        name: "main".into(),
        devices: vec![ContainerDevices {
            resource: "gpulimit.dev/gpu-memory".into(),
            ids: texts(&["a", "b"]),
        }],
    };
    let pod = Pod {
        name: "train-0".into(),
        namespace: "default".into(),
        containers: vec![container],
    };
    // The bytes also contain processors, memory and topology, which the plugin ignores.
    let list = PodList::decode(&bytes(PODS)[..]).expect("read");
    assert_eq!(list.pods, [pod]);
}

const REGISTER: &str = "0a0776316265746131120d6770756c696d69742e736f636b1a176770756c696d69742e64\
     65762f6770752d6d656d6f727922021001";
const OPTIONS_PRE: &str = "0801";
const LIST: &str =
    "0a130a084750552d613a3a3012074865616c7468790a150a084750552d613a3a311209556e6865616c746879";
const LIST_WITH_TOPOLOGY: &str = "0a120a017812074865616c7468791a040a020801";
const PREFER: &str = "0a0e0a01610a01620a01631201621802";
const PREFERRED: &str = "0a060a01620a0161";
const ALLOCATE: &str = "0a060a01610a01620a030a0163";
const ALLOCATED: &str =
    "0a2b0a060a014b120156120d0a032f696e12042f6f757418012a120a106e76696469612e636f6d2f6770753d30";
const PRE_START: &str = "0a0161";
const PODS: &str = "0a540a07747261696e2d30120764656661756c741a3c0a046d61696e12250a176770756c\
     696d69742e6465762f6770752d6d656d6f72791201611201621a040a0208011a0103220a\
     0a066d656d6f7279100522020102";
