//! Arrays and mipmapped arrays are charged for the memory they take, however they are made and end.

use gpulimit_ledger::Category;
use gpulimit_programs::world::{self, BLOCK, CONTEXT, MIB, Session, World};

const CAP: u64 = 1024 * MIB;

/// A driver too old to report an array's memory requirements.
const OLD: [(&str, &str); 1] = [("GPULIMIT_SIM_DRIVER_VERSION", "11040")];
/// A driver without process lists, so that the library cannot measure.
const BLIND: [(&str, &str); 1] = [("GPULIMIT_SIM_NO_PROC", "1")];

/// Returns the group's charge for arrays of 2 MiB and more, in MiB.
fn shown(world: &World) -> u64 {
    world.usage(0).by[Category::Arrays as usize] / MIB
}

/// Returns the MiB that the group counts beyond one context. Arrays below 2 MiB, and all of an old
/// driver, are counted as the driver's own.
fn beside(world: &World) -> u64 {
    (world.counted(0) - CONTEXT) / MIB
}

/// Returns the group's charge for memory of `cuMemCreate`, in MiB.
fn created(world: &World) -> u64 {
    world.usage(0).by[Category::Vmm as usize] / MIB
}

/// Commands that each make an array `a`, and the MiB that the array takes.
const EVERY_KIND: &[(&str, u64)] = &[
    ("array a 65536", 8),
    ("array a 1000,1000", 16),
    ("array a 1000,1000 2d", 16),
    ("array a 100,100,100", 18),
    ("array a 1000,1000,10,32,4,1", 158),
    ("array a 1000,1000,6,16,2,4", 24),
    ("array a 100,100,12,32,4,5", 4),
    ("array a 3000,2000,0,1,1,2", 6),
    ("array a 20000,20000,0,1,1", 384),
    ("array a 1,0,0,1,1", 2),
    ("array a 300,300", 2),
];

const EVERY_MIPMAP: &[(&str, u64)] = &[
    ("mipmap a 4096,1024 4", 86),
    ("mipmap a 1000,1000 100", 22),
    ("mipmap a 100,100 7", 2),
    ("mipmap a 256,256,64,32,1 9", 20),
    ("mipmap a 512,512,6,32,4,4 10", 34),
    ("mipmap a 3000,2000,5,16,4,1 12", 314),
];

fn every_kind(knobs: &[(&str, &str)]) {
    let world = World::with(CAP, knobs);
    let mut program = world.on_gpu();
    let kinds = [
        (EVERY_KIND, "destroy-array a"),
        (EVERY_MIPMAP, "destroy-mipmap a"),
    ];
    for (makes, end) in kinds {
        for (make, taken) in makes {
            program.expect(&[(make, "0")]);
            assert_eq!(world.machine().used(), CONTEXT + taken * MIB, "{make}");
            assert_eq!(beside(&world), *taken, "{make}: {:?}", world.usage(0));
            world.judge(CAP);
            program.expect(&[(end, "0")]);
            assert_eq!(world.machine().used(), CONTEXT, "{make}");
            assert_eq!(beside(&world), 0, "{make}: {:?}", world.usage(0));
            world.judge(CAP);
        }
    }
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn every_kind_counts_what_it_takes() {
    every_kind(&[]);
}

#[test]
fn every_kind_counts_what_it_takes_on_an_old_driver() {
    every_kind(&OLD);
}

/// Fills the group with arrays of 16 MiB, at most `slack` arrays short of the room.
fn fill_with_arrays(knobs: &[(&str, &str)], slack: u64) {
    let world = World::with(CAP, knobs);
    let mut program = world.on_gpu();
    let answer = program.numbers("fill-arrays a 1000,1000");
    let room = (CAP - CONTEXT) / (16 * MIB);
    assert_eq!(answer[0], 2, "refused with out-of-memory");
    assert!(
        (room - slack..=room).contains(&answer[1]),
        "{} of {room}",
        answer[1]
    );
    world.judge(CAP);
    assert!(world.usage(0).refusals == 1);
    program.expect(&[("destroy-arrays a", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    let (_, errors) = program.end();
    let is_told =
        |line: &str| line.contains("refused cuArray3DCreate of ") && line.contains(" on GPU 0 ");
    assert!(errors.lines().any(is_told), "{errors}");
    world.judge_end(CAP);
}

#[test]
fn arrays_stop_at_the_limit() {
    fill_with_arrays(&[], 1);
}

#[test]
fn arrays_stop_at_the_limit_on_an_old_driver() {
    fill_with_arrays(&OLD, 1);
}

#[test]
fn every_function_is_refused_at_the_limit() {
    for (command, call) in [
        ("array a 20000,10000 2d", "cuArrayCreate"),
        ("array a 1000,1000,100", "cuArray3DCreate"),
        ("mipmap a 10000,10000 5", "cuMipmappedArrayCreate"),
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[(command, "2")]);
        assert_eq!(world.machine().used(), CONTEXT, "{command}");
        world.judge(CAP);
        let (_, errors) = program.end();
        assert!(
            errors.contains(&format!("refused {call} of ")) && errors.contains(" on GPU 0 "),
            "{command}: {errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
        world.judge_end(CAP);
    }
}

#[test]
fn small_arrays_count_by_the_blocks_they_share() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("many-arrays a 4000 1,0,0,1,1", "0 4000")]);
    assert_eq!(world.machine().used(), CONTEXT + 250 * MIB);
    assert_eq!(beside(&world), 250, "{:?}", world.usage(0));
    world.judge(CAP);
    program.expect(&[
        ("many-arrays b 40 200,200", "0 40"),
        ("alloc beside 1000", "0"),
        ("array large 1000,1000", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + (250 + 40 + 2 + 16) * MIB);
    assert_eq!(beside(&world), 250 + 40 + 2 + 16, "{:?}", world.usage(0));
    assert_eq!(shown(&world), 16);
    world.judge(CAP);
    program.expect(&[("destroy-arrays a", "0")]);
    assert_eq!(beside(&world), 40 + 2 + 16, "{:?}", world.usage(0));
    world.judge(CAP);
    program.expect(&[("destroy-arrays b", "0"), ("destroy-array large", "0")]);
    assert_eq!(world.machine().used(), CONTEXT + 2 * MIB);
    assert_eq!(beside(&world), 2, "{:?}", world.usage(0));
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn small_arrays_fill_the_group_completely() {
    for (shape, per_block) in [("1,0,0,1,1", 32), ("200,200", 2), ("300,300", 1)] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        let answer = program.numbers(&format!("fill-arrays a {shape}"));
        // The driver's reserve stays charged.
        let room = ((CAP - CONTEXT) / (2 * MIB) - 2) * per_block;
        assert_eq!(answer, [2, room], "{shape}");
        world.judge(CAP);
        // A held block with room serves an array in a full group.
        program.expect(&[
            (
                "many-arrays b 1 1,0,0,1,1",
                if per_block == 32 { "2 0" } else { "0 1" },
            ),
            ("destroy-arrays a", "0"),
            ("destroy-arrays b", "0"),
        ]);
        assert_eq!(world.machine().used(), CONTEXT);
        world.judge(CAP);
        program.end();
        world.judge_end(CAP);
    }
}

#[test]
fn small_arrays_take_the_place_of_an_unused_reserve() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p max", "0"),
        ("async a 448M", "0"),
        ("free-async a", "0"),
    ]);
    let answer = program.numbers("fill-arrays b 300,300");
    assert_eq!(answer, [2, (CAP - CONTEXT) / BLOCK - 2]);
    world.judge(CAP);
    program.expect(&[("destroy-arrays b", "0")]);
    assert_eq!(
        world.usage(0).charged,
        CONTEXT + 4 * MIB,
        "the driver's reserve"
    );
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn without_measurements_a_small_array_counts_as_a_block() {
    let world = World::with(CAP, &BLIND);
    let mut program = world.on_gpu();
    program.expect(&[
        ("many-arrays a 20 1,0,0,1,1", "0 20"),
        ("array b 1000,1000", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 18 * MIB);
    assert_eq!(shown(&world), 20 * 2 + 16);
    let usage = world.usage(0);
    assert!(usage.charged >= world.machine().used(), "{usage:?}");
    // Without measurements the library assumes this size for the context.
    let context = 520 * MIB;
    assert_eq!(world.counted(0), context + (20 * 2 + 16) * MIB, "{usage:?}");
    program.expect(&[("destroy-arrays a", "0"), ("destroy-array b", "0")]);
    assert_eq!(shown(&world), 0);
    assert_eq!(world.counted(0), context, "{:?}", world.usage(0));
    let answer = program.numbers("fill-arrays a 1,0,0,1,1");
    assert_eq!(answer[0], 2);
    assert!(world.usage(0).charged <= CAP);
    assert!(world.machine().gpu(0).peak <= CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn threads_making_arrays_keep_to_the_limit() {
    let knobs = [(
        "GPULIMIT_SIM_LATENCY",
        "cuArray3DCreate_v2:20000,cuArrayDestroy:20000",
    )];
    for knobs in [&knobs[..], &OLD] {
        // The cap has room for about a third of what the threads would hold together.
        let cap = CONTEXT + 60 * MIB;
        // Where the driver does not report what arrays take, threads at the limit may go one block
        // above it.
        let most = if knobs == OLD { cap + BLOCK } else { cap };
        let world = World::with(cap, knobs);
        let mut program = world.on_gpu();
        let block = "repeat 60 {\narray a 1,0,0,1,1\narray b 1000,1000\narray c 300,300\n\
            array d 200,200\ndestroy-array b\ndestroy-array a\ndestroy-array d\ndestroy-array c\n}";
        program.say(&format!("threads 6 {{\n{block}\n}}"));
        assert_eq!(world.machine().used(), CONTEXT);
        world.judge(most);
        // The whole room can be had again.
        program.expect(&[("array whole 1000,1000,3,32,4,1", "0")]);
        world.judge(most);
        program.end();
        world.judge_end(most);
    }
}

#[test]
fn threads_with_room_leave_no_charge() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    let block = "repeat 100 {\narray a 1,0,0,1,1\nalloc l 5M\narray b 1000,1000\n\
        mipmap m 100,100 7\nstream s\nasync p 1M\nfree l\ndestroy-array b\ndestroy-array a\n\
        free-async p\ndestroy-mipmap m\n}";
    let answer = program.say(&format!("threads 4 {{\n{block}\n}}"));
    assert_eq!(answer, ["0:1100"; 4].join(", "));
    program.expect(&[("sync", "0")]);
    assert_eq!(shown(&world), 0, "{:?}", world.usage(0));
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn processes_share_the_limit() {
    let cap = 2 * CONTEXT + 100 * MIB;
    let world = World::new(cap);
    let mut programs = [world.on_gpu(), world.on_gpu()];
    for program in &mut programs {
        program.tell("fill-arrays a 1,0,0,1,1");
        program.tell("fill-arrays b 700,700");
    }
    let mut arrays = 0;
    for program in &mut programs {
        let small: Vec<_> = program.answer().split(' ').map(str::to_owned).collect();
        arrays += small[1].parse::<u64>().expect("a count");
        program.answer();
    }
    // Two reserves of 4 MiB stay charged.
    assert!(arrays >= 40 * 32, "{arrays}");
    world.judge(cap);
    for program in programs {
        program.end();
    }
    world.judge_end(cap);
}

#[test]
fn destroying_a_context_uncharges_its_arrays() {
    for knobs in [&[][..], &OLD] {
        let world = World::with(4096 * MIB, knobs);
        let mut program = world.on_gpu();
        program.expect(&[
            ("many-arrays first 40 1,0,0,1,1", "0 40"),
            ("context second 0 v2", "0"),
            ("many-arrays there 100 1,0,0,1,1", "0 100"),
            ("array large 1000,1000", "0"),
            ("mipmap chain 1000,1000 10", "0"),
        ]);
        assert_eq!(
            world.machine().used(),
            2 * CONTEXT + (4 + 8 + 16 + 22) * MIB
        );
        let taken = CONTEXT / MIB + 4 + 8 + 16 + 22;
        assert_eq!(beside(&world), taken, "{:?}", world.usage(0));
        world.judge(4096 * MIB);
        program.expect(&[("destroy second", "0")]);
        assert_eq!(world.machine().used(), CONTEXT + 4 * MIB);
        assert_eq!(beside(&world), 4, "{:?}", world.usage(0));
        world.judge(4096 * MIB);
        program.expect(&[("destroy-array large", "709"), ("reset 0", "0")]);
        assert_eq!(world.machine().used(), 0);
        assert_eq!(world.counted(0), 0);
        program.end_quietly();
        world.judge_end(4096 * MIB);
    }
}

#[test]
fn mipmap_levels_and_unknown_handles_get_the_drivers_answer() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("mipmap m 1000,1000 10", "0"),
        ("level l m 3", "0"),
        ("destroy-array l", "0"),
        ("destroy-array l", "0"),
        ("destroy-array m", "400"),
        ("level none m 10", "1"),
    ]);
    assert_eq!(shown(&world), 22);
    world.judge(CAP);
    program.expect(&[
        ("destroy-mipmap m", "0"),
        ("destroy-mipmap m", "709"),
        ("array a 1000,1000", "0"),
        ("destroy-array a", "0"),
        ("destroy-array a", "709"),
        ("array s 1,0,0,1,1", "0"),
        ("destroy-mipmap s", "400"),
        ("destroy-array s", "0"),
        ("destroy-array s", "709"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn wrong_input_gets_the_drivers_answer_and_leaves_no_charge() {
    let inputs = [
        "array-nowhere 1000,1000",
        "array-nowhere 10,10",
        "array-of-nothing",
        "array a 0",
        "array a 0,10",
        "array a 10,0,10",
        "array a 9223372036854775808,9223372036854775808,9223372036854775808",
        "array a 18446744073709551615",
        "array a 18446744073709551615,1 2d",
        "array a 1000,1000,0,7",
        "array a 1000,1000,0,32,3",
        "array a 1000,1000,0,32,4,32768",
        "array a 1000,1000,0,32,1,16",
        "array a 1000,1000,0,32,4,192",
        "array a 10,12,6,32,4,4",
        "mipmap a 0 1",
        "mipmap a 1000,1000 0",
        "mipmap a 1000,1000 4294967295",
        "mipmap a 1000,1000,0,7 4",
        "mipmap a 9223372036854775808,1 64",
    ];
    for knobs in [&[][..], &OLD, &BLIND] {
        let world = World::with(CAP, knobs);
        let mut bare = Session::start(world.bare(world::program()));
        bare.say("start");
        let expected: Vec<String> = inputs.iter().map(|input| bare.say(input)).collect();
        bare.end_quietly();
        world.settle();
        world.machine().reset_peak();
        let mut program = world.on_gpu();
        let before = world.usage(0);
        for (input, expected) in inputs.iter().zip(&expected) {
            assert_eq!(program.say(input), *expected, "{input}");
            if expected == "0" {
                program.expect(&[("destroy-mipmap a", "0")]);
            }
            assert_eq!(shown(&world), 0, "{input}");
            let after = world.usage(0);
            assert!(
                after.charged <= before.charged + 4 * MIB,
                "{input}: {before:?} {after:?}"
            );
            assert_eq!(
                after.charged - after.idle,
                before.charged - before.idle,
                "{input}"
            );
        }
        program.end_quietly();
        world.judge_end(CAP);
    }
}

#[test]
fn a_failed_make_uncharges_and_a_failed_destroy_keeps_the_charge() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    for (shape, taken) in [("1000,1000", 16), ("1,0,0,1,1", 2)] {
        for code in ["2", "999", "901"] {
            world
                .machine()
                .knob("fail", &format!("cuArray3DCreate_v2:{code}"));
            let answer = program.say(&format!("repeat 20 {{\narray a {shape}\n}}"));
            assert_eq!(answer, format!("{code}:20"));
            assert_eq!(beside(&world), 0);
            world.judge(CAP);
        }
        world.machine().knob("fail", "none");
        program.expect(&[(&format!("array a {shape}"), "0")]);
        world.machine().knob("fail", "cuArrayDestroy:700");
        program.expect(&[("destroy-array a", "700"), ("destroy-array a", "700")]);
        assert_eq!(beside(&world), taken);
        world.judge(CAP);
        world.machine().knob("fail", "none");
        program.expect(&[("destroy-array a", "0")]);
        assert_eq!(beside(&world), 0);
        world.judge(CAP);
    }
    program.end_quietly();
    world.judge_end(CAP);
}

/// A mapping in a sparse or deferred array keeps no memory alive: the group is charged as long as
/// the handle exists.
#[test]
fn memory_in_sparse_and_deferred_arrays_goes_with_its_handle() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("array sparse 16384,16384,0,32,4,64", "0"),
        ("mipmap chain 1024,1024,0,32,4,128 11", "0"),
        ("array deferred 16384,16384,0,32,4,128", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT);
    assert_eq!(shown(&world), 0);
    world.judge(CAP);
    program.expect(&[
        ("create a 100M 0", "0"),
        ("create b 22M 0", "0"),
        ("map-tiles sparse 0 1024 a", "0"),
        ("map-whole chain 22413312 b", "0"),
        ("sync", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 122 * MIB);
    assert_eq!(created(&world), 122);
    world.judge(CAP);
    program.expect(&[("release a", "0"), ("destroy-mipmap chain", "0")]);
    assert_eq!(world.machine().used(), CONTEXT + 22 * MIB);
    assert_eq!(created(&world), 22);
    world.judge(CAP);
    program.expect(&[
        ("create c 400M 0", "0"),
        ("map-tiles sparse 0 64 c", "0"),
        ("map-tiles sparse 0 1024 none", "0"),
        ("release b", "0"),
        ("create d 110M 0", "2"),
        ("destroy-array sparse", "0"),
        ("destroy-array deferred", "0"),
        ("release c", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT);
    assert_eq!(created(&world), 0);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

/// Memory mapped into an array and at an address stays charged until it is unmapped from the
/// address.
#[test]
fn memory_in_an_array_stays_charged_while_mapped_at_an_address() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("array sparse 16384,16384,0,32,4,64", "0"),
        ("create a 100M 0", "0"),
        ("reserve range 100M", "0"),
        ("map range 0 a 100M", "0"),
        ("map-tiles sparse 0 1024 a", "0"),
        ("release a", "0"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 100 * MIB);
    assert_eq!(created(&world), 100);
    world.judge(CAP);
    program.expect(&[("unmap range 0 100M", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    assert_eq!(created(&world), 0);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn questions_to_the_driver_keep_a_capture_valid() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    // The driver refuses this call before it checks the capture. The library's own questions to the
    // driver come before the call, and must not invalidate the capture.
    program.expect(&[
        ("stream work", "0"),
        ("capture work", "0"),
        ("array-nowhere 1000,1000", "1"),
        ("array-nowhere 10,10", "1"),
        ("end-capture work", "0"),
        ("array a 1000,1000", "0"),
    ]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}
