//! Tests of stream capture and graphs in the simulated driver, against measurements on an H100
//! (580.159.04) and NVIDIA's documentation.

use crate::rig::{Cuda, MIB, alone};

const GLOBAL: usize = 0;
const THREAD_LOCAL: usize = 1;
const RELAXED: usize = 2;

const UNSUPPORTED: i32 = 900;
const INVALIDATED: i32 = 901;
const IMPLICIT: i32 = 906;
const WRONG_THREAD: i32 = 908;

fn stream(cuda: &Cuda, flags: usize) -> usize {
    cuda.get("cuStreamCreate", &[flags]).expect("a stream") as usize
}

fn begin(cuda: &Cuda, stream: usize, mode: usize) {
    assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, mode]), 0);
}

fn end(cuda: &Cuda, stream: usize) -> Result<usize, i32> {
    let mut graph = 0xdead_usize;
    match cuda.call("cuStreamEndCapture", &[stream, &raw mut graph as usize]) {
        0 => Ok(graph),
        error => {
            assert_eq!(graph, 0, "an invalid capture has no graph");
            Err(error)
        }
    }
}

/// Returns the capture status of a stream: 0 none, 1 under way, 2 invalid.
fn status(cuda: &Cuda, stream: usize) -> i32 {
    let mut status = 77i32;
    let answer = &raw mut status as usize;
    assert_eq!(cuda.call("cuStreamIsCapturing", &[stream, answer]), 0);
    status
}

fn exchange(cuda: &Cuda, mode: i32) -> i32 {
    let mut mode = mode;
    let at = &raw mut mode as usize;
    assert_eq!(cuda.call("cuThreadExchangeStreamCaptureMode", &[at]), 0);
    mode
}

fn reserved(cuda: &Cuda) -> i32 {
    let pool = cuda.get("cuDeviceGetDefaultMemPool", &[0]).expect("a pool") as usize;
    let mut value = 0u64;
    cuda.call("cuMemPoolGetAttribute", &[pool, 5, &raw mut value as usize])
}

#[test]
fn an_unsafe_call_invalidates_a_global_capture() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        begin(cuda, stream, GLOBAL);
        let address = cuda
            .get("cuMemAllocAsync", &[4096, stream])
            .expect("a node") as usize;
        assert_eq!(status(cuda, stream), 1);
        assert_eq!(reserved(cuda), UNSUPPORTED);
        assert_eq!(status(cuda, stream), 2);
        assert_eq!(
            cuda.get("cuMemAllocAsync", &[4096, stream]),
            Err(INVALIDATED)
        );
        assert_eq!(
            cuda.call("cuMemsetD8Async", &[address, 0, 16, stream]),
            INVALIDATED
        );
        assert_eq!(cuda.call("cuMemFreeAsync", &[address, stream]), INVALIDATED);
        assert_eq!(end(cuda, stream), Err(INVALIDATED));
        assert_eq!(status(cuda, stream), 0);
        let address = cuda
            .get("cuMemAllocAsync", &[4096, stream])
            .expect("works again");
        assert_eq!(cuda.call("cuMemFreeAsync", &[address as usize, stream]), 0);
        assert_eq!(cuda.call("cuStreamSynchronize", &[stream]), 0);
        assert_eq!(reserved(cuda), 0);
    });
}

#[test]
fn every_call_that_invalidates_a_global_capture() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        let pool = cuda.get("cuDeviceGetDefaultMemPool", &[0]).expect("a pool") as usize;
        let event = cuda.get("cuEventCreate", &[0]).expect("an event") as usize;
        let memory = cuda.alloc(4096).expect("memory") as usize;
        let ptx = c".version 8.0\n.visible .entry work()\n{\nret;\n}\n".as_ptr() as usize;
        let (mut one, mut two, mut three) = (0u64, 0u64, 0u64);
        let out = &raw mut one as usize;
        let free = [&raw mut two as usize, &raw mut three as usize];
        let mode = [&raw mut three as usize];
        let calls: &[(&str, &[usize], i32)] = &[
            ("cuMemAlloc_v2", &[out, 4096], UNSUPPORTED),
            (
                "cuMemAllocPitch_v2",
                &[out, free[0], 64, 64, 4],
                UNSUPPORTED,
            ),
            ("cuMemAllocManaged", &[out, 4096, 1], UNSUPPORTED),
            ("cuMemFree_v2", &[memory], UNSUPPORTED),
            ("cuMemHostAlloc", &[out, 4096, 0], UNSUPPORTED),
            ("cuMemPoolTrimTo", &[pool, 0], UNSUPPORTED),
            ("cuMemPoolSetAttribute", &[pool, 4, out], UNSUPPORTED),
            ("cuEventQuery", &[event], UNSUPPORTED),
            ("cuModuleLoadData", &[out, ptx], UNSUPPORTED),
            ("cuCtxSynchronize", &[], UNSUPPORTED),
            ("cuStreamSynchronize", &[stream], UNSUPPORTED),
            ("cuStreamQuery", &[stream], UNSUPPORTED),
            // Allowed calls.
            ("cuMemGetInfo_v2", &free, 0),
            ("cuStreamGetCtx", &[stream, out], 0),
            ("cuCtxGetCurrent", &[out], 0),
            ("cuModuleGetLoadingMode", &mode, 0),
            ("cuEventRecord", &[event, stream], 0),
            ("cuMemsetD8_v2", &[memory, 0, 16], 0),
            ("cuStreamSynchronize", &[0], 0),
        ];
        for (name, arguments, expected) in calls {
            begin(cuda, stream, GLOBAL);
            assert_eq!(cuda.call(name, arguments), *expected, "{name}");
            match expected {
                0 => assert!(end(cuda, stream).is_ok(), "{name}"),
                _ => assert_eq!(end(cuda, stream), Err(INVALIDATED), "{name}"),
            }
        }
        assert_eq!(cuda.free(memory as u64), 0, "no call has freed the memory");
        assert_eq!(cuda.beyond(), 0);
    });
}

#[test]
fn capture_modes_decide_which_threads_may_make_unsafe_calls() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        assert_eq!(exchange(cuda, 2), 0, "a thread begins in the global mode");
        assert_eq!(exchange(cuda, 1), 2);
        assert_eq!(exchange(cuda, 0), 1);
        let mut none = 3i32;
        let none = [&raw mut none as usize];
        assert_eq!(cuda.call("cuThreadExchangeStreamCaptureMode", &none), 1);
        // The modes of the capture, its thread, and another thread; then which of the two threads
        // may make unsafe calls.
        for (capture, own, other, may) in [
            (GLOBAL, 0, 0, (false, false)),
            (GLOBAL, 1, 1, (false, true)),
            (GLOBAL, 2, 2, (true, true)),
            (THREAD_LOCAL, 0, 0, (false, true)),
            (THREAD_LOCAL, 2, 1, (true, true)),
            (RELAXED, 0, 0, (true, true)),
        ] {
            let verdict = |may| if may { 0 } else { UNSUPPORTED };
            let ended = |may: bool| if may { Ok(()) } else { Err(INVALIDATED) };
            begin(cuda, stream, capture);
            let before = exchange(cuda, own);
            let case = format!("{capture} {own} {other}");
            assert_eq!(reserved(cuda), verdict(may.0), "{case}");
            exchange(cuda, before);
            assert_eq!(end(cuda, stream).map(drop), ended(may.0), "{case}");
            begin(cuda, stream, capture);
            let elsewhere = std::thread::spawn(move || {
                let cuda = Cuda::load();
                exchange(&cuda, other);
                (reserved(&cuda), end(&cuda, stream))
            });
            let (answer, ending) = elsewhere.join().expect("the other thread");
            assert_eq!(answer, verdict(may.1), "{case}");
            if capture == RELAXED {
                assert!(ending.is_ok(), "{case}");
            } else {
                assert_eq!(ending, Err(WRONG_THREAD), "{case}");
                assert_eq!(end(cuda, stream).map(drop), ended(may.1), "{case}");
            }
        }
    });
}

#[test]
fn the_legacy_stream_and_a_capture() {
    alone(&[], |cuda| {
        cuda.start();
        let (blocking, other) = (stream(cuda, 0), stream(cuda, 1));
        let memory = cuda.alloc(4096).expect("memory") as usize;
        begin(cuda, blocking, RELAXED);
        let mut status = 0i32;
        let asked = [0, &raw mut status as usize];
        assert_eq!(cuda.call("cuStreamIsCapturing", &asked), IMPLICIT);
        assert_eq!(cuda.call("cuStreamIsCapturing_ptsz", &asked), 0);
        assert_eq!(
            self::status(cuda, blocking),
            1,
            "the status query leaves the capture valid"
        );
        assert_eq!(self::status(cuda, other), 0);
        assert_eq!(cuda.call("cuMemsetD8Async", &[memory, 0, 16, other]), 0);
        assert_eq!(cuda.call("cuMemsetD8_v2", &[memory, 0, 16]), IMPLICIT);
        assert_eq!(end(cuda, blocking), Err(INVALIDATED));
        assert_eq!(cuda.call("cuMemsetD8_v2", &[memory, 0, 16]), 0);
        // Destroying a stream ends the stream's capture.
        begin(cuda, blocking, GLOBAL);
        assert_eq!(cuda.call("cuStreamDestroy_v2", &[blocking]), 0);
        assert_eq!(reserved(cuda), 0);
    });
}

#[test]
fn capture_info_reports_status_and_graph() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        let mut told = [9u64; 6];
        let at = |index| (&raw const told[index]) as usize;
        let two = [stream, at(0), at(1), at(2), at(3), at(5)];
        let three = [stream, at(0), at(1), at(2), at(3), at(4), at(5)];
        assert_eq!(cuda.call("cuStreamGetCaptureInfo_v2", &two), 0);
        told[0] &= 0xffff_ffff;
        assert_eq!(told, [0, 9, 9, 9, 9, 9]);
        begin(cuda, stream, THREAD_LOCAL);
        assert_eq!(cuda.call("cuStreamGetCaptureInfo_v3", &three), 0);
        assert_eq!((told[0], told[3], told[4], told[5]), (1, 0, 0, 0));
        assert!(told[1] > 0);
        assert_eq!(
            end(cuda, stream),
            Ok(told[2] as usize),
            "the end of the capture returns the reported graph"
        );
        begin(cuda, stream, THREAD_LOCAL);
        let first = told[1];
        assert_eq!(cuda.call("cuStreamGetCaptureInfo_v2_ptsz", &two), 0);
        assert_ne!(told[1], first, "every capture has a new number");
        assert!(end(cuda, stream).is_ok());
    });
}

fn memory(cuda: &Cuda, attribute: usize) -> u64 {
    let mut value = 0u64;
    let arguments = [0, attribute, &raw mut value as usize];
    assert_eq!(cuda.call("cuDeviceGetGraphMemAttribute", &arguments), 0);
    value
}

#[test]
fn memory_nodes_take_memory_at_the_upload() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        assert_eq!(cuda.beyond(), 0);
        begin(cuda, stream, RELAXED);
        let size = 64 * MIB as usize;
        let address = cuda
            .get("cuMemAllocAsync", &[size, stream])
            .expect("a node") as usize;
        assert_eq!(cuda.call("cuMemsetD8Async", &[address, 0, size, stream]), 0);
        assert_eq!(cuda.call("cuMemFreeAsync", &[address, stream]), 0);
        let graph = end(cuda, stream).expect("a graph");
        let mut nodes = 0usize;
        assert_eq!(
            cuda.call("cuGraphGetNodes", &[graph, 0, &raw mut nodes as usize]),
            0
        );
        assert_eq!(nodes, 3);
        assert_eq!(cuda.beyond(), 0, "capturing takes no memory");
        let exec = cuda
            .get("cuGraphInstantiateWithFlags", &[graph, 0])
            .expect("an executable graph") as usize;
        assert_eq!(cuda.beyond(), 2 * MIB, "instantiating takes 2 MiB");
        assert_eq!(cuda.call("cuGraphUpload", &[exec, stream]), 0);
        assert_eq!(cuda.beyond(), 66 * MIB, "the upload takes 64 MiB");
        for _ in 0..2 {
            assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0);
            assert_eq!(cuda.call("cuStreamSynchronize", &[stream]), 0);
            assert_eq!(memory(cuda, 2), 64 * MIB);
            assert_eq!(cuda.beyond(), 66 * MIB, "the launch takes no more");
        }
        assert_eq!(cuda.call("cuGraphExecDestroy", &[exec]), 0);
        assert_eq!(cuda.beyond(), 66 * MIB, "the GPU keeps the memory");
        assert_eq!(cuda.call("cuDeviceGraphMemTrim", &[0]), 0);
        assert_eq!(cuda.beyond(), 2 * MIB, "a trim gives back 64 MiB");
        assert_eq!((memory(cuda, 0), memory(cuda, 1)), (0, 64 * MIB));
        assert_eq!(
            cuda.call("cuGraphExecDestroy", &[exec]),
            1,
            "the executable graph is destroyed"
        );
        // The second executable graph in a context takes no memory.
        let mut log = [0u8; 16];
        let arguments = [graph, 0, log.as_mut_ptr() as usize, 16];
        let exec = cuda
            .get("cuGraphInstantiate_v2", &arguments)
            .expect("an executable graph") as usize;
        assert_eq!(cuda.beyond(), 2 * MIB);
        assert_eq!(cuda.call("cuGraphDestroy", &[graph]), 0);
        assert_eq!(cuda.call("cuGraphLaunch_ptsz", &[exec, stream]), 0);
        assert_eq!(cuda.beyond(), 66 * MIB, "the launch takes 64 MiB");
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
        assert_eq!(crate::rig::used(), 0);
    });
}

#[test]
fn a_launch_may_leave_memory_allocated() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        begin(cuda, stream, THREAD_LOCAL);
        let address = cuda
            .get("cuMemAllocAsync", &[3 << 20, stream])
            .expect("a node") as usize;
        assert_eq!(
            cuda.call("cuMemFreeAsync", &[4096, stream]),
            1,
            "no graph allocates this address"
        );
        let graph = end(cuda, stream).expect("a graph");
        // The `CUDA_GRAPH_INSTANTIATE_PARAMS` with the upload flag.
        let mut params = [2u64, stream as u64, 7, 0xffff_ffff];
        let exec = cuda
            .get(
                "cuGraphInstantiateWithParams",
                &[graph, params.as_mut_ptr() as usize],
            )
            .expect("an executable graph") as usize;
        assert_eq!(params, [2, stream as u64, 0, 0]);
        assert_eq!(cuda.beyond(), 34 * MIB);
        assert_eq!(
            cuda.call("cuMemFreeAsync", &[address, stream]),
            1,
            "no launch has allocated this address"
        );
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0);
        assert_eq!(
            cuda.call("cuGraphLaunch", &[exec, stream]),
            1,
            "the memory of the first launch is not yet freed"
        );
        assert_eq!((memory(cuda, 0), memory(cuda, 2)), (32 * MIB, 32 * MIB));
        assert_eq!(cuda.call("cuDeviceGraphMemTrim", &[0]), 0);
        assert_eq!(cuda.beyond(), 34 * MIB, "a trim keeps allocated memory");
        assert_eq!(cuda.call("cuMemFreeAsync", &[address, stream]), 0);
        assert_eq!(cuda.beyond(), 34 * MIB);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0);
        assert_eq!(cuda.free(address as u64), 0);
        assert_eq!(cuda.call("cuDeviceGraphMemTrim", &[0]), 0);
        assert_eq!(cuda.beyond(), 2 * MIB);
    });
}

/// Makes a graph of nodes that allocate these sizes. Returns the graph, the addresses, and the last
/// node.
fn graph_of(cuda: &Cuda, sizes: &[u64]) -> (usize, Vec<u64>, usize) {
    let graph = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
    let (mut addresses, mut last) = (Vec::new(), 0usize);
    for bytes in sizes {
        let mut params = [0u64; 15];
        (params[0], params[1], params[13]) = (1, 1, *bytes);
        let place = params.as_mut_ptr() as usize;
        let after = &raw const last as usize;
        last = cuda
            .get(
                "cuGraphAddMemAllocNode",
                &[graph, after, usize::from(last != 0), place],
            )
            .expect("a node") as usize;
        addresses.push(params[14]);
    }
    (graph, addresses, last)
}

/// Makes a graph whose first nodes allocate memory of these sizes and whose last nodes free all of
/// it.
fn freed_graph(cuda: &Cuda, sizes: &[u64]) -> usize {
    let (graph, addresses, mut last) = graph_of(cuda, sizes);
    for address in addresses {
        let after = &raw const last as usize;
        last = cuda
            .get(
                "cuGraphAddMemFreeNode",
                &[graph, after, 1, address as usize],
            )
            .expect("a node") as usize;
    }
    graph
}

fn executable(cuda: &Cuda, graph: usize, flags: usize) -> usize {
    cuda.get("cuGraphInstantiateWithFlags", &[graph, flags])
        .expect("an executable graph") as usize
}

#[test]
fn graph_memory_grows_in_steps() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        executable(cuda, freed_graph(cuda, &[]), 0);
        let before = cuda.beyond();
        // Per case: the sizes of the graph's allocations, the MiB that an upload takes, and the MiB
        // that then count as used.
        let twenty = [2 * MIB; 20];
        for (sizes, reserved, used) in [
            (&[100 * MIB][..], 128, 128),
            (&[1], 32, 32),
            (&[33 * MIB], 64, 64),
            (&[100 * MIB, 50 * MIB, 7 * MIB], 192, 160),
            (&twenty, 64, 64),
        ] {
            let exec = executable(cuda, freed_graph(cuda, sizes), 0);
            assert_eq!(cuda.beyond(), before, "instantiating takes nothing");
            assert_eq!(cuda.call("cuGraphUpload", &[exec, stream]), 0);
            assert_eq!(cuda.beyond() - before, reserved * MIB, "{sizes:?}");
            for _ in 0..2 {
                assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0);
            }
            assert_eq!(memory(cuda, 0), used * MIB, "{sizes:?}");
            assert_eq!(memory(cuda, 2), reserved * MIB);
            assert_eq!(cuda.call("cuGraphExecDestroy", &[exec]), 0);
            assert_eq!(cuda.beyond() - before, reserved * MIB, "the memory is kept");
            assert_eq!(cuda.call("cuDeviceGraphMemTrim", &[0]), 0);
            assert_eq!((memory(cuda, 0), memory(cuda, 2)), (0, 0));
            assert_eq!(cuda.beyond(), before);
        }
        assert_eq!((memory(cuda, 1), memory(cuda, 3)), (160 * MIB, 192 * MIB));
    });
}

#[test]
fn memory_left_by_a_launch_must_be_freed_before_the_next() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        let (graph, addresses, _) = graph_of(cuda, &[100 * MIB]);
        let address = addresses[0] as usize;
        assert_eq!(
            cuda.get("cuGraphInstantiateWithFlags", &[graph, 2]),
            Err(1),
            "cuGraphInstantiateWithFlags rejects the upload flag"
        );
        let exec = executable(cuda, graph, 0);
        assert_eq!(
            cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]),
            Err(1),
            "a graph with memory nodes can have only one executable graph"
        );
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 1);
        // The first graph has left memory allocated. The launch of another graph does not reuse
        // this memory.
        let other = executable(cuda, freed_graph(cuda, &[80 * MIB]), 0);
        assert_eq!(cuda.call("cuGraphLaunch", &[other, stream]), 0);
        assert_eq!(memory(cuda, 2), (128 + 96) * MIB);
        assert_eq!(cuda.call("cuMemFreeAsync", &[address, stream]), 0);
        assert_eq!(
            memory(cuda, 2),
            (128 + 96) * MIB,
            "freed memory of a graph stays reserved"
        );
        assert_eq!(cuda.call("cuDeviceGraphMemTrim", &[0]), 0);
        assert_eq!(memory(cuda, 2), 0);
        assert_eq!(cuda.call("cuGraphExecDestroy", &[exec]), 0);
        let exec = executable(cuda, graph, 1);
        for _ in 0..3 {
            assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0, "auto-free");
        }
        assert_eq!(memory(cuda, 2), 128 * MIB);
        // Add a second graph. It frees the address that the first graph allocates.
        let freeing = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
        let node = cuda.get("cuGraphAddMemFreeNode", &[freeing, 0, 0, address]);
        assert!(node.is_ok());
        let again = cuda.get("cuGraphAddMemFreeNode", &[freeing, 0, 0, address]);
        assert_eq!(again, Err(1));
        let freeing = executable(cuda, freeing, 0);
        assert_eq!(cuda.call("cuGraphLaunch", &[freeing, stream]), 0);
        assert_eq!(cuda.free(address as u64), 1, "a graph freed the address");
    });
}

#[test]
fn graphs_share_memory_unless_they_run_at_once() {
    const NOT_READY: i32 = 600;
    alone(&[], |cuda| {
        cuda.start();
        let (one, two) = (stream(cuda, 1), stream(cuda, 1));
        let graphs = [100, 80].map(|size| executable(cuda, freed_graph(cuda, &[size * MIB]), 0));
        let launch = |graph, stream| assert_eq!(cuda.call("cuGraphLaunch", &[graph, stream]), 0);
        let trim = || assert_eq!(cuda.call("cuDeviceGraphMemTrim", &[0]), 0);
        // The graphs have to run longer than the test takes to look at them.
        let mut work = 50_000_000;
        loop {
            crate::work::set_work(work);
            let shared = graphs.map(|graph| {
                launch(graph, one);
                memory(cuda, 2)
            });
            trim();
            let kept = memory(cuda, 2);
            launch(graphs[1], two);
            let apart = memory(cuda, 2);
            let is_running = cuda.call("cuStreamQuery", &[one]) == NOT_READY;
            assert_eq!(cuda.call("cuCtxSynchronize", &[]), 0);
            if is_running {
                assert_eq!(shared, [128 * MIB; 2], "graphs share memory");
                assert_eq!(kept, 128 * MIB, "a trim skips running graphs");
                assert_eq!(apart, (128 + 96) * MIB, "streams share no memory");
                break;
            }
            trim();
            work *= 2;
        }
        launch(graphs[0], two);
        assert_eq!(memory(cuda, 2), (128 + 96) * MIB);
        assert_eq!(cuda.call("cuCtxSynchronize", &[]), 0);
        trim();
        assert_eq!(memory(cuda, 2), 0);
    });
}

#[test]
fn a_launch_that_is_too_large_keeps_what_it_took() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        let (graph, _, _) = graph_of(cuda, &[60 << 30, 60 << 30]);
        let exec = executable(cuda, graph, 0);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 2);
        assert_eq!(cuda.call("cuStreamSynchronize", &[stream]), 0);
        let kept = memory(cuda, 2);
        assert!(kept >= 80_000 * MIB && kept.is_multiple_of(32 * MIB));
        assert_eq!(memory(cuda, 0), 0);
        assert_eq!(cuda.call("cuDeviceGraphMemTrim", &[0]), 0);
        assert_eq!(memory(cuda, 2), 0);
    });
}

/// An allocation in a graph can reuse the address of an allocation that the graph frees earlier
/// (NVIDIA's documentation).
#[test]
fn an_allocation_gets_an_address_that_is_freed_before_it() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = stream(cuda, 1);
        begin(cuda, stream, RELAXED);
        let size = 100 * MIB as usize;
        let mut seen = Vec::new();
        for _ in 0..10 {
            let address = cuda
                .get("cuMemAllocAsync", &[size, stream])
                .expect("a node");
            assert_eq!(cuda.call("cuMemFreeAsync", &[address as usize, stream]), 0);
            seen.push(address);
        }
        seen.dedup();
        assert_eq!(seen.len(), 1);
        let exec = executable(cuda, end(cuda, stream).expect("a graph"), 0);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), 0);
        assert_eq!(memory(cuda, 2), 128 * MIB);
        // Two nodes can run in any order. So if one of them frees an address, the other does not
        // reuse it.
        let (graph, addresses, last) = graph_of(cuda, &[100 * MIB]);
        let arguments = [graph, &raw const last as usize, 1, addresses[0] as usize];
        assert!(cuda.get("cuGraphAddMemFreeNode", &arguments).is_ok());
        let mut params = [0u64; 15];
        (params[0], params[1], params[13]) = (1, 1, 100 * MIB);
        let arguments = [graph, 0, 0, params.as_mut_ptr() as usize];
        assert!(cuda.get("cuGraphAddMemAllocNode", &arguments).is_ok());
        assert_ne!(params[14], addresses[0]);
    });
}

#[test]
fn nodes_report_type_and_parameters() {
    alone(&[("GPULIMIT_SIM_GPUS", "2")], |cuda| {
        cuda.start();
        let graph = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
        // The `CUgraphNodeParams` of an allocation of 3 MiB on the second GPU.
        let mut params = [0u64; 32];
        (params[0], params[2], params[3], params[15]) = (10, 1, 1 | 1 << 32, 3 * MIB);
        let place = params.as_mut_ptr() as usize;
        let alloc = cuda
            .get("cuGraphAddNode", &[graph, 0, 0, place])
            .expect("a node") as usize;
        let address = params[16];
        let mut freeing = [0u64; 32];
        (freeing[0], freeing[2]) = (11, address);
        let place = freeing.as_mut_ptr() as usize;
        let after = &raw const alloc as usize;
        let free = cuda
            .get("cuGraphAddNode_v2", &[graph, after, 0, 1, place])
            .expect("a node") as usize;
        let outer = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
        assert_eq!(
            cuda.get("cuGraphAddChildGraphNode", &[outer, 0, 0, graph]),
            Err(801),
            "a graph with memory nodes cannot be copied"
        );
        let moved = [4u64, 0, graph as u64, 1];
        let mut params = [0u64; 32];
        params[..4].copy_from_slice(&moved);
        let place = params.as_mut_ptr() as usize;
        let child = cuda
            .get("cuGraphAddNode", &[outer, 0, 0, place])
            .expect("a node") as usize;
        assert!(cuda.get("cuGraphAddEmptyNode", &[outer, 0, 0]).is_ok());

        let mut nodes = [7usize; 4];
        let mut count = 4usize;
        let places = [nodes.as_mut_ptr() as usize, &raw mut count as usize];
        assert_eq!(
            cuda.call("cuGraphGetNodes", &[graph, places[0], places[1]]),
            0
        );
        assert_eq!((nodes, count), ([alloc, free, 0, 0], 2));
        let number = |node: usize| {
            let mut number = -1i32;
            let place = &raw mut number as usize;
            assert_eq!(cuda.call("cuGraphNodeGetType", &[node, place]), 0);
            number
        };
        assert_eq!([alloc, free, child].map(number), [10, 11, 4]);
        let mut told = [9u64; 15];
        let place = told.as_mut_ptr() as usize;
        assert_eq!(
            cuda.call("cuGraphMemAllocNodeGetParams", &[alloc, place]),
            0
        );
        assert_eq!((told[0], told[1]), (1, 1 | 1 << 32));
        assert_eq!((told[13], told[14]), (3 * MIB, address));
        let mut freed = 0u64;
        let place = &raw mut freed as usize;
        assert_eq!(cuda.call("cuGraphMemFreeNodeGetParams", &[free, place]), 0);
        assert_eq!(freed, address);
        assert_eq!(cuda.call("cuGraphMemFreeNodeGetParams", &[child, place]), 1);
        assert_eq!(cuda.get("cuGraphAddNode", &[outer, 0, 0, 0]), Err(1));
        let mut inner = 0usize;
        let place = &raw mut inner as usize;
        assert_eq!(
            cuda.call("cuGraphChildGraphNodeGetGraph", &[child, place]),
            0
        );
        assert_eq!(inner, graph);
    });
}

/// A conditional node's body has a kernel with 8 KiB of local memory. Only the instantiation takes
/// memory: 1850 MiB.
///
/// The graph can be neither copied nor a child (error 801). A body cannot be destroyed alone (error
/// 1).
#[test]
fn conditional_nodes_own_their_bodies() {
    alone(&[], |cuda| {
        cuda.start();
        let ptx =
            c".version 8.0\n.visible .entry work()\n{\n.local .align 16 .b8 depot[8192];\n}\n";
        let module = cuda.get("cuModuleLoadData", &[ptx.as_ptr() as usize]);
        let arguments = [
            module.expect("a module") as usize,
            c"work".as_ptr() as usize,
        ];
        let function = cuda
            .get("cuModuleGetFunction", &arguments)
            .expect("a function");
        let graph = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
        let context = cuda.get("cuCtxGetCurrent", &[]).expect("a context");
        let arguments = [graph, context as usize, 1, 1];
        let handle = cuda.get("cuGraphConditionalHandleCreate", &arguments);
        let handle = handle.expect("a handle");
        let add = |graph: usize, count: u64, context: u64| {
            let mut params = [0u64; 32];
            (params[0], params[2], params[3], params[5]) = (13, handle, count << 32, context);
            let node = cuda.get(
                "cuGraphAddNode",
                &[graph, 0, 0, params.as_mut_ptr() as usize],
            );
            node.map(|node| (node as usize, params[4] as *const usize))
        };
        assert_eq!(
            add(graph, 3, context).err(),
            Some(1),
            "an `if` node has at most two bodies"
        );
        assert_eq!(add(graph, 1, 0).err(), Some(201));
        let (node, list) = add(graph, 2, context).expect("a node");
        // SAFETY: the driver returned a list of two handles, which it never frees.
        let bodies = unsafe { [list.read(), list.add(1).read()] };
        let mut kind = 0i32;
        assert_eq!(
            cuda.call("cuGraphNodeGetType", &[node, &raw mut kind as usize]),
            0
        );
        assert_eq!(kind, 13);
        assert_eq!(cuda.get("cuGraphChildGraphNodeGetGraph", &[node]), Err(1));
        let params = [
            function,
            1 << 32 | 1,
            1 << 32 | 1,
            1 << 32 | 1,
            0,
            0,
            0,
            0,
            0,
        ];
        let arguments = [bodies[1], 0, 0, params.as_ptr() as usize];
        assert!(cuda.get("cuGraphAddKernelNode_v2", &arguments).is_ok());
        assert_eq!(cuda.beyond(), 0);
        let outer = cuda.get("cuGraphCreate", &[0]).expect("a graph") as usize;
        assert_eq!(
            cuda.get("cuGraphAddChildGraphNode", &[outer, 0, 0, graph]),
            Err(801)
        );
        let mut moved = [0; 32];
        (moved[0], moved[2], moved[3]) = (4, graph, 1);
        assert_eq!(
            cuda.get("cuGraphAddNode", &[outer, 0, 0, moved.as_ptr() as usize]),
            Err(801)
        );
        let exec = cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
        assert!(exec.is_ok());
        assert_eq!(cuda.beyond(), 1850 * MIB);
        assert_eq!(cuda.call("cuGraphDestroy", &[bodies[0]]), 1);
        assert_eq!(cuda.call("cuGraphDestroy", &[graph]), 0);
        let mut count = 0usize;
        assert_eq!(
            cuda.call("cuGraphGetNodes", &[bodies[1], 0, &raw mut count as usize]),
            1
        );
    });
}
