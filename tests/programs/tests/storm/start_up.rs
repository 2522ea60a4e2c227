//! Very many members at once.

use std::hint::black_box;
use std::time::Instant;

use gpulimit_ledger::NoWitness;
use gpulimit_programs::world::{self, MIB, Session, World};
use gpulimit_support::wait_until;

use crate::crowd::{Nursery, signal};
use crate::tempest::setting;

/// Returns the nanoseconds of processor time of a thread (`PID`, `thread-self`), or 0 if Linux does
/// not count them.
fn on_processor(thread: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Prints the cost of so many members: of a charge and an uncharge by one of them, and of reading
/// the ledger.
fn show_costs(world: &World, member: &mut Session) {
    const PAIRS: u64 = 1_000;
    let pid = member.pid().to_string();
    let before = on_processor(&pid);
    let pairs = format!("repeat {PAIRS} {{\nalloc x 4M\nfree x\n}}");
    assert_eq!(member.say(&pairs), format!("0:{}", 2 * PAIRS));
    let pair = (on_processor(&pid) - before) / PAIRS;
    let ledger = world.ledger();
    let device = ledger.devices()[0].index;
    let cost = |times: u64, read: &dyn Fn()| {
        // The first call loads the pages.
        read();
        let before = on_processor("thread-self");
        (0..times).for_each(|_| read());
        (on_processor("thread-self") - before) / times / 1_000
    };
    let sum = cost(1_000, &|| {
        black_box(ledger.usage(device));
    });
    let list = cost(10, &|| {
        black_box(ledger.processes(&NoWitness));
    });
    println!(
        "processor time: pair of 4 MiB {pair} ns, usage {sum} µs, list of processes {list} µs"
    );
}

/// `count` processes become members as nearly at once as the machine can, hold memory together, and
/// are killed together.
fn crowd(count: usize) {
    let each = 12 * MIB;
    let cap = count as u64 * each;
    let knobs = [
        ("GPULIMIT_SIM_CONTEXT_BYTES", "2097152"),
        ("GPULIMIT_SIM_KILL_LAG_MS", "0"),
    ];
    let world = World::with(cap, &knobs);
    // The first program leaves the size of a context in the ledger.
    let mut first = world.on_gpu();
    let mut nursery = Nursery::open(&world, world::GROUP);
    let began = Instant::now();
    let pids: Vec<i32> = (1..count)
        .map(|_| {
            let pid = nursery.spawn("start\nalloc a 3M\nsleep 100000000\n");
            signal(pid, libc::SIGSTOP);
            pid
        })
        .collect();
    let forked = began.elapsed();
    for pid in &pids {
        signal(*pid, libc::SIGCONT);
    }
    for pid in &pids {
        wait_until("it is at rest", || nursery.log(*pid).lines().count() > 1);
        assert_eq!(nursery.log(*pid), "start = 0 0\nalloc a 3M = 0\n");
    }
    let took = began.elapsed();
    let busy: u64 = pids.iter().map(|pid| on_processor(&pid.to_string())).sum();
    println!(
        "{count} processes: forked in {forked:?}, members with a context and memory \
         after {took:?}, each with {} µs of the processor",
        busy / pids.len() as u64 / 1_000
    );
    let members = world.ledger().processes(&NoWitness);
    assert_eq!(members.iter().filter(|member| member.alive).count(), count);
    let holders = || world.machine().gpu(0).holders;
    assert_eq!(holders().len(), count);
    world.judge(cap);
    show_costs(&world, &mut first);
    first.end_quietly();
    for pid in &pids {
        signal(*pid, libc::SIGKILL);
    }
    let mut dead = 0;
    wait_until("all are dead", || {
        let ended = nursery.reap();
        for one in &ended {
            assert_eq!(one.code, -libc::SIGKILL, "{:?}", one.files);
        }
        dead += ended.len();
        dead == pids.len()
    });
    wait_until("the driver has let go", || holders().is_empty());
    // The first process that needs all the memory gets it.
    let mut last = world.on_gpu();
    let room = cap - world.machine().used() - 8 * MIB;
    last.expect(&[(&format!("alloc all {room}"), "0")]);
    world.judge(cap);
    last.end_quietly();
    world.judge_end(cap);
}

#[test]
fn a_thousand_members_start_and_die_at_once() {
    crowd(setting("CROWD", 1000) as usize);
}
