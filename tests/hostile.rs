//! Users prepare traps for root's commands, and root of a container for the host's root: the
//! commands run into the traps, and no harm comes of it.
//!
//! An unprivileged user sets each trap where a user can set it. The tests need root, and are
//! skipped with a message without it.

#[path = "hostile/apply.rs"]
mod apply;
#[path = "hostile/containers.rs"]
mod containers;
#[path = "hostile/damage.rs"]
mod damage;
#[path = "hostile/doctor.rs"]
mod doctor;
#[path = "hostile/forged.rs"]
mod forged;
#[path = "hostile/leases.rs"]
mod leases;
#[path = "hostile/library.rs"]
mod library;
#[path = "hostile/links.rs"]
mod links;
#[path = "groups/nothing.rs"]
mod nothing;
#[path = "hostile/patience.rs"]
mod patience;
#[path = "hostile/report.rs"]
mod report;
#[path = "hostile/secrets.rs"]
mod secrets;
#[path = "hostile/signals.rs"]
mod signals;
#[path = "hostile/silent.rs"]
mod silent;
#[path = "hostile/stuck.rs"]
mod stuck;
#[path = "hostile/table.rs"]
mod table;
#[path = "hostile/terminal.rs"]
mod terminal;
#[path = "hostile/trail.rs"]
mod trail;
#[path = "hostile/unkilled.rs"]
mod unkilled;

use gpulimit_support::{Scratch, finish, is_root, patience, wait_until};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

/// An untrusted user.
const ALICE: u32 = 40_001;

/// How long a command looks at processes, and waits for killed ones, in milliseconds: the variables
/// of [`gpulimit_base::patience`].
const LOOK: &str = "GPULIMIT_DEBUG_LOOK_MS";
const RM: &str = "GPULIMIT_DEBUG_RM_MS";

/// A directory of root's, whose subdirectory `hers` belongs to Alice.
struct Ground(Scratch);

impl Ground {
    /// Makes the directory; `None` if this process is not root and so cannot act as other users.
    fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let ground = Self(Scratch::in_memory());
        fs::set_permissions(&ground.0.0, Permissions::from_mode(0o755)).expect("set");
        ground.make("hers", ALICE, 0o755);
        Some(ground)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.at(name)
    }

    /// Makes a directory.
    fn make(&self, name: &str, owner: u32, mode: u32) -> PathBuf {
        let path = self.at(name);
        fs::create_dir(&path).expect("made");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        chown(&path, Some(owner), Some(owner)).expect("given");
        path
    }

    /// Writes a file.
    fn write(&self, name: &str, text: impl AsRef<[u8]>, owner: u32, mode: u32) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        chown(&path, Some(owner), Some(owner)).expect("given");
        path
    }

    /// Returns the controller as root runs it, with its groups in this directory. A busy machine
    /// does not end its looks at processes.
    fn gpulimit(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpulimit"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir(&self.0.0)
            .env("GPULIMIT_ROOT", self.at("groups"))
            .env(LOOK, patience().as_millis().to_string())
            .stdin(Stdio::null());
        command
    }
}

/// Runs a command that must end, and returns its status and everything that it prints.
#[track_caller]
fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = finish(command);
    (output.status.code(), text(&output))
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| gpulimit_support::text(bytes))
        .concat()
}

/// Returns a command that Alice runs.
fn alice(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.uid(ALICE).gid(ALICE).current_dir("/");
    command
}

/// A process that ends with the test.
struct Guarded(Child);

impl Guarded {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("started"))
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().expect("asked").is_none()
    }

    /// Waits for the end of the process.
    #[track_caller]
    fn ended(&mut self) -> ExitStatus {
        wait_until("the process ends", || !self.lives());
        self.0.wait().expect("ended")
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that runs a part of a test, and ends with the test.
struct Role {
    process: Guarded,
    out: BufReader<ChildStdout>,
}

impl Role {
    /// Lets this program, which the command starts, run the ignored test with this name.
    fn start(command: &mut Command, role: &str) -> Self {
        command
            .args(["--exact", role, "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Guarded::start(command);
        let out = BufReader::new(process.0.stdout.take().expect("piped"));
        Self { process, out }
    }

    /// Returns the rest of the next line that begins with `start`.
    #[track_caller]
    fn line(&mut self, start: &str) -> String {
        let mut lines = self.out.by_ref().lines().map(|line| line.expect("read"));
        let found = lines.find_map(|line| Some(line.strip_prefix(start)?.trim().to_owned()));
        found.unwrap_or_else(|| panic!("the role ends before it prints {start}"))
    }
}

/// Returns a command that starts this program as this user.
fn own(user: u32) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.uid(user).gid(user).current_dir("/");
    command
}

/// Returns whether a process is gone, or a zombie.
fn is_over(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| stat.contains(") Z ")) || !Path::new(&format!("/proc/{pid}")).exists()
}

/// Keeps a role as it is until its test ends.
fn stay() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
