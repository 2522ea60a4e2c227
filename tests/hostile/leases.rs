//! Leases (`F_SETLEASE`): the owner of a file can keep other users, even root, from opening it.
#![allow(unsafe_code)]

use crate::{ALICE, Ground, run};
use gpulimit_group::{Access, Group, Member, Members, Root};
use gpulimit_limits::LimitSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
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
    if std::env::var_os(STAYS).is_some() {
        // The signal that tells the holder of a lease that another process waits.
        // SAFETY: ignores a signal.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    }
    if std::env::var_os(NEXT).is_some() {
        let handler: extern "C" fn(libc::c_int) = ask;
        // SAFETY: the handler only stores an atomic.
        unsafe { libc::signal(libc::SIGIO, handler as usize) };
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
        while !ASKED.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The other process has time to open all files of the group once.
        std::thread::sleep(Duration::from_secs(2));
        let next = File::options().read(true).write(true).open(next);
        let next = next.expect("opened");
        // SAFETY: open descriptors, and plain numbers.
        unsafe {
            libc::fcntl(next.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK);
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            libc::fcntl(files[0].0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
        }
        std::thread::sleep(Duration::from_secs(600));
    }
    std::thread::sleep(Duration::from_secs(600));
}

/// Whether another process waits for the end of a lease.
static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn ask(_: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// A process of Alice's that has write leases.
struct Holder(Child);

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

    /// Starts a process that has a lease on the file called `first`. When another process waits for
    /// the lease's end, this process takes a lease on `next` before it gives up the first one.
    fn in_turns(directory: &Path, first: &str, next: &str) -> Option<Self> {
        Self::with(directory, &[first], |command| {
            command.env(NEXT, directory.join(next));
        })
    }

    fn with(directory: &Path, names: &[&str], change: impl FnOnce(&mut Command)) -> Option<Self> {
        let paths = names.iter().map(|name| directory.join(name));
        let paths: Vec<_> = paths.map(|path| path.display().to_string()).collect();
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["--exact", "leases::lease", "--ignored", "--nocapture"])
            .env(FILES, paths.join(":"))
            .current_dir("/")
            .uid(ALICE)
            .gid(ALICE)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut holder = Self(command.spawn().expect("started"));
        let out = BufReader::new(holder.0.stdout.take().expect("piped"));
        let mut lines = out.lines().map(|line| line.expect("read"));
        let line = lines.find(|line| line.starts_with("#lease "));
        if line.as_deref() != Some("#lease true") {
            eprintln!("SKIPPED: there are no leases here");
            return None;
        }
        Some(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().expect("ended");
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
        let Some(_holder) = Holder::new(mine.path(), names, true) else {
            return;
        };
        let start = Instant::now();
        // The files that each verb opens, in its order.
        for (verb, opens, fails) in [
            ("show", &["limits", "ledger"][..], 1),
            ("tree", &["limits", "ledger"], 1),
            ("ps", &["limits", "ledger"], 1),
            ("events", &["ledger"], 1),
            ("gc", &["ledger"], 0),
            ("doctor", &["limits", "ledger"], 0),
        ] {
            let (status, said) = run(&mut ground.gpulimit(&[verb]));
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
            if matches!(verb, "show" | "tree") {
                assert!(said.contains("other"), "{names:?} {verb}: {said}");
            }
            let is_foreign = said.contains("not make") || said.contains("not made");
            assert!(!is_foreign, "{names:?} {verb}: {said}");
        }
        // The kernel ends a lease after 45 seconds.
        assert!(start.elapsed() < Duration::from_secs(40));
        assert!(mine.path().exists());
    }
}

/// A program that always has a lease on one of two files would otherwise keep every verb out.
#[test]
fn files_of_a_group_are_waited_for_at_the_same_time() {
    for (first, next) in [("limits", "lock"), ("ledger", "limits"), ("lock", "ledger")] {
        let Some(ground) = Ground::new() else { return };
        let (root, mine) = groups(&ground);
        let Some(_holder) = Holder::in_turns(mine.path(), first, next) else {
            return;
        };
        // The kernel ends a lease after 45 seconds: the second lease would last longer than this.
        let until = Instant::now() + Duration::from_secs(30);
        let removed = root.past_leases("lab/mine", until, || root.remove("lab/mine"));
        assert!(removed.is_ok(), "{first}, {next}: {removed:?}");
    }
}

#[test]
fn kill_needs_only_the_ledger() {
    let Some(ground) = Ground::new() else { return };
    let (_, mine) = groups(&ground);
    let stays = Holder::new(mine.path(), &["limits", "lock"], true);
    let ends = Holder::new(mine.path(), &["ledger"], false);
    let (Some(_stays), Some(_ends)) = (stays, ends) else {
        return;
    };
    let start = Instant::now();
    let (status, said) = run(&mut ground.gpulimit(&["kill", "lab/mine"]));
    assert_eq!(status, Some(0), "{said}");
    // The kernel ends a lease after 45 seconds.
    assert!(start.elapsed() < Duration::from_secs(40));
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
        let (_, said) = run(&mut ground.gpulimit(&[verb]));
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
        let Some(_holder) = Holder::new(mine.path(), names, true) else {
            return;
        };
        let start = Instant::now();
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
        // The kernel ends a lease after 45 seconds.
        assert!(start.elapsed() < Duration::from_secs(40));
        assert!(mine.limits_path().exists() && mine.ledger_path().exists());
    }
}
