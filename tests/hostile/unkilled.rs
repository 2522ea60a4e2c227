//! Members that try not to be killed: their names hide them from no command, and `rm --force` names
//! the process that keeps them from ending.
#![allow(unsafe_code)]

use crate::stuck::{ROOT, Role};
use crate::terminal::check;
use crate::{ALICE, Ground, text};
use gpulimit_group::{Access, Member, Members, Root};
use gpulimit_ledger::EventKind;
use gpulimit_limits::LimitSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

/// An escape sequence that a terminal obeys, then a byte that is not UTF-8.
const EVIL: &[u8] = b"\x1b]0;x\x07\xff";
/// The name as the controller shows it.
const SHOWN: &str = "\\u001b]0;x\\u0007\u{fffd}";

/// Makes a group of Alice's.
fn lab(ground: &Ground) -> Root {
    let root = Root::at(ground.make("groups", 0, 0o755)).expect("a root");
    let access = Access {
        owner: Some(ALICE),
        members: Members::Owner,
    };
    let made = root.create_for("lab", &LimitSet::default(), access);
    assert!(made.expect("created").new);
    root
}

/// Starts a process of Alice's that runs one of the helper tests of this file.
fn start(root: &Root, role: &str) -> Role {
    let mut command = Command::new("/proc/self/exe");
    command.env(ROOT, root.path()).uid(ALICE).gid(ALICE);
    Role::start(command.current_dir("/"), role)
}

/// A member, which ends with its standard input; started by another test.
#[test]
#[ignore = "a part of other tests"]
fn member() {
    let root = Root::at(std::env::var_os(ROOT).expect("a root")).expect("a root");
    let _member = Member::join(&root, "lab").expect("joined");
    take_name();
    println!("\n#member {}", std::process::id());
    let _ = std::io::stdin().read(&mut [0]);
}

/// Sets the process's name, which is that of its first thread, from any of its threads.
fn take_name() {
    fs::write("/proc/self/comm", EVIL).expect("named");
}

/// Traces a member so that it stops before it ends, and then stops itself; started by another test.
#[test]
#[ignore = "a part of other tests"]
fn tracer() {
    let root = Root::at(std::env::var_os(ROOT).expect("a root")).expect("a root");
    let mut member = start(&root, "unkilled::member");
    let pid = member.line("#member ").parse().expect("a pid");
    let seize = |task: i32| {
        let options = libc::PTRACE_O_TRACEEXIT as usize;
        // SAFETY: the call gets only numbers and writes no memory of this process.
        let done = unsafe {
            libc::ptrace(
                libc::PTRACE_SEIZE,
                task,
                null_mut::<u8>(),
                std::ptr::without_provenance_mut::<u8>(options),
            )
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    seize(pid);
    take_name();
    println!("\n#traces {pid}");
    std::io::stdout().flush().expect("written");
    // SAFETY: the call gets only a number.
    unsafe { libc::raise(libc::SIGSTOP) };
}

#[test]
fn kill_reaches_a_process_whose_name_is_not_text() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground);
    let mut member = start(&root, "unkilled::member");
    member.line("#member ");
    let mut command = ground.gpulimit(&["kill", "-s", "KILL", "lab"]);
    let output = command.output().expect("started");
    check(&command, &output);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let ended = member.child.wait().expect("ended");
    assert_eq!(ended.signal(), Some(9), "{}", text(&output));
}

#[test]
fn rm_force_names_a_stuck_process_and_its_tracer() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground);
    let mut tracer = start(&root, "unkilled::tracer");
    let pid = tracer.line("#traces ");
    let mut command = ground.gpulimit(&["rm", "--force", "lab"]);
    let output = command.output().expect("started");
    check(&command, &output);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let tracer = tracer.child.id();
    let line =
        format!("not gone yet: {pid} ({SHOWN}), kept from ending by its tracer {tracer} ({SHOWN})");
    assert!(said.contains(&line), "{said}");
    assert_eq!(kills(&root), 1, "the kill is told once");
}

/// Returns the number of kills among the events of the group.
fn kills(root: &Root) -> usize {
    let group = root.group("lab").expect("a group");
    let events = group.ledger().expect("a ledger").events(0);
    let kills = events.iter().map(|event| event.what.kind);
    kills.filter(|kind| *kind == EventKind::Kill).count()
}

/// A frozen cgroup of version 1. In one of version 2 a process can be killed.
struct Frozen(PathBuf);

impl Frozen {
    /// Makes a cgroup and puts a process there; `None` where that is not possible.
    fn new(pid: &str) -> Option<Self> {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/freezer/gpulimit-test-{pid}"));
        fs::create_dir(&folder).ok()?;
        let (cgroup, state) = (Self(folder.clone()), folder.join("freezer.state"));
        fs::write(folder.join("cgroup.procs"), pid).ok()?;
        fs::write(&state, "FROZEN").ok()?;
        let is_frozen = || fs::read_to_string(&state).is_ok_and(|state| state == "FROZEN\n");
        while !is_frozen() {
            thread::sleep(Duration::from_millis(5));
        }
        Some(cgroup)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        // The process leaves the cgroup when it has ended.
        for _ in 0..1_000 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn rm_force_names_a_frozen_process_and_tells_of_one_kill() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground);
    let mut member = start(&root, "unkilled::member");
    let pid = member.line("#member ");
    let Some(_frozen) = Frozen::new(&pid) else {
        println!("SKIPPED: no cgroup of version 1 can be frozen");
        return;
    };
    let mut command = ground.gpulimit(&["rm", "--force", "lab"]);
    let output = command.output().expect("started");
    check(&command, &output);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line =
        format!("not gone yet: {pid} ({SHOWN}), kept from ending by its cgroup, which is frozen");
    assert!(said.contains(&line), "{said}");
    assert_eq!(kills(&root), 1, "the kill is told once");
}
