//! Tests that groups are removed when kubelet says that no pod uses them.

use crate::rig::{Node, gpu_script, group_of};
use gpulimit_group::pod::Pod;
use gpulimit_programs::world::Session;
use gpulimit_support::wait_until;
use std::fs;
use std::os::unix::net::UnixListener;

fn start(node: &Node, group: &str) -> Session {
    let mut command = node.world.preloaded(gpu_script());
    command.env("GPULIMIT_GROUP", group);
    let mut session = Session::start(command);
    assert_eq!(session.say("start"), "0 0");
    session
}

#[test]
fn groups_are_removed_with_their_pods() {
    let node = Node::with(&[("GPULIMIT_SIM_KILL_LAG_MS", "0")], &["--keep", "0s"]);
    let ids = [node.ids(0, 0..4), node.ids(0, 4..8), node.ids(0, 8..12)];
    let all = [("a", &ids[0][..]), ("b", &ids[1]), ("c", &ids[2])];
    node.kubelet.set_pods(&all);
    let names = ids
        .clone()
        .map(|ids| group_of(&node.kubelet.allocate(&ids).expect("granted")));
    for (name, pod) in names.iter().zip(["a", "b", "c"]) {
        node.plugin
            .says(&format!("{name} belongs to default/{pod}/main"));
        let group = node.world.root().group(name).unwrap();
        let container = Pod::of(&group).expect("written before the message");
        let names = [&container.namespace, &container.pod, &container.container];
        assert_eq!(names, ["default", pod, "main"]);
    }
    let mut program = start(&node, &names[2]);
    program.expect(&[("alloc a 100M", "0")]);
    // According to kubelet, pods b and c have ended. But a program of pod c still runs.
    node.kubelet.set_pods(&all[..1]);
    node.plugin.says(&format!("removed {}", names[1]));
    assert!(!node.has_group(&names[1]));
    assert!(!node.record(&names[1]).exists());
    let views = node.world.root().path().join(".kubernetes");
    assert_eq!(fs::read_dir(&views).unwrap().count(), 2);
    program.expect(&[("alloc b 100M", "0")]);
    assert!(node.has_group(&names[0]) && node.has_group(&names[2]));
    program.end_quietly();
    node.plugin.says(&format!("removed {}", names[2]));
    assert!(node.has_group(&names[0]));
    // The units of a removed allocation can be allocated again.
    assert!(node.kubelet.allocate(&ids[1]).is_ok());
}

#[test]
fn groups_stay_while_kubelet_does_not_answer() {
    let mut node = Node::with(&[], &["--keep", "0s"]);
    node.kubelet.stop();
    fs::remove_file(node.kubelet.pods_socket()).unwrap();
    let edits = node.kubelet.allocate(&node.ids(0, 0..4)).expect("granted");
    let silent = UnixListener::bind(node.kubelet.pods_socket()).expect("a socket");
    // The plugin asks again after it has used the failure.
    for _ in 0..3 {
        drop(silent.accept().expect("a call"));
    }
    assert!(node.has_group(&group_of(&edits)));
    // After kubelet has started, the group is removed.
    node.kubelet.start();
    wait_until("the group is removed", || {
        !node.has_group(&group_of(&edits))
    });
}

#[test]
fn a_group_is_kept_for_a_container_that_has_not_started() {
    let node = Node::with(&[], &[]);
    let edits = node.kubelet.allocate(&node.ids(0, 0..4)).expect("granted");
    let other = node.kubelet.allocate(&node.ids(0, 4..5)).expect("granted");
    // Kubelet's list lacks the first container, because kubelet does not list init containers.
    node.kubelet.set_pods(&[("other", &node.ids(0, 4..5))]);
    node.plugin.says(&format!(
        "{} belongs to default/other/main",
        group_of(&other)
    ));
    assert!(node.has_group(&group_of(&edits)));
}

#[test]
fn a_list_of_pods_without_the_plugins_pod_is_ignored() {
    let node = Node::with(&[], &["--keep", "0s", "--pod", "default/own"]);
    let ids = [node.ids(0, 0..4), node.ids(0, 4..5)];
    let [one, two] = ids.clone().map(|ids| {
        let edits = node.kubelet.allocate(&ids).expect("granted");
        group_of(&edits)
    });
    // A kubelet that cannot reach the API server lists only static pods at first.
    node.has_swept();
    node.kubelet.set_pods(&[("static", &[])]);
    node.has_swept();
    assert!(node.has_group(&one) && node.has_group(&two));
    node.kubelet.set_pods(&[("own", &[]), ("other", &ids[0])]);
    node.plugin.says(&format!("removed {two}"));
    assert!(node.has_group(&one) && !node.has_group(&two));
}

#[test]
fn a_failure_to_remove_is_logged_once() {
    let node = Node::with(&[], &["--keep", "0s"]);
    let ids = [node.ids(0, 0..4), node.ids(0, 4..8)];
    node.kubelet.set_pods(&[("a", &ids[0]), ("b", &ids[1])]);
    let [one, two] = ids.clone().map(|ids| {
        let edits = node.kubelet.allocate(&ids).expect("granted");
        group_of(&edits)
    });
    // A file of another program in the group's directory prevents the removal of the group.
    let foreign = node.group(&one).path().join("theirs\u{1b}[2J");
    fs::write(&foreign, "").expect("written");
    node.kubelet.set_pods(&[]);
    node.plugin.says(&format!("cannot remove {one}: "));
    node.plugin.says(&format!("removed {two}"));
    // Wait for another sweep, which fails to remove the group again.
    let _more = node.kubelet.allocate(&ids[1]).map(|edits| {
        node.plugin.says(&format!("removed {}", group_of(&edits)));
    });
    let said = node.plugin.said();
    let troubles = said.iter().filter(|line| line.contains("cannot remove"));
    assert_eq!(troubles.count(), 1, "{said:?}");
    fs::remove_file(foreign).expect("removed");
    node.plugin.says(&format!("removed {one}"));
}

#[test]
fn the_log_escapes_control_characters() {
    let node = Node::with(&[], &["--keep", "0s"]);
    let evil = "\u{1b}]0;x\u{7}\n\u{9b}2J\u{202e}";
    let ids = node.ids(0, 0..4);
    node.kubelet.set_pods(&[(evil, &ids)]);
    let name = group_of(&node.kubelet.allocate(&ids).expect("granted"));
    node.plugin.says(&format!(
        "{name} belongs to default/\\u001b]0;x\\u0007\\u000a"
    ));
    let refused = node.kubelet.allocate(&[evil.to_owned()]);
    assert!(refused.is_err());
    node.plugin.says("refused: ");
    let said = node.plugin.said();
    let obeyed = |c: char| c.is_control() || c == '\u{202e}';
    assert!(!said.iter().any(|line| line.contains(obeyed)), "{said:?}");
}
