//! What contexts set aside for kernels: their limits, local memory, the device's malloc and printf, green contexts. Measured on
//! an H100, 580.159.04, where not said otherwise.

use crate::rig::{Cuda, MIB, alone};

const STACK: usize = 0;
const PRINTF: usize = 1;
const HEAP: usize = 2;

fn set(cuda: &Cuda, limit: usize, value: usize) -> i32 {
    cuda.call("cuCtxSetLimit", &[limit, value])
}

fn module(cuda: &Cuda, local: usize, uses: &str) -> usize {
    let ptx = format!(
        ".version 8.0\n.target sm_90\n{uses}\n.visible .entry work()\n{{\n.local .align 4 .b8 depot[{local}];\nret;\n}}\0"
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
fn every_limit_starts_as_it_does() {
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
fn the_stack_limit_takes_and_gives_whole_blocks_rounded_down() {
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
        ] {
            assert_eq!(set(cuda, STACK, value), 0);
            assert_eq!(cuda.get("cuCtxGetLimit", &[STACK]), Ok(now));
            let beyond = crate::rig::used() as i64 - crate::rig::CONTEXT as i64;
            assert_eq!(beyond, mib * MIB as i64, "limit {value}");
        }
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
        assert_eq!(crate::rig::used(), 0);
    });
}

#[test]
fn the_other_limits_take_nothing() {
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
            assert_eq!(cuda.beyond(), 0, "limit {limit} at {value}");
        }
    });
}

/// 1,100 bytes: told as 1,104, +20 MiB. A second context has a stack of its own.
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
        assert_eq!(cuda.beyond(), 44 * MIB, "1,200 bytes in all");
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

fn lowered_after_a_launch(cuda: &Cuda, left: u64) {
    cuda.start();
    let module = module(cuda, 4096, "");
    let function = function(cuda, module);
    for _ in 0..2 {
        assert_eq!(launch(cuda, function), 0);
        assert_eq!(cuda.beyond(), 792 * MIB);
        assert_eq!(set(cuda, STACK, 1024), 0);
        assert_eq!(cuda.beyond(), left);
    }
}

/// Not measured: what the limit does to what launches have taken. Both are there.
#[test]
fn a_limit_that_is_lowered_after_a_launch() {
    alone(&[], |cuda| lowered_after_a_launch(cuda, 792 * MIB));
}

#[test]
fn a_limit_that_is_lowered_after_a_launch_and_trims() {
    let knobs = [("GPULIMIT_SIM_STACK_LIMIT_TRIMS", "1")];
    alone(&knobs, |cuda| lowered_after_a_launch(cuda, 0));
}

/// With a heap of 256 MiB: loading took 138 MiB, the first launch 258.
#[test]
fn the_heap_comes_with_the_module_and_the_launch() {
    alone(&[], |cuda| {
        cuda.start();
        assert_eq!(set(cuda, HEAP, 256 << 20), 0);
        let user = module(
            cuda,
            0,
            ".extern .func (.param .b64 r) malloc (.param .b64 n);",
        );
        assert_eq!(cuda.beyond(), 138 * MIB);
        assert_eq!(set(cuda, HEAP, 512 << 20), 1, "in use");
        let other = module(cuda, 0, "");
        assert_eq!(launch(cuda, function(cuda, other)), 0);
        assert_eq!(cuda.beyond(), 138 * MIB, "not for others");
        for _ in 0..2 {
            assert_eq!(launch(cuda, function(cuda, user)), 0);
            assert_eq!(cuda.beyond(), 396 * MIB);
        }
        assert_eq!(cuda.call("cuModuleUnload", &[user]), 0);
        assert_eq!(cuda.beyond(), 396 * MIB, "kept");
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
        assert_eq!(crate::rig::used(), 0);
    });
}

/// With the buffer that a context has. That a larger one is taken where a module that prints is loaded is assumed.
#[test]
fn printf_takes_nothing_beyond_its_limit() {
    let printf = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);";
    alone(&[], |cuda| {
        cuda.start();
        let user = module(cuda, 0, printf);
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(launch(cuda, function(cuda, user)), 0);
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(set(cuda, PRINTF, 128 << 20), 1, "in use");
        let second = cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context") as usize;
        let taken = cuda.beyond();
        assert_eq!(set(cuda, PRINTF, 8_650_752 + (64 << 20)), 0);
        module(cuda, 0, printf);
        assert_eq!(cuda.beyond(), taken + 64 * MIB);
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[second]), 0);
        assert_eq!(cuda.beyond(), 0);
    });
}

/// The kernel's own function tells without loading anything; that the functions' one does not take it is NVIDIA's documentation.
#[test]
fn kernels_tell_their_local_memory() {
    alone(&[], |cuda| kernels_tell(cuda, 400));
}

#[test]
fn kernels_tell_their_local_memory_as_functions() {
    let knobs = [("GPULIMIT_SIM_KERNELS_ARE_FUNCTIONS", "1")];
    alone(&knobs, |cuda| kernels_tell(cuda, 0));
}

fn kernels_tell(cuda: &Cuda, as_function: i32) {
    cuda.start();
    let ptx = c".version 8.0\n.global .align 4 .b8 big[67108864];\n.visible .entry work()\n{\n.local .align 4 .b8 depot[4096];\nret;\n}\n";
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
    assert_eq!(cuda.call("cuKernelGetAttribute", &[place, 3, kernel, 0]), 0);
    assert_eq!((told, cuda.beyond()), (4096, 0));
    assert_eq!(
        cuda.call("cuKernelGetAttribute", &[place, 3, kernel, 9]),
        101
    );
    let asked = cuda.call("cuFuncGetAttribute", &[place, 3, kernel]);
    assert_eq!(asked, as_function);
    let function = cuda
        .get("cuKernelGetFunction", &[kernel])
        .expect("a function") as usize;
    assert_eq!(cuda.call("cuFuncGetAttribute", &[place, 3, function]), 0);
    assert_eq!(
        cuda.call("cuKernelGetAttribute", &[place, 3, function, 0]),
        400
    );
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

/// The first takes 6 MiB, for good; what is allocated in one is the primary context's.
#[test]
fn green_contexts_are_parts_of_the_primary_one() {
    alone(&[], |cuda| {
        assert_eq!(cuda.call("cuInit", &[0]), 0);
        let mut resource = [0u32; 36];
        let place = resource.as_mut_ptr() as usize;
        assert_eq!(cuda.call("cuDeviceGetDevResource", &[0, place, 1]), 0);
        assert_eq!((resource[0], resource[24]), (1, 132));
        let description = cuda
            .get("cuDevResourceGenerateDesc", &[place, 1])
            .expect("a description") as usize;
        let green = || cuda.get("cuGreenCtxCreate", &[description, 0, 1]);
        assert_eq!(cuda.get("cuGreenCtxCreate", &[description, 0, 0]), Err(1));
        assert_eq!(crate::rig::used(), 0);
        let first = green().expect("a green context") as usize;
        assert_eq!(cuda.beyond(), 6 * MIB, "and the primary context");
        let second = green().expect("a green context") as usize;
        let context = cuda.get("cuCtxFromGreenCtx", &[first]).expect("a context") as usize;
        let stream = cuda
            .get("cuGreenCtxStreamCreate", &[first, 1, 0])
            .expect("a stream") as usize;
        let mut of_stream = 0usize;
        let arguments = [stream, &raw mut of_stream as usize];
        assert_eq!(cuda.call("cuStreamGetCtx", &arguments), 0);
        assert_eq!(of_stream, context);
        assert_eq!(cuda.beyond(), 6 * MIB);
        assert_eq!(cuda.call("cuCtxSetCurrent", &[context]), 0);
        assert_eq!(cuda.get("cuCtxGetCurrent", &[]), Ok(context as u64));
        let memory = cuda.alloc(100 << 20).expect("memory");
        assert_eq!(cuda.beyond(), 106 * MIB);
        assert_eq!(cuda.call("cuGreenCtxDestroy", &[first]), 0);
        assert_eq!(cuda.call("cuGreenCtxDestroy", &[first]), 709);
        assert_eq!(cuda.beyond(), 106 * MIB);
        assert_eq!(cuda.free(memory), 0);
        assert_eq!(cuda.beyond(), 6 * MIB);
        assert_eq!(cuda.call("cuGreenCtxDestroy", &[second]), 0);
        assert_eq!(
            crate::rig::used(),
            0,
            "the primary context goes with the last"
        );
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
