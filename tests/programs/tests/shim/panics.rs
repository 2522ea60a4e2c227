//! A fault of the library's own ends in it: the program goes on, whatever it wants of backtraces.

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};

const CAP: u64 = 2048 * MIB;

#[test]
fn a_panic_ends_in_the_library() {
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
