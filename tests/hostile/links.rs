//! A user fills the directory of their own groups with links, with thousands of directories, and
//! with groups that cannot be removed: root's commands follow no link, and end.

use crate::{ALICE, Ground, Guarded, alice, run};
use gpulimit_group::{Access, Members, Root};
use gpulimit_limits::LimitSet;
use gpulimit_support::{patience, wait_until};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::process::Stdio;
use std::time::Duration;
use std::{fs, thread};

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
        &["show", "--names"][..],
        &["show"],
        &["show", "lab"],
        &["show", "--tree"],
        &["ps"],
        &["events"],
        &["doctor"],
        &["show", "lba"],
        &["rm", "lba"],
        &["apply", policy],
        &["gc"],
    ] {
        let (_, said) = run(&mut ground.gpulimit(arguments));
        assert!(!said.contains("d1/d"), "{arguments:?}: {said}");
    }
    let (status, said) = run(&mut ground.gpulimit(&["show", "--names"]));
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said.lines().count(), 33, "{said}");
}

#[test]
fn a_link_shows_no_directories_from_elsewhere() {
    let Some(ground) = Ground::new() else { return };
    lab(&ground, "mkdir d; ln -s ../../../../sub d/sub");
    let (_, said) = run(&mut ground.gpulimit(&["show", "--names"]));
    assert_eq!(said, "lab\nlab/alice\n");
    let (_, said) = run(&mut ground.gpulimit(&["show", "--json", "lab"]));
    assert_eq!(said.matches("lab/alice").count(), 1, "{said}");
}

/// The message about a missing group must not make a program read the directories of others.
#[test]
fn a_wrong_name_lists_no_groups_in_a_program() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground, "mkdir d");
    let error = root.group("lba").expect_err("missing").to_string();
    assert!(!error.contains("lab"), "{error}");
    let (_, said) = run(&mut ground.gpulimit(&["rm", "lba"]));
    assert!(said.contains("did you mean lab?"), "{said}");
}

#[test]
fn a_user_with_thousands_of_directories_delays_no_command() {
    let Some(ground) = Ground::new() else { return };
    lab(&ground, "seq -f d%.0f/sub/x 1 6000 | xargs mkdir -p");
    let (status, said) = run(&mut ground.gpulimit(&["show", "--names"]));
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said.matches("more than 4096 entries").count(), 1, "{said}");
    assert!(said.starts_with("lab\nlab/alice\n"), "{said}");
    let (_, said) = run(&mut ground.gpulimit(&["doctor"]));
    assert!(said.contains("more than 4096 entries"), "{said}");
}

/// Only a file system in user space has such files of its own, which it removes a little later.
#[test]
fn names_of_removed_files_delay_no_removal() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground, "");
    let above = root.path().join("lab/sub/alice");
    // If the command waited a second for each, it would not end within the test's patience.
    let groups = 1..=2 * patience().as_secs();
    let groups = groups.map(|number| above.join(format!("sub/run-{number}-1")));
    for group in groups.clone() {
        fs::create_dir(&group).expect("made");
        fs::copy(above.join("limits"), group.join("limits")).expect("copied");
        for name in ["lock", ".fuse_hidden1"] {
            fs::write(group.join(name), "").expect("written");
        }
        for name in ["", "limits", "lock", ".fuse_hidden1"] {
            chown(group.join(name), Some(ALICE), Some(ALICE)).expect("given");
        }
    }
    run(&mut ground.gpulimit(&["gc"]));
    for group in groups {
        assert!(!group.join("limits").exists() && group.join(".fuse_hidden1").exists());
    }
}

/// The user holds the locks of their groups, and gives each up a second after its removal has
/// begun. A second is shorter than the time that a removal waits, and all of them are longer.
#[test]
fn locks_of_many_groups_hold_up_one_removal_only_once() {
    let Some(ground) = Ground::new() else { return };
    let root = lab(&ground, "");
    let access = Access {
        owner: Some(ALICE),
        members: Members::Owner,
    };
    let hold = |number| {
        let name = format!("lab/alice/d{number}");
        let made = root.create_for(&name, &LimitSet::default(), access);
        let path = made.expect("created").group.path().to_owned();
        let mut command = alice("flock");
        command
            .arg("--no-fork")
            .arg("--shared")
            .arg(path.join("lock"));
        command.args(["sh", "-c", "echo held; read line"]);
        let mut child = Guarded::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
        assert_eq!(lines.next().expect("a line").expect("read"), "held");
        (path, child)
    };
    let mut locks: Vec<_> = (1..=9).map(hold).collect();
    let mut command = ground.gpulimit(&["rm", "-r", "lab/alice"]);
    let (status, said) = thread::scope(|scope| {
        let removal = scope.spawn(move || run(&mut command));
        // `rm` begins with the last group.
        while let Some((path, lock)) = locks.pop() {
            if removal.is_finished() {
                break;
            }
            thread::sleep(Duration::from_secs(1));
            drop(lock);
            wait_until("the group is removed", || {
                !path.exists() || removal.is_finished()
            });
        }
        removal.join().expect("ended")
    });
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("another program is making or removing"),
        "{said}"
    );
    drop(locks);
    let (status, said) = run(&mut ground.gpulimit(&["rm", "-r", "lab/alice"]));
    assert_eq!(status, Some(0), "{said}");
}
