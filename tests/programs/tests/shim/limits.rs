//! Memory that contexts set aside for kernels is charged before the driver takes it: limits of
//! contexts, kernels with much local memory, heaps, green contexts.

use gpulimit_programs::world::{BLOCK, CONTEXT, HOUR, MIB, Session, World, eventually};

/// Returns the bytes that `per_thread` bytes of local memory take beyond what a context starts
/// with: an H100 holds 132 × 2048 threads.
const fn local(per_thread: u64) -> u64 {
    per_thread * 132 * 2048 / BLOCK * BLOCK - 264 * MIB
}

const STACK: u64 = 0;
const PRINTF: u64 = 1;
const HEAP: u64 = 2;

/// Fills the group until less than a block is left beyond the driver's reserve.
#[track_caller]
fn fill(program: &mut Session) {
    let answer = program.say("fill filler 2M");
    assert!(answer.starts_with("2 "), "{answer}");
}

#[test]
fn a_stack_limit_is_refused_below_what_it_takes() {
    for per_thread in [2048, 4096, 4097, 5000, 16_384] {
        let cap = CONTEXT + local(u64::next_multiple_of(per_thread, 16));
        let set = format!("set-limit {STACK} {per_thread}");
        for (cap, answer) in [(cap, "0"), (cap - BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            program.expect(&[(&set, answer)]);
            let taken = if answer == "0" { cap } else { CONTEXT };
            assert_eq!(world.machine().used(), taken, "{per_thread} in {cap}");
            world.judge(cap);
            if answer == "2" {
                assert_eq!(
                    world.machine().gpu(0).peak,
                    CONTEXT,
                    "the driver was not asked"
                );
                assert_eq!(world.usage(0).refusals, 1);
                program.expect(&[(&format!("limit {STACK}"), "0 1024")]);
                let (_, errors) = program.end();
                assert!(errors.contains("refused cuCtxSetLimit"), "{errors}");
            } else {
                program.end_quietly();
            }
            world.judge_end(cap);
        }
    }
}

#[test]
fn a_lowered_stack_limit_uncharges_its_memory() {
    let cap = CONTEXT + local(8192) + 8 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    for (value, beyond) in [(8192, local(8192)), (2048, local(2048)), (1024, 0)] {
        program.expect(&[(&format!("set-limit {STACK} {value}"), "0")]);
        assert_eq!(world.machine().used(), CONTEXT + beyond);
        world.judge(cap);
    }
    let room = local(8192) / MIB - 2;
    program.expect(&[
        (&format!("alloc a {room}M"), "0"),
        (&format!("set-limit {STACK} 2048"), "2"),
        ("free a", "0"),
        (&format!("set-limit {STACK} 8192"), "0"),
        (&format!("set-limit {STACK} 16"), "0"),
    ]);
    world.judge(cap);
    assert_eq!(world.machine().used(), CONTEXT - 264 * MIB + 4 * MIB);
    program.expect(&[("set-limit 0 0", "0")]);
    assert_eq!(world.machine().used(), CONTEXT - 264 * MIB);
    world.judge(cap);
    program.expect(&[("release-primary 0", "0")]);
    assert_eq!(world.counted(0), 0);
    program.expect(&[("retain 0", "0"), ("current 0", "0")]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// The GPU takes more than the driver reported; the library can only undo that.
#[test]
fn a_stack_that_takes_more_than_expected_is_undone() {
    let world = World::with(600 * MIB, &[("GPULIMIT_SIM_CONTEXT_BYTES", "10485760")]);
    let mut program = world.on_gpu();
    world.machine().knob("context-bytes", &CONTEXT.to_string());
    program.expect(&[
        ("alloc a 500M", "0"),
        ("set-limit 0 2048", "2"),
        ("limit 0", "0 1024"),
    ]);
    assert_eq!(world.usage(0).refusals, 1);
    assert!(world.machine().used().abs_diff(world.counted(0)) <= BLOCK);
    let (_, errors) = program.end();
    assert!(errors.contains("refused cuCtxSetLimit"), "{errors}");
    world.settle();
}

#[test]
fn other_and_invalid_limits_get_the_drivers_answer() {
    let cap = CONTEXT + 100 * MIB;
    let world = World::new(cap);
    let mut program = world.start();
    program.expect(&[
        ("init", "0"),
        ("set-limit 0 4096", "201"),
        ("set-limit 2 64M", "201"),
        ("start", "0 0"),
        ("set-limit 3 4", "215"),
        ("set-limit 4 1048576", "0"),
        ("limit 4", "0 599186"),
        ("set-limit 5 32", "0"),
        ("set-limit 6 1048576", "0"),
        ("set-limit 7 1", "1"),
        ("set-limit 4294967295 1", "1"),
        ("set-limit 0 0", "0"),
        ("set-limit 0 1024", "0"),
        ("set-limit 0 512K", "1"),
        ("set-limit 0 max", "1"),
        ("set-limit 0 9223372036854775808", "1"),
        ("set-limit 1 0", "0"),
        ("set-limit 2 0", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(cap);
    assert_eq!(world.usage(0).refusals, 0);
    program.expect(&[("alloc a 94M", "0")]);
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn failures_of_the_driver_leave_no_charge() {
    let cap = CONTEXT + 2000 * MIB;
    for (call, command) in [
        ("cuCtxSetLimit", "set-limit 0 4096"),
        ("cuCtxSetLimit", "set-limit 1 100M"),
        ("cuCtxSetLimit", "set-limit 2 100M"),
        ("cuLaunchKernel", "launch big"),
        ("cuGreenCtxCreate", "green g 0"),
    ] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[("kernels big 4096", "0")]);
        let before = world.usage(0);
        world.machine().knob("fail", &format!("{call}:719"));
        let answer = program.say(&format!("repeat 10 {{\n{command}\n}}"));
        assert_eq!(answer, "719:10");
        let after = world.usage(0);
        assert!(
            after.charged <= before.charged + BLOCK,
            "{command}: {after:?}"
        );
        world.judge(cap);
        world.machine().knob("fail", "none");
        program.expect(&[(command, "0")]);
        world.judge(cap);
        program.end_quietly();
        world.judge_end(cap);
    }
}

/// Commands for every way to launch a kernel.
const WAYS: [&str; 7] = [
    "launch big",
    "cooperative big s",
    "launch-ex big s",
    "launch-one big",
    "launch-grid big",
    "launch-grid-async big s",
    "launch-many big s",
];

#[test]
fn a_kernel_is_refused_below_what_it_takes() {
    for (per_thread, way) in [
        (4096, WAYS[0]),
        (4096, WAYS[1]),
        (16_384, WAYS[2]),
        (1104, WAYS[3]),
        (65_536, WAYS[4]),
        (5008, WAYS[5]),
        (8192, WAYS[6]),
        (262_144, WAYS[0]),
        (4096, "launch-kernel big s"),
    ] {
        let load = if way.starts_with("launch-kernel") {
            "kernel-library"
        } else {
            "kernels"
        };
        let load = format!("{load} big {per_thread}");
        let cap = CONTEXT + local(per_thread) + RESERVE;
        for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            program.expect(&[("stream s", "0"), (&load, "0"), (way, answer)]);
            world.judge(cap);
            if answer == "0" {
                assert_eq!(world.machine().used(), CONTEXT + local(per_thread), "{way}");
                program.expect(&[(way, "0"), (way, "0")]);
                world.judge(cap);
                program.end_quietly();
            } else {
                assert_eq!(
                    world.machine().gpu(0).peak,
                    CONTEXT,
                    "the driver was not asked"
                );
                // A refused launch leaves no trace: the same launch is refused again.
                program.expect(&[(way, "2")]);
                assert_eq!(world.usage(0).refusals, 2);
                let (_, errors) = program.end();
                assert!(errors.contains("refused cuLaunch"), "{errors}");
            }
            world.judge_end(cap);
        }
    }
}

/// Bytes of the reserve that a launch charges in advance besides.
const RESERVE: u64 = 4 * MIB;

#[test]
fn repeated_launches_and_smaller_kernels_cost_nothing() {
    let cap = CONTEXT + local(8192) + RESERVE;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("kernels small 100", "0"),
        ("kernels middle 4096", "0"),
        ("kernels big 8192", "0"),
        ("launch small", "0"),
        ("launch big", "0"),
        ("launch middle", "0"),
        ("launch big", "0"),
        ("unload big", "0"),
        ("kernels big 8192", "0"),
        ("launch big", "0"),
        // The local memory grown for a launch is now the limit, and goes back when the limit is
        // lowered.
        (&format!("set-limit {STACK} 8000"), "0"),
        ("launch big", "0"),
        (&format!("limit {STACK}"), "0 8192"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + local(8192));
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn lowering_the_stack_limit_uncharges_a_launch() {
    let cap = CONTEXT + local(4096) + RESERVE;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("kernels big 4096", "0")]);
    for _ in 0..3 {
        program.expect(&[
            ("launch big", "0"),
            ("launch big", "0"),
            (&format!("set-limit {STACK} 1024"), "0"),
        ]);
        assert_eq!(world.machine().used(), CONTEXT);
        world.judge(cap);
    }
    let room = local(4096) / MIB;
    program.expect(&[
        (&format!("alloc a {room}M"), "0"),
        ("launch big", "2"),
        ("free a", "0"),
        ("launch big", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// The GPU has less memory than the group's limit: the driver refuses, and frees the local memory
/// that the context had.
#[test]
fn failed_growth_uncharges_the_earlier_local_memory() {
    let cap = 8192 * MIB;
    let capacity = CONTEXT + 1000 * MIB;
    for failing in ["launch huge", "set-limit 0 16384"] {
        let world = World::with(cap, &[("GPULIMIT_SIM_CAPACITY", &capacity.to_string())]);
        let mut program = world.on_gpu();
        program.expect(&[
            ("kernels huge 16384", "0"),
            ("kernels none 0", "0"),
            ("kernels some 512", "0"),
            ("kernels big 4096", "0"),
            ("launch big", "0"),
            ("launch some", "0"),
            ("launch none", "0"),
        ]);
        assert_eq!(world.machine().used(), CONTEXT + local(4096));
        program.expect(&[(failing, "2")]);
        assert_eq!(world.machine().used(), CONTEXT - 264 * MIB);
        world.judge(cap);
        program.expect(&[("launch none", "0"), (&format!("limit {STACK}"), "0 4096")]);
        assert_eq!(world.machine().used(), CONTEXT - 264 * MIB, "not yet");
        world.judge(cap);
        // The local memory comes back with the next kernel that needs any, and is charged before.
        world.set(CONTEXT + local(4096));
        program.expect(&[("launch some", "2"), ("launch big", "2")]);
        assert_eq!(world.machine().used(), CONTEXT - 264 * MIB);
        world.set(CONTEXT + local(4096) + RESERVE);
        program.expect(&[("launch some", "0"), ("launch big", "0")]);
        assert_eq!(world.machine().used(), CONTEXT + local(4096));
        world.judge(cap);
        program.expect(&[(&format!("set-limit {STACK} 1024"), "0")]);
        assert_eq!(world.machine().used(), CONTEXT);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn local_memory_is_charged_in_every_context() {
    let cap = 2 * CONTEXT + 2 * local(4096) + RESERVE;
    for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[
            ("kernel-library shared 4096", "0"),
            ("library other 0", "0"),
            ("unload-library other", "0"),
            ("launch-kernel shared", "0"),
            ("launch-kernel shared", "0"),
            ("stream first", "0"),
            ("context second 0 v2", "0"),
            ("stream second", "0"),
            // The library's kernel has run in one context, and not in the other.
            ("launch-kernel shared", answer),
            ("launch-kernel shared", answer),
            ("launch-kernel shared first", "0"),
            ("launch-kernel shared second", answer),
        ]);
        let contexts = if answer == "0" { 2 } else { 1 };
        let taken = 2 * CONTEXT + contexts * local(4096);
        assert_eq!(world.machine().used(), taken);
        world.judge(cap);
        program.expect(&[("destroy second", "0"), ("current 0", "0")]);
        assert_eq!(world.machine().used(), CONTEXT + local(4096));
        world.judge(cap);
        program.expect(&[("launch-kernel shared", "0"), ("context third 0 v4", "0")]);
        assert_eq!(program.say("launch-kernel shared"), answer);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn a_library_is_charged_in_every_context() {
    let cap = 2 * CONTEXT + 120 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("library parts 50M", "0"),
        ("library-module parts", "0"),
        ("context second 0 v2", "0"),
        ("library-module parts", "0"),
        ("library-module parts", "0"),
    ]);
    assert_eq!(world.machine().used(), 2 * CONTEXT + 100 * MIB);
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn a_launch_on_several_gpus_is_charged_on_each() {
    let cap = CONTEXT + local(4096) + RESERVE;
    for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
        let world = World::with(cap, &[("GPULIMIT_SIM_GPUS", "2")]);
        let mut program = world.on_gpu();
        program.expect(&[
            ("kernels zero 4096", "0"),
            ("stream zero", "0"),
            ("retain 1", "0"),
            ("current 1", "0"),
            ("kernels one 4096", "0"),
            ("stream one", "0"),
            ("launch-many zero zero one one", answer),
            ("launch-many one one zero zero", answer),
            // These launches name one GPU twice, more GPUs than there are, and none.
            ("launch-many zero zero zero zero", "1"),
            ("launch-many", "1"),
        ]);
        let taken = if answer == "0" { local(4096) } else { 0 };
        for gpu in 0..2 {
            assert_eq!(world.machine().gpu(gpu).used, CONTEXT + taken);
        }
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn threads_needing_the_same_growth_are_charged_once() {
    let cap = CONTEXT + local(16_384) + 8 * RESERVE;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("kernels a 4096", "0"),
        ("kernels b 8192", "0"),
        ("kernels c 16384", "0"),
    ]);
    let answer = program.say("threads 8 {\nlaunch c\nlaunch a\nlaunch b\nlaunch c\n}");
    assert_eq!(answer, ["0:4"; 8].join(", "));
    assert_eq!(world.machine().used(), CONTEXT + local(16_384));
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}

/// Each thread is charged in advance for more than it takes: in a nearly full group one thread
/// waits for what the other does not need.
#[test]
fn threads_whose_estimates_do_not_fit_together_take_turns() {
    let cap = CONTEXT + local(8192) + RESERVE;
    let first = 92 * MIB;
    for (launch, knobs, taken) in [
        // The first launch of a process is charged all that the group has left.
        (
            "launch plain",
            &[("GPULIMIT_SIM_FIRST_LAUNCH_BYTES", "96468992")][..],
            first,
        ),
        ("launch big", &[], local(8192)),
        ("set-kernel e g 0 big", &[], local(8192) + BLOCK),
    ] {
        let cap = if taken == first {
            CONTEXT + first + RESERVE
        } else {
            cap + BLOCK
        };
        let world = World::with(cap, knobs);
        let mut program = world.on_gpu();
        program.expect(&[
            ("kernels plain 0", "0"),
            ("kernels big 8192", "0"),
            ("stream s", "0"),
        ]);
        if launch.starts_with("set") {
            program.expect(&[
                ("capture s", "0"),
                ("launch plain s", "0"),
                ("end-capture s g", "0"),
                ("instantiate e g", "0"),
            ]);
        }
        world.machine().knob(
            "latency",
            "cuLaunchKernel:20000000,cuGraphExecKernelNodeSetParams_v2:20000000",
        );
        let answer = program.say(&format!("threads 6 {{\n{launch}\n}}"));
        assert_eq!(answer, ["0:1"; 6].join(", "), "{launch}");
        world.judge(cap);
        assert_eq!(world.machine().used(), CONTEXT + taken, "{launch}");
        // A single thread has no other to wait for.
        program.expect(&[("kernels huge 65536", "0"), ("launch huge", "2")]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// The library cannot know what the first launch of a process takes: the launch is charged all that
/// the group has left.
#[test]
fn the_first_launch_is_charged_in_advance() {
    let first = 92 * MIB;
    let cap = CONTEXT + 2 * first;
    let world = World::with(cap, &[("GPULIMIT_SIM_FIRST_LAUNCH_BYTES", "96468992")]);
    let mut program = world.on_gpu();
    program.expect(&[("kernels plain 0", "0")]);
    // The driver has taken the memory, and the call has not yet returned to the library.
    world
        .machine()
        .knob("delay", &format!("cuLaunchKernel:{HOUR}"));
    program.tell("launch plain");
    assert!(eventually(|| world.machine().used() == CONTEXT + first));
    let usage = world.usage(0);
    assert!(usage.charged >= CONTEXT + first, "{usage:?}");
    world.machine().knob("delay", "0");
    assert_eq!(program.answer(), "0");
    let usage = world.usage(0);
    assert_eq!(usage.charged, CONTEXT + first + RESERVE, "{usage:?}");
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn threads_growing_local_memory_keep_to_the_limit() {
    let cap = CONTEXT + local(8192) + 40 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("kernels a 4096", "0"),
        ("kernels b 8192", "0"),
        ("kernels c 16384", "0"),
    ]);
    program.say(
        "threads 8 {\nrepeat 20 {\nlaunch b\nset-limit 0 12288\nlaunch c\nalloc x 20M\n\
            set-limit 0 2048\nfree x\nlaunch a\n}\n}",
    );
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// A captured launch takes no memory; the same kernel launched for real does.
#[test]
fn a_captured_launch_is_not_charged() {
    let cap = CONTEXT + local(4096) + RESERVE;
    for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[
            ("kernels big 4096", "0"),
            ("stream s", "0"),
            ("capture s", "0"),
            ("launch big s", "0"),
            ("launch big s", "0"),
            ("end-capture s", "0"),
        ]);
        assert_eq!(world.machine().used(), CONTEXT);
        world.judge(cap);
        program.expect(&[("launch big s", answer), ("launch big", answer)]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn a_graph_is_charged_again_after_a_lowered_limit() {
    // The first graph takes a block.
    let cap = CONTEXT + BLOCK + local(4096) + RESERVE;
    for (load, launch) in [
        ("kernels big 4096", "launch big s"),
        ("kernel-library big 4096", "launch-kernel big s"),
    ] {
        for (cap, answer) in [(cap, "0"), (cap - 4 * BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            program.expect(&[
                (load, "0"),
                ("stream s", "0"),
                ("capture s", "0"),
                (launch, "0"),
                ("end-capture s g", "0"),
                ("instantiate e g", answer),
            ]);
            world.judge(cap);
            if answer == "0" {
                for _ in 0..2 {
                    program.expect(&[("launch-graph e s", "0"), ("launch-graph e s", "0")]);
                    assert_eq!(world.machine().used(), CONTEXT + BLOCK + local(4096));
                    world.judge(cap);
                    program.expect(&[(&format!("set-limit {STACK} 1024"), "0")]);
                    assert_eq!(world.machine().used(), CONTEXT + BLOCK);
                    world.judge(cap);
                }
                program.expect(&[("alloc a 8M", "0"), ("launch-graph e s", "2")]);
            }
            world.judge(cap);
            program.end();
            world.judge_end(cap);
        }
    }
}

#[test]
fn a_heap_is_charged_when_it_is_asked_for() {
    // 138 MiB come with the module; the heap and 2 MiB come with the launch.
    let cap = CONTEXT + (138 + 256 + 2) * MIB + RESERVE;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[(&format!("set-limit {HEAP} 256M"), "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    assert!(
        world.usage(0).charged >= CONTEXT + 258 * MIB,
        "{:?}",
        world.usage(0)
    );
    world.judge(cap);
    // Other requests cannot use the heap's memory.
    program.expect(&[
        ("alloc a 147M", "2"),
        ("info", &info(cap, CONTEXT + 258 * MIB)),
    ]);
    program.expect(&[("kernels user 0 malloc", "0"), ("kernels other 0", "0")]);
    fill(&mut program);
    program.expect(&[("launch other", "0")]);
    assert!(world.machine().used() < CONTEXT + (138 + 2 + 6) * MIB);
    world.judge(cap);
    program.expect(&[("launch user", "0"), ("launch user", "0")]);
    assert!(world.machine().used() >= CONTEXT + (138 + 256 + 2) * MIB);
    let usage = world.usage(0);
    assert!(usage.idle <= 2 * RESERVE, "charged once: {usage:?}");
    world.judge(cap);
    program.expect(&[
        (&format!("set-limit {HEAP} 1G"), "1"),
        ("release-primary 0", "0"),
    ]);
    assert_eq!(world.counted(0), 0);
    program.end();
    world.judge_end(cap);
}

/// The answer of `info` at this limit and charge.
fn info(cap: u64, charged: u64) -> String {
    format!("0 {} {cap}", cap - charged - RESERVE)
}

/// Where the program asks for no heap, the first code that uses device `malloc` takes 138 MiB, and
/// its first launch 10 MiB.
#[test]
fn device_malloc_is_refused_below_what_it_takes() {
    let cap = CONTEXT + (138 + 10) * MIB + RESERVE;
    for (load, first, launch) in [
        ("kernels user 0 malloc", "launch other", "launch user"),
        (
            "kernel-library user 0 malloc",
            "library-module user",
            "launch-kernel user",
        ),
        (
            "kernel-library user 0 malloc",
            "launch-kernel user",
            "launch-kernel user",
        ),
    ] {
        let lazy = load.starts_with("kernel-library");
        for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            program.expect(&[("kernels other 0", "0"), ("launch other", "0")]);
            if lazy {
                program.expect(&[(load, "0"), (first, answer)]);
            } else {
                program.expect(&[(load, answer), (first, "0")]);
            }
            world.judge(cap);
            if answer == "2" {
                assert_eq!(world.machine().gpu(0).peak, CONTEXT, "not asked: {first}");
                let (_, errors) = program.end();
                assert!(
                    errors.contains("no memory") || errors.contains("refused cu"),
                    "{errors}"
                );
                world.judge_end(cap);
                continue;
            }
            // Other requests cannot use the heap's memory, which is there for the launch.
            program.say("fill filler 2M");
            program.say("fill rest 4K");
            world.judge(cap);
            program.expect(&[(launch, "0"), (launch, "0"), ("launch other", "0")]);
            assert!(world.machine().used() >= CONTEXT + 148 * MIB, "{first}");
            world.judge(cap);
            assert!(
                world.usage(0).idle <= RESERVE,
                "charged once: {:?}",
                world.usage(0)
            );
            program.expect(&[("set-limit 2 64M", "1"), ("release-primary 0", "0")]);
            assert_eq!(world.counted(0), 0);
            program.end();
            world.judge_end(cap);
        }
    }
}

/// The first code that uses device `printf` takes 62 MiB, and `assert` 90 MiB, whatever the limits
/// are.
#[test]
fn device_printf_and_assert_are_refused_below_what_they_take() {
    for (uses, bytes) in [("printf", 62), ("assert", 90)] {
        let cap = CONTEXT + bytes * MIB + RESERVE;
        let load = format!("kernels user 0 {uses}");
        for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            program.expect(&[(&format!("set-limit {PRINTF} 64M"), "0"), (&load, answer)]);
            world.judge(cap);
            if answer == "2" {
                assert_eq!(world.machine().gpu(0).peak, CONTEXT, "not asked");
            } else {
                program.expect(&[(&load, "0"), ("launch user", "0")]);
                assert_eq!(world.machine().used(), CONTEXT + bytes * MIB);
                world.judge(cap);
                // `malloc` takes more than `assert`, and its memory serves both.
                let cap = CONTEXT + (138 + 10) * MIB + RESERVE;
                world.set(cap - 2 * BLOCK);
                program.expect(&[("kernels all 0 malloc assert", "2")]);
                world.set(cap);
                program.expect(&[
                    ("kernels all 0 malloc assert", "0"),
                    ("launch all", "0"),
                    (&load, "0"),
                ]);
                assert_eq!(world.machine().used(), CONTEXT + 148 * MIB);
                world.judge(cap);
                program.expect(&[("release-primary 0", "0"), ("start", "0 0"), (&load, "0")]);
                assert_eq!(world.machine().used(), CONTEXT + bytes * MIB);
                world.judge(cap);
            }
            program.end();
            world.settle();
        }
    }
}

#[test]
fn device_malloc_is_charged_once_in_every_context() {
    let cap = 2 * (CONTEXT + 148 * MIB) + 2 * RESERVE;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    world.machine().knob("fail", "cuModuleLoadData:719");
    program.expect(&[("kernels a 0 malloc", "719")]);
    assert!(
        world.usage(0).charged <= CONTEXT + RESERVE,
        "{:?}",
        world.usage(0)
    );
    world.machine().knob("fail", "none");
    let answer = program.say("threads 4 {\nkernels a 0 malloc\nlaunch a\n}");
    assert_eq!(answer, ["0:2"; 4].join(", "));
    assert_eq!(world.machine().used(), CONTEXT + 148 * MIB);
    world.judge(cap);
    program.expect(&[
        ("kernels b 0 malloc", "0"),
        ("launch b", "0"),
        ("context second 0 v2", "0"),
        ("alloc a 8M", "0"),
        ("kernels c 0 malloc", "2"),
        ("free a", "0"),
        ("kernels c 0 malloc", "0"),
        ("kernels d 0 malloc", "0"),
        ("launch d", "0"),
    ]);
    assert_eq!(world.machine().used(), cap - 2 * RESERVE);
    world.judge(cap);
    program.expect(&[("destroy second", "0"), ("current 0", "0")]);
    world.judge(cap);
    // A context is destroyed before its heap was needed.
    program.expect(&[
        ("context third 0 v2", "0"),
        ("kernels e 0 malloc", "0"),
        ("destroy third", "0"),
        ("current 0", "0"),
        ("alloc a 660M", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn a_heap_that_does_not_fit_is_refused() {
    let cap = CONTEXT + 256 * MIB;
    for (limit, value) in [(HEAP, 256 * MIB), (HEAP, 1 << 60)] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        let before = program.say(&format!("limit {limit}"));
        program.expect(&[
            (&format!("set-limit {limit} {value}"), "2"),
            (&format!("limit {limit}"), &before),
            ("alloc a 250M", "0"),
        ]);
        world.judge(cap);
        let (_, errors) = program.end();
        assert!(errors.contains("refused cuCtxSetLimit"), "{errors}");
        world.judge_end(cap);
    }
}

#[test]
fn an_unused_heap_is_uncharged() {
    let cap = 2 * CONTEXT + 256 * MIB + RESERVE;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    let kept = 258;
    for lower in [8 << 20, 0] {
        let fits = 774 - kept;
        program.expect(&[
            (&format!("set-limit {HEAP} 256M"), "0"),
            ("kernels other 0", "0"),
            ("launch other", "0"),
            (&format!("alloc a {}M", fits + 2), "2"),
            (&format!("alloc a {fits}M"), "0"),
            (&format!("set-limit {HEAP} {lower}"), "0"),
            (&format!("alloc b {kept}M"), "0"),
            ("free b", "0"),
            ("free a", "0"),
        ]);
        world.judge(cap);
    }
    // The heap's charge goes back with the context, too.
    program.expect(&[
        ("context c 0 v2", "0"),
        (&format!("set-limit {HEAP} 210M"), "0"),
        ("alloc a 50M", "2"),
        ("destroy c", "0"),
        ("current 0", "0"),
        ("alloc a 700M", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn without_the_drivers_figures_an_estimate_is_charged() {
    let cap = 4096 * MIB;
    let world = World::with(cap, &[("GPULIMIT_SIM_NO_PROC", "1")]);
    let mut program = world.on_gpu();
    program.expect(&[("kernels big 4096", "0"), ("launch big", "0")]);
    assert!(
        world.usage(0).charged >= 520 * MIB + local(4096),
        "{:?}",
        world.usage(0)
    );
    program.expect(&[
        (&format!("set-limit {STACK} 8192"), "0"),
        ("alloc a 2000M", "2"),
        (&format!("set-limit {STACK} 16384"), "2"),
    ]);
    assert!(world.machine().gpu(0).peak <= cap);
    program.expect(&[("release-primary 0", "0")]);
    assert_eq!(world.counted(0), 0, "{:?}", world.usage(0));
    program.end();
}

#[test]
fn green_contexts_are_charged_with_the_primary_context() {
    let cap = CONTEXT + 206 * MIB;
    let world = World::new(cap);
    let mut program = world.start();
    program.expect(&[("init", "0"), ("green a 0", "0")]);
    assert_eq!(world.machine().used(), CONTEXT + 6 * MIB);
    world.judge(cap);
    program.expect(&[
        ("use-green a", "0"),
        ("alloc there 100M", "0"),
        ("many small 100 20000", "0 100"),
        ("managed m 10M", "0"),
        ("green-stream s a", "0"),
        ("stream t", "0"),
        ("kernels big 1104", "0"),
        ("launch big s", "0"),
        ("launch big t", "0"),
        ("launch big", "0"),
        ("green b 0", "0"),
        ("destroy-green b", "0"),
    ]);
    // The second stream takes a block.
    assert_eq!(
        world.machine().used(),
        CONTEXT + (10 + 100 + 2 + 2 + 20) * MIB
    );
    world.judge(cap);
    program.expect(&[("alloc more 100M", "2"), ("destroy-green a", "0")]);
    assert_eq!(
        world.machine().used(),
        0,
        "the primary context outlives its green contexts"
    );
    let usage = world.usage(0);
    assert_eq!(usage.charged - usage.idle, 0, "{usage:?}");
    program.expect(&[
        ("destroy-green a", "709"),
        ("start", "0 0"),
        ("alloc all 190M", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn green_contexts_share_the_local_memory_of_the_primary_one() {
    let cap = CONTEXT + 6 * MIB + local(4096) + RESERVE;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("kernel-library shared 4096", "0"),
        ("launch-kernel shared", "0"),
        ("green g 0", "0"),
        ("use-green g", "0"),
        ("green-stream s g", "0"),
        ("launch-kernel shared s", "0"),
        ("launch-kernel shared", "0"),
        ("set-limit 0 4000", "0"),
        ("reset 0", "0"),
    ]);
    assert_eq!(world.machine().used(), 0);
    assert_eq!(world.counted(0), 0);
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn green_contexts_stop_at_the_limit() {
    for cap in [CONTEXT - BLOCK, CONTEXT + 4 * MIB] {
        let world = World::new(cap);
        let mut program = world.start();
        program.expect(&[("init", "0"), ("green a 0", "2")]);
        assert_eq!(world.machine().used(), 0, "{cap}");
        let (_, errors) = program.end();
        assert!(errors.contains("refused cuGreenCtxCreate"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        world.settle();
    }
}

#[test]
fn streams_of_green_contexts_are_charged() {
    let cap = CONTEXT + 40 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("green g 0", "0")]);
    let answer = program.say("repeat 100 {\ngreen-stream s g\n}");
    assert!(
        answer.starts_with("0:") && answer.contains(" 2:"),
        "{answer}"
    );
    world.judge(cap);
    program.expect(&[("destroy-green g", "0")]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// One thread destroys a green context, and with it perhaps the primary one, while other threads
/// make more of them.
#[test]
fn green_contexts_made_during_a_destruction_are_charged() {
    let cap = CONTEXT + 40 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("green a 0", "0")]);
    world
        .machine()
        .knob("delay", &format!("cuGreenCtxDestroy:{HOUR}"));
    program.expect(&[("aside {\ndestroy-green a\n}", "0"), ("use-green a", "0")]);
    assert!(eventually(|| program.say("sync") == "709"));
    program.expect(&[("current 0", "0")]);
    let answer = program.say("repeat 20 {\ngreen g 0\n}");
    assert!(
        answer.starts_with("0:") && answer.contains(" 2:"),
        "{answer}"
    );
    let (used, usage) = (world.machine().used(), world.usage(0));
    assert!(usage.charged >= used, "{used} of {usage:?}");
    world.machine().knob("delay", "0");
    program.expect(&[("await", "0:1")]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn graphics_contexts_are_charged_as_contexts() {
    let cap = 2 * CONTEXT + 100 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    for kind in ["gl-v1", "gl-v2", "vdpau-v1", "vdpau-v2"] {
        program.expect(&[
            (&format!("context c 0 {kind}"), "0"),
            ("alloc a 80M", "0"),
            (&format!("context d 0 {kind}"), "2"),
        ]);
        assert_eq!(world.machine().used(), 2 * CONTEXT + 80 * MIB);
        world.judge(cap);
        program.expect(&[("destroy c", "0"), ("current 0", "0")]);
        world.judge(cap);
    }
    program.end();
    world.judge_end(cap);
}
