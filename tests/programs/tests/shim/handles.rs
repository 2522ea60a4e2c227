//! The library asks the driver only about handles that the driver has handed out and not taken
//! back. A call with any other handle is charged for the most that the call can take, and the
//! library asks about the handle after the driver has accepted it.

use gpulimit_programs::world::{self, BLOCK, CONTEXT, MIB, Session, World};

/// Bytes that 8 KiB of local memory per thread take beyond what a context starts with: an H100
/// holds 132 × 2048 threads.
const LOCAL: u64 = 8192 * 132 * 2048 - 264 * MIB;
/// Bytes of the reserve that a launch charges in advance besides.
const RESERVE: u64 = 4 * MIB;
const CAP: u64 = CONTEXT + 500 * MIB;

/// Runs commands that must all succeed.
#[track_caller]
fn prepare(program: &mut Session, lines: &[&str]) {
    for line in lines {
        program.expect(&[(line, "0")]);
    }
}

/// RMM's tests use a destroyed pool: without gpulimit the answer is 1, and the driver crashes when
/// it is asked about the pool.
#[test]
fn the_driver_is_not_asked_about_a_destroyed_pool() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("pool p 0", "0"),
        ("async a 10M", "0"),
        ("destroy-pool p", "0"),
        ("async-from b p 1M", "1"),
        ("async c 10M", "0"),
    ]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// The driver accepts a destroyed pool as the current one.
#[test]
fn the_driver_is_not_asked_about_a_destroyed_current_pool() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("pool p 0", "0"),
        ("destroy-pool p", "0"),
        ("use-pool p 0", "0"),
        ("async a 1M", "1"),
        ("default-pool d 0", "0"),
        ("use-pool d 0", "0"),
        ("async a 1M", "0"),
    ]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// One thread looks at all pools while another destroys one of them.
#[test]
fn the_driver_is_not_asked_about_a_pool_being_destroyed() {
    let world = World::new(CAP);
    let slow = "cuMemPoolGetAttribute:200000";
    world.machine().knob("latency", slow);
    let mut program = world.on_gpu();
    let life = "pool own 0\nasync-from a own 1M\nfree-async a\nsync\ndestroy-pool own";
    let answer = program.say(&format!("threads 4 {{\nrepeat 40 {{\n{life}\n}}\n}}"));
    assert_ne!(answer, "", "it lives");
    program.end_quietly();
    world.judge_end(CAP);
}

/// The kernel is looked up in every way except by its name.
#[test]
fn kernels_found_by_listing_are_known() {
    for (load, list) in [
        (
            "kernels big 8192",
            "listed f cuModuleEnumerateFunctions big",
        ),
        (
            "kernel-library big 8192",
            "listed f cuLibraryEnumerateKernels big",
        ),
    ] {
        let cap = CONTEXT + LOCAL + RESERVE;
        for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            prepare(&mut program, &["stream s", load, list]);
            program.expect(&[("launch-handle f s", answer)]);
            let taken = if answer == "0" { LOCAL } else { 0 };
            assert_eq!(world.machine().gpu(0).peak, CONTEXT + taken, "{list}");
            world.judge(cap);
            program.end();
            world.judge_end(cap);
        }
    }
}

/// A graph that the library knows is refused before the driver makes it executable.
#[test]
fn every_way_to_get_a_graph_makes_it_known() {
    let captured = ["capture s", "launch big s", "end-capture s g"];
    let copied = [
        "capture s",
        "launch big s",
        "end-capture s o",
        "clone-graph g o",
    ];
    let built = [
        "capture s",
        "launch big s",
        "end-capture s o",
        "graph g",
        "child-node g o",
    ];
    for (twins, way) in [
        (false, &captured[..]),
        (true, &captured[..]),
        (false, &copied[..]),
        (false, &built[..]),
    ] {
        let cap = CONTEXT + LOCAL;
        let world = World::new(cap);
        let mut program = world.start_with(if twins { &["--ptsz"] } else { &[] });
        program.expect(&[("start", "0 0")]);
        prepare(&mut program, &["stream s", "kernels big 8192"]);
        prepare(&mut program, way);
        program.expect(&[("instantiate e g", "2")]);
        assert_eq!(world.machine().gpu(0).peak, CONTEXT, "{way:?}");
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// The simulated driver notes which functions fail: only the functions that the program calls may
/// fail.
#[test]
fn the_driver_is_not_asked_about_destroyed_handles() {
    for (make, end, call, function) in [
        (
            "stream s",
            "destroy-stream s cuStreamDestroy",
            "launch-handle f s",
            "cuLaunchKernel",
        ),
        (
            "stream s",
            "destroy-stream s",
            "launch-handle f s",
            "cuLaunchKernel",
        ),
        (
            "graph g",
            "destroy-graph g",
            "instantiate e g",
            "cuGraphInstantiateWithFlags",
        ),
        (
            "stream s",
            "unload big",
            "launch-handle f s",
            "cuLaunchKernel",
        ),
    ] {
        let world = World::new(CONTEXT + LOCAL + 200 * MIB);
        let failed = world.file("failed");
        let mut command = world.limited(world::program());
        command.env("GPULIMIT_SIM_FAILED", &failed);
        let mut program = Session::start(command);
        program.expect(&[("start", "0 0")]);
        let list = "listed f cuModuleEnumerateFunctions big";
        prepare(&mut program, &["kernels big 0", list, make, end]);
        std::fs::write(&failed, "").expect("written");
        assert_ne!(program.say(call), "0", "{end}");
        let failed = std::fs::read_to_string(&failed).expect("read");
        assert_eq!(failed.trim(), function, "{end}");
        program.end();
    }
}

#[test]
fn allocations_from_an_unseen_pool_are_charged() {
    for gpus in ["1", "2"] {
        let world = World::with(CAP, &[("GPULIMIT_SIM_GPUS", gpus)]);
        let mut program = world.on_gpu();
        program.expect(&[
            ("unseen-pool p 0", "0"),
            ("async-from a p 600M", "2"),
            ("async-from a p 100M", "0"),
        ]);
        assert_eq!(world.machine().used(), CONTEXT + 128 * MIB);
        world.judge(CAP);
        program.expect(&[
            ("async-from b p 600M", "2"),
            ("async-from b p 10M", "0"),
            ("free-async a", "0"),
            ("free-async b", "0"),
            ("sync", "0"),
        ]);
        world.judge(CAP);
        assert_eq!(world.usage(0).refusals, 2);
        program.expect(&[("destroy-pool p", "0")]);
        world.judge(CAP);
        program.end();
        world.judge_end(CAP);
    }
}

#[test]
fn launches_of_unseen_code_are_charged() {
    for (load, get) in [
        ("kernels big 8192", "unseen-function f big"),
        ("kernel-library big 8192", "unseen-kernel f big"),
    ] {
        let cap = CONTEXT + LOCAL + 100 * MIB;
        let world = World::new(cap);
        let mut program = world.on_gpu();
        prepare(&mut program, &["stream s", load, get, "launch-handle f s"]);
        assert_eq!(world.machine().used(), CONTEXT + LOCAL, "{get}");
        world.judge(cap);
        program.expect(&[
            ("alloc a 90M", "0"),
            // The kernel has its local memory already, so the launch is not charged again.
            ("launch-handle f s", "0"),
            ("alloc b 20M", "2"),
        ]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn work_in_unseen_streams_and_graphs_is_charged() {
    for gpus in ["1", "2"] {
        let cap = CONTEXT + LOCAL + 300 * MIB;
        let world = World::with(cap, &[("GPULIMIT_SIM_GPUS", gpus)]);
        let mut program = world.on_gpu();
        prepare(
            &mut program,
            &[
                "unseen-stream s",
                "kernels big 8192",
                "launch big s",
                "launch big s",
                "async a 100M s",
                "free-async a s",
                "sync s",
                "unseen-graph g",
                "alloc-node n g 100M",
                "free-node g n",
                "instantiate e g",
                "launch-graph e s",
            ],
        );
        world.judge(cap);
        prepare(
            &mut program,
            &[
                // A graph with memory nodes can have only one executable graph at a time.
                "destroy-exec e",
                "unseen-exec f g",
                "launch-graph f s",
                "destroy-exec f",
            ],
        );
        world.judge(cap);
        program.expect(&[("alloc b 400M", "2")]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn destroying_an_unseen_context_uncharges_its_memory() {
    let cap = 3 * CONTEXT;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    prepare(
        &mut program,
        &[
            "unseen-context c 0",
            "use c",
            "alloc a 100M",
            "stream s",
            "kernels small 0",
            "launch small s",
            "use primary-0",
            "destroy c",
            "alloc b 50M",
        ],
    );
    assert_eq!(world.machine().used(), CONTEXT + 50 * MIB);
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}
