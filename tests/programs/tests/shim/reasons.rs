//! Each refusal is counted and recorded with its reason, a request that is granted soon after it
//! counts as recovered, and a program that fails after a refusal says so at its end.

use std::os::unix::process::ExitStatusExt;

use gpulimit_ledger::{Cause, EventKind, TrailEvent};
use gpulimit_programs::world::{
    self, BLOCK, CONTEXT, MIB, Session, World, eventually, finish, text,
};

const CAP: u64 = 1024 * MIB;
const GIB: u64 = 1024 * MIB;
/// The size of the simulated GPU in bytes.
const CAPACITY: u64 = 85_017_493_504;
/// More than the GPU has.
const AMPLE: u64 = 200 * GIB;

/// Returns the refusals in the trail of the world's group.
fn refusals(world: &World) -> Vec<TrailEvent> {
    let mut trail = world.ledger().trail(0);
    trail.retain(|event| event.event.what.kind == EventKind::Refusal);
    trail
}

/// Returns the only refusal of the world, with the cause.
#[track_caller]
fn the_refusal(world: &World, cause: Cause) -> TrailEvent {
    let mut all = refusals(world);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(world.usage(0).refusals, 1);
    let one = all.remove(0);
    assert_eq!(one.cause, Some(cause), "{one:?}");
    one
}

#[test]
fn a_full_group_leaves_what_fitted() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 600M", "2")]);
    let one = the_refusal(&world, Cause::Limit);
    let asked = &one.event.what;
    assert_eq!((asked.bytes, asked.max), (600 * MIB, CAP));
    assert_eq!(one.left, CAP - asked.charged);
    let holder = one.holders[0];
    assert_eq!(holder.process.pid, program.pid());
    assert_eq!((holder.bytes, holder.reserve), (CONTEXT, 4 * MIB));
    program.expect(&[(&format!("alloc a {}", one.left), "0")]);
    program.end();
}

#[test]
fn more_than_the_gpu_has_is_a_refusal() {
    for (command, name) in [
        ("alloc a 100G", "cuMemAlloc"),
        ("pitch a 1048576 102400", "cuMemAllocPitch"),
        ("create a 100G 0", "cuMemCreate"),
        ("async a 100G", "cuMemAllocAsync"),
    ] {
        let world = World::new(AMPLE);
        let mut program = world.on_gpu();
        let answer = program.say(command);
        assert!(answer.starts_with('2'), "{command}: {answer}");
        let one = the_refusal(&world, Cause::Capacity);
        assert_eq!((&*one.function, one.left), (name, CAPACITY));
        let (_, errors) = program.end();
        assert!(errors.contains(": the GPU has 79.2 GiB. "), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

/// The place for the new address has one that the pool knows.
#[test]
fn a_refusal_of_the_driver_in_a_pool_with_room_is_one() {
    let world = World::new(AMPLE);
    let mut program = world.on_gpu();
    for step in ["async a 1M", "async b 1M", "async c 1M"] {
        program.expect(&[(step, "0")]);
    }
    world.machine().knob("fail", "cuMemAllocAsync:2");
    program.expect(&[("async-over a 1M", "2")]);
    let one = the_refusal(&world, Cause::Host);
    assert_eq!(
        (&*one.function, one.event.what.bytes),
        ("cuMemAllocAsync", MIB)
    );
    program.end();
}

#[test]
fn wrong_calls_are_no_refusals() {
    let world = World::new(AMPLE);
    let mut program = world.on_gpu();
    program.expect(&[
        ("alloc a 0", "1"),
        ("async a 0", "1"),
        ("create a 0 0", "1"),
    ]);
    program.end_quietly();
    assert_eq!(world.usage(0).refusals, 0);
}

#[test]
fn a_limit_below_a_context_is_named() {
    let world = World::new(100 * MIB);
    let mut program = world.start();
    program.expect(&[("init", "0"), ("retain 0", "2")]);
    the_refusal(&world, Cause::Context);
    let (_, errors) = program.end();
    let said = ". A CUDA context on this GPU takes at least ";
    assert!(errors.contains(said), "{errors}");

    // A context that is not charged is not the reason.
    let world = World::new(100 * MIB);
    world.settings(&["count_context=no"]);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 200M", "2")]);
    the_refusal(&world, Cause::Limit);
    let (_, errors) = program.end();
    assert!(!errors.contains("context"), "{errors}");
}

/// Starts a program without the library that takes so much of the GPU.
fn outsider(world: &World, size: &str) -> Session {
    let mut program = Session::start(world.bare(world::program()));
    program.expect(&[("start", "0 0"), (&format!("alloc a {size}"), "0")]);
    program
}

#[test]
fn a_gpu_full_of_others_is_named() {
    for command in [
        "alloc a 10G",
        "create a 10G 0",
        "async a 10G",
        "array a 65536,40960,0,32,4,0",
        "module a 10G",
    ] {
        let world = World::new(AMPLE);
        let outside = outsider(&world, "74G");
        let mut program = world.on_gpu();
        program.expect(&[(command, "2")]);
        let one = the_refusal(&world, Cause::Outside);
        let held = 74 * GIB + CONTEXT;
        assert!(one.outside.abs_diff(held) <= 8 * MIB, "{one:?}");
        let all = CAPACITY - held - CONTEXT;
        assert!(one.left.abs_diff(all) <= BLOCK, "{one:?}");
        assert_eq!(one.holders.len(), 1);
        let holder = &one.holders[0];
        assert_eq!((holder.process.pid, holder.bytes), (outside.pid(), held));
        assert_eq!(holder.process.command().to_string(), "gpu-script");
        let (_, errors) = program.end();
        let said = format!(
            " left of 79.2 GiB on the GPU; 74.5 GiB outside of group world: pid {} (gpu-script) \
             74.5 GiB, others ",
            outside.pid()
        );
        assert!(errors.contains(&said), "{command}: {errors}");
        outside.end_quietly();
    }
}

#[test]
fn a_context_that_finds_the_gpu_full_is_a_refusal() {
    let world = World::new(AMPLE);
    let outside = outsider(&world, "80400M");
    let mut program = world.start();
    program.expect(&[("init", "0"), ("retain 0", "2")]);
    let one = the_refusal(&world, Cause::Outside);
    assert_eq!(one.holders[0].process.pid, outside.pid());
    program.end();
}

#[test]
fn a_launch_that_finds_the_gpu_full_is_a_refusal() {
    let world = World::new(AMPLE);
    let outside = outsider(&world, "74G");
    let mut program = world.on_gpu();
    program.expect(&[("kernels big 262144", "0"), ("launch big", "2")]);
    let one = the_refusal(&world, Cause::Outside);
    assert_eq!(one.function, "cuLaunchKernel");
    assert_eq!(one.holders[0].process.pid, outside.pid());
    program.end();
    outside.end_quietly();
}

/// NVML's pids are of another namespace if it does not list the process itself.
#[test]
fn outsiders_that_nvml_does_not_list_are_others() {
    let world = World::with(AMPLE, &[("GPULIMIT_SIM_NO_PROC", "1")]);
    let outside = outsider(&world, "74G");
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 10G", "2")]);
    let one = the_refusal(&world, Cause::Outside);
    assert_eq!(one.holders.len(), 0);
    let (_, errors) = program.end();
    let said = "74.5 GiB outside of group world: others 74.5 GiB";
    assert!(errors.contains(said), "{errors}");
    outside.end_quietly();
}

#[test]
fn the_drivers_own_refusal_with_room_is_the_hosts() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    world.machine().knob("fail", "cuMemAlloc_v2:2");
    program.expect(&[("alloc a 100M", "2"), ("alloc b 1000", "2")]);
    assert_eq!(world.usage(0).refusals, 2);
    let all = refusals(&world);
    assert!(
        all.iter().all(|one| one.cause == Some(Cause::Host)),
        "{all:?}"
    );
    // A failure that is no lack of memory is no refusal.
    world.machine().knob("fail", "cuMemAlloc_v2:999");
    program.expect(&[("alloc a 100M", "999")]);
    assert_eq!(world.usage(0).refusals, 2);
    let (_, errors) = program.end();
    assert!(errors.contains("`ulimit -v`"), "{errors}");
}

/// A program that empties its cache and asks again, as PyTorch does.
#[test]
fn a_request_that_is_granted_after_a_refusal_has_recovered() {
    for (full, empty, again) in [
        ("alloc a 400M", "free a", "alloc b 300M"),
        ("create a 400M 0", "release a", "create b 300M 0"),
        ("async a 400M", "free-async a", "async b 300M"),
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        // On a slow machine a second can pass meanwhile.
        let recovers = || {
            program.expect(&[(full, "0"), (again, "2"), (empty, "0"), (again, "0")]);
            let back = again.replace("alloc", "free").replace("create", "release");
            let back = back.replace("async", "free-async");
            let back: Vec<_> = back.split(' ').take(2).collect();
            program.expect(&[(&back.join(" "), "0")]);
            let events = world.events(EventKind::Recovered);
            let of_size = |bytes: u64| bytes == 300 * MIB;
            events.iter().any(|event| of_size(event.what.bytes))
        };
        assert!(eventually(recovers), "{again}");
        program.tell("exit 1");
        let (status, errors) = program.end();
        assert_eq!(status.code(), Some(1));
        assert!(!errors.contains("ended with status"), "{errors}");
    }
}

#[test]
fn less_than_was_refused_and_a_late_grant_are_no_recovery() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 600M", "2"), ("alloc a 400M", "0")]);
    program.expect(&[("sleep 1100", "0"), ("free a", "0"), ("alloc a 400M", "0")]);
    program.expect(&[("free a", "0"), ("alloc b 600M", "2"), ("sleep 1100", "0")]);
    world.set(2 * CAP);
    program.expect(&[("alloc b 600M", "0")]);
    assert_eq!(world.events(EventKind::Recovered).len(), 0);
    program.end();
}

/// Runs a script in the group; returns the status and the lines about the end.
fn ending(world: &World, script: &str, variables: &[(&str, &str)]) -> (Option<i32>, Vec<String>) {
    let mut command = world.limited(world::program());
    command.envs(variables.iter().copied());
    let mut program = Session::start(command);
    program.tell(&format!("start\n{script}"));
    let (status, errors) = program.end();
    let lines = errors
        .lines()
        .filter(|line| line.starts_with("gpulimit: ended with"));
    (status.code(), lines.map(str::to_owned).collect())
}

#[test]
fn a_refused_program_that_fails_says_so_at_its_end() {
    let world = World::new(CAP);
    let (status, lines) = ending(&world, "alloc a 600M\nexit 3", &[]);
    assert_eq!((status, lines.len()), (Some(3), 1), "{lines:?}");
    let said = "gpulimit: ended with status 3 after a refusal: it needed 600.0 MiB on GPU 0 (GPU-";
    assert!(lines[0].starts_with(said), "{lines:?}");
    assert!(lines[0].contains("`gpulimit why --pid "), "{lines:?}");
    // The next program of the same job does not repeat that.
    let (status, lines) = ending(&world, "alloc a 600M\nexit 3", &[]);
    assert_eq!((status, lines.len()), (Some(3), 0), "{lines:?}");
}

#[test]
fn other_ends_say_nothing() {
    for (script, variables, status) in [
        ("alloc a 9G\nexit 0", &[][..], Some(0)),
        ("alloc a 400M\nexit 3", &[], Some(3)),
        ("alloc a 9G\nexit 3", &[("GPULIMIT_QUIET", "1")], Some(3)),
    ] {
        let world = World::new(CAP);
        let (ended, lines) = ending(&world, script, variables);
        assert_eq!((ended, lines.len()), (status, 0), "{script}: {lines:?}");
    }
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 600M", "2")]);
    program.signal(libc::SIGTERM);
    let (status, errors) = program.end();
    assert_eq!(status.signal(), Some(libc::SIGTERM));
    assert!(!errors.contains("ended with"), "{errors}");
}

/// Runs tests/programs/c/fails.c; returns the status and standard error.
fn fails(world: &World, how: &str) -> (Option<i32>, String) {
    let mut command = world.limited(&world::compile("fails", &["-pthread"]));
    command.arg(how);
    let output = finish(command);
    (output.status.code(), text(&output.stderr))
}

#[test]
fn a_forked_child_that_was_not_refused_says_nothing() {
    let world = World::new(CAP);
    let (status, errors) = fails(&world, "child");
    assert_eq!(
        (status, errors.contains("ended with")),
        (Some(0), false),
        "{errors}"
    );
}

#[test]
fn refusals_in_signal_handlers_neither_hang_nor_crash() {
    let world = World::new(CAP);
    let (status, errors) = fails(&world, "handler");
    assert_eq!(status, Some(3), "{errors}");
    assert!(
        errors.contains("ended with status 3 after a refusal"),
        "{errors}"
    );
    assert_eq!(world.usage(0).refusals, 401);
    world.judge_end(CAP);
}

#[test]
fn many_refusals_are_all_counted_and_share_an_entry() {
    for (cap, command) in [(CAP, "alloc a 600M"), (AMPLE, "alloc a 100G")] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        let answer = program.say(&format!("repeat 10000 {{\n{command}\n}}"));
        assert_eq!(answer, "2:10000");
        assert_eq!(world.usage(0).refusals, 10_000);
        let all = refusals(&world);
        let counted: u64 = all.iter().map(|one| 1 + one.repeats).sum();
        assert_eq!(counted, 10_000);
        let (_, errors) = program.end();
        let lines = errors.lines().count();
        // At most three lines are printed per second.
        assert!((1..=180).contains(&lines), "{lines} lines");
    }
}

#[test]
fn threads_that_are_refused_at_once_are_all_counted() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.say("threads 2 {\nrepeat 500 {\nalloc a 600M\n}\n}");
    assert_eq!(world.usage(0).refusals, 1_000);
    program.expect(&[("alloc a 400M", "0")]);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn a_refusal_names_the_gpu_as_the_verbs_do() {
    let world = World::with(
        CAP,
        &[("GPULIMIT_SIM_GPUS", "2"), ("GPULIMIT_SIM_REVERSED", "1")],
    );
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 600M", "2")]);
    let (_, errors) = program.end();
    assert!(errors.contains(" on GPU 1 (GPU-"), "CUDA's GPU 0: {errors}");
}
