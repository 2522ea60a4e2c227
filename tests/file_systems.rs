//! File systems for groups: the test mounts each in a mount namespace; the file system either has
//! all that groups need, or is refused by name.
//!
//! The test binary runs itself in that namespace: with `FILE_SYSTEM` set, the test `inside` tests
//! that file system.

#[path = "file_systems/full.rs"]
mod full;
#[path = "groups/nothing.rs"]
mod nothing;

use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_group::{GroupError, Insistence, Member, Root};
use gpulimit_ledger::{Ledger, LedgerError};
use gpulimit_limits::{Key, LimitSet, Limits, Selector};
use gpulimit_support::{Running, clean, finish, is_root, skip, text, wait_until};
use nothing::Nothing;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const GIB: u64 = 1 << 30;
const GPU: DeviceId = DeviceId::gpu([0x42; 16]);

/// Runs the test `inside` in a mount namespace where `/mnt` is an empty tmpfs.
fn run(file_system: &str) {
    if !is_root() {
        return;
    }
    let exe = std::env::current_exe().expect("known");
    let script = "mount -t tmpfs -o size=1g none /mnt && exec \"$0\" --exact inside --nocapture";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(exe)
        .env("FILE_SYSTEM", file_system);
    let output = finish(command.stdin(Stdio::null()));
    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{file_system}: {all}");
    if let Some((_, why)) = all.split_once("LACKS ") {
        skip(why.lines().next().unwrap_or_default());
        return;
    }
    assert!(
        all.contains("CHECKED"),
        "{file_system}: nothing was checked: {all}"
    );
}

#[test]
fn inside() {
    let Ok(name) = std::env::var("FILE_SYSTEM") else {
        return;
    };
    match name.split_once(' ') {
        None => {
            if let Some(place) = Place::of(&name) {
                holds_groups(&place.path);
                println!("CHECKED {name}");
            }
        }
        Some(("full", case)) => {
            full::check(case);
            println!("CHECKED {name}");
        }
        Some(("overlayfs", upper)) => {
            if let Some(place) = Place::of(upper) {
                overlay_is_refused(&place.path);
                println!("CHECKED {name}");
            }
        }
        Some(("fuse", subtype)) => {
            if let Some(place) = Place::of(&name) {
                let fuse = format!("fuse.{subtype}");
                is_refused(&place.path, &fuse, "between machines");
                println!("CHECKED {name}");
            }
        }
        Some(_) => panic!("{name}: unknown"),
    }
}

/// A place on a file system of one kind.
struct Place {
    path: PathBuf,
    /// The process that serves the file system, if any; the file system ends with it.
    _server: Option<Running>,
}

impl Place {
    /// Makes the place; `None`, with a message, where this machine lacks the file system.
    fn of(name: &str) -> Option<Self> {
        let path = Path::new("/mnt/place");
        fs::create_dir(path).expect("made");
        let (kind, option) = name.split_once(' ').unwrap_or((name, ""));
        if kind == "tmpfs" {
            return Some(Self::mount(path));
        }
        let known = fs::read_to_string("/proc/filesystems").expect("readable");
        if !known
            .lines()
            .any(|line| line.ends_with(&format!("\t{kind}")))
        {
            return lacks(name, "the kernel's part");
        }
        if kind == "fuse" {
            return Self::served(path, name, option);
        }
        let image = "/mnt/image";
        let file = fs::File::create(image).expect("made");
        file.set_len(400 << 20).expect("as long as xfs wants it");
        let made = Command::new(format!("/usr/sbin/mkfs.{kind}"))
            .args(["-q", image])
            .output();
        match made {
            Err(_) => return lacks(name, "mkfs (scripts/setup filesystems)"),
            Ok(made) => assert!(made.status.success(), "{made:?}"),
        }
        let mounted = Command::new("mount")
            .args(["-o", "loop", image])
            .arg(path)
            .output()
            .expect("mount is of util-linux");
        if !mounted.status.success() {
            let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
            assert!(said.contains("loop"), "{said}");
            return lacks(name, "a loop device");
        }
        Some(Self::mount(path))
    }

    fn mount(path: &Path) -> Self {
        Self {
            path: path.into(),
            _server: None,
        }
    }

    fn served(path: &Path, name: &str, subtype: &str) -> Option<Self> {
        fs::create_dir("/mnt/behind").expect("made");
        let mut command = Command::new("bindfs");
        command.args(["-f", "/mnt/behind"]).arg(path);
        if !subtype.is_empty() {
            command.args(["-o", &format!("subtype={subtype}")]);
        }
        if Command::new("bindfs").arg("--version").output().is_err() {
            return lacks(name, "bindfs (scripts/setup filesystems)");
        }
        let server = Some(Running::start(&mut command));
        wait_until("bindfs has mounted", || {
            let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
            mounts.contains(" /mnt/place ")
        });
        Some(Self {
            path: path.into(),
            _server: server,
        })
    }
}

/// Tells the test, which waits for this process, why it cannot run.
fn lacks<T>(name: &str, what: &str) -> Option<T> {
    println!("LACKS {what} of {name}");
    None
}

fn gpulimit(root: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpulimit"));
    clean(command.args(arguments)).env("GPULIMIT_ROOT", root);
    let output = command.output().expect("run");
    let said = text(&output.stdout) + &text(&output.stderr);
    (output.status.success(), said)
}

/// Returns what another process sees of the group: its live members, and their charge.
fn seen(root: &Path) -> (usize, u64) {
    let (fine, said) = gpulimit(root, &["ps", "lab", "--json"]);
    assert!(fine, "{said}");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let processes = said["processes"].as_array().expect("a list");
    let running = processes
        .iter()
        .filter(|process| process["state"] == "running");
    let used = running
        .clone()
        .filter_map(|process| process["total"].as_u64());
    (running.count(), used.sum())
}

/// Asserts that a file system has all that groups need: shared figures, locks that live as long as
/// the member, and limits that change.
fn holds_groups(place: &Path) {
    let root = place.join("root");
    let (fine, said) = gpulimit(&root, &["create", "lab", "max=4G"]);
    assert!(fine, "{said}");
    let groups = Root::at(&root).expect("a root");
    let ledger = groups.group("lab").and_then(|group| group.ledger());
    let ledger = ledger.expect("opened");
    let member = Member::join(&groups, "lab").expect("joined");
    let device = member.device(GPU, 80 * GIB).expect("known");
    let charge = |bytes| device.charge(bytes, &Nothing, Insistence::Full).is_ok();
    assert!(charge(3 * GIB) && !charge(2 * GIB));
    assert!(ledger.has_live());
    assert_eq!(seen(&root), (1, 3 * GIB));
    let (fine, said) = gpulimit(&root, &["set", "lab", "max=6G"]);
    assert!(fine, "{said}");
    assert_eq!(device.max(), 6 * GIB);
    assert!(charge(2 * GIB));
    let (removed, _) = gpulimit(&root, &["rm", "lab"]);
    assert!(!removed, "a group with a program was removed");
    // Some programs close all their descriptors.
    let all = fs::read_dir("/proc/self/fd").expect("listed");
    let open = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for descriptor in open
        .filter(|descriptor: &i32| *descriptor > 2)
        .collect::<Vec<_>>()
    {
        let to = fs::read_link(format!("/proc/self/fd/{descriptor}"));
        assert!(
            !to.is_ok_and(|to| to.starts_with(&root)),
            "a descriptor leads to the root of the groups"
        );
    }
    drop(member);
    assert!(!ledger.has_live());
    drop(ledger);
    let (fine, said) = gpulimit(&root, &["rm", "lab"]);
    assert!(fine, "{said}");
    let (_, said) = gpulimit(&root, &["doctor"]);
    let name = gpulimit_base::file_system::FileSystem::of(&root).expect("there");
    let line = format!("{} on {}, owner root", root.display(), name.name);
    assert!(said.contains(&line), "{said}");
}

/// Asserts that every command that makes a group, joining an existing group, and doctor name the
/// file system and the remedy.
fn is_refused(place: &Path, name: &str, why: &str) {
    let root = place.join("root");
    let is_named = |said: &str| {
        assert!(said.contains(&format!("lies on {name}, which")), "{said}");
        assert!(
            said.contains(why) && said.contains("GPULIMIT_ROOT=/"),
            "{said}"
        );
    };
    let (fine, said) = gpulimit(&root, &["create", "lab", "max=4G"]);
    assert!(!fine);
    is_named(&said);
    let (_, said) = gpulimit(&root, &["doctor"]);
    is_named(&said);
    assert!(said.contains("cannot be applied"), "{said}");
    let (fine, _) = gpulimit(&root, &["show", "lab"]);
    assert!(!fine, "nothing was made");
}

/// Tests an overlay whose lower directory already has a group, as a container image may, and an
/// empty overlay.
fn overlay_is_refused(upper: &Path) {
    for name in ["lower", "upper", "work", "merged", "empty"] {
        fs::create_dir(upper.join(name)).expect("made");
    }
    let lower = Root::at(upper.join("lower/there")).expect("a root");
    let limits = LimitSet::all(Size::Bytes(4 * GIB));
    drop(lower.create("lab", &limits).expect("created"));
    let options =
        ["lower", "upper", "work"].map(|name| format!("{name}dir={}", upper.join(name).display()));
    let merged = upper.join("merged");
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "none", "-o", &options.join(",")])
        .arg(&merged)
        .output()
        .expect("mount is of util-linux");
    assert!(mounted.status.success(), "{mounted:?}");
    is_refused(&merged, "overlayfs", "copies a file");
    // This group exists, and its files are still those of the lower directory.
    let there = Root::at(merged.join("there")).expect("a root");
    match Member::join(&there, "lab") {
        Err(GroupError::FileSystem(unsuitable)) => assert_eq!(unsuitable.name, "overlayfs"),
        joined => panic!("{:?}", joined.map(drop)),
    }
    // The check is needed because `set` writes a copy, which is not the file that was mapped
    // before.
    let path = merged.join("there/lab/limits");
    let mapped = Limits::open(&path).expect("opened");
    let double = |set: &mut LimitSet| set.set(Selector::All, Key::Max, Size::Bytes(8 * GIB));
    Limits::write(&path, double).expect("written");
    assert_eq!(mapped.bounds(&GPU, 80 * GIB).max, 4 * GIB, "not seen");
    // Even without the file system's name, the lock shows the problem: to a process that makes a
    // ledger, and to one that joins a group.
    let lost = |error: LedgerError| match error {
        LedgerError::FileSystem(unsuitable) => {
            assert_eq!(unsuitable.name, "overlayfs");
            assert!(unsuitable.to_string().contains("drops the lock"));
        }
        other => panic!("{other}"),
    };
    lost(Ledger::create(&merged.join("ledger"), 0o600).expect_err("refused"));
    assert!(!merged.join("ledger").exists());
    let ledger = Ledger::open(&merged.join("there/lab/ledger")).expect("opened");
    let ledger = std::sync::Arc::new(ledger);
    let own = gpulimit_base::identity::Identity::of_self();
    lost(ledger.claim(&own, "").map(drop).expect_err("refused"));
}

#[test]
fn tmpfs_holds_groups() {
    run("tmpfs");
}

#[test]
fn ext4_holds_groups() {
    run("ext4");
}

#[test]
fn xfs_holds_groups() {
    run("xfs");
}

#[test]
fn btrfs_holds_groups() {
    run("btrfs");
}

#[test]
fn fuse_holds_groups() {
    run("fuse");
}

#[test]
fn fuse_from_other_machines_is_refused() {
    run("fuse sshfs");
}

#[test]
fn overlayfs_is_refused_over_tmpfs() {
    run("overlayfs tmpfs");
}

#[test]
fn overlayfs_is_refused_over_ext4() {
    run("overlayfs ext4");
}

#[test]
fn overlayfs_is_refused_over_xfs() {
    run("overlayfs xfs");
}

#[test]
fn overlayfs_is_refused_over_btrfs() {
    run("overlayfs btrfs");
}
