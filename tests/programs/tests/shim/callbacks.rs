//! Calls that the program makes inside of calls of the driver: a tool (`tests/programs/c/tool.c`)
//! that the driver calls at the begin and the end of each call.

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World, finish};

const CAP: u64 = 3 * CONTEXT + 600 * MIB;

/// A command of `gpu-script` for each kind of outer call, with what it needs before, and functions
/// in which the tool acts: the program's, and some that the library calls for itself.
const CALLS: &[(&str, &[&str], &[&str])] = &[
    ("alloc a 1000", &[], &["cuMemAlloc_v2", "cuCtxGetCurrent"]),
    ("alloc a 10M", &[], &["cuMemAlloc_v2"]),
    ("free b", &["alloc b 10M"], &["cuMemFree_v2"]),
    (
        "launch k",
        &["kernels k 100"],
        &["cuLaunchKernel", "cuFuncGetAttribute"],
    ),
    ("launch k", &["kernels k 2048"], &["cuLaunchKernel"]),
    (
        "module m 20M",
        &[],
        &["cuModuleLoadData", "cuDeviceGetGraphMemAttribute"],
    ),
    ("unload m", &["module m 20M"], &["cuModuleUnload"]),
    ("context c 0 v2", &[], &["cuCtxCreate_v2"]),
    (
        "async a 10M",
        &[],
        &["cuMemAllocAsync", "cuMemPoolGetAttribute"],
    ),
    (
        "graph-once",
        &[
            "graph g",
            "alloc-node n g 20M",
            "free-node g n",
            "instantiate e g",
        ],
        &["cuGraphLaunch", "cuDeviceGetGraphMemAttribute"],
    ),
    ("set-limit 0 2048", &[], &["cuCtxSetLimit"]),
    ("stream s", &[], &["cuStreamCreate"]),
    ("sync null", &[], &["cuStreamSynchronize"]),
];

/// Starts a program with the tool.
fn start(world: &World, at: &str) -> Session {
    let mut command = world.limited(world::program());
    command
        .env("CUDA_INJECTION64_PATH", world::library("tool", &[]))
        .env("TOOL_AT", at)
        .env("TOOL_REPORT", world.file("report"));
    Session::start(command)
}

/// Returns the lines that the tool has written: the MiB that it got, the GPU's memory, and what was
/// free before, with and after that.
fn report(world: &World) -> Vec<[u64; 5]> {
    let text = std::fs::read_to_string(world.file("report")).unwrap_or_default();
    let numbers = |line: &str| {
        let words = line.split(' ').skip(2);
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        numbers.try_into().expect("five numbers")
    };
    text.lines().map(numbers).collect()
}

/// Plays each outer call with the tool, and passes the world, the program and the tool's report.
fn each(prepare: impl Fn(&World) -> Option<Session>, check: impl Fn(&World, &str, &[[u64; 5]])) {
    for (call, before, functions) in CALLS {
        for function in *functions {
            let world = World::new(CAP);
            let other = prepare(&world);
            let mut program = start(&world, function);
            program.expect(&[("start", "0 0")]);
            for command in *before {
                assert!(program.say(command).starts_with('0'), "{command}");
            }
            let seen = report(&world).len();
            let command = call.replace("graph-once", "launch-graph e");
            assert!(
                program.say(&command).starts_with('0'),
                "{command} with {function}"
            );
            let seen = &report(&world)[seen..];
            assert!(!seen.is_empty(), "{command} calls {function}");
            check(&world, &format!("{command} in {function}"), seen);
            assert_eq!(program.say("sync"), "0");
            assert!(world.machine().peak() <= CAP, "{command} in {function}");
            program.end();
            drop(other);
            world.judge_end(CAP);
        }
    }
}

#[test]
fn what_a_callback_takes_is_charged_and_refused_at_the_limit() {
    each(
        |_| None,
        |world, call, seen| {
            for [taken, all, before, with, after] in seen {
                assert!(*taken > 400, "{call}: {seen:?}");
                assert_eq!(*all, CAP / MIB, "{call}: the view shows the group's limit");
                assert!(before - with >= *taken, "{call}: {seen:?}");
                assert!(after.abs_diff(*before) < 50, "{call}: {seen:?}");
            }
            // The refusals are told and counted as others are.
            assert!(world.usage(0).refusals > 0, "{call}");
        },
    );
}

#[test]
fn a_call_in_a_callback_neither_waits_nor_asks() {
    each(
        |world| {
            world.settings(&["on_limit=wait", "wait_timeout=600s"]);
            let mut holder = world.on_gpu();
            holder.expect(&[("alloc a 100M", "0")]);
            Some(holder)
        },
        |world, call, _| {
            assert_eq!(world.events(EventKind::Wait).len(), 0, "{call}");
        },
    );
}

#[test]
fn a_tour_with_a_tool_in_every_call_comes_to_its_end() {
    let cap = 8 * CONTEXT;
    let tour = std::fs::read_to_string(world::script("tour.gpu")).expect("a script");
    let world = World::new(cap);
    let mut program = start(&world, "*");
    for line in tour.lines() {
        let command = line.split('#').next().unwrap_or_default().trim();
        if !command.is_empty() {
            program.say(command);
        }
    }
    program.say("sync");
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// Some functions of the driver crash for zeros, with a tool and without one.
#[test]
fn no_hooked_function_waits_for_itself() {
    let [with, without] = ["*", "none"].map(|at| {
        let world = World::new(CAP);
        let mut command = world.limited(&world::compile("zeros", &[]));
        command
            .env("CUDA_INJECTION64_PATH", world::library("tool", &[]))
            .env("TOOL_AT", at);
        let output = finish(command);
        assert!(output.status.success(), "{output:?}");
        world.judge_end(CAP);
        String::from_utf8(output.stdout).expect("text")
    });
    assert_eq!(with, without);
    let called = with.lines().find_map(|line| line.strip_prefix("called "));
    let count: u32 = called
        .and_then(|count| count.parse().ok())
        .expect("a number");
    assert!(count > 150 && with.lines().count() < 10, "{with}");
}
