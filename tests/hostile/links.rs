//! A user fills the directory of their own groups with links, with thousands of directories, and
//! with groups that cannot be removed: root's commands follow no link, and end soon.

use crate::{ALICE, Ground, alice, run};
use gpulimit_group::{Access, Members, Root};
use gpulimit_limits::LimitSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Much longer than a command takes that does not go round in circles.
const SOON: Duration = Duration::from_secs(20);

/// Makes the groups `lab` and `lab/alice`, which belongs to Alice, and runs a shell script as Alice
/// in the directory of the groups below it.
fn lab(ground: &Ground, script: &str) -> Root {
    let root = Root::at(ground.make("groups", 0, 0o755)).expect("a root");
    for (name, owner) in [("lab", 0), ("lab/alice", ALICE)] {
        let access = Access {
            owner: Some(owner),
            members: Members::Owner,
        };
        let made = root.create_for(name, &LimitSet::default(), access);
        assert!(made.expect("created").new);
    }
    let below = root.path().join("lab/sub/alice/sub");
    let done = alice("sh")
        .args(["-ec", script])
        .current_dir(below)
        .status();
    assert!(done.expect("started").success());
    root
}

#[track_caller]
fn soon(command: &mut Command) -> (Option<i32>, String) {
    let start = Instant::now();
    // A command without an end is killed.
    let mut limited = Command::new("timeout");
    limited.arg("60").arg(command.get_program());
    limited.args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        limited.env(name, value.expect("set"));
    }
    let done = run(&mut limited);
    assert!(
        start.elapsed() < SOON,
        "{command:?} took too long: {done:?}"
    );
    done
}

#[test]
fn links_in_circles_hold_up_no_command() {
    let Some(ground) = Ground::new() else { return };
    let circle = "for i in $(seq 1 30); do mkdir d$i; ln -s .. d$i/sub; done";
    let root = lab(&ground, circle);
    // A limits file makes each of the directories a group.
    let limits = root.path().join("lab/sub/alice/limits");
    let limits = limits.to_str().expect("text");
    let copies = format!("for d in d*; do cp {limits} $d/limits; done");
    let copied = alice("sh")
        .args(["-ec", &copies])
        .current_dir(root.path().join("lab/sub/alice/sub"))
        .status();
    assert!(copied.expect("started").success());
    let policy = ground.write("policy.toml", "[group.lab]\n[group.new]\n", 0, 0o644);
    let policy = policy.to_str().expect("text");
    for arguments in [
        &["ls"][..],
        &["show"],
        &["show", "lab"],
        &["tree"],
        &["ps"],
        &["events"],
        &["doctor"],
        &["show", "lba"],
        &["rm", "lba"],
        &["apply", policy],
        &["gc"],
    ] {
        let (_, said) = soon(&mut ground.gpulimit(arguments));
        assert!(!said.contains("d1/d"), "{arguments:?}: {said}");
    }
    let (status, said) = soon(&mut ground.gpulimit(&["ls"]));
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said.lines().count(), 33, "{said}");
}

#[test]
fn a_link_shows_no_directories_from_elsewhere() {
    let Some(ground) = Ground::new() else { return };
    lab(&ground, "mkdir d; ln -s ../../../../sub d/sub");
    let (_, said) = soon(&mut ground.gpulimit(&["ls"]));
    assert_eq!(said, "lab\nlab/alice\n");
    let (_, said) = soon(&mut ground.gpulimit(&["show", "--json", "lab"]));
    assert_eq!(said.matches("lab/alice").count(), 1, "{said}");
}

/// The message about a missing group must not make a program read the directories of others.
#[test]
fn a_wrong_name_lists_no_groups_in_a_program() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground, "mkdir d");
    let error = root.group("lba").expect_err("missing").to_string();
    assert!(!error.contains("lab"), "{error}");
    let (_, said) = soon(&mut ground.gpulimit(&["rm", "lba"]));
    assert!(said.contains("did you mean lab?"), "{said}");
}

#[test]
fn a_user_with_thousands_of_directories_delays_no_command() {
    let Some(ground) = Ground::new() else { return };
    lab(&ground, "seq -f d%.0f/sub/x 1 6000 | xargs mkdir -p");
    let (status, said) = soon(&mut ground.gpulimit(&["ls"]));
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said.matches("more than 4096 entries").count(), 1, "{said}");
    assert!(said.starts_with("lab\nlab/alice\n"), "{said}");
    let (_, said) = soon(&mut ground.gpulimit(&["doctor"]));
    assert!(said.contains("more than 4096 entries"), "{said}");
}

/// Only a file system in user space has such files of its own, which it removes a little later.
#[test]
fn names_of_removed_files_delay_no_removal() {
    let Some(ground) = Ground::new() else { return };
    let script = "for i in $(seq 1 30); do mkdir run-$i-1; cp ../limits run-$i-1; \
        touch run-$i-1/lock run-$i-1/.fuse_hidden1; done";
    let root = lab(&ground, script);
    let start = Instant::now();
    soon(&mut ground.gpulimit(&["gc"]));
    assert!(start.elapsed() < SOON / 4, "{:?}", start.elapsed());
    let first = root.path().join("lab/sub/alice/sub/run-1-1");
    assert!(!first.join("limits").exists() && first.join(".fuse_hidden1").exists());
}

/// The user holds the locks of their groups, each for a little longer than the one before.
#[test]
fn locks_of_many_groups_hold_up_one_removal_only_once() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground, "");
    let access = Access {
        owner: Some(ALICE),
        members: Members::Owner,
    };
    let locks: Vec<_> = (1..=9)
        .map(|number| {
            let name = format!("lab/alice/d{number}");
            let made = root.create_for(&name, &LimitSet::default(), access);
            // `rm` begins with the last group. Alice holds its lock for a second, the one of the
            // group before for two seconds, and so on.
            let time = (10 - number).to_string();
            let mut command = alice("flock");
            command.arg("--no-fork").arg("--shared");
            command.arg(made.expect("created").group.path().join("lock"));
            command.args(["sh", "-c", "echo held; exec sleep $0", &time]);
            let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
            let mut held = String::new();
            let mut lines = BufReader::new(child.stdout.take().expect("piped"));
            lines.read_line(&mut held).expect("read");
            child
        })
        .collect();
    let start = Instant::now();
    let (status, said) = soon(&mut ground.gpulimit(&["rm", "-r", "lab/alice"]));
    assert!(start.elapsed() < Duration::from_secs(6), "{said}");
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("another program is making or removing"),
        "{said}"
    );
    for mut lock in locks {
        lock.wait().expect("ended");
    }
    let (status, said) = soon(&mut ground.gpulimit(&["rm", "-r", "lab/alice"]));
    assert_eq!(status, Some(0), "{said}");
}
