//! A killed member is held where the kernel shows neither a pending SIGKILL nor an exiting process.

use std::time::Duration;

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, CONTEXT, MIB, World};

use crate::tracer::{Stop, Tracer};

#[test]
fn a_request_waits_for_a_killed_member_that_ends_slowly() {
    let world = World::new(2 * CONTEXT + 500 * MIB);
    world.settings(&["oom=kill-largest"]);
    let (mut largest, mut other) = (world.on_gpu(), world.on_gpu());
    largest.expect(&[("alloc a 400M", "0")]);
    let tracer = Tracer::attach(largest.pid());
    other.tell("alloc b 300M");
    while let Stop::Call(_) = tracer.next_call() {}
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", largest.pid()));
    assert!(stat.is_ok_and(|stat| stat.contains(") t ")), "it is held");
    // A request that does not wait is refused at once.
    assert!(other.is_silent_for(Duration::from_millis(100)));
    tracer.detach();
    assert_eq!(other.answer(), "0");
    assert_eq!(world.events(EventKind::Kill).len(), 1);
    assert!(world::eventually(|| largest.has_ended()));
}
