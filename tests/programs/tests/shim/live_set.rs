//! Limits that change while programs run.

use gpulimit_programs::world::{self, CONTEXT, MIB, World};
use gpulimit_support::wait_until;

#[test]
fn a_raised_limit_takes_effect_at_once() {
    let world = World::new(1024 * MIB);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 1000M", "2")]);
    world.set(2048 * MIB);
    program.expect(&[
        ("total 0", "0 2147483648"),
        ("alloc a 1000M", "0"),
        ("alloc b 1000M", "2"),
    ]);
    world.judge(2048 * MIB);
    program.end();
    world.judge_end(2048 * MIB);
}

#[test]
fn a_lowered_limit_keeps_allocations_and_refuses_growth() {
    let world = World::new(4096 * MIB);
    let mut program = world.on_gpu();
    program.expect(&[
        ("alloc a 1000M", "0"),
        ("alloc b 1000M", "0"),
        ("alloc crumb 1000", "0"),
    ]);
    world.set(1200 * MIB);
    world.judge(4096 * MIB);
    program.expect(&[
        ("alloc c 2M", "2"),
        ("create e 2M 0", "2"),
        ("async f 1M", "2"),
        ("managed g 2M", "2"),
        ("context h 0 v2", "2"),
        ("info", "0 0 1258291200"),
        ("free a", "0"),
        ("alloc c 2M", "2"),
        ("free b", "0"),
        ("alloc c 600M", "0"),
        ("alloc i 200M", "2"),
    ]);
    world.judge(4096 * MIB);
    world.machine().reset_peak();
    program.say("fill more 2M");
    world.judge(1200 * MIB);
    program.end();
    world.judge_end(1200 * MIB);
}

#[test]
fn a_pool_above_a_lowered_limit_serves_its_reserve() {
    let world = World::new(2048 * MIB);
    let mut program = world.on_gpu();
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async a 640M", "0"),
        ("free-async a", "0"),
    ]);
    world.set(800 * MIB);
    program.expect(&[("async a 200M", "0"), ("free-async a", "0"), ("sync", "0")]);
    world.judge(2048 * MIB);
    program.end();
    world.judge_end(2048 * MIB);
}

#[test]
fn changing_limits_never_allow_more_than_the_largest() {
    let world = World::new(1024 * MIB);
    let mut program = world.on_gpu();
    program.tell("repeat 400 {\nmany a 10 30M\nfree-many a\n}");
    let mut limits = [700, 1024].into_iter().cycle();
    wait_until("the program has done all", || {
        world.set(limits.next().unwrap_or(0) * MIB);
        program.printed().is_some()
    });
    world.judge(1024 * MIB);
    program.end();
    world.judge_end(1024 * MIB);
}

#[test]
fn a_request_waiting_for_a_dead_process_sees_a_changed_limit() {
    let world = World::with(4096 * MIB, &[("GPULIMIT_SIM_KILL_LAG_MS", "3600000")]);
    let mut holder = world.on_gpu();
    holder.expect(&[("alloc a 2500M", "0")]);
    let mut program = world.on_gpu();
    holder.kill();
    program.tell("alloc a 2500M");
    program.waits_on();
    world.set(3000 * MIB);
    // The request would fit under the limit at its beginning, but not under the limit that holds
    // now.
    assert_eq!(program.answer(), "2");
    world.machine().knob("kill-lag-ms", "0");
    program.expect(&[("alloc a 2400M", "0")]);
    world.judge(4096 * MIB);

    // In the other direction the raised limit makes room before the dead process's memory is free.
    program.expect(&[("free a", "0")]);
    let mut holder = world.on_gpu();
    holder.expect(&[("alloc a 1500M", "0")]);
    world.machine().knob("kill-lag-ms", "3600000");
    holder.kill();
    program.tell("alloc b 1500M");
    program.waits_on();
    world.set(6000 * MIB);
    assert_eq!(program.answer(), "0");
    assert!(
        world.machine().used() > 3000 * MIB,
        "the dead program's memory is already free"
    );
}

#[test]
fn contexts_of_running_programs_begin_and_cease_to_count() {
    let cap = CONTEXT + 400 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    let set = |value: &str| {
        let mut command = world.bare(&world::controller());
        command.args(["set", "world", &format!("count_context={value}")]);
        let output = world::finish(command);
        assert!(output.status.success(), "{output:?}");
    };
    program.expect(&[("alloc a 300M", "0"), ("alloc b 500M", "2")]);
    set("no");
    program.expect(&[("alloc b 500M", "0")]);
    // The last is what the driver may still take.
    let charged = world.usage(0).charged;
    assert!((800 * MIB..=804 * MIB).contains(&charged), "{charged}");
    // Together with the context that is more than the limit, so that nothing more fits.
    set("yes");
    program.expect(&[("alloc c 10M", "2"), ("free b", "0"), ("alloc c 10M", "0")]);
    world.judge(cap + 800 * MIB);
    program.end();
    world.judge_end(cap + 800 * MIB);
}
