//! Memory nodes of graphs are charged before a launch or an upload, and for as long as the driver
//! keeps their memory.

use gpulimit_ledger::Category;
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};

const CAP: u64 = CONTEXT + 500 * MIB;
/// Bytes that the first executable graph of a context takes itself, with room for the library's
/// reserve and its spare block.
const OWN: u64 = 8 * MIB;

/// Makes an executable graph named `exec` plus `name`, with nodes that allocate these sizes, and
/// nodes that free them again if `freed`.
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

/// Returns the group's charge for graphs.
fn graphs(world: &World) -> u64 {
    world.usage(0).by[Category::Graphs as usize]
}

/// Asserts that the driver holds this many MiB for graphs, and that the group is charged for them.
#[track_caller]
fn assert_graph_memory(world: &World, cap: u64, mib: u64) {
    assert_eq!(graphs(world), mib * MIB);
    let used = world.machine().used();
    assert!((CONTEXT + mib * MIB..=CONTEXT + mib * MIB + OWN).contains(&used));
    world.judge(cap);
}

#[test]
fn launches_are_charged_for_their_nodes() {
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
        assert_graph_memory(&world, CAP, 0);
        program.expect(&[(&format!("launch-graph {name} s"), "0"), ("sync s", "0")]);
        assert_graph_memory(&world, CAP, reserved);
        program.expect(&[(&format!("destroy-exec {name}"), "0")]);
        assert_graph_memory(&world, CAP, reserved);
        program.expect(&[("trim-graphs", "0")]);
        assert_graph_memory(&world, CAP, 0);
    }
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn an_upload_is_charged_and_the_launch_costs_no_more() {
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
        assert_graph_memory(&world, CAP, 128);
        assert_eq!(program.say("repeat 20 {\nlaunch-graph e s\n}"), "0:20");
        assert_graph_memory(&world, CAP, 128);
        program.end_quietly();
        world.judge_end(CAP);
    }
}

/// Uses every way to make graphs and to make them executable.
#[test]
fn every_way_to_make_a_graph_is_charged() {
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
                // The graph is made in a group without room for it: only a library that has looked
                // at the graph's nodes can refuse.
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
                assert_graph_memory(&world, CAP, mib);
                program.expect(&[("destroy-graph g", "0"), ("trim-graphs", "0")]);
                assert_graph_memory(&world, CAP, 0);
            }
        }
        program.end();
        world.judge_end(CAP);
    }
}

#[test]
fn captured_allocations_are_charged_at_the_launch() {
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
    assert_graph_memory(&world, CAP, 0);
    program.expect(&[("launch-graph e s", "0"), ("sync s", "0")]);
    assert_graph_memory(&world, CAP, 128);
    program.expect(&[("free b", "0")]);
    assert_graph_memory(&world, CAP, 128);
    program.expect(&[("launch-graph e s", "0"), ("free-async b s", "0")]);
    assert_graph_memory(&world, CAP, 128);
    program.expect(&[("launch-graph e s", "0"), ("trim-graphs", "0")]);
    assert_graph_memory(&world, CAP, 64);
    program.end_quietly();
    world.judge_end(CAP);
}

/// Memory that a graph allocates and frees a hundred times is needed once.
#[test]
fn memory_reused_within_a_graph_is_charged_once() {
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
    assert_graph_memory(&world, CAP, 224);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn memory_left_by_a_launch_is_freed_in_four_ways() {
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
        assert_graph_memory(&world, CAP, 128);
        program.expect(&[(free, "0"), ("sync", "0")]);
        assert_graph_memory(&world, CAP, 128);
        // The memory no longer belongs to the graph or to anything else.
        program.expect(&[("free kept0", "1"), ("trim-graphs", "0")]);
        assert_graph_memory(&world, CAP, 0);
    }
    make(&mut program, "auto", &[100], false, 1);
    assert_eq!(program.say("repeat 9 {\nlaunch-graph auto s\n}"), "0:9");
    assert_graph_memory(&world, CAP, 128);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn graphs_of_one_stream_share_their_memory() {
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
    assert_graph_memory(&world, CAP, 416);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_launch_that_does_not_fit_is_refused_before_the_driver_call() {
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
    assert_graph_memory(&world, CAP, 0);
    make(&mut program, "fits", &[400], true, 0);
    program.expect(&[("launch-graph fits s", "0"), ("launch-graph large s", "2")]);
    let (_, errors) = program.end();
    let is_told =
        |line: &str| line.contains("refused cuGraphLaunch of ") && line.contains(" on GPU 0 ");
    assert!(errors.lines().any(is_told), "{errors}");
    world.judge_end(CAP);
}

/// The program launches as many graphs as fit, each with memory of its own.
#[test]
fn graphs_are_launched_until_the_group_is_full() {
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
    assert_graph_memory(&world, cap, 256);
    // One graph's memory is freed, and the next graph fits.
    program.expect(&[("free e00", "0"), ("launch-graph e5 s", "0")]);
    assert_graph_memory(&world, cap, 256);
    program.expect(&[("launch-graph e0 s", "2"), ("free e10", "0")]);
    program.expect(&[("launch-graph e0 s", "0")]);
    assert_graph_memory(&world, cap, 256);
    program.end();
    world.judge_end(cap);
}

/// A graph that has its memory runs in a full group any number of times; another process holds the
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
        // The graph also runs in other streams, with the memory that it has.
        let round = "launch-graph e t\nlaunch-graph e\nlaunch-graph e s\nupload-graph e t";
        assert_eq!(program.say(&format!("repeat 10 {{\n{round}\n}}")), "0:40");
        world.judge(cap);
        // Another graph leaves an allocation in the same memory.
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

/// A graph may have lost its memory since its last launch, so the library must not assume that it
/// still has it.
#[test]
fn a_launch_that_needs_new_memory_is_charged() {
    let cap = CONTEXT + 300 * MIB;
    // The other graph takes the memory of the idle stream, and keeps running.
    let mut cases = vec![
        ("launch-graph other t", "alloc rest 100M", 500_000_000_u64),
        ("launch-graph kept s", "alloc rest 100M", 0),
        ("trim-graphs", "alloc rest 170M", 0),
    ];
    while let Some((between, rest, work)) = cases.pop() {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        program.expect(&[("stream s", "0"), ("stream t", "0")]);
        make(&mut program, "e", &[100], true, 0);
        make(&mut program, "kept", &[100], false, 0);
        make(&mut program, "other", &[100], true, 0);
        program.expect(&[("launch-graph e s", "0")]);
        world.machine().knob("work", &work.to_string());
        program.expect(&[(between, "0"), (rest, "0")]);
        let answer = program.say("launch-graph e s");
        // A busy machine may be so slow that the other graph has finished.
        if work > 0 && program.say("query t") == "0" {
            cases.push((between, rest, 2 * work));
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

/// A graph that has its memory needs no other memory trimmed, although that memory's graph may
/// still run.
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

/// Before a refusal the library waits for the work of the request's own stream, which holds the
/// memory.
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
    // The graph was last launched in another stream, but the launching stream has work too: the
    // call waits for the end of a kernel.
    assert_graph_memory(&world, cap, 128);
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn unused_graph_memory_makes_way_for_other_requests() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    make(&mut program, "e", &[400], true, 0);
    program.expect(&[("launch-graph e s", "0"), ("alloc a 450M", "0")]);
    assert_no_graph_memory(&world);
    program.expect(&[
        ("free a", "0"),
        ("launch-graph e s", "0"),
        ("async b 400M", "0"),
    ]);
    assert_no_graph_memory(&world);
    // A graph also takes the place of unused pool memory.
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("free-async b", "0"),
        ("launch-graph e s", "0"),
        ("managed c 60M", "0"),
        ("create d 400M 0", "0"),
    ]);
    assert_no_graph_memory(&world);
    program.end_quietly();
    world.judge_end(CAP);
}

#[track_caller]
fn assert_no_graph_memory(world: &World) {
    assert_eq!(graphs(world), 0);
    world.judge(CAP);
}

#[test]
fn a_failed_launch_leaves_no_charge() {
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
            assert_graph_memory(&world, CAP, 0);
        }
        program.expect(&[(command, "0")]);
        world.judge(CAP);
        program.end_quietly();
        world.judge_end(CAP);
    }
}

/// The driver keeps memory that it took for a launch for which the GPU then has no room.
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
    assert_graph_memory(&world, cap, 0);
    program.expect(&[("launch-graph f s", "0")]);
    assert_graph_memory(&world, cap, 416);
    program.end_quietly();
    world.judge_end(cap);
}

/// A context with a fault answers no question, and keeps its memory.
#[test]
fn the_charge_stays_while_the_driver_reports_no_figures() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    make(&mut program, "e", &[100], true, 0);
    program.expect(&[("launch-graph e s", "0")]);
    let silent = "cuDeviceGetGraphMemAttribute:719,cuDeviceGraphMemTrim:719";
    world.machine().knob("fail", silent);
    program.expect(&[("launch-graph e s", "0"), ("alloc a 450M", "2")]);
    assert_graph_memory(&world, CAP, 128);
    world.machine().knob("fail", "none");
    program.expect(&[("alloc a 450M", "0")]);
    assert_no_graph_memory(&world);
    program.end();
    world.judge_end(CAP);
}

/// Memory of a node whose size the driver does not report is charged when the driver has taken it.
#[test]
fn memory_of_an_unreadable_node_is_charged() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    let silent = "cuGraphMemAllocNodeGetParams:719";
    world.machine().knob("fail", silent);
    make(&mut program, "e", &[100], true, 0);
    world.machine().knob("fail", "none");
    program.expect(&[("launch-graph e s", "0"), ("alloc a 1M", "0")]);
    assert_graph_memory(&world, CAP, 128);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn a_failed_destruction_keeps_the_charge() {
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

/// A graph without memory nodes is measured at its first launch, and later launches skip the check.
#[test]
fn graphs_without_memory_nodes_run_in_a_full_group() {
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
    assert_graph_memory(&world, CAP, 0);
    // The graph also runs in a full group.
    assert!(program.say("fill rest 1M").starts_with('2'));
    assert_eq!(program.say("repeat 100 {\nlaunch-graph e s\n}"), "0:100");
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn destroying_a_context_uncharges_its_graph_memory() {
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
    assert_graph_memory(&world, cap, 256);
    program.expect(&[("reset 0", "0")]);
    assert_eq!((graphs(&world), world.machine().used()), (0, 0));
    world.judge(cap);
    program.expect(&[("retain 0", "0"), ("current 0", "0")]);
    make(&mut program, "new", &[100], true, 0);
    program.expect(&[("launch-graph new", "0")]);
    assert_graph_memory(&world, cap, 128);
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
    // A launch that does not fit on one GPU takes no memory on the other.
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
fn threads_launching_graphs_keep_to_the_limit() {
    let cap = CONTEXT + 150 * MIB;
    let latency = ("GPULIMIT_SIM_LATENCY", "cuGraphLaunch:100000");
    let world = World::with(cap, &[latency]);
    let mut program = world.on_gpu();
    for name in ["a", "b", "c"] {
        make(&mut program, name, &[100], true, 0);
    }
    program.expect(&[("stream s", "0"), ("stream t", "0")]);
    // With one stream the graphs share their memory; with several, each stream's memory is
    // separate.
    for streams in [["s", "s", "s"], ["s", "t", "s"]] {
        let line = |at: usize, name: &str| format!("launch-graph {name} {}", streams[at]);
        let lines = [line(0, "a"), line(1, "b"), line(2, "c")].join("\n");
        let answer = program.say(&format!("threads 4 {{\nrepeat 50 {{\n{lines}\n}}\n}}"));
        assert_eq!(answer, ["0:150"; 4].join(", "));
        assert_graph_memory(&world, cap, 128);
    }
    program.end_quietly();
    world.judge_end(cap);
}

#[test]
fn threads_racing_for_the_last_bytes_keep_to_the_limit() {
    let cap = CONTEXT + 400 * MIB;
    let latency = ("GPULIMIT_SIM_LATENCY", "cuGraphLaunch:50000");
    let world = World::with(cap, &[latency]);
    let mut program = world.on_gpu();
    program.expect(&[("stream s", "0")]);
    let script = "graph g\nalloc-node a g 60M\ninstantiate e g\nlaunch-graph e s\nfree-async a s\n\
        alloc b 50M\nfree b\ndestroy-exec e\ndestroy-graph g";
    program.say(&format!("threads 4 {{\nrepeat 30 {{\n{script}\n}}\n}}"));
    world.judge(cap);
    program.expect(&[("trim-graphs", "0")]);
    assert_graph_memory(&world, cap, 0);
    program.end();
    world.judge_end(cap);
}

/// The library's additional calls must not invalidate a capture in the global mode.
#[test]
fn a_launch_in_a_full_group_keeps_a_capture_valid() {
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
        // The launch becomes a node of the captured graph.
        ("launch-graph large t", "0"),
        ("free-async a t", "0"),
        ("end-capture t g", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// Every thread has a default stream of its own, and all of these streams have the same handle.
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

/// Makes a graph executable whose kernel needs 16 KiB for each of 132 × 2,048 threads: 3,960 MiB
/// beyond what a context starts with.
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

/// A limit at which the instantiation is refused, and one at which it succeeds.
const DEEP: [(u64, &str); 2] = [(CONTEXT + 3900 * MIB, "2"), (CONTEXT + 3980 * MIB, "0")];

/// Instantiating a graph takes the local memory of its kernels.
#[test]
fn instantiating_a_graph_is_charged_for_its_kernels() {
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

/// Before CUDA 12, another function reports the kernels of nodes.
#[test]
fn instantiating_a_graph_is_charged_on_older_drivers() {
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
