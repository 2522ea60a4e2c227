//! Tests of when modules and libraries take the memory of their variables and launches. Figures:
//! H100 (580.159.04), a variable of 64 MiB.

use crate::rig::{Cuda, MIB, alone, used};

const BIG: &std::ffi::CStr = c".version 8.0
.target sm_90
.global .align 4 .b8 big[67108864];
.visible .entry work()
{
ret;
}
";

fn launch(cuda: &Cuda, function: usize) -> i32 {
    cuda.call("cuLaunchKernel", &[function, 1, 1, 1, 1, 1, 1])
}

fn library(cuda: &Cuda, from: &str, what: usize) -> usize {
    let arguments = [what, 0, 0, 0, 0, 0, 0];
    cuda.get(from, &arguments).expect("a library") as usize
}

fn module_takes_its_variable_at_the_load(cuda: &Cuda) {
    let module = cuda
        .get("cuModuleLoadData", &[BIG.as_ptr() as usize])
        .expect("a module") as usize;
    assert_eq!(cuda.beyond(), 64 * MIB);
    let name = c"work".as_ptr() as usize;
    let function = cuda
        .get("cuModuleGetFunction", &[module, name])
        .expect("a function") as usize;
    assert_eq!(launch(cuda, function), 0);
    assert_eq!(cuda.beyond(), 64 * MIB);
    assert_eq!(cuda.call("cuModuleUnload", &[module]), 0);
    assert_eq!(cuda.beyond(), 0);
}

/// Checks that every way of loading a library's module takes 64 MiB beyond the `before` bytes in
/// use.
fn library_takes_its_variable(cuda: &Cuda, before: u64) {
    let scratch = gpulimit_support::Scratch::new();
    let file = scratch.at("big.ptx");
    std::fs::write(&file, BIG.to_bytes()).expect("written");
    let path = std::ffi::CString::new(file.to_str().expect("a path")).expect("no NUL");
    let (work, big) = (c"work".as_ptr() as usize, c"big".as_ptr() as usize);
    let (mut address, mut size) = (0u64, 0usize);
    let both = [&raw mut address as usize, &raw mut size as usize];
    for way in 0..4 {
        let library = if way == 0 {
            library(cuda, "cuLibraryLoadFromFile", path.as_ptr() as usize)
        } else {
            library(cuda, "cuLibraryLoadData", BIG.as_ptr() as usize)
        };
        let kernel = cuda
            .get("cuLibraryGetKernel", &[library, work])
            .expect("a kernel") as usize;
        assert_eq!(cuda.beyond(), before, "way {way}");
        match way {
            0 => {
                let function = cuda
                    .get("cuKernelGetFunction", &[kernel])
                    .expect("a function");
                assert_eq!(cuda.beyond(), 64 * MIB);
                assert_eq!(launch(cuda, function as usize), 0);
            }
            1 => {
                let arguments = [both[0], both[1], library, big];
                assert_eq!(cuda.call("cuLibraryGetGlobal", &arguments), 0);
                assert_eq!(size, 64 << 20);
            }
            2 => {
                let module = cuda
                    .get("cuLibraryGetModule", &[library])
                    .expect("a module");
                let arguments = [both[0], both[1], module as usize, big];
                assert_eq!(cuda.call("cuModuleGetGlobal_v2", &arguments), 0);
            }
            _ => assert_eq!(
                launch(cuda, kernel),
                0,
                "a kernel can be launched as a function"
            ),
        }
        assert_eq!(cuda.beyond(), 64 * MIB, "way {way}");
        assert_eq!(cuda.call("cuLibraryUnload", &[library]), 0);
        assert_eq!(cuda.beyond(), 0, "way {way}");
        assert_eq!(launch(cuda, kernel), 400, "the library is unloaded");
    }
}

fn mode(cuda: &Cuda) -> i32 {
    let mut mode = 0i32;
    assert_eq!(
        cuda.call("cuModuleGetLoadingMode", &[&raw mut mode as usize]),
        0
    );
    mode
}

fn is_lazy(cuda: &Cuda) {
    assert_eq!(cuda.call("cuInit", &[0]), 0);
    let early = library(cuda, "cuLibraryLoadData", BIG.as_ptr() as usize);
    assert_eq!(used(), 0, "without a context a library takes no memory");
    cuda.start();
    assert_eq!(cuda.call("cuLibraryUnload", &[early]), 0);
    assert_eq!(mode(cuda), 2);
    module_takes_its_variable_at_the_load(cuda);
    library_takes_its_variable(cuda, 0);
}

#[test]
fn loading_is_lazy_by_default() {
    alone(&[], is_lazy);
}

#[test]
fn lazy_loading() {
    alone(&[("CUDA_MODULE_LOADING", "LAZY")], is_lazy);
}

#[test]
fn eager_loading() {
    alone(&[("CUDA_MODULE_LOADING", "EAGER")], |cuda| {
        cuda.start();
        assert_eq!(mode(cuda), 1);
        module_takes_its_variable_at_the_load(cuda);
        library_takes_its_variable(cuda, 64 * MIB);
    });
}

#[test]
fn a_library_that_does_not_fit_answers_out_of_memory() {
    let capacity = (32 << 20) + crate::rig::CONTEXT;
    alone(
        &[("GPULIMIT_SIM_CAPACITY", &capacity.to_string())],
        |cuda| {
            cuda.start();
            let library = library(cuda, "cuLibraryLoadData", BIG.as_ptr() as usize);
            let work = c"work".as_ptr() as usize;
            let kernel = cuda
                .get("cuLibraryGetKernel", &[library, work])
                .expect("a kernel") as usize;
            assert_eq!(cuda.get("cuKernelGetFunction", &[kernel]), Err(2));
            assert_eq!(launch(cuda, kernel), 2);
            assert_eq!(cuda.call("cuLibraryUnload", &[library]), 0);
            assert_eq!(cuda.beyond(), 0);
        },
    );
}

#[test]
fn the_first_launch_takes_memory_until_the_context_is_destroyed() {
    let taken = 92 * MIB;
    alone(
        &[("GPULIMIT_SIM_FIRST_LAUNCH_BYTES", &taken.to_string())],
        |cuda| {
            cuda.start();
            for _ in 0..2 {
                let ptx = c".version 8.0\n.visible .entry work()\n{\nret;\n}\n";
                let module = cuda
                    .get("cuModuleLoadData", &[ptx.as_ptr() as usize])
                    .expect("a module") as usize;
                let name = c"work".as_ptr() as usize;
                let function = cuda
                    .get("cuModuleGetFunction", &[module, name])
                    .expect("a function") as usize;
                assert_eq!(cuda.beyond(), 0);
                assert_eq!(launch(cuda, function), 0);
                assert_eq!(cuda.beyond(), taken);
                assert_eq!(launch(cuda, function), 0);
                assert_eq!(cuda.call("cuModuleUnload", &[module]), 0);
                assert_eq!(cuda.beyond(), taken, "unloading keeps the memory");
                assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
                assert_eq!(used(), 0);
                cuda.start();
            }
        },
    );
}

/// In the fat binaries of nvcc 13.5, machine code takes 302 MiB and PTX text 52 MiB. The figures
/// show which was loaded.
#[test]
fn compressed_fat_binaries_are_read() {
    const LZ4: &[u8] = include_bytes!("../../../../crates/fatbin/src/fixtures/lz4.fatbin");
    const ZSTD: &[u8] = include_bytes!("../../../../crates/fatbin/src/fixtures/zstd.fatbin");
    alone(&[], |cuda| {
        cuda.start();
        for image in [LZ4, ZSTD] {
            let header = |payload: usize| {
                let mut image = image.to_vec();
                image[8..16].copy_from_slice(&(payload as u64).to_le_bytes());
                image
            };
            // The PTX text is the first entry of the fat binary.
            let text = 80 + u64::from_le_bytes(image[24..32].try_into().expect("eight")) as usize;
            for (image, taken) in [(header(image.len() - 16), 302), (header(text), 52)] {
                let module = cuda
                    .get("cuModuleLoadData", &[image.as_ptr() as usize])
                    .expect("a module") as usize;
                assert_eq!(cuda.beyond(), taken * MIB);
                assert_eq!(cuda.call("cuModuleUnload", &[module]), 0);
                assert_eq!(cuda.beyond(), 0);
            }
            let nothing = header(0);
            let arguments = [nothing.as_ptr() as usize];
            assert_eq!(cuda.get("cuModuleLoadData", &arguments), Err(209));
        }
    });
}

/// Returns the `CUgraphNodeParams` of a kernel node, with the same grid and block for every kernel.
fn node(function: usize, kernel: usize, context: usize) -> [usize; 32] {
    let mut params = [0; 32];
    params[3..6].fill(1 << 32 | 1);
    (params[2], params[9], params[10]) = (function, kernel, context);
    params
}

/// Returns the name and the arguments of every call that loads the library of a given kernel.
fn ways(cuda: &Cuda, kernel: usize) -> Vec<(&'static str, Vec<usize>)> {
    let place = Box::leak(Box::new([0usize; 8])).as_mut_ptr() as usize;
    let graph = || cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
    let any = Box::leak(Box::new(node(0, kernel, 0))).as_ptr() as usize;
    let module = cuda.get(
        "cuModuleLoadData",
        &[c".version 8.0\n.visible .entry a()\n".as_ptr() as usize],
    );
    let small = cuda.get(
        "cuModuleGetFunction",
        &[module.expect("a module") as usize, c"a".as_ptr() as usize],
    );
    let small = node(small.expect("a function") as usize, 0, 0);
    let other = || {
        let arguments = [graph(), 0, 0, small.as_ptr() as usize];
        cuda.get("cuGraphAddNode", &arguments).expect("a node") as usize
    };
    vec![
        (
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            vec![place, kernel, 32, 0],
        ),
        (
            "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
            vec![place, kernel, 32, 0, 0],
        ),
        (
            "cuOccupancyMaxPotentialBlockSize",
            vec![place, place + 8, kernel, 0, 0, 0],
        ),
        (
            "cuOccupancyMaxPotentialBlockSizeWithFlags",
            vec![place, place + 8, kernel, 0, 0, 0, 0],
        ),
        (
            "cuOccupancyAvailableDynamicSMemPerBlock",
            vec![place, kernel, 1, 32],
        ),
        (
            "cuOccupancyMaxPotentialClusterSize",
            vec![place, kernel, place],
        ),
        ("cuOccupancyMaxActiveClusters", vec![place, kernel, place]),
        ("cuKernelGetParamInfo", vec![kernel, 0, place, place + 8]),
        ("cuKernelGetParamCount", vec![kernel, place]),
        (
            "cuGraphAddKernelNode_v2",
            vec![place, graph(), 0, 0, any + 16],
        ),
        ("cuGraphAddNode", vec![place, graph(), 0, 0, any]),
        ("cuGraphAddNode_v2", vec![place, graph(), 0, 0, 0, any]),
        ("cuGraphAddNode_v3", vec![place, graph(), 0, 0, 0, any]),
        ("cuGraphKernelNodeSetParams_v2", vec![other(), any + 16]),
        ("cuGraphNodeSetParams", vec![other(), any]),
        ("cuGraphNodeSetParams_v2", vec![other(), any]),
        ("cuKernelSetAttribute", vec![8, 1024, kernel, 0]),
        ("cuKernelSetCacheConfig", vec![kernel, 1, 0]),
    ]
}

fn kernel(cuda: &Cuda) -> (usize, usize) {
    let library = library(cuda, "cuLibraryLoadData", BIG.as_ptr() as usize);
    let kernel = cuda.get("cuLibraryGetKernel", &[library, c"work".as_ptr() as usize]);
    (library, kernel.expect("a kernel") as usize)
}

/// Each call loads the library: 64 MiB in the current context, or error 201 without one.
/// `cuKernelSet…` loads it in all contexts.
#[test]
fn every_use_of_a_kernel_loads_its_library() {
    alone(&[], |cuda| {
        cuda.start();
        let primary = cuda
            .get("cuDevicePrimaryCtxRetain", &[0])
            .expect("a context") as usize;
        let other = cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context") as usize;
        // Remove the upper of two contexts from the thread's stack, so that the lower one can be
        // removed later.
        assert_eq!(cuda.call("cuCtxSetCurrent", &[0]), 0);
        let before = cuda.beyond();
        let count = ways(cuda, kernel(cuda).1).len();
        for current in [primary, other, 0] {
            for way in 0..count {
                assert_eq!(cuda.call("cuCtxSetCurrent", &[primary]), 0);
                let (library, kernel) = kernel(cuda);
                let (name, arguments) = ways(cuda, kernel).swap_remove(way);
                assert_eq!(cuda.call("cuCtxSetCurrent", &[current]), 0);
                let all = name.starts_with("cuKernelSet");
                let answer = if current == 0 && !all { 201 } else { 0 };
                let of_library = name.starts_with("cuKernelGet") || name.starts_with("cuOcc");
                if current != 0 || all || of_library {
                    assert_eq!(cuda.call(name, &arguments), answer, "{name}");
                }
                let taken = match (current, all) {
                    (_, true) => 128 * MIB,
                    (0, _) => 0,
                    _ => 64 * MIB,
                };
                assert_eq!(cuda.beyond() - before, taken, "{name}");
                assert_eq!(cuda.call("cuCtxSetCurrent", &[other]), 0);
                assert!(cuda.get("cuKernelGetFunction", &[kernel]).is_ok());
                let here = if current == primary && !all {
                    64 * MIB
                } else {
                    0
                };
                let first = if current == 0 && !all { 64 * MIB } else { here };
                assert_eq!(cuda.beyond() - before, taken + first, "{name}");
                assert_eq!(cuda.call("cuLibraryUnload", &[library]), 0);
                assert_eq!(cuda.beyond(), before, "{name}");
            }
        }
        assert_eq!(cuda.call("cuCtxSetCurrent", &[primary]), 0);
        let (_, kernel) = kernel(cuda);
        let mut added = 0u64;
        let place = &raw mut added as usize;
        let graph = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
        let params = node(0, kernel, other);
        assert_eq!(
            cuda.call(
                "cuGraphAddNode",
                &[place, graph, 0, 0, params.as_ptr() as usize]
            ),
            0
        );
        assert_eq!(cuda.beyond() - before, 64 * MIB);
        assert_eq!(cuda.call("cuCtxSetCurrent", &[other]), 0);
        assert!(cuda.get("cuKernelGetFunction", &[kernel]).is_ok());
        assert_eq!(
            cuda.beyond() - before,
            64 * MIB,
            "the library is loaded only in the named context"
        );
    });
}

/// Calls with wrong arguments fail. Some of them still load the library and take 64 MiB.
#[test]
fn wrong_arguments_get_the_measured_answers() {
    alone(&[], |cuda| {
        cuda.start();
        let mut place = [0u64; 2];
        let place = place.as_mut_ptr() as usize;
        let graph = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
        let blocks = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
        let tries = |kernel: usize| {
            let both = Box::leak(Box::new(node(kernel, kernel, 0))).as_ptr() as usize;
            let function = Box::leak(Box::new(node(kernel, 0, 0))).as_ptr() as usize;
            vec![
                (blocks, vec![place, kernel, 0, 0], 1, 64),
                (blocks, vec![0, kernel, 32, 0], 1, 0),
                (
                    "cuKernelGetParamInfo",
                    vec![kernel, 7, place, place + 8],
                    1,
                    64,
                ),
                ("cuKernelSetCacheConfig", vec![kernel, 1, 5], 101, 0),
                ("cuKernelSetCacheConfig", vec![kernel, 77, 0], 1, 0),
                ("cuGraphAddNode", vec![place, graph, 0, 0, both], 400, 0),
                ("cuGraphAddNode", vec![place, graph, 0, 0, function], 400, 0),
                ("cuFuncLoad", vec![kernel], 400, 0),
                ("cuFuncSetAttribute", vec![kernel, 8, 1024], 400, 0),
                ("cuFuncSetCacheConfig", vec![kernel, 1], 400, 0),
                ("cuFuncSetSharedMemConfig", vec![kernel, 1], 400, 0),
            ]
        };
        for at in 0..tries(0).len() {
            let (library, kernel) = kernel(cuda);
            let (name, arguments, answer, taken) = tries(kernel).swap_remove(at);
            assert_eq!(cuda.call(name, &arguments), answer, "{name} {at}");
            assert_eq!(cuda.beyond(), taken * MIB, "{name} {at}");
            assert_eq!(cuda.call("cuLibraryUnload", &[library]), 0);
        }
    });
}
