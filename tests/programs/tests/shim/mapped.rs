//! `cuMemCreate` memory lives as long as its last handle or mapping, and is charged for that long.

use gpulimit_programs::world::{CONTEXT, MIB, World};

const CAP: u64 = 1024 * MIB;

#[test]
fn released_memory_counts_while_it_is_mapped() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("reserve range 800M", "0"),
        ("create a 400M 0", "0"),
        ("map range 0 a 400M", "0"),
        ("release a", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 400 * MIB);
    world.judge(CAP);
    program.expect(&[
        ("create b 200M 0", "2"),
        ("unmap range 0 400M", "0"),
        ("create b 400M 0", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 400 * MIB);
    world.judge(CAP);
    program.expect(&[("release b", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn every_reference_and_mapping_keeps_the_charge() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("reserve range 100M", "0"),
        ("create a 20M 0", "0"),
        ("map range 0 a 20M", "0"),
        ("map range 20M a 20M", "0"),
        ("map range 40M a 20M", "0"),
        ("retain-handle again range 20M", "0"),
        ("retain-handle more range 0", "0"),
    ]);
    for end in [
        "release a",
        "unmap range 0 40M",
        "release again",
        "unmap range 40M 20M",
    ] {
        program.expect(&[(end, "0")]);
        assert_eq!(world.machine().used(), CONTEXT + 20 * MIB, "after {end}");
        world.judge(CAP);
    }
    program.expect(&[("release more", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn releasing_before_unmapping_keeps_the_figures_exact() {
    // The library calls retain, release, unmap and release in this order.
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("reserve range 40M", "0")]);
    for _ in 0..50 {
        program.expect(&[
            ("create a 40M 0", "0"),
            ("map range 0 a 40M", "0"),
            ("retain-handle again range 0", "0"),
            ("release a", "0"),
            ("unmap range 0 40M", "0"),
            ("release again", "0"),
        ]);
    }
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_refused_or_failed_call_keeps_the_charge() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("reserve range 40M", "0"),
        ("create a 20M 0", "0"),
        ("map range 0 a 20M", "0"),
    ]);
    let calls = [
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemMap",
        "cuMemRetainAllocationHandle",
    ];
    world
        .machine()
        .knob("fail", &calls.map(|call| format!("{call}:999")).join(","));
    program.expect(&[
        ("unmap range 0 20M", "999"),
        ("release a", "999"),
        ("map range 20M a 20M", "999"),
        ("retain-handle again range 0", "999"),
    ]);
    world.judge(CAP);
    world.machine().knob("fail", "none");
    program.expect(&[("release a", "0"), ("unmap range 0 20M", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn host_memory_is_not_charged() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("create-on-host a 4096M", "0"), ("release a", "0")]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn threads_can_release_and_unmap_at_once() {
    let knobs = [(
        "GPULIMIT_SIM_LATENCY",
        "cuMemRelease:50000,cuMemUnmap:50000,cuMemCreate:20000",
    )];
    let world = World::with(CAP, &knobs);
    let mut program = world.on_gpu();
    let block = "reserve range 40M\nrepeat 100 {\ncreate a 20M 0\nmap range 0 a 20M\n\
        retain-handle b range 0\nrelease a\nunmap range 0 20M\nrelease b\n}";
    let answer = program.say(&format!("threads 6 {{\n{block}\n}}"));
    assert_eq!(answer, ["0:601"; 6].join(", "));
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}
