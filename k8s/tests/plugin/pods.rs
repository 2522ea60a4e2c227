//! What is removed when kubelet says that no pod has it, and what stays.

use crate::rig::{Node, gpu_script, group_of};
use gpulimit_programs::world::{Session, eventually};
use std::fs;

fn start(node: &Node, group: &str) -> Session {
    let mut command = node.world.preloaded(gpu_script());
    command.env("GPULIMIT_GROUP", group);
    let mut session = Session::start(command);
    assert_eq!(session.say("start"), "0 0");
    session
}

#[test]
fn groups_go_with_their_pods() {
    let node = Node::with(&[("GPULIMIT_SIM_KILL_LAG_MS", "0")], &["--keep", "0s"]);
    let ids = [node.ids(0, 0..4), node.ids(0, 4..8), node.ids(0, 8..12)];
    let all = [("a", &ids[0][..]), ("b", &ids[1]), ("c", &ids[2])];
    node.kubelet.set_pods(&all);
    let names = ids
        .clone()
        .map(|ids| group_of(&node.kubelet.allocate(&ids).expect("granted")));
    for (name, pod) in names.iter().zip(["a", "b", "c"]) {
        node.plugin.says(&format!("{name}: has default/{pod}/main"));
    }
    let mut program = start(&node, &names[2]);
    program.expect(&[("alloc a 100M", "0")]);
    // b and c have ended, as kubelet says; a program of c's has not.
    node.kubelet.set_pods(&all[..1]);
    node.plugin.says(&format!("{}: removed", names[1]));
    assert!(!node.has_group(&names[1]));
    assert!(!node.record(&names[1]).exists());
    let views = node.world.root().path().join(".kubernetes");
    assert_eq!(fs::read_dir(&views).unwrap().count(), 2);
    program.expect(&[("alloc b 100M", "0")]);
    assert!(node.has_group(&names[0]) && node.has_group(&names[2]));
    program.end_quietly();
    node.plugin.says(&format!("{}: removed", names[2]));
    assert!(node.has_group(&names[0]));
    // Units of an allocation that is gone are given out as any others.
    assert!(node.kubelet.allocate(&ids[1]).is_ok());
}

#[test]
fn without_kubelets_word_nothing_is_removed() {
    let mut node = Node::with(&[], &["--keep", "0s"]);
    node.kubelet.stop();
    fs::remove_file(node.kubelet.pods_socket()).unwrap();
    let _kept = node.kubelet.folder().join("gpulimit.sock");
    let edits = node.kubelet.allocate(&node.ids(0, 0..4)).expect("granted");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(node.has_group(&group_of(&edits)));
    // Only with it.
    node.kubelet.start();
    assert!(eventually(|| !node.has_group(&group_of(&edits))));
}

#[test]
fn a_container_that_has_not_started_keeps_its_group_for_a_time() {
    let node = Node::with(&[], &[]);
    let edits = node.kubelet.allocate(&node.ids(0, 0..4)).expect("granted");
    let other = node.kubelet.allocate(&node.ids(0, 4..5)).expect("granted");
    // As of an init container, of which kubelet does not tell.
    node.kubelet.set_pods(&[("other", &node.ids(0, 4..5))]);
    node.plugin
        .says(&format!("{}: has default/other/main", group_of(&other)));
    assert!(node.has_group(&group_of(&edits)));
}

#[test]
fn a_kubelet_that_does_not_know_us_yet_knows_nobody() {
    let node = Node::with(&[], &["--keep", "0s", "--pod", "default/own"]);
    let ids = [node.ids(0, 0..4), node.ids(0, 4..5)];
    let [one, two] = ids.clone().map(|ids| {
        let edits = node.kubelet.allocate(&ids).expect("granted");
        group_of(&edits)
    });
    // As after its start without the API server: it runs, and lists no pods but those of files.
    std::thread::sleep(std::time::Duration::from_secs(1));
    node.kubelet.set_pods(&[("static", &[])]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(node.has_group(&one) && node.has_group(&two));
    node.kubelet.set_pods(&[("own", &[]), ("other", &ids[0])]);
    node.plugin.says(&format!("{two}: removed"));
    assert!(node.has_group(&one) && !node.has_group(&two));
}
