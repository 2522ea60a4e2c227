//! The worker: a program that repeats one operation. It finds the driver by `dlopen` and `dlsym`,
//! as CUDA programs do, and does not know about gpulimit.
#![allow(unsafe_code)]

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const KIB_4: usize = 4096;
const BLOCK: usize = 2 << 20;
/// The number of 4 KiB allocations that fit into a block of GPU memory.
const PER_BLOCK: usize = BLOCK / KIB_4;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: c_int = 4;
const BATCHES: u32 = 30;
const BATCH: u32 = 2_000;
const WARM_UP: u32 = 500;
const KERNEL: &CStr =
    c".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";

/// A compressed fat binary of nvcc.
const IMAGE: &[u8] = include_bytes!("../../crates/fatbin/src/fixtures/zstd.fatbin");

type Handle = *mut c_void;

/// Runs the command `worker HOW CASE LIVE THREADS [TIMES]`. HOW is one of:
/// - `time`: prints the processor time and the elapsed time of one iteration, in nanoseconds;
/// - `rival`: prints `ready` and repeats the operation until it is killed;
/// - `count`: runs [`measured`] once with TIMES iterations;
/// - `first`: launches one kernel;
/// - `memory`: prints the resident bytes of this process, of its private memory, and of NVML.
pub fn main(mut arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let mut next = || {
        arguments
            .next()
            .ok_or("usage: worker time|rival|count|first|memory CASE LIVE THREADS [TIMES]")
    };
    let (how, case, live, threads) = (next()?, next()?, next()?.parse()?, next()?.parse()?);
    let driver = Driver::load();
    if how == "time" {
        let (processor, interval) = time(&driver, &case, live, threads);
        println!("{processor} {interval}");
        return Ok(());
    }
    if how == "first" {
        known_kernel(&driver)();
        return Ok(());
    }
    let mut body = ready(&driver, &case, live);
    match &*how {
        "rival" => {
            println!("ready");
            loop {
                body();
            }
        }
        "count" => measured(next()?.parse()?, &mut body),
        "memory" => println!(
            "{} {} {}",
            resident("VmRSS:")?,
            resident("RssAnon:")?,
            resident_of("libnvidia-ml.so")?
        ),
        _ => {
            return Err(format!(
                "unknown mode '{how}': expected time, rival, count, first or memory"
            )
            .into());
        }
    }
    Ok(())
}

/// Measures several batches of iterations. Returns the shortest processor time and the shortest
/// elapsed time of one iteration, in ns. With one thread, both are the elapsed time.
fn time(driver: &Driver, case: &str, live: usize, threads: u32) -> (f64, f64) {
    if threads > 1 {
        return time_of_several(driver, case, live, threads);
    }
    let mut body = ready(driver, case, live);
    let mut best = f64::INFINITY;
    for _ in 0..BATCHES {
        let started = Instant::now();
        measured(BATCH, &mut body);
        best = best.min(started.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    (best, best)
}

/// Measures batches of iterations that several threads begin together. Returns the shortest
/// processor time and the shortest elapsed time of one iteration, in ns.
fn time_of_several(driver: &Driver, case: &str, live: usize, threads: u32) -> (f64, f64) {
    /// A batch must last long, so that all threads really run at the same time.
    const BATCH: u32 = 20_000;
    const BATCHES: usize = 5;
    let turns = Barrier::new(threads as usize);
    let thread = || {
        driver.enter();
        let mut body = ready(driver, case, live);
        [(); BATCHES].map(|()| {
            turns.wait();
            let (started, spent) = (Instant::now(), processor_time());
            measured(BATCH, &mut body);
            (started, Instant::now(), processor_time() - spent)
        })
    };
    let batches: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|batches| batches.expect("a thread")).collect()
    });
    let iterations = f64::from(threads * BATCH);
    let (mut processor, mut interval) = (f64::INFINITY, f64::INFINITY);
    for batch in 0..BATCHES {
        let all = || batches.iter().map(|batches| batches[batch]);
        let spent: f64 = all().map(|(.., spent)| spent).sum();
        let first = all().map(|(started, ..)| started).min();
        let last = all().map(|(_, ended, _)| ended).max();
        let passed = last
            .zip(first)
            .map_or(Duration::ZERO, |(last, first)| last - first);
        processor = processor.min(spent / iterations);
        interval = interval.min(passed.as_nanos() as f64 / iterations);
    }
    (processor, interval)
}

/// Returns the repeated operation of a case as a closure, after a warm-up.
fn ready(driver: &Driver, case: &str, live: usize) -> Box<dyn FnMut()> {
    let mut body = prepare(driver, case, live);
    (0..WARM_UP).for_each(|_| body());
    body
}

/// Returns the processor time that this thread has used, in nanoseconds.
fn processor_time() -> f64 {
    let mut spent = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `spent` is a local variable that clock_gettime may write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut spent) };
    spent.tv_sec as f64 * 1e9 + spent.tv_nsec as f64
}

/// Returns a figure of this process's resident memory in bytes. `figure` is the figure's name in
/// `/proc/self/status`.
fn resident(figure: &str) -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(figure));
    bytes(line.ok_or_else(|| format!("no {figure} in /proc/self/status"))?)
}

/// Returns the resident bytes of this process in mappings of files whose path contains `file`.
fn resident_of(file: &str) -> Result<u64, Box<dyn Error>> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let (mut is_of_it, mut all) = (false, 0);
    for line in smaps.lines() {
        // In `/proc/self/smaps`, the first line of a mapping begins with an address range. The
        // mapping's other lines begin with a word and a colon.
        if !line
            .split(' ')
            .next()
            .is_some_and(|word| word.ends_with(':'))
        {
            is_of_it = line.contains(file);
        } else if let Some(figure) = line.strip_prefix("Rss:").filter(|_| is_of_it) {
            all += bytes(figure)?;
        }
    }
    Ok(all)
}

/// Parses an amount of memory as the kernel writes it, such as `4 kB`. Returns bytes.
fn bytes(figure: &str) -> Result<u64, Box<dyn Error>> {
    let kib = figure
        .trim()
        .strip_suffix("kB")
        .ok_or("the kernel did not report a memory figure in kB")?;
    Ok(kib.trim().parse::<u64>()? * 1024)
}

/// Runs the repeated operation. Callgrind finds this function by its name.
#[unsafe(no_mangle)]
#[inline(never)]
fn measured(times: u32, body: &mut dyn FnMut()) {
    for _ in 0..times {
        body();
    }
}

/// Makes `live` allocations and the driver objects that a case needs. Returns the case's operation
/// as a closure.
fn prepare(driver: &Driver, case: &str, live: usize) -> Box<dyn FnMut()> {
    let Driver {
        cuMemAlloc_v2: alloc,
        cuMemFree_v2: free,
        ..
    } = *driver;
    let hold = |count: usize| {
        for _ in 0..count {
            allocate(alloc, KIB_4);
        }
    };
    let pair = move |bytes: usize| {
        let address = allocate(alloc, bytes);
        // SAFETY: the address was just allocated, and is freed once.
        must("cuMemFree", unsafe { free(address) });
    };
    match case {
        "in-block" => {
            hold(live);
            Box::new(move || pair(KIB_4))
        }
        "new-small" => {
            // Fill whole blocks with allocations, so that the next allocation needs a new block.
            hold(live.next_multiple_of(PER_BLOCK));
            Box::new(move || pair(KIB_4))
        }
        "new-block" => {
            // Allocate more than one block at a time. A single block would come from the spare
            // block that gpulimit has already charged.
            hold(live);
            Box::new(move || pair(2 * BLOCK))
        }
        "async" => {
            hold(live);
            warm_pool(driver)
        }
        "info" => {
            let info = driver.cuMemGetInfo_v2;
            Box::new(move || {
                let (mut free, mut total) = (0, 0);
                // SAFETY: both pointers point to local variables.
                must("cuMemGetInfo", unsafe { info(&mut free, &mut total) });
                black_box((free, total));
            })
        }
        "launch" => known_kernel(driver),
        "image" => {
            let (load, unload) = (driver.cuModuleLoadData, driver.cuModuleUnload);
            Box::new(move || {
                let mut module = null_mut();
                // SAFETY: the pointer points to a local variable, the image is whole, and the
                // module is unloaded once.
                unsafe {
                    must("cuModuleLoadData", load(&mut module, IMAGE.as_ptr().cast()));
                    must("cuModuleUnload", unload(module));
                }
            })
        }
        "update" => {
            let (graph, exec) = graph(driver);
            let update = driver.cuGraphExecUpdate_v2;
            Box::new(move || {
                let mut told = [0; 3];
                // SAFETY: `exec` was made from `graph`, and `told` has room for the driver's
                // answer.
                must("cuGraphExecUpdate", unsafe {
                    update(exec, graph, told.as_mut_ptr())
                });
            })
        }
        "set-kernel" => {
            let (graph, exec) = graph(driver);
            let (mut node, mut count, mut params) = (null_mut(), 1, [0; 9]);
            let set = driver.cuGraphExecKernelNodeSetParams_v2;
            // SAFETY: the pointers point to local variables with room for one node and its
            // parameters.
            unsafe {
                must(
                    "cuGraphGetNodes",
                    (driver.cuGraphGetNodes)(graph, &mut node, &mut count),
                );
                must(
                    "cuGraphKernelNodeGetParams",
                    (driver.cuGraphKernelNodeGetParams_v2)(node, params.as_mut_ptr()),
                );
            }
            Box::new(move || {
                // SAFETY: `params` points to the node's own parameters, as the driver has returned
                // them.
                must("cuGraphExecKernelNodeSetParams", unsafe {
                    set(exec, node, params.as_ptr())
                });
            })
        }
        "dlsym" => {
            // SAFETY: the name is NUL-terminated, and the C library is loaded already.
            let library = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW) };
            Box::new(move || {
                // SAFETY: the library is open and the name is NUL-terminated.
                let found = unsafe { libc::dlsym(library, c"strlen".as_ptr()) };
                assert!(!found.is_null());
            })
        }
        "replay" => {
            let (_, exec) = graph(driver);
            let (launch, stream) = (driver.cuGraphLaunch, stream(driver));
            Box::new(move || {
                // SAFETY: `exec` is an executable graph and `stream` a stream; both live as long as
                // the process.
                must("cuGraphLaunch", unsafe { launch(exec, stream) });
            })
        }
        "query" => {
            let (mut event, query) = (null_mut(), driver.cuEventQuery);
            // SAFETY: the pointer points to a local variable.
            must("cuEventCreate", unsafe {
                (driver.cuEventCreate)(&mut event, 0)
            });
            // SAFETY: the event lives as long as the process.
            Box::new(move || must("cuEventQuery", unsafe { query(event) }))
        }
        "hold-small" => {
            hold(live);
            Box::new(|| ())
        }
        "hold-blocks" => {
            for _ in 0..live {
                allocate(alloc, BLOCK);
            }
            Box::new(|| ())
        }
        "hold-async" => {
            let (alloc, stream) = (driver.cuMemAllocAsync, stream(driver));
            for _ in 0..live {
                let mut address = 0;
                // SAFETY: the pointer points to a local variable.
                must("cuMemAllocAsync", unsafe {
                    alloc(&mut address, KIB_4, stream)
                });
            }
            Box::new(|| ())
        }
        "hold-vmm" => {
            // The `CUmemAllocationProp` of pinned memory on device 0.
            let properties = [1u32, 0, 1, 0, 0, 0, 0, 0];
            for _ in 0..live {
                let mut handle = 0;
                // SAFETY: the pointers point to local variables; the structure has 32 bytes.
                must("cuMemCreate", unsafe {
                    (driver.cuMemCreate)(&mut handle, BLOCK, properties.as_ptr(), 0)
                });
            }
            Box::new(|| ())
        }
        _ => panic!("unknown case '{case}'"),
    }
}

fn allocate(alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int, bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: the pointer points to a local variable.
    must("cuMemAlloc", unsafe { alloc(&mut address, bytes) });
    address
}

/// Returns an operation that allocates memory from a pool and frees it. The pool keeps the freed
/// memory, so the operation takes no new memory from the GPU.
fn warm_pool(driver: &Driver) -> Box<dyn FnMut()> {
    let (alloc, free) = (driver.cuMemAllocAsync, driver.cuMemFreeAsync);
    let (mut pool, mut keep) = (null_mut(), u64::MAX);
    // SAFETY: the pointers point to local variables, and the attribute is a u64.
    unsafe {
        must(
            "cuDeviceGetDefaultMemPool",
            (driver.cuDeviceGetDefaultMemPool)(&mut pool, 0),
        );
        must(
            "cuMemPoolSetAttribute",
            (driver.cuMemPoolSetAttribute)(pool, RELEASE_THRESHOLD, (&raw mut keep).cast()),
        );
    }
    let stream = stream(driver);
    Box::new(move || {
        let mut address = 0;
        // SAFETY: the pointer points to a local variable, and the address is freed once.
        unsafe {
            must("cuMemAllocAsync", alloc(&mut address, BLOCK / 2, stream));
            must("cuMemFreeAsync", free(address, stream));
        }
    })
}

fn known_kernel(driver: &Driver) -> Box<dyn FnMut()> {
    launches(driver, stream(driver))
}

/// Returns a graph with 100 launches of a kernel, and an executable graph made from it. The kernel
/// was launched before, so gpulimit knows it.
fn graph(driver: &Driver) -> (Handle, Handle) {
    let stream = stream(driver);
    let mut launch = launches(driver, stream);
    launch();
    let (mut graph, mut exec) = (null_mut(), null_mut());
    // SAFETY: the pointers point to local variables; 2 is CU_STREAM_CAPTURE_MODE_RELAXED.
    unsafe {
        must(
            "cuStreamBeginCapture",
            (driver.cuStreamBeginCapture_v2)(stream, 2),
        );
        (0..100).for_each(|_| launch());
        must(
            "cuStreamEndCapture",
            (driver.cuStreamEndCapture)(stream, &mut graph),
        );
        must(
            "cuGraphInstantiate",
            (driver.cuGraphInstantiateWithFlags)(&mut exec, graph, 0),
        );
    }
    (graph, exec)
}

fn launches(driver: &Driver, stream: Handle) -> Box<dyn FnMut()> {
    let (mut module, mut kernel) = (null_mut(), null_mut());
    // SAFETY: the pointers point to local variables; the image and the name are NUL-terminated.
    unsafe {
        must(
            "cuModuleLoadData",
            (driver.cuModuleLoadData)(&mut module, KERNEL.as_ptr().cast()),
        );
        must(
            "cuModuleGetFunction",
            (driver.cuModuleGetFunction)(&mut kernel, module, c"nothing".as_ptr()),
        );
    }
    let launch = driver.cuLaunchKernel;
    Box::new(move || {
        // SAFETY: the kernel has no parameters.
        let status = unsafe { launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()) };
        must("cuLaunchKernel", status);
    })
}

fn stream(driver: &Driver) -> Handle {
    let mut stream = null_mut();
    // SAFETY: the pointer points to a local variable; 1 is CU_STREAM_NON_BLOCKING.
    must("cuStreamCreate", unsafe {
        (driver.cuStreamCreate)(&mut stream, 1)
    });
    stream
}

#[inline]
fn must(what: &str, status: c_int) {
    assert!(status == 0, "{what} answered {status}");
}

macro_rules! driver {
    ($( $name:ident ( $($argument:ty),* ) ; )*) => {
        /// The functions of the driver that the worker calls, with the types of cuda.h.
        #[allow(non_snake_case)]
        struct Driver {
            $( $name: unsafe extern "C" fn($($argument),*) -> c_int, )*
        }

        impl Driver {
            /// Loads the driver and makes the primary context of GPU 0 current.
            fn load() -> Driver {
                // SAFETY: the names are NUL-terminated, and each function has the type that cuda.h
                // declares.
                let driver = unsafe {
                    let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
                    assert!(!library.is_null(), "libcuda.so.1 is missing: run scripts/bench");
                    Driver {
                        $( $name: {
                            let name = concat!(stringify!($name), "\0");
                            let found = libc::dlsym(library, name.as_ptr().cast());
                            assert!(!found.is_null(), "the driver has no function {name}");
                            type Function = unsafe extern "C" fn($($argument),*) -> c_int;
                            std::mem::transmute::<*mut c_void, Function>(found)
                        }, )*
                    }
                };
                // SAFETY: cuInit takes no pointers.
                must("cuInit", unsafe { (driver.cuInit)(0) });
                driver.enter();
                driver
            }

            /// Makes the primary context of GPU 0 current in this thread.
            fn enter(&self) {
                let mut context = null_mut();
                // SAFETY: the pointer points to a local variable, which then holds a context.
                unsafe {
                    must(
                        "cuDevicePrimaryCtxRetain",
                        (self.cuDevicePrimaryCtxRetain)(&mut context, 0),
                    );
                    must("cuCtxSetCurrent", (self.cuCtxSetCurrent)(context));
                }
            }
        }
    };
}

driver! {
    cuInit(c_uint);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuCtxSetCurrent(Handle);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemCreate(*mut u64, usize, *const u32, u64);
    cuMemAllocAsync(*mut u64, usize, Handle);
    cuMemFreeAsync(u64, Handle);
    cuDeviceGetDefaultMemPool(*mut Handle, c_int);
    cuMemPoolSetAttribute(Handle, c_int, *mut c_void);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuStreamCreate(*mut Handle, c_uint);
    cuEventCreate(*mut Handle, c_uint);
    cuEventQuery(Handle);
    cuModuleLoadData(*mut Handle, *const c_void);
    cuModuleUnload(Handle);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuStreamBeginCapture_v2(Handle, c_int);
    cuStreamEndCapture(Handle, *mut Handle);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    cuGraphLaunch(Handle, Handle);
    cuGraphGetNodes(Handle, *mut Handle, *mut usize);
    cuGraphKernelNodeGetParams_v2(Handle, *mut u64);
    cuGraphExecKernelNodeSetParams_v2(Handle, Handle, *const u64);
    cuGraphExecUpdate_v2(Handle, Handle, *mut u64);
    cuLaunchKernel(
        Handle,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        Handle,
        *mut Handle,
        *mut Handle
    );
}
