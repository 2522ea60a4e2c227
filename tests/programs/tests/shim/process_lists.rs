//! NVML's process lists show the group's processes only.

use std::path::Path;
use std::process::Command;

use gpulimit_base::units::Size;
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::{self, CONTEXT, GROUP, MIB, Session, World, eventually, text};
use gpulimit_support::{may_unshare, skip};

const CAP: u64 = 4096 * MIB;
/// The simulated NVML also lists programs as graphics processes and as clients of MPS.
const ALL_LISTS: (&str, &str) = ("GPULIMIT_SIM_ALL_LISTS", "1");

/// Starts a program without a limit and with a context.
fn stranger(world: &World) -> Session {
    let mut program = Session::start(world.bare(world::program()));
    assert_eq!(program.say("start"), "0 0");
    program
}

/// Returns the expected answer of `processes`: `0`, the number of processes, and the pid and bytes
/// of each.
fn listing(processes: &[(u32, u64)]) -> String {
    let mut sorted = processes.to_vec();
    sorted.sort_unstable();
    let each = sorted.iter().map(|(pid, bytes)| format!(" {pid} {bytes}"));
    format!("0 {}{}", sorted.len(), each.collect::<String>())
}

#[test]
fn every_list_shows_only_the_group() {
    let world = World::with(CAP, &[ALL_LISTS]);
    let mut one = world.on_gpu();
    let mut two = world.on_gpu();
    let mut other = stranger(&world);
    one.expect(&[("alloc a 100M", "0")]);
    other.expect(&[("alloc a 1000M", "0")]);
    let ours = [(one.pid(), CONTEXT + 100 * MIB), (two.pid(), CONTEXT)];
    let all = [&ours[..], &[(other.pid(), CONTEXT + 1000 * MIB)]].concat();
    for list in ["Compute", "Graphics", "MPSCompute"] {
        for version in ["v1", "v2", "v3", "details"] {
            let command = format!("processes 0 {list} {version} 8");
            assert_eq!(one.say(&command), listing(&ours), "{command}");
            assert_eq!(two.say(&command), listing(&ours), "{command}");
            assert_eq!(other.say(&command), listing(&all), "{command}");
        }
    }
    drop(other);
    one.end_quietly();
    two.end_quietly();
}

#[test]
fn a_query_for_the_count_follows_the_drivers_protocol() {
    let world = World::new(CAP);
    let mut program = world.start();
    // These processes are more than the group has: the program's buffer need not hold the machine's
    // whole list.
    let others: Vec<_> = (0..3).map(|_| stranger(&world)).collect();
    let pid = program.pid();
    for version in ["v1", "v2", "v3", "details"] {
        let say = |program: &mut Session, room: &str| {
            program.say(&format!("processes 0 Compute {version} {room}"))
        };
        assert_eq!(say(&mut program, "nowhere-0"), "0 0", "{version}");
        assert_eq!(say(&mut program, "0"), "0 0");
        assert_eq!(say(&mut program, "nowhere-4"), "2 4", "the driver's answer");
    }
    program.expect(&[("start", "0 0")]);
    for version in ["v1", "v2", "v3", "details"] {
        let say = |program: &mut Session, room: &str| {
            program.say(&format!("processes 0 Compute {version} {room}"))
        };
        assert_eq!(say(&mut program, "nowhere-0"), "7 1", "{version}");
        assert_eq!(say(&mut program, "0"), "7 1");
        assert_eq!(say(&mut program, "1"), listing(&[(pid, CONTEXT)]));
        assert_eq!(say(&mut program, "nowhere-4"), "2 4", "the driver's answer");
    }
    drop(others);
    program.end_quietly();
}

#[test]
fn a_long_list_is_searched_to_its_end() {
    let knobs = [("GPULIMIT_SIM_CONTEXT_BYTES", "4194304")];
    let world = World::with(CAP, &knobs);
    let others: Vec<_> = (0..70).map(|_| stranger(&world)).collect();
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 10M", "0")]);
    let own = listing(&[(program.pid(), 14 * MIB)]);
    for version in ["v1", "v2", "v3", "details"] {
        program.expect(&[(&format!("processes 0 Compute {version} 1"), &own)]);
    }
    drop(others);
    program.end_quietly();
}

/// Makes a folder with an NVML of the first R535 drivers, which lacks a function that later drivers
/// have.
fn early_nvml(world: &World) -> std::path::PathBuf {
    let folder = world.file("early");
    world::older(
        "libnvidia-ml.so.1",
        "nvmlDeviceGetRunningProcessDetailList",
        &folder,
    );
    folder
}

#[test]
fn the_first_535_drivers_have_longer_entries() {
    let world = World::with(CAP, &[ALL_LISTS, ("GPULIMIT_SIM_EARLY_535", "1")]);
    let folder = early_nvml(&world);
    let other = stranger(&world);
    let mut command = world.limited(world::program());
    let folders = format!("{}:{}", folder.display(), world::driver().display());
    command.env("LD_LIBRARY_PATH", folders);
    let mut program = Session::start(command);
    program.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    let mut second = world.on_gpu();
    let ours = listing(&[
        (program.pid(), CONTEXT + 100 * MIB),
        (second.pid(), CONTEXT),
    ]);
    for list in ["Compute", "Graphics", "MPSCompute"] {
        let room = |room| format!("processes 0 {list} v3-535 {room}");
        program.expect(&[(&room(2), &ours), (&room(1), "7 2")]);
        program.expect(&[(&format!("processes 0 {list} v2 2"), &ours)]);
    }
    drop(other);
    second.expect(&[("processes 0 Compute v1 1", "7 2")]);
    program.end_quietly();
    drop(second);
    world.settle();
}

#[test]
fn an_nvml_that_calls_its_own_exports_is_filtered_once() {
    let answers = |own: &str| {
        let world = World::without_group(&[ALL_LISTS, ("GPULIMIT_SIM_OWN_EXPORTS", own)]);
        // The limit is a percentage of the machine's memory, not of the memory shown to the
        // program.
        let half = LimitSet::all(Size::Percent(5000));
        world.root().create(GROUP, &half).expect("a group");
        let other = stranger(&world);
        let (mut program, mut mate) = (world.start(), world.start());
        program.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
        mate.expect(&[("start", "0 0")]);
        let total = program.numbers("total 0")[1];
        let said = program.numbers("nvml 0");
        assert_eq!((said[2], said[6]), (total, total), "{own}: {said:?}");
        let ours = listing(&[(program.pid(), CONTEXT + 100 * MIB), (mate.pid(), CONTEXT)]);
        for list in ["Compute", "Graphics", "MPSCompute"] {
            for version in ["v1", "v2", "v3", "details"] {
                let room = |room| format!("processes 0 {list} {version} {room}");
                program.expect(&[(&room(2), &ours), (&room(1), "7 2"), (&room(0), "7 2")]);
            }
        }
        drop(other);
        program.end_quietly();
        mate.end_quietly();
        said
    };
    assert_eq!(answers("0"), answers("1"));
}

#[test]
fn killed_processes_are_listed_until_the_driver_frees_them() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "3600000")]);
    let mut program = world.on_gpu();
    let victim = world.on_gpu();
    let own = (program.pid(), CONTEXT);
    let both = listing(&[own, (victim.pid(), CONTEXT)]);
    victim.kill();
    program.expect(&[("processes 0 Compute v3 4", &both)]);
    world.machine().knob("kill-lag-ms", "0");
    assert!(eventually(|| world.machine().used() == CONTEXT));
    program.expect(&[("processes 0 Compute v3 4", &listing(&[own]))]);
}

#[test]
fn without_a_limit_the_list_is_the_drivers() {
    let knobs = [("GPULIMIT_SIM_GPUS", "2"), ALL_LISTS];
    let world = World::without_group(&knobs);
    let mut other = stranger(&world);
    other.expect(&[("retain 1", "0")]);
    let mut command = world.preloaded(world::program());
    command.env("GPULIMIT_MAX", "0=1G,1=500G");
    let mut program = Session::start(command);
    program.expect(&[("start", "0 0")]);
    let own = listing(&[(program.pid(), CONTEXT)]);
    let others = listing(&[(other.pid(), CONTEXT)]);
    for version in ["v1", "v2", "v3", "details"] {
        program.expect(&[
            (&format!("processes 0 Compute {version} 8"), &own),
            (&format!("processes 1 Compute {version} 8"), &others),
        ]);
        // A buffer too small for the driver's list gets the driver's own error.
        program.expect(&[(&format!("processes 1 Graphics {version} 0"), "7 1")]);
    }
    program.end_quietly();
}

#[test]
fn invalid_queries_get_the_drivers_answer() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let mut other = stranger(&world);
    for line in ["processes 7 Compute v3 4", "processes 0 Nonsense details 4"] {
        assert_eq!(program.say(line), other.say(line), "{line}");
    }
    program.end_quietly();
}

/// A Python program with the queries of gpustat, nvitop and similar tools.
const TOOL: &str = "
import pynvml as nvml
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
for memory in (
    nvml.nvmlDeviceGetMemoryInfo(gpu),
    nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2),
):
    print('memory', memory.total, memory.used, memory.free)
for kind in 'Compute', 'Graphics', 'MPSCompute':
    for version in '', '_v2', '_v3':
        listed = getattr(nvml, f'nvmlDeviceGet{kind}RunningProcesses{version}')(gpu)
        print(kind, *sorted((process.pid, process.usedGpuMemory) for process in listed))
for mode in range(3):
    listed = nvml.nvmlDeviceGetRunningProcessDetailList(gpu, nvml.nvmlProcessDetailList_v1, mode)
    print('details', *sorted((process.pid, process.usedGpuMemory) for process in listed))
";

#[test]
fn python_tools_show_the_group() {
    let Some(module) = world::nvml_bindings() else {
        skip("nvidia-ml-py is not there and scripts/wheels cannot fetch it");
        return;
    };
    let world = World::with(CAP, &[ALL_LISTS]);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 500M", "0")]);
    let other = stranger(&world);
    let tool = |mut command: Command| {
        let folder = module.parent().expect("a folder");
        command.args(["-c", TOOL]).env("PYTHONPATH", folder);
        let output = world::finish(command);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let said = tool(world.limited(Path::new("python3")));
    let used = CONTEXT + 500 * MIB;
    let charged = world.usage(0).charged;
    let memory = format!("memory {CAP} {charged} {}\n", CAP - charged);
    let own = format!("({}, {used})", program.pid());
    let mut expected = memory.repeat(2);
    for list in ["Compute", "Graphics", "MPSCompute", "details"] {
        expected += &format!("{list} {own}\n").repeat(3);
    }
    assert_eq!(said, expected);
    let machine = tool(world.bare(Path::new("python3")));
    assert_eq!(
        machine
            .matches(&format!("({}, {CONTEXT})", other.pid()))
            .count(),
        12
    );
    assert_eq!(machine.matches(&own).count(), 12, "{machine}");
    drop(other);
    program.end_quietly();
}

/// Returns a command in a pid namespace with its own `/proc`, or `None` where that is not allowed.
fn unshared() -> Option<Command> {
    const FLAGS: [&str; 3] = ["--pid", "--kill-child", "--mount-proc"];
    may_unshare(&FLAGS).then(|| {
        let mut command = Command::new("unshare");
        command.args(FLAGS).arg("--fork");
        command
    })
}

#[test]
fn members_in_a_container_are_listed_by_the_visible_pid() {
    let Some(unshare) = unshared() else { return };
    let world = World::new(CAP);
    let mut command = world.limited(Path::new("unshare"));
    command.args(unshare.get_args()).arg(world::program());
    let mut inside = Session::start(command);
    inside.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    // The program is the only child of `unshare`.
    let pid = inside.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let child: u32 = children
        .expect("readable")
        .trim()
        .parse()
        .expect("one child");
    let mut outside = world.on_gpu();
    let other = stranger(&world);
    let contained = CONTEXT + 100 * MIB;
    outside.expect(&[(
        "processes 0 Compute v3 8",
        &listing(&[(outside.pid(), CONTEXT), (child, contained)]),
    )]);
    // The program sees only processes inside its namespace, and is the first process there.
    inside.expect(&[("processes 0 Compute v3 8", &listing(&[(1, contained)]))]);
    drop((inside, other));
    outside.end_quietly();
}
