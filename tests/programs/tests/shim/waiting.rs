//! While one thread of a program waits for room, the others go on: one of them may be about to make
//! room. A wait leaves `errno` as it was.

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{BLOCK, CONTEXT, MIB, Session, World, eventually};

/// Bytes that another process holds throughout, so that a request has something to wait for.
const HELD: u64 = 100 * MIB;
/// Bytes that the program frees while it waits.
const OWN: u64 = 2200 * MIB;
/// The memory of a launched kernel with 2 KiB of local memory, and of the driver's reserve and
/// small blocks.
const MORE: u64 = 264 * MIB + 16 * BLOCK;
const CAP: u64 = 2 * CONTEXT + HELD + OWN + MORE;

/// Starts a program that holds all memory that is left, and one that holds little.
fn full() -> (World, Session, Session) {
    let world = World::new(CAP);
    world.settings(&["on_limit=wait", "wait_timeout=600s"]);
    let (mut other, mut program) = (world.on_gpu(), world.on_gpu());
    other.expect(&[("alloc held 100M", "0")]);
    program.expect(&[
        ("stream s", "0"),
        ("kernels small 0", "0"),
        ("kernels known 2048", "0"),
        ("kernels large 8192", "0"),
        ("launch small s", "0"),
        ("launch known s", "0"),
        ("capture s", "0"),
        ("launch small s", "0"),
        ("end-capture s g", "0"),
        ("capture s", "0"),
        ("launch large s", "0"),
        ("end-capture s g2", "0"),
        ("instantiate e g", "0"),
        ("alloc own 2200M", "0"),
    ]);
    (world, other, program)
}

#[test]
fn other_threads_go_on_while_one_thread_waits() {
    for (waits, goes_on) in [
        ("context c 0 v2", "retain 0"),
        ("set-limit 0 8192", "set-limit 0 2048"),
        ("set-limit 0 8192", "launch known s"),
        ("launch large s", "launch known s"),
        ("launch large s", "set-limit 0 2048"),
        ("update e g2", "launch known s"),
        ("set-kernel e g 0 large", "launch known s"),
    ] {
        let (world, other, mut program) = full();
        program.expect(&[(&format!("aside {{\n{waits}\n}}"), "0")]);
        let is_waiting = || !world.events(EventKind::Wait).is_empty();
        assert!(eventually(is_waiting), "{waits}");
        program.expect(&[(goes_on, "0"), (goes_on, "0")]);
        program.expect(&[("free own", "0"), ("await", "0:1")]);
        world.judge(CAP);
        assert_eq!(world.events(EventKind::Refusal).len(), 0, "{waits}");
        program.end_quietly();
        other.end_quietly();
        world.judge_end(CAP);
    }
}

/// While a launch on two devices waits for room on the second one, it must not block the first one.
#[test]
fn other_threads_go_on_while_a_launch_on_two_devices_waits() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_GPUS", "2")]);
    world.settings(&["on_limit=wait", "wait_timeout=600s"]);
    let (mut other, mut program) = (world.start(), world.on_gpu());
    other.expect(&[
        ("init", "0"),
        ("retain 1", "0"),
        ("current 1", "0"),
        ("alloc held 100M", "0"),
    ]);
    program.expect(&[
        ("kernels known 2048", "0"),
        ("kernels zero 4096", "0"),
        ("stream zero", "0"),
        ("launch known zero", "0"),
        ("retain 1", "0"),
        ("current 1", "0"),
        ("kernels one 8192", "0"),
        ("stream one", "0"),
        ("alloc own 2200M", "0"),
        ("aside {\nlaunch-many one one zero zero\n}", "0"),
    ]);
    assert!(eventually(|| !world.events(EventKind::Wait).is_empty()));
    program.expect(&[
        ("current 0", "0"),
        ("launch known zero", "0"),
        ("set-limit 0 2048", "0"),
        ("free own", "0"),
        ("await", "0:1"),
    ]);
    world.judge(CAP);
    assert_eq!(world.events(EventKind::Refusal).len(), 0);
    program.end_quietly();
    other.end_quietly();
    world.judge_end(CAP);
}

/// Two threads need the same memory: when one has got it, the other needs no more.
#[test]
fn a_waiting_thread_uses_what_another_thread_got() {
    for waits in ["launch large s", "set-limit 0 8192", "update e g2"] {
        let (world, other, mut program) = full();
        for _ in 0..2 {
            program.expect(&[(&format!("aside {{\n{waits}\n}}"), "0")]);
        }
        assert!(eventually(|| world.events(EventKind::Wait).len() == 2));
        // There is room for one of the two requests.
        program.expect(&[("free own", "0"), ("await", "0:1, 0:1")]);
        world.judge(CAP);
        program.end_quietly();
        other.end_quietly();
        world.judge_end(CAP);
    }
}

/// A wait for room, and a wait for a registered member, which is asked for memory.
#[test]
fn a_call_that_has_waited_leaves_errno_as_it_was() {
    for asks in [false, true] {
        let world = World::new(2 * CONTEXT + 600 * MIB);
        world.settings(match asks {
            true => &["pressure_timeout=1000h"],
            false => &["on_limit=wait", "wait_timeout=600s"],
        });
        let (mut other, mut program) = (world.on_gpu(), world.on_gpu());
        other.expect(&[("alloc held 500M", "0")]);
        if asks {
            other.expect(&[("register", "0")]);
            other.tell("asked -1");
        }
        program.say("errno");
        program.tell("alloc a 300M");
        if asks {
            assert!(other.answer().starts_with("0 "));
        }
        program.waits_on();
        other.expect(&[("free held", "0")]);
        assert_eq!(program.answer(), "0");
        program.expect(&[("errno", "0")]);
        assert_eq!(world.usage(0).waits, 1);
    }
}
