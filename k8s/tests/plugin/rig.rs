//! A test node: a simulated machine, a kubelet, and the plugin in a process of its own.

use crate::kubelet::Kubelet;
use gpulimit_group::Group;
use gpulimit_k8s::api::{Edits, Mount};
use gpulimit_programs::world::{self, World};
use gpulimit_support::{Running, eventually, fetch, repository, skip, wait_until};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

pub const GIB: u64 = 1 << 30;
/// The number of units of a simulated GPU, which has 79.2 GiB.
pub const UNITS: usize = 79;

pub struct Node {
    pub plugin: Plugin,
    pub kubelet: Kubelet,
    pub world: World,
    knobs: Vec<String>,
}

impl Node {
    /// Makes a node with two GPUs and a registered plugin.
    pub fn new() -> Self {
        Self::with(&[("GPULIMIT_SIM_GPUS", "2")], &[])
    }

    pub fn with(knobs: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut node = Self::before_kubelet(knobs, arguments);
        node.kubelet.start();
        node.registrations(1);
        node
    }

    /// Makes a node whose kubelet has not started.
    pub fn before_kubelet(knobs: &[(&str, &str)], arguments: &[&str]) -> Self {
        let world = World::without_group(knobs);
        let kubelet = Kubelet::new(world.file("kubelet"));
        let knobs: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let plugin = Plugin::start(&world, &kubelet, &knobs);
        Self {
            plugin,
            kubelet,
            world,
            knobs,
        }
    }

    /// Waits until the plugin has registered this many times.
    #[track_caller]
    pub fn registrations(&self, count: usize) {
        let done = eventually(|| self.kubelet.books().registered.len() >= count);
        assert!(done, "{:?}", self.plugin.said());
    }

    /// Waits until the plugin has asked for the pods and used the answer.
    pub fn has_swept(&self) {
        let before = self.kubelet.books().lists;
        // The plugin makes the second call after it has used the answer to the first one.
        wait_until("the plugin asks for the pods", || {
            self.kubelet.books().lists >= before + 2
        });
    }

    /// Kills the plugin and starts another one.
    pub fn replace_plugin(&mut self) {
        self.plugin.kill();
        // The killed one may have registered again.
        let before = self.kubelet.books().registered.len();
        self.plugin = Plugin::start(&self.world, &self.kubelet, &self.knobs);
        self.registrations(before + 1);
    }

    /// Returns the ids of these units of a GPU. `gpu` is the GPU's index on the machine.
    pub fn ids(&self, gpu: usize, numbers: std::ops::Range<usize>) -> Vec<String> {
        let card = self.world.machine().gpu(gpu).uuid;
        numbers.map(|number| format!("{card}::{number}")).collect()
    }

    pub fn state(&self) -> PathBuf {
        self.world.file("state")
    }

    pub fn record(&self, name: &str) -> PathBuf {
        self.state().join("allocations").join(name)
    }

    pub fn group(&self, name: &str) -> Group {
        self.world.root().group(name).expect("a group")
    }

    pub fn has_group(&self, name: &str) -> bool {
        self.world.root().group(name).is_ok()
    }
}

/// Returns the name of the group that a container got.
pub fn group_of(edits: &Edits) -> String {
    edits.variables["GPULIMIT_GROUP"].clone()
}

/// Returns the mount at a path in the container.
#[track_caller]
pub fn mount_at<'a>(edits: &'a Edits, inside: &str) -> &'a Mount {
    let at = |mount: &&Mount| mount.container_path == inside;
    edits.mounts.iter().find(at).expect(inside)
}

pub struct Plugin {
    child: Running,
    said: Arc<Mutex<Vec<String>>>,
}

impl Plugin {
    fn start(world: &World, kubelet: &Kubelet, arguments: &[String]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_gpulimit-k8s-device-plugin"));
        let mut command = match can_drop_capabilities() {
            // Run the plugin with the same restrictions as in the DaemonSet.
            true => {
                let mut command = world.bare(Path::new("setpriv"));
                command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
                command.arg("--").arg(program);
                command
            }
            false => world.bare(program),
        };
        command
            .arg("--root")
            .arg(world.root().path())
            .arg("--state")
            .arg(world.file("state"))
            .arg("--kubelet")
            .arg(kubelet.folder())
            .arg("--pods")
            .arg(kubelet.pods_socket())
            .arg("--library")
            .arg(world::shim())
            .args(["--health", "20ms", "--sweep", "20ms"])
            .env("GPULIMIT_DEBUG_TICK_MS", "10")
            .args(arguments)
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = Running::start(&mut command);
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().unwrap().push(line);
            }
        });
        Self { child, said }
    }

    pub fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    #[track_caller]
    pub fn says(&self, text: &str) {
        let so = eventually(|| self.said().iter().any(|line| line.contains(text)));
        assert!(so, "{text}: {:?}", self.said());
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks the plugin to end, and waits for its end.
    pub fn terminate(&mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.unwrap().success());
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        wait_until("the plugin's end", || {
            self.child.try_wait().unwrap().is_some()
        });
        self.child.wait().unwrap()
    }
}

/// Returns whether this process can drop capabilities.
fn can_drop_capabilities() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let tried = Command::new("setpriv")
            .args(["--bounding-set=-all", "true"])
            .output();
        tried.is_ok_and(|output| output.status.success())
    })
}

/// Returns the path of `gpu-script`, which belongs to another package.
pub fn gpu_script() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| world::built_program("gpu-script"))
}

/// Returns a directory of .cache, which scripts/wheels fills; `None` if it is not there.
pub fn cached(name: &str) -> Option<PathBuf> {
    static FETCHED: OnceLock<()> = OnceLock::new();
    FETCHED.get_or_init(|| fetch("wheels"));
    let folder = repository().join(".cache").join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    skip(format_args!("there is no .cache/{name} (scripts/wheels)"));
    None
}
