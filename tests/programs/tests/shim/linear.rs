//! `cuMemAlloc` and `cuMemAllocPitch`: the memory counts, not the requests.

use gpulimit_programs::world::{CONTEXT, MIB, World};

const CAP: u64 = 1024 * MIB;
/// Charged but not used, beside what a request asks for: the reserve for the driver's own needs and the spare block.
pub const SLACK: u64 = 6 * MIB;

#[test]
fn requests_that_just_pass_a_block_take_two() {
    for (size, real) in [
        ("1100000", 2 * MIB),
        ("3M-4K", 4 * MIB),
        ("2M+1", 4 * MIB),
        ("1M+1", 2 * MIB),
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        let answer = program.numbers(&format!("fill a {size}"));
        assert_eq!(answer[0], 2, "{size}: refused with out-of-memory");
        let room = (CAP - CONTEXT) / real;
        assert!(answer[1] <= room, "{size}: {} of {room}", answer[1]);
        assert!(
            answer[1] >= room - SLACK / real,
            "{size}: only {} of {room}",
            answer[1]
        );
        world.judge(CAP);
        program.expect(&[("free-many a", "0")]);
        world.judge(CAP);
        program.end();
        world.judge_end(CAP);
    }
}
