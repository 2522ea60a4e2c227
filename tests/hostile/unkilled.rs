//! Members who would rather not be killed: their names hide them from nobody, and who keeps them
//! from ending is named.
#![allow(unsafe_code)]

use crate::stuck::{ROOT, Role};
use crate::terminal::check;
use crate::{ALICE, Ground, text};
use gpulimit_group::{Access, Member, Members, Root};
use gpulimit_limits::LimitSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::ptr::null_mut;

/// What a terminal obeys, then what is no UTF-8.
const EVIL: &[u8] = b"\x1b]0;x\x07\xff";
/// As it is shown.
const SHOWN: &str = "\\u001b]0;x\\u0007\u{fffd}";

/// A group of Alice's.
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

/// A process of Alice's that plays a role of this file.
fn start(root: &Root, role: &str) -> Role {
    let mut command = Command::new("/proc/self/exe");
    command.env(ROOT, root.path()).uid(ALICE).gid(ALICE);
    Role::start(command.current_dir("/"), role)
}

/// A member, which ends with its input; not a test.
#[test]
#[ignore = "a part of other tests"]
fn member() {
    let root = Root::at(std::env::var_os(ROOT).expect("a root")).expect("a root");
    let _member = Member::join(&root, "lab").expect("joined");
    take_name();
    println!("\n#member {}", std::process::id());
    let _ = std::io::stdin().read(&mut [0]);
}

/// The name of the process is that of its first thread; it is open to its threads.
fn take_name() {
    fs::write("/proc/self/comm", EVIL).expect("named");
}

/// Traces a member so that it stops before it ends, and then stops itself; not a test.
#[test]
#[ignore = "a part of other tests"]
fn tracer() {
    let root = Root::at(std::env::var_os(ROOT).expect("a root")).expect("a root");
    let mut member = start(&root, "unkilled::member");
    let pid = member.line("#member ").parse().expect("a pid");
    let seize = |task: i32| {
        let options = libc::PTRACE_O_TRACEEXIT as usize;
        // SAFETY: plain numbers; the call writes no memory of ours.
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
    // SAFETY: a plain number.
    unsafe { libc::raise(libc::SIGSTOP) };
}

#[test]
fn a_name_that_is_no_text_keeps_no_signal_away() {
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
fn removal_by_force_names_who_does_not_end_and_who_traces_it() {
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
}
