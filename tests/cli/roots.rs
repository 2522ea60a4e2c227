//! The system's root and a user's own, side by side.

use crate::place::text;
use crate::user::Machine;
use std::process::Command;

/// Runs a script on a machine whose `/run` and `/dev/shm` are empty; `alice` in it is the controller as another user.
fn on_empty_machine(machine: &Machine, script: &str) -> Option<(String, String)> {
    let tried = Command::new("unshare").args(["--mount", "true"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no mount namespaces here");
        return None;
    }
    let program = machine.program.display();
    let script = format!(
        "set -e
        mount -t tmpfs -o mode=755 tmpfs /run
        mount -t tmpfs -o mode=1777 tmpfs /dev/shm
        admin() {{ {program} \"$@\"; }}
        alice() {{ setpriv --reuid 65533 --regid 65533 --clear-groups {program} \"$@\"; }}
        {script}"
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .env_remove("GPULIMIT_ROOT")
        .env_remove("GPULIMIT_GROUP")
        .env("GPULIMIT_LIBRARY", machine.place.0.join("libgpulimit.so"))
        .output()
        .expect("started");
    assert!(output.status.success(), "{output:?}");
    Some((text(&output.stdout), text(&output.stderr)))
}

#[test]
fn both_are_listed_and_the_system_is_first() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let script = "
        mkdir -m 755 /run/gpulimit
        admin create lab max=8G >&2
        admin create lab/alice --owner 65533 >&2
        alice create mine max=1G >&2
        alice create lab/alice/job >&2
        GPULIMIT_ROOT=/dev/shm/gpulimit-65533 alice create lab max=1G >&2
        alice ls
        alice get lab max
        alice ps
        alice show --json
        alice run --group lab/alice --max 1G -- sh -c 'echo $GPULIMIT_ROOT'
        alice run --max 1G -- sh -c 'echo $GPULIMIT_ROOT'
        alice rm lab/alice/job mine
        alice ls";
    let Some((out, _)) = on_empty_machine(&machine, script) else {
        return;
    };
    let (list, rest) = out.split_once("8GiB\n").expect("a limit");
    assert_eq!(
        list,
        "lab\nlab/alice\nlab/alice/job\nlab (/dev/shm/gpulimit-65533)\nmine\n"
    );
    let (json, rest) = rest.split_once("\n}\n").expect("JSON");
    let json: serde_json::Value = serde_json::from_str(&format!("{json}}}")).expect("JSON");
    assert_eq!(json["root"], "/dev/shm/gpulimit-65533");
    let of = |at: usize| (&json["groups"][at]["name"], &json["groups"][at]["root"]);
    assert_eq!(of(0), (&"lab".into(), &"/run/gpulimit".into()));
    assert_eq!(of(3), (&"lab".into(), &"/dev/shm/gpulimit-65533".into()));
    assert_eq!(
        rest,
        "/run/gpulimit\n/dev/shm/gpulimit-65533\nlab\nlab/alice\nlab (/dev/shm/gpulimit-65533)\n"
    );
}

#[test]
fn without_an_administrators_root_there_is_one() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let script = "
        alice create mine max=1G
        alice ls --json";
    let Some((out, _)) = on_empty_machine(&machine, script) else {
        return;
    };
    let (said, json) = out.split_once('\n').expect("lines");
    assert_eq!(said, "mine: created, max 1GiB");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(json["groups"][0]["root"], "/dev/shm/gpulimit-65533");
}
