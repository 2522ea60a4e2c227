//! A simulated machine with a server, and members whose charges the tests choose.

#[path = "../groups/nothing.rs"]
mod nothing;

use super::client::Place;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_group::{Insistence, Member, MemberDevice};
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::World;
use gpulimit_support::eventually;
use nothing::Nothing;
use serde_json::Value;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

pub const GIB: u64 = 1 << 30;

/// A machine and a root of groups.
pub struct Rig {
    pub world: World,
    first: OnceLock<DeviceId>,
}

impl Rig {
    /// Makes a machine with one GPU, and a root without groups.
    pub fn new() -> Self {
        Self::with(&[])
    }

    pub fn with(knobs: &[(&str, &str)]) -> Self {
        let world = World::without_group(knobs);
        Self {
            world,
            first: OnceLock::new(),
        }
    }

    /// Returns the controller on this machine.
    pub fn gpulimit(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.bare(Path::new(env!("CARGO_BIN_EXE_gpulimit")));
        command.args(arguments);
        for service in ["LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET"] {
            command.env_remove(service);
        }
        command
    }

    /// Returns the JSON that a verb prints.
    pub fn shown(&self, arguments: &[&str]) -> Value {
        let output = self.gpulimit(arguments).output().expect("started");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Makes a group with a limit for all GPUs.
    pub fn group(&self, name: &str, max: Size) {
        let limits = LimitSet::all(max);
        self.world.root().create(name, &limits).expect("created");
    }

    /// Returns the GPU of this number.
    pub fn gpu(&self, number: usize) -> DeviceId {
        self.world
            .machine()
            .gpu(number)
            .uuid
            .parse()
            .expect("a UUID")
    }

    /// Returns the first GPU, without asking the machine again.
    pub fn gpu_id(&self) -> DeviceId {
        *self.first.get_or_init(|| self.gpu(0))
    }

    /// Joins a group as a member that has charged these bytes on the first GPU.
    pub fn member(&self, group: &str, bytes: u64) -> Member {
        let member = Member::join(self.world.root(), group).expect("joined");
        charge(&self.on(&member), bytes);
        member
    }

    /// Returns a member on the first GPU.
    pub fn on<'a>(&self, member: &'a Member) -> MemberDevice<'a> {
        member.device(self.gpu_id(), 80 * GIB).expect("a device")
    }

    /// Starts a server at a TCP port that the system chooses.
    pub fn tcp(&self, arguments: &[&str]) -> Server {
        let listen = ["serve", "--listen", "127.0.0.1:0"];
        Server::start(self.gpulimit(&[&listen, arguments].concat()))
    }

    /// Starts a server at a Unix socket.
    pub fn unix(&self, arguments: &[&str]) -> Server {
        self.unix_with(arguments, &[])
    }

    /// Starts a server at a Unix socket with these variables in its environment.
    pub fn unix_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Server {
        let listen = format!("unix:{}", self.socket().display());
        let listen = ["serve", "--listen", &listen];
        let mut command = self.gpulimit(&[&listen, arguments].concat());
        command.envs(variables.iter().copied());
        Server::start(command)
    }

    pub fn socket(&self) -> std::path::PathBuf {
        self.world.file("socket")
    }
}

/// Returns the processes without their memory on the host, which changes all the time.
pub fn steady(processes: &Value) -> Value {
    let mut processes = processes.clone();
    for process in processes.as_array_mut().expect("a list") {
        process["host"].take();
    }
    processes
}

/// Charges these bytes, which must fit.
pub fn charge(device: &MemberDevice<'_>, bytes: u64) {
    device
        .charge(bytes, &Nothing, Insistence::Full)
        .expect("fits");
}

/// Asks for these bytes, which must not fit. The refusal is counted.
pub fn refuse(device: &MemberDevice<'_>, bytes: u64) {
    let refusal = device
        .charge(bytes, &Nothing, Insistence::Full)
        .expect_err("full");
    device.count_refusal("cuMemAlloc", bytes, &refusal);
}

/// A running server.
pub struct Server {
    pub place: Place,
    pub child: Child,
}

impl Server {
    /// Starts a server, and waits until it says where it listens.
    pub fn start(command: Command) -> Self {
        Self::start_and(command, |place| match place.strip_prefix("unix:") {
            Some(path) => Place::Unix(path.into()),
            None => {
                let address = place.strip_prefix("http://").expect("an address");
                let address = address.strip_suffix('/').expect("an address");
                Place::Tcp(address.parse().expect("an address"))
            }
        })
    }

    /// Starts a server that gets its socket, and waits until it serves.
    pub fn start_at(command: Command, place: Place) -> Self {
        Self::start_and(command, |_| place.clone())
    }

    fn start_and(mut command: Command, place: impl Fn(&str) -> Place) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("started");
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        let place = loop {
            line.clear();
            assert_ne!(
                errors.read_line(&mut line).expect("readable"),
                0,
                "it ended"
            );
            if let Some(said) = line.trim().strip_prefix("gpulimit: serves at ") {
                break place(said);
            }
        };
        // The server's later messages go nowhere, and do not block it.
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Self { place, child }
    }

    /// Sends a signal, and returns how the server ended.
    pub fn end(&mut self, signal: i32) -> ExitStatus {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(pid)
            .status();
        assert!(killed.expect("kill").success());
        let ended = || self.child.try_wait().expect("asked").is_some();
        assert!(eventually(ended), "the server does not end");
        self.child.wait().expect("ended")
    }

    /// Asks for the state until it is as expected.
    #[track_caller]
    pub fn until(&self, is: impl Fn(&Value) -> bool) -> Value {
        let mut state = Value::Null;
        let holds = eventually(|| {
            state = self.place.json("/api/v1/state");
            is(&state)
        });
        assert!(holds, "never as expected: {state}");
        state
    }

    /// Returns the number of sockets that the server has open.
    pub fn sockets(&self) -> usize {
        let all = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let links = all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links
            .filter(|link| link.to_string_lossy().starts_with("socket:"))
            .count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
