//! Every context counts as usage, from its first retain to its last release.

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, BLOCK, CONTEXT, HOUR, MIB, Session, World, program};
use gpulimit_support::wait_until;

const CAP: u64 = 4096 * MIB;

#[test]
fn the_primary_context_counts_once_and_until_its_last_release() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    assert_eq!(world.usage(0).peak, CONTEXT);
    world.judge(CAP);
    program.expect(&[("retain 0", "0"), ("retain 0", "0"), ("alloc a 100M", "0")]);
    assert_eq!(world.machine().used(), CONTEXT + 100 * MIB);
    world.judge(CAP);
    program.expect(&[("release-primary 0", "0"), ("release-primary-v1 0", "0")]);
    assert_eq!(world.machine().used(), CONTEXT + 100 * MIB);
    world.judge(CAP);
    program.expect(&[("release-primary 0", "0")]);
    assert_eq!(world.machine().used(), 0);
    assert_eq!(world.usage(0).charged, 0, "nothing is kept for later");
    program.expect(&[("retain 0", "0"), ("current 0", "0"), ("alloc b 10M", "0")]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_reset_uncharges_everything() {
    for reset in ["reset 0", "reset-v1 0"] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[
            ("alloc a 100M", "0"),
            ("many b 500 20000", "0 500"),
            ("managed c 50M", "0"),
            ("async d 60M", "0"),
            ("module e 20M", "0"),
            ("retain 0", "0"),
        ]);
        world.judge(CAP);
        program.expect(&[(reset, "0")]);
        assert_eq!(world.machine().used(), 0);
        let usage = world.usage(0);
        assert_eq!(usage.charged - usage.idle, 0, "{usage:?}");
        program.expect(&[
            ("retain 0", "0"),
            ("current 0", "0"),
            ("alloc a 3000M", "0"),
        ]);
        world.judge(CAP);
        program.end_quietly();
        world.judge_end(CAP);
    }
}

#[test]
fn every_context_is_charged_until_it_is_destroyed() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    for (count, version) in [(2, "v1"), (3, "v2"), (4, "v3"), (5, "v4")] {
        program.expect(&[
            (&format!("context {version} 0 {version}"), "0"),
            ("alloc a 10M", "0"),
        ]);
        assert_eq!(
            world.machine().used(),
            count * CONTEXT + (count - 1) * 10 * MIB
        );
        world.judge(CAP);
    }
    for (left, end) in [
        (4, "destroy v1"),
        (3, "destroy-v1 v2"),
        (2, "detach v3"),
        (1, "destroy v4"),
    ] {
        program.expect(&[(end, "0")]);
        assert_eq!(
            world.machine().used(),
            left * CONTEXT + (left - 1) * 10 * MIB,
            "{end}"
        );
        world.judge(CAP);
    }
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn contexts_stop_at_the_limit() {
    let world = World::new(3 * CONTEXT + 100 * MIB);
    let mut program = world.on_gpu();
    program.expect(&[
        ("context a 0 v2", "0"),
        ("context b 0 v4", "0"),
        ("context c 0 v2", "2"),
        ("context d 0 v3", "2"),
    ]);
    world.judge(3 * CONTEXT + 100 * MIB);
    program.expect(&[
        ("alloc x 80M", "0"),
        ("destroy b", "0"),
        ("context e 0 v2", "0"),
    ]);
    world.judge(3 * CONTEXT + 100 * MIB);
    let (_, errors) = program.end();
    assert!(errors.contains("cuCtxCreate"), "{errors}");
    world.judge_end(3 * CONTEXT + 100 * MIB);
}

#[test]
fn a_limit_below_a_context_is_refused_with_a_message() {
    let world = World::new(300 * MIB);
    let mut program = world.start();
    program.expect(&[("init", "0"), ("retain 0", "2"), ("retain 0", "2")]);
    assert_eq!(world.machine().used(), 0);
    let (_, errors) = program.end();
    assert!(
        errors.contains("A CUDA context on this GPU takes at least 518.0 MiB: raise the limit"),
        "{errors}"
    );
    // The library knows the size of a context by now, and does not ask the driver again.
    world.machine().reset_peak();
    let mut second = world.start();
    second.expect(&[("init", "0"), ("retain 0", "2")]);
    drop(second);
    world.judge_end(300 * MIB);
}

/// Starts a program in the group `world/NAME`, which makes a context there whose size it cannot
/// measure: no group knows what a context takes.
fn on_gpu_unmeasured(world: &World, name: &str) -> Session {
    world.machine().knob("fail", "nvmlInit_v2:999");
    world.below(name, &[]);
    let program = world.on_gpu_in(name);
    world.machine().knob("fail", "none");
    program
}

/// Starts a program in the group `world/new`, which is about to make a context.
fn about_to_start(world: &World) -> Session {
    world.below("new", &[]);
    let mut command = world.limited(program());
    command.env("GPULIMIT_GROUP", "world/new");
    let mut program = Session::start(command);
    program.expect(&[("init", "0")]);
    program
}

#[test]
fn a_context_of_unknown_size_gets_the_room_of_the_dead() {
    let cap = CONTEXT + 400 * MIB;
    let world = World::new(cap);
    on_gpu_unmeasured(&world, "dead").kill();
    wait_until("the driver has freed it", || world.machine().used() == 0);
    let mut program = about_to_start(&world);
    program.expect(&[("retain 0", "0"), ("current 0", "0"), ("alloc a 350M", "0")]);
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}

/// The context is made, measured and destroyed, and waits without the memory.
#[test]
fn a_context_of_unknown_size_waits_for_room() {
    let cap = 2 * CONTEXT + 100 * MIB;
    let world = World::new(cap);
    world.settings(&["on_limit=wait", "wait_timeout=1h"]);
    let mut other = on_gpu_unmeasured(&world, "other");
    other.expect(&[("alloc a 300M", "0")]);
    let mut program = about_to_start(&world);
    program.tell("retain 0");
    wait_until("the context waits", || {
        !world.events(EventKind::Wait).is_empty()
    });
    assert_eq!(
        world.machine().used(),
        CONTEXT + 300 * MIB,
        "nothing is above the limit"
    );
    other.expect(&[("free a", "0")]);
    assert_eq!(program.answer(), "0");
    assert_eq!(world.events(EventKind::Refusal).len(), 0);
    drop((program, other));
    world.settle();
}

#[test]
fn threads_that_retain_at_once_make_one_context() {
    let world = World::with(
        CAP,
        &[("GPULIMIT_SIM_LATENCY", "cuDevicePrimaryCtxRetain:3000000")],
    );
    let mut program = world.start();
    program.expect(&[("init", "0")]);
    let answer = program.say("threads 8 {\nretain 0\n}");
    assert_eq!(answer, ["0:1"; 8].join(", "));
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn without_process_lists_a_context_is_charged_at_an_assumed_size() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_NO_PROC", "1")]);
    let mut program = world.on_gpu();
    let used = |usage: gpulimit_ledger::Usage| usage.charged - usage.idle;
    assert!(used(world.usage(0)) >= 520 * MIB, "{:?}", world.usage(0));
    program.expect(&[("context second 0 v2", "0")]);
    assert_eq!(used(world.usage(0)), 2 * 520 * MIB);
    program.expect(&[("destroy second", "0"), ("current 0", "0")]);
    assert_eq!(used(world.usage(0)), 520 * MIB);
    program.expect(&[
        ("alloc a 1000M", "0"),
        ("free a", "0"),
        ("release-primary 0", "0"),
    ]);
    assert_eq!(used(world.usage(0)), 0);
    program.end_quietly();
}

#[test]
fn code_is_measured_and_unloaded_when_it_does_not_fit() {
    let cap = 1024 * MIB;
    for load in ["module", "module-ex"] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[(&format!("{load} code 300M"), "0")]);
        world.judge(cap);
        program.expect(&[("unload code", "0")]);
        world.judge(cap);
        assert_eq!(world.machine().used(), CONTEXT);
        program.expect(&[(&format!("{load} code 800M"), "2")]);
        assert_eq!(world.machine().used(), CONTEXT);
        assert_eq!(world.counted(0), CONTEXT);
        let (_, errors) = program.end();
        assert!(errors.contains("refused"), "{errors}");
        world.settle();
    }
}

#[test]
fn a_library_counts_from_its_first_use() {
    let cap = 1024 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("library code 300M", "0"), ("library-module code", "0")]);
    assert_eq!(world.machine().used(), CONTEXT + 300 * MIB);
    world.judge(cap);
    program.expect(&[
        ("alloc a 250M", "2"),
        ("unload-library code", "0"),
        ("alloc a 450M", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.settle();
}

/// The driver may take a block in any call; the reserve has paid for that block in advance.
#[test]
fn the_reserve_stays_charged_beside_new_streams() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    for count in [10, 20, 30] {
        let answer = program.say("repeat 10 {\nstream s\n}");
        assert_eq!(answer, "0:10");
        assert_eq!(world.usage(0).idle, 4 * MIB, "with {count} streams");
        world.judge(CAP);
    }
    assert!(world.machine().used() > CONTEXT, "streams take no memory");
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn many_streams_stay_below_the_limit() {
    let cap = 560 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    let answer = program.say("repeat 200 {\nstream s\n}");
    assert!(answer.starts_with("0:"), "{answer}");
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// The driver answers for GPU numbers that do not exist, however absurd the numbers are.
#[test]
fn the_driver_refuses_gpus_that_do_not_exist() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    for gpu in ["1", "63", "64", "2000000000", "-1"] {
        for command in ["retain {}", "release-primary {}", "context none {} v4"] {
            program.expect(&[(&command.replace("{}", gpu), "101")]);
        }
    }
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// With a single GPU, the library does not ask the driver which GPU a call is for.
#[test]
fn a_single_gpu_is_known_without_asking_the_driver() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0"), ("alloc a 1M", "0")]);
    let none = "cuDeviceGetCount:2,cuCtxGetDevice:2,cuStreamGetCtx:2";
    world.machine().knob("fail", none);
    for alloc in ["alloc b", "async b", "managed b"] {
        program.expect(&[(&format!("{alloc} 100M"), "0")]);
    }
    program.expect(&[
        ("async c 100M s", "0"),
        ("alloc large 4000M", "2"),
        ("async large 4000M s", "2"),
    ]);
    world.machine().knob("fail", "none");
    assert_eq!(world.usage(0).refusals, 2);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

/// While NVML does not answer, estimates are charged for four streams, and for the code of small
/// functions; the next stream is measured.
#[test]
fn streams_and_functions_are_measured_together() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let nvml_takes = |time: &str| {
        let delay = format!("nvmlDeviceGetComputeRunningProcesses:{time}");
        world.machine().knob("delay", &delay);
    };
    for at in 0..13 {
        program.expect(&[(&format!("kernels m{at} 0"), "0")]);
        nvml_takes(HOUR);
        match at % 2 {
            0 => program.expect(&[("repeat 4 {\nstream s\n}", "0:4")]),
            _ => program.expect(&[(&format!("get-function m{at}"), "0")]),
        }
        nvml_takes("0");
        world.judge(CAP);
        program.expect(&[("stream s", "0")]);
        world.judge(CAP);
    }
    assert_eq!(program.say("repeat 64 {\nstream s\n}"), "0:64");
    world.judge(CAP);
    // A request in a full group gets the reserve of streams that are not measured.
    program.say("repeat 3 {\nstream s\n}");
    program.say("fill rest 2M");
    let free = CAP - world.usage(0).charged;
    assert!(free < BLOCK, "{free}");
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn a_stream_and_a_function_in_a_full_group_do_not_share_the_reserve() {
    // 64 KiB and eight times the text's length are nearly 3 MiB; the code takes two blocks.
    let text = format!(
        ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry kernel()\n{{\n{} ret;\n\
         }}\n",
        " st.global.u32 [%rd1], 7;\n".repeat(14_000)
    );
    let world = World::new(CAP);
    let image = world.file("code.ptx");
    std::fs::write(&image, text).expect("written");
    let mut program = world.on_gpu();
    program.expect(&[
        (&format!("image m {}", image.display()), "0"),
        ("stream s", "0"),
    ]);
    program.say("fill rest 2M");
    // The second stream takes a block.
    program.expect(&[("get-function m", "0"), ("stream s", "2")]);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn a_context_made_during_a_measurement_stays_charged() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let machine = world.machine();
    let uses = |bytes| world::eventually(|| machine.used() >= bytes);
    let delay = format!("nvmlDeviceGetComputeRunningProcesses:{HOUR}");
    machine.knob("delay", &delay);
    program.expect(&[("aside {\nrepeat 5 {\nstream s\n}\n}", "0")]);
    // The measurement after the last stream reads its figure, and does not get the answer.
    program.sleeps_again();
    program.tell("context c 0 v4");
    assert!(uses(2 * CONTEXT));
    program.waits_on();
    machine.knob("delay", "0");
    assert_eq!(program.answer(), "0");
    program.expect(&[("await", "0:5")]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}
