//! Very many members at once.

use std::time::{Duration, Instant};

use gpulimit::ledger::NoWitness;
use gpulimit_programs::world::{self, MIB, World};

use crate::crowd::{Nursery, signal};
use crate::tempest::setting;

/// Slow machines take minutes for thousands of processes.
const PATIENCE: Duration = Duration::from_secs(600);

fn wait(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `count` processes become members as nearly at once as the machine can, hold memory together, and are killed together.
fn crowd(count: usize) {
    let each = 12 * MIB;
    let cap = count as u64 * each;
    let knobs = [
        ("GPULIMIT_SIM_CONTEXT_BYTES", "2097152"),
        ("GPULIMIT_SIM_KILL_LAG_MS", "0"),
    ];
    let world = World::with(cap, &knobs);
    // Leaves the size of a context behind.
    world.on_gpu().end_quietly();
    let mut nursery = Nursery::open(&world, world::GROUP);
    let began = Instant::now();
    let pids: Vec<i32> = (0..count)
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
    let holders = || world.machine().gpu(0).holders;
    wait("all have memory", || {
        let holders = holders();
        let full = holders.iter().filter(|holder| holder.bytes >= 6 * MIB);
        full.count() == count
    });
    println!(
        "{count} processes: forked in {forked:?}, members with a context and memory after {:?}",
        began.elapsed()
    );
    let members = world.ledger().processes(&NoWitness);
    assert_eq!(members.iter().filter(|member| member.alive).count(), count);
    world.judge(cap);
    for pid in &pids {
        signal(*pid, libc::SIGKILL);
    }
    let mut dead = 0;
    wait("all are dead", || {
        let ended = nursery.reap();
        for one in &ended {
            assert_eq!(one.code, -libc::SIGKILL, "{:?}", one.files);
        }
        dead += ended.len();
        dead == count
    });
    wait("the driver has let go", || holders().is_empty());
    // The first one who needs it all has it all.
    let mut last = world.on_gpu();
    let room = cap - world.machine().used() - 8 * MIB;
    last.expect(&[(&format!("alloc all {room}"), "0")]);
    world.judge(cap);
    last.end_quietly();
    world.judge_end(cap);
}

#[test]
fn a_thousand_at_once() {
    crowd(setting("CROWD", 1000) as usize);
}
