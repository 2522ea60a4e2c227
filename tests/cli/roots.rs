//! The system's root and a user's own root, side by side.

use crate::place::{Place, may_mount, text};
use crate::user::Machine;
use gpulimit_support::{clean, finish};
use std::process::Command;

/// Runs a script on a machine whose `/run` and `/dev/shm` are empty; `alice` in the script runs the
/// controller as another user.
pub fn on_empty_machine(machine: &Machine, script: &str) -> Option<(String, String)> {
    if !may_mount() {
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
    let mut command = Command::new("unshare");
    clean(command.args(["--mount", "sh", "-c", &script]))
        .env("GPULIMIT_LIBRARY", machine.place.at("libgpulimit.so"));
    let output = command.output().expect("started");
    assert!(output.status.success(), "{output:?}");
    Some((text(&output.stdout), text(&output.stderr)))
}

#[test]
fn a_group_is_given_only_to_users_who_can_find_it() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let script = "
        mkdir -m 700 /run/gpulimit
        admin create lab max=8G
        admin create lab/alice --owner 65533 2>&1 && exit 9
        admin show --names
        mkdir -m 700 /run/closed
        GPULIMIT_ROOT=/run/closed admin create lab --owner 65533 2>&1 && exit 9
        # A group of root itself is not given to another user.
        admin create mine --owner 0
        admin rm lab mine
        install -d -m 0755 /run/gpulimit
        admin create lab max=8G
        admin create lab/alice --owner 65533
        alice show --names";
    let Some((out, _)) = on_empty_machine(&machine, script) else {
        return;
    };
    let lines: Vec<&str> = out.lines().collect();
    let remedy = |root: &str| format!("first run `install -d -m 0755 {root}`");
    assert!(
        lines[1].contains("not be able to find group 'lab/alice' in /run/gpulimit")
            && lines[1].contains(&remedy("/run/gpulimit")),
        "{out}"
    );
    assert_eq!(lines[2], "lab", "{out}");
    assert!(lines[3].contains(&remedy("/run/closed")), "{out}");
    assert_eq!(lines[lines.len() - 2..], ["lab", "lab/alice"], "{out}");
}

#[test]
fn root_uses_no_default_root_made_by_another_user() {
    let Some(machine) = Machine::new() else {
        return;
    };
    // A user takes the default names of other users' roots first, and sets limits of their own
    // there.
    let script = "
        taken() { setpriv --reuid 65532 --regid 65532 --clear-groups sh -c \"$1\"; }
        taken 'mkdir -m 755 /dev/shm/gpulimit-0 /dev/shm/gpulimit-65533'
        taken \"GPULIMIT_ROOT=/dev/shm/gpulimit-0 $PROGRAM create lab max=1G\" >&2
        admin run --max 4G -- sh -c 'echo ${GPULIMIT_ROOT%/.secret/run-*}'
        admin create lab --max 4G >&2
        admin create lab/alice --owner 65533 >&2
        stat -c '%a %u' /run/gpulimit
        alice show --names lab
        alice run --max 4G -- echo without a limit 2>&1 || echo status $?
        # The same if /run cannot be written, and if the root is named.
        mount -o remount,ro /run
        GPULIMIT_ROOT=/dev/shm/gpulimit-0 \\
            admin run --name lab -- echo without a limit 2>&1 || echo status $?
        umount /run; mount -t tmpfs -o ro tmpfs /run
        admin run --max 4G -- echo without a limit 2>&1 || echo status $?
        rm -r /dev/shm/gpulimit-0
        admin run --max 4G -- sh -c 'echo ${GPULIMIT_ROOT%/.secret/run-*}'
        # Another user cannot read root's own directory there.
        rm -r /dev/shm/gpulimit-65533
        admin run --user 65533:65533 --max 4G -- sh -c 'echo $GPULIMIT_ROOT'";
    let script = format!("PROGRAM={}\n{script}", machine.program.display());
    let Some((out, _)) = on_empty_machine(&machine, &script) else {
        return;
    };
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "/run/gpulimit", "{out}");
    assert_eq!(lines[1..3], ["755 0", "lab/alice"], "{out}");
    let refused = [(3, "65533"), (5, "0"), (7, "0")];
    for (line, user) in refused {
        let path = format!("/dev/shm/gpulimit-{user} belongs to user 65532");
        assert!(
            lines[line].contains(&path) && lines[line].contains("GPULIMIT_ROOT"),
            "{out}"
        );
        assert_eq!(lines[line + 1], "status 125", "{out}");
    }
    assert_eq!(
        lines[9..],
        ["/dev/shm/gpulimit-0", "/dev/shm/gpulimit-65533"],
        "{out}"
    );
}

#[test]
fn both_roots_are_listed_with_the_systems_first() {
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
        alice show --names
        alice get lab max
        alice ps
        alice show --json
        alice run --group lab/alice --max 1G -- sh -c 'echo $GPULIMIT_ROOT'
        alice run --max 1G -- sh -c 'echo $GPULIMIT_ROOT'
        alice rm lab/alice/job mine
        alice show --names";
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
fn without_a_system_root_only_the_users_is_listed() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let script = "
        alice create mine max=1G
        alice show --names --json";
    let Some((out, _)) = on_empty_machine(&machine, script) else {
        return;
    };
    let (said, json) = out.split_once('\n').expect("lines");
    assert_eq!(said, "mine: created, max 1GiB");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(json["groups"][0]["root"], "/dev/shm/gpulimit-65533");
}

#[test]
fn groups_of_both_roots_are_sorted_together() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let script = "
        install -d -m 0755 /run/gpulimit
        admin create zebra max=1G >&2
        alice create ape max=1G >&2
        alice show
        alice show --sort name
        alice show --sort usage --reverse";
    let Some((out, _)) = on_empty_machine(&machine, script) else {
        return;
    };
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let names: Vec<String> = out.lines().filter_map(first).collect();
    let expected = "GROUP zebra ape GROUP ape zebra GROUP ape zebra";
    assert_eq!(names.join(" "), expected, "{out}");
}

#[test]
fn an_unwritable_root_is_refused_at_once() {
    let place = Place::new();
    for root in ["/proc", "/proc/self", "/sys"] {
        for arguments in [
            &["run", "--max", "1G", "true"][..],
            &["run", "--name", "lab", "--max", "1G", "true"],
            &["create", "lab", "max=1G"],
        ] {
            let output = finish(place.gpulimit(arguments).env("GPULIMIT_ROOT", root));
            let said = text(&output.stderr);
            assert!(
                matches!(output.status.code(), Some(1 | 2 | 125)),
                "{root}: {output:?}"
            );
            assert!(said.contains(root), "{said}");
        }
    }
}
