//! Several processes share one limit; each of several GPUs has its own limit.

use std::collections::BTreeSet;
use std::path::Path;

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};

/// Starts this many programs with a context, which wait for a file before they go on.
fn ready(world: &World, count: usize) -> Vec<Session> {
    let mut programs: Vec<_> = (0..count).map(|_| world.on_gpu()).collect();
    for program in &mut programs {
        program.tell(&format!("wait {}", world.file("go").display()));
    }
    programs
}

fn go(world: &World, programs: &mut [Session], block: &str) -> Vec<String> {
    for program in programs.iter_mut() {
        program.tell(block);
    }
    std::fs::write(world.file("go"), "").expect("a file");
    programs
        .iter_mut()
        .map(|program| {
            assert_eq!(program.answer(), "0");
            program.answer()
        })
        .collect()
}

#[test]
fn two_processes_racing_for_the_last_bytes_keep_to_the_limit() {
    let cap = 2 * CONTEXT + 150 * MIB;
    let knobs = [(
        "GPULIMIT_SIM_LATENCY",
        "cuMemAlloc_v2:100000,cuMemFree_v2:50000",
    )];
    let world = World::with(cap, &knobs);
    let mut programs = ready(&world, 2);
    let answers = go(
        &world,
        &mut programs,
        "repeat 200 {\nalloc a 100M\nfree a\n}",
    );
    // Freeing a refused allocation repeats an earlier free, which the driver answers with an error.
    for answer in &answers {
        assert!(answer.contains("0:"), "{answers:?}");
    }
    assert!(world.machine().peak() >= 2 * CONTEXT + 100 * MIB);
    world.judge(cap);
    drop(programs);
    world.judge_end(cap);
}

#[test]
fn a_request_that_fits_is_never_refused_by_a_race() {
    // Each process asks for a third of the memory that is free for both.
    let cap = 2 * CONTEXT + 230 * MIB;
    let world = World::new(cap);
    let mut programs = ready(&world, 2);
    let answers = go(
        &world,
        &mut programs,
        "repeat 300 {\nalloc a 40M\nalloc b 60M\nfree a\nfree b\n}",
    );
    assert_eq!(answers, ["0:1200", "0:1200"]);
    world.judge(cap);
    for program in programs {
        program.end_quietly();
    }
    world.judge_end(cap);
}

#[test]
fn eight_processes_fill_a_group_exactly_to_the_limit() {
    let cap = 8 * CONTEXT + 400 * MIB;
    let world = World::new(cap);
    let mut programs = ready(&world, 8);
    let answers = go(&world, &mut programs, "fill a 3M");
    assert!(
        answers.iter().all(|answer| answer.starts_with("2 ")),
        "{answers:?}"
    );
    world.judge(cap);
    assert!(
        world.machine().used() >= cap - 8 * 8 * MIB,
        "{}",
        world.machine().used()
    );
    drop(programs);
    world.judge_end(cap);
}

#[test]
fn eight_processes_racing_over_all_memory_keep_to_the_limit() {
    let cap = 8 * CONTEXT + 200 * MIB;
    let world = World::new(cap);
    let mut programs = ready(&world, 8);
    let block = "repeat 40 {\nmany a 5 3M\nmany b 20 300000\ncreate c 20M 0\nasync d 20M\n\
        free-async d\nrelease c\nsync\nfree-many a\nfree-many b\n}";
    go(&world, &mut programs, block);
    world.judge(cap);
    drop(programs);
    world.judge_end(cap);
}

#[test]
fn only_one_of_four_contexts_fits() {
    let cap = 2 * CONTEXT - 20 * MIB;
    let world = World::new(cap);
    let mut programs: Vec<_> = (0..4).map(|_| world.start()).collect();
    for program in &mut programs {
        program.tell("start");
    }
    let answers: Vec<_> = programs.iter_mut().map(Session::answer).collect();
    let made = answers.iter().filter(|answer| *answer == "0 0").count();
    assert_eq!(made, 1, "{answers:?}");
    world.judge(cap);
    drop(programs);
    world.judge_end(cap);
}

#[test]
fn a_job_and_its_children_share_one_limit() {
    let world = World::without_group(&[]);
    let cap = 2048 * MIB;
    let mut command = world.preloaded(world::program());
    command.env("GPULIMIT_MAX", "2G");
    let mut program = Session::start(command);
    let go = world.file("go").display().to_string();
    assert_eq!(
        program.say(&format!(
            "background {{\nwait {go}\nstart\nalloc b 500M\n}}"
        )),
        "0"
    );
    program.expect(&[("start", "0 0"), ("alloc a 900M", "0")]);
    std::fs::write(&go, "").expect("a file");
    // The child's answers: 2,048 MiB less two contexts and the parent's memory are not enough for
    // the child.
    assert_eq!(program.line(), format!("wait {go} = 0"));
    assert_eq!(program.answer(), "0 0");
    assert_eq!(program.answer(), "2");
    world.bury();
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn forty_processes_share_a_limit() {
    let cap = 20 * CONTEXT / 10;
    let knobs = [("GPULIMIT_SIM_CONTEXT_BYTES", "10485760")];
    let world = World::with(cap, &knobs);
    let mut programs: Vec<_> = (0..40).map(|_| world.on_gpu()).collect();
    for program in &mut programs {
        program.expect(&[("alloc a 4M", "0")]);
    }
    let mut seen = BTreeSet::new();
    for process in world.ledger().processes(&gpulimit_ledger::NoWitness) {
        seen.insert(process.identity.pid);
    }
    assert_eq!(seen.len(), 40);
    world.judge(cap);
    drop(programs);
    world.judge_end(cap);
}

const TWO: (&str, &str) = ("GPULIMIT_SIM_GPUS", "2");

fn limited_by(world: &World, max: &str, more: &[(&str, &str)]) -> Session {
    let mut command = world.preloaded(Path::new(world::program()));
    command.env("GPULIMIT_MAX", max).envs(more.iter().copied());
    Session::start(command)
}

#[test]
fn each_gpu_has_its_own_limit() {
    let world = World::without_group(&[TWO]);
    let mut program = limited_by(&world, "0=1G,1=2G", &[]);
    program.expect(&[
        ("start", "0 0"),
        ("retain 1", "0"),
        ("total 0", "0 1073741824"),
        ("total 1", "0 2147483648"),
        ("alloc a 600M", "2"),
        ("alloc a 400M", "0"),
        ("current 1", "0"),
        (
            "info",
            &format!("0 {} 2147483648", 2048 * MIB - CONTEXT - 4 * MIB),
        ),
        ("alloc b 1400M", "0"),
        ("alloc c 200M", "2"),
        ("free a", "0"),
    ]);
    world.judge_gpu(0, 1024 * MIB);
    world.judge_gpu(1, 2048 * MIB);
    program.end();
    world.settle();
}

#[test]
fn memory_is_charged_on_the_gpu_that_holds_it() {
    let world = World::without_group(&[TWO]);
    let mut program = limited_by(&world, "0=1G,1=2G", &[]);
    program.expect(&[
        ("start", "0 0"),
        ("create a 1500M 1", "0"),
        ("create b 600M 1", "2"),
        ("create c 600M 0", "2"),
        ("create d 400M 0", "0"),
        ("pool p 1", "0"),
        ("async-from e p 320M", "0"),
    ]);
    assert_eq!(world.machine().gpu(1).used, (1500 + 320) * MIB);
    world.judge_gpu(0, 1024 * MIB);
    world.judge_gpu(1, 2048 * MIB);
    program.expect(&[
        ("release a", "0"),
        ("retain 1", "0"),
        ("push primary-1", "0"),
        ("alloc f 500M", "0"),
        ("pop", "0"),
    ]);
    world.judge_gpu(1, 2048 * MIB);
    program.expect(&[("free f", "0"), ("release d", "0")]);
    world.judge_gpu(0, 1024 * MIB);
    world.judge_gpu(1, 2048 * MIB);
    program.end();
    world.settle();
}

#[test]
fn limits_by_number_use_the_programs_order() {
    // NVML's second GPU is the program's first one.
    for more in [
        &[("CUDA_VISIBLE_DEVICES", "1,0")][..],
        &[("GPULIMIT_SIM_REVERSED", "1")],
    ] {
        let world = World::without_group(&[&[TWO][..], more].concat());
        let mut program = limited_by(&world, "0=1G,1=2G", more);
        program.expect(&[
            ("start", "0 0"),
            ("alloc a 600M", "2"),
            ("alloc a 400M", "0"),
            ("retain 1", "0"),
            ("current 1", "0"),
            ("alloc b 1400M", "0"),
        ]);
        world.judge_gpu(1, 1024 * MIB);
        world.judge_gpu(0, 2048 * MIB);
        // NVML counts the GPUs in its own order.
        assert_eq!(program.numbers("nvml 1")[2], 1024 * MIB, "{more:?}");
        assert_eq!(program.numbers("nvml 0")[2], 2048 * MIB, "{more:?}");
        program.end();
        world.settle();
    }
}

#[test]
fn a_limit_holds_on_the_only_visible_gpu() {
    let world = World::without_group(&[TWO]);
    let mut program = limited_by(&world, "1G", &[("CUDA_VISIBLE_DEVICES", "1")]);
    program.expect(&[
        ("start", "0 0"),
        ("alloc a 600M", "2"),
        ("alloc a 400M", "0"),
    ]);
    assert_eq!(world.machine().gpu(0).peak, 0);
    world.judge_gpu(1, 1024 * MIB);
    program.end();
    world.settle();
}
