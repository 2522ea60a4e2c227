//! Tests of the memory that contexts take for kernels. Figures were measured on an H100
//! (580.159.04) unless stated otherwise.

use crate::rig::{Cuda, MIB, alone};

const STACK: usize = 0;
const PRINTF: usize = 1;
const HEAP: usize = 2;
const PRINTF_USER: &str = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);";
const MALLOC: &str = ".extern .func (.param .b64 r) malloc (.param .b64 n);";

fn set(cuda: &Cuda, limit: usize, value: usize) -> i32 {
    cuda.call("cuCtxSetLimit", &[limit, value])
}

fn module(cuda: &Cuda, local: usize, uses: &str) -> usize {
    let ptx = format!(
        ".version 8.0\n.target sm_90\n{uses}\n.visible .entry work()\n{{\n\
             .local .align 4 .b8 depot[{local}];\nret;\n}}\0"
    );
    cuda.get("cuModuleLoadData", &[ptx.as_ptr() as usize])
        .expect("a module") as usize
}

fn function(cuda: &Cuda, module: usize) -> usize {
    cuda.get("cuModuleGetFunction", &[module, c"work".as_ptr() as usize])
        .expect("a function") as usize
}

fn launch(cuda: &Cuda, function: usize) -> i32 {
    cuda.call("cuLaunchKernel", &[function, 1, 1, 1, 1, 1, 1])
}

#[test]
fn limits_start_at_the_measured_values() {
    alone(&[], |cuda| {
        cuda.start();
        let starts = [
            Ok(1024),
            Ok(8_650_752),
            Ok(8_388_608),
            Err(215),
            Ok(2048),
            Ok(64),
            Ok(9_830_400),
            Err(1),
        ];
        for (limit, start) in starts.into_iter().enumerate() {
            assert_eq!(cuda.get("cuCtxGetLimit", &[limit]), start, "limit {limit}");
            assert_eq!(
                set(cuda, limit, 64),
                start.err().unwrap_or(0),
                "limit {limit}"
            );
        }
        assert_eq!(cuda.get("cuCtxGetLimit", &[usize::MAX]), Err(1));
    });
}

#[test]
fn the_stack_limit_takes_and_frees_whole_blocks_rounded_down() {
    alone(&[], |cuda| {
        cuda.start();
        for (value, now, mib) in [
            (2048, 2048, 264),
            (4096, 4096, 792),
            (4097, 4112, 796),
            (5000, 5008, 1026),
            (1024, 1024, 0),
            (512, 512, -132),
            (1, 16, -260),
            (0, 0, -264),
        ] {
            assert_eq!(set(cuda, STACK, value), 0);
            assert_eq!(cuda.get("cuCtxGetLimit", &[STACK]), Ok(now));
            let beyond = crate::rig::used() as i64 - crate::rig::CONTEXT as i64;
            assert_eq!(beyond, mib * MIB as i64, "limit {value}");
        }
        for value in [524_288, 1_048_576, usize::MAX] {
            assert_eq!(set(cuda, STACK, value), 1, "{value}");
        }
        assert_eq!(cuda.get("cuCtxGetLimit", &[STACK]), Ok(0));
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
        assert_eq!(crate::rig::used(), 0);
    });
}

#[test]
fn the_other_limits_take_no_memory() {
    alone(&[], |cuda| {
        cuda.start();
        for (limit, value, now) in [
            (PRINTF, 268_435_456, 268_435_456),
            (PRINTF, 1_048_576, 1_048_576),
            (HEAP, 536_870_912, 536_870_912),
            (4, 65_536, 65_536),
            (4, 1_048_576, 599_186),
            (5, 32, 32),
            (6, 1_048_576, 3_276_800),
        ] {
            assert_eq!(set(cuda, limit, value), 0);
            assert_eq!(cuda.get("cuCtxGetLimit", &[limit]), Ok(now));
            assert_eq!(cuda.beyond(), 0, "limit {limit} = {value} takes no memory");
        }
    });
}

/// A kernel with 1,100 bytes of local memory takes 20 MiB. A second context has local memory of its
/// own.
#[test]
fn a_launch_grows_the_local_memory_of_its_context() {
    alone(&[], |cuda| {
        cuda.start();
        let small = module(cuda, 1100, "");
        let small = function(cuda, small);
        let mut told = 0i32;
        let place = &raw mut told as usize;
        assert_eq!(cuda.call("cuFuncGetAttribute", &[place, 3, small]), 0);
        assert_eq!(told, 1104);
        assert_eq!(launch(cuda, small), 0);
        assert_eq!(cuda.beyond(), 20 * MIB);
        assert_eq!(set(cuda, STACK, 1200), 0);
        assert_eq!(cuda.beyond(), 44 * MIB, "the stack limit is 1,200 bytes");
        let second = cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context") as usize;
        let taken = cuda.beyond();
        let there = module(cuda, 1100, "");
        assert_eq!(launch(cuda, function(cuda, there)), 0);
        assert_eq!(cuda.beyond(), taken + 20 * MIB);
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[second]), 0);
        assert_eq!(cuda.beyond(), 44 * MIB);
    });
}

#[test]
fn a_kernel_below_a_lowered_limit_takes_what_it_needs() {
    alone(&[], |cuda| {
        cuda.start();
        assert_eq!(set(cuda, STACK, 16), 0);
        let small = module(cuda, 512, "");
        assert_eq!(launch(cuda, function(cuda, small)), 0);
        assert_eq!(crate::rig::used(), crate::rig::CONTEXT - 132 * MIB);
    });
}

#[test]
fn launches_raise_the_stack_limit_and_lowering_it_frees_memory() {
    alone(&[], |cuda| {
        cuda.start();
        let launch = |local| {
            let module = module(cuda, local, "");
            assert_eq!(launch(cuda, function(cuda, module)), 0);
        };
        for (local, limit, taken) in [(4096, 4096, 792), (2048, 4096, 792), (8192, 8192, 1848)] {
            launch(local);
            assert_eq!(cuda.get("cuCtxGetLimit", &[STACK]), Ok(limit));
            assert_eq!(cuda.beyond(), taken * MIB);
        }
        for (limit, taken) in [
            (2048, 264),
            (1024, 0),
            (4096, 792),
            (16_384, 3960),
            (1024, 0),
        ] {
            assert_eq!(set(cuda, STACK, limit), 0);
            assert_eq!(cuda.beyond(), taken * MIB, "limit {limit}");
        }
        launch(4096);
        assert_eq!(cuda.beyond(), 792 * MIB);
        assert_eq!(set(cuda, STACK, 0), 0);
        assert_eq!(crate::rig::used(), crate::rig::CONTEXT - 264 * MIB);
    });
}

/// Assumed, not measured: the next launch takes the freed local memory again, and a stack limit
/// fails like a kernel.
#[test]
fn growth_that_fails_frees_the_local_memory() {
    alone(&[], |cuda| {
        cuda.start();
        let left = crate::rig::CONTEXT - 264 * MIB;
        let large = module(cuda, 400_000, "");
        let small = module(cuda, 16, "");
        for limit in [false, true] {
            let failed = match limit {
                true => set(cuda, STACK, 400_000),
                false => launch(cuda, function(cuda, large)),
            };
            assert_eq!((failed, crate::rig::used()), (2, left));
            assert_eq!(cuda.get("cuCtxGetLimit", &[STACK]), Ok(1024));
            assert_eq!(launch(cuda, function(cuda, small)), 0);
            assert_eq!(cuda.beyond(), 0);
        }
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
        assert_eq!(crate::rig::used(), 0);
    });
}

/// A captured kernel has 8,192 bytes of local memory. Only the graph's instantiation takes memory:
/// 1848 MiB, and 2 MiB for the first graph.
#[test]
fn a_graph_takes_the_local_memory_of_its_kernels_when_it_is_instantiated() {
    alone(&[], |cuda| {
        cuda.start();
        let large = module(cuda, 8192, "");
        let stream = cuda.get("cuStreamCreate", &[1]).expect("a stream") as usize;
        assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, 2]), 0);
        let arguments = [function(cuda, large), 1, 1, 1, 1, 1, 1, 0, stream];
        assert_eq!(cuda.call("cuLaunchKernel", &arguments), 0);
        let mut graph = 0usize;
        let arguments = [stream, &raw mut graph as usize];
        assert_eq!(cuda.call("cuStreamEndCapture", &arguments), 0);
        assert_eq!(cuda.beyond(), 0);
        let exec = cuda
            .get("cuGraphInstantiateWithFlags", &[graph, 0])
            .expect("a graph") as usize;
        assert_eq!(cuda.beyond(), 1850 * MIB);
        assert_eq!(cuda.call("cuGraphUpload", &[exec, stream]), 0);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0);
        assert_eq!(cuda.beyond(), 1850 * MIB);
    });
}

/// Captures a graph with one launch of the function.
fn capture(cuda: &Cuda, stream: usize, function: usize) -> usize {
    assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, 2]), 0);
    let arguments = [function, 1, 1, 1, 1, 1, 1, 0, stream];
    assert_eq!(cuda.call("cuLaunchKernel", &arguments), 0);
    let mut graph = 0usize;
    let arguments = [stream, &raw mut graph as usize];
    assert_eq!(cuda.call("cuStreamEndCapture", &arguments), 0);
    graph
}

/// Putting a kernel into an executable graph takes 1848 MiB. After a lower stack limit, only the
/// upload takes that memory again.
#[test]
fn a_changed_graph_takes_what_its_new_kernels_need() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = cuda.get("cuStreamCreate", &[1]).expect("a stream") as usize;
        let small = function(cuda, module(cuda, 128, ""));
        let large = function(cuda, module(cuda, 8192, ""));
        let [graph, other] = [small, large].map(|function| capture(cuda, stream, function));
        let (mut node, mut count, mut told) = (0usize, 1usize, [0u64; 3]);
        let place = &raw mut node as usize;
        let arguments = [graph, place, &raw mut count as usize];
        assert_eq!(cuda.call("cuGraphGetNodes", &arguments), 0);
        let told = told.as_mut_ptr() as usize;
        for way in 0..5 {
            let exec = cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
            let exec = exec.expect("a graph") as usize;
            assert_eq!(cuda.beyond(), 2 * MIB);
            let mut params = [0u64; 32];
            params[2] = large as u64;
            let params = params.as_ptr() as usize;
            let change = || match way {
                0 => cuda.call("cuGraphExecUpdate_v2", &[exec, other, told]),
                1 => cuda.call("cuGraphExecUpdate", &[exec, other, told, told]),
                2 => cuda.call(
                    "cuGraphExecKernelNodeSetParams_v2",
                    &[exec, node, params + 16],
                ),
                3 => cuda.call("cuGraphExecKernelNodeSetParams", &[exec, node, params + 16]),
                _ => cuda.call("cuGraphExecNodeSetParams", &[exec, node, params]),
            };
            assert_eq!(change(), 0);
            assert_eq!(cuda.beyond(), 1850 * MIB, "way {way}");
            assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0);
            for again in [true, false] {
                assert_eq!(set(cuda, STACK, 1024), 0);
                assert_eq!(if again { change() } else { 0 }, 0);
                assert_eq!(cuda.beyond(), 2 * MIB, "way {way}");
                assert_eq!(cuda.call("cuGraphUpload", &[exec, stream]), 0);
                assert_eq!(cuda.beyond(), 1850 * MIB, "way {way}");
            }
            assert_eq!(set(cuda, STACK, 1024), 0);
        }
        let user = module(cuda, 0, MALLOC);
        let with_heap = capture(cuda, stream, function(cuda, user));
        let exec = cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
        let exec = exec.expect("a graph") as usize;
        assert_eq!(cuda.beyond(), 140 * MIB);
        assert_eq!(
            cuda.call("cuGraphExecUpdate_v2", &[exec, with_heap, told]),
            0
        );
        assert_eq!(cuda.beyond(), 150 * MIB);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0);
        assert_eq!(cuda.beyond(), 150 * MIB);
    });
}

#[test]
fn a_change_that_does_not_fit_the_graph_is_refused() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = cuda.get("cuStreamCreate", &[1]).expect("a stream") as usize;
        let large = function(cuda, module(cuda, 8192, ""));
        let other = capture(cuda, stream, large);
        let graph = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
        let node = cuda
            .get("cuGraphAddEmptyNode", &[graph, 0, 0])
            .expect("a node") as usize;
        let exec = cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
        let exec = exec.expect("a graph") as usize;
        let mut told = [7u64; 3];
        let arguments = [exec, other, told.as_mut_ptr() as usize];
        assert_eq!(cuda.call("cuGraphExecUpdate_v2", &arguments), 910);
        assert_eq!(told[0], 2, "CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED");
        let params = [large as u64; 9];
        let arguments = [exec, node, params.as_ptr() as usize];
        assert_eq!(
            cuda.call("cuGraphExecKernelNodeSetParams_v2", &arguments),
            1
        );
        assert_eq!(
            cuda.call("cuGraphExecChildGraphNodeSetParams", &[exec, node, other]),
            1
        );
        assert_eq!(cuda.beyond(), 2 * MIB);
    });
}

/// A module with device assert takes 92 MiB, or nothing after a module with device malloc. After
/// that, the limit of printf cannot be set.
#[test]
fn assert_takes_90_mib_unless_malloc_is_loaded_before() {
    let assert = ".extern .func __assertfail (.param .b64 a);\n.global .align 1 .b8 s[4];";
    alone(&[], |cuda| {
        cuda.start();
        let first = module(cuda, 0, assert);
        assert_eq!(cuda.beyond(), 92 * MIB);
        assert_eq!(launch(cuda, function(cuda, first)), 0);
        assert_eq!(cuda.beyond(), 92 * MIB);
        assert_eq!(
            [set(cuda, HEAP, 8 << 20), set(cuda, PRINTF, 16 << 20)],
            [0, 1]
        );
        assert_eq!(cuda.call("cuModuleUnload", &[first]), 0);
        assert_eq!(cuda.beyond(), 90 * MIB);
        module(cuda, 0, MALLOC);
        assert_eq!(cuda.beyond(), 138 * MIB);
        let context = cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context") as usize;
        let before = cuda.beyond();
        module(cuda, 0, MALLOC);
        module(cuda, 0, assert);
        assert_eq!(cuda.beyond(), before + 140 * MIB);
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), 0);
        cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context");
        let before = cuda.beyond();
        for (uses, mib) in [
            (PRINTF_USER, 62),
            (assert, 92),
            (PRINTF_USER, 92),
            (MALLOC, 140),
        ] {
            module(cuda, 0, uses);
            assert_eq!(cuda.beyond(), before + mib * MIB);
        }
    });
}

/// The code of two kernels of 60,000 stores takes 20 MiB when both are looked up, not when they are
/// listed or launched.
#[test]
fn code_is_loaded_when_a_function_is_looked_up() {
    alone(&[], |cuda| {
        cuda.start();
        let kernel = |name: &str| {
            let stores = "st.volatile.global.u32 [%a1], 7;\n".repeat(60_000);
            format!(".visible .entry {name}()\n{{\n{stores}ret;\n}}\n")
        };
        let ptx = format!(".version 8.0\n{}{}\0", kernel("work"), kernel("more"));
        let image = ptx.as_ptr() as usize;
        let load = || cuda.get("cuModuleLoadData", &[image]).expect("a module") as usize;
        let got = load();
        assert_eq!(cuda.beyond(), 0);
        let work = function(cuda, got);
        assert_eq!(cuda.beyond(), 20 * MIB);
        assert_eq!(cuda.call("cuFuncLoad", &[work]), 0);
        assert_eq!(launch(cuda, work), 0);
        assert_eq!(cuda.beyond(), 20 * MIB);
        assert_eq!(cuda.call("cuModuleUnload", &[got]), 0);
        assert_eq!(cuda.beyond(), 0);
        let mut place = 0u64;
        let place = &raw mut place as usize;
        let blocks = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
        let graph = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
        for way in 0..6 {
            let listed = load();
            let mut functions = [0usize; 2];
            let arguments = [functions.as_mut_ptr() as usize, 2, listed];
            assert_eq!(cuda.call("cuModuleEnumerateFunctions", &arguments), 0);
            assert_eq!(cuda.beyond(), 0);
            let function = functions[0];
            let params = [function, 1 << 32 | 1, 1 << 32 | 1, 1 << 32 | 1, 0, 0, 0];
            let answer = match way {
                0 => cuda.call("cuFuncLoad", &[function]),
                1 => cuda.call("cuFuncSetAttribute", &[function, 8, 1024]),
                2 => cuda.call("cuFuncSetCacheConfig", &[function, 1]),
                3 => cuda.call("cuFuncSetSharedMemConfig", &[function, 1]),
                4 => cuda.call(blocks, &[place, function, 32, 0]),
                _ => {
                    let arguments = [place, graph, 0, 0, params.as_ptr() as usize];
                    cuda.call("cuGraphAddKernelNode", &arguments)
                }
            };
            assert_eq!(answer, 0);
            assert_eq!(cuda.beyond(), 20 * MIB, "way {way}");
            assert_eq!(cuda.call("cuModuleUnload", &[listed]), 0);
        }
    });
}

/// With a malloc heap of 256 MiB, loading the module takes 138 MiB, and the first launch 258 MiB.
#[test]
fn malloc_takes_memory_at_the_load_and_at_the_first_launch() {
    alone(&[], |cuda| {
        cuda.start();
        assert_eq!(set(cuda, HEAP, 256 << 20), 0);
        let user = module(cuda, 0, MALLOC);
        assert_eq!(cuda.beyond(), 138 * MIB);
        let other = module(cuda, 0, "");
        assert_eq!(launch(cuda, function(cuda, other)), 0);
        assert_eq!(
            cuda.beyond(),
            138 * MIB,
            "a kernel without malloc takes no heap"
        );
        for _ in 0..2 {
            assert_eq!(launch(cuda, function(cuda, user)), 0);
            assert_eq!(cuda.beyond(), 396 * MIB);
            assert_eq!(set(cuda, HEAP, 512 << 20), 1, "the heap is in use");
        }
        assert_eq!(cuda.call("cuModuleUnload", &[user]), 0);
        assert_eq!(cuda.beyond(), 396 * MIB, "unloading keeps the malloc heap");
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
        assert_eq!(crate::rig::used(), 0);
    });
}

/// A module with printf takes 64 MiB. The 2 MiB of its variable are freed with the module; 62 MiB
/// stay.
#[test]
fn printf_takes_the_same_for_every_limit() {
    let printf = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n\
        .global .align 1 .b8 s[4];";
    alone(&[], |cuda| {
        cuda.start();
        for (limit, stays) in [(None, 62), (Some(16), 62), (Some(64), 62), (Some(1024), 62)] {
            let context = cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context") as usize;
            let before = cuda.beyond();
            if let Some(limit) = limit {
                assert_eq!(set(cuda, PRINTF, limit << 20), 0);
            }
            let user = module(cuda, 0, printf);
            assert_eq!(cuda.beyond(), before + (stays + 2) * MIB, "{limit:?}");
            assert_eq!(launch(cuda, function(cuda, user)), 0);
            assert_eq!(cuda.beyond(), before + (stays + 2) * MIB, "{limit:?}");
            assert_eq!(set(cuda, PRINTF, 16 << 20), 1, "printf is in use");
            assert_eq!(cuda.call("cuModuleUnload", &[user]), 0);
            assert_eq!(cuda.beyond(), before + stays * MIB, "{limit:?}");
            assert_eq!(
                set(cuda, PRINTF, 16 << 20),
                1,
                "printf's limit stays fixed after the module is unloaded"
            );
            assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), 0);
            assert_eq!(cuda.beyond(), 0);
        }
    });
}

/// `cuKernelGetAttribute` reports the local memory of a kernel (`CUkernel`), and
/// `cuFuncGetAttribute` that of a function (`CUfunction`). Neither call loads code.
#[test]
fn kernels_report_their_local_memory() {
    alone(&[], |cuda| {
        cuda.start();
        let ptx = c".version 8.0\n.global .align 4 .b8 big[67108864];\n\
            .visible .entry work()\n{\n.local .align 4 .b8 depot[4096];\nret;\n}\n";
        let arguments = [ptx.as_ptr() as usize, 0, 0, 0, 0, 0, 0];
        let library = cuda
            .get("cuLibraryLoadData", &arguments)
            .expect("a library") as usize;
        let arguments = [library, c"work".as_ptr() as usize];
        let kernel = cuda
            .get("cuLibraryGetKernel", &arguments)
            .expect("a kernel") as usize;
        let mut told = 0i32;
        let place = &raw mut told as usize;
        let ask = |name, arguments: &[usize]| cuda.call(name, arguments);
        assert_eq!(ask("cuKernelGetAttribute", &[place, 3, kernel, 0]), 0);
        assert_eq!((told, cuda.beyond()), (4096, 0));
        assert_eq!(ask("cuKernelGetAttribute", &[place, 3, kernel, 9]), 101);
        assert_eq!(ask("cuFuncGetAttribute", &[place, 3, kernel]), 400);
        assert_eq!(cuda.get("cuFuncGetModule", &[kernel]), Err(400));
        assert_eq!(
            cuda.get("cuKernelGetLibrary", &[kernel]),
            Ok(library as u64)
        );
        let function = cuda
            .get("cuKernelGetFunction", &[kernel])
            .expect("a function") as usize;
        assert_ne!(function, kernel);
        assert_eq!(ask("cuFuncGetAttribute", &[place, 3, function]), 0);
        assert_eq!(ask("cuKernelGetAttribute", &[place, 3, function, 0]), 400);
        assert_eq!(cuda.get("cuKernelGetLibrary", &[function]), Err(400));
        assert!(cuda.get("cuFuncGetModule", &[function]).is_ok());
    });
}

/// The first module with device malloc takes 138 MiB. The first launch takes the heap and 2 MiB.
#[test]
fn a_heap_takes_2_mib_more_than_its_limit() {
    alone(&[], |cuda| {
        cuda.start();
        for (limit, taken) in [
            (None, 10),
            (Some(64), 66),
            (Some(256), 258),
            (Some(512), 514),
        ] {
            let context = cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context") as usize;
            let before = cuda.beyond();
            if let Some(limit) = limit {
                assert_eq!(set(cuda, HEAP, limit << 20), 0);
            }
            let modules = [module(cuda, 0, MALLOC), module(cuda, 0, MALLOC)];
            assert_eq!(cuda.beyond(), before + 138 * MIB);
            for module in modules {
                assert_eq!(launch(cuda, function(cuda, module)), 0);
                assert_eq!(cuda.beyond(), before + (138 + taken) * MIB, "{limit:?}");
            }
            assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), 0);
            assert_eq!(cuda.beyond(), 0);
        }
    });
}

#[test]
fn every_way_to_launch_takes_local_memory() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = cuda.get("cuStreamCreate", &[1]).expect("a stream") as usize;
        let launch = |way: usize, function: usize| {
            let many = [
                function,
                1 << 32 | 1,
                1 << 32 | 1,
                1 << 32 | 1,
                0,
                stream,
                0,
            ];
            match way {
                0 => cuda.call("cuLaunch", &[function]),
                1 => cuda.call("cuLaunchGrid", &[function, 1, 1]),
                2 => cuda.call("cuLaunchGridAsync", &[function, 1, 1, stream]),
                _ => {
                    let arguments = [many.as_ptr() as usize, 1, 0];
                    cuda.call("cuLaunchCooperativeKernelMultiDevice", &arguments)
                }
            }
        };
        for way in 0..4 {
            let module = module(cuda, 2048 << way, "");
            assert_eq!(launch(way, function(cuda, module)), 0);
            let per_thread = (2048 << way) - 1024;
            assert_eq!(cuda.beyond(), per_thread * 132 * 2048, "way {way}");
        }
        assert_eq!(cuda.call("cuLaunchGrid", &[0, 1, 1]), 400);
        assert_eq!(
            cuda.call("cuLaunchCooperativeKernelMultiDevice", &[0, 1, 0]),
            1
        );
    });
}

/// Returns a resource description of all multiprocessors of the GPU.
fn description(cuda: &Cuda) -> usize {
    let mut resource = [0u32; 36];
    let place = resource.as_mut_ptr() as usize;
    assert_eq!(cuda.call("cuDeviceGetDevResource", &[0, place, 1]), 0);
    assert_eq!((resource[0], resource[24]), (1, 132));
    cuda.get("cuDevResourceGenerateDesc", &[place, 1])
        .expect("a description") as usize
}

/// One to four green contexts with streams take 6, 12, 16 and 22 MiB, until their primary context
/// is destroyed.
#[test]
fn green_contexts_are_parts_of_the_primary_context() {
    alone(&[], |cuda| {
        assert_eq!(cuda.call("cuInit", &[0]), 0);
        let description = description(cuda);
        let create = |flags| cuda.get("cuGreenCtxCreate", &[description, 0, flags]);
        assert_eq!(create(0), Err(1));
        assert_eq!(crate::rig::used(), 0);
        let mut greens = Vec::new();
        let mut context = 0;
        for taken in [6, 12, 16, 22] {
            let green = create(1).expect("a green context") as usize;
            context = cuda.get("cuCtxFromGreenCtx", &[green]).expect("a context") as usize;
            let stream = cuda
                .get("cuGreenCtxStreamCreate", &[green, 1, 0])
                .expect("a stream") as usize;
            let mut of_stream = 0usize;
            let arguments = [stream, &raw mut of_stream as usize];
            assert_eq!(cuda.call("cuStreamGetCtx", &arguments), 0);
            assert_eq!(of_stream, context);
            assert_eq!(cuda.beyond(), taken * MIB, "green contexts take memory");
            greens.push(green);
        }
        let primary = cuda
            .get("cuDevicePrimaryCtxRetain", &[0])
            .expect("a context");
        assert_ne!(primary as usize, context);
        assert_eq!(cuda.call("cuCtxSetCurrent", &[context]), 0);
        assert_eq!(cuda.get("cuCtxGetCurrent", &[]), Ok(context as u64));
        let memory = cuda.alloc(100 << 20).expect("memory");
        assert_eq!(cuda.beyond(), 122 * MIB);
        let there = module(cuda, 8192, "");
        assert_eq!(launch(cuda, function(cuda, there)), 0);
        assert_eq!(cuda.beyond(), (122 + 1848) * MIB);
        assert_eq!(cuda.call("cuCtxSetCurrent", &[primary as usize]), 0);
        let here = module(cuda, 8192, "");
        assert_eq!(launch(cuda, function(cuda, here)), 0);
        for green in greens {
            assert_eq!(cuda.call("cuGreenCtxDestroy", &[green]), 0);
            assert_eq!(cuda.call("cuGreenCtxDestroy", &[green]), 709);
        }
        assert_eq!(cuda.beyond(), (122 + 1848) * MIB);
        assert_eq!(cuda.free(memory), 0);
        assert_eq!(cuda.beyond(), (22 + 1848) * MIB);
        assert_eq!(cuda.call("cuDevicePrimaryCtxRelease_v2", &[0]), 0);
        assert_eq!(crate::rig::used(), 0);
    });
}

/// Checks that the primary context is destroyed together with its last green context.
#[test]
fn green_contexts_keep_the_primary_context_alive() {
    alone(&[], |cuda| {
        assert_eq!(cuda.call("cuInit", &[0]), 0);
        let description = description(cuda);
        let green = || {
            cuda.get("cuGreenCtxCreate", &[description, 0, 1])
                .expect("a green context") as usize
        };
        let (first, second) = (green(), green());
        assert_eq!(cuda.call("cuGreenCtxDestroy", &[first]), 0);
        assert!(crate::rig::used() > crate::rig::CONTEXT);
        assert_eq!(cuda.call("cuGreenCtxDestroy", &[second]), 0);
        assert_eq!(crate::rig::used(), 0);
    });
}

#[test]
fn contexts_for_graphics_cost_the_same() {
    alone(&[], |cuda| {
        cuda.start();
        for (name, arguments) in [
            ("cuGLCtxCreate", &[0, 0][..]),
            ("cuGLCtxCreate_v2", &[0, 0]),
            ("cuVDPAUCtxCreate", &[0, 0, 1, 1]),
            ("cuVDPAUCtxCreate_v2", &[0, 0, 1, 1]),
        ] {
            let context = cuda.get(name, arguments).expect("a context") as usize;
            assert_eq!(cuda.beyond(), crate::rig::CONTEXT, "{name}");
            assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), 0);
        }
    });
}
