//! Members that try not to be killed: their names hide them from no command, and `rm --force` names
//! the process that keeps them from ending.
#![allow(unsafe_code)]

use crate::stuck::ROOT;
use crate::terminal::check;
use crate::{ALICE, Ground, RM, Role, own, stay, text};
use gpulimit_group::{Access, Member, Members, Root};
use gpulimit_ledger::EventKind;
use gpulimit_limits::LimitSet;
use gpulimit_support::{eventually, finish, skip, wait_until};
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

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
    Role::start(own(ALICE).env(ROOT, root.path()), role)
}

/// A member, which ends with its standard input; started by another test.
#[test]
#[ignore = "a part of other tests"]
fn member() {
    let root = Root::at(std::env::var_os(ROOT).expect("a root")).expect("a root");
    let _member = Member::join(&root, "lab").expect("joined");
    take_name();
    println!("\n#member {}", std::process::id());
    stay();
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
    let output = finish(command.env(RM, "2000"));
    check(&command, &output);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let ended = member.process.ended();
    assert_eq!(ended.signal(), Some(9), "{}", text(&output));
}

#[test]
fn rm_force_names_a_stuck_process_and_its_tracer() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground);
    let mut tracer = start(&root, "unkilled::tracer");
    let pid = tracer.line("#traces ");
    let mut command = ground.gpulimit(&["rm", "--force", "lab"]);
    let output = finish(command.env(RM, "2000"));
    check(&command, &output);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let tracer = tracer.process.id();
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
    /// Makes a cgroup of the test's own and puts a process there; `None` where there are no such
    /// cgroups.
    fn new(ground: &Ground, pid: &str) -> Option<Self> {
        let freezer = Path::new("/sys/fs/cgroup/freezer");
        if !freezer.exists() {
            skip("there is no freezer of version 1 of cgroups");
            return None;
        }
        let cgroup = Self(freezer.join(ground.0.file_name().expect("a name")));
        fs::create_dir(&cgroup.0).expect("made");
        let state = cgroup.0.join("freezer.state");
        fs::write(cgroup.0.join("cgroup.procs"), pid).expect("moved");
        fs::write(&state, "FROZEN").expect("written");
        wait_until("the process is frozen", || {
            fs::read_to_string(&state).is_ok_and(|state| state == "FROZEN\n")
        });
        Some(cgroup)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        // The process leaves the cgroup when it has ended.
        let _ = eventually(|| fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn rm_force_names_a_frozen_process_and_tells_of_one_kill() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground);
    let mut member = start(&root, "unkilled::member");
    let pid = member.line("#member ");
    let Some(_frozen) = Frozen::new(&ground, &pid) else {
        return;
    };
    let mut command = ground.gpulimit(&["rm", "--force", "lab"]);
    let output = finish(command.env(RM, "2000"));
    check(&command, &output);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line =
        format!("not gone yet: {pid} ({SHOWN}), kept from ending by its cgroup, which is frozen");
    assert!(said.contains(&line), "{said}");
    assert_eq!(kills(&root), 1, "the kill is told once");
}
