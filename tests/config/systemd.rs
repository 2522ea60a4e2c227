//! Units, drop-ins and tmpfiles: systemd's own tools accept them, and they have the intended
//! effects.

use crate::place::{GPULIMIT, Place, have, may_mount, me, read, repository, text};
use gpulimit_group::{Root, SYSTEM};
use gpulimit_support::{clean, is_root, skip};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Returns the values of `KEY=` in a unit, line by line.
fn values(unit: &str, key: &str) -> Vec<String> {
    let text = read(unit);
    let start = format!("{key}=");
    let lines = text.lines().filter_map(|line| line.strip_prefix(&start));
    lines.map(str::to_owned).collect()
}

/// Makes a system with gpulimit's units and drop-ins in their places, and this machine's other
/// units.
fn system() -> Place {
    let place = Place::new();
    let units = "usr/lib/systemd/system";
    fs::create_dir_all(place.at("usr/lib/systemd")).expect("made");
    let copied = Command::new("cp")
        .args(["-r", &format!("/{units}")])
        .arg(place.at(units))
        .status();
    assert!(copied.expect("started").success());
    std::os::unix::fs::symlink("usr/lib", place.at("lib")).expect("made");
    place.script("usr/local/bin/gpulimit", "#!/bin/sh\n");
    place.script("usr/lib/systemd/systemd", "#!/bin/sh\n");
    for unit in [
        "gpulimit-apply.service",
        "gpulimit-report.service",
        "gpulimit-report.timer",
        "gpulimit-serve.service",
        "gpulimit-serve.socket",
        "run-gpulimit.mount",
        "batch.slice",
    ] {
        let text = read(&format!("config/systemd/{unit}"));
        place.write(&format!("etc/systemd/system/{unit}"), &text);
    }
    for (drop_in, unit) in [
        ("limit", "limited.service"),
        ("service", "train.service"),
        ("user", "user@.service"),
    ] {
        if drop_in != "user" {
            let service = "[Service]\nExecStart=/usr/local/bin/gpulimit show --names\n";
            place.write(&format!("etc/systemd/system/{unit}"), service);
        }
        let text = read(&format!("config/systemd/drop-in/{drop_in}.conf"));
        let path = format!("etc/systemd/system/{unit}.d/gpulimit.conf");
        place.write(&path, &text);
    }
    place
}

/// Runs `systemd-analyze verify` on the units; its output is empty if all are valid.
fn verify(place: &Place) -> (bool, String) {
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--root"])
        .arg(place.at(""))
        .args(["gpulimit-apply.service", "limited.service", "train.service"])
        .args(["gpulimit-report.service", "gpulimit-report.timer"])
        .args(["gpulimit-serve.service", "gpulimit-serve.socket"])
        .args(["user@1000.service", "batch.slice", "run-gpulimit.mount"])
        .output()
        .expect("started");
    (output.status.success(), text(&output.stderr))
}

/// Returns whether `systemd-analyze` can inspect another root (systemd 250).
fn can_verify() -> bool {
    if !have("systemd-analyze") {
        return false;
    }
    if !fs::exists("/usr/lib/systemd/system/sysinit.target").is_ok_and(|there| there) {
        skip("systemd's units are not installed");
        return false;
    }
    let help = Command::new("systemd-analyze").arg("--help").output();
    let can = help.is_ok_and(|output| text(&output.stdout).contains("--root"));
    if !can {
        skip("systemd-analyze has no --root");
    }
    can
}

#[test]
fn systemd_accepts_the_units_and_drop_ins() {
    if !can_verify() {
        return;
    }
    let place = system();
    assert_eq!(verify(&place), (true, String::new()));
    // A mistake is reported.
    let wrong = "[Service]\nEnvironmnt=A=b\n";
    place.write("etc/systemd/system/train.service.d/wrong.conf", wrong);
    assert!(verify(&place).1.contains("Environmnt"));
}

#[test]
fn the_unit_starts_after_the_driver_and_before_users() {
    let unit = "config/systemd/gpulimit-apply.service";
    let words = |key| {
        let lines = values(unit, key);
        let words = lines.iter().flat_map(|line| line.split_whitespace());
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let (after, before) = (words("After"), words("Before"));
    assert!(
        after
            .iter()
            .any(|name| name == "nvidia-persistenced.service")
    );
    assert!(
        after
            .iter()
            .any(|name| name == "systemd-tmpfiles-setup.service")
    );
    for name in [
        "systemd-user-sessions.service",
        "display-manager.service",
        "k3s.service",
        "crio.service",
        "podman-restart.service",
    ] {
        assert!(before.iter().any(|there| there == name), "{name}");
    }
    for drop_in in ["limit", "service", "user"] {
        let drop_in = format!("config/systemd/drop-in/{drop_in}.conf");
        assert_eq!(values(&drop_in, "After"), ["gpulimit-apply.service"]);
    }
    // Hardened services may write their groups.
    for drop_in in ["limit", "service"] {
        let drop_in = format!("config/systemd/drop-in/{drop_in}.conf");
        assert_eq!(values(&drop_in, "ReadWritePaths"), [format!("-{SYSTEM}")]);
    }
    assert_eq!(values(unit, "RemainAfterExit"), ["yes"]);
    assert_eq!(values(unit, "ExecReload"), values(unit, "ExecStart"));
    // These settings would hide the GPUs, or the root.
    for key in [
        "PrivateDevices",
        "ProtectClock",
        "DevicePolicy",
        "DynamicUser",
        "User",
    ] {
        assert_eq!(values(unit, key), [""; 0], "{key}");
    }
    assert_eq!(values(unit, "ReadWritePaths"), [SYSTEM]);
}

/// The unit of the timer may write the directory in which it saves.
#[test]
fn the_report_is_saved_where_the_unit_may_write() {
    let unit = "config/systemd/gpulimit-report.service";
    let directory = format!("/var/log/{}", values(unit, "LogsDirectory")[0]);
    let start = format!("/usr/local/bin/gpulimit report --save {directory}");
    assert_eq!(values(unit, "ExecStart"), [start]);
    assert_eq!(values(unit, "ReadWritePaths"), [SYSTEM]);
    // These settings would hide the GPUs.
    for key in ["PrivateDevices", "DevicePolicy", "DynamicUser"] {
        assert_eq!(values(unit, key), [""; 0], "{key}");
    }
    let timer = values("config/systemd/gpulimit-report.timer", "OnCalendar");
    assert_eq!(timer, ["*:0/15"]);
}

/// Only root can connect to the socket of the server, which can change nothing but ledgers.
#[test]
fn the_server_is_for_root_and_hardened() {
    let socket = "config/systemd/gpulimit-serve.socket";
    assert_eq!(values(socket, "ListenStream"), ["/run/gpulimit.sock"]);
    assert_eq!(values(socket, "SocketMode"), ["0600"]);
    let unit = "config/systemd/gpulimit-serve.service";
    assert_eq!(values(unit, "ExecStart"), ["/usr/local/bin/gpulimit serve"]);
    assert_eq!(values(unit, "Requires"), ["gpulimit-serve.socket"]);
    // With a limit of failed starts, systemd closes the socket, and other users can take its port.
    assert_eq!(values(unit, "StartLimitIntervalSec"), ["0"]);
    assert_eq!(values(unit, "RestartSec"), ["1"]);
    assert_eq!(values(unit, "ProtectSystem"), ["strict"]);
    assert_eq!(values(unit, "ReadWritePaths"), [format!("-{SYSTEM}")]);
    assert_eq!(values(unit, "NoNewPrivileges"), ["yes"]);
    // These settings would hide the GPUs.
    for key in ["PrivateDevices", "DevicePolicy", "DynamicUser"] {
        assert_eq!(values(unit, key), [""; 0], "{key}");
    }
}

/// The unit's capabilities suffice for groups of users; no program can gain others.
#[test]
fn the_units_capabilities_suffice() {
    if !is_root() {
        return;
    }
    let allowed = values(
        "config/systemd/gpulimit-apply.service",
        "CapabilityBoundingSet",
    );
    let allowed = allowed[0]
        .to_lowercase()
        .replace("cap_", "+")
        .replace(' ', ",");
    let place = Place::new();
    let apply = |policy: &str, bounding: &str| {
        let file = place.write("policy.toml", policy);
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--bounding-set=-all{bounding}"))
            .args(["--no-new-privs", GPULIMIT, "apply"])
            .arg(file);
        clean(&mut command).env("GPULIMIT_ROOT", place.root_path());
        let output = command.output().expect("started");
        (
            output.status.success(),
            text(&output.stdout) + &text(&output.stderr),
        )
    };
    let users = "[group.a]\nmax = '90%'\n[group.'a/b']\nowner = 'daemon'\n[group.'a/b/c']\n\
        owner = 'daemon'\n";
    let rule = "[[rule]]\nuser = 'daemon'\ngroup = 'a/b'\n";
    let (_, said) = apply(users, "");
    assert!(said.contains("cannot"), "without capabilities: {said}");
    let allowed = format!(",{allowed}");
    for policy in [
        format!("{users}{rule}"),
        users.replace("90%", "80%"),
        String::new(),
    ] {
        let (done, said) = apply(&policy, &allowed);
        assert!(done, "{policy}{said}");
    }
    assert_eq!(place.groups(), [""; 0]);
}

#[test]
fn drop_ins_make_the_groups_that_they_name() {
    let place = Place::new();
    let uid = me().to_string();
    let expand = |line: &str, instance: &str| {
        let line = line.trim_start_matches(['-', '+', '@', '!', ':']);
        let line = line.replace("%N", instance).replace("%i", instance);
        line.replace("%%", "%")
    };
    for (file, instance, group, max) in [
        ("service", "train", "services/train", "4GiB"),
        ("user", &uid, &format!("users/{uid}"), "25%"),
    ] {
        let file = format!("config/systemd/drop-in/{file}.conf");
        let run = |key: &str| {
            for line in values(&file, key) {
                let command = expand(&line, instance);
                let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
                let output = place.gpulimit(&arguments);
                let may_fail = line.starts_with('-');
                assert!(may_fail || output.status.success(), "{line}: {output:?}");
            }
        };
        run("ExecStartPre");
        // The unit starts a second time, after an end without a cleanup.
        run("ExecStartPre");
        let environment = values(&file, "Environment");
        let named = environment.iter().map(|line| expand(line, instance));
        assert!(
            named
                .clone()
                .any(|line| line == format!("GPULIMIT_GROUP={group}"))
        );
        let limit = place.gpulimit(&["get", group, "max"]);
        assert_eq!(text(&limit.stdout).trim(), max, "{limit:?}");
        run("ExecStopPost");
    }
    assert_eq!(
        place.groups(),
        ["services", "users", &format!("users/{uid}")]
    );
}

#[test]
fn tmpfiles_make_a_root_for_all_users() {
    let file = "config/systemd/tmpfiles.d/gpulimit.conf";
    let text = read(file);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let words: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(
        (lines.len(), &words[..]),
        (1, &["d", SYSTEM, "0755", "root", "root", "-"][..])
    );
    if !is_root() || !have("systemd-tmpfiles") {
        return;
    }
    let place = Place::new();
    let output = Command::new("systemd-tmpfiles")
        .arg("--create")
        .arg(format!("--root={}", place.at("").display()))
        .arg(repository(file))
        .output()
        .expect("started");
    assert!(output.status.success(), "{output:?}");
    let made = place.at(SYSTEM.trim_start_matches('/'));
    let mode = fs::metadata(&made).expect("made").permissions().mode() & 0o7777;
    assert_eq!(mode, 0o755);
    let root = Root::at(made).expect("safe");
    root.make().expect("a root");
}

/// Runs the commands of docs/systemd.md on a copy of this machine's `/etc`, with a systemctl that
/// only records its calls. The unit then makes the groups of the policy.
#[test]
fn the_pages_commands_set_up_a_machine() {
    const MACHINE: &str = "set -eu; place=$1 gpulimit=$2; cp -a /etc \"$place/etc\"; \
        mount --bind \"$place/etc\" /etc; \
        for empty in /run /usr/local; do mount -t tmpfs -o mode=755 tmpfs $empty; done; \
        install -D -m 755 \"$gpulimit\" /usr/local/bin/gpulimit; \
        echo 'lab:x:41000:daemon' >>/etc/group; rm -rf /etc/gpulimit; \
        export PATH=\"$place/bin:/usr/local/bin:$PATH\"; sh -eux \"$place/commands\" >&2; \
        stat -c '%a %U' /run/gpulimit; $(sed -n 's/^ExecStart=//p' \
        /etc/systemd/system/gpulimit-apply.service) >&2; \
        sed -n 's/^ExecStartPost=//p' \"$place/drop-in\" | sh -eux >&2; \
        stat -c '%a %G' /run/gpulimit/lab; gpulimit show --names; \
        ls /run/gpulimit/.rules; findmnt -n -o SOURCE /run/gpulimit";
    if !may_mount() || !have("systemd-tmpfiles") {
        return;
    }
    let page = read("docs/systemd.md");
    let blocks = page.split("```").skip(1).step_by(2);
    let blocks = blocks.filter(|block| !block.contains("[[rule]]"));
    let (drop_ins, commands): (Vec<&str>, Vec<&str>) =
        blocks.partition(|block| block.contains("[Service]"));
    let commands = commands.concat();
    assert!(commands.matches("systemctl daemon-reload").count() >= 3);
    let place = Place::new();
    place.write("commands", &commands);
    place.write("drop-in", &drop_ins.concat());
    let note = format!(
        "#!/bin/sh\necho \"$*\" >>{}\n\
         unit=/etc/systemd/system/run-gpulimit.mount\n\
         [ \"$*\" != 'enable --now run-gpulimit.mount' ] || {{ mkdir /run/gpulimit && \
         mount -t tmpfs -o \"$(sed -n 's/^Options=//p' $unit)\" gpulimit /run/gpulimit; }}\n",
        place.at("systemctl.log").display()
    );
    place.script("bin/systemctl", &note);
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", MACHINE, "sh"])
        .arg(place.at(""))
        .arg(GPULIMIT)
        .current_dir(repository(""));
    let output = clean(&mut command).output().expect("started");
    let said = text(&output.stdout);
    let expected =
        "755 root\n750 lab\nlab\nlab/burst\nlab/daemon\n/run/gpulimit/.rules\ngpulimit\n";
    assert_eq!(said, expected, "{}", text(&output.stderr));
    let asked = fs::read_to_string(place.at("systemctl.log")).expect("written");
    assert!(asked.contains("enable --now gpulimit-apply"), "{asked}");
}
