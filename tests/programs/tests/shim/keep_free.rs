//! `keep_free`: requests leave memory free on the GPU beside programs that gpulimit does not limit,
//! and what went below is given back in the same call.

use gpulimit_base::units::Size;
use gpulimit_ledger::{Cause, EventKind};
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_programs::world::{self, CONTEXT, HOUR, MIB, Session, World};
use gpulimit_support::wait_until;
use std::path::Path;
use std::time::{Duration, Instant};

const CAPACITY: u64 = 8192 * MIB;
const KEEP: u64 = 2048 * MIB;

/// Makes a world whose group has no limit and a `keep_free`.
fn world() -> World {
    let world = World::with(
        u64::MAX,
        &[("GPULIMIT_SIM_CAPACITY", &CAPACITY.to_string())],
    );
    world.settings(&["max=max", "keep_free=2G"]);
    world
}

/// Starts a program without the library, with a context.
fn stranger(world: &World) -> Session {
    let mut session = Session::start(world.bare(world::program()));
    assert_eq!(session.say("start"), "0 0");
    session
}

fn free(world: &World) -> u64 {
    CAPACITY - world.machine().used()
}

/// Asserts that the group has refused a request for its `keep_free` with at most `left` bytes free.
#[track_caller]
fn assert_refused(world: &World, left: u64) {
    let ledger = world.ledger();
    let trail = ledger.trail(0);
    let refusal = trail.last().expect("an event");
    assert_eq!(refusal.event.what.kind, EventKind::Refusal);
    assert_eq!(refusal.cause, Some(Cause::KeepFree));
    assert_eq!(refusal.kept, KEEP);
    assert!(refusal.left <= left, "{} left", refusal.left);
}

#[test]
fn requests_leave_it_free_beside_a_stranger() {
    let world = world();
    let (mut other, mut program) = (stranger(&world), world.on_gpu());
    other.expect(&[("alloc a 3G", "0")]);
    let left = free(&world) - KEEP;
    assert_eq!(left, CAPACITY - 2 * CONTEXT - (3 << 30) - KEEP);
    // The view says what can be had, and the total stays.
    program.expect(&[("info", &format!("0 {left} {CAPACITY}"))]);
    let nvml = program.numbers("nvml 0");
    assert_eq!((nvml[3] + nvml[4], nvml[3]), (nvml[2], left), "{nvml:?}");
    program.expect(&[
        ("alloc a 1024M", "0"),
        ("info", &format!("0 {} {CAPACITY}", left - (1 << 30))),
        ("alloc b 2048M", "2"),
        ("create c 2048M 0", "2"),
        ("array d 1024,1024,128", "2"),
        ("async e 2048M", "2"),
        ("managed f 2048M", "2"),
    ]);
    assert_refused(&world, left + KEEP - (1 << 30));
    let rest = format!("alloc b {}", left - (1 << 30));
    program.expect(&[(&rest, "0"), ("info", &format!("0 0 {CAPACITY}"))]);
    assert_eq!(free(&world), KEEP);
    // What lies in blocks that the program has takes nothing of the GPU.
    other.expect(&[("alloc b 1G", "0")]);
    program.expect(&[("alloc c 1M", "2"), ("free a", "0"), ("alloc c 1M", "2")]);
    other.expect(&[("free b", "0")]);
    program.expect(&[("alloc c 1M", "0"), ("alloc d 1M", "0")]);
    // Without the key, no request looks at the GPU.
    world.settings(&["keep_free=0"]);
    program.expect(&[("alloc e 2G", "0")]);
    world.settings(&["keep_free=2G"]);
    program.expect(&[("alloc g 3M", "2")]);
    let (_, errors) = program.end();
    let line = "keep_free of world keeps 2.0 GiB free: 3.0 GiB was free";
    assert!(errors.contains(line), "{errors}");
    assert!(errors.contains("outside of group world: pid"), "{errors}");
    other.end_quietly();
    world.judge_end(CAPACITY);
}

/// No program of the group has measured yet what a context takes.
#[test]
fn the_first_context_of_all_needs_no_more_than_it_takes() {
    let world = world();
    let mut other = stranger(&world);
    let rest = free(&world) - KEEP - CONTEXT - 100 * MIB;
    other.expect(&[(&*format!("alloc a {rest}"), "0")]);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 100M", "0"), ("alloc b 2M", "2")]);
    assert_eq!(free(&world), KEEP);
    other.end_quietly();
    program.end();
    // A context for which there is no room goes again.
    let world = self::world();
    let mut other = stranger(&world);
    let rest = free(&world) - KEEP - CONTEXT + 2 * MIB;
    other.expect(&[(&*format!("alloc a {rest}"), "0")]);
    let mut program = Session::start(world.limited(world::program()));
    assert_ne!(program.say("start"), "0 0");
    assert_eq!(free(&world), KEEP + CONTEXT - 2 * MIB);
    other.end_quietly();
    program.end();
}

/// A stranger takes memory between the look and the driver's answer. What the program then has too
/// much is given back in the same call.
#[test]
fn what_went_below_is_given_back_in_the_same_call() {
    let calls = [
        ("alloc a 2G", "cuMemAlloc_v2"),
        ("alloc a 1M", "cuMemAlloc_v2"),
        ("pitch a 1048576 2048", "cuMemAllocPitch_v2"),
        ("create a 2G 0", "cuMemCreate"),
        ("array a 1024,1024,64", "cuArray3DCreate_v2"),
        ("async a 2G", "cuMemAllocAsync"),
        ("context a 0 v2", "cuCtxCreate_v2"),
        ("module a 256M", "cuModuleLoadData"),
    ];
    let uncounted = ("context a 0 v2", "cuCtxCreate_v2", "no");
    let calls = calls.map(|(call, function)| (call, function, "yes"));
    for (call, function, counts) in calls.into_iter().chain([uncounted]) {
        let world = world();
        world.settings(&[&format!("count_context={counts}")]);
        let (mut other, mut program) = (stranger(&world), world.on_gpu());
        world
            .machine()
            .knob("latency", &format!("{function}:{HOUR}"));
        program.expect(&[(&format!("aside {{\n{call}\n}}"), "0")]);
        program.sleeps_again();
        let rest = free(&world) - KEEP;
        let takes = match function {
            "cuMemCreate" => format!("alloc a {rest}"),
            _ => format!("create a {rest} 0"),
        };
        other.expect(&[(&takes, "0")]);
        world.machine().knob("latency", "0");
        assert_eq!(program.say("await"), "2:1", "{call}");
        assert_eq!(free(&world), KEEP, "{call}");
        assert_refused(&world, KEEP);
        program.end();
        other.end_quietly();
        world.judge_end(CAPACITY);
    }
}

#[test]
fn a_request_waits_until_a_stranger_makes_room() {
    let world = world();
    world.settings(&["on_limit=wait", "wait_timeout=1h"]);
    let (mut other, mut program) = (stranger(&world), world.on_gpu());
    other.expect(&[("alloc a 4G", "0")]);
    program.tell("alloc a 2G");
    program.waits_on();
    assert_eq!(world.events(EventKind::Wait).len(), 1);
    other.expect(&[("free a", "0")]);
    assert_eq!(program.answer(), "0");
    assert_eq!(world.events(EventKind::Granted).len(), 1);
    // Without any other program there would be no room: nothing is waited for.
    program.expect(&[("alloc b 4G", "2")]);
    program.end();
    other.end_quietly();
    world.judge_end(CAPACITY);
}

/// Two members that wait for each other's memory wait for ever; not so if a stranger has enough.
#[test]
fn a_standstill_counts_requests_that_wait_for_it() {
    for (own, foreign) in [("2200M", "2M"), ("1G", "4G")] {
        let world = world();
        world.settings(&["on_limit=wait", "wait_timeout=1h"]);
        let mut other = stranger(&world);
        let mut programs = [world.on_gpu(), world.on_gpu()];
        for program in &mut programs {
            program.expect(&[(&format!("alloc a {own}"), "0")]);
        }
        other.expect(&[(&format!("alloc a {foreign}"), "0")]);
        programs
            .iter_mut()
            .for_each(|program| program.tell("alloc b 1G"));
        let [first, second] = &mut programs;
        if foreign == "2M" {
            let mut answers = [None, None];
            wait_until("one of the two is refused", || {
                answers = [first.printed(), second.printed()];
                answers != [None, None]
            });
            let (refused, waits) = match answers[0] {
                Some(_) => (first, second),
                None => (second, first),
            };
            assert_eq!(
                answers.into_iter().flatten().next().as_deref(),
                Some("alloc b 1G = 2")
            );
            assert_refused(&world, CAPACITY);
            waits.waits_on();
            refused.expect(&[("free a", "0")]);
            assert_eq!(waits.answer(), "0");
        } else {
            // A standstill is seen after a second.
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(2) {
                first.waits_on();
                second.waits_on();
            }
            other.expect(&[("free a", "0")]);
            assert_eq!((first.answer(), second.answer()), ("0".into(), "0".into()));
        }
        for program in programs {
            program.end();
        }
        other.end_quietly();
        world.judge_end(CAPACITY);
    }
}

/// The calls of one racing program, counted in the trace of the simulated driver
/// (`GPULIMIT_SIM_TRACE`).
#[derive(Default)]
struct Race {
    /// How often the racer gave memory back that it had just got.
    returns: u32,
    /// In how many of these it slept in between.
    naps: u32,
    /// The processor time from before the driver took such memory until it was free again.
    held: Duration,
}

fn race(trace: &Path) -> Race {
    let mut race = Race::default();
    let mut got = None;
    for line in std::fs::read_to_string(trace).expect("a trace").lines() {
        let mut words = line.split(' ');
        let name = words.next().expect("a function");
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        let [answer, from, naps_from, to, naps_to] = numbers[..] else {
            panic!("{line}");
        };
        if answer == 0 && name.starts_with("cuMemAlloc") {
            got = Some((from, naps_to));
        } else if name.starts_with("cuMemFree")
            && let Some((since, naps)) = got.take()
        {
            race.returns += 1;
            race.naps += u32::from(naps_from > naps);
            race.held += Duration::from_nanos(to - since);
        }
    }
    race
}

/// Groups that share no ledger ask at once. What they keep in the end fits, and they leave less for
/// at most 100 ms in all: while less is free, some racer has memory that it is about to give back.
/// What counts is the racers' own time, so that a busy machine changes nothing: they run, and do
/// not sleep, until the memory is free.
#[test]
fn racers_of_many_groups_leave_less_for_a_moment_only() {
    const RACERS: usize = 64;
    const CONTEXT: u64 = 10 * MIB;
    let knobs = [
        ("GPULIMIT_SIM_CAPACITY", CAPACITY.to_string()),
        ("GPULIMIT_SIM_CONTEXT_BYTES", CONTEXT.to_string()),
        ("GPULIMIT_SIM_LATENCY", format!("cuMemAlloc_v2:{HOUR}")),
        ("GPULIMIT_SIM_JITTER", "1".into()),
    ];
    let world = World::without_group(&knobs.each_ref().map(|(name, value)| (*name, &**value)));
    let mut limits = LimitSet::default();
    limits.set(Selector::All, Key::KeepFree, Size::Bytes(KEEP));
    let racer = |number: usize| {
        let group = format!("racer{number}");
        let created = world.root().create(&group, &limits).expect("a group");
        let trace = world.file(&group);
        let mut command = world.limited(world::program());
        command.env("GPULIMIT_GROUP", group);
        command.env("GPULIMIT_SIM_TRACE", &trace);
        let mut session = Session::start(command);
        assert_eq!(session.say("start"), "0 0");
        session.tell("alloc a 300M");
        (created, trace, session)
    };
    let mut racers: Vec<_> = (0..RACERS).map(racer).collect();
    // Each has seen enough free memory, and is on its way to the driver.
    racers.iter().for_each(|(.., racer)| racer.sleeps_again());
    world.machine().knob("latency", "cuMemAlloc_v2:2000000");
    let mut granted = 0;
    let mut all = Race::default();
    for (_, trace, racer) in &mut racers {
        match &*racer.answer() {
            "0" => granted += 1,
            answer => assert_eq!(answer, "2"),
        }
        let one = race(trace);
        all.returns += one.returns;
        all.naps += one.naps;
        all.held += one.held;
    }
    let left = free(&world);
    assert!(left >= KEEP, "{granted} racers leave {left}");
    assert!(granted > 0, "somebody gets memory");
    let Race {
        returns,
        naps,
        held,
    } = all;
    assert!(returns > 0, "nobody went below");
    // The kernel may let a thread sleep for a page.
    assert!(naps <= returns / 4, "{naps} naps in {returns} returns");
    assert!(held < Duration::from_millis(100), "{held:?} in {returns}");
    for (.., racer) in racers {
        racer.end();
    }
}
