//! Kernels in the bodies of conditional nodes are charged before the driver makes the graph around
//! them executable.

use gpulimit_programs::world::{BLOCK, CONTEXT, MIB, Session, World};

/// Bytes that 8 KiB of local memory per thread take beyond what a context starts with: an H100
/// holds 132 × 2048 threads.
const LOCAL: u64 = 8192 * 132 * 2048 - 264 * MIB;
/// The usage with a context and its first executable graph, which takes a block.
const GRAPHS: u64 = CONTEXT + BLOCK;
/// Bytes of the reserve that a call charges in advance besides.
const RESERVE: u64 = 4 * MIB;

/// Commands that build graphs with conditional nodes: each shape makes `g`, with a kernel that
/// needs much local memory, and `small`, of the same form with a kernel that needs none.
const SHAPES: [&[&str]; 4] = [
    // The kernel is in the second of two bodies; each function that adds a conditional node is
    // used.
    &[
        "conditional-node cuGraphAddNode small a b",
        "listed-node cuGraphAddNode b tiny",
        "conditional-node cuGraphAddNode g a b",
        "listed-node cuGraphAddNode b big",
    ],
    &[
        "conditional-node cuGraphAddNode_v2 small a b",
        "listed-node cuGraphAddNode b tiny",
        "conditional-node cuGraphAddNode_v2 g a b",
        "listed-node cuGraphAddNode b big",
    ],
    &[
        "conditional-node cuGraphAddNode_v3 small a b",
        "listed-node cuGraphAddNode b tiny",
        "conditional-node cuGraphAddNode_v3 g a b",
        "listed-node cuGraphAddNode b big",
    ],
    // The kernel is in a conditional node inside the body.
    &[
        "conditional-node cuGraphAddNode small a",
        "conditional-node cuGraphAddNode a b c",
        "listed-node cuGraphAddNode b tiny",
        "conditional-node cuGraphAddNode g a",
        "conditional-node cuGraphAddNode a b c",
        "listed-node cuGraphAddNode b big",
    ],
];

fn prepare(program: &mut Session, shape: &[&str]) {
    program.expect(&[
        ("stream s", "0"),
        ("kernels tiny 0", "0"),
        ("kernels big 8192", "0"),
        ("graph small", "0"),
        ("graph g", "0"),
    ]);
    for line in shape {
        program.expect(&[(line, "0")]);
    }
}

#[test]
fn a_graph_is_refused_below_what_its_bodies_take() {
    let cap = GRAPHS + LOCAL + RESERVE;
    for shape in SHAPES {
        for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            prepare(&mut program, shape);
            program.expect(&[("instantiate e g", answer)]);
            world.judge(cap);
            if answer == "0" {
                assert_eq!(world.machine().used(), GRAPHS + LOCAL);
                program.expect(&[("launch-graph e s", "0"), ("launch-graph e s", "0")]);
                world.judge(cap);
                program.end_quietly();
            } else {
                assert_eq!(world.machine().gpu(0).peak, CONTEXT, "not asked");
                program.end();
            }
            world.judge_end(cap);
        }
    }
}

#[test]
fn an_update_is_charged_for_its_bodies() {
    let cap = GRAPHS + LOCAL + RESERVE;
    for shape in SHAPES {
        for (cap, answer) in [(cap, "0"), (cap - 2 * BLOCK, "2")] {
            let world = World::new(cap);
            let mut program = world.on_gpu();
            prepare(&mut program, shape);
            program.expect(&[
                ("instantiate e small", "0"),
                ("launch-graph e s", "0"),
                ("update e g", answer),
                ("launch-graph e s", "0"),
            ]);
            world.judge(cap);
            let taken = if answer == "0" { LOCAL } else { 0 };
            assert_eq!(world.machine().used(), GRAPHS + taken);
            assert_eq!(world.machine().gpu(0).peak, GRAPHS + taken);
            program.end();
            world.judge_end(cap);
        }
    }
}

/// The driver hands out the handles of destroyed nodes again.
#[test]
fn rebuilt_graphs_with_reused_node_handles_are_charged() {
    let cap = GRAPHS + LOCAL + RESERVE;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    prepare(&mut program, SHAPES[0]);
    for _ in 0..20 {
        program.expect(&[
            ("graph again", "0"),
            ("conditional-node cuGraphAddNode again body", "0"),
            ("listed-node cuGraphAddNode body tiny", "0"),
            ("instantiate e again", "0"),
            ("destroy-exec e", "0"),
            ("destroy-graph body", "1"),
            ("destroy-graph again", "0"),
        ]);
    }
    assert!(world.machine().used() <= GRAPHS);
    world.judge(cap);
    program.end_quietly();
    world.judge_end(cap);
}
