//! Stream-ordered memory is charged by the pool's reserve, not by the allocations.

use gpulimit_ledger::Category;
use gpulimit_programs::world::{BLOCK, CONTEXT, HOUR, MIB, World};

const CAP: u64 = 1024 * MIB;

#[test]
fn a_pool_is_charged_for_its_reserve() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    for (name, size, reserved) in [("a", "1", 32), ("b", "32M+1", 96), ("c", "100M", 224)] {
        program.expect(&[(&format!("async {name} {size}"), "0")]);
        assert_eq!(world.machine().used(), CONTEXT + reserved * MIB, "{size}");
        let usage = world.usage(0);
        assert_eq!(usage.by[Category::Pools as usize], reserved * MIB);
        assert_eq!(usage.peak, world.machine().gpu(0).peak, "{size}");
        world.judge(CAP);
    }
    program.expect(&[
        ("free-async a", "0"),
        ("free-async b", "0"),
        ("free-async c", "0"),
    ]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_synchronise_uncharges_the_released_reserve() {
    for sync in ["sync", "sync null", "event-sync", "sync work"] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[
            ("stream work", "0"),
            ("async a 200M", "0"),
            // From here on, only the free can change what the pool has reserved.
            ("sync", "0"),
            ("free-async a", "0"),
        ]);
        assert!(world.machine().used() > CONTEXT + 200 * MIB);
        world.judge(CAP);
        program.expect(&[(sync, "0")]);
        assert!(world.machine().used() < CONTEXT + 10 * MIB, "{sync}");
        world.judge(CAP);
        // The whole reserve is available to another request.
        program.expect(&[("alloc b 480M", "0")]);
        world.judge(CAP);
        program.end_quietly();
        world.judge_end(CAP);
    }
}

#[test]
fn a_kept_reserve_stays_charged_until_it_is_trimmed() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async a 320M", "0"),
        ("free-async a", "0"),
        ("sync", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 320 * MIB);
    world.judge(CAP);
    program.expect(&[("trim p 160M", "0")]);
    assert_eq!(world.machine().used(), CONTEXT + 160 * MIB);
    world.judge(CAP);
    program.expect(&[("trim p 0", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// A measurement would look at graphs, too, which takes an hour here.
#[test]
fn a_synchronise_does_not_measure() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("async a 100M", "0"), ("free-async a", "0")]);
    let latency = format!("cuDeviceGetGraphMemAttribute:{HOUR}");
    world.machine().knob("latency", &latency);
    program.expect(&[("sync", "0")]);
    world.machine().knob("latency", "0");
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// Memory of pools is not the driver's own. A measurement whose look at a pool fails takes the pool
/// for empty.
#[test]
fn a_measurement_looks_at_the_pools() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("async a 40M", "0")]);
    let pools = || world.usage(0).by[Category::Pools as usize];
    for (fail, seen) in [("cuMemPoolGetAttribute:999", 0), ("none", 64 * MIB)] {
        world.machine().knob("fail", fail);
        assert_eq!(program.say("repeat 5 {\nstream s\n}"), "0:5");
        assert_eq!(pools(), seen, "{fail}");
        world.judge(CAP);
    }
    program.end_quietly();
    world.judge_end(CAP);
}

/// After a synchronise without allocations or frees, only the lowered threshold makes the pool
/// shrink in the next one.
#[test]
fn the_next_synchronise_uncharges_after_a_lowered_threshold() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async a 320M", "0"),
        ("free-async a", "0"),
        ("sync", "0"),
        ("threshold p 0", "0"),
        ("sync", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// Growth is charged together with the headroom for the next growth, and with nothing beyond that.
#[test]
fn growth_is_refused_if_its_headroom_does_not_fit() {
    // The cap has room for three steps, the headroom, and the driver's reserve.
    let cap = CONTEXT + (3 + 1) * 32 * MIB + 4 * MIB;
    for (cap, answer) in [(cap, "0"), (cap - BLOCK, "2")] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[("async a 1M", "0"), ("async b 64M", answer)]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// Two threads are charged for growth, and one of them grows the pool: the other's charge becomes
/// the headroom.
#[test]
fn growth_covered_by_another_threads_charge_counts_in_the_peak() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("async kept 1M", "0")]);
    world.machine().knob("latency", "cuMemAllocAsync:100000000");
    // One of the allocations fits into the first step.
    assert_eq!(program.say("threads 2 {\nasync a 20M\n}"), "0:1, 0:1");
    assert_eq!(world.machine().used(), CONTEXT + 64 * MIB);
    assert_eq!(world.usage(0).peak, world.machine().gpu(0).peak);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// The ticket of a pool is for requests that can take one step, 32 MiB.
#[test]
fn requests_for_more_than_a_step_are_charged_before_the_call() {
    let cap = CONTEXT + 200 * MIB;
    for more in ["40M", "96M"] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[
            ("async a 1M", "0"),
            ("alloc b 128M", "0"),
            ("async c 1M", "0"),
            ("async d 1M", "0"),
            (&*format!("async e {more}"), "2"),
        ]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn a_full_gpu_leaves_pools_of_other_gpus_alone() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_GPUS", "2")]);
    let mut program = world.on_gpu();
    program.expect(&[
        ("retain 1", "0"),
        ("current 1", "0"),
        ("pool other 1", "0"),
        ("threshold other max", "0"),
        ("async-from a other 64M", "0"),
        ("free-async a", "0"),
        ("current 0", "0"),
        ("alloc b 600M", "2"),
        ("pool-bytes other", &format!("{} 0", 64 * MIB)),
    ]);
    assert_eq!(world.machine().gpu(1).used, CONTEXT + 64 * MIB);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn an_unused_reserve_makes_way_for_other_requests() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async a 448M", "0"),
        ("free-async a", "0"),
        // The driver itself would take this memory from the pool.
        ("alloc b 480M", "0"),
    ]);
    world.judge(CAP);
    program.expect(&[
        ("free b", "0"),
        ("async c 448M", "0"),
        ("free-async c", "0"),
        ("create d 400M 0", "0"),
    ]);
    world.judge(CAP);
    program.expect(&[
        ("release d", "0"),
        ("async e 400M", "0"),
        ("free-async e", "0"),
        ("managed f 480M", "0"),
    ]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn reuse_inside_a_full_group_is_never_refused() {
    // The cap has room for the pool's 448 MiB and its headroom, and for less than one step more.
    let cap = CONTEXT + 490 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async a 224M", "0"),
        ("async b 224M", "0"),
        ("async c 100M", "2"),
        ("free-async a", "0"),
        ("free-async b", "0"),
    ]);
    let round = "async a 224M\nasync b 190M\nasync c 1M\nfree-async b\nasync d 30M\nfree-async a\n\
        free-async c\nfree-async d";
    assert_eq!(program.say(&format!("repeat 50 {{\n{round}\n}}")), "0:400");
    world.judge(cap);
    program.expect(&[
        ("async whole 448M", "0"),
        ("async more 1M", "2"),
        ("free-async whole", "0"),
        ("async whole 448M", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// A look at the pool that fails takes the pool for empty, so an unchanged charge proves that the
/// library did not look.
#[test]
fn reuse_of_known_steps_does_not_ask_the_driver() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    // The library forgets what it knew of a pool once the pool is empty.
    program.expect(&[
        ("async before 100M", "0"),
        ("free-async before", "0"),
        ("sync", "0"),
    ]);
    program.expect(&[
        ("async kept 1M", "0"),
        ("async a 24M", "0"),
        ("async b 24M", "0"),
    ]);
    let pools = || world.usage(0).by[Category::Pools as usize];
    assert_eq!(pools(), 64 * MIB);
    let fail = |calls| world.machine().knob("fail", calls);
    // The library does not ask the driver for the current pool either.
    fail("cuMemPoolGetAttribute:999,cuDeviceGetMemPool:999");
    let reuse = "free-async kept\nasync kept 1M\nfree-async a\nasync a 20M";
    let round = program.say(&format!("repeat 10 {{\n{reuse}\n}}"));
    assert_eq!((&*round, pools()), ("0:40", 64 * MIB));
    program.expect(&[("async c 40M", "0")]);
    assert_eq!(
        pools(),
        0,
        "growth beyond a step asks the driver, which fails"
    );
    fail("none");
    program.expect(&[("sync", "0")]);
    world.judge(CAP);
    program.expect(&[("free-async kept", "0"), ("async kept 2M", "0")]);
    world.judge(CAP);
    // The headroom and the driver's reserve stay charged.
    let charged = world.machine().used() + (32 + 4) * MIB;
    assert_eq!(world.usage(0).charged, charged, "{:?}", world.usage(0));
    program.end_quietly();
    world.judge_end(CAP);
}

/// The pool gives a step back and takes a new one at the same address: the address is known, but
/// the pool has grown.
#[test]
fn growth_at_a_known_address_is_charged() {
    // The cap has room for three steps and the driver's own memory.
    let cap = CONTEXT + 106 * MIB;
    for (keep, give_back) in [("0", "sync"), ("max", "trim p 0")] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[
            ("default-pool p 0", "0"),
            (&format!("threshold p {keep}"), "0"),
            ("async a 32M", "0"),
            ("async b 32M", "0"),
            ("free-async a", "0"),
            (give_back, "0"),
        ]);
        assert_eq!(world.machine().used(), CONTEXT + 32 * MIB);
        // Linear memory takes the step that was given back, and another step is the headroom.
        program.expect(&[("alloc linear 32M", "0")]);
        let answer = program.say("repeat 3 {\nasync c 32M\n}");
        assert_eq!(answer, "2:3", "{give_back}");
        world.judge(cap);
        program.expect(&[("free linear", "0"), ("async c 32M", "0")]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn small_reuse_at_the_limit_leaves_the_reserve_alone() {
    let cap = CONTEXT + 490 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async a 420M", "0"),
        ("async b 20M", "0"),
    ]);
    // The rest is filled with linear memory, so the group is full.
    program.say("fill rest 1M");
    let full = world.machine().used();
    let answer = program.say("repeat 100 {\nasync c 8M\nasync d 32M\nfree-async c\n}");
    assert_eq!(
        answer, "0:200 2:100",
        "8 MiB lie in the last step, 32 do not"
    );
    assert_eq!(world.machine().used(), full);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// Only the driver knows whether a request fits into the pieces of a pool, so the library charges
/// for growth in any case.
#[test]
fn a_fragmented_pool_keeps_to_the_limit() {
    let cap = CONTEXT + 430 * MIB;
    for size in [2, 31, 33, 64, 190] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[("default-pool p 0", "0"), ("threshold p max", "0")]);
        // The pool has twelve steps, each with an allocation of 24 MiB and then one of 8 MiB.
        for at in 0..12 {
            program.expect(&[(&format!("async a{at} 24M"), "0")]);
            program.expect(&[(&format!("async b{at} 8M"), "0")]);
        }
        for at in 0..12 {
            program.expect(&[(&format!("free-async a{at}"), "0")]);
        }
        let answer = program.say(&format!("async c {size}M"));
        // 288 MiB are unused, but in pieces of 24 MiB at most, and no step is wholly unused.
        assert_eq!(answer, if size <= 24 { "0" } else { "2" }, "{size} MiB");
        world.judge(cap);
        // The pool serves its unused memory as before.
        program.expect(&[("async d 24M", "0"), ("async e 20M", "0")]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// Memory freed behind running work cannot be trimmed yet: a request that needs this memory waits
/// for the work, within its patience.
#[test]
fn a_request_at_the_limit_waits_for_the_work_before_it() {
    let cap = CONTEXT + 490 * MIB;
    let hour = 3_600_000_000_000u64;
    for (work, outcome) in [(300_000_000, "0"), (hour, "2")] {
        let world = World::with(cap, &[("GPULIMIT_SIM_WORK", &work.to_string())]);
        let mut program = world.on_gpu();
        program.expect(&[
            ("default-pool p 0", "0"),
            ("threshold p max", "0"),
            ("module m 1K", "0"),
            ("async a 420M", "0"),
            ("launch m", "0"),
            ("query", "600"),
            ("free-async a", "0"),
            // The request would fit into memory freed before it on its stream. The library cannot
            // know that the pool will not grow, and so cannot leave growth uncharged.
            ("async b 400M", outcome),
            ("async c 8M", "0"),
        ]);
        world.judge(cap);
        program.kill();
    }
}

#[test]
fn threads_take_turns_with_the_headroom() {
    // The cap has room for one step of a pool and its headroom.
    let cap = CONTEXT + 74 * MIB;
    let world = World::with(cap, &[("GPULIMIT_SIM_LATENCY", "cuMemAllocAsync:200000")]);
    let mut program = world.on_gpu();
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async kept 1M", "0"),
    ]);
    let answer = program.say("threads 8 {\nrepeat 100 {\nasync a 2M\nfree-async a\n}\n}");
    assert_eq!(answer, ["0:200"; 8].join(", "));
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}

/// The headroom is the device's: many pools need no more of it than one.
#[test]
fn many_pools_share_a_headroom() {
    const POOLS: u64 = 20;
    let cap = CONTEXT + (POOLS + 1) * 32 * MIB + 10 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    for at in 0..POOLS {
        program.expect(&[
            (&format!("pool p{at} 0"), "0"),
            (&format!("threshold p{at} max"), "0"),
            (&format!("async-from a{at} p{at} 1M"), "0"),
        ]);
    }
    assert_eq!(world.machine().used(), CONTEXT + POOLS * 32 * MIB);
    // The headroom and the driver's reserve stay charged.
    let charged = || world.usage(0).charged - world.machine().used();
    assert_eq!(charged(), (32 + 4) * MIB, "{:?}", world.usage(0));
    program.expect(&[("async-from more p0 32M", "2")]);
    // A pool whose growth is not read keeps the step until another one needs it.
    for _ in 0..2 {
        for at in 0..POOLS {
            program.expect(&[
                (&format!("async-from b p{at} 2M"), "0"),
                ("free-async b", "0"),
            ]);
        }
    }
    world.judge(cap);
    program.expect(&[("sync", "0")]);
    assert_eq!(charged(), (32 + 4) * MIB, "{:?}", world.usage(0));
    program.end();
    world.judge_end(cap);
}

/// In a full group the threads take turns with one step, each on its own pool.
#[test]
fn threads_on_many_pools_take_turns_with_the_headroom() {
    const THREADS: u64 = 16;
    let cap = CONTEXT + (THREADS + 1) * 32 * MIB + 10 * MIB;
    let latency = "cuMemAllocFromPoolAsync:200000";
    let world = World::with(cap, &[("GPULIMIT_SIM_LATENCY", latency)]);
    let mut program = world.on_gpu();
    for at in 0..THREADS {
        program.expect(&[
            (&format!("pool p{at} 0"), "0"),
            (&format!("threshold p{at} max"), "0"),
            (&format!("async-from kept p{at} 1M"), "0"),
        ]);
    }
    for at in 0..THREADS {
        let lines = format!("async-from a p{at} 2M\nfree-async a");
        program.expect(&[(&format!("aside {{\nrepeat 50 {{\n{lines}\n}}\n}}"), "0")]);
    }
    let answer = ["0:100"; THREADS as usize].join(", ");
    program.expect(&[("await", &answer)]);
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}

/// As many steps as calls were under way at once stay charged while pools have memory, and are
/// given back to others.
#[test]
fn steps_of_calls_at_once_stay_for_the_next_ones() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async kept 1M", "0"),
    ]);
    world.machine().knob("latency", "cuMemAllocAsync:200000000");
    assert_eq!(
        program.say("threads 4 {\nasync a 1M\n}"),
        "0:1, ".repeat(4).trim_end_matches(", ")
    );
    assert_eq!(world.machine().used(), CONTEXT + 32 * MIB);
    let charged = || (world.usage(0).charged - world.machine().used()) / MIB;
    assert!(charged() > 2 * 32 + 4, "{:?}", world.usage(0));
    world.machine().knob("latency", "0");
    let rest = CAP - world.machine().used() - (32 + 4) * MIB;
    program.expect(&[(&format!("alloc rest {rest}"), "0")]);
    assert_eq!(charged(), 32 + 4, "{:?}", world.usage(0));
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn destroyed_pools_are_uncharged() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("pool own 0", "0"),
        ("threshold own max", "0"),
        ("async-from a own 100M", "0"),
        ("use-pool own 0", "0"),
        ("async b 60M", "0"),
        ("default-pool default 0", "0"),
        ("use-pool-at default 0", "0"),
        ("async c 10M", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + (128 + 64 + 32) * MIB);
    world.judge(CAP);
    program.expect(&[("free-async a", "0"), ("destroy-pool own", "0")]);
    world.judge(CAP);
    program.expect(&[("free-async b", "0"), ("free c", "0"), ("sync", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.expect(&[("alloc d 480M", "0")]);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_pool_that_cannot_be_destroyed_stays_charged() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("pool own 0", "0"), ("async-from a own 100M", "0")]);
    world.machine().knob("fail", "cuMemPoolDestroy:719");
    program.expect(&[("destroy-pool own", "719"), ("async-from b own 1M", "0")]);
    assert_eq!(world.counted(0), world.machine().used());
    world.judge(CAP);
    world.machine().knob("fail", "none");
    program.expect(&[("destroy-pool own", "0")]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// A pool without room first gives back its own unused reserve, if that is enough.
#[test]
fn a_pool_first_gives_back_its_own_reserve() {
    // The cap has room for the two pools at first, with their headrooms and one step, and for what
    // they hold in the end.
    let cap = CONTEXT + 232 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("pool own 0", "0"),
        ("threshold own max", "0"),
        ("async-from a own 64M", "0"),
        ("free-async a", "0"),
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async b 64M", "0"),
        ("free-async b", "0"),
        ("async c 96M", "0"),
        ("pool-bytes own", &format!("{} 0", 64 * MIB)),
    ]);
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn a_full_group_refuses_growth_with_the_drivers_code() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("pool own 0", "0"),
        ("async-from a own 600M", "2"),
        ("async b 600M", "2"),
    ]);
    let answer = program.say("repeat 30 {\nasync c 30M\n}");
    assert!(
        answer.starts_with("0:1") && answer.contains(" 2:1"),
        "{answer}"
    );
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn threads_sharing_a_pool_keep_to_the_limit() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_LATENCY", "cuMemAllocAsync:10000")]);
    let mut program = world.on_gpu();
    program.expect(&[("default-pool p 0", "0"), ("threshold p max", "0")]);
    let block = "repeat 200 {\nasync a 20M\nasync b 33M\nfree-async a\nfree-async b\n}";
    let answer = program.say(&format!("threads 4 {{\n{block}\n}}"));
    assert_eq!(answer, ["0:800"; 4].join(", "));
    world.judge(CAP);
    program.expect(&[("sync", "0"), ("trim p 0", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn captured_allocations_are_graph_nodes() {
    let cap = CONTEXT + 20 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("stream work", "0"), ("capture work", "0")]);
    // Whatever the driver answers, the capture goes on and no charge is made.
    program.say("async node 1M work");
    program.expect(&[("end-capture work", "0")]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// While one thread's allocation makes the pool grow, another thread's measurement looks at the
/// pool: the charge made in advance for the growth covers it.
#[test]
fn growth_that_another_thread_sees_is_charged_once() {
    // The cap has room for growth, but not for a headroom beside it, which would cover a double
    // charge.
    let cap = CONTEXT + 50 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    let latency = |ns: u32| {
        let knob = format!("cuMemPoolGetAttribute:{ns}");
        world.machine().knob("latency", &knob);
    };
    program.expect(&[("async a 1", "2")]);
    latency(5_000_000);
    program.tell("threads 4 {\nrepeat 8 {\nasync a 20M\npriority-stream t\n}\n}");
    let mut most = 0;
    let answer = std::thread::scope(|threads| {
        let answer = threads.spawn(|| program.answer());
        while !answer.is_finished() {
            most = most.max(world.usage(0).charged);
        }
        answer.join().expect("an answer")
    });
    // A block that the driver took for a stream may be charged twice until the stream's own
    // measurement, but the growth of the pool is charged once.
    assert!(
        most <= cap + 2 * BLOCK,
        "{} MiB too many",
        (most - cap) / MIB
    );
    latency(0);
    assert!(answer.contains("2:"), "{answer}");
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

fn managed(world: &World) -> u64 {
    world.usage(0).by[Category::Managed as usize] / MIB
}

/// Pools of managed memory report figures as other pools do, but the GPU keeps memory that they
/// have had until they are destroyed.
#[test]
fn managed_pools_are_charged_in_full_and_shown_apart() {
    let cap = CONTEXT + 800 * MIB;
    for make in [
        "managed-pool p 0",
        "managed-pool p none",
        "managed-pool p host",
        "default-managed-pool p 0",
        "default-managed-pool p host",
        "current-managed-pool p none",
    ] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[
            (make, "0"),
            ("stream s", "0"),
            // This is more than the GPU has: the driver would keep the rest in host memory.
            ("async-from a p 100G s", "2"),
            ("async-from a p 300M s", "0"),
        ]);
        assert_eq!(managed(&world), 320, "{make}");
        assert_eq!(world.machine().used() / (100 * MIB), CONTEXT / (100 * MIB));
        program.expect(&[
            ("alloc b 460M", "2"),
            ("async-from b p 600M s", "2"),
            ("async-from b p 1000G s", "2"),
            ("pool-bytes p", "335544320 314572800"),
        ]);
        world.judge(cap);
        // The memory goes back to the pool, whose figures are zero then, and not to the group.
        program.expect(&[
            ("free-async a s", "0"),
            ("sync s", "0"),
            ("trim p 0", "0"),
            ("pool-bytes p", "0 0"),
            ("alloc b 480M", "2"),
            ("alloc b 460M", "0"),
        ]);
        assert_eq!(managed(&world), 320, "{make}");
        // In a full group the pool can again use memory that it has had before.
        program.expect(&[
            ("async-from a p 300M s", "0"),
            ("async-from c p 100M s", "2"),
            ("free a", "0"),
            ("free b", "0"),
            ("sync s", "0"),
        ]);
        assert_eq!(managed(&world), 320, "{make}");
        world.judge(cap);
        let gone = match make.starts_with("managed") {
            true => "0",
            false => "1",
        };
        program.expect(&[("destroy-pool p", gone)]);
        assert_eq!(managed(&world), if gone == "0" { 0 } else { 320 }, "{make}");
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn memory_of_a_managed_pool_outlives_it_and_its_context() {
    let cap = CONTEXT + 800 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("managed-pool p 0", "0"),
        ("stream s", "0"),
        ("async-from a p 300M s", "0"),
        ("async-from b p 1M s", "0"),
        ("destroy-pool p", "0"),
        ("sync s", "0"),
    ]);
    assert_eq!(managed(&world), 320);
    program.expect(&[("free-async a s", "0"), ("sync s", "0")]);
    assert_eq!(managed(&world), 320);
    program.expect(&[("alloc c 490M", "2"), ("free b", "0"), ("sync s", "0")]);
    assert_eq!(managed(&world), 0);
    program.expect(&[("alloc c 780M", "0"), ("free c", "0")]);
    world.judge(cap);
    program.expect(&[
        ("managed-pool p 0", "0"),
        ("async-from a p 300M s", "0"),
        ("reset 0", "0"),
    ]);
    assert_eq!(managed(&world), 320);
    program.expect(&[("destroy-pool p", "0")]);
    assert_eq!(managed(&world), 320);
    program.end();
    world.judge_end(cap);
}

/// `cuMemAllocAsync` still allocates from the pool that was current before.
#[test]
fn a_managed_pool_is_not_current_for_other_memory() {
    let cap = CONTEXT + 800 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("managed-pool p 0", "0"),
        ("use-pool p 0", "0"),
        ("async a 300M", "0"),
        ("pool-bytes p", "0 0"),
    ]);
    assert_eq!(managed(&world), 0);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// In a full group a managed pool may grow into memory that it has had before. If the driver takes
/// other addresses, the library undoes the allocation.
#[test]
fn a_managed_pool_that_grows_elsewhere_in_a_full_group_is_refused() {
    let cap = CONTEXT + 800 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("managed-pool p 0", "0"), ("stream s", "0")]);
    for name in ["a", "b", "c"] {
        program.expect(&[(&format!("async-from {name} p 64M s"), "0")]);
    }
    program.expect(&[
        ("free-async a s", "0"),
        ("free-async c s", "0"),
        ("sync s", "0"),
        ("alloc full 570M", "0"),
    ]);
    assert_eq!(managed(&world), 192);
    program.expect(&[
        // The request comes after the second allocation: 64 MiB of it are at addresses where the
        // pool has had no memory, and 32 MiB of these are charged.
        ("async-from d p 128M s", "2"),
        ("alloc e 2M", "2"),
        ("async-from e p 64M s", "0"),
        ("async-from f p 64M s", "0"),
    ]);
    assert_eq!(managed(&world), 256);
    program.expect(&[("free full", "0"), ("destroy-pool p", "0")]);
    for name in ["b", "e", "f"] {
        program.expect(&[(&format!("free-async {name} s"), "0")]);
    }
    program.expect(&[("sync s", "0")]);
    assert_eq!(managed(&world), 0);
    program.end();
    world.judge_end(cap);
}
