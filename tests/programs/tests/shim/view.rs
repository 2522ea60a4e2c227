//! The driver and NVML report the group's memory, with the same figures everywhere.

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};

const CAP: u64 = 4096 * MIB;
/// The free memory shown leaves out the library's reserve.
const RESERVE: u64 = 4 * MIB;

#[test]
fn total_is_the_limit_and_free_is_the_rest() {
    let world = World::new(CAP);
    let mut program = world.start();
    program.expect(&[("init", "0"), ("total 0", &format!("0 {CAP}"))]);
    program.expect(&[("retain 0", "0"), ("current 0", "0")]);
    let left = |used: u64| format!("0 {} {CAP}", CAP - used - RESERVE);
    program.expect(&[("info", &left(CONTEXT))]);
    program.expect(&[("alloc a 100M", "0"), ("info", &left(CONTEXT + 100 * MIB))]);
    program.expect(&[
        ("free a", "0"),
        ("info", &left(CONTEXT)),
        ("total 0", &format!("0 {CAP}")),
    ]);
    program.end_quietly();
}

#[test]
fn memory_shown_as_free_can_be_allocated() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    for _ in 0..3 {
        let free = program.numbers("info")[1] / (2 * MIB) * 2;
        program.expect(&[(&format!("alloc a {free}M"), "0"), ("free a", "0")]);
    }
    world.judge(CAP);
    program.end_quietly();
}

#[test]
fn nvml_shows_the_same_figures_as_cuda() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 1000M", "0")]);
    let answer = program.numbers("nvml 0");
    let [0, 0, total, free, used, 0, total2, 0, free2, used2] = answer[..] else {
        panic!("{answer:?}");
    };
    assert_eq!((total, total2), (CAP, CAP));
    assert_eq!((free, used), (free2, used2));
    assert_eq!(free + used, CAP);
    let really = world.machine().used();
    assert!(
        (really..really + 10 * MIB).contains(&used),
        "{used} of {really}"
    );
    // NVML's own figures for the process come from the driver.
    program.expect(&[("nvml-own 0", &format!("0 {really}"))]);
    program.end_quietly();
}

#[test]
fn nvml_shows_the_limit_without_cuda() {
    let world = World::new(CAP);
    let mut program = world.start();
    let answer = program.numbers("nvml 0");
    assert_eq!(answer[2], CAP);
    assert_eq!(answer[4], 0, "nothing is used: {answer:?}");
    program.end_quietly();
}

/// Starts a program with a limit in a variable, in a world without a group.
fn with_limit(world: &World, variable: &str, value: &str) -> Session {
    let mut command = world.preloaded(world::program());
    command.env(variable, value);
    Session::start(command)
}

#[test]
fn questions_before_cuda_starts_do_not_decide_the_limit() {
    const GPU: u64 = 16 << 30;
    let variables = [
        ("GPULIMIT_MAX", "0=3G", 3 << 30),
        ("GPULIMIT_MAX", "-2G", GPU - (2 << 30)),
        ("GPULIMIT_MAX", "0=3G,all=4G", 3 << 30),
        ("GPULIMIT_MAX", "UUID=3G", 3 << 30),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "3G", 3 << 30),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G,7=1G", 2 << 30),
    ];
    for (variable, value, cap) in variables {
        let capacity = GPU.to_string();
        let world = World::without_group(&[("GPULIMIT_SIM_CAPACITY", &capacity)]);
        let value = value.replace("UUID", &world.machine().gpu(0).uuid[..8]);
        let mut program = with_limit(&world, variable, &value);
        let total = |program: &mut Session| program.numbers("nvml 0")[2];
        assert_eq!(total(&mut program), cap, "{variable}={value}");
        let figures = program.say("figures");
        assert!(
            figures.starts_with(&format!("0 size=104 limit={}M ", cap >> 20)),
            "{figures}"
        );
        program.expect(&[("error", "0"), ("can", "1"), ("alloc a 2M", "3")]);
        assert_eq!(world.root().groups().expect("groups"), [], "not joined");
        program.expect(&[
            ("start", "0 0"),
            ("total 0", &format!("0 {cap}")),
            (&format!("alloc a {cap}"), "2"),
            ("alloc a 100M", "0"),
        ]);
        assert_eq!(total(&mut program), cap, "{variable}={value}");
        let (_, errors) = program.end();
        assert!(!errors.contains("no GPU memory"), "{errors}");
    }
}

#[test]
fn gpus_of_a_limit_are_those_of_cudas_order_whoever_asks_first() {
    let reversed = [("GPULIMIT_SIM_GPUS", "2"), ("GPULIMIT_SIM_REVERSED", "1")];
    let world = World::without_group(&reversed);
    let mut program = with_limit(&world, "GPULIMIT_MAX", "0=1G,1=2G");
    let total = |program: &mut Session, gpu: u32| program.numbers(&format!("nvml {gpu}"))[2];
    // The ordinals of two GPUs are unknown before CUDA starts.
    let whole = total(&mut program, 0);
    assert!(whole > 2 << 30 && total(&mut program, 1) == whole);
    program.expect(&[("start", "0 0"), ("total 0", &format!("0 {}", 1 << 30))]);
    assert_eq!(total(&mut program, 1), 1 << 30);
    assert_eq!(total(&mut program, 0), 2 << 30);
    // A second process of the job sees the limits that the first has made, before it joins.
    let group = world.group();
    let mut command = world.preloaded(world::program());
    command.env("GPULIMIT_MAX", "0=1G,1=2G");
    command.env("GPULIMIT_GROUP", group.name());
    let mut other = Session::start(command);
    let answer = other.numbers("nvml 1");
    assert_eq!(
        (answer[2], answer[4]),
        (1 << 30, program.numbers("nvml 1")[4])
    );
    assert!(answer[4] >= CONTEXT, "{answer:?}");
    for program in [program, other] {
        program.end_quietly();
    }
}

#[test]
fn a_limit_for_a_gpu_that_is_not_there_denies_after_questions_as_well() {
    for value in ["9=1G", "GPU-ffffffffff=1G"] {
        let world = World::without_group(&[]);
        let mut program = with_limit(&world, "GPULIMIT_MAX", value);
        assert_eq!(program.numbers("nvml 0")[0], 0);
        program.expect(&[("error", "0"), ("init", "0"), ("retain 0", "800")]);
        assert!(program.numbers("nvml 0")[0] == 0);
        program.expect(&[("retain 0", "800")]);
        let (_, errors) = program.end();
        assert!(errors.contains("does not see"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn a_limit_above_the_gpu_shows_the_gpu() {
    let world = World::with(1 << 40, &[("GPULIMIT_SIM_CAPACITY", "4294967296")]);
    let mut program = world.on_gpu();
    assert_eq!(program.numbers("total 0")[1], 4 << 30);
    let answer = program.numbers("info");
    assert_eq!(answer[2], 4 << 30);
    assert!(answer[1] <= (4 << 30) - CONTEXT, "{answer:?}");
    program.end_quietly();
}

#[test]
fn other_members_reduce_the_free_memory() {
    let world = World::new(CAP);
    let mut other = world.on_gpu();
    other.expect(&[("alloc a 1000M", "0")]);
    let mut program = world.on_gpu();
    let free = program.numbers("info")[1];
    let expected = CAP - 2 * CONTEXT - 1000 * MIB;
    assert!(
        (expected - 10 * MIB..=expected).contains(&free),
        "{free} of {expected}"
    );
    program.end_quietly();
}

/// Programs that size themselves at their start must not find the memory of one that has ended.
#[test]
fn memory_of_ended_programs_is_not_shown_as_used() {
    let world = World::new(CAP);
    let mut other = world.on_gpu();
    // It ends without freeing its memory, as most programs do.
    other.expect(&[("alloc a 2000M", "0")]);
    other.kill();
    let is_free = || world.machine().used() == 0;
    assert!(world::eventually(is_free), "the driver has freed it");
    let mut program = world.on_gpu();
    let left = CAP - CONTEXT - RESERVE;
    let free = program.numbers("info")[1];
    assert!(free >= left, "{free} of {left}");
    // The same while the program runs.
    let mut other = world.on_gpu();
    other.expect(&[("alloc a 1000M", "0")]);
    assert!(program.numbers("info")[1] < left - 1000 * MIB);
    other.kill();
    let is_shown = || program.numbers("info")[1] >= left;
    assert!(world::eventually(is_shown), "the charge is gone");
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn free_memory_is_never_negative() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 2000M", "0")]);
    world.set(1024 * MIB);
    program.expect(&[
        ("info", &format!("0 0 {}", 1024 * MIB)),
        ("total 0", &format!("0 {}", 1024 * MIB)),
    ]);
    let v1 = [0, 1024 * MIB, 0, 1024 * MIB];
    let v2 = [0, 1024 * MIB, 0, 0, 1024 * MIB];
    assert_eq!(program.numbers("nvml 0"), [&[0], &v1[..], &v2[..]].concat());
    program.expect(&[
        ("info-v1", &format!("0 0 {}", 1024 * MIB)),
        ("total-v1 0", &format!("0 {}", 1024 * MIB)),
    ]);
    // The limit may also be zero.
    world.set(0);
    program.expect(&[("info", "0 0 0"), ("info-v1", "0 0 0"), ("total 0", "0 0")]);
    assert_eq!(program.numbers("nvml 0"), [0; 10]);
    world.set(1024 * MIB);
    program.expect(&[("alloc b 2M", "2"), ("free a", "0"), ("alloc b 400M", "0")]);
    let free = 1024 * MIB - CONTEXT - 400 * MIB - RESERVE;
    program.expect(&[("info", &format!("0 {free} {}", 1024 * MIB))]);
    program.end();
}

#[test]
fn the_32_bit_functions_show_at_most_their_range() {
    let cap = 3072 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    let left = cap - CONTEXT - RESERVE;
    program.expect(&[
        ("info-v1", &format!("0 {left} {cap}")),
        ("total-v1 0", &format!("0 {cap}")),
        ("total-v1 7", "101 0"),
    ]);
    let most = u64::from(u32::MAX);
    // The 32-bit functions cannot report a larger limit, and must not report only its lower half.
    for gib in [4, 5, 8] {
        world.set(gib << 30);
        let free = ((gib << 30) - CONTEXT - RESERVE).min(most);
        program.expect(&[
            ("info-v1", &format!("0 {free} {most}")),
            ("total-v1 0", &format!("0 {most}")),
        ]);
    }
    program.end_quietly();
}

#[test]
fn a_pools_reserve_is_shown_as_used() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("async a 1000M", "0")]);
    let free = program.numbers("info")[1];
    assert!(free <= CAP - CONTEXT - 1000 * MIB, "{free}");
    program.end_quietly();
}
