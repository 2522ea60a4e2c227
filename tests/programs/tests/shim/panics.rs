//! A panic in the library stays in the library: the program goes on, whatever backtraces it asks
//! for.

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};
use gpulimit_support::skip;

const CAP: u64 = 2048 * MIB;

#[test]
fn a_panic_stays_in_the_library() {
    for backtrace in ["0", "1", "full"] {
        let world = World::new(CAP);
        let mut command = world.limited(world::program());
        command.env("RUST_BACKTRACE", backtrace);
        let mut program = Session::start(command);
        program.expect(&[
            ("start", "0 0"),
            ("panics", "1"),
            ("panics", "1"),
            ("alloc a 300M", "0"),
            ("alloc b 2G", "2"),
        ]);
        assert_eq!(world.machine().used(), CONTEXT + 300 * MIB);
        let (status, said) = program.end();
        assert!(status.success(), "{status}: {said}");
        assert_eq!(said.matches("panicked at ").count(), 2, "{said}");
        assert!(said.contains("report.rs"), "where it was: {said}");
        world.judge_end(CAP);
    }
}

/// Points where a debug build panics between the charge for a call and the call, each with the
/// commands before and the call.
const FAULTS: &[(&str, &[&str], &str)] = &[
    ("large", &[], "alloc x 300M"),
    ("small", &[], "alloc x 64K"),
    // A spare block serves the request.
    ("small", &["alloc a 64K", "free a"], "alloc x 64K"),
    // The group is full, and a block of the driver's reserve serves the request.
    ("small", &["alloc a 64K", "fill b 2M"], "alloc x 64K"),
    ("array", &[], "array x 4096,4096"),
    ("vmm", &[], "create x 300M 0"),
    ("managed", &[], "managed x 300M"),
    ("pool", &[], "async x 300M"),
    // The headroom of the pool serves the request.
    ("pool", &["async a 1M"], "async x 1M"),
    ("unknown-pool", &["unseen-pool p 0"], "async-from x p 300M"),
    ("measured", &["module m 1K"], "launch m"),
    (
        "graph",
        &[
            "graph g",
            "alloc-node n g 300M",
            "free-node g n",
            "instantiate x g",
        ],
        "launch-graph x",
    ),
];

/// Starts a program with a debug build of the library. `None` where the tests run a library built
/// elsewhere, which has no faults.
fn faulty(world: &World, point: &str) -> Option<Session> {
    let Some(library) = world::faulty_shim() else {
        skip("there is no debug build of the library");
        return None;
    };
    let mut command = world.limited(world::program());
    command.env("LD_PRELOAD", library);
    if !point.is_empty() {
        command.env("GPULIMIT_DEBUG_FAULT", point);
    }
    Some(Session::start(command))
}

#[test]
fn a_panic_uncharges_the_call() {
    for (point, before, call) in FAULTS {
        let world = World::new(CAP);
        let Some(mut program) = faulty(&world, "") else {
            return;
        };
        program.expect(&[("start", "0 0")]);
        for command in *before {
            program.say(command);
        }
        let (charged, counted) = (world.usage(0).charged, world.counted(0));
        program.say(&format!("setenv GPULIMIT_DEBUG_FAULT {point}"));
        assert_eq!(program.say(call), "999", "{point}: {call}");
        program.say("unsetenv GPULIMIT_DEBUG_FAULT");
        assert!(world.usage(0).charged <= charged, "{point}: {call}");
        assert_eq!(world.counted(0), counted, "{point}: {call}");
        assert_eq!(program.say(call), "0", "{point}: {call}");
        // The group gives out all that it has left, and no more.
        program.say("fill rest 2M");
        assert_eq!(program.say("alloc y 4M"), "2", "{point}: {call}");
        world.judge(CAP);
        let (status, said) = program.end();
        assert!(status.success(), "{status}: {said}");
        assert!(said.contains(&format!("fault point {point}")), "{said}");
        world.judge_end(CAP);
    }
}

/// A panic in the question whether there is a limit must not let the program run without one.
#[test]
fn the_limit_holds_after_a_panic_at_the_first_call() {
    for (point, first) in [("question", "0"), ("first-use", "999")] {
        let world = World::new(CAP);
        let Some(mut program) = faulty(&world, point) else {
            return;
        };
        program.expect(&[("init", "0"), ("retain 0", first)]);
        program.say("unsetenv GPULIMIT_DEBUG_FAULT");
        program.expect(&[("start", "0 0"), ("alloc a 1G", "0"), ("alloc b 1G", "2")]);
        world.judge(CAP);
        let (status, said) = program.end();
        assert!(status.success(), "{status}: {said}");
        assert!(said.contains(&format!("fault point {point}")), "{said}");
        world.judge_end(CAP);
    }
}
