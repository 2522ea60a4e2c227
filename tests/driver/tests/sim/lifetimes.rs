//! Tests of when the simulated driver frees memory.

use crate::checkpoint::processes_of_nvml;
use crate::rig::{Cuda, MIB, alone, used};
use gpulimit_support::{Random, seed};

/// Returns the `CUmemAllocationProp` of pinned memory on the first GPU.
fn properties() -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0] = 1;
    bytes[8] = 1;
    bytes
}

fn create(cuda: &Cuda, bytes: u64) -> Result<u64, i32> {
    let properties = properties();
    cuda.get(
        "cuMemCreate",
        &[bytes as usize, properties.as_ptr() as usize, 0],
    )
}

#[test]
fn physical_memory_is_kept_by_handles_and_mappings() {
    alone(&[], |cuda| {
        cuda.start();
        let size = 4 * MIB;
        assert_eq!(
            create(cuda, MIB),
            Err(1),
            "the size is not a multiple of the granularity"
        );
        let address = cuda
            .get("cuMemAddressReserve", &[size as usize, 0, 0, 0])
            .expect("addresses");
        assert_eq!(cuda.beyond(), 0, "reserved addresses take no memory");
        let handle = create(cuda, size).expect("memory");
        assert_eq!(cuda.beyond(), size);
        let at = [address as usize, size as usize, 0, handle as usize, 0];
        assert_eq!(cuda.call("cuMemMap", &at), 0);
        assert_eq!(cuda.call("cuMemMap", &at), 208, "the range has a mapping");
        assert_eq!(cuda.call("cuMemRelease", &[handle as usize]), 0);
        assert_eq!(cuda.beyond(), size, "the allocation is still mapped");
        // NCCL frees an allocation in this order: retain, release, unmap, release.
        let again = cuda
            .get("cuMemRetainAllocationHandle", &[address as usize])
            .expect("the handle");
        assert_eq!(again, handle);
        assert_eq!(
            cuda.call("cuMemAddressFree", &[address as usize, size as usize]),
            1,
            "memory is still mapped at the reserved addresses"
        );
        assert_eq!(
            cuda.call("cuMemUnmap", &[address as usize, size as usize]),
            0
        );
        assert_eq!(cuda.beyond(), size, "the allocation still has a handle");
        assert_eq!(cuda.call("cuMemRelease", &[again as usize]), 0);
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(cuda.call("cuMemRelease", &[again as usize]), 1);
        assert_eq!(
            cuda.call("cuMemAddressFree", &[address as usize, size as usize]),
            0
        );
    });
}

#[test]
fn destroying_a_context_frees_all_its_memory() {
    alone(&[], |cuda| {
        cuda.start();
        let context = cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context") as usize;
        let before = used();
        for bytes in [1, 20_000, 3 * MIB, 1 << 30] {
            cuda.alloc(bytes).expect("memory");
        }
        cuda.get("cuStreamCreate", &[0]).expect("a stream");
        assert!(used() > before + (1 << 30));
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), 0);
        assert_eq!(cuda.beyond(), 0);
        cuda.get("cuMemAllocAsync", &[1 << 20, 0])
            .expect("the primary context is current again");
        assert_eq!(cuda.beyond(), 32 * MIB);
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset", &[0]), 0);
        assert_eq!(used(), 0, "the pools are freed with the last context");
        assert_eq!(cuda.alloc(1), Err(709));
    });
}

/// Measured on an H200, 580.159.04.
#[test]
fn memory_of_cu_mem_create_outlives_the_contexts() {
    alone(&[], |cuda| {
        cuda.start();
        let before = used();
        let handle = create(cuda, 512 * MIB).expect("memory") as usize;
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
        assert_eq!((used(), processes_of_nvml()), (512 * MIB, 0));
        cuda.get("cuDevicePrimaryCtxRetain", &[0])
            .expect("a context");
        assert_eq!((used(), processes_of_nvml()), (before + 512 * MIB, 1));
        assert_eq!(cuda.call("cuMemRelease", &[handle]), 0);
        assert_eq!(used(), before);
    });
}

/// Measured on an H200, 580.159.04.
#[test]
fn linear_memory_freed_in_a_stream_stays_until_a_synchronising_call() {
    alone(&[], |cuda| {
        cuda.start();
        let before = used();
        for bytes in [1_000, 3 * MIB] {
            let address = cuda.alloc(bytes).expect("memory") as usize;
            assert_eq!(cuda.call("cuMemFreeAsync", &[address, 0]), 0);
            assert!(used() > before);
            assert_eq!(cuda.call("cuMemFreeAsync", &[address, 0]), 1);
            assert_eq!(cuda.call("cuCtxSynchronize", &[]), 0);
            assert_eq!(used(), before);
        }
        let managed = cuda.get("cuMemAllocManaged", &[1 << 20, 1]);
        let managed = managed.expect("an address") as usize;
        assert_eq!(cuda.call("cuMemFreeAsync", &[managed, 0]), 801);
        assert_eq!(cuda.call("cuMemFree_v2", &[managed]), 0);
    });
}

#[test]
fn a_captured_allocation_takes_no_memory() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = cuda.get("cuStreamCreate", &[1]).expect("a stream") as usize;
        let before = used();
        assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, 0]), 0);
        let address = cuda
            .get("cuMemAllocAsync", &[1 << 30, stream])
            .expect("an address");
        assert_eq!(cuda.call("cuMemFreeAsync", &[address as usize, stream]), 0);
        assert_eq!(used(), before);
        let mut graph = 0usize;
        assert_eq!(
            cuda.call("cuStreamEndCapture", &[stream, &raw mut graph as usize]),
            0
        );
        assert_ne!(graph, 0);
    });
}

#[test]
fn data_survives_the_round_trip() {
    alone(&[], |cuda| {
        cuda.start();
        let (one, two) = (
            cuda.alloc(4096).expect("memory"),
            cuda.alloc(3 * MIB).expect("memory"),
        );
        let sent: Vec<u8> = (0..4096).map(|number| number as u8).collect();
        let mut back = vec![0u8; 4096];
        assert_eq!(
            cuda.call(
                "cuMemcpyHtoD_v2",
                &[one as usize, sent.as_ptr() as usize, 4096]
            ),
            0
        );
        assert_eq!(
            cuda.call("cuMemcpyDtoD_v2", &[two as usize, one as usize, 4096]),
            0
        );
        assert_eq!(cuda.call("cuMemsetD8_v2", &[two as usize, 7, 16]), 0);
        assert_eq!(
            cuda.call(
                "cuMemcpyDtoH_v2",
                &[back.as_mut_ptr() as usize, two as usize, 4096]
            ),
            0
        );
        assert_eq!(back[..16], [7; 16]);
        assert_eq!(back[16..], sent[16..]);
        assert_eq!(cuda.free(one) + cuda.free(two), 0);
    });
}

#[test]
fn capacity_holds_against_threads() {
    let capacity = (1u64 << 30) + crate::rig::CONTEXT;
    alone(
        &[("GPULIMIT_SIM_CAPACITY", &capacity.to_string())],
        |cuda| {
            cuda.start();
            let context = cuda
                .get("cuDevicePrimaryCtxRetain", &[0])
                .expect("a context") as usize;
            struct Shared<'a>(&'a Cuda);
            // SAFETY: the driver's functions may be called from any thread.
            unsafe impl Sync for Shared<'_> {}
            let shared = &Shared(cuda);
            // The barrier makes all threads hold their memory at once, even on a machine with fewer
            // processors.
            let all = &std::sync::Barrier::new(8);
            let seed = seed();
            let refused: u64 = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8u64)
                    .map(|thread| {
                        scope.spawn(move || {
                            let cuda = shared.0;
                            assert_eq!(cuda.call("cuCtxSetCurrent", &[context]), 0);
                            let (mut live, mut refused) = (Vec::new(), 0);
                            let mut random = Random::with_seed(seed + thread);
                            for round in 0..3000 {
                                if round == 60 {
                                    all.wait();
                                }
                                match cuda.alloc(random.u64(1..=24 * MIB)) {
                                    Ok(address) => live.push(address),
                                    Err(2) => refused += 1,
                                    Err(error) => panic!("{error}"),
                                }
                                if live.len() > 30 {
                                    assert_eq!(cuda.free(live.swap_remove(random.usize(..30))), 0);
                                }
                            }
                            live.into_iter()
                                .for_each(|address| assert_eq!(cuda.free(address), 0));
                            refused
                        })
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("a thread"))
                    .sum()
            });
            assert!(refused > 0, "the GPU is too small for all threads");
            assert_eq!(cuda.beyond(), 0);
            let machine = gpulimit_sim::machine::Machine::get().expect("a machine");
            let peak = gpulimit_sim::grant::peak(machine, 0) * 2 * MIB;
            assert!(peak <= capacity && peak > capacity - 64 * MIB, "{peak}");
        },
    );
}
