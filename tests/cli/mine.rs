//! `show --mine`

use crate::place::{GIB, GPU, Nothing, Place, executable, on, text, words};
use crate::roots::on_empty_machine;
use crate::user::{ALICE, Machine};
use gpulimit_base::units::Size;
use gpulimit_group::Insistence;
use serde_json::{Value, json};
use std::process::Command;

/// Runs `show --mine --json` with a variable in the environment.
fn mine(place: &Place, name: &str, value: &str) -> Value {
    let mut command = place.gpulimit(&["show", "--mine", "--json"]);
    let output = command.env(name, value).output().expect("started");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_caller_without_a_limit_is_told_so() {
    let place = Place::new();
    let out = place.said(&["show", "--mine"]);
    assert!(
        out.starts_with("no group limits your programs: ") && out.contains("gpulimit run --max"),
        "{out}"
    );
    let nothing = json!({
        "schema": 1, "root": null, "by": null, "rule": null, "new_group": null, "group": null,
        "running_in": []
    });
    assert_eq!(place.json(&["show", "--mine", "--json"]), nothing);
    assert!(!place.root_path().exists(), "show created the root");

    let json = mine(&place, "GPULIMIT_MAX", "4G");
    assert_eq!(json["new_group"], "GPULIMIT_MAX=4G");
    assert_eq!(
        (&json["by"], &json["group"]),
        (&"environment".into(), &Value::Null)
    );
}

#[test]
fn a_wrong_variable_is_an_error() {
    let place = Place::new();
    place.group("lab", Size::Max);
    for (name, value, said) in [
        ("GPULIMIT_GROUP", "lib", "no group 'lib'"),
        ("GPULIMIT_MAX", "4X", "invalid size '4X'"),
    ] {
        let mut command = place.gpulimit(&["show", "--mine"]);
        let output = command.env(name, value).output().expect("started");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(said), "{output:?}");
    }
    place.refused(2, &["show", "--mine", "lab"]);
}

/// Memory of the caller's processes in other groups counts against the limit of the group above,
/// and is not the caller's part of its own group.
#[test]
fn mine_shows_the_part_of_the_group_and_what_is_left() {
    let place = Place::new();
    place.group("lab", Size::Bytes(10 * GIB));
    place.group("lab/alice", Size::Bytes(8 * GIB));
    let show = || mine(&place, "GPULIMIT_GROUP", "lab/alice");
    assert_eq!(show()["group"]["gpus"], json!([]), "no GPU is known yet");
    let member = place.member("lab/alice");
    let device = on(&member);
    let charge = |bytes| device.charge(bytes, &Nothing, Insistence::Full);
    charge(6 * GIB).expect("fits");
    let users = show()["group"]["gpus"][0]["users"].clone();
    assert_eq!(users, json!([]), "nobody else");
    let mut other = place.start_member("lab", None);
    let json = show();
    assert_eq!(json["group"]["name"], "lab/alice");
    let gpu = &json["group"]["gpus"][0];
    assert_eq!(gpu["uuid"], GPU.to_string());
    for (key, expected) in [
        ("effective_max", 8 * GIB),
        ("usage", 6 * GIB),
        ("mine", 6 * GIB),
        ("free", 2 * GIB),
    ] {
        assert_eq!(gpu[key], expected, "{key}: {gpu}");
    }
    assert_eq!(gpu["shared_in"], "lab");
    let users = gpu["users"].as_array().expect("users");
    assert_eq!((users.len(), &users[0]["usage"]), (1, &GIB.into()), "{gpu}");
    other.wait().expect("ended");
}

#[test]
fn users_who_share_a_limit_are_named_to_those_who_may_see_them() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let place = &machine.place;
    for (name, max) in [("lab", 10), ("lab/root", 4), ("closed", 4)] {
        place.group(name, Size::Bytes(max * GIB));
    }
    place.said(&["create", "lab/alice", "max=8G", "--owner", ALICE]);
    let member = place.member("lab/root");
    let device = on(&member);
    let closed = place.member("closed");
    let closed_device = on(&closed);
    for device in [device, closed_device] {
        let charged = device.charge(3 * GIB, &Nothing, Insistence::Full);
        charged.expect("fits");
    }
    let own = std::env::current_exe().expect("known");
    let copy = place.0.join("member");
    executable::copy(&own, &copy);
    let mut command = Command::new("sh");
    let script = format!(
        "shift; exec setpriv --reuid {ALICE} --regid {ALICE} --clear-groups {} \"$@\"",
        copy.display()
    );
    command.args(["-c", &script, "sh"]);
    let hers = place.start_member("lab/alice", Some(command));

    let json = mine(place, "GPULIMIT_GROUP", "lab/root");
    let gpu = &json["group"]["gpus"][0];
    assert_eq!(
        (&gpu["mine"], &gpu["free"]),
        (&(3 * GIB).into(), &GIB.into()),
        "{json}"
    );
    let uid: u32 = ALICE.parse().expect("a number");
    assert_eq!(
        (&gpu["users"][0]["uid"], &gpu["users"][0]["usage"]),
        (&uid.into(), &GIB.into())
    );

    let out = text(&machine.alice_in("lab/alice", &["show", "--mine"]).stdout);
    let lines: Vec<Vec<&str>> = out.lines().map(crate::place::words).collect();
    assert_eq!(
        lines[0].join(" "),
        "your programs are in group lab/alice, by GPULIMIT_GROUP"
    );
    assert_eq!(lines[2].join(" "), "GPU LIMIT USAGE MINE FREE");
    assert_eq!(
        lines[3].join(" "),
        "GPU-1a2b… 8.0 GiB 1.0 GiB 1.0 GiB 6.0 GiB"
    );
    assert_eq!(lines[5].join(" "), "Shared with:");
    assert_eq!(lines[7].join(" "), "root GPU-1a2b… lab 3.0 GiB");
    assert_eq!(lines.len(), 8, "{out}");

    // Without the variable, the group is that of her program, and who shares its limit.
    let output = machine.alice(&["show", "--mine"]);
    let running = text(&output.stdout);
    assert_eq!(
        running.lines().next(),
        Some(
            "neither a rule nor the environment names a group; programs of yours run in lab/alice"
        )
    );
    assert!(running.lines().skip(1).eq(out.lines().skip(1)), "{running}");
    let json = machine.alice_in("lab/root", &["show", "--mine", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let own = &json["running_in"][0];
    assert_eq!(
        (&own["name"], &own["gpus"][0]["mine"]),
        (&"lab/alice".into(), &GIB.into())
    );

    drop(hers);
    // She may not read this group's ledger: neither its GPUs nor its users.
    let output = machine.alice_in("closed", &["show", "--mine"]);
    assert!(output.status.success(), "{output:?}");
    let out = text(&output.stdout);
    assert!(!out.contains("root") && !out.contains("3.0 GiB"), "{out}");

    // Nor what a group leaves free whose limits she may read.
    place.said(&["set", "lab/root", "max=4G", "--device", &GPU.to_string()]);
    let output = machine.alice(&["show", "lab/root", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let gpu = &json["groups"][0]["gpus"][0];
    assert_eq!(gpu["max"], 4 * GIB, "{json}");
    assert!(gpu["free"].is_null() && gpu["usage"].is_null(), "{json}");
}

#[test]
fn a_rule_of_the_policy_gives_the_group() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let script = "
        printf '[group.lab]\\nmax = \"8G\"\\n[[rule]]\\nuser = \"65533\"\\ngroup = \"lab\"\\n' \\
            > /run/policy
        admin apply /run/policy > /dev/null
        alice show --mine
        GPULIMIT_MAX=2G alice show --mine
        admin show --mine";
    let Some((out, _)) = on_empty_machine(&machine, script) else {
        return;
    };
    let lines: Vec<&str> = out.lines().collect();
    let by_rule = "your programs are in group lab, by rule 1 of the administrator's policy";
    assert_eq!(lines[0], by_rule, "{out}");
    assert!(
        lines[3].starts_with("all") && lines[3].contains("8.0 GiB"),
        "{out}"
    );
    let new = format!("{by_rule}; GPULIMIT_MAX=2G makes a group below it for each program");
    assert_eq!(lines[4], new, "{out}");
    assert!(
        lines[8].starts_with("no group limits your programs"),
        "{out}"
    );
}

#[test]
fn a_program_in_a_group_of_the_users_own_root_is_found() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let own = std::env::current_exe().expect("known");
    let member = machine.place.at("member");
    executable::copy(&own, &member);
    let script = format!(
        "
        mkdir -m 755 /run/gpulimit
        alice create own max=4G > /dev/null
        alice create other max=4G > /dev/null
        mkfifo /run/in /run/out
        exec 3<>/run/in 4<>/run/out
        GPULIMIT_ROOT=/dev/shm/gpulimit-{ALICE} GPULIMIT_TEST_MEMBER=own \\
            setpriv --reuid {ALICE} --regid {ALICE} --clear-groups \\
            {} --exact place::member_process --ignored --nocapture <&3 >&4 &
        while read -r line <&4; do case $line in *joined*) break ;; esac; done
        alice show --mine
        echo Named:
        GPULIMIT_GROUP=other alice show --mine
        echo >&3
        wait",
        member.display()
    );
    let Some((out, _)) = on_empty_machine(&machine, &script) else {
        return;
    };
    let lines: Vec<String> = out.lines().map(|line| words(line).join(" ")).collect();
    let expected = [
        "neither a rule nor the environment names a group; programs of yours run in own",
        "",
        "GPU LIMIT USAGE MINE FREE",
        "GPU-1a2b… 4.0 GiB 1.0 GiB 1.0 GiB 3.0 GiB",
        "Named:",
        "your programs are in group other, by GPULIMIT_GROUP; programs of yours run in own",
        "",
        "GROUP GPU LIMIT USAGE MINE FREE",
        "other all 4.0 GiB - - -",
        "own GPU-1a2b… 4.0 GiB 1.0 GiB 1.0 GiB 3.0 GiB",
    ];
    assert_eq!(lines, expected, "{out}");
}
