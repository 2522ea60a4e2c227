//! Memory nodes of graphs: paid for before a launch or an upload, charged as long as the driver
//! keeps it.

use std::time::{Duration, Instant};

use gpulimit_ledger::Category;
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};

const CAP: u64 = CONTEXT + 500 * MIB;
/// What the first executable graph of a context takes by itself, and room for what the driver may
/// need besides: the library's reserve and its spare block.
const OWN: u64 = 8 * MIB;

/// Makes an executable graph with nodes that allocate, and that free it again if `freed`: `exec`
/// and its name.
fn make(program: &mut Session, name: &str, sizes: &[u64], freed: bool, flags: u32) {
    program.expect(&[(&format!("graph g{name}"), "0")]);
    for (at, size) in sizes.iter().enumerate() {
        let command = format!("alloc-node {name}{at} g{name} {size}M");
        program.expect(&[(&command, "0")]);
    }
    for at in 0..sizes.len() {
        if freed {
            program.expect(&[(&format!("free-node g{name} {name}{at}"), "0")]);
        }
    }
    let command = format!("instantiate {name} g{name} {flags}");
    program.expect(&[(&command, "0")]);
}

/// What the breakdown says.
fn graphs(world: &World) -> u64 {
    world.usage(0).by[Category::Graphs as usize]
}

/// The driver holds so many MiB for graphs, and we know.
#[track_caller]
fn hold(world: &World, cap: u64, mib: u64) {
    assert_eq!(graphs(world), mib * MIB);
    let used = world.machine().used();
    assert!((CONTEXT + mib * MIB..=CONTEXT + mib * MIB + OWN).contains(&used));
    world.judge(cap);
}

#[test]
fn launches_take_what_the_nodes_need() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    let twenty = [2; 20];
    for (number, (sizes, reserved)) in [
        (&[100][..], 128),
        (&[33], 64),
        (&[100, 50, 7], 192),
        (&twenty, 64),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("e{number}");
        make(&mut program, &name, sizes, true, 0);
        hold(&world, CAP, 0);
        program.expect(&[(&format!("launch-graph {name} s"), "0"), ("sync s", "0")]);
        hold(&world, CAP, reserved);
        program.expect(&[(&format!("destroy-exec {name}"), "0")]);
        hold(&world, CAP, reserved);
        program.expect(&[("trim-graphs", "0")]);
        hold(&world, CAP, 0);
    }
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn uploads_take_it_and_launches_no_more() {
    for upload in ["upload-graph e s", "instantiate-upload e ge s"] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[
            ("stream s", "0"),
            ("graph ge", "0"),
            ("alloc-node a ge 100M", "0"),
            ("free-node ge a", "0"),
        ]);
        if upload.starts_with("upload") {
            program.expect(&[("instantiate e ge", "0")]);
        }
        program.expect(&[(upload, "0")]);
        hold(&world, CAP, 128);
        assert_eq!(program.say("repeat 20 {\nlaunch-graph e s\n}"), "0:20");
        hold(&world, CAP, 128);
        program.end_quietly();
        world.judge_end(CAP);
    }
}

/// All ways to make graphs, and to make them executable.
#[test]
fn every_way_to_make_one_is_counted() {
    for door in [&[][..], &["--ptsz"]] {
        let world = World::new(CAP);
        let mut program = world.start_with(door);
        program.expect(&[("start", "0 0"), ("stream s", "0")]);
        for (nodes, mib) in [
            ("alloc-node a g 40M", 64),
            ("alloc-node-v1 a g 40M", 64),
            (
                "graph inner\nalloc-node a inner 70M\nchild-node g inner",
                96,
            ),
            ("empty-node g\nalloc-node a g 5M\nempty-node g", 32),
        ] {
            for make in [
                "instantiate e g",
                "instantiate e g 1",
                "instantiate-v1 e g",
                "instantiate-v2 e g",
                "instantiate-upload e g s",
            ] {
                let script = format!("graph g\n{nodes}");
                for line in script.lines() {
                    program.expect(&[(line, "0")]);
                }
                // Made in a group that has no room for it: only who has looked at its nodes can say
                // so.
                let filled = format!("alloc filler {}M", (CAP - CONTEXT) / MIB - mib - 4);
                program.expect(&[(&filled, "0")]);
                if make.starts_with("instantiate-upload") {
                    program.expect(&[(make, "2"), ("free filler", "0"), (make, "0")]);
                } else {
                    program.expect(&[(make, "0"), ("launch-graph e s", "2"), ("free filler", "0")]);
                }
                for line in ["launch-graph e s", "free-async a s", "destroy-exec e"] {
                    program.expect(&[(line, "0")]);
                }
                hold(&world, CAP, mib);
                program.expect(&[("destroy-graph g", "0"), ("trim-graphs", "0")]);
                hold(&world, CAP, 0);
            }
        }
        program.end();
        world.judge_end(CAP);
    }
}

#[test]
fn captured_allocations_are_paid_for_at_the_launch() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("stream s", "0"),
        ("capture s", "0"),
        ("async a 100M s", "0"),
        ("free-async a s", "0"),
        ("async b 60M s", "0"),
        ("end-capture s g", "0"),
        ("instantiate e g", "0"),
    ]);
    hold(&world, CAP, 0);
    program.expect(&[("launch-graph e s", "0"), ("sync s", "0")]);
    hold(&world, CAP, 128);
    program.expect(&[("free b", "0")]);
    hold(&world, CAP, 128);
    program.expect(&[("launch-graph e s", "0"), ("free-async b s", "0")]);
    hold(&world, CAP, 128);
    program.expect(&[("launch-graph e s", "0"), ("trim-graphs", "0")]);
    hold(&world, CAP, 64);
    program.end_quietly();
    world.judge_end(CAP);
}

/// What is allocated and freed a hundred times is needed once.
#[test]
fn a_graph_that_reuses_its_memory_needs_it_once() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0"), ("capture s", "0")]);
    let pair = "async a 200M s\nfree-async a s";
    assert_eq!(program.say(&format!("repeat 100 {{\n{pair}\n}}")), "0:200");
    program.expect(&[
        ("end-capture s g", "0"),
        ("instantiate e g", "0"),
        ("launch-graph e s", "0"),
    ]);
    hold(&world, CAP, 224);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn what_a_launch_leaves_is_freed_in_four_ways() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    make(&mut program, "kept", &[100], false, 0);
    program.expect(&[("graph gone", "0"), ("free-node gone kept0", "0")]);
    program.expect(&[("instantiate free gone", "0")]);
    for free in ["free kept0", "free-async kept0 s", "launch-graph free s"] {
        program.expect(&[
            ("launch-graph kept s", "0"),
            ("launch-graph kept s", "1"),
            ("trim-graphs", "0"),
        ]);
        hold(&world, CAP, 128);
        program.expect(&[(free, "0"), ("sync", "0")]);
        hold(&world, CAP, 128);
        // It is not the graph's any more, and nobody's else.
        program.expect(&[("free kept0", "1"), ("trim-graphs", "0")]);
        hold(&world, CAP, 0);
    }
    make(&mut program, "auto", &[100], false, 1);
    assert_eq!(program.say("repeat 9 {\nlaunch-graph auto s\n}"), "0:9");
    hold(&world, CAP, 128);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn graphs_of_one_stream_share_it() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    for number in 0..10 {
        make(&mut program, &format!("e{number}"), &[400], true, 0);
    }
    for _ in 0..3 {
        for number in 0..10 {
            program.expect(&[(&format!("launch-graph e{number} s"), "0")]);
        }
    }
    hold(&world, CAP, 416);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn what_does_not_fit_is_refused_before_the_driver_is_asked() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    make(&mut program, "large", &[600], true, 0);
    make(&mut program, "absurd", &[1 << 22], true, 0);
    program.expect(&[
        ("graph gu", "0"),
        ("alloc-node u gu 600M", "0"),
        ("launch-graph large s", "2"),
        ("upload-graph large s", "2"),
        ("launch-graph absurd", "2"),
        ("instantiate-upload e gu s", "2"),
        ("alloc-node v gu 16777215G", "2"),
    ]);
    assert_eq!(world.usage(0).refusals, 4);
    hold(&world, CAP, 0);
    make(&mut program, "fits", &[400], true, 0);
    program.expect(&[("launch-graph fits s", "0"), ("launch-graph large s", "2")]);
    let (_, errors) = program.end();
    let is_told =
        |line: &str| line.contains("refused cuGraphLaunch of ") && line.contains(" on GPU 0 ");
    assert!(errors.lines().any(is_told), "{errors}");
    world.judge_end(CAP);
}

/// As many as fit, each with memory of its own.
#[test]
fn until_it_is_full() {
    let cap = CONTEXT + 300 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    let mut answers = Vec::new();
    for number in 0..6 {
        make(&mut program, &format!("e{number}"), &[64], false, 0);
        answers.push(program.say(&format!("launch-graph e{number} s")));
        world.judge(cap);
    }
    assert_eq!(answers, ["0", "0", "0", "0", "2", "2"]);
    hold(&world, cap, 256);
    // One leaves, another comes.
    program.expect(&[("free e00", "0"), ("launch-graph e5 s", "0")]);
    hold(&world, cap, 256);
    program.expect(&[("launch-graph e0 s", "2"), ("free e10", "0")]);
    program.expect(&[("launch-graph e0 s", "0")]);
    hold(&world, cap, 256);
    program.end();
    world.judge_end(cap);
}

/// A graph that has its memory runs in a full group as often as it likes: another process has the
/// rest.
#[test]
fn repeated_launches_in_a_full_group_are_never_refused() {
    for sizes in [&[100][..], &[100, 50, 7], &[2; 20]] {
        let world = World::new(CONTEXT * 2 + 400 * MIB);
        let cap = CONTEXT * 2 + 400 * MIB;
        let mut program = world.on_gpu();
        program.expect(&[("stream s", "0"), ("stream t", "0")]);
        make(&mut program, "e", sizes, true, 0);
        make(&mut program, "kept", &[30], false, 1);
        program.expect(&[("launch-graph e s", "0")]);
        let mut other = world.on_gpu();
        let full = |other: &mut Session| {
            let answer = other.say("fill rest 1M");
            assert!(answer.starts_with('2'), "{answer}");
        };
        full(&mut other);
        assert_eq!(program.say("repeat 50 {\nlaunch-graph e s\n}"), "0:50");
        world.judge(cap);
        // In other streams too, by the memory that it has.
        let round = "launch-graph e t\nlaunch-graph e\nlaunch-graph e s\nupload-graph e t";
        assert_eq!(program.say(&format!("repeat 10 {{\n{round}\n}}")), "0:40");
        world.judge(cap);
        // Beside one that leaves something in the same memory.
        other.expect(&[("free-many rest", "0")]);
        program.expect(&[("launch-graph kept s", "0"), ("launch-graph e s", "0")]);
        full(&mut other);
        let round = "launch-graph kept s\nlaunch-graph e s\nlaunch-graph e s";
        assert_eq!(program.say(&format!("repeat 10 {{\n{round}\n}}")), "0:30");
        world.judge(cap);
        program.end_quietly();
        other.end();
        world.judge_end(cap);
    }
}

/// Whether a graph still has its memory is not to be taken for granted: something may have come
/// between since its last launch.
#[test]
fn a_launch_that_needs_new_memory_is_paid_for() {
    let cap = CONTEXT + 300 * MIB;
    // It has the memory of the idle stream, and keeps running.
    const RUNNING: (&str, &str, &str) = ("launch-graph other t", "alloc rest 100M", "4000000000");
    let mut cases = vec![
        RUNNING,
        ("launch-graph kept s", "alloc rest 100M", "0"),
        ("trim-graphs", "alloc rest 170M", "0"),
    ];
    while let Some((between, rest, work)) = cases.pop() {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[("stream s", "0"), ("stream t", "0")]);
        make(&mut program, "e", &[100], true, 0);
        make(&mut program, "kept", &[100], false, 0);
        make(&mut program, "other", &[100], true, 0);
        program.expect(&[("launch-graph e s", "0")]);
        world.machine().knob("work", work);
        let began = Instant::now();
        program.expect(&[(between, "0"), (rest, "0")]);
        let answer = program.say("launch-graph e s");
        // The machine is so slow that it did not keep running.
        if work == RUNNING.2 && began.elapsed() > Duration::from_secs(4) {
            cases.push(RUNNING);
            continue;
        }
        assert_eq!(answer, "2", "{between}");
        world.judge(cap);
        program.expect(&[("free rest", "0"), ("launch-graph e s", "0")]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// A graph that has its memory needs none given back: it may still run.
#[test]
fn launches_follow_each_other_in_a_full_group() {
    let cap = CONTEXT + 300 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    make(&mut program, "e", &[100], true, 0);
    make(&mut program, "f", &[100], true, 0);
    program.expect(&[
        ("launch-graph e s", "0"),
        ("launch-graph f s", "0"),
        ("alloc rest 150M", "0"),
    ]);
    world.machine().knob("work", "4000000000");
    let both = "launch-graph e s\nlaunch-graph f s\nlaunch-graph f s";
    assert_eq!(program.say(&format!("repeat 3 {{\n{both}\n}}")), "0:9");
    world.judge(cap);
    program.kill();
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    make(&mut program, "kept", &[100], false, 1);
    assert_eq!(program.say("repeat 3 {\nlaunch-graph kept s\n}"), "0:3");
    world.judge(cap);
    program.kill();
    world.judge_end(cap);
}

/// A refusal waits for the stream's own work, which has the memory.
#[test]
fn a_running_graph_is_launched_again_in_a_full_group() {
    let cap = CONTEXT + 150 * MIB;
    let world = World::with(cap, &[("GPULIMIT_SIM_WORK", "50000000")]);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0"), ("stream t", "0")]);
    make(&mut program, "e", &[100], true, 0);
    make(&mut program, "f", &[100], true, 0);
    let round =
        "launch-graph e s\nlaunch-graph f s\nsync s\nlaunch-graph e t\nlaunch-graph e t\nsync t";
    assert_eq!(program.say(&format!("repeat 3 {{\n{round}\n}}")), "0:18");
    // The stream of its last launch is another one, but its own has work too: a kernel's end is
    // waited for.
    hold(&world, cap, 128);
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn unused_graph_memory_is_in_nobodys_way() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    make(&mut program, "e", &[400], true, 0);
    program.expect(&[("launch-graph e s", "0"), ("alloc a 450M", "0")]);
    hold_nothing(&world);
    program.expect(&[
        ("free a", "0"),
        ("launch-graph e s", "0"),
        ("async b 400M", "0"),
    ]);
    hold_nothing(&world);
    // And the other way round.
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("free-async b", "0"),
        ("launch-graph e s", "0"),
        ("managed c 60M", "0"),
        ("create d 400M 0", "0"),
    ]);
    hold_nothing(&world);
    program.end_quietly();
    world.judge_end(CAP);
}

#[track_caller]
fn hold_nothing(world: &World) {
    assert_eq!(graphs(world), 0);
    world.judge(CAP);
}

#[test]
fn a_failed_launch_leaves_nothing() {
    for (call, command) in [
        ("cuGraphLaunch", "launch-graph e s"),
        ("cuGraphUpload", "upload-graph e s"),
        ("cuGraphInstantiateWithParams", "instantiate-upload f ge s"),
        ("cuGraphInstantiateWithFlags", "instantiate f ge"),
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[("stream s", "0")]);
        make(&mut program, "e", &[100], true, 0);
        if command.starts_with("instantiate") {
            program.expect(&[("destroy-exec e", "0")]);
        }
        for status in ["2", "700"] {
            world.machine().knob("fail", &format!("{call}:{status}"));
            program.expect(&[(command, status)]);
            world.machine().knob("fail", "none");
            hold(&world, CAP, 0);
        }
        program.expect(&[(command, "0")]);
        world.judge(CAP);
        program.end_quietly();
        world.judge_end(CAP);
    }
}

/// The driver keeps what it took for a launch that the GPU has no room for.
#[test]
fn a_launch_that_the_gpu_has_no_room_for_is_undone() {
    let cap = 4096 * MIB;
    let capacity = (1024 * MIB).to_string();
    let world = World::with(cap, &[("GPULIMIT_SIM_CAPACITY", &capacity)]);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    make(&mut program, "e", &[300, 300], false, 0);
    make(&mut program, "f", &[400], false, 0);
    program.expect(&[("launch-graph e s", "2")]);
    hold(&world, cap, 0);
    program.expect(&[("launch-graph f s", "0")]);
    hold(&world, cap, 416);
    program.end_quietly();
    world.judge_end(cap);
}

/// A context with a fault answers nothing, and holds its memory.
#[test]
fn what_the_driver_does_not_tell_stays_as_it_was() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    make(&mut program, "e", &[100], true, 0);
    program.expect(&[("launch-graph e s", "0")]);
    let silent = "cuDeviceGetGraphMemAttribute:719,cuDeviceGraphMemTrim:719";
    world.machine().knob("fail", silent);
    program.expect(&[("launch-graph e s", "0"), ("alloc a 450M", "2")]);
    hold(&world, CAP, 128);
    world.machine().knob("fail", "none");
    program.expect(&[("alloc a 450M", "0")]);
    hold_nothing(&world);
    program.end();
    world.judge_end(CAP);
}

/// What no node has told of is charged when it is there.
#[test]
fn memory_that_nobody_has_told_of_is_charged() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    let silent = "cuGraphMemAllocNodeGetParams:719";
    world.machine().knob("fail", silent);
    make(&mut program, "e", &[100], true, 0);
    world.machine().knob("fail", "none");
    program.expect(&[("launch-graph e s", "0"), ("alloc a 1M", "0")]);
    hold(&world, CAP, 128);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_failed_destruction_forgets_nothing() {
    let world = World::new(CONTEXT + 100 * MIB);
    let mut program = world.on_gpu();
    make(&mut program, "e", &[200], true, 0);
    world.machine().knob("fail", "cuGraphExecDestroy:700");
    program.expect(&[("destroy-exec e", "700")]);
    world.machine().knob("fail", "none");
    program.expect(&[("launch-graph e", "2"), ("destroy-exec e", "0")]);
    program.expect(&[("launch-graph e", "1")]);
    world.judge(CONTEXT + 100 * MIB);
    program.end();
    world.judge_end(CONTEXT + 100 * MIB);
}

/// No memory nodes: measured at the first launch, and then not looked at.
#[test]
fn ordinary_graphs_keep_their_path() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("stream s", "0"),
        ("module code 0", "0"),
        ("capture s", "0"),
        ("launch code s", "0"),
        ("launch code s", "0"),
        ("end-capture s g", "0"),
        ("instantiate e g", "0"),
        ("instantiate-nowhere g", "1"),
    ]);
    assert_eq!(program.say("repeat 100 {\nlaunch-graph e s\n}"), "0:100");
    hold(&world, CAP, 0);
    // In a full group as well.
    assert!(program.say("fill rest 1M").starts_with('2'));
    assert_eq!(program.say("repeat 100 {\nlaunch-graph e s\n}"), "0:100");
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn contexts_take_it_along() {
    let world = World::new(CONTEXT * 2 + 500 * MIB);
    let cap = CONTEXT * 2 + 500 * MIB;
    let mut program = world.on_gpu();
    make(&mut program, "e", &[100], true, 0);
    make(&mut program, "kept", &[100], false, 0);
    program.expect(&[
        ("launch-graph kept", "0"),
        ("launch-graph e", "0"),
        ("context second 0 v2", "0"),
    ]);
    assert_eq!(graphs(&world), 256 * MIB);
    world.judge(cap);
    program.expect(&[("destroy second", "0")]);
    hold(&world, cap, 256);
    program.expect(&[("reset 0", "0")]);
    assert_eq!((graphs(&world), world.machine().used()), (0, 0));
    world.judge(cap);
    program.expect(&[("retain 0", "0"), ("current 0", "0")]);
    make(&mut program, "new", &[100], true, 0);
    program.expect(&[("launch-graph new", "0")]);
    hold(&world, cap, 128);
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn nodes_take_memory_of_the_gpu_that_they_name() {
    let cap = CONTEXT + 300 * MIB;
    let world = World::with(cap, &[("GPULIMIT_SIM_GPUS", "2")]);
    let mut program = world.on_gpu();
    program.expect(&[
        ("retain 1", "0"),
        ("graph g", "0"),
        ("alloc-node here g 100M 0", "0"),
        ("alloc-node there g 200M 1", "0"),
        ("alloc-node nowhere g 200M 2", "101"),
        ("free-node g here", "0"),
        ("free-node g there", "0"),
        ("instantiate e g", "0"),
        ("launch-graph e", "0"),
    ]);
    let by = |gpu| world.usage(gpu).by[Category::Graphs as usize];
    assert_eq!((by(0), by(1)), (128 * MIB, 224 * MIB));
    world.judge(cap);
    // What one GPU has no room for takes nothing of the other.
    program.expect(&[
        ("trim-graphs 0", "0"),
        ("trim-graphs 1", "0"),
        ("current 1", "0"),
        ("alloc rest 200M", "0"),
        ("current 0", "0"),
        ("launch-graph e", "2"),
    ]);
    assert_eq!((by(0), by(1)), (0, 0));
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn threads_launch_at_the_limit() {
    let cap = CONTEXT + 150 * MIB;
    let latency = ("GPULIMIT_SIM_LATENCY", "cuGraphLaunch:100000");
    let world = World::with(cap, &[latency]);
    let mut program = world.on_gpu();
    for name in ["a", "b", "c"] {
        make(&mut program, name, &[100], true, 0);
    }
    program.expect(&[("stream s", "0"), ("stream t", "0")]);
    // One stream, and several: the memory of each is another's.
    for streams in [["s", "s", "s"], ["s", "t", "s"]] {
        let line = |at: usize, name: &str| format!("launch-graph {name} {}", streams[at]);
        let lines = [line(0, "a"), line(1, "b"), line(2, "c")].join("\n");
        let answer = program.say(&format!("threads 4 {{\nrepeat 50 {{\n{lines}\n}}\n}}"));
        assert_eq!(answer, ["0:150"; 4].join(", "));
        hold(&world, cap, 128);
    }
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn threads_race_for_the_last_bytes() {
    let cap = CONTEXT + 400 * MIB;
    let latency = ("GPULIMIT_SIM_LATENCY", "cuGraphLaunch:50000");
    let world = World::with(cap, &[latency]);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    let script = "graph g\nalloc-node a g 60M\ninstantiate e g\nlaunch-graph e s\nfree-async a s\nalloc b 50M\nfree b\ndestroy-exec e\ndestroy-graph g";
    program.say(&format!("threads 4 {{\nrepeat 30 {{\n{script}\n}}\n}}"));
    world.judge(cap);
    program.expect(&[("trim-graphs", "0")]);
    hold(&world, cap, 0);
    program.end();
    world.judge_end(cap);
}

/// The calls that we make besides are none that a capture in the global mode would mind.
#[test]
fn a_launch_in_a_full_group_spoils_no_capture() {
    let cap = CONTEXT + 150 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0"), ("stream t", "0")]);
    make(&mut program, "e", &[100], true, 0);
    make(&mut program, "f", &[120], true, 0);
    make(&mut program, "large", &[200], true, 0);
    program.expect(&[
        ("launch-graph e s", "0"),
        ("capture t", "0"),
        ("async a 1M t", "0"),
        ("launch-graph f s", "0"),
        ("launch-graph large s", "2"),
        // Becomes a node.
        ("launch-graph large t", "0"),
        ("free-async a t", "0"),
        ("end-capture t g", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// Every thread has a default stream of its own, and they go by one handle.
#[test]
fn threads_own_streams_are_told_apart() {
    let cap = CONTEXT + 150 * MIB;
    let world = World::with(cap, &[("GPULIMIT_SIM_WORK", "4000000000")]);
    let mut program = world.start_with(&["--ptsz"]);
    program.expect(&[("start", "0 0")]);
    make(&mut program, "e", &[100], true, 0);
    program.expect(&[("launch-graph e", "0"), ("launch-graph e", "0")]);
    assert_eq!(program.say("threads 1 {\nlaunch-graph e\n}"), "2:1");
    world.judge(cap);
    program.kill();
    world.judge_end(cap);
}

/// Makes a graph of a kernel with 16 KiB for each of 132 × 2,048 threads, which are 3,960 MiB more
/// than there are, executable.
fn instantiate_deep(program: &mut Session, outcome: &str) {
    program.expect(&[
        ("stream work", "0"),
        ("kernels deep 16K", "0"),
        ("capture work", "0"),
        ("launch deep work", "0"),
        ("end-capture work nodes", "0"),
        ("instantiate runs nodes", outcome),
    ]);
}

/// Limits at which that is refused, and served.
const DEEP: [(u64, &str); 2] = [(CONTEXT + 3900 * MIB, "2"), (CONTEXT + 3980 * MIB, "0")];

/// The local memory of a graph's kernels comes with its instantiation.
#[test]
fn kernels_in_a_graph_are_paid_for_when_it_is_instantiated() {
    for (cap, outcome) in DEEP {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        instantiate_deep(&mut program, outcome);
        world.judge(cap);
        if outcome == "0" {
            program.expect(&[
                ("launch-graph runs work", "0"),
                ("launch-graph runs work", "0"),
            ]);
            world.judge(cap);
        }
        program.end();
        world.judge_end(cap);
    }
}

/// Before CUDA 12 nodes tell their kernels by another function.
#[test]
fn kernels_in_a_graph_are_paid_for_on_older_drivers() {
    for (cap, outcome) in DEEP {
        let world = World::new(cap);
        let folder = world.file("older");
        world::older("libcuda.so.1", "cuGraphKernelNodeGetParams_v2", &folder);
        let mut command = world.limited(world::program());
        let folders = format!("{}:{}", folder.display(), world::driver().display());
        command.env("LD_LIBRARY_PATH", folders);
        let mut program = Session::start(command);
        program.expect(&[("start", "0 0")]);
        instantiate_deep(&mut program, outcome);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}
