//! Leases (`F_SETLEASE`): the owner of a file can keep other users, even root, from opening it.
#![allow(unsafe_code)]

use crate::{ALICE, Ground, run};
use gpulimit_group::{Access, Members, Root};
use gpulimit_limits::LimitSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const FILE: &str = "GPULIMIT_TEST_FILE";

/// The process of Alice that holds the lease, started by another test.
#[test]
#[ignore = "a part of other tests"]
fn lease() {
    let file = File::options()
        .read(true)
        .write(true)
        .open(std::env::var(FILE).expect("a path"))
        .expect("opened");
    // SAFETY: the descriptor is open as long as `file` lives, and the call gets only numbers.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    println!("\n#lease {done}");
    // The kernel ends this process by the signal about a waiting open.
    std::thread::sleep(std::time::Duration::from_secs(600));
}

/// A member can hold a lease on the ledger through its only descriptor.
#[test]
fn a_lease_on_a_ledger_blocks_neither_kill_nor_rm() {
    for (arguments, gone) in [
        (&["kill", "lab"][..], false),
        (&["rm", "--force", "lab"], true),
    ] {
        let Some(ground) = Ground::new() else { return };
        let root = Root::at(ground.make("groups", 0, 0o755)).expect("a root");
        let access = Access {
            owner: Some(ALICE),
            members: Members::Owner,
        };
        let made = root.create_for("lab", &LimitSet::default(), access);
        let ledger = made.expect("created").group.ledger_path();
        let mut alice = Command::new("/proc/self/exe")
            .args(["--exact", "leases::lease", "--ignored", "--nocapture"])
            .env(FILE, &ledger)
            .current_dir("/")
            .uid(ALICE)
            .gid(ALICE)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let out = BufReader::new(alice.stdout.take().expect("piped"));
        let mut lines = out.lines().map(|line| line.expect("read"));
        let line = lines.find(|line| line.starts_with("#lease "));
        if line.as_deref() == Some("#lease 0") {
            let (status, said) = run(&mut ground.gpulimit(arguments));
            assert_eq!(status, Some(0), "{said}");
            assert_eq!(ledger.exists(), !gone, "{said}");
        } else {
            eprintln!("SKIPPED: there are no leases here");
        }
        let _ = alice.kill();
        alice.wait().expect("ended");
    }
}
