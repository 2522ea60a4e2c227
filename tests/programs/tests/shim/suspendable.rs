//! `gpulimit doctor` says whether processes can be suspended, and what prevents it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpulimit_programs::world::{self, MIB, Session, World};
use gpulimit_support::{skip, unique, wait_until};
use serde_json::Value;

/// Returns what a command of the controller finds out about suspending, each text with its remedy.
/// No finding is a warning, because limits do not depend on it.
fn found(mut command: Command) -> Vec<(String, String)> {
    command.arg("--json");
    let output = world::finish(command);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = json["findings"].as_array().expect("findings").iter();
    let about = findings.filter(|finding| finding["check"] == "suspend");
    about
        .map(|finding| {
            assert_eq!(finding["level"], "ok", "{finding}");
            let part = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
            (part("text"), part("remedy"))
        })
        .collect()
}

fn doctor(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.bare(&world::controller());
    command.arg("doctor").args(arguments);
    command
}

fn about_machine(world: &World) -> Vec<(String, String)> {
    found(doctor(world, &[]))
}

fn about(world: &World, program: &Session) -> Vec<(String, String)> {
    found(doctor(world, &["--pid", &program.pid().to_string()]))
}

#[track_caller]
fn expect(found: &[(String, String)], expected: &[(&str, &str)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((text, remedy), (in_text, in_remedy)) in found.iter().zip(expected) {
        assert!(text.contains(in_text), "{text}: {in_text}");
        assert!(remedy.contains(in_remedy), "{remedy}: {in_remedy}");
    }
}

const NONE: &[(&str, &str)] = &[("nothing prevents the process from being suspended", "")];
const PERSISTENCE: (&str, &str) = ("GPU 0 is not in persistence mode", "nvidia-smi -pm 1");

#[test]
fn a_machine_without_obstacles() {
    let world = World::without_group(&[]);
    expect(
        &about_machine(&world),
        &[("processes can be suspended", ""), PERSISTENCE],
    );
}

#[test]
fn a_machine_with_mig() {
    let world = World::without_group(&[("GPULIMIT_SIM_MIG", "2")]);
    let mig = (
        "but not on GPU 0, which is split into MIG instances",
        "without MIG",
    );
    let found = about_machine(&world);
    expect(
        &found,
        &[("processes can be suspended", ""), mig, PERSISTENCE],
    );
    let mut program = Session::start(world.bare(world::program()));
    program.expect(&[("start", "0 0")]);
    expect(
        &about(&world, &program),
        &[("uses GPU 0, which is split", "without MIG")],
    );
    program.end();
}

#[test]
fn a_driver_without_the_functions() {
    let world = World::without_group(&[]);
    let folder = world.file("old");
    world::older("libcuda.so.1", "cuCheckpointProcessLock", &folder);
    let mut command = doctor(&world, &[]);
    let libraries = format!("{}:{}", folder.display(), world::driver().display());
    command.env("LD_LIBRARY_PATH", libraries);
    let expected = [(
        "processes cannot be suspended: the driver",
        "driver 570 or later",
    )];
    expect(&found(command), &expected);
}

/// Starts a program with memory, and these variables.
fn start(world: &World, variables: &[(&str, &str)]) -> Session {
    let mut command = world.limited(world::program());
    command.envs(variables.iter().copied());
    let mut program = Session::start(command);
    program.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    program
}

#[test]
fn a_process_without_obstacles() {
    let world = World::new(2048 * MIB);
    let mut program = start(&world, &[]);
    program.expect(&[("managed m 10M", "0")]);
    let managed = (
        "the process cannot be suspended: the process has managed memory",
        "wait until that is over",
    );
    expect(&about(&world, &program), &[managed]);
    program.expect(&[("free m", "0")]);
    expect(&about(&world, &program), NONE);
    let mut outsider = Session::start(world.bare(world::program()));
    outsider.expect(&[("start", "0 0")]);
    let expected = [("suspends only members of groups", "")];
    expect(&about(&world, &outsider), &expected);
    outsider.end();
    // A process that has not loaded the driver has nothing to suspend.
    let own = std::process::id().to_string();
    expect(&found(doctor(&world, &["--pid", &own])), &[]);
    program.end();
    world.judge_end(2048 * MIB);
}

/// The ledger of a group lists the members of the groups below it, without what the library knows
/// of their obstacles.
#[test]
fn a_process_of_a_group_below() {
    let world = World::with(2048 * MIB, &[("GPULIMIT_SIM_GPUS", "2")]);
    world.below("lab", &[]);
    world.below("lab/b", &[]);
    let mut program = world.on_gpu_in("lab/b");
    program.expect(&[("alloc a 100M", "0")]);
    expect(&about(&world, &program), NONE);
    program.expect(&[("managed m 10M", "0")]);
    let managed = ("the process has managed memory", "wait until that is over");
    expect(&about(&world, &program), &[managed]);
    program.expect(&[("free m", "0")]);
    expect(&about(&world, &program), NONE);
    // Access to another GPU ends only with the process.
    program.expect(&[("retain 1", "0"), ("enable-peer primary-1", "0")]);
    let peer = (
        "the process has let a GPU access memory of another GPU",
        "that lasts until the process ends",
    );
    expect(&about(&world, &program), &[peer]);
    program.end();
    world.judge_end(2048 * MIB);
}

#[test]
fn all_obstacles_of_a_process_are_named() {
    let world = World::with(2048 * MIB, &[("GPULIMIT_SIM_ALL_LISTS", "1")]);
    let program = start(&world, &[("CUDA_INJECTION64_PATH", "/nowhere.so")]);
    program.signal(libc::SIGSTOP);
    wait_until("the program is stopped", || program.is_stopped());
    let pid = program.pid().to_string();
    let limited = Command::new("prlimit")
        .args(["--pid", &pid, "--data=1000000:"])
        .status();
    assert!(limited.expect("started").success());
    let expected = [
        ("the process is stopped", "SIGCONT"),
        (
            "a profiler or sanitizer is in the process (CUDA_INJECTION64_PATH)",
            "without the tool",
        ),
        ("the process is a client of MPS", "without MPS"),
        ("(`ulimit -d`) leaves 0", "prlimit --pid"),
    ];
    expect(&about(&world, &program), &expected);
    program.signal(libc::SIGCONT);
    program.kill();
}

#[test]
fn a_process_under_a_debugger() {
    let world = World::new(2048 * MIB);
    let program = start(&world, &[]);
    // 0x4206 is PTRACE_SEIZE, which does not stop the process.
    let script = "import ctypes, sys\nseized = ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), \
                  0, 0)\nprint('seized =', seized, flush=True)\ninput()";
    let mut debugger = Command::new("python3");
    debugger.args(["-c", script, &program.pid().to_string()]);
    let mut debugger = Session::start(debugger);
    assert_eq!(debugger.answer(), "0");
    let expected = format!("the process with pid {} traces the process", debugger.pid());
    expect(&about(&world, &program), &[(&expected, "detach")]);
    debugger.kill();
    expect(&about(&world, &program), NONE);
    program.end();
    world.judge_end(2048 * MIB);
}

#[test]
fn a_process_of_another_user_or_pid_namespace() {
    if !world::may_mount() {
        return;
    }
    let world = World::new(2048 * MIB);
    let program = start(&world, &[]);
    let mut stranger = doctor(&world, &["--pid", &program.pid().to_string()]);
    stranger.uid(65_534).gid(65_534);
    let denied = (
        "belongs to the user with id 0",
        "as that user, or as root outside of containers",
    );
    expect(&found(stranger), &[denied]);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork"]).arg(world::program());
    let bare = world.bare(world::program());
    for (name, value) in bare.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut contained = Session::start(command);
    contained.expect(&[("start", "0 0")]);
    let children = format!("/proc/{0}/task/{0}/children", contained.pid());
    let inner = std::fs::read_to_string(children).expect("readable");
    let said = found(doctor(&world, &["--pid", inner.trim()]));
    expect(&said, &[("another pid namespace", "in the container")]);
    contained.end();
    program.end();
}

/// A cgroup with one process.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a cgroup with this controller, which has the file of one of these names: of version 1,
    /// and of version 2. Writes the value to the file. `None` where that is not possible.
    fn new(program: &Session, controller: &str, files: [(&str, &str); 2]) -> Option<Cgroup> {
        let top = Path::new("/sys/fs/cgroup");
        let places = [top.join(controller), top.to_owned()];
        let found = places.iter().zip(files).find_map(|(place, (file, value))| {
            let cgroup = Cgroup(unique(place, "gpulimit-test-").ok()?);
            let write = |file: &str, value: &str| std::fs::write(cgroup.0.join(file), value).ok();
            // In a directory without the controller this fails: no file can be made there.
            write(file, value)?;
            write("cgroup.procs", &program.pid().to_string())?;
            Some(cgroup)
        });
        if found.is_none() {
            skip(format_args!("cannot make a cgroup with {controller}"));
        }
        found
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The process leaves the cgroup a moment after its end. In a failed test it is still there.
        if !std::thread::panicking() {
            assert!(world::eventually(|| std::fs::remove_dir(&self.0).is_ok()));
        }
    }
}

#[test]
fn a_process_in_a_small_cgroup() {
    let world = World::new(2048 * MIB);
    let program = start(&world, &[]);
    let small = (300 * MIB).to_string();
    let files = [("memory.limit_in_bytes", &*small), ("memory.max", &*small)];
    let Some(cgroup) = Cgroup::new(&program, "memory", files) else {
        return program.kill();
    };
    let expected = format!("the memory cgroup {} leaves", cgroup.0.display());
    expect(
        &about(&world, &program),
        &[(&expected, "raise the limit of the cgroup")],
    );
    program.end();
}

#[test]
fn a_process_in_a_frozen_cgroup() {
    let world = World::new(2048 * MIB);
    let program = start(&world, &[]);
    let files = [("freezer.state", "FROZEN"), ("cgroup.freeze", "1")];
    let Some(cgroup) = Cgroup::new(&program, "freezer", files) else {
        return program.kill();
    };
    let frozen = || about(&world, &program)[0].0.contains("cgroup is frozen");
    assert!(world::eventually(frozen));
    for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        let path = cgroup.0.join(file);
        if path.exists() {
            std::fs::write(path, value).expect("thawed");
        }
    }
    assert!(world::eventually(|| !frozen()));
    program.end();
}
