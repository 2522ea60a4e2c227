//! The hooks of containers, while users of containers keep files of their groups in use.

use crate::{Ground, Guarded, run};
use gpulimit_group::Root;
use gpulimit_support::wait_until;
use serde_json::json;
use std::fs;
use std::process::Command;

/// Starts the first process of a container.
fn init() -> Guarded {
    Guarded::start(Command::new("sleep").arg("600"))
}

/// Returns the hook, with the state of a container on its standard input.
pub fn hook(ground: &Ground, arguments: &[&str], id: &str, pid: u32) -> Command {
    let bundle = ground.at("bundle");
    let state = json!({
        "ociVersion": "1.0.2",
        "id": id,
        "pid": pid,
        "status": "creating",
        "bundle": bundle,
    });
    let path = ground.write(&format!("{id}.json"), state.to_string(), 0, 0o600);
    let mut command = ground.gpulimit(&["oci-hook"]);
    command
        .args(arguments)
        .stdin(fs::File::open(path).expect("opened"));
    command
}

/// Waits until a process sleeps on a timer.
fn await_sleep(process: &mut Guarded) {
    let wchan = format!("/proc/{}/wchan", process.id());
    wait_until("the process sleeps", || {
        assert!(process.lives(), "it does not wait");
        fs::read_to_string(&wchan).is_ok_and(|name| name.contains("nanosleep"))
    });
}

/// A program of the container has passed a descriptor of the lock of the container's group to a
/// process outside.
#[test]
fn a_group_kept_in_use_blocks_no_other_container() {
    let Some(ground) = Ground::new() else { return };
    ground.make("groups", 0, 0o755);
    ground.make("bundle", 0, 0o755);
    let config = json!({ "root": { "path": "rootfs" } });
    ground.write("bundle/config.json", config.to_string(), 0, 0o644);
    let create = ["create", "--cap", "1G"];
    let (hers, other) = (init(), init());
    let made = run(&mut hook(&ground, &create, "hers", hers.id()));
    assert_eq!(made, (Some(0), String::new()));
    let root = Root::at(ground.at("groups")).expect("a root");
    let kept = root.group("container-hers").expect("there").hold();
    let kept = kept.expect("held");
    drop(hers);
    let mut removal = Guarded::start(&mut hook(&ground, &["remove"], "hers", 0));
    await_sleep(&mut removal);
    let (status, said) = run(&mut hook(&ground, &create, "other", other.id()));
    assert_eq!(status, Some(0), "{said}");
    assert!(
        removal.lives(),
        "the removal ended before the other container came"
    );
    drop(kept);
    assert!(removal.ended().success());
    let groups = root.groups().expect("listed");
    let names: Vec<_> = groups.iter().map(|group| group.name()).collect();
    assert_eq!(names, ["container-other"]);
}
