//! The hooks of containers, while users of containers keep files of their groups in use.

use crate::{Ground, PATIENCE, run};
use gpulimit_group::Root;
use serde_json::json;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The first process of a container, which ends when the value is dropped.
struct Init(Child);

impl Init {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().expect("started"))
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the hook, with the state of a container on its standard input.
fn hook(ground: &Ground, arguments: &[&str], id: &str, pid: u32) -> Command {
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
fn await_sleep(child: &mut Child) {
    let start = Instant::now();
    let wchan = format!("/proc/{}/wchan", child.id());
    while !fs::read_to_string(&wchan).is_ok_and(|name| name.contains("nanosleep")) {
        assert!(
            child.try_wait().expect("asked").is_none(),
            "it does not wait"
        );
        assert!(start.elapsed() < PATIENCE, "it never waits");
        thread::sleep(Duration::from_millis(1));
    }
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
    let (mut hers, other) = (Init::start(), Init::start());
    let made = run(&mut hook(&ground, &create, "hers", hers.0.id()));
    assert_eq!(made, (Some(0), String::new()));
    let root = Root::at(ground.at("groups")).expect("a root");
    let kept = root.group("container-hers").expect("there").hold();
    let kept = kept.expect("held");
    hers.end();
    let mut removal = hook(&ground, &["remove"], "hers", 0);
    removal.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut removal = removal.spawn().expect("started");
    await_sleep(&mut removal);
    let (status, said) = run(&mut hook(&ground, &create, "other", other.0.id()));
    assert_eq!(status, Some(0), "{said}");
    assert!(
        removal.try_wait().expect("asked").is_none(),
        "the removal ended before the other container came"
    );
    drop(kept);
    let removed = removal.wait_with_output().expect("ended");
    assert!(removed.status.success(), "{removed:?}");
    let groups = root.groups().expect("listed");
    let names: Vec<_> = groups.iter().map(|group| group.name()).collect();
    assert_eq!(names, ["container-other"]);
}
