//! Leases (`F_SETLEASE`): the owner of a file can keep other users, even root, from opening it.
#![allow(unsafe_code)]

use crate::{ALICE, Ground, Role, run};
use gpulimit_group::{Access, Group, Member, Members, Root};
use gpulimit_limits::LimitSet;
use gpulimit_support::{eventually, patience, skip};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const FILES: &str = "GPULIMIT_TEST_FILES";
const STAYS: &str = "GPULIMIT_TEST_STAYS";
const NEXT: &str = "GPULIMIT_TEST_NEXT";

/// What Alice may have a lease on. She owns all these files.
const LEASED: [&[&str]; 6] = [
    &["limits"],
    &["ledger"],
    &["lock"],
    &[".limits.lock"],
    &["limits", "ledger"],
    &["limits", "ledger", "lock", ".limits.lock", ".limits.1.2"],
];

/// Alice's process, which has leases; not a test.
#[test]
#[ignore = "a part of other tests"]
fn lease() {
    let mut files = Vec::new();
    if std::env::var_os(STAYS).is_some() || std::env::var_os(NEXT).is_some() {
        // The signal that tells the holder of a lease that another process waits.
        // SAFETY: ignores a signal.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    }
    for path in std::env::var(FILES).expect("paths").split(':') {
        let mut options = File::options();
        let file = options.read(true).write(true).open(path).expect("opened");
        // SAFETY: an open descriptor, and a plain number.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        files.push((file, done));
    }
    let all = files.iter().all(|(_, done)| *done == 0);
    println!("\n#lease {all}");
    if let Some(next) = std::env::var_os(NEXT) {
        std::io::stdin()
            .read_line(&mut String::new())
            .expect("read");
        let next = File::options().read(true).write(true).open(next);
        let next = next.expect("opened");
        // SAFETY: open descriptors, and plain numbers.
        let done = unsafe {
            let done = libc::fcntl(next.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK);
            libc::fcntl(files[0].0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
            done
        };
        println!("\n#next {}", done == 0);
        crate::stay();
    }
    crate::stay();
}

/// A process of Alice's that has write leases.
struct Holder {
    role: Role,
    leases: usize,
}

impl Holder {
    /// `None` where the file system has no leases. The process ends when it is told that another
    /// one waits, or where it `stays`, not before the kernel ends the lease.
    fn new(directory: &Path, names: &[&str], stays: bool) -> Option<Self> {
        Self::with(directory, names, |command| {
            if stays {
                command.env(STAYS, "1");
            }
        })
    }

    /// Starts a process that has a lease on the file called `first`. When it gets a line, this
    /// process tries to take a lease on `next`, and then gives up the first one.
    fn in_turns(directory: &Path, first: &str, next: &str) -> Option<Self> {
        Self::with(directory, &[first], |command| {
            command.env(NEXT, directory.join(next));
        })
    }

    fn with(directory: &Path, names: &[&str], change: impl FnOnce(&mut Command)) -> Option<Self> {
        let paths = names.iter().map(|name| directory.join(name));
        let paths: Vec<_> = paths.map(|path| path.display().to_string()).collect();
        let mut command = crate::own(ALICE);
        change(command.env(FILES, paths.join(":")));
        let mut role = Role::start(&mut command, "leases::lease");
        if role.line("#lease ") != "true" {
            skip("there are no leases here");
            return None;
        }
        let leases = names.len();
        Some(Self { role, leases })
    }

    /// Returns whether the process still has all its leases. The kernel ends them 45 seconds after
    /// another process has first asked for the file: whatever ends before does not wait for them.
    fn has_leases(&self) -> bool {
        let pid = self.role.process.id().to_string();
        // The kernel may leave a line out if other locks change while the file is read.
        eventually(|| {
            let locks = fs::read_to_string("/proc/locks").expect("read");
            let own = locks.lines().filter(|line| {
                let mut words = line.split_whitespace();
                words.any(|word| word == "LEASE") && words.any(|word| word == pid)
            });
            own.count() == self.leases
        })
    }
}

/// Groups of root's, `lab` and `other`, and `lab/mine`, in which all files are Alice's.
fn groups(ground: &Ground) -> (Root, Group) {
    let root = Root::at(ground.make("groups", 0, 0o755)).expect("a root");
    let access = Access {
        owner: Some(ALICE),
        members: Members::Owner,
    };
    let limits = LimitSet::default();
    root.create_for("lab", &limits, access).expect("created");
    root.create("other", &limits).expect("created");
    let mine = root.create("lab/mine", &limits).expect("created").group;
    mine.write_limits(|_| ()).expect("written");
    let draft = ground.write("groups/lab/sub/mine/.limits.1.2", "", ALICE, 0o600);
    assert!(draft.exists() && mine.path().join(".limits.lock").exists());
    (root, mine)
}

/// A member can hold a lease on the ledger through its only descriptor.
#[test]
fn a_lease_on_a_ledger_blocks_neither_kill_nor_rm() {
    for (arguments, gone) in [
        (&["kill", "lab"][..], false),
        (&["rm", "--recursive", "--force", "lab"], true),
    ] {
        let Some(ground) = Ground::new() else { return };
        let (root, _) = groups(&ground);
        let lab = root.group("lab").expect("there");
        let Some(_holder) = Holder::new(lab.path(), &["ledger"], false) else {
            return;
        };
        let (status, said) = run(&mut ground.gpulimit(arguments));
        assert_eq!(status, Some(0), "{said}");
        assert_eq!(lab.ledger_path().exists(), !gone, "{said}");
    }
}

#[test]
fn verbs_that_change_a_group_wait_for_the_end_of_a_lease() {
    const POLICY: &str = "[group.lab]\nowner = '40001'\n\
        [group.\"lab/mine\"]\nowner = '40001'\nmax = '1G'\n[group.other]\n";
    for names in LEASED {
        for arguments in [
            &["kill", "lab/mine"][..],
            &["set", "lab/mine", "--max", "1G"],
            &["apply", "policy.toml"],
            &["rm", "lab/mine"],
            &["rm", "--force", "lab/mine"],
            &["rm", "--recursive", "lab"],
        ] {
            let Some(ground) = Ground::new() else { return };
            let (_, mine) = groups(&ground);
            ground.write("policy.toml", POLICY, 0, 0o644);
            let Some(holder) = Holder::new(mine.path(), names, false) else {
                return;
            };
            let (status, said) = run(&mut ground.gpulimit(arguments));
            drop(holder);
            assert_eq!(status, Some(0), "{names:?} {arguments:?}: {said}");
            let limits = mine.limits().map(|limits| limits.rules().expect("rules"));
            match arguments[0] {
                "rm" => assert!(!mine.path().exists(), "{names:?} {arguments:?}: {said}"),
                "kill" => assert_eq!(limits.expect("there"), LimitSet::default()),
                _ => assert_ne!(limits.expect("there"), LimitSet::default(), "{said}"),
            }
        }
    }
}

#[test]
fn verbs_that_look_name_a_group_with_a_lease_and_go_on() {
    for names in LEASED {
        let Some(ground) = Ground::new() else { return };
        let (_, mine) = groups(&ground);
        let Some(holder) = Holder::new(mine.path(), names, true) else {
            return;
        };
        // The files that each verb opens, in its order.
        for (verb, opens, fails) in [
            ("show", &["limits", "ledger"][..], 1),
            ("show --tree", &["limits", "ledger"], 1),
            ("ps", &["limits", "ledger"], 1),
            ("events", &["ledger"], 1),
            ("gc", &["ledger"], 0),
            ("doctor", &["limits", "ledger"], 0),
        ] {
            let (status, said) = run(&mut ground.gpulimit(&verb.split(' ').collect::<Vec<_>>()));
            let first = opens.iter().find(|file| names.contains(file));
            let why = |file: &&str| {
                let path = mine.path().join(file);
                format!(
                    "cannot open {}: another program has a lease (F_SETLEASE) on {file}",
                    path.display()
                )
            };
            match first.map(why) {
                Some(why) => assert!(said.contains(&why), "{names:?} {verb}: {said}"),
                None => assert!(!said.contains("F_SETLEASE"), "{names:?} {verb}: {said}"),
            }
            if verb != "doctor" {
                let expected = if first.is_some() { fails } else { 0 };
                assert_eq!(status, Some(expected), "{names:?} {verb}: {said}");
            }
            if verb.starts_with("show") {
                assert!(said.contains("other"), "{names:?} {verb}: {said}");
            }
            let is_foreign = said.contains("not make") || said.contains("not made");
            assert!(!is_foreign, "{names:?} {verb}: {said}");
            assert!(holder.has_leases(), "{names:?} {verb} waits for its end");
        }
        assert!(mine.path().exists());
    }
}

/// A program that always has a lease on one of two files would otherwise keep every verb out.
#[test]
fn files_of_a_group_are_waited_for_at_the_same_time() {
    for (first, next) in [("limits", "lock"), ("ledger", "limits"), ("lock", "ledger")] {
        let Some(ground) = Ground::new() else { return };
        let (root, mine) = groups(&ground);
        let Some(mut holder) = Holder::in_turns(mine.path(), first, next) else {
            return;
        };
        let until = Instant::now() + patience();
        let remove = || root.past_leases("lab/mine", until, || root.remove("lab/mine"));
        let next = mine.path().join(next);
        let removed = thread::scope(|scope| {
            let removal = scope.spawn(remove);
            let waits = eventually(|| removal.is_finished() || waits_with(&next));
            let input = holder.role.process.0.stdin.as_mut().expect("piped");
            input.write_all(b"\n").expect("written");
            assert!(waits && holder.role.line("#next ") == "false", "{next:?}");
            removal.join().expect("ended")
        });
        assert!(removed.is_ok(), "{first}, {next:?}: {removed:?}");
    }
}

/// Returns whether a thread of this process waits for the end of a lease, while the process has
/// this file open.
fn waits_with(path: &Path) -> bool {
    let entries = |folder| fs::read_dir(folder).expect("listed").flatten();
    let mut tasks = entries("/proc/self/task");
    let waits = tasks.any(|task| {
        let name = fs::read_to_string(task.path().join("wchan"));
        name.is_ok_and(|name| name.contains("break_lease"))
    });
    let is_it = |link: fs::DirEntry| fs::read_link(link.path()).is_ok_and(|file| file == path);
    waits && entries("/proc/self/fd").any(is_it)
}

#[test]
fn kill_needs_only_the_ledger() {
    let Some(ground) = Ground::new() else { return };
    let (_, mine) = groups(&ground);
    let stays = Holder::new(mine.path(), &["limits", "lock"], true);
    let ends = Holder::new(mine.path(), &["ledger"], false);
    let (Some(stays), Some(_ends)) = (stays, ends) else {
        return;
    };
    let (status, said) = run(&mut ground.gpulimit(&["kill", "lab/mine"]));
    assert_eq!(status, Some(0), "{said}");
    assert!(stays.has_leases(), "kill waits for other files: {said}");
}

#[test]
fn the_record_of_a_job_is_never_foreign_while_leases_hide_its_group() {
    let Some(ground) = Ground::new() else { return };
    let (root, _) = groups(&ground);
    let job = root.create("lab/run-1-1", &LimitSet::default());
    let job = job.expect("created").group;
    ground.write("groups/lab/sub/run-1-1/job", "gpulimit-job 1", ALICE, 0o600);
    let Some(_holder) = Holder::new(job.path(), &["limits", "ledger"], true) else {
        return;
    };
    for verb in ["gc", "doctor"] {
        let (_, said) = run(&mut ground.gpulimit(&verb.split(' ').collect::<Vec<_>>()));
        assert!(said.contains("F_SETLEASE"), "{verb}: {said}");
        assert!(!said.contains("not make"), "{verb}: {said}");
    }
}

#[test]
fn a_jobs_group_with_a_lease_on_its_ledger_is_not_taken_for_ended() {
    let Some(ground) = Ground::new() else { return };
    let (root, _) = groups(&ground);
    let job = root.create("lab/run-1-1", &LimitSet::default());
    let job = job.expect("created").group;
    assert!(job.has_ended(), "its job is not recorded");
    let Some(holder) = Holder::new(job.path(), &["ledger"], true) else {
        return;
    };
    assert!(!job.has_ended());
    drop(holder);
    assert!(job.has_ended());
}

/// The owner of a group may keep its members out. A member never runs without the limit instead.
#[test]
fn a_group_with_a_lease_is_not_joined_and_not_removed_by_a_guess() {
    for names in LEASED {
        let Some(ground) = Ground::new() else { return };
        let (root, mine) = groups(&ground);
        let Some(holder) = Holder::new(mine.path(), names, true) else {
            return;
        };
        let refused = |what: &str, error: Option<gpulimit_group::GroupError>| {
            let error = error.unwrap_or_else(|| panic!("{names:?}: {what}"));
            assert!(error.is_leased(), "{names:?} {what}: {error}");
            assert!(error.to_string().contains("F_SETLEASE"), "{error}");
        };
        if *names != [".limits.lock"] {
            let joined = Member::join(&root, "lab/mine");
            refused("joined", joined.err());
            refused("removed", root.remove("lab/mine").err());
        } else {
            Member::join(&root, "lab/mine").map(drop).expect("joined");
        }
        let short = Instant::now() + Duration::from_millis(100);
        let change = || mine.write_limits(|_| ());
        if names.iter().any(|name| name.contains("limits")) {
            refused("changed", mine.past_leases(short, change).err());
        } else {
            change().expect("changed");
        }
        assert!(holder.has_leases(), "{names:?}: its end is awaited");
        assert!(mine.limits_path().exists() && mine.ledger_path().exists());
    }
}
