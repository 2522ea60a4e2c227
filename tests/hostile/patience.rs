//! A user's environment does not shorten the waits of a program that root has installed.

use crate::{Ground, LOOK, RM, run};
use std::path::Path;
use std::process::Command;

/// The beginning of the names that builds with `debug_assertions` read.
const NAMES: &[u8] = b"GPULIMIT_DEBUG_";

fn has_names(program: &Path) -> bool {
    let bytes = std::fs::read(program).unwrap_or_else(|error| panic!("{program:?}: {error}"));
    bytes.windows(NAMES.len()).any(|bytes| bytes == NAMES)
}

/// The controller that users get is checked by `scripts/portable`, which builds it.
#[test]
fn a_release_build_does_not_read_its_waits_from_the_environment() {
    let Some(ground) = Ground::new() else { return };
    let command = |program: &Path| {
        let mut command = Command::new(program);
        command
            .args(["kill", "lab"])
            .env_clear()
            .env("GPULIMIT_ROOT", ground.at("groups"));
        // A build that reads this variable fails.
        run(command.env(LOOK, "no number").env(RM, "no number"))
    };
    let (status, said) = run(&mut ground.gpulimit(&["create", "lab"]));
    assert_eq!(status, Some(0), "{said}");
    let tested = Path::new(env!("CARGO_BIN_EXE_gpulimit"));
    let (status, said) = command(tested);
    let fails = status == Some(101) && said.contains("no number");
    assert!(
        has_names(tested) == fails && fails == cfg!(debug_assertions),
        "{said}"
    );

    if let Some(library) = std::env::var_os("GPULIMIT_TEST_LIBRARY") {
        assert!(!has_names(Path::new(&library)), "{library:?}");
    }
}
