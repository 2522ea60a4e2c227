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
        node.plugin
            .says(&format!("{name} belongs to default/{pod}/main"));
    }
    let mut program = start(&node, &names[2]);
    program.expect(&[("alloc a 100M", "0")]);
    // b and c have ended, as kubelet says; a program of c's has not.
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
    node.plugin.says(&format!(
        "{} belongs to default/other/main",
        group_of(&other)
    ));
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
    node.plugin.says(&format!("removed {two}"));
    assert!(node.has_group(&one) && !node.has_group(&two));
}

#[test]
fn what_cannot_be_removed_is_said_once() {
    let node = Node::with(&[], &["--keep", "0s"]);
    let ids = [node.ids(0, 0..4), node.ids(0, 4..8)];
    let [one, two] = ids.clone().map(|ids| {
        let edits = node.kubelet.allocate(&ids).expect("granted");
        group_of(&edits)
    });
    // What no removal of a group takes away.
    let foreign = node.group(&one).path().join("theirs\u{1b}[2J");
    fs::write(&foreign, "").expect("written");
    node.kubelet.set_pods(&[]);
    node.plugin.says(&format!("cannot remove {one}: "));
    node.plugin.says(&format!("removed {two}"));
    // Sweeps enough to say it again.
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
fn nothing_in_the_log_is_obeyed_by_a_terminal() {
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
