//! Tests of which driver calls wait for a busy stream, and when memory that its work uses becomes
//! free.
//!
//! A busy stream gets work for an hour, so no test depends on the machine's speed.

use std::ffi::CStr;

use gpulimit_sim::machine;

use crate::rig::{CONTEXT, Cuda, MIB, alone};

const HOUR: u64 = 3_600_000_000_000;
const SHORT: u64 = 100_000_000;
const NOT_READY: i32 = 600;
const STEP: u64 = 32 * MIB;
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

const CODE: &CStr = c".version 8.0\n.visible .entry work()\n{\nret;\n}\n";

/// A process that has loaded a kernel.
struct Program<'a> {
    cuda: &'a Cuda,
    kernel: usize,
}

impl std::ops::Deref for Program<'_> {
    type Target = Cuda;
    fn deref(&self) -> &Cuda {
        self.cuda
    }
}

pub fn set_work(ns: u64) {
    let machine = machine::Machine::get().expect("a machine");
    machine.knobs.set("work", &ns.to_string()).expect("a knob");
}

fn busy(knobs: &[(&str, &str)], body: impl FnOnce(&Program<'_>)) {
    alone(knobs, |cuda| {
        cuda.start();
        let code = CODE.as_ptr() as usize;
        let module = cuda.get("cuModuleLoadData", &[code]).expect("a module") as usize;
        let name = c"work".as_ptr() as usize;
        let kernel = cuda.get("cuModuleGetFunction", &[module, name]);
        let kernel = kernel.expect("a function") as usize;
        body(&Program { cuda, kernel });
    });
}

impl Program<'_> {
    fn stream(&self) -> usize {
        self.get("cuStreamCreate", &[1]).expect("a stream") as usize
    }

    fn blocking_stream(&self) -> usize {
        self.get("cuStreamCreate", &[0]).expect("a stream") as usize
    }

    fn launch(&self, stream: usize, ns: u64) {
        set_work(ns);
        let arguments = [self.kernel, 1, 1, 1, 1, 1, 1, 0, stream];
        assert_eq!(self.call("cuLaunchKernel", &arguments), 0);
    }

    fn query(&self, stream: usize) -> i32 {
        self.call("cuStreamQuery", &[stream])
    }

    fn sync(&self, stream: usize) {
        assert_eq!(self.call("cuStreamSynchronize", &[stream]), 0);
    }

    /// Returns an event that was recorded on the stream.
    fn event(&self, stream: usize) -> usize {
        let event = self.get("cuEventCreate", &[0]).expect("an event") as usize;
        assert_eq!(self.call("cuEventRecord", &[event, stream]), 0);
        event
    }

    fn query_event(&self, event: usize) -> i32 {
        self.call("cuEventQuery", &[event])
    }

    fn take(&self, bytes: u64, stream: usize) -> Result<u64, i32> {
        self.get("cuMemAllocAsync", &[bytes as usize, stream])
    }

    fn free_on(&self, address: u64, stream: usize) {
        let arguments = [address as usize, stream];
        assert_eq!(self.call("cuMemFreeAsync", &arguments), 0);
    }

    /// Allocates memory and frees it on the stream; returns the memory's address.
    fn freed(&self, bytes: u64, stream: usize) -> u64 {
        let address = self.take(bytes, stream).expect("memory");
        self.free_on(address, stream);
        address
    }

    fn pool(&self) -> usize {
        self.get("cuDeviceGetDefaultMemPool", &[0]).expect("a pool") as usize
    }

    fn trim(&self) {
        assert_eq!(self.call("cuMemPoolTrimTo", &[self.pool(), 0]), 0);
    }

    fn set_pool(&self, attribute: usize, value: u64) {
        let arguments = [self.pool(), attribute, &raw const value as usize];
        assert_eq!(self.call("cuMemPoolSetAttribute", &arguments), 0);
    }

    /// Returns the reserved and the used bytes of the memory pool.
    fn bytes(&self) -> (u64, u64) {
        let read = |number: usize| {
            let mut value = 0u64;
            let arguments = [self.pool(), number, &raw mut value as usize];
            assert_eq!(self.call("cuMemPoolGetAttribute", &arguments), 0);
            value
        };
        (read(5), read(7))
    }
}

#[test]
fn a_launch_keeps_its_stream_busy() {
    let hour = HOUR.to_string();
    busy(&[("GPULIMIT_SIM_WORK", &hour)], |program| {
        let (worker, idle) = (program.stream(), program.stream());
        assert_eq!(program.query(worker), 0);
        let before = program.event(worker);
        let launch = [program.kernel, 1, 1, 1, 1, 1, 1, 0, worker];
        assert_eq!(program.call("cuLaunchKernel", &launch), 0);
        assert_eq!((program.query(worker), program.query(idle)), (NOT_READY, 0));
        let (after, elsewhere) = (program.event(worker), program.event(idle));
        assert_eq!(program.query_event(before), 0);
        assert_eq!(program.query_event(after), NOT_READY);
        assert_eq!(program.query_event(elsewhere), 0);
        let elapsed = program.get("cuEventElapsedTime", &[before, after]);
        assert_eq!(elapsed, Err(NOT_READY));
        program.launch(idle, 0);
        assert_eq!(program.query(idle), 0, "a kernel with no work ends at once");
    });
}

#[test]
fn launches_come_one_after_the_other() {
    busy(&[], |program| {
        let stream = program.stream();
        program.launch(stream, SHORT);
        program.launch(stream, SHORT);
        let middle = program.event(stream);
        program.launch(stream, HOUR);
        assert_eq!(program.call("cuEventSynchronize", &[middle]), 0);
        assert_eq!(program.query_event(middle), 0);
        assert_eq!(program.query(stream), NOT_READY);
    });
}

#[test]
fn waiting_lasts_as_long_as_the_work() {
    busy(&[], |program| {
        let stream = program.stream();
        let memory = program.alloc(4096).expect("memory") as usize;
        for way in [
            "cuStreamSynchronize",
            "cuEventSynchronize",
            "cuCtxSynchronize",
            "cuMemFree_v2",
        ] {
            let start = program.event(stream);
            program.launch(stream, SHORT);
            let end = program.event(stream);
            let argument = match way {
                "cuStreamSynchronize" => stream,
                "cuEventSynchronize" => end,
                _ => memory,
            };
            assert_eq!(program.call(way, &[argument]), 0, "{way}");
            assert_eq!(program.query(stream), 0, "{way}");
            let mut ms = 0f32;
            let arguments = [&raw mut ms as usize, start, end];
            assert_eq!(program.call("cuEventElapsedTime", &arguments), 0, "{way}");
            assert!(ms >= 99.0, "{way}: the events are at least 99 ms apart");
        }
        // Waiting for one stream does not wait for another stream, whose work takes longer than the
        // test.
        let busy = program.stream();
        program.launch(busy, HOUR);
        program.launch(stream, SHORT);
        program.sync(stream);
        assert_eq!((program.query(stream), program.query(busy)), (0, NOT_READY));
        assert_eq!(program.free(0), 0, "cuMemFree of address 0 does not wait");
    });
}

#[test]
fn a_stream_waits_for_an_event() {
    busy(&[], |program| {
        let (worker, waiter) = (program.stream(), program.stream());
        let (early, never) = (
            program.event(worker),
            program.get("cuEventCreate", &[0]).expect("an event") as usize,
        );
        program.launch(worker, HOUR);
        let late = program.event(worker);
        for event in [early, never] {
            assert_eq!(program.call("cuStreamWaitEvent", &[waiter, event, 0]), 0);
            assert_eq!(program.query(waiter), 0);
        }
        assert_eq!(program.call("cuStreamWaitEvent", &[waiter, late, 0]), 0);
        assert_eq!(program.query(waiter), NOT_READY);
    });
}

#[test]
fn captured_waits_and_launches_are_not_executed() {
    busy(&[], |program| {
        let (worker, captured) = (program.stream(), program.stream());
        program.launch(worker, HOUR);
        let event = program.event(worker);
        let mut graph = 0usize;
        let begin = [captured, 2];
        assert_eq!(program.call("cuStreamBeginCapture_v2", &begin), 0);
        program.launch(captured, HOUR);
        assert_eq!(program.call("cuStreamWaitEvent", &[captured, event, 0]), 0);
        let end = [captured, &raw mut graph as usize];
        assert_eq!(program.call("cuStreamEndCapture", &end), 0);
        assert_eq!(
            (program.query(worker), program.query(captured)),
            (NOT_READY, 0)
        );
    });
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams() {
    busy(&[], |program| {
        let (blocking, other) = (program.blocking_stream(), program.stream());
        program.launch(other, HOUR);
        assert_eq!((program.query(0), program.query(LEGACY)), (0, 0));
        program.launch(blocking, HOUR);
        assert_eq!(
            (program.query(0), program.query(LEGACY)),
            (NOT_READY, NOT_READY)
        );
        assert_eq!(program.query(PER_THREAD), 0);
        assert_eq!(program.call("cuStreamQuery_ptsz", &[0]), 0);
        let event = program.event(0);
        assert_eq!(program.query_event(event), NOT_READY);
    });
}

#[test]
fn blocking_streams_wait_for_the_legacy_stream() {
    busy(&[], |program| {
        let (blocking, other) = (program.blocking_stream(), program.stream());
        program.launch(0, HOUR);
        assert_eq!(
            (program.query(0), program.query(LEGACY)),
            (NOT_READY, NOT_READY)
        );
        assert_eq!(
            program.query(blocking),
            0,
            "work of the legacy stream leaves other streams idle"
        );
        let events = [blocking, PER_THREAD, other].map(|stream| program.event(stream));
        let answers = events.map(|event| program.query_event(event));
        assert_eq!(answers, [NOT_READY, NOT_READY, 0]);
    });
}

#[test]
fn every_thread_has_a_stream_of_its_own() {
    busy(&[], |program| {
        set_work(HOUR);
        let launch = [program.kernel, 1, 1, 1, 1, 1, 1, 0, 0];
        assert_eq!(program.call("cuLaunchKernel_ptsz", &launch), 0);
        assert_eq!(program.query(PER_THREAD), NOT_READY);
        assert_eq!(program.call("cuStreamQuery_ptsz", &[0]), NOT_READY);
        assert_eq!(
            program.query(0),
            NOT_READY,
            "the legacy stream waits for the thread's default stream"
        );
        let elsewhere = std::thread::spawn(|| {
            let cuda = Cuda::load();
            cuda.start();
            cuda.call("cuStreamQuery", &[PER_THREAD])
        });
        assert_eq!(elsewhere.join().expect("the other thread"), 0);
    });
}

#[test]
fn freed_memory_waits_for_its_stream() {
    busy(&[], |program| {
        let (worker, other) = (program.stream(), program.stream());
        program.launch(worker, HOUR);
        let place = program.freed(STEP, worker);
        assert_eq!(program.bytes(), (STEP, 0), "freed memory is not in use");
        program.trim();
        program.sync(other);
        assert_eq!(program.bytes(), (STEP, 0), "a trim keeps pending memory");
        let elsewhere = program.freed(STEP, other);
        assert_ne!(elsewhere, place, "pending memory stays with its stream");
        assert_eq!(program.bytes(), (2 * STEP, 0));
        program.trim();
        assert_eq!(
            program.bytes(),
            (STEP, 0),
            "memory freed on an idle stream is trimmed"
        );
        assert_eq!(program.take(STEP, worker), Ok(place));
    });
}

#[test]
fn a_stream_may_reuse_a_part_of_its_pending_memory() {
    busy(&[], |program| {
        let (worker, other) = (program.stream(), program.stream());
        program.launch(worker, HOUR);
        // Two freed halves are allocated again as a quarter, a half and a quarter. The new half
        // lies in both freed halves.
        let half = STEP / 2;
        let low = program.take(half, worker).expect("memory");
        let high = program.take(half, worker).expect("memory");
        program.free_on(low, worker);
        program.free_on(high, worker);
        let first = low.min(high);
        assert_eq!(program.take(half / 2, worker), Ok(first));
        assert_eq!(program.take(half, worker), Ok(first + half / 2));
        let rest = first + half + half / 2;
        let elsewhere = program.take(half / 2, other).expect("memory");
        assert_eq!(
            program.bytes().0,
            2 * STEP,
            "another stream does not get the rest of the memory"
        );
        assert_ne!(elsewhere, rest);
        assert_eq!(program.take(half / 2, worker), Ok(rest));
    });
}

#[test]
fn memory_is_free_when_the_work_has_ended() {
    busy(&[], |program| {
        let (worker, other) = (program.stream(), program.stream());
        program.launch(worker, SHORT);
        let place = program.freed(STEP, worker);
        program.set_pool(4, u64::MAX);
        program.sync(worker);
        assert_eq!(
            program.take(STEP, other),
            Ok(place),
            "other streams can use the freed memory"
        );
        program.launch(worker, SHORT);
        program.free_on(place, worker);
        program.sync(worker);
        program.trim();
        assert_eq!(program.bytes(), (0, 0), "a trim frees the memory");
    });
}

#[test]
fn a_destroyed_pool_ends_with_the_work() {
    busy(&[], |program| {
        let stream = program.stream();
        let mut properties = [0i32; 22];
        (properties[0], properties[2]) = (1, 1);
        let pool = program.get("cuMemPoolCreate", &[properties.as_ptr() as usize]);
        let pool = pool.expect("a pool") as usize;
        let before = program.beyond();
        program.launch(stream, SHORT);
        let memory = program.get("cuMemAllocFromPoolAsync", &[4096, pool, stream]);
        program.free_on(memory.expect("memory"), stream);
        assert_eq!(program.call("cuMemPoolDestroy", &[pool]), 0);
        program.sync(stream);
        assert_eq!(program.beyond(), before);
    });
}

#[test]
fn a_stream_waits_for_pending_memory_if_the_pool_cannot_grow() {
    // The GPU has room for one step of the pool, but not for two.
    let capacity = (CONTEXT + 48 * MIB).to_string();
    busy(&[("GPULIMIT_SIM_CAPACITY", &capacity)], |program| {
        let (worker, other, third) = (program.stream(), program.stream(), program.stream());
        program.launch(worker, HOUR);
        let place = program.freed(STEP, worker);
        assert_eq!(
            program.alloc(20 * MIB),
            Err(2),
            "a failed request leaves pending memory in the pool"
        );
        program.set_pool(3, 0);
        assert_eq!(
            program.take(STEP, other),
            Err(2),
            "the pool's setting forbids waiting"
        );
        assert_eq!(program.query(other), 0);
        program.set_pool(3, 1);
        assert_eq!(
            program.take(STEP + 1, other),
            Err(2),
            "the request does not fit into the pending memory"
        );
        assert_eq!(program.query(other), 0);
        assert_eq!(program.take(STEP / 2, other), Ok(place));
        assert_eq!(program.query(other), NOT_READY);
        assert_eq!(program.take(STEP / 2, third), Ok(place + STEP / 2));
        assert_eq!(program.take(512, third), Err(2));
        assert_eq!(program.bytes(), (STEP, STEP));
    });
}

#[test]
fn work_ends_with_its_context() {
    busy(&[], |program| {
        let stream = program.blocking_stream();
        program.launch(stream, HOUR);
        program.launch(PER_THREAD, HOUR);
        assert_eq!(program.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
        program.start();
        assert_eq!((program.query(0), program.query(PER_THREAD)), (0, 0));
        assert_eq!(program.call("cuCtxSynchronize", &[]), 0);
    });
}
