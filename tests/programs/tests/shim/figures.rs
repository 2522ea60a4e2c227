//! The figures shown while requests are under way leave out requests that wait or are refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gpulimit_ledger::{EventKind, Usage};
use gpulimit_programs::world::{CONTEXT, MIB, World, eventually};

/// Returns what a group uses, and the most that it has used.
fn shown(usage: &Usage) -> (u64, u64) {
    (usage.charged - usage.idle, usage.peak)
}

#[test]
fn figures_leave_out_a_waiting_request() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.settings(&["on_limit=wait"]);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    // The trim makes sure that the request below has no memory to give back before it waits.
    other.expect(&[("default-pool p 0", "0"), ("trim p 0", "0")]);
    holder.expect(&[("alloc a 500M", "0")]);
    let before = shown(&world.usage(0));
    let told = holder.say("info");
    other.tell("async b 200M");
    assert!(eventually(|| !world.events(EventKind::Wait).is_empty()));
    for _ in 0..500 {
        let usage = world.usage(0);
        if usage.undecided == 0 {
            assert_eq!(shown(&usage), before);
        }
        assert_eq!(holder.say("info"), told);
    }
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
    assert_eq!(world.events(EventKind::Granted).len(), 1);
    world.judge(cap);
    drop((holder, other));
    world.judge_end(cap);
}

#[test]
fn figures_leave_out_a_refused_request() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    other.expect(&[("default-pool p 0", "0"), ("trim p 0", "0")]);
    holder.expect(&[("alloc a 500M", "0")]);
    other.expect(&[("async b 200M", "2")]);
    let before = shown(&world.usage(0));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut looks = 0_u64;
            while !over.load(Ordering::Relaxed) {
                let usage = world.usage(0);
                // A process that did not run for a long time in the middle of a request leaves the
                // figures undecided.
                if usage.undecided == 0 {
                    assert_eq!(shown(&usage), before);
                    looks += 1;
                }
            }
            looks
        });
        for _ in 0..300 {
            if looks.is_finished() {
                break;
            }
            other.expect(&[("async b 200M", "2")]);
        }
        over.store(true, Ordering::Relaxed);
        assert!(looks.join().expect("the same at every look") > 0);
    });
    world.judge(cap);
    drop((holder, other));
    world.judge_end(cap);
}

/// A program that frees nothing gives no other sign of life than its end.
#[test]
fn what_a_program_used_before_its_end_is_billed_as_certain() {
    let world = World::new(4096 * MIB);
    for leaves in [false, true] {
        let mut program = world.on_gpu();
        program.expect(&[("alloc a 1000M", "0")]);
        let billed = || {
            let bills = world.ledger().bills();
            bills.iter().map(|bill| bill.byte_seconds).sum::<u128>()
        };
        let before = billed();
        program.expect(&[("sleep 300", "0")]);
        if leaves {
            program.tell("exit 0");
        }
        program.end_quietly();
        world.settle();
        let most = u128::from((CONTEXT + 1000 * MIB) / 4);
        assert!(billed() - before >= most, "{:?}", world.ledger().bills());
    }
}
