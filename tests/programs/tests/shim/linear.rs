//! `cuMemAlloc`, `cuMemAllocPitch` and `cuMemAllocManaged` are charged for the memory they take,
//! not for the bytes requested.

use gpulimit_ledger::Category;
use gpulimit_programs::world::{BLOCK, CONTEXT, HOUR, MIB, World, eventually};

const CAP: u64 = 1024 * MIB;
/// Bytes charged but not used: the reserve for the driver's own needs and the spare block.
const SLACK: u64 = 6 * MIB;

#[test]
fn requests_just_above_a_block_take_two_blocks() {
    for (size, real) in [("1100000", 2), ("3M-4K", 4), ("2M+1", 4), ("1M+1", 2)] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        let answer = program.numbers(&format!("fill a {size}"));
        assert_eq!(answer[0], 2, "{size}: refused with out-of-memory");
        let room = (CAP - CONTEXT) / (real * MIB);
        let slack = SLACK / (real * MIB) + 1;
        assert!(
            (room - slack..=room).contains(&answer[1]),
            "{size}: {} of {room}",
            answer[1]
        );
        world.judge(CAP);
        program.expect(&[("free-many a", "0")]);
        assert_eq!(world.machine().used(), CONTEXT);
        world.judge(CAP);
        program.end();
        world.judge_end(CAP);
    }
}

#[test]
fn small_requests_share_blocks() {
    // Request sizes, each with the number of requests that share a block.
    for (size, per_block) in [
        ("20000", 102),
        ("400000", 5),
        ("700000", 2),
        ("512K", 4),
        ("1M", 2),
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[(
            &format!("many a {} {size}", per_block * 20),
            &format!("0 {}", per_block * 20),
        )]);
        assert_eq!(world.machine().used(), CONTEXT + 40 * MIB, "{size}");
        world.judge(CAP);
        program.expect(&[("alloc one-more 20000", "0"), ("free-many a", "0")]);
        world.judge(CAP);
        program.end_quietly();
        world.judge_end(CAP);
    }
}

fn linear(world: &World) -> u64 {
    world.usage(0).by[Category::Linear as usize]
}

#[test]
fn a_spare_block_pays_for_one_block_and_is_kept_until_it_does() {
    let cap = CONTEXT + 100 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("alloc a 512", "0"),
        ("alloc b 512", "0"),
        ("alloc c 512", "0"),
        ("fill rest 2M", "2 47"),
        // The end of the block makes it a spare block.
        ("free a", "0"),
        ("free b", "0"),
        ("free c", "0"),
        ("alloc d 2M+1", "2"),
        ("alloc d 512", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn calls_that_fail_do_not_change_how_many_allocations_a_block_has() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    for name in ["a", "b", "c", "d"] {
        program.expect(&[(&*format!("alloc {name} 512"), "0")]);
    }
    program.expect(&[("free d", "0"), ("free d", "1"), ("free d", "1")]);
    world.machine().knob("fail", "cuMemAlloc_v2:2");
    program.expect(&[("alloc-over c 512", "2"), ("alloc-over c 512", "2")]);
    world.machine().knob("fail", "none");
    program.expect(&[("free a", "0"), ("free b", "0")]);
    assert_eq!(linear(&world), BLOCK);
    program.expect(&[("free c", "0")]);
    assert_eq!(linear(&world), 0);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

/// A thread is held in a call that has freed a block, before it records that.
#[test]
fn a_large_allocation_in_a_block_that_is_being_freed_is_freed_as_such() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let delay = |ns: &str| world.machine().knob("delay", &format!("cuMemFree:{ns}"));
    delay(HOUR);
    program.expect(&[("alloc-v1 a 512", "0"), ("aside {\nfree-v1 a\n}", "0")]);
    assert!(eventually(|| world.machine().used() == CONTEXT));
    program.expect(&[("alloc-v1 large 5M", "0"), ("free large", "0")]);
    delay("0");
    program.expect(&[("await", "0:1")]);
    assert_eq!(linear(&world), 0);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// A thread is held in a call that has taken or freed a block, before it records that. Loading a
/// module measures meanwhile.
#[test]
fn a_measurement_during_the_call_of_a_small_allocation_is_corrected() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("alloc a 512", "0"),
        ("alloc b 512", "0"),
        ("free a", "0"),
        ("module before 1M", "0"),
        // Whatever the module took, there is a spare block again.
        ("alloc d 512", "0"),
        ("free d", "0"),
    ]);
    let driver = || world.usage(0).by[Category::Driver as usize];
    let (before, used) = (driver(), world.machine().used());
    for (function, call, change) in [
        ("cuMemAlloc_v2", "alloc c 2M", 2 * MIB as i64),
        ("cuMemFree_v2", "free b", -2 * MIB as i64),
    ] {
        let delay = |ns: &str| world.machine().knob("delay", &format!("{function}:{ns}"));
        delay(HOUR);
        let then = world.machine().used();
        program.expect(&[(&*format!("aside {{\n{call}\n}}"), "0")]);
        let now = then.strict_add_signed(change);
        assert!(eventually(|| world.machine().used() == now), "{call}");
        program.expect(&[("module m 1M", "0"), ("unload m", "0")]);
        delay("0");
        program.expect(&[("await", "0:1")]);
        assert_eq!(driver(), before, "{call}");
    }
    assert_eq!(world.machine().used(), used);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_full_group_serves_what_fits_into_a_held_block_and_nothing_else() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc held 4096", "0"), ("alloc neighbour 4096", "0")]);
    // The requests take all blocks up to the last one.
    for size in ["64M", "2M"] {
        program.numbers(&format!("fill rest-{size} {size}"));
    }
    // The held block has room beside the neighbour, and another block is not available: the refusal
    // is the driver's own answer.
    let used = world.machine().used();
    program.expect(&[("alloc inside 4096", "0")]);
    assert_eq!(world.machine().used(), used, "no block was taken");
    program.expect(&[("alloc outside 2M", "2")]);
    assert_eq!(world.machine().used(), used, "and none was kept");
    program.expect(&[
        ("free inside", "0"),
        ("free held", "0"),
        ("alloc again 4096", "0"),
    ]);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn small_requests_stop_at_the_limit() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let answer = program.numbers("fill a 700000");
    let room = (CAP - CONTEXT) / (2 * MIB) * 2;
    assert_eq!(answer[0], 2);
    assert!(
        (room - 8..=room).contains(&answer[1]),
        "{answer:?} of {room}"
    );
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn twenty_thousand_small_requests_are_charged_by_blocks() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("many a 20000 512", "0 20000")]);
    assert_eq!(world.machine().used(), CONTEXT + 10 * MIB);
    world.judge(CAP);
    program.expect(&[("free-many a", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_hundred_thousand_live_allocations_are_charged_exactly() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("many a 50000 1000", "0 50000"),
        ("many b 50000 3000", "0 50000"),
    ]);
    world.judge(CAP);
    program.expect(&[("free-many a", "0")]);
    world.judge(CAP);
    program.expect(&[("free-many b", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn pitched_memory_is_charged_with_its_pitch() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    // A row is 16 bytes wide, and rows are 512 bytes apart.
    program.expect(&[("pitch a 16 204800", "0 512")]);
    assert_eq!(world.machine().used(), CONTEXT + 100 * MIB);
    world.judge(CAP);
    program.expect(&[("pitch b 1032 2048", "0 1536"), ("pitch c 4 4", "0 512")]);
    assert_eq!(
        world.machine().used(),
        CONTEXT + 100 * MIB + 4 * MIB + 2 * MIB
    );
    world.judge(CAP);
    program.expect(&[
        ("pitch d 16 2097152", "2 0"),
        ("free a", "0"),
        ("free b", "0"),
        ("free c", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn managed_memory_is_charged_in_full_and_shown_apart() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("managed a 300M", "0")]);
    assert_eq!(world.usage(0).by[Category::Managed as usize], 300 * MIB);
    world.judge(CAP);
    program.expect(&[
        ("managed b 300M", "2"),
        ("alloc c 300M", "2"),
        ("alloc c 150M", "0"),
        ("free a", "0"),
        ("alloc d 300M", "0"),
        ("managed e 100M", "2"),
    ]);
    assert_eq!(world.usage(0).by[Category::Managed as usize], 0);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn unknown_pointers_are_passed_to_the_driver() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("free-number 0", "0"),
        ("free-number 4096", "1"),
        ("free-number 140000000000000", "1"),
        ("alloc a 5M", "0"),
        ("async b 5M", "0"),
        ("free b", "0"),
        ("sync", "0"),
        ("free a", "0"),
        ("free a", "1"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_program_gets_nearly_every_block_of_the_limit() {
    // The library gives up its own reserve when no other memory is left.
    let cap = CONTEXT + 100 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    let got = program.numbers("fill a 2M")[1];
    assert!(got >= 48, "{got} of 50 blocks");
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn threads_fill_the_group_exactly_to_the_limit() {
    let world = World::with(
        CAP,
        &[(
            "GPULIMIT_SIM_LATENCY",
            "cuMemAlloc_v2:20000,cuMemFree_v2:20000",
        )],
    );
    let mut program = world.on_gpu();
    let answer = program.say("threads 8 {\nfill a 3000000\n}");
    assert!(answer.contains("2:1"), "{answer}");
    world.judge(CAP);
    assert!(
        world.machine().used() >= CAP - 16 * MIB,
        "{}",
        world.machine().used()
    );
    program.end();
    world.judge_end(CAP);
}

#[test]
fn threads_that_allocate_and_free_leave_no_charge() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let block = "repeat 300 {\nalloc a 1000\nalloc b 700000\nalloc c 5M\nasync d 1M\nmanaged e 2M\n\
        free c\nfree b\nfree a\nfree e\nfree-async d\n}";
    let answer = program.say(&format!("threads 4 {{\n{block}\n}}"));
    assert_eq!(answer, ["0:3000"; 4].join(", "));
    program.expect(&[("sync", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn the_32_bit_functions_are_charged() {
    let cap = 1024 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("alloc-v1 a 100M", "0"),
        ("alloc-v1 b 1000", "0"),
        ("pitch-v1 c 1000 4096", "0 1024"),
        ("alloc-v1 none 0", "1"),
    ]);
    world.judge(cap);
    assert_eq!(world.machine().used(), CONTEXT + 106 * MIB);
    program.expect(&[
        ("alloc-v1 d 500M", "2"),
        ("pitch-v1 d 1048576 500", "2 0"),
        ("free-v1 a", "0"),
        ("alloc-v1 d 300M", "0"),
        // Both versions of the functions accept the same pointers.
        ("free d", "0"),
        ("free-v1 b", "0"),
        ("free-v1 c", "0"),
        ("free-v1 c", "1"),
    ]);
    world.judge(cap);
    assert_eq!(world.machine().used(), CONTEXT);
    program.end();
    world.judge_end(cap);
}

/// `cuMemFreeAsync` takes memory of `cuMemAlloc`, which the driver keeps until a synchronise call.
#[test]
fn linear_memory_freed_in_a_stream_is_charged_until_the_driver_gives_it_back() {
    let cap = CONTEXT + 1000 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    for (bytes, held) in [("600M", 600 * MIB), ("1000", 2 * MIB)] {
        let allocate = format!("alloc a {bytes}");
        program.expect(&[(&allocate, "0"), ("free-async a", "0")]);
        assert_eq!(world.machine().used(), CONTEXT + held);
        program.expect(&[("alloc b 998M", "2")]);
        world.judge(cap);
        program.expect(&[("sync", "0")]);
        assert_eq!(world.machine().used(), CONTEXT);
        world.judge(cap);
        program.expect(&[("alloc b 990M", "0"), ("free b", "0")]);
    }
    // The driver refuses managed memory, which stays.
    program.expect(&[("managed m 400M", "0"), ("free-async m", "801")]);
    program.expect(&[
        ("alloc b 700M", "2"),
        ("free m", "0"),
        ("alloc b 990M", "0"),
    ]);
    program.end();
    world.judge_end(cap);
}

/// Memory that the driver has given and the library has not recorded yet looks to another thread's
/// measurement like the driver's own.
#[test]
fn a_measurement_during_an_allocation_is_corrected() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    world.machine().knob("jitter", "1");
    world.machine().knob("delay", "cuMemAlloc_v2:80000000");
    // A measurement is too old after 100 ms, which only time brings. The first thread that gets its
    // memory measures again.
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert_eq!(program.say("threads 3 {\nalloc a 20M\n}"), "0:1, 0:1, 0:1");
    assert_eq!(world.machine().used(), CONTEXT + 60 * MIB);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}
