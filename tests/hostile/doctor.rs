//! `doctor --pid` about a process that has prepared for it.

use crate::{ALICE, Ground, PATIENCE, alice, run, silent, text};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

/// A process that waits in a user namespace and a mount namespace of Alice's own; ended with the
/// test.
struct Trap(Child);

impl Trap {
    /// Runs a script there that makes the traps. `None` where users may make no namespaces.
    fn set(ground: &Ground, environment: &[(&str, &str)], script: &str) -> Option<Self> {
        let works = alice("unshare").args(["-Urm", "true"]).status();
        if !works.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: users may make no user namespaces here");
            return None;
        }
        // What is executed last reads no file any more: it is the shell itself.
        let script = format!("set -e; {script}; echo set; read line");
        let mut child = alice("unshare")
            .args(["-Urm", "sh", "-c", &script])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HERS", ground.at("hers"))
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("read");
        assert_eq!(line, "set\n", "the trap is not set");
        Some(Self(child))
    }

    /// What root's doctor says of it.
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

impl Drop for Trap {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Gives Alice an `/etc` of her own.
const ETC: &str = "mount -t tmpfs tmpfs /etc";

#[test]
fn programs_of_the_process_are_never_run() {
    let Some(ground) = Ground::new() else { return };
    let proof = ground.at("hers/proof");
    let evil = format!("#!/bin/dash\nid >{}\n", proof.display());
    ground.write("hers/evil", evil, ALICE, 0o755);
    let script =
        "for program in /bin/true /usr/bin/true; do mount --bind \"$HERS/evil\" $program; done";
    let Some(trap) = Trap::set(&ground, &[], script) else {
        return;
    };
    // The trap works.
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
fn pipes_devices_and_endless_files_hold_up_nobody() {
    let Some(ground) = Ground::new() else { return };
    let library = ground.at("hers/x/libgpulimit.so").display().to_string();
    for (script, preload) in [
        (format!("{ETC}; mkfifo /etc/ld.so.preload"), ""),
        (format!("{ETC}; truncate -s 1T /etc/ld.so.preload"), ""),
        (format!("{ETC}; ln -s /dev/zero /etc/ld.so.preload"), ""),
        (format!("{ETC}; ln -s /proc/kmsg /etc/ld.so.preload"), ""),
        (format!("{ETC}; ln -s ld.so.preload /etc/ld.so.preload"), ""),
        // It is not there yet when the shell starts.
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
fn links_show_nothing_that_the_process_may_not_read() {
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
fn the_ledger_of_a_root_that_the_process_names_is_read_with_its_rights() {
    let Some(ground) = Ground::new() else { return };
    // A root in her environment, in which everything is a pipe.
    let script = "mkdir -p $HERS/tree/lab/sub; mkfifo $HERS/tree/lab/limits $HERS/tree/lab/ledger $HERS/tree/lab/lock; chmod -R go-w $HERS/tree";
    let root = ground.at("hers/tree").display().to_string();
    let environment = [("GPULIMIT_ROOT", root.as_str()), ("GPULIMIT_GROUP", "lab")];
    let Some(trap) = Trap::set(&ground, &environment, script) else {
        return;
    };
    trap.doctor(&ground);
}

/// Not a test: a process that takes a directory as its root, which then goes away.
#[test]
fn role() {
    let Some(root) = std::env::var_os("HOSTILE_ROOT") else {
        return;
    };
    std::os::unix::fs::chroot(root).expect("root may");
    println!("\n#changed");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_file_system_that_never_answers_holds_up_nobody() {
    let Some(ground) = Ground::new() else { return };
    let Some(process) = silent::Process::start(&ground) else {
        return;
    };
    let pid = process.pid().to_string();
    // The caller's descriptors are not kept, either: a shell that reads this pipe goes on.
    let mut doctor = Command::new("sh");
    let doctor = doctor
        .args(["-c", "exec 3>&1; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_gpulimit"))
        .args(["doctor", "--pid", &pid])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let (answer, answered) = mpsc::channel();
    thread::spawn(move || answer.send(doctor.wait_with_output()));
    let output = answered.recv_timeout(PATIENCE);
    // Whatever still waits for the file system gets its answer now.
    drop(process);
    let output = output.expect("doctor hangs").expect("read");
    let said = text(&output);
    assert!(said.contains("took more than"), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[test]
fn processes_without_files_are_looked_at() {
    let Some(ground) = Ground::new() else { return };
    let gone = ground.make("gone", 0, 0o755);
    let mut child = Command::new("/proc/self/exe")
        .args(["--exact", "doctor::role", "--nocapture"])
        .env("HOSTILE_ROOT", &gone)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    assert!(out.lines().any(|line| line.expect("read") == "#changed"));
    std::fs::remove_dir(&gone).expect("removed");
    let pid = child.id().to_string();
    let doctor = || run(&mut ground.gpulimit(&["doctor", "--pid", &pid])).1;
    let said = doctor();
    assert!(
        said.contains(&format!("ok       process      {pid}")),
        "{said}"
    );
    // A dead process that its parent has not asked for has neither files nor memory.
    child.kill().expect("killed");
    let said = doctor();
    assert!(
        !said.contains("took more than") && said.contains(&pid),
        "{said}"
    );
    child.wait().expect("ended");
}
