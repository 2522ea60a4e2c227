//! NVIDIA's own CUDA runtimes under a cap.

use std::path::Path;

use gpulimit_programs::world::{self, CONTEXT, MIB, World, text};

fn shared(major: u32) {
    match world::runtime(major) {
        Some(runtime) => run(&world::compile("runtime", &[]), Some(&runtime)),
        None => skipped(&format!("libcudart {major}")),
    }
}

fn skipped(what: &str) {
    eprintln!("SKIPPED: {what} is not there and scripts/wheels cannot fetch it");
}

fn run(program: &Path, runtime: Option<&Path>) {
    let cap = 2048 * MIB;
    let world = World::new(cap);
    let mut command = world.limited(program);
    command.args(runtime);
    let output = world::finish(command);
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{:?}: {said}{errors}",
        output.status
    );
    let free = cap - CONTEXT - 4 * MIB;
    let left = free - 1000 * MIB;
    let beside_arrays = free - (236 + 18 + 86) * MIB;
    let expected = format!(
        "cudaGetDeviceProperties 0 {cap}\n\
         cudaMemGetInfo 0 {free} {cap}\n\
         cudaMalloc 0\n\
         cudaMemGetInfo 0 {left} {cap}\n\
         cudaMalloc 2\n\
         cudaMallocAsync 2\n\
         cudaMallocAsync 0\n\
         cudaFreeAsync 0\n\
         cudaStreamSynchronize 0\n\
         cudaFree 0\n\
         cudaMemGetInfo 0 {free} {cap}\n\
         cudaMallocArray 0\n\
         cudaMalloc3DArray 0\n\
         cudaMallocMipmappedArray 0\n\
         cudaMemGetInfo 0 {beside_arrays} {cap}\n\
         cudaMalloc3DArray 2\n\
         cudaFreeArray 0\n\
         cudaFreeArray 0\n\
         cudaFreeMipmappedArray 0\n\
         cudaMemGetInfo 0 {free} {cap}\n\
         cudaMalloc 0\n\
         cudaDeviceReset 0\n"
    );
    assert_eq!(said, expected, "{errors}");
    assert_eq!(errors.matches("refused").count(), 3, "{errors}");
    world.judge_end(cap);
}

#[test]
fn cudart_11() {
    shared(11);
}

#[test]
fn cudart_12() {
    shared(12);
}

#[test]
fn cudart_13() {
    shared(13);
}

#[test]
fn cudart_13_linked_statically() {
    let Some(archive) = world::static_runtime() else {
        return skipped("libcudart_static.a");
    };
    let archive = archive.display().to_string();
    let arguments = ["-DLINKED", &archive, "-lpthread", "-lrt", "-lm"];
    run(&world::compile_for("runtime", "-static", &arguments), None);
}
