//! A machine whose GPU shares the host's memory: what is charged there, what programs see, and that
//! the host is never out of memory. CUDA and NVML say that it is such a machine.

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};

const GIB: u64 = 1024 * MIB;
const CAP: u64 = 4 * GIB;
/// The library's reserve, which is not shown as free.
const RESERVE: u64 = 4 * MIB;
const MEMORY: (&str, &str) = ("GPULIMIT_SIM_HOST_MEMORY", "17179869184");

fn shared(cap: u64) -> World {
    World::with(cap, &[MEMORY])
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
    assert!(used >= CONTEXT && used < CONTEXT + 10 * MIB, "{used}");
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
