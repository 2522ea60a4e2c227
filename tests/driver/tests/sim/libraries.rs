//! When modules and libraries take their variables, and what the first launch takes: as measured on an H100
//! (580.159.04) with a variable of 64 MiB.

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

fn module_takes_it_at_load(cuda: &Cuda) {
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

/// Every way to a library's module, and what is taken before and after it.
fn library_takes_it(cuda: &Cuda, before: u64) {
    let file = std::env::temp_dir().join(format!("gpulimit-sim-{}.ptx", std::process::id()));
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
            _ => assert_eq!(launch(cuda, kernel), 0, "a kernel is as good as a function"),
        }
        assert_eq!(cuda.beyond(), 64 * MIB, "way {way}");
        assert_eq!(cuda.call("cuLibraryUnload", &[library]), 0);
        assert_eq!(cuda.beyond(), 0, "way {way}");
        assert_eq!(launch(cuda, kernel), 400, "unloaded");
    }
    let _ = std::fs::remove_file(file);
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
    assert_eq!(used(), 0, "needs no context");
    cuda.start();
    assert_eq!(cuda.call("cuLibraryUnload", &[early]), 0);
    assert_eq!(mode(cuda), 2);
    module_takes_it_at_load(cuda);
    library_takes_it(cuda, 0);
}

#[test]
fn unset() {
    alone(&[], is_lazy);
}

#[test]
fn lazy() {
    alone(&[("CUDA_MODULE_LOADING", "LAZY")], is_lazy);
}

#[test]
fn eager() {
    alone(&[("CUDA_MODULE_LOADING", "EAGER")], |cuda| {
        cuda.start();
        assert_eq!(mode(cuda), 1);
        module_takes_it_at_load(cuda);
        library_takes_it(cuda, 64 * MIB);
    });
}

#[test]
fn a_library_that_finds_no_room() {
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
fn the_first_launch() {
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
                assert_eq!(cuda.beyond(), taken, "kept until the context goes");
                assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
                assert_eq!(used(), 0);
                cuda.start();
            }
        },
    );
}

/// Fat binaries of nvcc 13.5: the machine code for this GPU has 300 MiB and a table, the text 50.
#[test]
fn compressed_code() {
    const LZ4: &[u8] = include_bytes!("../../../../shim/src/image/fixtures/lz4.fatbin");
    const ZSTD: &[u8] = include_bytes!("../../../../shim/src/image/fixtures/zstd.fatbin");
    alone(&[], |cuda| {
        cuda.start();
        for image in [LZ4, ZSTD] {
            let header = |payload: usize| {
                let mut image = image.to_vec();
                image[8..16].copy_from_slice(&(payload as u64).to_le_bytes());
                image
            };
            // The text is the first entry.
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
