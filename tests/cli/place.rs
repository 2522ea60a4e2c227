//! A root of groups for a test, and the controller that uses it.

pub use gpulimit_support::{
    Running, executable, is_root, may_mount, may_unshare, skip, text, wait_until,
};
#[path = "../groups/nothing.rs"]
mod nothing;
#[path = "../groups/place.rs"]
mod root;

use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Kind, Member, MemberDevice, Root};
use gpulimit_limits::LimitSet;
use gpulimit_support::clean;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub use nothing::Nothing;
pub use root::Place;

pub const GPU: DeviceId =
    DeviceId::gpu([0x1a, 0x2b, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
/// A second GPU.
pub const OTHER: DeviceId =
    DeviceId::gpu([0x9c, 0x8d, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
pub const CAPACITY: u64 = 80 << 30;
pub const GIB: u64 = 1 << 30;

impl Place {
    /// Returns the controller with this root, without other variables that it would read.
    pub fn gpulimit(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpulimit"));
        clean(command.args(arguments))
            .env("GPULIMIT_ROOT", self.root_path())
            .env("GPULIMIT_LIBRARY", library());
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.gpulimit(arguments).output().expect("started")
    }

    /// Returns the standard output of a command that must succeed.
    pub fn said(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.said(arguments)).expect("JSON")
    }

    /// Returns the error of a command that must end with this status.
    pub fn refused(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {output:?}"
        );
        text(&output.stderr)
    }

    /// Makes a group with a limit for all GPUs.
    pub fn group(&self, name: &str, max: Size) {
        self.root()
            .create(name, &LimitSet::all(max))
            .expect("created");
    }

    /// Runs `gc` until no job has a group, and returns what it says. A process that just starts
    /// elsewhere may be unreadable, and could be the job's. Dead processes stay charged for a
    /// while, and a child that another test starts keeps a member's lock until it runs its program.
    pub fn clean(&self) -> String {
        let mut said = String::new();
        wait_until("no job has a group", || {
            said += &self.said(&["gc"]);
            let groups = self.root().groups().expect("listed");
            groups.iter().all(|group| group.kind() != Kind::Job)
        });
        said
    }

    pub fn member(&self, name: &str) -> Member {
        let member = Member::join(&self.root(), name).expect("joined");
        on(&member);
        member
    }
}

/// Returns a member on the GPU.
pub fn on(member: &Member) -> MemberDevice<'_> {
    member.device(GPU, CAPACITY).expect("a device")
}

impl Place {
    /// Starts another process that is a member of the group until it is killed; the command `by`,
    /// if any, starts it.
    pub fn start_member(&self, group: &str, by: Option<Command>) -> Running {
        let mut command = self.member_command(group, by);
        let mut child = Running::start(command.stdin(Stdio::piped()));
        let out = child.stdout.as_mut().expect("piped");
        let ready = BufReader::new(out)
            .lines()
            .any(|line| line.is_ok_and(|line| line.contains("joined")));
        assert!(ready, "it never joined");
        child
    }

    /// Returns a command that starts a member of the group, which ends with its standard input. The
    /// command `by`, if any, gets the member's command line as arguments.
    pub fn member_command(&self, group: &str, by: Option<Command>) -> Command {
        let own = std::env::current_exe().expect("known");
        let mut command = match by {
            Some(mut command) => {
                command.arg(own);
                command
            }
            None => Command::new(own),
        };
        command
            .args([
                "--exact",
                "place::member_process",
                "--ignored",
                "--nocapture",
            ])
            .env(MEMBER, group)
            .env("GPULIMIT_ROOT", self.root_path())
            .stdout(Stdio::piped());
        command
    }
}

const MEMBER: &str = "GPULIMIT_TEST_MEMBER";

/// The member started by [`Place::start_member`].
#[test]
#[ignore = "a part of other tests"]
fn member_process() {
    let group = std::env::var(MEMBER).expect("a group");
    let root = Root::at(std::env::var("GPULIMIT_ROOT").expect("a root")).expect("a root");
    let member = Member::join(&root, &group).expect("joined");
    let device = member.device(GPU, CAPACITY).expect("a device");
    device
        .charge(GIB, &Nothing, Insistence::Full)
        .expect("fits");
    println!("joined");
    // The member waits until its starter closes the pipe, or ends.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Returns a library that only looks like gpulimit's.
pub fn library() -> PathBuf {
    let source = format!(
        "const char *gpulimit_hooks(void) {{ return \"cuMemAlloc_v2 Sized resolved\\n\"; }}\n\
         const char gpulimit_version_text[] = \"{}\";\n",
        gpulimit_base::version::text()
    );
    compiled("libgpulimit.so", &source, &["-shared", "-fPIC"])
}

/// Returns the path of a C program or library, which is compiled once for all tests.
pub fn compiled(name: &str, source: &str, options: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    executable::compiled(folder, name, source, options)
}

/// Returns the starter's command line with that of the other command behind it, in the environment
/// of both.
pub fn started_by(mut starter: Command, command: &Command) -> Command {
    starter.arg(command.get_program()).args(command.get_args());
    set_environment(&mut starter, command);
    starter
}

/// Gives a command the environment of another one, too.
pub fn set_environment(command: &mut Command, other: &Command) {
    for (name, value) in other.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}
