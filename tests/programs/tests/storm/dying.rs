//! A killed member is held where the kernel shows neither a pending SIGKILL nor an exiting process.

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};

use crate::tracer::{Stop, Tracer};

/// Lets a process run to its end, and holds it there.
fn hold_at_end(process: &Session, tracer: &Tracer) {
    while let Stop::Call(_) = tracer.next_call() {}
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid()));
    assert!(stat.is_ok_and(|stat| stat.contains(") t ")), "it is held");
}

/// Starts the largest member, which is killed for a request of another member and held at its end.
/// Returns both members, and what holds the first.
fn request_beside_held(world: &World) -> (Session, Tracer, Session) {
    world.settings(&["oom=kill-largest"]);
    let (mut largest, mut other) = (world.on_gpu(), world.on_gpu());
    largest.expect(&[("alloc a 400M", "0")]);
    let tracer = Tracer::attach(largest.pid());
    other.tell("alloc b 300M");
    hold_at_end(&largest, &tracer);
    (largest, tracer, other)
}

/// Returns the pids of the processes that `oom` has killed.
fn killed(world: &World) -> Vec<u32> {
    let kills = world.events(EventKind::Kill);
    kills.iter().map(|event| event.what.process.pid).collect()
}

#[test]
fn a_request_waits_for_a_killed_member_that_ends_slowly() {
    let world = World::new(2 * CONTEXT + 500 * MIB);
    let (largest, tracer, mut other) = request_beside_held(&world);
    other.waits();
    tracer.detach();
    assert_eq!(other.answer(), "0");
    assert_eq!(killed(&world), [largest.pid()]);
    assert!(world::eventually(|| largest.has_ended()));
}

#[test]
fn a_member_that_another_request_has_killed_is_awaited() {
    let world = World::new(4 * CONTEXT + 850 * MIB);
    world.settings(&["oom=kill-largest"]);
    let [mut largest, mut small, mut first, mut second] = [(); 4].map(|()| world.on_gpu());
    largest.expect(&[("alloc a 400M", "0")]);
    small.expect(&[("alloc a 350M", "0")]);
    let tracer = Tracer::attach(largest.pid());
    first.tell("alloc b 300M");
    hold_at_end(&largest, &tracer);
    // The memory of the largest one does not suffice for this request.
    second.tell("alloc b 1200M");
    second.waits();
    assert_eq!(killed(&world), [largest.pid()]);
    tracer.detach();
    assert_eq!((first.answer(), second.answer()), ("0".into(), "0".into()));
    assert_eq!(killed(&world), [largest.pid(), small.pid()]);
}

#[test]
fn a_request_is_refused_if_a_killed_member_does_not_end() {
    let world = World::new(2 * CONTEXT + 500 * MIB);
    let (largest, tracer, mut other) = request_beside_held(&world);
    assert_eq!(other.answer(), "2");
    // The next request neither kills it again nor waits for it: a wait looks every millisecond.
    let before = other.sleeps();
    assert_eq!(other.say("alloc b 300M"), "2");
    let sleeps = other.sleeps() - before;
    assert!(sleeps < 200, "the request slept {sleeps} times");
    tracer.detach();
    assert_eq!(killed(&world), [largest.pid()]);
    let (_, errors) = other.end();
    let stuck = format!(
        "pid {} (gpu-script) was killed, but has not ended",
        largest.pid()
    );
    assert_eq!(errors.matches(&stuck).count(), 2, "{errors}");
    assert!(errors.contains("refused cuMemAlloc"), "{errors}");
}
