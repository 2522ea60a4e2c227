//! Somebody changes the ledger under running programs: who may be charged in it can.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpulimit_programs::world::{CONTEXT, MIB, World};

const CAP: u64 = 4096 * MIB;
const PIECE: u64 = 100 * MIB;
/// Where the words of the ledger begin, and how many bytes they have.
const WORDS: (u64, usize) = (16 << 10, 1 << 20);

fn ledger(world: &World) -> File {
    let path = world.group().ledger_path();
    let open = OpenOptions::new().write(true).open(path);
    open.expect("the ledger")
}

fn zero(ledger: &File) {
    let zeros = vec![0; WORDS.1];
    ledger.write_all_at(&zeros, WORDS.0).expect("written");
}

#[test]
fn what_a_program_has_charged_it_does_not_forget() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 3000M", "0")]);
    zero(&ledger(&world));
    program.expect(&[("alloc b 1000M", "2"), ("alloc b 100M", "2")]);
    world.judge(CAP);
    std::thread::sleep(Duration::from_millis(1_100));
    program.expect(&[("alloc b 100M", "0"), ("free a", "0"), ("free b", "0")]);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn zeroing_the_ledger_all_the_time_gains_a_charge_each_at_most() {
    let world = World::new(CAP);
    let (mut one, mut two) = (world.on_gpu(), world.on_gpu());
    let ledger = ledger(&world);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                zero(&ledger);
            }
        });
        for _ in 0..60 {
            for program in [&mut one, &mut two] {
                let answer = program.say("alloc x 100M");
                assert!(answer == "0" || answer == "2", "{answer}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let peak = world.machine().gpus()[0].peak;
    assert!(peak <= CAP + 2 * PIECE, "peak {peak}");
    assert!(peak >= 2 * CONTEXT, "they were there");
    zero(&ledger);
    drop((one, two));
    world.settle();
}
