//! Processes that are killed, stopped, or lose their descriptors or environment.

use std::path::Path;
use std::time::Duration;

use gpulimit_limits::LimitSet;
use gpulimit_programs::world::{self, CONTEXT, GROUP, MIB, World, eventually, finish, text};
use gpulimit_support::may_unshare;

const CAP: u64 = 4096 * MIB;

#[test]
fn memory_of_a_killed_process_is_uncharged_once_the_driver_frees_it() {
    for lag in ["0", "150", "400"] {
        let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", lag)]);
        let mut holder = world.on_gpu();
        holder.expect(&[
            ("alloc a 2500M", "0"),
            ("managed b 100M", "0"),
            ("async c 100M", "0"),
        ]);
        let mut next = world.on_gpu();
        next.expect(&[("alloc a 2500M", "2")]);
        holder.kill();
        // The request waits for the driver to release the memory instead of failing.
        next.expect(&[("alloc a 2500M", "0")]);
        world.judge(CAP);
        let (_, errors) = next.end();
        assert_eq!(
            errors.lines().count(),
            1,
            "not exactly one refusal: {errors}"
        );
        world.judge_end(CAP);
    }
}

#[test]
fn a_new_process_waits_for_memory_of_a_killed_one() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "300")]);
    let mut holder = world.on_gpu();
    holder.expect(&[("alloc a 3500M", "0")]);
    holder.kill();
    let mut next = world.on_gpu();
    next.expect(&[("alloc a 3500M", "0")]);
    world.judge(CAP);
    next.end_quietly();
    world.judge_end(CAP);
}

fn shown(world: &World) -> String {
    let mut command = world.bare(&world::controller());
    command.arg("show");
    text(&world::finish(command).stdout)
}

#[test]
fn dead_processes_count_while_the_driver_lists_them() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "3600000")]);
    let mut holder = world.on_gpu();
    holder.expect(&[("alloc a 1000M", "0")]);
    let mut other = world.on_gpu();
    assert!(!shown(&world).contains("DRAINING"));
    holder.kill();
    assert!(shown(&world).contains("DRAINING"));
    let free = other.numbers("info")[1];
    assert!(free <= CAP - 2 * CONTEXT - 1000 * MIB, "{free}");
    world.machine().knob("kill-lag-ms", "0");
    assert!(eventually(|| world.machine().used() == CONTEXT));
    // A process that needs the memory finds out that the dead process's memory is free.
    other.expect(&[("alloc a 3500M", "0")]);
    world.judge(CAP);
    other.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_process_killed_while_allocating_leaves_no_charge() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "5")]);
    for round in 0..25 {
        let mut program = world.on_gpu();
        program.tell(
            "threads 2 {\nrepeat 100000 {\nalloc a 30M\nalloc b 1000\ncreate c 4M 0\n\
            async d 1M\nfree-async d\nrelease c\nfree b\nfree a\n}\n}",
        );
        std::thread::sleep(Duration::from_millis(1 + round % 7));
        program.kill();
    }
    world.judge_end(CAP);
    let mut last = world.on_gpu();
    last.expect(&[("alloc a 3500M", "0")]);
    world.judge(CAP);
}

#[test]
fn a_stopped_member_does_not_block_others() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_LATENCY", "cuMemAlloc_v2:2000")]);
    for _ in 0..10 {
        let mut stopped = world.on_gpu();
        stopped.tell("repeat 100000 {\nalloc a 10M\nfree a\n}");
        std::thread::sleep(Duration::from_millis(3));
        stopped.signal(libc::SIGSTOP);
        let mut program = world.on_gpu();
        program.expect(&[
            ("alloc a 500M", "0"),
            ("free a", "0"),
            ("alloc b 4000M", "2"),
        ]);
        program.end();
        stopped.kill();
    }
    world.judge_end(CAP);
}

#[test]
fn closing_all_descriptors_keeps_the_membership() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("alloc a 1000M", "0"),
        ("closefrom 3", "0"),
        ("alloc b 1000M", "0"),
    ]);
    world.judge(CAP);
    let mut other = world.on_gpu();
    other.expect(&[("alloc a 1500M", "2"), ("alloc a 900M", "0")]);
    world.judge(CAP);
    program.expect(&[
        ("alloc c 200M", "2"),
        ("free a", "0"),
        ("alloc c 900M", "0"),
    ]);
    world.judge(CAP);
}

#[test]
fn a_cleared_environment_keeps_the_limit() {
    let world = World::new(1024 * MIB);
    let mut program = world.on_gpu();
    program.expect(&[
        ("clearenv", "0"),
        ("alloc a 600M", "2"),
        ("alloc a 400M", "0"),
    ]);
    world.judge(1024 * MIB);
    program.end();
    world.judge_end(1024 * MIB);

    // The environment is cleared before the first call of the driver.
    let world = World::new(1024 * MIB);
    let mut program = world.start();
    for name in ["GPULIMIT_GROUP", "GPULIMIT_ROOT", "LD_PRELOAD"] {
        program.expect(&[(&format!("unsetenv {name}"), "0")]);
    }
    program.expect(&[
        ("start", "0 0"),
        ("alloc a 600M", "2"),
        ("alloc a 400M", "0"),
    ]);
    world.judge(1024 * MIB);
    program.end();
    world.judge_end(1024 * MIB);
}

/// A process joins before its first context, and then finds dead members without asking NVML.
#[test]
fn the_peak_is_without_programs_that_have_ended() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "3600000")]);
    for _ in 0..3 {
        let mut program = world.on_gpu();
        program.expect(&[("alloc a 700M", "0")]);
        program.kill();
    }
    assert_eq!(world.usage(0).peak, CONTEXT + 700 * MIB);
    assert!(world.usage(0).charged >= 3 * (CONTEXT + 700 * MIB));
}

/// In a nested pid namespace NVML lists no pids on old drivers. Where a member has seen itself in
/// the list, a list without a dead member is believed, also by a program that has no context.
#[test]
fn figures_are_without_ended_programs_in_a_nested_pid_namespace() {
    if !may_unshare(&["--pid", "--mount-proc"]) {
        return;
    }
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    // The second round begins with a known size of a context, in a group that nobody has measured
    // it in.
    for group in ["one", "two"] {
        let name = format!("{GROUP}/{group}");
        let made = world.root().create(&name, &LimitSet::default());
        made.expect("a group");
        let mut command = world.limited(Path::new("unshare"));
        command.args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
        ]);
        command.arg(
            "printf 'start\nalloc a 1000M\n' | \"$0\"
             until printf 'nvml 0\n' | env -u GPULIMIT_GROUP \"$0\" | grep -q ' 0$'; do :; done
             printf 'nvml 0\n' | \"$0\"
             printf 'start\nalloc a 3500M\n' | \"$0\"",
        );
        command.arg(world::program()).env("GPULIMIT_GROUP", name);
        let output = finish(command);
        let all = format!("0 0 {CAP} {CAP} 0 0 {CAP} 0 {CAP} 0");
        let begun = "start = 0 0\nalloc a";
        let expected = format!("{begun} 1000M = 0\nnvml 0 = {all}\n{begun} 3500M = 0\n");
        assert_eq!(text(&output.stdout), expected, "{group}");
    }
}
