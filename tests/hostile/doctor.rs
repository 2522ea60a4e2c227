//! `doctor --pid` inspects a process that has prepared traps for it.

use crate::{ALICE, Ground, Guarded, LOOK, Role, alice, is_over, run, silent};
use gpulimit_support::{clean, skip, wait_until};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// A process that waits in a user namespace and a mount namespace of Alice's.
struct Trap(Guarded);

impl Trap {
    /// Runs a script that sets the traps in these namespaces. `None` where users may not make
    /// namespaces.
    fn set(ground: &Ground, environment: &[(&str, &str)], script: &str) -> Option<Self> {
        let works = alice("unshare").args(["-Urm", "true"]).status();
        if !works.is_ok_and(|status| status.success()) {
            skip("users may make no user namespaces here");
            return None;
        }
        // The shell itself waits at the end, so that no file is read after the traps are set.
        let script = format!("set -e; {script}; echo set; read line");
        let mut unshare = alice("unshare");
        unshare
            .args(["-Urm", "sh", "-c", &script])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HERS", ground.at("hers"))
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = Guarded::start(&mut unshare);
        let mut line = String::new();
        let out = child.0.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("read");
        assert_eq!(line, "set\n", "the trap is not set");
        Some(Self(child))
    }

    /// Returns what root's `doctor` prints about the process.
    fn doctor(&self, ground: &Ground) -> String {
        let pid = self.0.id().to_string();
        let (_, said) = run(&mut ground.gpulimit(&["doctor", "--pid", &pid]));
        assert!(
            said.contains(&format!("ok       process      {pid}")) && said.contains("a container"),
            "{said}"
        );
        assert!(!said.contains("took more than"), "{said}");
        said
    }
}

/// Gives Alice an `/etc` of her own.
const ETC: &str = "mount -t tmpfs tmpfs /etc";

#[test]
fn doctor_runs_no_program_of_the_process() {
    let Some(ground) = Ground::new() else { return };
    let proof = ground.at("hers/proof");
    let evil = format!("#!/bin/dash\nid >{}\n", proof.display());
    ground.write("hers/evil", evil, ALICE, 0o755);
    let script =
        "for program in /bin/true /usr/bin/true; do mount --bind \"$HERS/evil\" $program; done";
    let Some(trap) = Trap::set(&ground, &[], script) else {
        return;
    };
    // The program of the user does run for a caller who enters the namespace.
    let pid = trap.0.id().to_string();
    let inside = Command::new("nsenter")
        .args(["-t", &pid, "-m", "/bin/true"])
        .status();
    assert!(inside.expect("nsenter").success() && proof.exists());
    std::fs::remove_file(&proof).expect("removed");
    trap.doctor(&ground);
    assert!(!proof.exists(), "root ran a program of Alice's");
}

#[test]
fn doctor_does_not_hang_on_pipes_devices_or_endless_files() {
    let Some(ground) = Ground::new() else { return };
    let library = ground.at("hers/x/libgpulimit.so").display().to_string();
    for (script, preload) in [
        (format!("{ETC}; mkfifo /etc/ld.so.preload"), ""),
        (format!("{ETC}; truncate -s 1T /etc/ld.so.preload"), ""),
        (format!("{ETC}; ln -s /dev/zero /etc/ld.so.preload"), ""),
        (format!("{ETC}; ln -s /proc/kmsg /etc/ld.so.preload"), ""),
        (format!("{ETC}; ln -s ld.so.preload /etc/ld.so.preload"), ""),
        // The pipe is not there yet when the shell starts.
        (
            "mkdir $HERS/x; mkfifo $HERS/x/libgpulimit.so".into(),
            &*library,
        ),
    ] {
        let Some(trap) = Trap::set(&ground, &[("LD_PRELOAD", preload)], &script) else {
            return;
        };
        trap.doctor(&ground);
    }
}

#[test]
fn doctor_shows_no_file_that_the_process_may_not_read() {
    let Some(ground) = Ground::new() else { return };
    let secret = "/a-line-for-root-only/libgpulimit.so\n";
    let secret = ground.write("secret", secret, 0, 0o600);
    let public = ground.write("public", "/for-everybody/libgpulimit.so\n", 0, 0o644);
    for (target, shown) in [(&secret, false), (&public, true)] {
        let script = format!("{ETC}; ln -s {} /etc/ld.so.preload", target.display());
        let Some(trap) = Trap::set(&ground, &[], &script) else {
            return;
        };
        let said = trap.doctor(&ground);
        assert!(!said.contains("a-line-for-root-only"), "{said}");
        assert_eq!(
            said.contains("/for-everybody/libgpulimit.so"),
            shown,
            "{said}"
        );
    }
}

#[test]
fn doctor_does_not_hang_on_pipes_in_a_users_root() {
    let Some(ground) = Ground::new() else { return };
    // The user's environment names a root in which every file is a pipe.
    let script = "mkdir -p $HERS/tree/lab/sub; mkfifo $HERS/tree/lab/limits $HERS/tree/lab/ledger \
        $HERS/tree/lab/lock; chmod -R go-w $HERS/tree";
    let root = ground.at("hers/tree").display().to_string();
    let environment = [("GPULIMIT_ROOT", root.as_str()), ("GPULIMIT_GROUP", "lab")];
    let Some(trap) = Trap::set(&ground, &environment, script) else {
        return;
    };
    trap.doctor(&ground);
}

/// Started by another test: a process whose root directory is then removed.
#[test]
#[ignore = "a part of another test"]
fn process_without_root_directory() {
    let root = std::env::var_os("HOSTILE_ROOT").expect("a path");
    std::os::unix::fs::chroot(root).expect("root may");
    println!("\n#changed");
    crate::stay();
}

#[test]
fn doctor_does_not_hang_on_a_silent_file_system() {
    let Some(ground) = Ground::new() else { return };
    let Some(silent) = silent::start(&ground) else {
        return;
    };
    let pid = silent.process.id().to_string();
    // The helper must not inherit the caller's descriptors: a shell that reads this pipe goes on.
    let mut doctor = Command::new("sh");
    doctor
        .args(["-c", "exec 3>&1; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_gpulimit"))
        .args(["doctor", "--pid", &pid]);
    let (status, said) = run(clean(&mut doctor).env(LOOK, "200"));
    assert!(said.contains("took more than"), "{said}");
    assert_eq!(status, Some(1), "{said}");
}

#[test]
fn doctor_inspects_processes_without_files() {
    let Some(ground) = Ground::new() else { return };
    let gone = ground.make("gone", 0, 0o755);
    let mut command = crate::own(0);
    command.env("HOSTILE_ROOT", &gone);
    let mut role = Role::start(&mut command, "doctor::process_without_root_directory");
    role.line("#changed");
    std::fs::remove_dir(&gone).expect("removed");
    let pid = role.process.id().to_string();
    let doctor = || run(&mut ground.gpulimit(&["doctor", "--pid", &pid])).1;
    let said = doctor();
    assert!(
        said.contains(&format!("ok       process      {pid}")),
        "{said}"
    );
    // A zombie process has neither files nor memory.
    role.process.0.kill().expect("killed");
    wait_until("the process is a zombie", || is_over(role.process.id()));
    let said = doctor();
    assert!(
        !said.contains("took more than") && said.contains(&pid),
        "{said}"
    );
}
