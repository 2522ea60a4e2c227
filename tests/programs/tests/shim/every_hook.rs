//! Variants of functions and their twins for the per-thread default stream, each as the only
//! function that can refuse a request or correct the charge. The tests by subject would pass
//! without these hooks. `scripts/prove-hooks` finds for every hook a test that fails without it.

use gpulimit_programs::world::{CONTEXT, MIB, Session, World};

const CAP: u64 = CONTEXT + 500 * MIB;

/// Starts a program with a context and a stream, which calls the plain functions or their twins.
fn start(world: &World, twins: bool) -> Session {
    let mut program = world.start_with(if twins { &["--ptsz"] } else { &[] });
    program.expect(&[("start", "0 0"), ("stream s", "0")]);
    program
}

#[test]
fn an_imported_handle_is_another_reference() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("create a 100M 0", "0"),
        ("import b a", "0"),
        ("release a", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 100 * MIB);
    world.judge(CAP);
    program.expect(&[("release b", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn allocations_from_own_pools_are_charged_in_advance() {
    for twins in [false, true] {
        let world = World::new(CAP);
        let mut program = start(&world, twins);
        program.expect(&[("pool own 0", "0"), ("async-from a own 600M", "2")]);
        world.judge(CAP);
        program.end();
        world.judge_end(CAP);
    }
}

/// A synchronise call looks at the pools only after something was freed.
#[test]
fn the_next_synchronise_call_uncharges_a_free() {
    for twins in [false, true] {
        let world = World::new(CAP);
        let mut program = start(&world, twins);
        program.expect(&[("async a 200M s", "0"), ("sync", "0"), ("sync", "0")]);
        program.expect(&[("free-async a s", "0"), ("sync", "0")]);
        assert!(world.machine().used() < CONTEXT + 10 * MIB);
        world.judge(CAP);
        program.end_quietly();
        world.judge_end(CAP);
    }
}

#[test]
fn every_synchronise_call_looks_at_the_pools() {
    for sync in [
        "sync null",
        "sync s",
        "event-sync",
        "sync-context primary-0",
    ] {
        for twins in [false, true] {
            let world = World::new(CAP);
            let mut program = start(&world, twins);
            program.expect(&[
                ("async a 200M s", "0"),
                ("free-async a s", "0"),
                (sync, "0"),
            ]);
            assert!(world.machine().used() < CONTEXT + 10 * MIB, "{sync}");
            world.judge(CAP);
            program.end_quietly();
            world.judge_end(CAP);
        }
    }
}

/// The pool of the latest allocation is no longer the current one.
#[test]
fn a_changed_current_pool_is_noticed() {
    for change in ["use-pool own 0", "use-pool-at own 0"] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[
            ("pool own 0", "0"),
            ("async a 10M", "0"),
            (change, "0"),
            ("async b 100M", "0"),
        ]);
        assert_eq!(world.machine().used(), CONTEXT + (32 + 128) * MIB);
        world.judge(CAP);
        program.end_quietly();
        world.judge_end(CAP);
    }
}

#[test]
fn every_end_of_the_primary_context_uncharges_its_memory() {
    for end in [
        "release-primary 0",
        "release-primary-v1 0",
        "reset 0",
        "reset-v1 0",
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[("alloc a 400M", "0"), (end, "0")]);
        assert_eq!(world.machine().used(), 0, "{end}");
        assert_eq!(world.counted(0), 0, "{end}");
        program.end_quietly();
        world.judge_end(CAP);
    }
}

/// Asking for a kernel's function loads the kernel's library.
#[test]
fn kernel_functions_are_charged_in_advance() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("library a 300M", "0"),
        ("library b 300M", "0"),
        ("library-function a", "0"),
        ("library-function b", "2"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 300 * MIB);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn twins_of_launches_are_charged_in_advance() {
    let cap = CONTEXT + 100 * MIB;
    for way in ["launch big", "launch-ex big s", "cooperative big s"] {
        let world = World::new(cap);
        let mut program = start(&world, true);
        program.expect(&[("kernels big 4096", "0"), (way, "2")]);
        assert_eq!(world.usage(0).refusals, 1);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// The program makes streams until the group is full.
#[test]
fn every_way_to_make_streams_is_measured() {
    let cap = CONTEXT + 42 * MIB;
    for way in ["stream", "priority-stream"] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        let answer = program.say(&format!("repeat 2000 {{\n{way} s\n}}"));
        assert!(answer.contains("2:"), "{answer}");
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// A graph made executable without a hook would be launched without a charge for its memory.
#[test]
fn every_way_to_make_graphs_executable_looks_at_their_nodes() {
    for make in [
        "instantiate e g",
        "instantiate-v1 e g",
        "instantiate-v2 e g",
        "instantiate-upload e g s",
    ] {
        for launch in ["launch-graph e s", "upload-graph e s"] {
            for twins in [false, true] {
                let world = World::new(CAP);
                let mut program = start(&world, twins);
                program.expect(&[("graph g", "0"), ("alloc-node a g 600M", "0")]);
                match make {
                    "instantiate-upload e g s" => program.expect(&[(make, "2")]),
                    _ => program.expect(&[(make, "0"), (launch, "2")]),
                };
                world.judge(CAP);
                program.end();
                world.judge_end(CAP);
            }
        }
    }
}
