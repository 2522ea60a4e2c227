//! Code that is loaded where it is first needed: every call that may be the first pays for the
//! variables before the driver takes them.

use gpulimit_programs::world::{CONTEXT, MIB, Session, World};

/// The variable of the libraries here.
const DATA: u64 = 300 * MIB;
/// What a call pays ahead besides.
const RESERVE: u64 = 4 * MIB;

/// What tells about a kernel in the current context, or sets something there.
const ASK: [&str; 9] = [
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuOccupancyMaxPotentialClusterSize",
    "cuOccupancyMaxActiveClusters",
    "cuKernelGetParamInfo",
    "cuKernelGetParamCount",
];
/// What sets something in all contexts of a GPU.
const SET: [&str; 2] = ["cuKernelSetAttribute", "cuKernelSetCacheConfig"];
/// What adds a node with a kernel, or puts it into one.
const NODES: [&str; 7] = [
    "cuGraphAddKernelNode_v2",
    "cuGraphAddNode",
    "cuGraphAddNode_v2",
    "cuGraphAddNode_v3",
    "cuGraphKernelNodeSetParams_v2",
    "cuGraphNodeSetParams",
    "cuGraphNodeSetParams_v2",
];
/// What loads a function that was only listed.
const FUNCTIONS: [&str; 4] = [
    "cuFuncLoad",
    "cuFuncSetAttribute",
    "cuFuncSetCacheConfig",
    "cuFuncSetSharedMemConfig",
];

/// Every command that loads the library `l` in the current context, and the function that it calls.
fn ways() -> Vec<(String, &'static str)> {
    let ask = ASK.into_iter().chain(SET);
    let ask = ask.map(|name| (format!("ask {name} l"), name));
    let nodes = NODES.into_iter();
    let nodes = nodes.map(|name| (format!("kernel-node {name} g l"), name));
    ask.chain(nodes).collect()
}

/// A graph `g` with a node of a small kernel, a lazily loaded library `l`.
fn prepare(program: &mut Session) {
    program.expect(&[
        ("module small 0", "0"),
        ("graph g", "0"),
        ("listed-node cuGraphAddKernelNode_v2 g small", "0"),
        ("library l 300M", "0"),
    ]);
}

#[test]
fn every_way_is_served_at_what_it_takes_and_refused_below() {
    let cap = CONTEXT + DATA + RESERVE;
    for (way, function) in ways() {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        prepare(&mut program);
        program.expect(&[("library other 300M", "0")]);
        assert_eq!(world.machine().used(), CONTEXT, "nothing is loaded yet");
        let refused = way.replace(" l", " other");
        program.expect(&[(&way, "0"), (&way, "0"), (&refused, "2"), (&refused, "2")]);
        world.judge(cap);
        assert_eq!(world.machine().gpu(0).peak, CONTEXT + DATA, "{way}");
        assert_eq!(world.usage(0).refusals, 2);
        // What is there needs nothing more.
        program.say("fill rest 1M");
        for (way, _) in ways() {
            program.expect(&[(&way, "0")]);
        }
        world.judge(cap);
        program.expect(&[("unload-library l", "0"), (&refused, "0")]);
        world.judge(cap);
        let (_, errors) = program.end();
        let plain = function.split('_').next().unwrap();
        assert!(errors.contains(&format!("refused {plain} of ")), "{errors}");
        world.judge_end(cap);
    }
}

/// Drivers before CUDA 12.5 do not tell which library a kernel is of: it is remembered from when
/// the kernel was got.
#[test]
fn with_an_older_driver_a_kernel_pays_for_its_own_library_alone() {
    let cap = CONTEXT + 20 * MIB + RESERVE;
    let world = World::with(cap, &[("GPULIMIT_SIM_FAIL", "cuKernelGetLibrary:500")]);
    let mut program = world.on_gpu();
    program.expect(&[
        ("library other 300M", "0"),
        ("library l 20M", "0"),
        ("ask cuKernelGetParamInfo l", "0"),
        ("ask cuKernelGetParamInfo other", "2"),
    ]);
    assert_eq!(world.machine().gpu(0).peak, CONTEXT + 20 * MIB);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// One for each that goes a way of its own.
const SOME: [&str; 4] = [
    "ask cuOccupancyMaxActiveClusters l",
    "ask cuKernelSetAttribute l",
    "kernel-node cuGraphAddKernelNode_v2 g l",
    "kernel-node cuGraphNodeSetParams g l",
];

/// A library is in each context by itself.
#[test]
fn each_context_is_paid_for() {
    let cap = 2 * CONTEXT + 2 * DATA - 10 * MIB;
    for way in SOME {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        prepare(&mut program);
        program.expect(&[("context other 0 v2", "0")]);
        if way == SOME[1] {
            // In both at once.
            program.expect(&[(way, "2"), (way, "2")]);
        } else {
            program.expect(&[(way, "0"), ("current 0", "0"), (way, "2")]);
        }
        world.judge(cap);
        program.expect(&[
            ("destroy other", "0"),
            ("current 0", "0"),
            ("unload-library l", "0"),
            ("library l 300M", "0"),
            (way, "0"),
        ]);
        assert_eq!(world.machine().used(), CONTEXT + DATA, "{way}");
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// Whichever is current, and where none is.
#[test]
fn what_is_set_for_a_gpu_is_set_in_all_contexts() {
    let cap = 2 * CONTEXT + 2 * DATA + 10 * MIB;
    for name in SET {
        for current in [&["use other"][..], &["current 0"], &["pop", "pop"]] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            prepare(&mut program);
            program.expect(&[("context other 0 v2", "0")]);
            for line in current {
                program.expect(&[(line, "0")]);
            }
            let way = format!("ask {name} l");
            program.expect(&[(&way, "0"), (&way, "0")]);
            assert_eq!(world.machine().used(), 2 * (CONTEXT + DATA), "{name}");
            world.judge(cap);
            program.expect(&[("use other", "0"), ("library-function l", "0")]);
            program.expect(&[("current 0", "0"), ("library-function l", "0")]);
            world.judge(cap);
            program.end_quietly();
            world.judge_end(cap);
        }
    }
}

/// A node may name the context of its kernel.
#[test]
fn a_node_loads_its_kernel_where_it_runs() {
    let cap = 2 * CONTEXT + DATA + 10 * MIB;
    for way in &SOME[2..] {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        prepare(&mut program);
        let elsewhere = format!("{way} other");
        program.expect(&[
            ("context other 0 v2", "0"),
            ("current 0", "0"),
            (&elsewhere, "0"),
            (&elsewhere, "0"),
            ("library-function l", "2"),
            ("use other", "0"),
            ("library-function l", "0"),
        ]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// Code is loaded where a function is first got, or something is asked or set. How much that is
/// nobody says; it is found at once.
#[test]
fn functions_that_are_loaded_lazily_count_at_once() {
    let functions = FUNCTIONS.iter().chain(&ASK[..1]);
    let functions = functions.map(|name| format!("ask-listed {name} parts"));
    let nodes = ["cuGraphAddKernelNode", "cuGraphKernelNodeSetParams"];
    let nodes = nodes.map(|name| format!("listed-node {name} g parts"));
    let of_module = functions
        .chain(nodes)
        .chain(["get-function parts".to_owned()]);
    let of_module = of_module.map(|way| (way, "kernels parts 0 long"));
    let of_library = SOME.map(|way| (way.replace(" l", " parts"), "kernel-library parts 0 long"));
    let cap = CONTEXT + DATA;
    for (way, load) in of_module.chain(of_library) {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        prepare(&mut program);
        program.expect(&[(load, "0")]);
        assert_eq!(world.machine().used(), CONTEXT, "nothing is loaded yet");
        for _ in 0..2 {
            program.expect(&[(&way, "0")]);
            assert_eq!(world.machine().used(), CONTEXT + 10 * MIB, "{way}");
            world.judge(cap);
        }
        program.end_quietly();
        world.judge_end(cap);
    }
}

/// The driver's own answer, and nothing stays charged.
#[test]
fn what_fails_costs_nothing() {
    let cap = CONTEXT + DATA + RESERVE;
    for way in SOME {
        let function = way.split(' ').nth(1).unwrap();
        let world = World::new(cap);
        let mut program = world.on_gpu();
        prepare(&mut program);
        world.machine().knob("fail", &format!("{function}:700"));
        program.expect(&[(way, "700"), (way, "700")]);
        world.machine().knob("fail", "none");
        world.judge(cap);
        if way.starts_with("ask") {
            program.expect(&[(&format!("ask-nothing {function}"), "400")]);
        }
        program.expect(&[(way, "0")]);
        world.judge(cap);
        program.end_quietly();
        world.judge_end(cap);
    }
}
