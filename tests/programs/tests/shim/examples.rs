//! examples/tiles.c, compiled against NVIDIA's own header, and the program of the demo where there
//! is no driver. The GPU checks run the examples in Python.

use std::path::PathBuf;
use std::process::Command;

use gpulimit_programs::world::{self, MIB, World, repository, text};

/// Compiles the example; `None` where NVIDIA's header is not available.
fn tiles(world: &World) -> Option<PathBuf> {
    let _ = Command::new(repository().join("scripts/wheels")).status();
    let headers = repository().join(".cache/headers/12.4");
    if !headers.join("cuda.h").exists() {
        eprintln!("SKIPPED: no cuda.h is there and scripts/wheels cannot fetch it");
        return None;
    }
    let program = world.file("tiles");
    let status = Command::new("cc")
        .args(["-Wall", "-Werror", "-I"])
        .arg(headers)
        .arg(repository().join("examples/tiles.c"))
        .arg(format!("-L{}", world::driver().display()))
        .args(["-lcuda", "-o"])
        .arg(&program)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cc tiles.c");
    Some(program)
}

#[test]
fn tiles_fit_into_the_free_memory() {
    const CAP: u64 = 2048 * MIB;
    let world = World::new(CAP);
    let Some(program) = tiles(&world) else {
        return;
    };
    let output = world::finish(world.limited(&program));
    let out = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(out.starts_with("memory: 2048 MiB, free 1"), "{out}");
    assert!(
        out.contains("all at once: CUDA_ERROR_OUT_OF_MEMORY\n"),
        "{out}"
    );
    assert!(out.contains("in 3 tiles: "), "{out}");
    world.judge_end(CAP);
}

#[test]
fn the_program_of_the_demo_has_help_and_names_a_missing_driver() {
    let fill = |argument| {
        let mut command = Command::new(world::demo());
        command.arg(argument).env_clear();
        let output = world::finish(command);
        let said = text(&output.stdout) + &text(&output.stderr);
        (output.status.code(), said)
    };
    let (status, said) = fill("--help");
    assert!(
        status == Some(0) && said.starts_with("usage: fill "),
        "{said}"
    );
    let (status, said) = fill("1M");
    if status != Some(0) {
        assert_eq!(status, Some(2), "{said}");
        assert!(
            said.starts_with("fill: ") && !said.contains("panicked"),
            "{said}"
        );
    }
}
