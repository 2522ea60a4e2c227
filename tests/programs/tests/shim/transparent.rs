//! Without a limit, and below a limit that is not reached, a program sees the driver unchanged.

use std::fs::File;
use std::process::Command;

use gpulimit_programs::world::{self, World, text};
use gpulimit_support::skip;

/// Returns the output, the exit code and the errors of a script.
fn run(command: Command, script: &str) -> (String, Option<i32>, String) {
    let mut command = command;
    // The script is standard input, so that after an exec the new program continues where the old
    // one stopped.
    command.stdin(File::open(world::script(script)).expect("a script"));
    let output = command.output().expect("it runs");
    (
        text(&output.stdout),
        output.status.code(),
        text(&output.stderr),
    )
}

/// Asserts that a script behaves with the driver alone as it does under gpulimit in three ways.
fn assert_same(script: &str, under_a_limit: bool) {
    let bare = World::without_group(&[]);
    let expected = run(bare.bare(world::program()), script);
    assert!(
        expected.0.lines().count() >= 5,
        "{script} says something: {expected:?}"
    );

    let world = World::without_group(&[]);
    assert_eq!(
        run(world.preloaded(world::program()), script),
        expected,
        "{script} without a limit"
    );
    let left = std::fs::read_dir(world.root().path())
        .expect("a root")
        .count();
    assert_eq!(left, 0, "{script} leaves nothing behind");

    if under_a_limit {
        let roomy = World::new(60 << 30);
        assert_eq!(
            run(roomy.limited(world::program()), script),
            expected,
            "{script} with room"
        );
        roomy.judge_end(60 << 30);
    }
}

#[test]
fn the_tour_of_all_functions_behaves_the_same() {
    assert_same("tour.gpu", true);
}

#[test]
fn wrong_calls_behave_the_same() {
    // The library refuses requests larger than the limit with the driver's own code, so the answers
    // are the same.
    let bare = World::without_group(&[]);
    let expected = run(bare.bare(world::program()), "mistakes.gpu");
    let roomy = World::new(60 << 30);
    let (output, status, _) = run(roomy.limited(world::program()), "mistakes.gpu");
    for (line, expected) in output.lines().zip(expected.0.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!((output, status), (expected.0, expected.1));
    roomy.judge_end(60 << 30);
    assert_same("mistakes.gpu", false);
}

#[test]
fn captured_streams_behave_the_same() {
    assert_same("capture.gpu", true);
}

#[test]
fn graphs_behave_the_same() {
    assert_same("graphs.gpu", true);
}

#[test]
fn forks_and_execs_behave_the_same() {
    assert_same("processes.gpu", true);
}

#[test]
fn looking_up_names_behaves_the_same() {
    assert_same("names.gpu", true);
}

#[test]
fn without_a_limit_views_are_the_drivers() {
    assert_same("view.gpu", false);
}

#[test]
fn a_program_without_cuda_leaves_no_trace() {
    for program in ["true", "false"] {
        let world = World::without_group(&[]);
        let path = std::path::Path::new("/bin").join(program);
        let mut command = world.preloaded(&path);
        command.env("GPULIMIT_MAX", "1G");
        let output = world::finish(command);
        assert_eq!(output.status.code(), Some(i32::from(program == "false")));
        assert_eq!(
            (text(&output.stdout), text(&output.stderr)),
            (String::new(), String::new())
        );
        assert_eq!(
            std::fs::read_dir(world.root().path())
                .expect("a root")
                .count(),
            0
        );
    }
}

#[test]
fn programs_behave_the_same_without_a_driver() {
    let world = World::without_group(&[]);
    let run = |mut command: Command| {
        let output = world::finish({
            command
                .env("LD_LIBRARY_PATH", "/nowhere")
                .env("GPULIMIT_MAX", "1G");
            command
        });
        (
            text(&output.stdout),
            output.status.code(),
            text(&output.stderr),
        )
    };
    let bare = run(world.bare(world::program()));
    if bare.1 == Some(0) {
        skip("this machine has a driver");
        return;
    }
    assert_eq!(run(world.preloaded(world::program())), bare);
    let output = run(world.preloaded("/bin/true".as_ref()));
    assert_eq!(output, (String::new(), Some(0), String::new()));
    assert_eq!(
        std::fs::metadata(world.file("root"))
            .map(|about| about.is_dir())
            .ok(),
        Some(true)
    );
    assert_eq!(
        std::fs::read_dir(world.root().path())
            .expect("a root")
            .count(),
        0
    );
}
