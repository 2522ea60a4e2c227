//! Registration, the list of units, restarts of kubelet and the plugin, and the plugin's end.

use crate::rig::{Node, UNITS};
use gpulimit_k8s::api::{Device, Empty, LONGEST_ID, Options};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;

fn of_card<'a>(devices: &'a [Device], card: &str) -> Vec<&'a Device> {
    let is = |device: &&Device| device.id.starts_with(&format!("{card}::"));
    devices.iter().filter(is).collect()
}

fn all_are(devices: &[Device], health: &str) -> bool {
    devices.iter().all(|device| device.health == health)
}

#[test]
fn the_plugin_registers_and_lists_the_memory_of_each_gpu() {
    let node = Node::new();
    let request = node.kubelet.books().registered[0].clone();
    assert_eq!(
        (&*request.version, &*request.endpoint, &*request.resource),
        ("v1beta1", "gpulimit.sock", "gpulimit.dev/gpu-memory")
    );
    let wishes = Options {
        pre_start_required: false,
        preference_available: true,
    };
    assert_eq!(request.options, Some(wishes));
    let options = node
        .kubelet
        .call(async |plugin| plugin.get_device_plugin_options(Empty {}).await);
    assert_eq!(options.expect("options"), wishes);

    let devices = node.kubelet.watch().next().expect("a list");
    assert_eq!(devices.len(), 2 * UNITS);
    for gpu in node.world.machine().gpus() {
        assert_eq!(of_card(&devices, &gpu.uuid).len(), UNITS);
    }
    assert!(all_are(&devices, "Healthy"));
    assert!(devices.iter().all(|device| device.id.len() <= LONGEST_ID));
    let ids: BTreeSet<&str> = devices.iter().map(|device| &*device.id).collect();
    assert_eq!(ids.len(), devices.len());
}

#[test]
fn reserved_memory_is_not_listed() {
    let knobs = [("GPULIMIT_SIM_CAPACITY", "17179869184")];
    for (arguments, expected) in [
        (&["--reserve", "1Gi"][..], 15),
        (&["--unit", "512Mi"], 32),
        (&["--unit", "3Gi", "--resource", "example.com/slice"], 5),
    ] {
        let node = Node::with(&knobs, arguments);
        let devices = node.kubelet.watch().next().expect("a list");
        assert_eq!(devices.len(), expected, "{arguments:?}");
        let resource = node.kubelet.books().registered[0].resource.clone();
        assert_eq!(resource.contains("slice"), arguments.len() == 4);
    }
}

#[test]
fn a_split_gpu_is_listed_by_its_mig_instances() {
    let node = Node::with(&[("GPULIMIT_SIM_MIG", "2")], &[]);
    let devices = node.kubelet.watch().next().expect("a list");
    let instances = node.world.machine().gpus();
    assert_eq!(instances.len(), 2);
    for instance in instances {
        assert!(instance.uuid.starts_with("MIG-"));
        assert_eq!(of_card(&devices, &instance.uuid).len(), UNITS / 2);
    }
    assert_eq!(devices.len(), 2 * (UNITS / 2));
}

#[test]
fn kubelet_may_start_later_and_first_refuse() {
    let mut node = Node::before_kubelet(&[], &[]);
    node.plugin.says("waiting for kubelet");
    node.plugin
        .says("pods.sock: Unavailable: No such file or directory (os error 2)");
    let said = node.plugin.said();
    let vague = said.iter().any(|line| line.contains("transport error"));
    assert!(!vague, "{said:?}");
    node.kubelet.books().refuses = true;
    node.kubelet.start();
    node.plugin
        .says("cannot register gpulimit.dev/gpu-memory with kubelet: Unknown: test refusal: 100 %");
    assert!(node.kubelet.books().registered.is_empty());
    node.kubelet.books().refuses = false;
    node.registrations(1);
    assert_eq!(node.kubelet.watch().next().expect("a list").len(), UNITS);
}

#[test]
fn the_plugin_registers_again_after_a_restart_of_kubelet() {
    let mut node = Node::new();
    for count in 2..5 {
        let mut stream = node.kubelet.watch();
        stream.next().expect("a list");
        // A restart of kubelet also removes the plugin's socket.
        node.kubelet.start();
        node.registrations(count);
        let devices = node.kubelet.watch().next().expect("a list");
        assert_eq!(devices.len(), 2 * UNITS);
        assert!(node.kubelet.allocate(&node.ids(0, 0..1)).is_ok());
    }
}

#[test]
fn the_plugin_registers_again_if_kubelet_does_not_listen() {
    let node = Node::with(&[("GPULIMIT_DEBUG_LISTENS_MS", "0")], &[]);
    // Kubelet has not asked for the list of units, so the plugin registers again.
    node.registrations(2);
    let mut stream = node.kubelet.watch();
    stream.next().expect("a list");
    node.has_swept();
    // A kubelet that listens to the list of units gets no further registration.
    let before = node.kubelet.books().registered.len();
    node.has_swept();
    assert_eq!(node.kubelet.books().registered.len(), before);
    // Kubelet hangs up, so the plugin registers again.
    drop(stream);
    node.registrations(before + 1);
}

#[test]
fn a_removed_socket_of_the_plugin_is_made_again() {
    let node = Node::new();
    let _stream = node.kubelet.watch();
    fs::remove_file(node.kubelet.folder().join("gpulimit.sock")).expect("removed");
    node.registrations(2);
    assert!(node.kubelet.watch().next().is_some());
}

#[test]
fn a_signal_ends_the_plugin_and_removes_its_socket() {
    let mut node = Node::new();
    let socket = node.kubelet.folder().join("gpulimit.sock");
    let mut stream = node.kubelet.watch();
    stream.next().expect("a list");
    let edits = node.kubelet.allocate(&node.ids(0, 0..4)).expect("granted");
    assert!(socket.exists());
    assert!(node.plugin.terminate().success());
    assert!(!socket.exists());
    assert!(stream.next().is_none());
    // Groups stay after the plugin's end.
    assert!(node.has_group(&crate::rig::group_of(&edits)));
    // A killed plugin leaves its socket, and the next plugin replaces it.
    node.replace_plugin();
    node.plugin.kill();
    assert!(socket.exists());
    node.replace_plugin();
    assert!(node.kubelet.watch().next().is_some());
}

/// A signal must end the plugin within ten seconds. Kubelet's answer may take twenty seconds.
#[test]
fn a_signal_ends_the_plugin_while_kubelet_hangs() {
    for name in ["kubelet.sock", "pods.sock"] {
        let mut node = Node::before_kubelet(&[], &[]);
        if name == "pods.sock" {
            node.kubelet.start();
            node.registrations(1);
            fs::remove_file(node.kubelet.folder().join(name)).expect("removed");
            node.plugin.says("cannot list kubelet's pods");
        }
        let socket = UnixListener::bind(node.kubelet.folder().join(name)).expect("a socket");
        // The plugin has called kubelet, which does not answer.
        let _asked = socket.accept().expect("a call");
        assert!(node.plugin.terminate().success());
        let said = node.plugin.said();
        assert!(
            !said
                .iter()
                .any(|line| line.contains("did not answer in time")),
            "{said:?}"
        );
    }
}

#[test]
fn a_lost_gpu_is_reported_unhealthy() {
    let node = Node::new();
    let mut stream = node.kubelet.watch();
    assert!(all_are(&stream.next().expect("a list"), "Healthy"));
    // NVML_ERROR_GPU_IS_LOST
    let machine = node.world.machine();
    machine.knob("fail", "nvmlDeviceGetMemoryInfo_v2:15");
    let devices = stream.next().expect("a list");
    assert_eq!(devices.len(), 2 * UNITS);
    assert!(all_are(&devices, "Unhealthy"));
    machine.knob("fail", "none");
    assert!(all_are(&stream.next().expect("a list"), "Healthy"));
}

#[test]
fn the_plugin_reports_that_no_gpu_fits() {
    for (knobs, says) in [
        (
            &[("GPULIMIT_SIM_GPUS", "0")][..],
            "no GPU has room for a unit",
        ),
        (
            &[("GPULIMIT_SIM_FAIL", "nvmlInit_v2:9")],
            "cannot find GPUs: NVML",
        ),
        (&[("GPULIMIT_SIM_CAPACITY", "1000000000")], "smaller --unit"),
    ] {
        let mut node = Node::before_kubelet(knobs, &[]);
        assert_eq!(node.plugin.wait().code(), Some(1));
        node.plugin.says(says);
    }
    let mut node = Node::before_kubelet(&[], &["--unit", "1K"]);
    assert_eq!(node.plugin.wait().code(), Some(1));
    node.plugin.says("larger --unit");
}
