//! NVIDIA's own CUDA runtimes under a cap.

use gpulimit_programs::world::{self, CONTEXT, MIB, World, text};

fn run(major: u32) {
    let Some(runtime) = world::runtime(major) else {
        eprintln!("SKIPPED: libcudart {major} is not there and scripts/wheels cannot fetch it");
        return;
    };
    let program = world::compile("runtime", &[]);
    let cap = 2048 * MIB;
    let world = World::new(cap);
    let mut command = world.limited(&program);
    command.arg(&runtime);
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
fn cudart_12() {
    run(12);
}

#[test]
fn cudart_13() {
    run(13);
}
