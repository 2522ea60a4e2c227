//! examples/tiles.c, compiled against NVIDIA's own header. The GPU checks run the examples in
//! Python.

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
