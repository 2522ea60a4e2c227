//! Attacks on groups by unprivileged users; each attack must have no effect.
//!
//! The test binary runs itself as the other users: with `PERMISSION_ROLE` set, the test `role` acts
//! as one of them.
#![allow(unsafe_code)]

#[path = "../../../tests/groups/nothing.rs"]
mod nothing;

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::Size;
use gpulimit_group::{Access, Group, GroupError, Insistence, Member, Members, Root};
use gpulimit_ledger::{Ledger, MAX_SLOTS};
use gpulimit_limits::{Key, LimitSet, Limits, Selector};
use gpulimit_support::{Scratch, is_root, wait_until};
use nothing::Nothing;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ALICE: u32 = 40_001;
const BOB: u32 = 40_002;
const GPU: DeviceId = DeviceId::gpu([0x42; 16]);
const CAPACITY: u64 = 80 << 30;
const GIB: u64 = 1 << 30;

/// A root of groups as an administrator makes it: the group `lab`, and below it a group for each of
/// two users.
struct Lab(Scratch);

impl Lab {
    /// Returns `None` where the tests do not run as root and cannot become another user.
    fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let lab = Self(Scratch::in_memory());
        fs::set_permissions(&*lab.0, Permissions::from_mode(0o755)).expect("readable for all");
        let root = lab.root();
        root.create("lab", &set(8 * GIB)).expect("created");
        for (name, owner) in [("lab/alice", ALICE), ("lab/bob", BOB)] {
            let access = Access {
                owner: Some(owner),
                members: Members::Owner,
            };
            root.create_for(name, &set(4 * GIB), access)
                .expect("created");
        }
        Some(lab)
    }

    fn root(&self) -> Root {
        Root::at(&*self.0).expect("a root")
    }

    fn group(&self, name: &str) -> Group {
        self.root().group(name).expect("there")
    }

    /// Starts a process as another user, which does what `role` says.
    fn start(&self, uid: u32, role: &str) -> Actor {
        // The path `/proc/self/exe` works for users who may not read the test binary's directory.
        let mut child = Command::new("/proc/self/exe")
            .args(["--exact", "role", "--nocapture"])
            .env("PERMISSION_ROLE", role)
            .env("PERMISSION_ROOT", &*self.0)
            .current_dir("/")
            .uid(uid)
            .gid(uid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let input = child.stdin.take();
        Actor { child, input, out }
    }

    /// Describes every file below a directory by its name, owner, permissions, kind and limits,
    /// without the content of ledgers.
    fn picture(&self, below: &str) -> Vec<String> {
        let mut seen = Vec::new();
        let mut ahead = vec![self.0.join(below)];
        while let Some(path) = ahead.pop() {
            let about = fs::symlink_metadata(&path).expect("there");
            let content = match path.file_name().and_then(|name| name.to_str()) {
                Some("limits") => Limits::open(&path)
                    .and_then(|limits| limits.rules())
                    .expect("readable")
                    .to_string(),
                _ => String::new(),
            };
            seen.push(format!(
                "{} {} {} {:o} {} {content}",
                path.display(),
                about.uid(),
                about.gid(),
                about.mode(),
                about.ino()
            ));
            if about.is_dir() {
                let entries = fs::read_dir(&path).expect("listed");
                ahead.extend(entries.map(|entry| entry.expect("read").path()));
            }
        }
        seen.sort();
        seen
    }
}

struct Actor {
    child: Child,
    input: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Actor {
    /// Waits for the next output line that contains `mark`, and returns the rest of the line.
    fn hear(&mut self, mark: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.out.read_line(&mut line).expect("read"),
                0,
                "the other user's process has ended"
            );
            // The test harness writes its own text before the process's first line, so the mark may
            // be inside a line.
            if let Some((_, rest)) = line.split_once(&format!("#{mark}")) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Lets the process end, and returns its remaining output.
    fn end(mut self) -> String {
        drop(self.input.take());
        let mut said = String::new();
        self.out.read_to_string(&mut said).expect("read");
        assert!(self.child.wait().expect("ended").success(), "{said}");
        said
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set(size: u64) -> LimitSet {
    LimitSet::all(Size::Bytes(size))
}

fn say(line: &str) {
    println!("#{line}");
    std::io::stdout().flush().expect("written");
}

fn wait_for_the_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// The work of the other users' processes, not a test.
#[test]
fn role() {
    let (Some(role), Some(root)) = (
        std::env::var_os("PERMISSION_ROLE"),
        std::env::var_os("PERMISSION_ROOT"),
    ) else {
        return;
    };
    let root = PathBuf::from(root);
    let role = role.to_str().expect("a name");
    if let Some(view) = role.strip_prefix("know ") {
        return know(&root, Path::new(view));
    }
    match role {
        "break in" => break_in(&root),
        "hold locks" => hold_locks(&root),
        "swap" => swap(&root),
        "fill" => fill(&root),
        "charge" => charge(&root),
        "leave a trail" => leave_a_trail(&root.join("hers")),
        other => panic!("{other}"),
    }
}

// Attacks that permissions must stop.

/// Tries everything that the user alice must not be able to do, and prints how many attempts there
/// were.
fn break_in(root: &Path) {
    let mut tried = 0;
    let mut refused = |what: String, done: Result<(), String>| {
        tried += 1;
        if done.is_ok() {
            say(&format!("BROKE IN: {what}"));
        }
    };
    fn result<T>(done: Result<T, impl Debug>) -> Result<(), String> {
        done.map(drop).map_err(|error| format!("{error:?}"))
    }
    let own = root.join("lab/sub/alice");
    let bob = root.join("lab/sub/bob");
    let mine = own.join("sub/mine");
    fs::write(&mine, "mine").expect("alice may write in her own directory");
    let mut attack = |path: &Path, what: &str, done: Result<(), String>| {
        refused(format!("{what} {}", path.display()), done);
    };
    let write = |path: &Path| OpenOptions::new().write(true).open(path);
    for directory in [
        root,
        &root.join("lab"),
        &root.join("lab/sub"),
        &own,
        &bob,
        &bob.join("sub"),
    ] {
        let into = directory.join("x");
        attack(directory, "make a file in", result(File::create(&into)));
        attack(
            directory,
            "make a directory in",
            result(fs::create_dir(&into)),
        );
        attack(directory, "make a link in", result(symlink("/tmp", &into)));
        attack(directory, "link into", result(fs::hard_link(&mine, &into)));
        attack(directory, "move into", result(fs::rename(&mine, &into)));
        attack(
            directory,
            "chmod",
            result(fs::set_permissions(
                directory,
                Permissions::from_mode(0o777),
            )),
        );
        attack(
            directory,
            "chown",
            result(chown(directory, Some(ALICE), None)),
        );
        attack(
            directory,
            "move",
            result(fs::rename(directory, own.join("sub/moved"))),
        );
        attack(directory, "remove", result(fs::remove_dir_all(directory)));
        for name in ["limits", "ledger", "lock", "sub"] {
            let file = directory.join(name);
            if !file.exists() {
                continue;
            }
            attack(&file, "unlink", result(fs::remove_file(&file)));
            attack(
                &file,
                "rename",
                result(fs::rename(&file, directory.join("y"))),
            );
            attack(&file, "replace", result(fs::rename(&mine, &file)));
        }
    }
    for limits in [
        root.join("lab/limits"),
        own.join("limits"),
        bob.join("limits"),
    ] {
        attack(&limits, "write", result(write(&limits)));
        attack(
            &limits,
            "truncate",
            result(OpenOptions::new().write(true).truncate(true).open(&limits)),
        );
        attack(
            &limits,
            "chmod",
            result(fs::set_permissions(&limits, Permissions::from_mode(0o666))),
        );
        attack(&limits, "chown", result(chown(&limits, Some(ALICE), None)));
        let lock = limits.with_file_name(".limits.lock");
        attack(&lock, "open", result(File::open(&lock)));
    }
    for file in [bob.join("ledger"), bob.join("lock")] {
        attack(&file, "open", result(File::open(&file)));
        attack(&file, "write", result(write(&file)));
        attack(
            &file,
            "chmod",
            result(fs::set_permissions(&file, Permissions::from_mode(0o666))),
        );
        attack(
            &file,
            "link",
            result(fs::hard_link(&file, own.join("sub/linked"))),
        );
    }
    let root = Root::at(root).expect("a root");
    let raise = |set: &mut LimitSet| set.set(Selector::All, Key::Max, Size::Max);
    for name in ["lab", "lab/alice", "lab/bob"] {
        let group = root.group(name).expect("every user can read the group");
        attack(group.path(), "raise", result(group.write_limits(raise)));
        attack(group.path(), "remove the group", result(root.remove(name)));
        if name != "lab/alice" {
            attack(
                group.path(),
                "take",
                result(group.give_access(Access {
                    owner: Some(ALICE),
                    members: Members::All,
                })),
            );
        }
    }
    attack(
        &bob,
        "read the ledger of",
        result(root.group("lab/bob").expect("there").ledger()),
    );
    attack(&bob, "join", result(Member::join(&root, "lab/bob")));
    attack(
        &bob,
        "make a group below",
        result(root.create("lab/bob/mine", &set(GIB))),
    );
    attack(
        root.path(),
        "make a group in",
        result(root.create("mine", &set(GIB))),
    );
    fs::remove_file(&mine).expect("alice's group is intact");
    Member::join(&root, "lab/alice").expect("her own group");
    root.create("lab/alice/job", &set(GIB))
        .expect("below her own");
    root.remove("lab/alice/job").expect("hers");
    say(&format!("tried {tried}"));
}

#[test]
fn a_user_cannot_change_the_files_of_others() {
    let Some(lab) = Lab::new() else { return };
    // A change of the limits makes the file `.limits.lock`, so that it exists for the attacks.
    for name in ["lab", "lab/alice", "lab/bob"] {
        lab.group(name).write_limits(|_| {}).expect("written");
    }
    let before = lab.picture("");
    let said = lab.start(ALICE, "break in").end();
    assert!(!said.contains("BROKE IN"), "{said}");
    let (_, tried) = said.split_once("#tried ").expect("all attempts were made");
    let tried: u32 = tried
        .lines()
        .next()
        .unwrap_or_default()
        .parse()
        .expect("a number");
    assert!(tried > 100, "{tried}");
    assert_eq!(lab.picture(""), before);
}

/// Takes every kind of lock on all files that alice can open.
fn hold_locks(root: &Path) {
    let mut held = Vec::new();
    for group in ["lab/sub/bob", "lab"] {
        for name in ["limits", "lock", "ledger", ".limits.lock"] {
            // Alice may lock these files of `lab`, because she may write them. The test leaves
            // these files out.
            if group == "lab" && matches!(name, "lock" | "ledger") {
                continue;
            }
            if let Ok(file) = File::open(root.join(group).join(name)) {
                // SAFETY: `flock` consists of plain integers, for which zeros are valid.
                let mut lock: libc::flock = unsafe { std::mem::zeroed() };
                lock.l_type = libc::F_RDLCK as libc::c_short;
                // SAFETY: the descriptor is open, and `lock` outlives the call.
                unsafe {
                    assert_eq!(
                        libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB),
                        0
                    );
                    assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock), 0);
                }
                held.push(file);
            }
        }
    }
    say(&format!("held {}", held.len()));
    wait_for_the_end();
}

#[test]
fn locks_on_readable_files_keep_no_process_out() {
    let Some(lab) = Lab::new() else { return };
    let mut alice = lab.start(ALICE, "hold locks");
    assert_eq!(alice.hear("held"), "2", "alice locks two limits files");
    for name in ["lab", "lab/bob"] {
        lab.group(name)
            .write_limits(|set| set.set(Selector::All, Key::Max, Size::Bytes(2 * GIB)))
            .expect("written");
    }
    let mut bob = lab.start(BOB, "charge");
    assert_eq!(bob.hear("charged"), "in lab/bob");
    drop(bob);
    lab.root().remove("lab/bob").expect("removed");
    alice.end();
}

/// Charges 1 GiB in bob's group.
fn charge(root: &Path) {
    let root = Root::at(root).expect("a root");
    match Member::join(&root, "lab/bob") {
        Ok(member) => {
            let device = member.device(GPU, CAPACITY).expect("a device");
            device
                .charge(GIB, &Nothing, Insistence::Full)
                .expect("room");
            say("charged in lab/bob");
        }
        Err(error) => say(&format!("charged not: {error}")),
    }
    wait_for_the_end();
}

// Attacks on root while root works in a directory that a user owns.

/// Swaps a group below alice's own for a link to bob's group and back, 20,000 times.
fn swap(root: &Path) {
    let sub = root.join("lab/sub/alice/sub");
    let (name, aside) = (sub.join("job-1-1"), sub.join("aside"));
    say("swapping");
    for _ in 0..20_000 {
        let _ = fs::create_dir(&name);
        let _ = fs::rename(&name, &aside);
        let _ = symlink("../../bob", &name);
        let _ = fs::remove_file(&name);
        let _ = fs::rename(&aside, &name);
        for file in ["ledger", "lock", "limits"] {
            let file = name.join(file);
            let _ = fs::remove_file(&file);
            let _ = symlink(
                Path::new("../../../bob").join(file.file_name().expect("a name")),
                &file,
            );
        }
    }
    say("swapped");
}

#[test]
fn root_is_not_led_out_of_a_users_directory() {
    let Some(lab) = Lab::new() else { return };
    // Bob runs no program, because root does not remove a group that is in use.
    lab.group("lab/bob").write_limits(|_| {}).expect("written");
    let before = lab.picture("lab/sub/bob");
    let mut alice = lab.start(ALICE, "swap");
    alice.hear("swapping");
    let root = lab.root();
    let name = "lab/alice/job-1-1";
    let is_over = std::thread::spawn(move || alice.hear("swapped"));
    let mut rounds = 0;
    while rounds < 300 || !is_over.is_finished() {
        // Alice's swaps can make these calls fail, so their results are ignored.
        let _ = root.create(name, &set(GIB));
        if let Ok(group) = root.group(name) {
            let _ = group.write_limits(|set| set.set(Selector::All, Key::Max, Size::Max));
            let _ = group.give_access(Access {
                owner: Some(ALICE),
                members: Members::All,
            });
        }
        let _ = root.remove(name);
        let _ = root.collect_garbage();
        rounds += 1;
    }
    is_over.join().expect("alice has swapped to the end");
    assert_eq!(lab.picture("lab/sub/bob"), before);
}

#[test]
fn below_a_users_directory_everything_is_the_users_and_links_are_not_followed() {
    let Some(lab) = Lab::new() else { return };
    let root = lab.root();
    let made = root
        .create("lab/alice/job", &set(GIB))
        .expect("created")
        .group;
    for path in [
        made.path().into(),
        made.limits_path(),
        made.ledger_path(),
        made.below_path(),
    ] {
        assert_eq!(
            fs::metadata(&path).expect("there").uid(),
            ALICE,
            "{}",
            path.display()
        );
    }
    let for_bob = Access {
        owner: Some(BOB),
        members: Members::Owner,
    };
    let error = root
        .create_for("lab/alice/bobs", &set(GIB), for_bob)
        .expect_err("hers");
    assert!(
        matches!(error, GroupError::Delegated { owner: ALICE, .. }),
        "{error}"
    );
    assert!(
        root.group("lab/alice/bobs")
            .is_err_and(|error| error.is_missing())
    );
    // Alice can make a hard link to bob's ledger if `fs.protected_hardlinks` is off.
    let ledger = lab.group("lab/bob").ledger_path();
    let before = lab.picture("lab/sub/bob");
    fs::remove_file(made.ledger_path()).expect("removed");
    fs::hard_link(&ledger, made.ledger_path()).expect("linked");
    made.give_access(Access {
        owner: None,
        members: Members::All,
    })
    .expect_err("bob's file");
    assert_eq!(lab.picture("lab/sub/bob"), before);
    // After the failure this thread has the full rights of root again.
    fs::write(lab.0.join("lab/new"), "").expect("writable for root");
    fs::remove_file(lab.0.join("lab/new")).expect("writable for root");
    // Alice may remove the hard link's name, so root may do so with her rights.
    root.remove("lab/alice/job").expect("removed");
    assert_eq!(lab.picture("lab/sub/bob"), before);
}

#[test]
fn a_users_own_files_do_not_cause_a_half_removed_group() {
    let Some(lab) = Lab::new() else { return };
    let group = lab.group("lab/alice");
    let junk = group.below_path().join(".junk");
    fs::write(&junk, "").expect("written");
    let error = lab
        .root()
        .remove("lab/alice")
        .expect_err("not empty")
        .to_string();
    assert!(
        error.contains(&group.below_path().display().to_string()),
        "{error}"
    );
    assert_eq!(
        lab.group("lab/alice")
            .limits()
            .expect("there")
            .rules()
            .expect("rules"),
        set(4 * GIB)
    );
    fs::remove_file(&junk).expect("removed");
    lab.root().remove("lab/alice").expect("removed");
}

#[test]
fn groups_above_are_opened_no_further_than_those_below_need() {
    const TEAM: u32 = 40_003;
    let Some(lab) = Lab::new() else { return };
    let root = lab.root();
    let top = root.create("top", &set(GIB)).expect("created").group;
    let seen = |path: PathBuf| {
        let about = fs::metadata(path).expect("there");
        (about.uid(), about.gid(), about.mode() & 0o7777)
    };
    let files = || [seen(top.ledger_path()), seen(top.path().join("lock"))];
    let make = |name: &str, owner, members| {
        let access = Access { owner, members };
        root.create_for(name, &set(GIB), access).expect("created");
    };
    make("top/own", None, Members::Owner);
    assert_eq!(files(), [(0, 0, 0o600); 2]);
    make("top/team", None, Members::UnixGroup(TEAM));
    assert_eq!(files(), [(0, TEAM, 0o660); 2]);
    make("top/second", None, Members::UnixGroup(TEAM));
    assert_eq!(files(), [(0, TEAM, 0o660); 2]);
    make("top/alice", Some(ALICE), Members::Owner);
    assert_eq!(files(), [(0, TEAM, 0o666); 2]);
    assert_eq!(seen(top.limits_path()), (0, 0, 0o644));
}

// Attacks on a job of root whose programs may become other users.

/// Does what alice can do to the job `run-1-2` if she has learned the path of its secret view, and
/// tries what she cannot do.
fn know(root: &Path, view: &Path) {
    let job = Root::at(view).expect("a root");
    let group = job.group("run-1-2").expect("there");
    let raise = |set: &mut LimitSet| set.set(Selector::All, Key::Max, Size::Max);
    let write = |path: PathBuf| OpenOptions::new().write(true).open(path).is_ok();
    let mut broken = vec![
        ("raise", group.write_limits(raise).is_ok()),
        ("write the limits", write(group.limits_path())),
        ("remove", job.remove("run-1-2").is_ok()),
        ("make a job", job.create("run-3-4", &set(GIB)).is_ok()),
        ("below", job.create("run-1-2/x", &set(GIB)).is_ok()),
        ("list", fs::read_dir(root.join(".secret")).is_ok()),
        ("enter", fs::metadata(root.join("run-1-2/ledger")).is_ok()),
    ];
    let public = Root::at(root).expect("a root");
    for name in ["run-1-2", "run-7-8", "lab/run-1-2"] {
        broken.push((name, Member::join(&public, name).is_ok()));
    }
    for directory in [view, group.path(), &group.below_path()] {
        broken.push(("make", File::create(directory.join("x")).is_ok()));
        broken.push(("move", fs::rename(directory, root.join("x")).is_ok()));
        for name in ["limits", "ledger", "lock"] {
            broken.push(("unlink", fs::remove_file(directory.join(name)).is_ok()));
        }
    }
    broken.retain(|(_, has_worked)| *has_worked);
    say(&format!("did {broken:?}"));
    let told = Member::join(&public, "lab/run-1-2").err();
    say(&format!("told {}", told.expect("root's")));
    // She can falsify the figures of this job.
    let member = Member::join(&job, "run-1-2").expect("joined");
    let device = member.device(GPU, CAPACITY).expect("a device");
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("room");
    say("charged");
    wait_for_the_end();
    // She can deny it to others, too.
    let lock = File::open(group.path().join("lock")).expect("open");
    // SAFETY: the descriptor is open.
    let held = unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    say(&format!("held {held}"));
    std::process::exit(0);
}

#[test]
fn who_knows_a_jobs_secret_denies_and_falsifies_this_job_and_nothing_else() {
    let Some(lab) = Lab::new() else { return };
    let root = lab.root();
    let make = |name: &str| root.create(name, &set(GIB)).expect("created").group;
    let [job, other, below] = ["run-1-2", "run-7-8", "lab/run-1-2"].map(make);
    let view = job.show_in_secret().expect("made").expect("root's own");
    assert!(other.show_in_secret().expect("made").is_some());
    assert_eq!(below.show_in_secret().expect("none"), None, "below a group");
    let before = lab.picture("");
    let mut alice = lab.start(ALICE, &format!("know {}", view.display()));
    assert_eq!(alice.hear("did"), "[]");
    let told = alice.hear("told");
    assert!(told.contains("`gpulimit run --user`"), "{told}");
    alice.hear("charged");
    let charge = |name: &str| {
        let member = Member::join(&root, name).expect("joined");
        let device = member.device(GPU, CAPACITY).expect("a device");
        device.charge(GIB, &Nothing, Insistence::Full).is_ok()
    };
    assert!(!charge("run-1-2"), "it is charged");
    assert!(charge("run-7-8") && charge("lab/run-1-2"));
    assert_eq!(lab.picture(""), before);
    drop(alice.input.take());
    assert_eq!(alice.hear("held"), "0");
    alice.end();
    assert!(charge("run-1-2"));
    root.remove("run-1-2").expect("removed");
    assert!(!view.exists(), "its view is removed with it");
    assert_eq!(
        fs::read_dir(lab.0.join(".secret")).expect("listed").count(),
        1
    );
}

// Attacks on the slots of a ledger.

/// Takes every slot in the ledger of `lab`, the group in which both users are charged.
fn fill(root: &Path) {
    let root = Root::at(root).expect("a root");
    let ledger = root.group("lab").expect("there").ledger_path();
    let ledger = Arc::new(Ledger::open(&ledger).expect("writable for alice"));
    let own = Identity::of_self();
    let slots: Vec<_> = (0..MAX_SLOTS)
        .map_while(|_| ledger.claim(&own, "").ok())
        .collect();
    say(&format!("filled {}", slots.len()));
    wait_for_the_end();
}

#[test]
fn a_process_that_finds_all_slots_taken_is_refused() {
    let Some(lab) = Lab::new() else { return };
    let mut alice = lab.start(ALICE, "fill");
    assert_eq!(alice.hear("filled"), MAX_SLOTS.to_string());
    let mut bob = lab.start(BOB, "charge");
    let said = bob.hear("charged");
    assert!(
        said.starts_with("not: ") && said.contains("slots are taken"),
        "{said}"
    );
    alice.end();
    drop(bob);
    let mut bob = lab.start(BOB, "charge");
    assert_eq!(bob.hear("charged"), "in lab/bob");
}

// Attacks on the content of a ledger. Alice may write the ledger of her own group, because she is
// charged in it.

/// The part of a ledger that holds the figures of devices and slots: its offset and its length in
/// bytes.
const WORDS: (u64, usize) = (16 << 10, 1 << 20);

#[test]
fn erasing_charges_from_the_ledger_gains_nothing() {
    let Some(lab) = Lab::new() else { return };
    let root = lab.root();
    let member = Member::join(&root, "lab/alice").expect("joined");
    let device = member.device(GPU, CAPACITY).expect("a device");
    let charge = |bytes| device.charge(bytes, &Nothing, Insistence::Full).is_ok();
    let charged = || {
        lab.group("lab/alice")
            .ledger()
            .expect("open")
            .find_device(&GPU)
            .map(|index| {
                lab.group("lab/alice")
                    .ledger()
                    .expect("open")
                    .charged(index)
            })
    };
    const WHILE: Duration = Duration::from_secs(1);
    assert!(charge(3 * GIB));
    let path = lab.group("lab/alice").ledger_path();
    let file = OpenOptions::new().write(true).open(&path).expect("open");
    loop {
        let began = Instant::now();
        file.write_all_at(&vec![0; WORDS.1], WORDS.0)
            .expect("written");
        assert_eq!(charged(), Some(0));
        assert!(!charge(2 * GIB), "only 1 GiB of 4 GiB is free");
        assert_eq!(charged(), Some(3 * GIB), "restored");
        // After damage to the ledger, requests are refused for a while: too much may have been
        // granted before.
        let granted = charge(GIB);
        // On a slow machine this period may already be over.
        if began.elapsed() < WHILE {
            assert!(!granted);
            break;
        }
        if granted {
            device.uncharge(GIB);
        }
    }
    wait_until("the free memory is granted afterwards", || charge(GIB));
    assert!(!charge(GIB));
    // Set the count of slots to 0. A process that believed this count would find no charge.
    file.write_all_at(&[0; 8], 64).expect("written");
    assert!(!charge(GIB));
    assert_eq!(charged(), Some(4 * GIB), "all slots are counted");
    // An uncharge also restores the figures, and then subtracts only its own bytes.
    file.write_all_at(&vec![0; WORDS.1], WORDS.0)
        .expect("written");
    device.uncharge(GIB);
    assert_eq!(charged(), Some(3 * GIB));
}

// Attacks on the trail of events.

/// Has a request refused in a group.
fn refuse(root: &Root, group: &str) {
    let member = Member::join(root, group).expect("joined");
    let device = member.device(GPU, CAPACITY).expect("a device");
    let refusal = device
        .charge(9 * GIB, &Nothing, Insistence::Full)
        .expect_err("too much");
    device.count_refusal("cuMemAlloc", 9 * GIB, &refusal);
}

/// Returns the groups of the events in a trail.
fn groups_in(trail: &Ledger) -> Vec<String> {
    let events = trail.trail(0).into_iter();
    events.map(|event| event.group).collect()
}

#[test]
fn events_go_to_no_trail_that_more_users_can_read() {
    let Some(lab) = Lab::new() else { return };
    let root = lab.root();
    for job in ["lab/run-1-2", "lab/alice/run-3-4", "run-5-6"] {
        root.create(job, &set(GIB)).expect("created");
        refuse(&root, job);
    }
    let trail = |group: &str| groups_in(&lab.group(group).ledger().expect("opened"));
    // Alice and Bob can read the ledger of `lab`, but not that of root's job.
    assert_eq!(trail("lab"), [""; 0]);
    assert_eq!(trail("lab/alice"), ["run-3-4"]);
    assert_eq!(trail("lab/bob"), [""; 0]);
    let own = root.trail().expect("readable").expect("there");
    assert_eq!(groups_in(&own), ["lab/run-1-2", "run-5-6"]);
    let about = fs::metadata(lab.0.join(".trail")).expect("there");
    assert_eq!((about.uid(), about.mode() & 0o7777), (0, 0o600));
}

/// Has requests of jobs in a root of alice's own refused. The trail of the root is missing, then
/// what alice finds there, and is then cut short while it is in use.
fn leave_a_trail(place: &Path) {
    let root = Root::at(place).expect("alice's own");
    let job = || {
        let group = root.create("run-1-2", &set(GIB)).expect("created").group;
        refuse(&root, "run-1-2");
        assert_eq!(group.ledger().expect("opened").events(0).len(), 1);
        drop(group);
        root.remove("run-1-2").expect("removed");
    };
    say("ready");
    for line in std::io::stdin().lines() {
        assert_eq!(line.expect("read"), "job");
        job();
        say("done");
    }
    let trail = place.join(".trail");
    let _ = fs::remove_file(&trail);
    root.create("run-1-2", &set(GIB)).expect("created");
    let member = Member::join(&root, "run-1-2").expect("joined");
    let device = member.device(GPU, CAPACITY).expect("a device");
    for cut in [false, true, true] {
        if cut {
            File::create(&trail).expect("cut short");
        }
        let refusal = device
            .charge(9 * GIB, &Nothing, Insistence::Full)
            .expect_err("too much");
        device.count_refusal("cuMemAlloc", 9 * GIB, &refusal);
    }
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("the group is not damaged");
}

#[test]
fn a_trail_that_was_replaced_is_not_used() {
    let Some(lab) = Lab::new() else { return };
    let hers = lab.0.join("hers");
    fs::create_dir(&hers).expect("made");
    fs::set_permissions(&hers, Permissions::from_mode(0o700)).expect("set");
    chown(&hers, Some(ALICE), Some(ALICE)).expect("given");
    let trail = hers.join(".trail");
    let elsewhere = lab.0.join("elsewhere");
    let root = Root::at(&hers).expect("a root");
    let ledger = |owner: u32| {
        Ledger::create_with_history(&trail, 0o666).expect("made");
        fs::set_permissions(&trail, Permissions::from_mode(0o666)).expect("set");
        chown(&trail, Some(owner), Some(owner)).expect("given");
    };
    let replaced: [(&str, &dyn Fn()); 7] = [
        ("link", &|| {
            Ledger::create_with_history(&elsewhere, 0o666).expect("made");
            chown(&elsewhere, Some(ALICE), Some(ALICE)).expect("given");
            symlink(&elsewhere, &trail).expect("linked");
        }),
        ("fifo", &|| {
            let made = Command::new("mkfifo").arg(&trail).status().expect("run");
            assert!(made.success());
            chown(&trail, Some(ALICE), Some(ALICE)).expect("given");
        }),
        ("directory", &|| fs::create_dir(&trail).expect("made")),
        ("of bob", &|| ledger(BOB)),
        ("of root", &|| ledger(0)),
        ("hard link", &|| {
            ledger(ALICE);
            fs::hard_link(&trail, &elsewhere).expect("linked");
        }),
        ("cut short", &|| {
            ledger(ALICE);
            let file = OpenOptions::new().write(true).open(&trail).expect("open");
            file.set_len(64).expect("cut");
        }),
    ];
    let mut alice = lab.start(ALICE, "leave a trail");
    alice.hear("ready");
    let mut job = || {
        let input = alice.input.as_mut().expect("open");
        input.write_all(b"job\n").expect("written");
        alice.hear("done");
    };
    for (what, replace) in replaced {
        replace();
        let seen = |path: &Path| {
            let about = fs::symlink_metadata(path).ok()?;
            Some((about.ino(), about.mtime_nsec(), about.blocks()))
        };
        let before = (seen(&trail), seen(&elsewhere));
        job();
        assert_eq!((seen(&trail), seen(&elsewhere)), before, "{what}");
        let read = root.trail();
        assert!(
            matches!(read, Err(_) | Ok(None)),
            "{what}: root must not read it"
        );
        let _ = fs::remove_file(&elsewhere);
        let _ = fs::remove_file(&trail).or_else(|_| fs::remove_dir(&trail));
    }
    job();
    let own = root.trail().expect("readable").expect("there");
    assert_eq!(groups_in(&own), ["run-1-2"]);
    let about = fs::metadata(&trail).expect("there");
    assert_eq!((about.uid(), about.mode() & 0o7777), (ALICE, 0o600));
    drop(own);
    alice.end();
}
