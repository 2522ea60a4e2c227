//! Pressure: members that registered for it are asked for memory that they use, before a request
//! waits or is refused.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use gpulimit_group::{Access, Members};
use gpulimit_ledger::{Category, EventKind};
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::{self, CONTEXT, GROUP, MIB, Session, World, eventually};
use gpulimit_support::{is_root, wait_until};

/// The limit: room for this many contexts and 600 MiB.
fn cap(contexts: u64) -> u64 {
    contexts * CONTEXT + 600 * MIB
}

/// Starts a registered program in the group `below` the world's ("" for that one) that holds `a`,
/// and waits in a thread until it is asked.
fn holder(world: &World, below: &str, mib: u64) -> Session {
    let mut holder = match below {
        "" => world.on_gpu(),
        below => world.on_gpu_in(below),
    };
    holder.expect(&[(&*format!("alloc a {mib}M"), "0"), ("register", "0")]);
    holder
}

fn waits_to_be_asked(holder: &mut Session) {
    holder.tell("asked -1");
}

/// A process is asked again 200 ms after the last time at the earliest. Only time ends this wait.
fn waits_until_it_may_be_asked() {
    std::thread::sleep(Duration::from_millis(250));
}

/// What a holder is told, for a request of a process in the world's group.
fn told(world: &World, mib: u64, reason: u32, group: &str) -> String {
    let uuid = &world.machine().gpu(0).uuid;
    format!("0 {mib}M {reason} 0 {uuid} {group}")
}

fn kinds(world: &World) -> Vec<EventKind> {
    let events = world.ledger().events(0);
    events.iter().map(|event| event.what.kind).collect()
}

#[test]
fn a_request_is_granted_after_the_holder_has_given_memory_back() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let mut holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    waits_to_be_asked(&mut holder);
    other.tell("alloc b 300M");
    assert_eq!(holder.answer(), told(&world, 204, 1, GROUP));
    world.judge(cap(2));
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
    assert_eq!(kinds(&world), [EventKind::Asked, EventKind::Given]);
    let events = world.ledger().events(0);
    assert_eq!(
        (events[0].what.process.pid, events[0].count),
        (other.pid(), 1)
    );
    assert_eq!(events[0].what.bytes.div_ceil(MIB), 204, "what was asked");
    assert_eq!(events[1].what.bytes, 500 * MIB, "what came");
    assert_eq!(world.usage(0).refusals, 0);
    assert_eq!(world.usage(0).waits, 1);
    world.judge(cap(2));
    for program in [holder, other] {
        program.end_quietly();
    }
    world.judge_end(cap(2));
}

#[test]
fn nobody_is_asked_who_did_not_register_or_holds_too_little() {
    let world = World::new(cap(3));
    world.settings(&["pressure_timeout=1000h"]);
    let (mut unregistered, mut other) = (world.on_gpu(), world.on_gpu());
    unregistered.expect(&[("alloc a 500M", "0")]);
    // A context of 518 MiB is nothing that a program gives back.
    let mut small = holder(&world, "", 20);
    other.expect(&[("alloc b 300M", "2")]);
    small.expect(&[("asked 0", "5"), ("alloc c 40M", "0")]);
    small.expect(&[("register", "0"), ("unregister", "0"), ("asked 0", "5")]);
    other.expect(&[("alloc b 300M", "2")]);
    small.expect(&[("unregister", "0"), ("asked 0", "7"), ("unregister", "7")]);
    other.expect(&[("alloc b 60M", "2")]);
    assert!(!kinds(&world).contains(&EventKind::Asked));
    small.end_quietly();
    unregistered.end_quietly();
    other.end();
    world.judge_end(cap(3));
}

#[test]
fn a_holder_that_never_answers_delays_the_refusal_by_the_timeout() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=700ms"]);
    let mut holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    let began = Instant::now();
    other.expect(&[("alloc b 300M", "2")]);
    assert!(began.elapsed() >= Duration::from_millis(700));
    assert_eq!(
        kinds(&world),
        [EventKind::Asked, EventKind::Given, EventKind::Refusal]
    );
    assert_eq!(world.ledger().events(0)[1].what.bytes, 0, "nothing came");
    // The library drops the demand, because the request was refused. The demand is a little younger
    // than the request, so this waits until it is out of date, too.
    waits_until_it_may_be_asked();
    holder.expect(&[("asked 0", "5")]);
    // A demand that was not answered is gone with the registration, and not with a second one.
    let signal_ends_it = |other: &mut Session| {
        waits_until_it_may_be_asked();
        let asked = world.events(EventKind::Asked).len();
        other.tell("alloc b 300M");
        assert!(eventually(|| world.events(EventKind::Asked).len() > asked));
        other.signal(10);
        assert_eq!(other.answer(), "2");
    };
    world.settings(&["pressure_timeout=1000h"]);
    other.expect(&[("catch 10", "0")]);
    signal_ends_it(&mut other);
    holder.expect(&[("register", "0"), ("unregister", "0")]);
    assert_eq!(holder.say("asked 0"), told(&world, 204, 1, GROUP));
    holder.expect(&[("asked 0", "5")]);
    signal_ends_it(&mut other);
    holder.expect(&[("unregister", "0"), ("register", "0"), ("asked 0", "5")]);
    world.settings(&["pressure_timeout=0"]);
    let asked = world.events(EventKind::Asked).len();
    other.expect(&[("alloc b 300M", "2"), ("asked 0", "7")]);
    assert_eq!(world.events(EventKind::Asked).len(), asked);
    // A stopped holder is like a busy one.
    world.settings(&["pressure_timeout=300ms"]);
    holder.signal(libc::SIGSTOP);
    other.expect(&[("alloc b 300M", "2")]);
    holder.signal(libc::SIGCONT);
    holder.end_quietly();
    other.end();
    world.judge_end(cap(2));
}

/// A demand outlives a program that was killed, but not for long.
#[test]
fn nobody_gives_for_a_request_that_is_gone() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1500ms"]);
    let mut holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    holder.signal(libc::SIGSTOP);
    other.tell("alloc b 300M");
    assert!(eventually(|| world.events(EventKind::Asked).len() == 1));
    other.kill();
    std::thread::sleep(Duration::from_millis(1600));
    holder.signal(libc::SIGCONT);
    holder.expect(&[("asked 0", "5"), ("aside {\nasked -1\nfree a\n}", "0")]);
    // It was no answer of one that has nothing, nor does the silence last.
    let mut other = world.on_gpu();
    other.expect(&[("alloc b 300M", "0")]);
    holder.end_quietly();
    other.end();
    world.judge_end(cap(2));
}

/// A holder answers by its next call: then it has given what it can.
#[test]
fn a_holder_that_answers_with_too_little_delays_the_refusal_no_further() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let mut holder = holder(&world, "", 100);
    let mut other = world.on_gpu();
    holder.expect(&[("alloc c 400M", "0")]);
    waits_to_be_asked(&mut holder);
    other.tell("alloc b 300M");
    assert_eq!(holder.answer(), told(&world, 204, 1, GROUP));
    // One that gives a part has no more.
    holder.expect(&[("free a", "0")]);
    waits_to_be_asked(&mut holder);
    assert_eq!(other.answer(), "2");
    let events = world.events(EventKind::Given);
    assert_eq!(events[0].what.bytes, 100 * MIB, "what came");
    // The answer holds for a moment: until then nobody is asked again.
    other.expect(&[("alloc b 300M", "2")]);
    waits_until_it_may_be_asked();
    other.tell("alloc b 300M");
    assert_eq!(holder.answer(), told(&world, 104, 1, GROUP));
    holder.expect(&[("free c", "0")]);
    assert_eq!(other.answer(), "0");
    holder.end_quietly();
    other.end();
    world.judge_end(cap(2));
}

/// The holder may be faster than the process that has woken it.
#[test]
fn what_comes_at_once_is_recorded() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let mut holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    for round in 1..=10 {
        holder.expect(&[("aside {\nasked -1\nfree a\n}", "0")]);
        other.expect(&[("alloc b 300M", "0"), ("free b", "0")]);
        holder.expect(&[("await", "0:2"), ("alloc a 500M", "0")]);
        let given = world.events(EventKind::Given);
        let bytes: Vec<u64> = given.iter().map(|it| it.what.bytes / MIB).collect();
        assert_eq!(bytes, vec![500; round]);
        let asked = world.events(EventKind::Asked);
        let charged = asked.last().map(|it| it.what.charged);
        assert!(
            charged >= Some(2 * CONTEXT + 500 * MIB),
            "before it was given"
        );
        waits_until_it_may_be_asked();
    }
    holder.end_quietly();
    other.end();
    world.judge_end(cap(2));
}

/// A holder that takes longer than the time between two demands would give twice.
#[test]
fn a_holder_is_not_asked_again_before_it_has_answered() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let mut holder = holder(&world, "", 250);
    let mut other = world.on_gpu();
    holder.expect(&[("alloc c 250M", "0")]);
    waits_to_be_asked(&mut holder);
    other.tell("alloc b 300M");
    assert_eq!(holder.answer(), told(&world, 204, 1, GROUP));
    // The request looks again and again meanwhile.
    waits_until_it_may_be_asked();
    waits_until_it_may_be_asked();
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
    holder.expect(&[("asked 0", "5")]);
    holder.end_quietly();
    other.end();
    world.judge_end(cap(2));
}

/// A thread that was told of a limit does not answer for one that was asked for memory.
#[test]
fn a_thread_answers_only_the_request_that_it_was_told() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let mut holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    let done = world.file("done");
    let aside = format!("aside {{\nasked -1\nfree c\nwait {}\n}}", done.display());
    holder.expect(&[("alloc c 4M", "0"), (&*aside, "0")]);
    other.tell("alloc b 300M");
    // The thread frees `c` once it was told.
    let has_freed = || world.usage(0).by[Category::Linear as usize] == 500 * MIB;
    assert!(eventually(has_freed));
    world.set(2 * CONTEXT + 450 * MIB);
    assert_eq!(holder.say("asked 60000"), told(&world, 50, 3, GROUP));
    holder.expect(&[("asked 0", "5")]);
    other.waits_on();
    std::fs::write(done, "").expect("written");
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
}

/// A framework holds the lock of its allocator while a request waits.
#[test]
fn members_whose_own_requests_wait_are_not_asked() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let (mut one, mut two) = (holder(&world, "", 300), holder(&world, "", 290));
    one.tell("alloc b 250M");
    assert!(eventually(|| world.events(EventKind::Asked).len() == 1));
    two.expect(&[("alloc b 250M", "2")]);
    assert_eq!(world.events(EventKind::Asked).len(), 1);
    assert!(two.say("asked -1").starts_with("0 "));
    two.expect(&[("asked 0", "5")]);
    assert_eq!(one.answer(), "2");
    one.end();
    two.end();
    world.judge_end(cap(2));
}

#[test]
fn a_request_ends_when_the_holder_dies_or_unregisters() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let mut first = holder(&world, "", 500);
    let mut other = world.on_gpu();
    let asked = |count| assert!(eventually(|| world.events(EventKind::Asked).len() == count));
    other.tell("alloc b 300M");
    asked(1);
    first.expect(&[("unregister", "0")]);
    assert_eq!(other.answer(), "2");
    first.expect(&[("register", "0")]);
    other.tell("alloc b 300M");
    asked(2);
    first.kill();
    assert_eq!(other.answer(), "0", "the memory of the dead");
    other.end();
    world.judge_end(cap(2));
}

/// The driver frees the memory of a killed process later.
#[test]
fn holders_are_not_asked_for_what_the_dead_leave() {
    let world = World::with(cap(3), &[("GPULIMIT_SIM_KILL_LAG_MS", "500")]);
    world.settings(&["pressure_timeout=1000h"]);
    let mut holder = holder(&world, "", 250);
    let (mut dead, mut other) = (world.on_gpu(), world.on_gpu());
    dead.expect(&[("alloc c 300M", "0")]);
    waits_to_be_asked(&mut holder);
    dead.kill();
    other.tell(&format!("alloc b {}M", CONTEXT / MIB + 450));
    // Without the reserve that the other process has for the driver.
    assert_eq!(holder.answer(), told(&world, 104, 1, GROUP));
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
    holder.end_quietly();
    other.end();
    world.judge_end(cap(3));
}

#[test]
fn the_largest_holders_in_two_groups_are_asked_for_what_is_missing() {
    let world = World::new(cap(5));
    world.settings(&["pressure_timeout=1000h"]);
    world.below("one", &["max=3000M"]);
    world.below("two", &["low=1100M"]);
    // The members of two hold 1,286 MiB, of which 186 MiB and some reserve are not protected.
    let mut holders = [
        holder(&world, "one", 40),
        holder(&world, "one", 150),
        holder(&world, "two", 50),
        holder(&world, "two", 200),
    ];
    let mut other = world.on_gpu();
    holders.iter_mut().for_each(waits_to_be_asked);
    other.tell("alloc b 450M");
    let parts = [3, 1].map(|at: usize| {
        let told = holders[at].answer();
        assert!(told.starts_with("0 ") && told.ends_with(GROUP), "{told}");
        let mib = told[2..].split('M').next().expect("a number");
        mib.parse::<u64>().expect("a number")
    });
    assert!(
        (186..=194).contains(&parts[0]),
        "above the protection: {parts:?}"
    );
    assert!(
        (300..=330).contains(&(parts[0] + parts[1])),
        "what is missing: {parts:?}"
    );
    for at in [1, 3] {
        holders[at].expect(&[("free a", "0")]);
    }
    assert_eq!(other.answer(), "0");
    for at in [0, 2] {
        holders[at].waits();
    }
}

#[test]
fn a_full_group_asks_only_its_own_members() {
    let world = World::new(8192 * MIB);
    world.below("full", &["max=1600M", "pressure_timeout=1000h"]);
    let mut outside = holder(&world, "", 500);
    let mut inside = holder(&world, "full", 400);
    let mut other = world.on_gpu_in("full");
    waits_to_be_asked(&mut inside);
    other.tell("alloc b 400M");
    let said = inside.answer();
    assert!(said.ends_with(" world/full"), "{said}");
    outside.expect(&[("asked 0", "5")]);
    inside.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
}

#[test]
fn a_waiting_request_asks_first_and_keeps_its_place() {
    let world = World::new(cap(3));
    world.settings(&["on_limit=wait", "pressure_timeout=300ms"]);
    let mut holder = holder(&world, "", 500);
    let (mut first, mut second) = (world.on_gpu(), world.on_gpu());
    let waiting = |count| assert!(eventually(|| world.events(EventKind::Wait).len() == count));
    first.tell("alloc b 300M");
    waiting(1);
    second.tell("alloc c 200M");
    waiting(2);
    first.waits_on();
    holder.expect(&[("free a", "0")]);
    assert_eq!((first.answer(), second.answer()), ("0".into(), "0".into()));
    let granted: Vec<u32> = world
        .events(EventKind::Granted)
        .iter()
        .map(|it| it.what.process.pid)
        .collect();
    assert_eq!(granted, [first.pid(), second.pid()]);
}

/// A member may register, or have something to give, after the request has begun to wait.
#[test]
fn a_waiting_request_asks_again() {
    let world = World::new(cap(3));
    world.settings(&["on_limit=wait", "pressure_timeout=1000h"]);
    let mut holder = world.on_gpu();
    holder.expect(&[("alloc a 250M", "0"), ("alloc c 250M", "0")]);
    let (mut first, mut second) = (world.on_gpu(), world.on_gpu());
    first.tell("alloc b 200M");
    assert!(eventually(|| world.events(EventKind::Wait).len() == 1));
    second.tell("alloc b 200M");
    assert!(eventually(|| world.events(EventKind::Wait).len() == 2));
    holder.expect(&[("register", "0")]);
    assert!(holder.say("asked 60000").starts_with("0 "));
    // It has nothing to give at first.
    assert!(holder.say("asked 60000").starts_with("0 "));
    // The event follows the demand.
    assert!(eventually(|| world.events(EventKind::Asked).len() == 2));
    holder.expect(&[("free a", "0")]);
    assert_eq!(first.answer(), "0");
    assert!(holder.say("asked 60000").starts_with("0 "));
    holder.expect(&[("free c", "0")]);
    assert_eq!(second.answer(), "0");
    for program in [holder, first, second] {
        program.end_quietly();
    }
    world.judge_end(cap(3));
}

#[test]
fn a_signal_ends_the_request() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let _holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    other.expect(&[("catch 10", "0")]);
    other.tell("alloc b 300M");
    assert!(eventually(|| world.events(EventKind::Asked).len() == 1));
    other.signal(10);
    assert_eq!(other.answer(), "2");
}

#[test]
fn a_group_above_high_and_a_lowered_limit_are_told() {
    let world = World::new(cap(2));
    world.settings(&[&*format!("high={}M", (2 * CONTEXT) / MIB + 300)]);
    let mut holder = holder(&world, "", 200);
    holder.expect(&[("asked 1500", "5")]);
    let mut other = world.on_gpu();
    waits_to_be_asked(&mut holder);
    other.expect(&[("alloc b 200M", "0")]);
    let said = holder.answer();
    assert!(said.contains("M 2 0 ") && said.ends_with(GROUP), "{said}");
    // The state lasts, and is noticed without anybody's help.
    let said = holder.say("asked 60000");
    assert_eq!(said, told(&world, 100, 2, GROUP));
    world.set((2 * CONTEXT) + 50 * MIB);
    let said = (0..5)
        .map(|_| holder.say("asked 60000"))
        .find(|said| said.contains("M 3 "));
    assert_eq!(
        said,
        Some(told(&world, 200, 3, GROUP)),
        "no more than it holds"
    );
    other.expect(&[("free b", "0")]);
    holder.expect(&[("free a", "0"), ("asked 1500", "5")]);
}

/// The memory of a program that has ended is above nothing: nobody gives for it.
#[test]
fn ended_programs_take_no_memory_for_high() {
    let world = World::new(4096 * MIB);
    world.settings(&[&*format!("high={}M", 2 * CONTEXT / MIB + 300)]);
    let mut ended = world.on_gpu();
    ended.expect(&[("alloc a 1000M", "0")]);
    ended.kill();
    let is_free = || world.machine().used() == 0;
    assert!(eventually(is_free), "the driver has freed it");
    let mut living = holder(&world, "", 200);
    assert_eq!(living.say("asked 3000"), "5", "nobody asks");
    world.judge(4096 * MIB);
    living.end_quietly();
    world.judge_end(4096 * MIB);
}

#[test]
fn a_request_that_is_refused_takes_no_memory_for_high() {
    let world = World::new(cap(2));
    world.settings(&[&*format!("high={}M", (2 * CONTEXT) / MIB + 300)]);
    let mut holder = holder(&world, "", 200);
    let mut other = world.on_gpu();
    other.expect(&[("alloc b 700M", "2"), ("register", "0")]);
    assert_eq!(kinds(&world), [EventKind::High, EventKind::Refusal]);
    holder.expect(&[("asked 0", "5")]);
    holder.expect(&[("unregister", "0")]);
    // An excess is told once a second. Only time ends this wait.
    std::thread::sleep(Duration::from_millis(1100));
    // Nor is a program asked by its own request.
    other.expect(&[("alloc b 300M", "0")]);
    assert_eq!(world.events(EventKind::High).len(), 2);
    assert_eq!(world.events(EventKind::Asked).len(), 0);
    assert!(other.say("asked 60000").contains("M 2 0 "), "its own look");
    holder.end_quietly();
    other.end();
    world.judge_end(cap(2));
}

#[test]
fn a_lasting_excess_is_told_once_a_second() {
    let world = World::new(cap(2));
    let mut holder = holder(&world, "", 500);
    world.settings(&["high=100M"]);
    let began = Instant::now();
    for _ in 0..4 {
        assert!(holder.say("asked 60000").contains("M 2 0 "));
    }
    // The clock of the library has ticks of some milliseconds.
    assert!(began.elapsed() >= Duration::from_millis(2900));
    // A program that gives nothing has one event.
    let asked = world.events(EventKind::Asked);
    assert_eq!((asked.len(), asked[0].count), (1, 1));
    assert_eq!(asked[0].what.bytes, 500 * MIB);
    holder.end_quietly();
}

/// Returns what a holder says it is asked for, in MiB; 0 if it is not asked.
fn mib(said: &str) -> u64 {
    let bytes = said.split(' ').nth(1).unwrap_or("0");
    bytes.trim_end_matches('M').parse().expect("a number")
}

#[test]
fn members_share_an_excess_the_largest_first() {
    let world = World::new(cap(4));
    let mut holders = [160, 150, 140, 130].map(|mib| holder(&world, "", mib));
    world.set(4 * CONTEXT + 380 * MIB);
    let asked = holders.each_mut().map(|holder| mib(&holder.say("asked 0")));
    assert_eq!(asked.iter().sum::<u64>(), 200, "{asked:?}");
    assert_eq!(asked[..2], [160, 40], "{asked:?}");
    // One that does not give leaves its part to the others.
    holders[0].expect(&[("asked 0", "5")]);
    assert!(eventually(|| mib(&holders[1].say("asked 1000")) == 150));
    let [first, others @ ..] = holders;
    for holder in others {
        holder.end_quietly();
    }
    first.end_quietly();
}

/// A member that does not look is asked by one that does, and is left out when it does not answer.
#[test]
fn a_silent_holder_leaves_its_part_of_an_excess_to_the_others() {
    for setting in ["max", "high"] {
        let world = World::new(cap(2));
        world.settings(&["pressure_timeout=500ms"]);
        let (mut large, mut small) = (holder(&world, "", 350), holder(&world, "", 200));
        large.expect(&[("asked 0", "5")]);
        large.signal(libc::SIGSTOP);
        world.settings(&[&format!("{setting}={}M", 2 * CONTEXT / MIB + 400)]);
        let said = small.say("asked 60000");
        assert_eq!(mib(&said), 150, "{said}");
        let asked = world.events(EventKind::Asked);
        let bytes: Vec<u64> = asked.iter().map(|it| it.what.bytes / MIB).collect();
        assert_eq!(
            (bytes, asked[0].count),
            (vec![150, 150], 1),
            "one after the other"
        );
        assert!(asked[0].what.charged >= 2 * CONTEXT + 550 * MIB);
        small.expect(&[("free a", "0")]);
        large.signal(libc::SIGCONT);
        large.expect(&[("asked 0", "5")]);
        large.end_quietly();
        small.end_quietly();
    }
}

/// The holder that was asked falls below another one while it frees.
#[test]
fn what_a_holder_still_frees_is_not_asked_of_another_one() {
    let world = World::new(cap(3));
    world.settings(&["pressure_timeout=1000h"]);
    let (mut one, mut two) = (holder(&world, "", 200), holder(&world, "", 290));
    let mut other = world.on_gpu();
    one.expect(&[("alloc b 100M", "0")]);
    waits_to_be_asked(&mut one);
    other.tell("alloc c 150M");
    let asked = mib(&one.answer());
    assert!((101..200).contains(&asked), "{asked}");
    one.expect(&[("free b", "0")]);
    two.expect(&[("asked 700", "5")]);
    one.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
    for program in [one, two, other] {
        program.end_quietly();
    }
}

#[test]
fn a_holder_that_hangs_delays_one_request_only() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=400ms"]);
    let mut holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    holder.signal(libc::SIGSTOP);
    other.expect(&[("alloc b 300M", "2")]);
    assert_eq!(world.events(EventKind::Asked).len(), 1);
    waits_until_it_may_be_asked();
    other.expect(&[("alloc b 300M", "2"), ("alloc b 300M", "2")]);
    assert_eq!(world.events(EventKind::Asked).len(), 1, "not asked again");
    assert_eq!(world.usage(0).waits, 1);
    // It is asked again when it has answered.
    holder.signal(libc::SIGCONT);
    holder.expect(&[("asked 0", "5")]);
    holder.expect(&[("aside {\nasked -1\nfree a\n}", "0")]);
    world.settings(&["pressure_timeout=1000h"]);
    other.expect(&[("alloc b 300M", "0")]);
    holder.end_quietly();
    other.end();
}

#[test]
fn a_request_asks_the_next_holder_if_the_largest_hangs() {
    let world = World::new(cap(3));
    // The request gives up the largest after half of this time.
    world.settings(&["pressure_timeout=10s"]);
    let (large, mut small) = (holder(&world, "", 300), holder(&world, "", 280));
    let mut other = world.on_gpu();
    large.signal(libc::SIGSTOP);
    small.expect(&[("aside {\nasked -1\nfree a\n}", "0")]);
    other.expect(&[("alloc b 250M", "0")]);
    let asked: Vec<u64> = world
        .events(EventKind::Asked)
        .iter()
        .map(|it| it.count)
        .collect();
    assert_eq!(asked, [1, 1], "one after the other");
    large.signal(libc::SIGCONT);
    for program in [large, small, other] {
        program.end_quietly();
    }
    world.judge_end(cap(3));
}

#[test]
fn a_thread_that_ends_without_an_answer_does_not_silence_the_others() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=300ms"]);
    let mut holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    holder.expect(&[("aside {\nasked -1\n}", "0")]);
    other.expect(&[("alloc b 300M", "2")]);
    holder.expect(&[("await", "0:1"), ("aside {\nasked -1\nfree a\n}", "0")]);
    assert!(eventually(|| other.say("alloc b 300M") == "0"));
    holder.end_quietly();
    other.end();
}

/// Nobody waits for what members give for `high`, so it is in no event.
#[test]
fn history_says_what_came_only_if_a_request_waited_for_it() {
    let world = World::new(cap(2));
    let said = || {
        let mut command = world.bare(&world::controller());
        command.args(["history", GROUP]);
        world::text(&world::finish(command).stdout)
    };
    world.settings(&[&format!("high={}M", 2 * CONTEXT / MIB + 300)]);
    let mut holder = holder(&world, "", 250);
    let mut other = world.on_gpu();
    other.expect(&[("alloc b 200M", "0")]);
    assert!(said().contains("members asked for"), "{}", said());
    assert!(!said().contains("gave"), "{}", said());
    world.settings(&["high=max"]);
    waits_until_it_may_be_asked();
    // The library drops a demand once usage is below `high` again.
    holder.expect(&[("asked 0", "5"), ("aside {\nasked -1\nfree a\n}", "0")]);
    other.expect(&[("alloc c 300M", "0")]);
    assert!(said().contains("gave 250.0 MiB to requests"), "{}", said());
    holder.end_quietly();
    other.end_quietly();
}

#[test]
fn a_member_of_a_protected_group_is_not_asked() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    world.below("kept", &["min=1100M"]);
    world.below("other", &[]);
    let mut kept = holder(&world, "kept", 500);
    let mut other = world.on_gpu_in("other");
    other.expect(&[("alloc b 300M", "2")]);
    kept.expect(&[("asked 0", "5")]);
}

#[test]
fn threads_of_a_program_are_told_one_by_one_and_no_more_than_five_times_a_second() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=2s"]);
    let mut holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    let began = Instant::now();
    for _ in 0..3 {
        holder.expect(&[("aside {\nrepeat 40 {\nasked -1\n}\n}", "0")]);
    }
    for _ in 0..8 {
        other.expect(&[("alloc b 300M", "2")]);
        waits_until_it_may_be_asked();
    }
    // How often each thread got which answer, such as `0:3 7:37`.
    holder.expect(&[("unregister", "0")]);
    let answers = holder.say("await");
    let told = answers
        .split([' ', ','])
        .filter_map(|part| part.strip_prefix("0:"));
    let told: u64 = told
        .map(|count| count.parse::<u64>().expect("a number"))
        .sum();
    let seconds = began.elapsed().as_secs() + 1;
    assert!(
        (2..=5 * seconds).contains(&told),
        "{told} in {seconds} s: {answers}"
    );
}

#[test]
fn forked_children_are_not_registered() {
    let world = World::new(cap(3));
    let mut holder = holder(&world, "", 100);
    holder.tell("fork {\nasked 0\nunregister\nregister\nasked 0\n}");
    let answers = [0; 5].map(|_| holder.answer());
    assert_eq!(answers, ["7", "7", "0", "5", "0"]);
    holder.expect(&[("asked 0", "5")]);
    holder.end_quietly();
}

#[test]
fn registration_before_the_first_use_of_cuda_counts() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let mut holder = world.start();
    holder.expect(&[
        ("register", "0"),
        ("asked 0", "5"),
        ("aside {\nasked -1\n}", "0"),
    ]);
    holder.expect(&[("start", "0 0"), ("alloc a 500M", "0")]);
    let mut other = world.on_gpu();
    other.tell("alloc b 300M");
    assert_eq!(holder.say("await"), "0:1", "told");
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
}

#[test]
fn a_signal_ends_the_wait_for_pressure_and_unregistering_ends_those_of_all_threads() {
    let world = World::new(cap(2));
    let mut holder = holder(&world, "", 100);
    holder.expect(&[("aside {\nasked -1\n}", "0"); 3]);
    holder.expect(&[("unregister", "0"), ("await", "7:1, 7:1, 7:1")]);
    holder.expect(&[("register", "0"), ("catch 10", "0")]);
    holder.tell("asked -1");
    wait_until("a signal ends the wait", || {
        // The signal may come before the wait.
        holder.signal(10);
        holder.printed().is_some()
    });
}

/// Where the slots begin in the ledger, their length, and the words of pressure in a slot:
/// registered, demand, count of demands, time of the last one.
const SLOTS: u64 = (16 << 10) + (2 << 20);
const SLOT: u64 = 8 << 10;
const WORDS: u64 = 192;

/// Writes the words of pressure of the first slots, as any member can.
fn write(ledger: &File, words: [u64; 4]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    for slot in 0..8 {
        let place = SLOTS + slot * SLOT + WORDS;
        ledger.write_all_at(&bytes, place).expect("written");
    }
}

/// Returns the wall clock as the ledger has it.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("a time").as_millis() as u64
}

fn opened(world: &World) -> File {
    let path = world.group().ledger_path();
    File::options().write(true).open(path).expect("the ledger")
}

#[test]
fn hostile_members_cannot_ask_more_often_or_for_more_than_is_held() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=200ms"]);
    let mut holder = holder(&world, "", 500);
    let mut other = world.on_gpu();
    let ledger = opened(&world);
    let mut random = gpulimit_support::random();
    for _ in 0..12 {
        holder.tell("asked 100");
        wait_until("the holder answers", || {
            let number = random.u64(..);
            // A demand that is right but for its bytes, or any words at all.
            let words = match random.u8(..4) {
                0 => [1, u64::MAX << 32 | 1, number, 0],
                1 => [1, 7 << 40 | 1 << 8 | 3, number, number],
                _ => [number, number >> 3, number >> 7, number >> 9],
            };
            write(&ledger, words);
            holder.printed().is_some()
        });
        // Whatever others write, the limit holds and requests end.
        let answer = other.say("alloc b 300M");
        assert_eq!(answer, "2");
    }
    world.judge(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    for (demand, mib) in [(u64::MAX << 32 | 1, 500), (5 << 32 | 1, 1)] {
        waits_until_it_may_be_asked();
        write(&ledger, [0, demand, 0, now_ms()]);
        assert_eq!(holder.say("asked 0"), self::told(&world, mib, 1, GROUP));
        assert_eq!(holder.say("asked 0"), "5");
    }
    let began = Instant::now();
    for _ in 0..4 {
        wait_until("the holder is told", || {
            write(&ledger, [1, u64::MAX << 32 | 1, 0, now_ms()]);
            holder.say("asked 0").starts_with("0 ")
        });
    }
    // The clock of the library has ticks of some milliseconds.
    assert!(began.elapsed() >= 3 * Duration::from_millis(190));
}

#[test]
fn a_member_that_claims_to_hold_memory_delays_a_refusal_by_the_timeout_only() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=400ms"]);
    let liar = holder(&world, "", 20);
    let mut other = world.on_gpu();
    // The slots have 900 MiB more than they hold.
    let ledger = opened(&world);
    let path = world.group().ledger_path();
    let charges = std::fs::read(path).expect("readable");
    let claimed = (0..8u64).filter(|slot| {
        let place = (16 << 10) + slot * 64;
        let word = charges[place as usize..][..8]
            .try_into()
            .map(u64::from_ne_bytes);
        let word = word.expect("a word");
        if word >= (CONTEXT + 20 * MIB) / 4096 {
            let more = word + 500 * MIB / 4096;
            ledger
                .write_all_at(&more.to_ne_bytes(), place)
                .expect("written");
        }
        word > 0
    });
    assert_eq!(claimed.count(), 2);
    let began = Instant::now();
    other.expect(&[("alloc b 300M", "2")]);
    assert!(began.elapsed() >= Duration::from_millis(400));
    assert_eq!(world.events(EventKind::Asked).len(), 1);
    liar.kill();
    other.end();
}

#[test]
fn a_request_that_is_refused_though_it_fits_asks_nobody() {
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let _holder = holder(&world, "", 300);
    let mut other = world.on_gpu();
    other.expect(&[("alloc a 20M", "0")]);
    // After another process has lowered its charge, all requests of a process are refused for a
    // second.
    let ledger = opened(&world);
    for slot in 0..8u64 {
        ledger
            .write_all_at(&[0; 8], (16 << 10) + slot * 64)
            .expect("written");
    }
    let answer = other.say("alloc b 50M");
    // On a slow machine the second may be over.
    assert!(["0", "2"].contains(&&*answer), "{answer}");
    assert_eq!(world.events(EventKind::Asked).len(), 0);
}

#[test]
fn members_in_other_pid_namespaces_are_asked() {
    if !world::may_mount() {
        return;
    }
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let mut command = world.limited(Path::new("unshare"));
    command
        .args(["--pid", "--fork", "--kill-child"])
        .arg(world::program());
    let mut holder = Session::start(command);
    holder.expect(&[("start", "0 0"), ("alloc a 500M", "0"), ("register", "0")]);
    let mut other = world.on_gpu();
    waits_to_be_asked(&mut holder);
    other.tell("alloc b 300M");
    let said = holder.answer();
    assert!(said.starts_with("0 ") && said.ends_with(GROUP), "{said}");
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
}

#[test]
fn members_of_other_users_are_asked() {
    const USER: u32 = 40_001;
    if !is_root() {
        return;
    }
    let world = World::new(cap(2));
    world.settings(&["pressure_timeout=1000h"]);
    let name = format!("{GROUP}/user");
    let access = Access {
        owner: Some(USER),
        members: Members::Owner,
    };
    let made = world.root().create_for(&name, &LimitSet::default(), access);
    made.expect("a group of another user");
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(world.machine().state(), open).expect("a GPU for all");
    let mut command = world.preloaded(Path::new("setpriv"));
    command.args(["--reuid", "40001", "--regid", "40001", "--clear-groups"]);
    command.arg(world::program()).env("GPULIMIT_GROUP", name);
    let mut holder = Session::start(command);
    holder.expect(&[("start", "0 0"), ("alloc a 500M", "0"), ("register", "0")]);
    let mut other = world.on_gpu();
    waits_to_be_asked(&mut holder);
    other.tell("alloc b 300M");
    assert_eq!(holder.answer(), told(&world, 204, 1, GROUP));
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
}

/// A holder is asked five times a second at most, so one demand is for all that wait.
#[test]
fn requests_that_wait_ask_together() {
    let knobs = [("GPULIMIT_SIM_CONTEXT_BYTES", "10485760")];
    let world = World::with(2048 * MIB, &knobs);
    world.settings(&["pressure_timeout=1000h"]);
    let mut holder = world.on_gpu();
    let mut blocks = (1..=9).map(|number| format!("block{number}"));
    for block in blocks.clone() {
        holder.expect(&[(&*format!("alloc {block} 120M"), "0")]);
    }
    holder.expect(&[("alloc cache 600M", "0"), ("register", "0")]);
    let mut askers = [0; 9].map(|_| world.on_gpu());
    let figures = world.on_gpu().say("figures");
    let left = figures.split("available=").nth(1).expect("a figure");
    let left: u64 = left
        .split('M')
        .next()
        .and_then(|left| left.parse().ok())
        .expect("a number");
    let mut filler = world.on_gpu();
    filler.expect(&[(&*format!("alloc f {}M", left - 20), "0")]);
    for asker in &mut askers {
        asker.tell("alloc x 100M");
    }
    let waits = || {
        let processes = world.ledger().processes(&gpulimit_ledger::NoWitness);
        processes
            .iter()
            .filter(|process| process.waits.is_some())
            .count()
    };
    assert!(eventually(|| waits() == askers.len()));
    // The first requests ask before others have come. A holder that gives less than it is asked for
    // has no more, so it gives as much.
    let (mut asked, mut given) = (0_usize, 0);
    let mut rounds = 0;
    while given + asked + 20 < 9 * 100 - 10 {
        for block in blocks.by_ref().take(asked.div_ceil(120)) {
            holder.expect(&[(&*format!("free {block}"), "0")]);
            given += 120;
        }
        asked = mib(&holder.say("asked 60000")) as usize;
        rounds += 1;
        assert!(asked > 0 && rounds < 4, "asked {asked}, given {given}");
    }
    let rest: Vec<_> = blocks.map(|block| format!("free {block}")).collect();
    for free in &rest {
        holder.expect(&[(free, "0")]);
    }
    holder.expect(&[("free cache", "0"), ("asked 0", "5")]);
    for mut asker in askers {
        assert_eq!(asker.answer(), "0");
        asker.end_quietly();
    }
}

#[test]
fn many_askers_at_once_are_served_or_refused() {
    const ASKERS: usize = 24;
    let knobs = [("GPULIMIT_SIM_CONTEXT_BYTES", "10485760")];
    let limit = (ASKERS as u64 + 1) * 20 * MIB + 600 * MIB;
    let world = World::with(limit, &knobs);
    world.settings(&["pressure_timeout=1000h"]);
    let mut holder = world.on_gpu();
    let mut askers: Vec<Session> = (0..ASKERS).map(|_| world.on_gpu()).collect();
    let free = holder.say("figures");
    let left = free
        .split("available=")
        .nth(1)
        .and_then(|rest| rest.split('M').next());
    let left = left.expect("a figure").to_owned();
    holder.expect(&[(&*format!("alloc a {left}M"), "0"), ("register", "0")]);
    waits_to_be_asked(&mut holder);
    for asker in &mut askers {
        asker.tell("alloc b 40M");
    }
    assert!(holder.answer().starts_with("0 "));
    holder.expect(&[("free a", "0"), ("unregister", "0")]);
    let answers: Vec<String> = askers.iter_mut().map(Session::answer).collect();
    let granted = answers.iter().filter(|answer| *answer == "0").count();
    assert!(granted > 0, "{answers:?}");
    assert!(answers.iter().all(|answer| ["0", "2"].contains(&&**answer)));
    world.judge(limit);
}
