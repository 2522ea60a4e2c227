//! Executable graphs whose kernels are changed: the local memory that another kernel needs is
//! charged before the driver takes it.

use gpulimit_programs::world::{BLOCK, CONTEXT, MIB, Session, World};

/// Bytes that 8 KiB of local memory per thread take beyond what a context starts with: an H100
/// holds 132 × 2048 threads.
const LOCAL: u64 = 8192 * 132 * 2048 - 264 * MIB;
/// The usage with a context and its first executable graph, which takes a block.
const GRAPHS: u64 = CONTEXT + BLOCK;
/// Bytes of the reserve that a call charges in advance besides.
const RESERVE: u64 = 4 * MIB;

/// Makes a graph `g` with a kernel, a graph `o` around it, and graphs `g2` and `o2` that have a
/// kernel with much local memory in its place.
fn prepare(program: &mut Session) {
    for line in PREPARE {
        program.expect(&[(line, "0")]);
    }
}

const PREPARE: [&str; 15] = [
    "stream s",
    "kernels small 0",
    "kernels big 8192",
    "kernel-library deep 8192",
    "launch small s",
    "capture s",
    "launch small s",
    "end-capture s g",
    "capture s",
    "launch big s",
    "end-capture s g2",
    "graph o",
    "child-node o g",
    "graph o2",
    "child-node o2 g2",
];

/// Every way to put the kernel into an executable graph of `g` or of `o`.
const WAYS: [(&str, &str); 9] = [
    ("g", "update e g2"),
    ("g", "update-v1 e g2"),
    ("o", "update e o2"),
    ("g", "set-kernel e g 0 big"),
    ("g", "set-kernel-of e g 0 deep"),
    ("g", "set-kernel-v1 e g 0 big"),
    ("g", "set-kernel-node e g 0 big"),
    ("o", "set-child e o 0 g2"),
    ("o", "set-child-node e o 0 g2"),
];

#[test]
fn another_kernel_is_refused_below_what_it_takes() {
    let cap = GRAPHS + LOCAL + RESERVE;
    for (graph, way) in WAYS {
        for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            prepare(&mut program);
            program.expect(&[
                (&format!("instantiate e {graph}"), "0"),
                ("launch-graph e s", "0"),
                (way, answer),
                // A refused change leaves no trace: the same change is refused again.
                (way, answer),
                ("launch-graph e s", "0"),
                ("launch-graph e s", "0"),
            ]);
            world.judge(cap);
            let taken = if answer == "0" { LOCAL } else { 0 };
            assert_eq!(world.machine().used(), GRAPHS + taken, "{way}");
            if answer == "0" {
                program.end_quietly();
            } else {
                assert_eq!(world.machine().gpu(0).peak, GRAPHS, "{way}: not asked");
                assert_eq!(world.usage(0).refusals, 2);
                let (_, errors) = program.end();
                assert!(errors.contains("refused cuGraphExec"), "{errors}");
            }
            world.judge_end(cap);
        }
    }
}

/// An update looks at no node if the need of each kernel in a graph is known, so each way to put a
/// kernel into a graph asks for its need.
#[test]
fn every_way_into_a_graph_tells_the_need_of_its_kernel() {
    let tight = GRAPHS + LOCAL + RESERVE - 2 * BLOCK;
    for way in [
        ["capture s", "launch big s", "end-capture s g2"],
        ["capture s", "launch-handle listed s", "end-capture s g2"],
        ["capture s", "launch-handle unseen s", "end-capture s g2"],
        [
            "graph g2",
            "kernel-node cuGraphAddKernelNode_v2 g2 deep",
            "",
        ],
        ["graph g2", "listed-node cuGraphAddKernelNode g2 big", ""],
        [
            "graph g2",
            "kernel-node cuGraphAddNode g2 flat",
            "kernel-node cuGraphNodeSetParams g2 deep",
        ],
    ] {
        // Nothing tells the need of a kernel that the library has not seen: it is measured.
        let measured = way[1].contains("unseen");
        let cap = if measured { tight + 100 * MIB } else { tight };
        let world = World::new(cap);
        let mut program = world.on_gpu();
        for line in [
            "stream s",
            "kernels small 0",
            "launch small s",
            "capture s",
            "launch small s",
            "end-capture s g",
            "kernels big 8192",
            "listed listed cuModuleEnumerateFunctions big",
            "ask-listed cuFuncLoad big",
            "kernel-library deep 8192",
            "kernel-library flat 0",
            "kernels other 8192",
            "unseen-function unseen other",
            "instantiate e g",
            "launch-graph e s",
        ]
        .into_iter()
        .chain(way)
        .filter(|line| !line.is_empty())
        {
            program.expect(&[(line, "0")]);
        }
        let answer = if measured { "0" } else { "2" };
        assert_eq!(program.say("update e g2"), answer, "{way:?}");
        program.expect(&[("launch-graph e s", "0")]);
        let taken = if measured { LOCAL } else { 0 };
        assert_eq!(world.machine().used(), GRAPHS + taken, "{way:?}");
        if measured {
            program.expect(&[("alloc a 90M", "0"), ("alloc b 20M", "2")]);
        }
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn a_changed_graph_is_charged_again_after_a_lowered_limit() {
    let cap = GRAPHS + LOCAL + RESERVE;
    for (graph, way) in WAYS {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        prepare(&mut program);
        program.expect(&[
            (&format!("instantiate e {graph}"), "0"),
            ("launch-graph e s", "0"),
        ]);
        program.expect(&[(way, "0"), ("launch-graph e s", "0")]);
        for _ in 0..2 {
            program.expect(&[("set-limit 0 1024", "0")]);
            assert_eq!(world.machine().used(), GRAPHS);
            program.expect(&[("launch-graph e s", "0"), ("launch-graph e s", "0")]);
            assert_eq!(world.machine().used(), GRAPHS + LOCAL, "{way}");
            world.judge(cap);
        }
        program.expect(&[
            ("set-limit 0 1024", "0"),
            ("alloc a 8M", "0"),
            ("launch-graph e s", "2"),
            (way, "2"),
        ]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// Some programs change their graphs before every launch.
#[test]
fn known_kernels_can_be_set_in_a_full_group() {
    let cap = GRAPHS + 100 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    prepare(&mut program);
    program.expect(&[
        ("kernels other 0", "0"),
        ("kernels some 512", "0"),
        ("instantiate e g", "0"),
        ("instantiate f o", "0"),
        ("set-kernel e g 0 other", "0"),
        ("set-kernel e g 0 some", "0"),
        ("launch-graph e s", "0"),
        ("launch-graph f s", "0"),
    ]);
    let answer = program.say("fill filler 2M");
    assert!(answer.starts_with("2 "), "{answer}");
    program.say("fill rest 4K");
    let lines = "set-kernel e g 0 other\nset-kernel e g 0 some\nupdate e g\nset-child f o 0 g\n\
        launch-graph e s\nlaunch-graph f s";
    let answer = program.say(&format!("repeat 20 {{\n{lines}\n}}"));
    assert_eq!(answer, "0:120");
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn wrong_input_gets_the_drivers_answer_and_leaves_no_charge() {
    let cap = GRAPHS + LOCAL + 100 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    prepare(&mut program);
    program.expect(&[
        ("graph two", "0"),
        ("empty-node two", "0"),
        ("instantiate e g", "0"),
        ("instantiate f o", "0"),
        ("launch-graph e s", "0"),
    ]);
    let before = world.usage(0);
    program.expect(&[
        ("update e o2", "910"),
        ("update-v1 e two", "910"),
        ("set-child f o 0 two", "910"),
        ("set-kernel e o 0 small", "1"),
        ("set-child e g 0 g", "1"),
        ("set-nothing e g 0", "1 1 1 1"),
    ]);
    world.judge(cap);
    for (call, command) in [
        ("cuGraphExecUpdate_v2", "update e g2"),
        ("cuGraphExecKernelNodeSetParams_v2", "set-kernel e g 0 big"),
    ] {
        world.machine().knob("fail", &format!("{call}:719"));
        let answer = program.say(&format!("repeat 10 {{\n{command}\n}}"));
        assert_eq!(answer, "719:10");
        world.machine().knob("fail", "none");
        let after = world.usage(0);
        assert!(
            after.charged <= before.charged + BLOCK,
            "{command}: {after:?}"
        );
        world.judge(cap);
    }
    // A failed change leaves the graph as it was.
    program.expect(&[("launch-graph e s", "0")]);
    assert_eq!(world.machine().used(), GRAPHS);
    program.end_quietly();
    world.judge_end(cap);
}

/// The heap of device `malloc` comes with the kernel that uses it, and is charged from the time its
/// code is loaded.
#[test]
fn a_kernel_with_a_heap_uses_the_charge_of_its_code() {
    let cap = GRAPHS + (138 + 10) * MIB + RESERVE;
    for (graph, way) in WAYS {
        let world = World::new(cap);
        let mut program = world.on_gpu();
        for line in ["kernels big 0 malloc", "kernel-library deep 0 malloc"] {
            program.expect(&[(line, "0")]);
        }
        for line in PREPARE.iter().filter(|line| !line.contains("8192")) {
            program.expect(&[(line, "0")]);
        }
        program.expect(&[(&format!("instantiate e {graph}"), "0")]);
        program.say("fill filler 2M");
        assert!(world.machine().used() < GRAPHS + 144 * MIB, "{way}");
        program.expect(&[(way, "0"), ("launch-graph e s", "0")]);
        assert!(world.machine().used() >= GRAPHS + 148 * MIB, "{way}");
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}

/// A library that is not loaded yet is loaded with its kernel.
#[test]
fn a_kernel_of_a_lazy_library_is_charged_with_its_library() {
    for (uses, bytes) in [("assert", 90), ("malloc", 148)] {
        let cap = GRAPHS + bytes * MIB + RESERVE;
        for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            program.expect(&[(&format!("kernel-library lazy 0 {uses}"), "0")]);
            for line in PREPARE
                .iter()
                .filter(|line| !line.contains("big") && !line.contains("g2"))
            {
                program.expect(&[(line, "0")]);
            }
            program.expect(&[
                ("instantiate e g", "0"),
                ("set-kernel-of e g 0 lazy", answer),
            ]);
            let taken = if answer == "0" { bytes * MIB } else { 0 };
            assert_eq!(world.machine().gpu(0).peak, GRAPHS + taken, "{uses}");
            program.expect(&[("launch-graph e s", "0")]);
            world.judge(cap);
            program.end();
            world.judge_end(cap);
        }
    }
}

/// The library asks the driver once per kernel for the kernel's need.
#[test]
fn a_kernels_need_is_remembered() {
    let cap = GRAPHS + LOCAL + RESERVE;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    prepare(&mut program);
    program.expect(&[
        ("instantiate e g", "0"),
        ("instantiate f g", "0"),
        ("set-kernel-of e g 0 deep", "0"),
        ("set-limit 0 1024", "0"),
        ("alloc a 8M", "0"),
    ]);
    let silent = "cuKernelGetAttribute:719,cuFuncGetAttribute:719";
    world.machine().knob("fail", silent);
    program.expect(&[
        ("set-kernel-of f g 0 deep", "2"),
        ("free a", "0"),
        ("set-kernel-of f g 0 deep", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

/// Each context loads the library separately.
#[test]
fn a_kernel_of_a_lazy_library_is_charged_in_each_context() {
    let own = CONTEXT + BLOCK;
    let cap = 2 * own + 2 * 90 * MIB - 2 * BLOCK;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("kernel-library lazy 0 assert", "0"),
        ("context other 0 v2", "0"),
    ]);
    for (context, exec, answer) in [("use other", "f", "0"), ("current 0", "e", "2")] {
        for line in [
            context,
            &format!("stream s{exec}"),
            &format!("kernels k{exec} 0"),
            &format!("capture s{exec}"),
            &format!("launch k{exec} s{exec}"),
            &format!("end-capture s{exec} g{exec}"),
            &format!("instantiate {exec} g{exec}"),
        ] {
            program.expect(&[(line, "0")]);
        }
        let change = format!("set-kernel-of {exec} g{exec} 0 lazy");
        program.expect(&[(&change, answer), (&change, answer)]);
        world.judge(cap);
    }
    program.end();
    world.judge_end(cap);
}
