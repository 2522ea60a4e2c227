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
#[path = "hostile/leases.rs"]
mod leases;
#[path = "hostile/library.rs"]
mod library;
#[path = "hostile/links.rs"]
mod links;
#[path = "groups/nothing.rs"]
mod nothing;
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
#[path = "hostile/terminal.rs"]
mod terminal;
#[path = "hostile/trail.rs"]
mod trail;
#[path = "hostile/unkilled.rs"]
mod unkilled;

use gpulimit_support::Scratch;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// An untrusted user.
const ALICE: u32 = 40_001;

/// Longer than any command takes on a busy machine unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A directory of root's, whose subdirectory `hers` belongs to Alice.
struct Ground(Scratch);

impl Ground {
    /// Makes the directory; `None` if this process is not root and so cannot act as other users.
    fn new() -> Option<Self> {
        if gpulimit_group::effective_user() != 0 {
            eprintln!("SKIPPED: only root can be led astray, and only root can act as other users");
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

    /// Returns the controller as root runs it, with its groups in this directory.
    fn gpulimit(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpulimit"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir(&self.0.0)
            .env("GPULIMIT_ROOT", self.at("groups"))
            .stdin(Stdio::null());
        command
    }
}

/// Runs a command that must end, and returns its status and everything that it prints.
#[track_caller]
fn run(command: &mut Command) -> (Option<i32>, String) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let start = Instant::now();
    while child.try_wait().expect("asked").is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().expect("killed");
            let said = child.wait_with_output().expect("ended");
            panic!("{command:?} hangs: {}", text(&said));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("ended");
    (output.status.code(), text(&output))
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Returns a command that Alice runs.
fn alice(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.uid(ALICE).gid(ALICE).current_dir("/");
    command
}
