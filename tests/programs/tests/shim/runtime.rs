//! NVIDIA's own CUDA runtimes work under a limit.

use std::path::Path;

use gpulimit_programs::world::{self, CONTEXT, MIB, World, text};
use gpulimit_support::skip;

fn shared(major: u32) {
    match world::runtime(major) {
        Some(runtime) => run(&world::compile("runtime", &[]), Some(&runtime)),
        None => missing(&format!("libcudart {major}")),
    }
}

fn missing(what: &str) {
    skip(format_args!(
        "{what} is not there and scripts/wheels cannot fetch it"
    ));
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
    let beside_managed = free - 100 * MIB;
    // The memory of the first executable graph stays charged.
    let beside_graph = free - 2 * MIB;
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
         cudaMallocPitch 2\n\
         cudaMallocManaged 2\n\
         cudaMallocManaged 0\n\
         cudaMemGetInfo 0 {beside_managed} {cap}\n\
         cudaFree 0\n\
         cudaMemPoolCreate 0\n\
         cudaMallocFromPoolAsync 2\n\
         cudaMemPoolDestroy 0\n\
         cudaGraphCreate 0\n\
         cudaGraphAddMemAllocNode 0\n\
         cudaGraphInstantiateWithFlags 0\n\
         cudaGraphLaunch 2\n\
         cudaGraphExecDestroy 0\n\
         cudaMemGetInfo 0 {beside_graph} {cap}\n\
         cudaMalloc 0\n\
         cudaDeviceReset 0\n"
    );
    assert_eq!(said, expected, "{errors}");
    for call in ["cuMemAlloc", "cuMemAllocAsync", "cuArray3DCreate"] {
        let told = format!("refused {call} of ");
        assert!(errors.contains(&told), "{call}: {errors}");
    }
    world.judge_end(cap);
}

#[test]
fn cudart_11_is_limited() {
    shared(11);
}

#[test]
fn cudart_12_is_limited() {
    shared(12);
}

#[test]
fn cudart_13_is_limited() {
    shared(13);
}

#[test]
fn cudart_13_linked_statically_is_limited() {
    let Some(archive) = world::static_runtime() else {
        return missing("libcudart_static.a");
    };
    let archive = archive.display().to_string();
    let arguments = ["-DLINKED", &archive, "-lpthread", "-lrt", "-lm"];
    run(&world::compile("runtime", &arguments), None);
}

/// Runs cudarc in another process, which runs this test again.
#[test]
fn cudarc() {
    use cudarc::driver::{DriverError, result, sys::CUresult};
    const MARK: &str = "GPULIMIT_TEST_CUDARC";
    if std::env::var_os(MARK).is_some() {
        let refused = Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let context = cudarc::driver::CudaContext::new(0).expect("a context");
        assert_eq!(context.total_mem(), Ok(1024 << 20));
        let view = || context.mem_get_info().expect("a view");
        let before = view();
        assert_eq!(before, (502 << 20, 1024 << 20));
        let stream = context.new_stream().expect("a stream");
        assert_eq!(stream.alloc_zeros::<u8>(600 << 20).map(drop), refused);
        let buffer = stream.alloc_zeros::<u8>(100 << 20).expect("memory");
        assert!(view().0 <= before.0 - (100 << 20));
        drop(buffer);
        stream.synchronize().expect("synchronised");
        assert_eq!(view(), before);
        for size in [600, 400] {
            #[allow(unsafe_code)]
            // SAFETY: the context is current in this thread, and no call uses the memory.
            let given = unsafe {
                result::malloc_sync(size << 20).and_then(|address| result::free_sync(address))
            };
            assert_eq!(given, if size == 600 { refused } else { Ok(()) });
        }
        return;
    }
    let world = World::new(1024 * MIB);
    let mut command = world.limited(&std::env::current_exe().expect("this test"));
    command
        .args(["runtime::cudarc", "--exact", "--nocapture"])
        .env(MARK, "1");
    let output = world::finish(command);
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("1 passed"), "{said}");
    assert!(
        errors.contains("refused cuMemAlloc of 600.0 MiB"),
        "{errors}"
    );
    world.judge_end(1024 * MIB);
}
