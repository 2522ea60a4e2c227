//! Containers of the test's own: images made from this machine's files, and runc or podman to run
//! them.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpulimit_programs::executable;
use gpulimit_programs::world::{self, Session, World, eventually, text};
use gpulimit_support::{have, skip};
use serde_json::{Value, json};

/// The first user id on the host of a container with a user namespace.
const MAPPED: u32 = 100_000;

/// The capabilities that docker and podman leave to a container's root.
const CAPABILITIES: [&str; 11] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// A machine with a simulated GPU and a container engine.
pub struct Engine {
    pub world: World,
    image: PathBuf,
    next: Cell<u32>,
}

/// The options of a container.
#[derive(Clone, Copy, Default)]
pub struct Start<'a> {
    /// Devices of `gpulimit.dev/mem`.
    pub devices: &'a [&'a str],
    /// Variables of the image and the user.
    pub variables: &'a [&'a str],
    /// The command that replaces `gpu-script`.
    pub command: &'a [&'a str],
    pub user: u32,
    /// With a user namespace, in which the container's root is an unprivileged user of the host.
    pub mapped: bool,
    /// With a read-only image.
    pub read_only: bool,
    /// As an engine that supports mounts but no hooks.
    pub without_hooks: bool,
    /// The container's name, if the engine is not to choose one.
    pub id: Option<&'a str>,
}

/// A container with its program, which is removed when the value is dropped.
pub struct Container {
    pub session: Session,
    pub inside: Inside,
}

/// Access to a container beside its first program.
pub struct Inside {
    id: String,
    runtime: PathBuf,
}

/// Returns whether runc runs a container of this image; skips if not.
fn possible(image: &Path) -> bool {
    if !have("runc") {
        return false;
    }
    let place = image.with_file_name("try");
    let start = Start {
        command: &["/bin/sh", "-c", "exit 7"],
        ..Start::default()
    };
    bundle(&place, &config(image, &[], &start));
    // Control groups have the names of containers and are shared by the whole machine.
    let world = image.parent().and_then(Path::file_name).expect("a world");
    let mut command = runc(&place.join("state"));
    command.args(["run", "--bundle"]).arg(&place).arg(world);
    let tried = world::finish(command);
    let runs = tried.status.code() == Some(7);
    if !runs {
        let why = text(&tried.stderr);
        skip(format_args!("runc runs no container here: {why}"));
    }
    runs
}

fn runc(state: &Path) -> Command {
    let mut command = Command::new("runc");
    command
        .arg("--root")
        .arg(state)
        .env_remove("LD_PRELOAD")
        .env_remove("GPULIMIT_ROOT");
    command
}

fn bundle(place: &Path, config: &Value) {
    fs::create_dir_all(place).expect("a bundle");
    fs::write(place.join("config.json"), config.to_string()).expect("written");
}

/// Returns the mount of a tmpfs with this mode in a container.
fn tmpfs(destination: &str, mode: &str) -> Value {
    json!({ "destination": destination, "type": "tmpfs", "source": "tmpfs", "options": [mode] })
}

fn config(image: &Path, mounts: &[Value], start: &Start<'_>) -> Value {
    let mut namespaces = vec!["pid", "mount", "ipc", "uts", "network"];
    let mut linux = json!({});
    if start.mapped {
        namespaces.push("user");
        let map = json!([{ "containerID": 0, "hostID": MAPPED, "size": 65_536 }]);
        linux["uidMappings"] = map.clone();
        linux["gidMappings"] = map;
    }
    linux["namespaces"] = namespaces
        .iter()
        .map(|kind| json!({ "type": kind }))
        .collect();
    let command = match start.command {
        [] => &["/bin/gpu-script"],
        command => command,
    };
    let mut all = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        tmpfs("/dev", "mode=755"),
        tmpfs("/dev/shm", "mode=1777"),
    ];
    all.extend_from_slice(mounts);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": start.user, "gid": start.user },
            "args": command,
            "env": start.variables,
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES
            }
        },
        "root": { "path": image, "readonly": start.read_only },
        "mounts": all,
        "hooks": {},
        "linux": linux
    })
}

impl Engine {
    /// Makes an engine with this file of devices; `None`, with a message, where there are no
    /// containers.
    pub fn new(generate: &[&str]) -> Option<Engine> {
        let world = World::without_group(&[("GPULIMIT_SIM_KILL_LAG_MS", "50")]);
        // Containers of other users go through these folders, and use the GPU.
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
        };
        open(&world.file(""), 0o755);
        open(&world.file("root"), 0o755);
        open(world.machine().state(), 0o666);
        let image = world.file("image");
        make_image(&image);
        if !possible(&image) {
            return None;
        }
        let engine = Engine {
            world,
            image,
            next: Cell::new(0),
        };
        let (output, files) = (engine.path("cdi/gpulimit.json"), engine.path("files"));
        let arguments = ["cdi", "generate", "--output", &output, "--files", &files];
        let written = engine.gpulimit(&[&arguments, generate].concat());
        assert!(written.status.success(), "{written:?}");
        Some(engine)
    }

    /// Returns a path in the world, as text.
    pub fn path(&self, name: &str) -> String {
        self.world.file(name).to_str().expect("UTF-8").to_owned()
    }

    /// Returns the image's directory.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Runs the host's controller.
    pub fn gpulimit(&self, arguments: &[&str]) -> Output {
        let mut command = self.world.bare(&world::controller());
        command
            .args(arguments)
            .env("GPULIMIT_LIBRARY", world::shim());
        world::finish(command)
    }

    /// Returns the answer of `gpulimit oci-hook` to this state.
    pub fn hook(&self, arguments: &[&str], state: &Value) -> (i32, String) {
        let file = self.world.file("state.json");
        fs::write(&file, state.to_string()).expect("written");
        let mut command = self.world.bare(&world::controller());
        command.arg("oci-hook").args(arguments);
        command.stdin(fs::File::open(&file).expect("there"));
        let output = command.output().expect("started");
        let said = text(&output.stderr);
        (output.status.code().expect("it ends by itself"), said)
    }

    /// Returns the names of the groups.
    pub fn groups(&self) -> Vec<String> {
        let groups = self.world.root().groups().expect("listed");
        groups.iter().map(|group| group.name().to_owned()).collect()
    }

    /// Returns what the simulated machine needs in a container: the mount of the GPU, and the
    /// variable with its path.
    pub fn gpu(&self) -> (Value, String) {
        let state = self.world.machine().state();
        let mount =
            json!({ "destination": "/gpu", "type": "bind", "source": state, "options": ["bind"] });
        (mount, "GPULIMIT_SIM_STATE=/gpu".to_owned())
    }

    /// Makes a bundle for a container; returns it and the container's name.
    fn bundle(&self, start: &Start<'_>) -> (PathBuf, String) {
        let number = self.next.replace(self.next.get() + 1);
        let id = match start.id {
            Some(id) => id.to_owned(),
            None => format!("c-{number}"),
        };
        // Control groups are shared by the whole machine, so their names must differ.
        let world = self.world.file("");
        let world = world.file_name().expect("a name").to_string_lossy();
        let (gpu, variable) = self.gpu();
        let mut config = config(&self.image, &[gpu], start);
        config["linux"]["cgroupsPath"] = json!(format!("/{world}.{number}"));
        let variables = config["process"]["env"].as_array_mut().expect("a list");
        variables.extend([
            json!(variable),
            json!("GPULIMIT_SIM_KILL_LAG_MS=50"),
            json!("PATH=/bin"),
        ]);
        if !start.devices.is_empty() {
            let spec = fs::read_to_string(self.world.file("cdi/gpulimit.json")).expect("there");
            let spec: Value = serde_json::from_str(&spec).expect("JSON");
            apply(&spec, start, &mut config);
        }
        let place = self.world.file(&format!("bundle.{number}"));
        bundle(&place, &config);
        (place, id)
    }

    /// Starts `gpu-script` in a container.
    pub fn start(&self, start: &Start<'_>) -> Container {
        let (place, id) = self.bundle(start);
        let runtime = self.world.file("runc");
        let mut command = runc(&runtime);
        command.args(["run", "--bundle"]).arg(place).arg(&id);
        Container {
            session: Session::start(command),
            inside: Inside { id, runtime },
        }
    }

    /// Returns the error of a container that must not start.
    #[track_caller]
    pub fn refused(&self, start: &Start<'_>) -> String {
        let (place, id) = self.bundle(start);
        let mut command = runc(&self.world.file("runc"));
        command.args(["run", "--bundle"]).arg(place).arg(&id);
        let output = world::finish(command);
        assert!(!output.status.success(), "{output:?}");
        text(&output.stderr)
    }

    /// Returns the usage of a container's group in bytes of the first GPU; `None` if there is no
    /// such group.
    pub fn counted(&self, group: &str) -> Option<u64> {
        let group = self.world.root().group(group).ok()?;
        let ledger = group.ledger().ok()?;
        let id = self.world.machine().gpu(0).uuid.parse().expect("a UUID");
        let usage = ledger.find_device(&id).map(|device| ledger.usage(device));
        Some(usage.map_or(0, |usage| usage.charged - usage.idle))
    }

    /// Asserts that no container has left a group, a record or memory.
    #[track_caller]
    pub fn nothing_is_left(&self) {
        let empty = || self.world.machine().used() == 0;
        assert!(eventually(empty), "{:?}", self.world.machine().gpus());
        let records = || {
            let entries = fs::read_dir(self.world.root().path().join(".containers"));
            entries.map_or(0, Iterator::count)
        };
        assert!(eventually(|| records() == 0), "{} on record", records());
        let mut groups = self.groups();
        groups.retain(|name| name.starts_with("container-"));
        assert_eq!(groups, [""; 0]);
    }
}

/// Applies the file as an engine does: first the edits for all devices, then those of each device
/// in this order.
fn apply(spec: &Value, start: &Start<'_>, config: &mut Value) {
    let all = spec["devices"].as_array().expect("devices");
    let mut edits = vec![&spec["containerEdits"]];
    for name in start.devices {
        let device = all.iter().find(|device| device["name"] == **name);
        edits.push(&device.unwrap_or_else(|| panic!("no device {name}"))["containerEdits"]);
    }
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for edit in edits {
        for mount in list(&edit["mounts"]) {
            config["mounts"]
                .as_array_mut()
                .expect("mounts")
                .push(json!({
                    "destination": mount["containerPath"], "source": mount["hostPath"],
                    "type": "bind", "options": mount["options"]
                }));
        }
        for hook in list(&edit["hooks"]) {
            if start.without_hooks {
                continue;
            }
            let stage = hook["hookName"].as_str().expect("a stage");
            let hooks = &mut config["hooks"][stage];
            let mut there = list(hooks);
            there.push(json!({ "path": hook["path"], "args": hook["args"] }));
            *hooks = json!(there);
        }
    }
}

impl Inside {
    /// Returns a command in the container, as `runc exec` starts it.
    pub fn exec(&self, user: &str, arguments: &[&str]) -> Command {
        let mut command = runc(&self.runtime);
        command
            .args(["exec", "--user", user, &self.id])
            .args(arguments);
        command
    }

    /// Returns the status and output of a shell script in the container, as this user.
    pub fn shell(&self, user: &str, script: &str) -> (Option<i32>, String) {
        let output = world::finish(self.exec(user, &["/bin/sh", "-c", script]));
        let said = text(&output.stdout) + &text(&output.stderr);
        (output.status.code(), said)
    }

    /// Returns the name of the container's own group.
    pub fn group(&self) -> String {
        format!("container-{}", self.id)
    }

    /// Returns the host's pid of the container's first process.
    pub fn init(&self) -> u32 {
        let output = world::finish({
            let mut command = runc(&self.runtime);
            command.args(["state", &self.id]);
            command
        });
        let state: Value = serde_json::from_slice(&output.stdout).expect("a state");
        state["pid"].as_u64().expect("a pid") as u32
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // A container that has ended is removed already.
        let _ = runc(&self.runtime)
            .args(["delete", "--force", &self.id])
            .output();
    }
}

/// Makes a directory with the programs of the tests, the libraries that they load, and the
/// simulated driver where a toolkit would put the real one.
fn make_image(image: &Path) {
    for folder in [
        "bin", "dev", "etc", "lib", "lib64", "proc", "run", "sys", "tmp", "usr/lib",
    ] {
        fs::create_dir_all(image.join(folder)).expect("made");
    }
    let copy = |from: &Path, to: &str| {
        let to = image.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        executable::copy(from, &to);
    };
    let mut programs: Vec<(PathBuf, String)> =
        vec![(world::program().into(), "bin/gpu-script".into())];
    for name in [
        "sh", "env", "cat", "ls", "rm", "mount", "umount", "touch", "chmod", "truncate", "mv",
        "true",
    ] {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {name}; ls /bin/{name}")])
            .output();
        let found = text(&found.expect("a shell").stdout);
        let path = found.lines().find(|line| line.starts_with('/'));
        programs.push((path.expect(name).into(), format!("bin/{name}")));
    }
    let mut libraries = Vec::new();
    for (program, place) in &programs {
        copy(program, place);
    }
    // The libraries that the preloaded library itself needs are copied, too.
    let programs = programs.into_iter().map(|(program, _)| program);
    for program in programs.chain([world::shim()]) {
        let loaded = Command::new("ldd").arg(program).output().expect("ldd");
        let loaded = text(&loaded.stdout);
        libraries.extend(
            loaded
                .split_whitespace()
                .filter(|word| word.starts_with('/'))
                .map(str::to_owned),
        );
    }
    libraries.sort_unstable();
    libraries.dedup();
    for library in &libraries {
        copy(Path::new(library), library);
    }
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        copy(&world::driver().join(name), &format!("usr/lib/{name}"));
    }
}
