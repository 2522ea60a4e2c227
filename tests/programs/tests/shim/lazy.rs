//! Code loaded at its first use: every call that may be the first use is charged for the variables
//! before the driver takes them.

use gpulimit_programs::world::{CONTEXT, MIB, Session, World};

/// Bytes of the variable in each library of these tests.
const DATA: u64 = 300 * MIB;
/// Bytes of the reserve that a call charges in advance besides.
const RESERVE: u64 = 4 * MIB;

/// Functions that query a kernel in the current context, or set one of its attributes there.
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
/// Functions that set an attribute of a kernel in all contexts of a GPU.
const SET: [&str; 2] = ["cuKernelSetAttribute", "cuKernelSetCacheConfig"];
/// Functions that add a node with a kernel, or put a kernel into a node.
const NODES: [&str; 7] = [
    "cuGraphAddKernelNode_v2",
    "cuGraphAddNode",
    "cuGraphAddNode_v2",
    "cuGraphAddNode_v3",
    "cuGraphKernelNodeSetParams_v2",
    "cuGraphNodeSetParams",
    "cuGraphNodeSetParams_v2",
];
/// Functions that load a function that was only listed before.
const FUNCTIONS: [&str; 4] = [
    "cuFuncLoad",
    "cuFuncSetAttribute",
    "cuFuncSetCacheConfig",
    "cuFuncSetSharedMemConfig",
];

/// Returns every command that loads the library `l` in the current context, with the function that
/// the command calls.
fn ways() -> Vec<(String, &'static str)> {
    let ask = ASK.into_iter().chain(SET);
    let ask = ask.map(|name| (format!("ask {name} l"), name));
    let nodes = NODES.into_iter();
    let nodes = nodes.map(|name| (format!("kernel-node {name} g l"), name));
    ask.chain(nodes).collect()
}

/// Makes a graph `g` with a node of a small kernel, and a lazily loaded library `l`.
fn prepare(program: &mut Session) {
    program.expect(&[
        ("module small 0", "0"),
        ("graph g", "0"),
        ("listed-node cuGraphAddKernelNode_v2 g small", "0"),
        ("library l 300M", "0"),
    ]);
}

#[test]
fn every_first_use_is_refused_below_what_it_takes() {
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
        // A loaded library needs no further memory.
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

/// Drivers before CUDA 12.5 do not report which library a kernel belongs to: gpulimit remembers the
/// library from when the program got the kernel.
#[test]
fn an_older_driver_still_charges_only_the_kernels_own_library() {
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

/// One command for each way in which the library handles these calls.
const SOME: [&str; 4] = [
    "ask cuOccupancyMaxActiveClusters l",
    "ask cuKernelSetAttribute l",
    "kernel-node cuGraphAddKernelNode_v2 g l",
    "kernel-node cuGraphNodeSetParams g l",
];

/// Each context loads the library separately.
#[test]
fn a_library_is_charged_in_each_context() {
    let cap = 2 * CONTEXT + 2 * DATA - 10 * MIB;
    for way in SOME {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        prepare(&mut program);
        program.expect(&[("context other 0 v2", "0")]);
        if way == SOME[1] {
            // The call loads the library in both contexts at once.
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

/// The attribute is set in all contexts, whichever is current, and also if none is.
#[test]
fn attributes_set_for_a_gpu_are_charged_in_all_contexts() {
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
fn a_node_loads_its_kernel_in_the_context_it_names() {
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

/// The driver loads code when a function is first looked up, queried or changed. The library cannot
/// know the size in advance, and measures it directly after the call.
#[test]
fn lazily_loaded_functions_are_charged_at_once() {
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

/// The program gets the driver's own answer, and no charge stays.
#[test]
fn a_failed_first_use_leaves_no_charge() {
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
