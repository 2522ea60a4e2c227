//! A member is stopped in the middle of its work by its control group's freezer or by a debugger:
//! no other process waits for it, and it goes on afterwards as usual.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpulimit_programs::world::{self, Freezer, MIB, Session, World};

use crate::frozen::{KNOBS, Others};
use crate::tempest::setting;
use gpulimit_support::{have, random};

const CAP: u64 = 2048 * MIB;
/// The commands that the member repeats.
const WORK: &str = "alloc a 10M\ncreate b 4M 0\nasync c 1M\nfree-async c\nrelease b\nfree a";

/// Starts gdb, which has stopped the process once it prints so.
fn debugger(pid: u32) -> Child {
    let mut command = Command::new("gdb");
    command
        .args(["-nx", "-q", "-p", &pid.to_string()])
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("it starts")
}

fn is_traced(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let stopped = status.lines().any(|line| line.starts_with("State:\tt"));
    stopped && !status.contains("TracerPid:\t0\n")
}

/// Stops the member repeatedly, wherever it is.
fn stop_repeatedly(
    rounds: u64,
    join: impl Fn(&Session),
    stop: impl Fn(&Session, &mut dyn FnMut()),
) {
    let mut numbers = random();
    let world = World::with(CAP, KNOBS);
    let mut others = Others::new(&world);
    let mut member = world.on_gpu();
    join(&member);
    let end = world.file("end");
    member.tell(&format!("until {} {{\n{WORK}\n}}", end.display()));
    for round in 0..rounds {
        // The member is stopped wherever it is then.
        std::thread::sleep(Duration::from_micros(numbers.u64(..20_000)));
        stop(&member, &mut || {
            let place = format!("round {round}");
            others.member(&place);
            others.newcomer(&place);
            if round % 4 == 0 {
                others.controller(&place);
            }
            assert!(world.machine().peak() <= CAP);
        });
    }
    fs::write(end, "").expect("written");
    let answer = member.answer();
    assert!(
        !answer.contains(' ') && answer.starts_with("0:"),
        "{answer}"
    );
    println!("{rounds} rounds, at most {:?}", others.longest());
    drop(others);
    world.bury();
    world.judge(CAP);
    member.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_frozen_member_blocks_no_other() {
    let Some(freezer) = Freezer::new() else {
        return;
    };
    let join = |member: &Session| freezer.hold(member);
    stop_repeatedly(20 * setting("SECONDS", 1).min(100), join, |_, others| {
        freezer.set(true);
        others();
        freezer.set(false);
    });
}

#[test]
fn a_member_under_a_debugger_blocks_no_other() {
    if !have("gdb") {
        return;
    }
    stop_repeatedly(
        3 * setting("SECONDS", 1).min(100),
        |_| (),
        |member, others| {
            let mut gdb = debugger(member.pid());
            assert!(world::eventually(|| is_traced(member.pid())), "attached");
            others();
            // At the end of its input gdb detaches.
            drop(gdb.stdin.take());
            assert!(gdb.wait().is_ok());
        },
    );
}
