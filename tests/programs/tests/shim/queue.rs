//! Programs in a group whose requests wait: first contexts enter one at a time, a job has its whole
//! limit, and no wait is for ever.

use std::fs;
use std::sync::Mutex;
use std::thread;

use gpulimit_ledger::{EventKind, NoWitness};
use gpulimit_programs::world::{
    self, CONTEXT, GROUP, HOUR, MIB, Session, World, eventually, finish, text,
};

use gpulimit_support::wait_until;

use super::jobs::controller;

const GIB: u64 = 1024 * MIB;
const CAP: u64 = 4 * GIB;
/// The limit of a job of 1.5 GiB, with its context and the driver's reserve.
const JOB: &str = "max=2100M";

fn queue(cap: u64) -> World {
    let world = World::new(cap);
    world.settings(&["on_limit=wait", "wait_timeout=600s"]);
    world
}

/// Starts a program without a context in a group below the world's, or in the world's.
fn start_in(world: &World, group: &str) -> Session {
    let mut command = world.limited(world::program());
    command.env("GPULIMIT_GROUP", group);
    Session::start(command)
}

/// Each job takes 1.5 GiB soon after its context, and two do not fit. Without the rules, eight
/// contexts are made first, and their programs wait for each other.
#[test]
fn jobs_that_start_at_once_all_get_their_memory() {
    for options in [
        &["--name", GROUP][..],
        &["--group", GROUP, "--max", "2100M"],
    ] {
        let world = queue(CAP);
        let script = world.file("script");
        fs::write(&script, "start\nsleep 400\nalloc a 1536M\nsleep 20\n").expect("written");
        let (program, script) = (world::program(), script.display().to_string());
        let command = [program.to_str().expect("UTF-8"), &script];
        let jobs = Mutex::new(0..16);
        let next = || jobs.lock().expect("no panic").next();
        let run = || {
            while next().is_some() {
                let arguments = [&["run"], options, &["--"], &command].concat();
                let output = finish(controller(&world, &arguments));
                let errors = text(&output.stderr);
                assert!(output.status.success() && errors.is_empty(), "{errors}");
                assert!(text(&output.stdout).contains("alloc a 1536M = 0"));
            }
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(run);
            }
        });
        assert_eq!(world.events(EventKind::Refusal).len(), 0, "{options:?}");
        world.judge_end(CAP);
    }
}

/// Returns a queue with a program that holds memory, and one whose request waits for it.
fn full_queue() -> (World, Session, Session) {
    let world = queue(CAP);
    // The second one begins although the first one asks for nothing.
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 1G", "0")]);
    other.tell("alloc b 2500M");
    assert!(eventually(|| !world.events(EventKind::Wait).is_empty()));
    (world, holder, other)
}

#[test]
fn a_first_context_waits_for_requests_and_not_for_programs_that_ask_for_nothing() {
    let (world, mut holder, mut other) = full_queue();
    // There is room for another context, which would take it from the request.
    let mut first = start_in(&world, GROUP);
    first.tell("start");
    first.waits_on();
    let holders = world.machine().gpu(0).holders;
    assert_eq!(holders.len(), 2, "{holders:?}");
    holder.expect(&[("alloc c 100M", "0")]);
    first.waits_on();
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
    holder.end_quietly();
    assert_eq!(first.answer(), "0 0");
    world.judge(CAP);
    other.end_quietly();
    first.end_quietly();
    world.judge_end(CAP);
}

/// The limit of a job counts as none while it is above that of the queue.
#[test]
fn a_wait_says_what_it_is_for_also_after_a_change_of_the_limit() {
    let world = queue(2 * GIB);
    let mut holder = world.on_gpu();
    holder.expect(&[("alloc a 1200M", "0")]);
    world.below("run-1-1", &["max=3G"]);
    let mut job = start_in(&world, &format!("{GROUP}/run-1-1"));
    job.tell("start");
    let awaited = || {
        let processes = world.ledger().processes(&NoWitness).into_iter();
        let waits = processes.filter_map(|process| process.waits);
        waits.map(|waits| waits.bytes).next()
    };
    wait_until("it waits for a context", || awaited() == Some(CONTEXT));
    world.set(4 * GIB);
    wait_until("it waits for its limit", || awaited() == Some(3 * GIB));
    holder.end_quietly();
    assert_eq!(job.answer(), "0 0");
    job.end_quietly();
    world.judge_end(4 * GIB);
}

#[test]
fn a_first_context_that_no_longer_fits_into_the_limit_is_refused() {
    let (world, holder, mut other) = full_queue();
    let mut first = start_in(&world, GROUP);
    first.tell("start");
    first.waits_on();
    world.set(MIB);
    assert_eq!((other.answer(), first.answer()), ("2".into(), "0 2".into()));
    holder.end_quietly();
    for refused in [other, first] {
        let (_, line) = refused.end();
        assert!(line.contains("raise the limit"), "{line}");
    }
    world.judge_end(CAP);
}

#[test]
fn all_waits_for_first_contexts_are_on_record_at_once_also_those_that_are_refused() {
    let (world, holder, mut other) = full_queue();
    let inner = world.below("inner", &[]);
    let start = |waits| {
        let mut first = start_in(&world, &format!("{GROUP}/inner"));
        first.tell("start");
        assert!(eventually(|| world.events(EventKind::Wait).len() == waits));
        first
    };
    let (mut one, mut two) = (start(2), start(3));
    world.set(MIB);
    assert_eq!(other.answer(), "2");
    assert_eq!((one.answer(), two.answer()), ("0 2".into(), "0 2".into()));
    assert_eq!(world.events(EventKind::Granted).len(), 0);
    let ledger = inner.ledger().expect("a ledger");
    let below = ledger.usage(ledger.devices()[0].index);
    assert_eq!((world.usage(0).waits, below.waits), (3, 2));
    assert!(below.waited_ms > 0, "{below:?}");
    for program in [one, two, other] {
        program.end();
    }
    holder.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn the_next_first_context_waits_while_the_driver_makes_one() {
    let world = queue(CAP);
    let delay = format!("cuDevicePrimaryCtxRetain:{HOUR}");
    world.machine().knob("delay", &delay);
    let contexts = || world.machine().gpu(0).holders.len();
    let (mut one, mut other) = (world.start(), world.start());
    one.tell("start");
    assert!(eventually(|| contexts() == 1));
    other.tell("start");
    // The naps of more than a second, after which a context that is made would not be waited for.
    for _ in 0..3 {
        other.waits_on();
    }
    assert_eq!(contexts(), 1);
    world.machine().knob("delay", "0");
    assert_eq!((one.answer(), other.answer()), ("0 0".into(), "0 0".into()));
    world.judge(CAP);
    one.end_quietly();
    other.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_job_with_a_limit_begins_when_the_limit_is_free_and_keeps_it() {
    let world = queue(CAP);
    for job in ["run-1-1", "run-2-1"] {
        world.below(job, &[JOB]);
    }
    let mut other = world.on_gpu();
    other.expect(&[("alloc a 100M", "0")]);
    let mut first = world.on_gpu_in("run-1-1");
    let mut second = start_in(&world, &format!("{GROUP}/run-2-1"));
    second.tell("start");
    second.waits_on();
    // There is room for this beside what the first job has taken, and not beside its limit.
    other.tell("alloc b 1500M");
    other.waits_on();
    let waits = world.events(EventKind::Wait).len();
    first.expect(&[("alloc a 390M", "0"), ("alloc b 390M", "0")]);
    // Another process of the job needs no room of its own.
    let child = world.on_gpu_in("run-1-1");
    child.end_quietly();
    first.expect(&[("alloc c 390M", "0"), ("alloc d 390M", "0")]);
    assert_eq!(world.events(EventKind::Wait).len(), waits, "the job waits");
    world.judge(CAP);
    first.end_quietly();
    assert_eq!(other.answer(), "0");
    second.waits_on();
    other.expect(&[("free b", "0")]);
    assert_eq!(second.answer(), "0 0");
    second.expect(&[("alloc a 1536M", "0")]);
    // A job that is killed before it has a charge leaves no room behind.
    second.kill();
    other.expect(&[("alloc b 3000M", "0")]);
    other.end_quietly();
    assert_eq!(world.events(EventKind::Refusal).len(), 0);
    world.judge_end(CAP);
}

/// Sets the limit of a job below the world's group.
fn set_max(world: &World, job: &str, max: &str) {
    let group = format!("{GROUP}/{job}");
    let output = finish(controller(world, &["set", &group, "--max", max]));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_job_whose_limit_is_lowered_keeps_and_needs_no_more() {
    let world = queue(CAP);
    for job in ["run-1-1", "run-2-1"] {
        world.below(job, &["max=3G"]);
    }
    let mut first = world.on_gpu_in("run-1-1");
    let mut other = world.on_gpu();
    other.tell("alloc b 1G");
    other.waits_on();
    set_max(&world, "run-1-1", "2G");
    assert_eq!(other.answer(), "0");
    let mut second = start_in(&world, &format!("{GROUP}/run-2-1"));
    second.tell("start");
    second.waits_on();
    other.expect(&[("free b", "0")]);
    second.waits_on();
    set_max(&world, "run-2-1", "1G");
    assert_eq!(second.answer(), "0 0");
    first.expect(&[("alloc a 1G", "0")]);
    second.expect(&[("alloc a 400M", "0")]);
    for program in [first, second, other] {
        program.end_quietly();
    }
    world.judge_end(CAP);
}

#[test]
fn a_job_keeps_no_more_than_the_lowered_limit_of_a_group_above_it() {
    let world = queue(CAP);
    world.below("a", &[]);
    world.below("a/run-1-1", &["max=3G"]);
    let first = world.on_gpu_in("a/run-1-1");
    let mut other = world.on_gpu();
    other.tell("alloc b 1G");
    other.waits_on();
    set_max(&world, "a", "2G");
    assert_eq!(other.answer(), "0");
    first.end_quietly();
    other.end_quietly();
    world.judge_end(CAP);
}

/// Returns what `show` says that a group can still get.
fn free_of(world: &World, group: &str) -> Option<u64> {
    let shown = finish(controller(world, &["show", group, "--json"]));
    let shown: serde_json::Value = serde_json::from_str(&text(&shown.stdout)).expect("JSON");
    shown["groups"][0]["gpus"][0]["free"].as_u64()
}

#[test]
fn the_free_memory_of_a_group_includes_what_is_kept_for_jobs_below_it() {
    let world = queue(CAP);
    world.below("inner", &[]);
    let groups = [("inner/run-1-1", "max=2G"), ("run-2-1", "max=1G")];
    let groups = groups.map(|(job, max)| world.below(job, &[max]));
    let jobs = ["inner/run-1-1", "run-2-1"].map(|job| world.on_gpu_in(job));
    let [first, _] = groups.map(|group| {
        let ledger = group.ledger().expect("a ledger");
        ledger.charged(ledger.devices()[0].index)
    });
    let free = |group: &str| free_of(&world, &format!("{GROUP}/{group}"));
    assert_eq!(free("inner/run-1-1"), Some(2 * GIB - first));
    // All that is not kept for the second job.
    assert_eq!(free("inner"), Some(CAP - first - GIB));
    for job in jobs {
        job.end_quietly();
    }
    world.judge_end(CAP);
}

#[test]
fn a_process_of_a_job_that_began_without_waits_counts_in_the_limit_of_the_job() {
    let world = World::new(CAP);
    world.below("run-1-1", &["max=3G"]);
    let mut first = world.on_gpu_in("run-1-1");
    first.expect(&[("alloc a 1100M", "0")]);
    world.settings(&["on_limit=wait", "wait_timeout=600s"]);
    // There is room for the rest of the limit only.
    let second = world.on_gpu_in("run-1-1");
    world.below("inner", &[]);
    let mut other = start_in(&world, &format!("{GROUP}/inner"));
    assert_eq!(other.say("start"), "0 0");
    other.expect(&[("alloc b 2M", "0")]);
    let free = free_of(&world, &format!("{GROUP}/inner"));
    assert!(free.is_some_and(|free| free < 600 * MIB), "{free:?}");
    other.tell("alloc a 600M");
    other.waits_on();
    first.expect(&[("alloc b 300M", "0")]);
    for program in [first, second] {
        program.end_quietly();
    }
    assert_eq!(other.answer(), "0");
    other.end_quietly();
    world.judge_end(CAP);
}

/// It enters the upper group, and not the lower one.
#[test]
fn a_job_whose_first_context_is_refused_keeps_nothing() {
    let world = queue(CAP);
    world.below("inner", &["max=3G", "on_limit=wait", "wait_timeout=300ms"]);
    world.below("inner/run-1-1", &["max=2G"]);
    let mut holder = world.on_gpu_in("inner");
    holder.expect(&[("alloc a 1G", "0")]);
    let mut job = start_in(&world, &format!("{GROUP}/inner/run-1-1"));
    assert_eq!(job.say("start"), "0 2");
    let mut other = world.on_gpu();
    other.expect(&[("alloc a 1900M", "0")]);
    for program in [holder, other] {
        program.end_quietly();
    }
    let (_, line) = job.end();
    let told = "refused cuDevicePrimaryCtxRetain of 2.0 GiB";
    assert!(line.contains(told), "{line}");
    let why = "A job with a limit of its own begins when its whole limit is free";
    assert!(line.contains(why), "{line}");
    world.judge_end(CAP);
}

#[test]
fn a_refusal_after_a_wait_says_how_long_it_was() {
    let world = queue(CAP);
    let [mut holder, mut first, mut second] = [world.on_gpu(), world.on_gpu(), world.on_gpu()];
    holder.expect(&[("alloc a 1G", "0")]);
    first.tell("alloc b 2500M");
    assert!(eventually(|| !world.events(EventKind::Wait).is_empty()));
    world.settings(&["wait_timeout=1s"]);
    // There is room for it, behind the other one.
    second.expect(&[("alloc c 100M", "2")]);
    world.set(3 * GIB);
    world.set(2 * GIB);
    assert_eq!(first.answer(), "2");
    holder.end_quietly();
    let [(_, first), (_, second)] = [first, second].map(Session::end);
    assert!(first.contains(" s. `gpulimit why`"), "{first}");
    let behind = " s behind others. `gpulimit why`";
    assert!(second.contains(behind), "{second}");
    world.judge_end(CAP);
}

/// The line of the group above does not help it.
#[test]
fn a_full_group_that_makes_no_request_wait_refuses_at_once_beside_a_line_above() {
    let world = queue(CAP);
    world.below("inner", &["max=1500M"]);
    let (mut holder, mut first) = (world.on_gpu(), world.on_gpu());
    let mut inner = world.on_gpu_in("inner");
    holder.expect(&[("alloc a 1G", "0")]);
    inner.expect(&[("alloc a 600M", "0")]);
    first.tell("alloc b 2200M");
    assert!(eventually(|| !world.events(EventKind::Wait).is_empty()));
    inner.expect(&[("alloc b 500M", "2")]);
    let mut next = start_in(&world, &format!("{GROUP}/inner"));
    assert_eq!(next.say("start"), "0 2");
    assert_eq!(world.events(EventKind::Wait).len(), 1);
    holder.end_quietly();
    assert_eq!(first.answer(), "0");
    first.end_quietly();
    for refused in [inner, next] {
        let (_, line) = refused.end();
        assert!(line.contains(&format!(" in {GROUP}/inner")), "{line}");
    }
    world.judge_end(CAP);
}

#[test]
fn a_job_that_no_context_fits_into_is_refused_at_once_by_its_own_limit() {
    let (world, holder, mut other) = full_queue();
    world.below("run-1-1", &["max=100M"]);
    let mut small = start_in(&world, &format!("{GROUP}/run-1-1"));
    assert_eq!(small.say("start"), "0 2");
    let (_, line) = small.end();
    let told = format!("left of 100.0 MiB in {GROUP}/run-1-1");
    assert!(line.contains(&told), "{line}");
    // A limit that is lowered while the job waits has the same effect.
    world.below("run-3-1", &["max=2G"]);
    let mut waiting = start_in(&world, &format!("{GROUP}/run-3-1"));
    waiting.tell("start");
    waiting.waits_on();
    set_max(&world, "run-3-1", "100M");
    assert_eq!(waiting.answer(), "0 2");
    let (_, line) = waiting.end();
    assert!(
        line.contains("run-3-1") && !line.contains("whole limit"),
        "{line}"
    );
    holder.end_quietly();
    assert_eq!(other.answer(), "0");
    other.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_request_above_the_limit_of_its_own_group_waits_behind_no_other_one() {
    let world = queue(CAP);
    world.below("inner", &["max=1G"]);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    let mut inner = world.on_gpu_in("inner");
    holder.expect(&[("alloc a 1G", "0")]);
    other.tell("alloc b 2500M");
    assert!(eventually(|| !world.events(EventKind::Wait).is_empty()));
    inner.expect(&[("alloc a 2G", "2")]);
    let (_, line) = inner.end();
    assert!(line.contains(&format!("in {GROUP}/inner")), "{line}");
    holder.end_quietly();
    assert_eq!(other.answer(), "0");
    other.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn of_programs_that_wait_for_each_other_the_last_one_is_refused() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = queue(cap);
    let (mut one, mut other) = (world.on_gpu(), world.on_gpu());
    one.expect(&[("alloc a 300M", "0")]);
    other.expect(&[("alloc a 250M", "0")]);
    one.tell("alloc b 280M");
    assert!(eventually(|| !world.events(EventKind::Wait).is_empty()));
    other.expect(&[("alloc b 280M", "2"), ("free a", "0")]);
    assert_eq!(one.answer(), "0");
    world.judge(cap);
    let (_, errors) = other.end();
    let remedy = "memory: let fewer run at once, or give each a limit of its own";
    assert!(errors.contains(remedy), "{errors}");
    one.end_quietly();
    world.judge_end(cap);
}
