//! A machine whose GPU shares the host's memory: what is charged there, what programs see, and that
//! the host is never out of memory. CUDA and NVML say that it is such a machine.

use gpulimit_programs::world::{
    self, CONTEXT, GROUP, HOUR, MIB, Session, World, controller, finish, text,
};

const GIB: u64 = 1024 * MIB;
const CAP: u64 = 4 * GIB;
/// The library's reserve, which is not shown as free.
const RESERVE: u64 = 4 * MIB;
/// A host of 8 GiB, one of 16, and one of 200.
const BOARD: (&str, &str) = ("GPULIMIT_SIM_HOST_MEMORY", "8589934592");
const MEMORY: (&str, &str) = ("GPULIMIT_SIM_HOST_MEMORY", "17179869184");
const LARGE: (&str, &str) = ("GPULIMIT_SIM_HOST_MEMORY", "214748364800");

/// Makes a world on a host of 16 GiB, whose programs need not leave half of it free.
fn shared(cap: u64) -> World {
    let world = World::with(cap, &[MEMORY]);
    world.settings(&["keep_free=0"]);
    world
}

#[test]
fn pinned_host_memory_is_charged_until_it_is_freed() {
    let world = shared(CAP);
    let mut program = world.on_gpu();
    let used = || world.machine().host()[0] - CONTEXT;
    let charged = || world.usage(0).charged;
    let start = charged();
    for kind in ["", " plain", " v1"] {
        program.expect(&[(&format!("pinned a 1000M{kind}"), "0")]);
        assert_eq!(used(), 1000 * MIB);
        assert_eq!(charged() - start, 1000 * MIB, "{kind}");
        program.expect(&[(&format!("pinned b 4000M{kind}"), "2")]);
        program.expect(&[("free-pinned a", "0")]);
        assert_eq!((used(), charged()), (0, start), "{kind}");
    }
    // A context takes its pinned memory with it.
    program.expect(&[
        ("context other 0 v2", "0"),
        ("pinned a 1000M", "0"),
        ("destroy other", "0"),
    ]);
    assert_eq!(used(), 0);
    assert!(charged() < start + 100 * MIB, "{}", charged() - start);
    program.end();
    world.judge_end(CAP);
}

/// The program has the memory that it registers, and its memory cgroup counts it.
#[test]
fn registering_memory_takes_none() {
    let world = shared(CONTEXT + 100 * MIB);
    let mut program = world.on_gpu();
    program.expect(&[("register-host 200M", "0"), ("alloc a 90M", "0")]);
    program.end_quietly();
}

/// A GPU with memory of its own, also one that CUDA calls integrated.
#[test]
fn pinned_memory_is_free_where_the_gpu_has_its_own() {
    let told = ("GPULIMIT_SIM_NVML_MEMORY", "1");
    for knobs in [&[][..], &[MEMORY, told]] {
        let world = World::with(CONTEXT + 100 * MIB, knobs);
        let mut program = world.on_gpu();
        program.expect(&[("pinned a 1000M", "0"), ("free-pinned a", "0")]);
        program.end_quietly();
    }
}

#[test]
fn all_kinds_of_memory_count_together() {
    let world = shared(CAP);
    let mut program = world.on_gpu();
    let each = [
        ("alloc a 500M", "0"),
        ("managed b 500M", "0"),
        ("create c 500M 0", "0"),
        ("create-on-host d 500M", "0"),
        ("pinned e 500M", "0"),
        ("pool p 0", "0"),
        ("async-from f p 480M", "0"),
    ];
    program.expect(&each);
    let [used, _] = world.machine().host();
    assert_eq!(used, CONTEXT + 2980 * MIB);
    let charged = world.usage(0).charged;
    assert!(
        (used..used + 64 * MIB).contains(&charged),
        "{charged} of {used}"
    );
    for more in [
        "alloc x",
        "managed x",
        "create x",
        "create-on-host x",
        "pinned x",
    ] {
        let place = if more == "create x" { " 0" } else { "" };
        program.expect(&[(&format!("{more} 700M{place}"), "2")]);
    }
    program.end();
    world.judge_end(CAP);
}

#[test]
fn free_is_what_the_host_can_give() {
    let world = shared(CAP);
    let mut program = world.on_gpu();
    let left = CAP - CONTEXT - RESERVE;
    program.expect(&[("info", &format!("0 {left} {CAP}"))]);
    // CUDA does not count the page cache, which the kernel gives back.
    world.machine().knob("page-cache", &(15 * GIB).to_string());
    program.expect(&[("info", &format!("0 {left} {CAP}"))]);
    world.machine().knob("host-used", &(14 * GIB).to_string());
    let host = 2 * GIB - CONTEXT;
    program.expect(&[("info", &format!("0 {host} {CAP}"))]);
    // NVML shows the group's figures once CUDA has told what the GPU is.
    let [0, 0, total, _, used, 0, total2, ..] = program.numbers("nvml 0")[..] else {
        panic!("NVML");
    };
    assert_eq!((total, total2), (CAP, CAP));
    assert!((CONTEXT..CONTEXT + 10 * MIB).contains(&used), "{used}");
    program.end_quietly();
}

#[test]
fn without_a_limit_the_driver_answers() {
    let world = World::without_group(&[MEMORY]);
    world.machine().knob("page-cache", &(10 * GIB).to_string());
    let mut program = Session::start(world.preloaded(world::program()));
    program.expect(&[("start", "0 0")]);
    let free = 6 * GIB - CONTEXT;
    program.expect(&[("info", &format!("0 {free} {}", 16 * GIB))]);
    assert_eq!(program.numbers("nvml 0")[1], 3, "not supported");
    program.end_quietly();
}

/// What a program can take when `others` bytes are in use outside, with these settings of the
/// group.
fn room(memory: (&str, &str), others: u64, settings: &[&str]) -> u64 {
    let world = World::with(1000 * GIB, &[memory, ("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    world.settings(settings);
    world.machine().knob("host-used", &others.to_string());
    let mut program = world.on_gpu();
    let [_, pieces] = program.numbers("fill a 256M")[..] else {
        panic!("fill");
    };
    let [used, overruns] = world.machine().host();
    assert_eq!(overruns, 0, "the host was out of memory");
    assert_eq!(used, others + CONTEXT + pieces * 256 * MIB);
    program.end();
    used
}

#[test]
fn a_tenth_of_the_host_stays_free_unless_a_group_says_otherwise() {
    // At least 8 GiB, to a request that does not fit any more, and at most half of a small board.
    for (memory, total, keep) in [
        (BOARD, 8 * GIB, 4 * GIB),
        (MEMORY, 16 * GIB, 8 * GIB),
        (LARGE, 200 * GIB, 20 * GIB),
    ] {
        let used = room(memory, 3 * GIB, &[]);
        assert!(
            used <= total - keep && used + 256 * MIB > total - keep,
            "{used}"
        );
    }
    let used = room(MEMORY, 3 * GIB, &["keep_free=2G"]);
    assert!(used <= 14 * GIB && used + 256 * MIB > 14 * GIB, "{used}");
}

/// `keep_free=0` in the group, or in one above it, ends the default, and a parent's other value
/// holds.
#[test]
fn zero_ends_the_default() {
    for (parent, child, fits) in [
        ("keep_free=0", "max=12G", true),
        ("max=12G", "keep_free=0", true),
        ("max=12G", "max=12G", false),
        ("keep_free=7G", "keep_free=0", false),
    ] {
        let world = World::with(15 * GIB, &[MEMORY]);
        world.settings(&[parent]);
        world.below("child", &[child]);
        let mut program = world.on_gpu_in("child");
        let answer = if fits { "0" } else { "2" };
        program.expect(&[("alloc a 10G", answer)]);
        program.end();
        assert_eq!(world.machine().host()[1], 0);
    }
}

/// The host's programs take memory between the look and the driver's answer.
#[test]
fn what_went_below_on_the_host_is_given_back() {
    for (call, function) in [
        ("managed a 2G", "cuMemAllocManaged"),
        ("pinned a 2G", "cuMemHostAlloc"),
        ("pinned a 2G plain", "cuMemAllocHost_v2"),
        ("pinned a 2G v1", "cuMemAllocHost"),
    ] {
        let world = World::with(1000 * GIB, &[MEMORY]);
        let mut program = world.on_gpu();
        let (charged, [used, _]) = (world.usage(0).charged, world.machine().host());
        world
            .machine()
            .knob("latency", &format!("{function}:{HOUR}"));
        program.expect(&[(&format!("aside {{\n{call}\n}}"), "0")]);
        program.sleeps_again();
        let others = (8 * GIB - used).to_string();
        world.machine().knob("host-used", &others);
        world.machine().knob("latency", "0");
        assert_eq!(program.say("await"), "2:1", "{call}");
        assert_eq!(world.machine().host(), [8 * GIB, 0], "{call}");
        assert_eq!(world.usage(0).charged, charged, "{call}");
        program.end();
    }
}

/// A GPU with memory of its own has no such default.
#[test]
fn a_gpu_with_its_own_memory_keeps_nothing_free() {
    let world = World::with(10 * GIB, &[("GPULIMIT_SIM_CAPACITY", "10737418240")]);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 9G", "0")]);
    program.end_quietly();
}

/// Without a limit, the host ends the program as the kernel would.
#[test]
fn the_simulated_host_ends_who_takes_too_much() {
    let world = World::without_group(&[MEMORY]);
    world.machine().knob("host-used", &(12 * GIB).to_string());
    let mut program = Session::start(world.bare(world::program()));
    program.expect(&[("start", "0 0"), ("alloc a 2G", "0")]);
    program.tell("managed b 2G");
    let (status, errors) = program.end();
    assert!(!status.success(), "{status}");
    assert!(errors.contains("the host is out of memory"), "{errors}");
    assert_eq!(world.machine().host()[1], 1);
}

/// Programs that take all they can in every way, beside a host that fills up.
#[test]
fn programs_in_groups_leave_the_host_alive() {
    let world = World::with(1000 * GIB, &[MEMORY]);
    let ways = ["alloc", "managed", "pinned", "create"];
    let mut programs: Vec<_> = ways.iter().map(|_| world.on_gpu()).collect();
    for round in 0..40 {
        world
            .machine()
            .knob("host-used", &(round * 176 * MIB).to_string());
        for (program, way) in programs.iter_mut().zip(ways) {
            let place = if way == "create" { " 0" } else { "" };
            program.say(&format!("{way} a{round} 128M{place}"));
        }
    }
    let [used, overruns] = world.machine().host();
    assert_eq!(overruns, 0);
    // The host's programs went on after the last request that was granted.
    assert!(used >= 8 * GIB, "{used}");
    for program in programs {
        program.end();
    }
}

fn run(world: &World, arguments: &[&str]) -> String {
    let mut command = world.bare(&controller());
    command.args(arguments);
    let output = finish(command);
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_controller_knows_the_hosts_memory() {
    let world = shared(CAP);
    world.machine().knob("page-cache", &(10 * GIB).to_string());
    let mut program = world.on_gpu();
    program.expect(&[("pinned a 1000M", "0"), ("alloc b 1000M", "0")]);
    let top = run(&world, &["top", "--once", "--json"]);
    let top: serde_json::Value = serde_json::from_str(&top).expect("JSON");
    let gpu = &top["gpus"][0];
    let used = CONTEXT + 2000 * MIB;
    assert_eq!(
        (&gpu["total"], &gpu["used"]),
        (&(16 * GIB).into(), &used.into()),
        "{gpu}"
    );
    assert_eq!(gpu["outside"], 0, "{gpu}");
    for (size, bytes) in [("50%", 8 * GIB), ("-6G", 10 * GIB)] {
        run(&world, &["set", GROUP, "--max", size]);
        let shown = run(&world, &["show", GROUP, "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert!(
            shown.to_string().contains(&format!("\"max\":{bytes}")),
            "{size}: {shown}"
        );
        program.expect(&[("total 0", &format!("0 {bytes}"))]);
    }
    let doctor = run(&world, &["doctor"]);
    for said in [
        "shares the host's memory",
        "leave 8.0 GiB of it free",
        "not tried",
        "16.0 GiB",
    ] {
        assert!(doctor.contains(said), "{said}: {doctor}");
    }
    program.end_quietly();
}
