//! A member's memory map cannot be read, because a file system of the member's own holds the lock
//! of its memory: root's commands end, act on the other members, and name the stuck one.
#![allow(unsafe_code)]

use crate::nothing::Nothing;
use crate::silent::{Answers, has_fuse, mount_fuse};
use crate::{ALICE, Ground, Guarded, LOOK, RM, Role, is_over, own, run, stay};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_group::{Access, Insistence, Member, Members, Root};
use gpulimit_limits::{Key, LimitSet, Oom, Selector};
use gpulimit_support::{eventually, patience, skip, wait_until};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{ptr, thread};

pub const ROOT: &str = "GPULIMIT_TEST_ROOT";
const FUSE: &str = "GPULIMIT_TEST_FUSE";
const GPU: DeviceId = DeviceId::gpu([0x1a, 0x2b, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
const GIB: u64 = 1 << 30;
/// Milliseconds.
const SOON: &str = "3000";

/// A group of Alice's with two members of hers, one of which cannot be inspected.
struct Scene {
    ground: Ground,
    root: Root,
    stuck: u32,
    honest: Role,
    server: Role,
}

impl Scene {
    fn new() -> Option<Self> {
        let ground = Ground::new()?;
        if !has_fuse() {
            return None;
        }
        let root = Root::at(ground.make("groups", 0, 0o755)).expect("a root");
        let access = Access {
            owner: Some(ALICE),
            members: Members::Owner,
        };
        let mut limits = LimitSet::default();
        limits.set(Selector::All, Key::Max, Size::Bytes(10 * GIB));
        limits.options.oom = Oom::KillLargest;
        root.create_for("lab", &limits, access).expect("created");
        let mut command = Command::new("unshare");
        command
            .arg("-m")
            .arg(std::env::current_exe().expect("known"))
            .env(ROOT, root.path())
            .env(FUSE, ground.make("silent", 0, 0o755));
        let mut server = Role::start(&mut command, "stuck::server");
        let stuck = server.line("#member ").parse().expect("a pid");
        if !is_held(stuck, &mut server) {
            skip("this kernel does not wait for such a file system");
            return None;
        }
        let mut honest = Role::start(own(ALICE).env(ROOT, root.path()), "stuck::member");
        honest.line("#member ");
        Some(Self {
            ground,
            root,
            stuck,
            honest,
            server,
        })
    }

    /// Runs a command that soon gives the stuck member up, but has time to see the honest one on a
    /// busy machine.
    #[track_caller]
    fn root_runs(&self, arguments: &[&str]) -> (Option<i32>, String) {
        self.root_waits(SOON, arguments)
    }

    /// Runs a command that waits this many milliseconds for the stuck member.
    #[track_caller]
    fn root_waits(&self, time: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = self.ground.gpulimit(arguments);
        let done = run(command.env(LOOK, time).env(RM, time));
        assert!(!done.1.contains("panicked"), "{}", done.1);
        done
    }

    #[track_caller]
    fn honest_is_killed(&mut self) {
        assert_eq!(self.honest.process.ended().signal(), Some(9));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // The server's end ends the file system, and every wait for it.
        let _ = self.server.process.0.kill();
        let _ = eventually(|| is_over(self.stuck));
    }
}

/// Returns whether a process comes to wait for the file system, and does not end instead.
fn is_held(pid: u32, server: &mut Role) -> bool {
    let waits = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        tasks.into_iter().flatten().flatten().any(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim());
            state.starts_with('D')
        })
    };
    wait_until("the process waits", || waits() || !server.process.lives());
    server.process.lives()
}

/// Started by [`Scene::new`] as root: serves the file system, and starts the stuck member.
#[test]
#[ignore = "a part of other tests"]
fn server() {
    let place = PathBuf::from(std::env::var_os(FUSE).expect("a place"));
    mount_fuse(&place, ",allow_other", Answers::Reads);
    let mut member = Command::new(std::env::current_exe().expect("known"));
    member.args(["--exact", "stuck::member", "--ignored", "--nocapture"]);
    // This process ends when the member does, which may never happen.
    member.uid(ALICE).gid(ALICE).status().expect("started");
}

/// Started by a test: a member of Alice's, which gets stuck if there is such a file system.
#[test]
#[ignore = "a part of other tests"]
fn member() {
    let root = Root::at(std::env::var_os(ROOT).expect("a root")).expect("a root");
    let member = Member::join(&root, "lab").expect("joined");
    let device = member.device(GPU, 80 * GIB).expect("a device");
    let place = std::env::var_os(FUSE);
    let bytes = if place.is_some() { 6 * GIB } else { GIB };
    let charged = device.charge(bytes, &Nothing, Insistence::Full);
    charged.expect("fits");
    let file = place.map(|place| {
        let file = PathBuf::from(place).join("file");
        let file = File::options().read(true).write(true).open(file);
        file.expect("opened")
    });
    println!("\n#member {}", std::process::id());
    match file {
        None => stay(),
        Some(file) => {
            replace_unwritten(&file);
            std::process::exit(0);
        }
    }
}

/// Maps something else over a page that is not written back yet: the kernel holds the lock of the
/// memory until the file system has taken the page.
fn replace_unwritten(file: &File) {
    const LENGTH: usize = 4096;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: only this function knows the page, which it maps, writes and replaces.
    unsafe {
        let shared = libc::MAP_SHARED;
        let page = libc::mmap(ptr::null_mut(), LENGTH, access, shared, file.as_raw_fd(), 0);
        assert_ne!(page, libc::MAP_FAILED);
        page.cast::<u8>().write_volatile(1);
        let fixed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(page, LENGTH, access, fixed, -1, 0);
    }
}

#[test]
fn kill_signals_other_members_and_names_the_stuck_one() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let (status, said) = scene.root_runs(&["kill", "-s", "KILL", "lab"]);
    assert_eq!(status, Some(1), "{said}");
    let line = format!("lab: SIGKILL sent to {} ", scene.honest.process.id());
    assert!(said.contains(&line), "{said}");
    let line = format!("cannot signal {} ", scene.stuck);
    assert!(
        said.contains(&line) && said.contains("took too long"),
        "{said}"
    );
    scene.honest_is_killed();
}

#[test]
fn rm_force_ends_other_members_and_names_the_stuck_one() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let (status, said) = scene.root_runs(&["rm", "--force", "lab"]);
    assert_eq!(status, Some(1), "{said}");
    let line = format!("cannot kill {} ", scene.stuck);
    assert!(
        said.contains(&line) && said.contains("took too long"),
        "{said}"
    );
    assert!(scene.root.group("lab").is_ok(), "{said}");
    scene.honest_is_killed();
}

#[test]
fn slurms_epilog_ends_and_leaves_the_group_to_the_next_one() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let bin = Path::new(env!("CARGO_BIN_EXE_gpulimit"));
    let state = scene.ground.make("state", 0, 0o700);
    let settings = format!(
        "root={}\nstate={}\nPATH={}:$PATH\n",
        scene.root.path().display(),
        state.display(),
        bin.parent().expect("a directory").display()
    );
    let settings = scene.ground.write("slurm.conf", settings, 0, 0o644);
    scene.ground.write("state/1", "group lab\n", 0, 0o600);
    let epilog = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/slurm/epilog");
    let (status, said) = run(Command::new(epilog)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("GPULIMIT_SLURM_CONF", settings)
        .env(LOOK, SOON)
        .env(RM, SOON)
        .env("SLURM_JOB_ID", "1")
        .stdin(Stdio::null()));
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("group lab stays: "), "{said}");
    assert!(
        said.contains(&format!("cannot kill {} ", scene.stuck)),
        "{said}"
    );
    assert!(state.join("1.left").exists(), "{said}");
    scene.honest_is_killed();
}

#[test]
fn ps_shows_the_figures_of_a_stuck_member() {
    let Some(scene) = Scene::new() else { return };
    let (status, said) = scene.root_runs(&["ps", "--json"]);
    assert_eq!(status, Some(0), "{said}");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let processes = said["processes"].as_array().expect("a list");
    let command = |pid: u32| {
        let line = processes.iter().find(|line| line["pid"] == pid);
        &line.unwrap_or_else(|| panic!("{pid} is missing: {said}"))["command"]
    };
    assert!(command(scene.stuck).is_null(), "{said}");
    let honest = command(scene.honest.process.id()).as_str();
    assert!(
        honest.is_some_and(|line| line.contains("stuck::member")),
        "{said}"
    );
    let (status, said) = scene.root_waits("100", &["ps"]);
    let line = said
        .lines()
        .find(|line| line.contains(&scene.stuck.to_string()));
    assert!(
        line.is_some_and(|line| line.trim_end().ends_with(" -")),
        "{said}"
    );
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn commands_that_read_only_files_do_not_wait() {
    let Some(scene) = Scene::new() else { return };
    for arguments in [
        &["show"][..],
        &["show", "--tree"],
        &["show", "--names"],
        &["events"],
        &["get", "lab"],
        &["set", "lab", "max=9G"],
        &["gc"],
    ] {
        let (status, said) = scene.root_runs(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {said}");
    }
    let (status, said) = scene.root_runs(&["rm", "lab"]);
    assert_eq!(status, Some(1), "{said}");
    let pid = scene.stuck.to_string();
    let (status, said) = scene.root_waits("100", &["doctor", "--pid", &pid]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("took more than"), "{said}");
    scene.root_runs(&["doctor"]);
}

#[test]
fn uninstall_keeps_the_library_and_explains_why() {
    let Some(scene) = Scene::new() else { return };
    scene.ground.make("lib", 0, 0o755);
    scene.ground.make("lib/gpulimit", 0, 0o755);
    scene
        .ground
        .write("lib/gpulimit/libgpulimit.so", "", 0, 0o755);
    let prefix = scene.ground.at("").display().to_string();
    let (status, said) = scene.root_waits("100", &["uninstall", "--dry-run", "--prefix", &prefix]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains(&scene.stuck.to_string()), "{said}");
}

#[test]
fn a_request_for_room_is_refused_without_a_wait() {
    let Some(scene) = Scene::new() else { return };
    let (told, answer) = std::sync::mpsc::channel();
    let root = Root::at(scene.root.path()).expect("a root");
    thread::spawn(move || {
        let member = Member::join(&root, "lab").expect("joined");
        let device = member.device(GPU, 80 * GIB).expect("a device");
        // Room for this request would need the largest process to be killed.
        let charged = device.charge(5 * GIB, &Nothing, Insistence::Full);
        told.send(charged.is_err())
    });
    let refused = answer.recv_timeout(patience());
    assert_eq!(refused, Ok(true), "the request waits for ever");
}

/// The server shows the stuck member without its command line, and answers at once afterwards.
#[test]
fn the_server_does_not_wait_for_the_stuck_one() {
    let Some(scene) = Scene::new() else {
        return;
    };
    let socket = scene.ground.make("run", 0, 0o700).join("socket");
    let listen = format!("unix:{}", socket.display());
    let mut command = scene.ground.gpulimit(&["serve", "--listen", &listen]);
    let mut server = Guarded::start(command.stderr(Stdio::piped()));
    let mut errors = BufReader::new(server.0.stderr.take().expect("piped"));
    let said = |line: std::io::Result<String>| line.expect("read").contains("serves at");
    assert!(errors.by_ref().lines().any(said));
    let ask = |path: &str| {
        let mut stream = UnixStream::connect(&socket).expect("connected");
        let head = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let lab = format!("\"pid\":{}", scene.stuck);
    for _ in 0..3 {
        let state = ask("/api/v1/state");
        assert!(
            state.starts_with("HTTP/1.0 200 ") && state.contains(&lab),
            "{state}"
        );
        assert!(state.contains("\"command\":null"), "{state}");
        assert!(ask("/metrics").contains("gpulimit_processes{group=\"lab\""));
    }
}
