//! `gpulimit serve --machines`: the state of several machines, by a stand-in for ssh.

#[path = "../groups/ssh.rs"]
mod ssh;

use super::rig::{GIB, Rig, Server};
use gpulimit_base::units::Size;
use gpulimit_support::{eventually, finish};

#[test]
fn the_state_is_that_of_the_machines() {
    let (own, other) = (Rig::new(), Rig::new());
    own.group("lab", Size::Bytes(8 * GIB));
    other.group("night", Size::Max);
    let _member = other.member("night", GIB);
    let at = |rig: &Rig| {
        let program = env!("CARGO_BIN_EXE_gpulimit");
        let root = rig.world.root().path().display().to_string();
        format!("shift; GPULIMIT_ROOT={root} exec {program} \"$@\"")
    };
    let folder = own.world.file("ssh-folder");
    std::fs::create_dir(&folder).expect("made");
    let path = ssh::path(&folder, &[("lab1", at(&own)), ("lab2", at(&other))]);
    let mut command = own.gpulimit(&["serve", "--machines", "lab2,gone,lab1,lab2"]);
    command.args(["--listen", &format!("unix:{}", own.socket().display())]);
    command.env("PATH", path);
    let mut server = Server::start(command);
    let state = server.until(|state| state["groups"].as_array().is_some_and(|it| it.len() == 2));
    let mut described = state.clone();
    let keys = described.as_object_mut().expect("an object");
    keys.retain(|key, _| !["version", "public", "machines"].contains(&&**key));
    super::schema::check("top", &described);
    for (at, machine, name) in [(0, "lab2", "night"), (1, "lab1", "lab")] {
        assert_eq!(state["groups"][at]["machine"], machine);
        assert_eq!(state["groups"][at]["name"], name);
    }
    assert_eq!(state["processes"][0]["machine"], "lab2");
    assert_eq!(state["gpus"][0]["machine"], "lab2");
    let lost =
        |why: &serde_json::Value| why["machines"]["gone"] == "not reached: Connection refused";
    let state = server.until(lost);
    assert!(state["machines"]["lab1"].is_null(), "{state}");
    // The metrics are those of this machine.
    let metrics = server.place.metrics();
    assert!(
        metrics.contains("group=\"lab\"") && !metrics.contains("night"),
        "{metrics}"
    );
    assert_eq!(ssh::count(&folder).1, 2);
    server.end(15);
    assert!(
        eventually(|| ssh::count(&folder).1 == 0),
        "a command is left"
    );
}

#[test]
fn machines_are_not_shown_to_everybody() {
    let arguments = ["serve", "--public", "--machines", "lab1"];
    let output = finish(&mut Rig::new().gpulimit(&arguments));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot be used with"), "{said}");
}
