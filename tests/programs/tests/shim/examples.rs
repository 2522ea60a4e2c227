//! examples/tiles.c, compiled against NVIDIA's own header. The examples in Python are run by the
//! GPU checks.

use std::path::PathBuf;
use std::process::Command;

use gpulimit_programs::world::{self, MIB, World, repository, text};

/// The program; `None` where NVIDIA's header cannot be had.
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
fn tiles_of_what_is_free() {
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
