//! Tests of the memory that each driver call takes. The expected figures were measured on an H100.

use crate::rig::{CONTEXT, Cuda, MIB, Machine, alone, role, used};

#[test]
fn total_and_free_memory_match_the_context() {
    alone(&[], |cuda| {
        assert_eq!(cuda.call("cuInit", &[0]), 0);
        assert_eq!(cuda.get("cuDeviceTotalMem_v2", &[0]), Ok(85_017_493_504));
        assert_eq!(used(), 0, "cuInit takes nothing");
        cuda.start();
        let (mut free, mut total) = (0u64, 0u64);
        assert_eq!(
            cuda.call(
                "cuMemGetInfo_v2",
                &[&raw mut free as usize, &raw mut total as usize]
            ),
            0
        );
        assert_eq!((free, total), (85_017_493_504 - CONTEXT, 85_017_493_504));
    });
}

#[test]
fn every_context_costs_the_same() {
    alone(&[], |cuda| {
        cuda.start();
        assert_eq!(used(), CONTEXT);
        let more: Vec<u64> = (0..24)
            .map(|_| cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context"))
            .collect();
        assert_eq!(used(), 25 * CONTEXT);
        for context in &more {
            assert_eq!(cuda.call("cuCtxDestroy_v2", &[*context as usize]), 0);
        }
        assert_eq!(used(), CONTEXT);
        assert_eq!(
            cuda.call("cuCtxDestroy_v2", &[more[0] as usize]),
            709,
            "the context is destroyed"
        );
        assert_eq!(cuda.call("cuDevicePrimaryCtxRelease_v2", &[0]), 0);
        assert_eq!(used(), 0);
        assert_eq!(cuda.call("cuDevicePrimaryCtxRelease", &[0]), 201);
    });
}

/// Checks that exactly `per_block` requests of this size fit into one block, and that freeing them
/// frees all blocks.
fn packs(cuda: &Cuda, bytes: u64, per_block: usize) {
    let mut live = Vec::new();
    for _ in 0..per_block {
        live.push(cuda.alloc(bytes).expect("memory"));
        assert_eq!(
            cuda.beyond(),
            2 * MIB,
            "{} requests of {bytes} bytes lie in one block",
            live.len()
        );
    }
    live.push(cuda.alloc(bytes).expect("memory"));
    assert_eq!(
        cuda.beyond(),
        4 * MIB,
        "{} requests of {bytes} bytes need two blocks",
        live.len()
    );
    let blocks: std::collections::BTreeSet<u64> =
        live.iter().map(|address| address / (2 * MIB)).collect();
    assert_eq!(blocks.len(), 2, "the requests lie in two blocks");
    let last = live.pop().expect("one");
    assert_eq!(cuda.free(last), 0);
    assert_eq!(cuda.beyond(), 2 * MIB, "an empty block is freed");
    for (index, address) in live.iter().enumerate() {
        assert_eq!(
            cuda.beyond(),
            2 * MIB,
            "the block stays while {} requests of {bytes} bytes are left",
            live.len() - index
        );
        assert_eq!(cuda.free(*address), 0);
    }
    assert_eq!(cuda.beyond(), 0);
}

#[test]
fn small_requests_are_packed() {
    alone(&[], |cuda| {
        cuda.start();
        packs(cuda, 20_000, 102);
        packs(cuda, 400_000, 5);
        packs(cuda, 700_000, 2);
        packs(cuda, 524_288, 4);
        packs(cuda, 1 << 20, 2);
        packs(cuda, 1, 4096);
    });
}

#[test]
fn requests_of_all_sizes_share_blocks() {
    alone(&[], |cuda| {
        cuda.start();
        for mix in [
            &[700_000, 1_048_577][..],
            &[1_048_577, 20_000, 1, 524_288, 400_000],
            &[2_062_303, 4096, 1],
            &[1, 2_096_640],
        ] {
            let live: Vec<u64> = mix
                .iter()
                .map(|bytes| cuda.alloc(*bytes).expect("memory"))
                .collect();
            assert_eq!(cuda.beyond(), 2 * MIB, "{mix:?}");
            assert!(live.iter().all(|at| at / (2 * MIB) == live[0] / (2 * MIB)));
            for address in live {
                assert_eq!(cuda.beyond(), 2 * MIB, "{mix:?}");
                assert_eq!(cuda.free(address), 0);
            }
            assert_eq!(cuda.beyond(), 0, "{mix:?}");
        }
        // Two freed neighbours make room for a larger request.
        let four: Vec<u64> = (0..4)
            .map(|_| cuda.alloc(524_288).expect("memory"))
            .collect();
        assert_eq!((cuda.free(four[1]), cuda.free(four[2])), (0, 0));
        let large = cuda.alloc(1 << 20).expect("memory");
        assert_eq!((large, cuda.beyond()), (four[1], 2 * MIB));
        assert_eq!(cuda.free(four[2]), 1, "the address is in the new request");
        for address in [four[0], four[3], large] {
            assert_eq!(cuda.free(address), 0);
        }
        assert_eq!(cuda.beyond(), 0);
    });
}

#[test]
fn small_requests_never_straddle_and_large_ones_never_share() {
    alone(&[], |cuda| {
        cuda.start();
        let block = 2 * MIB;
        let crumb = cuda.alloc(1).expect("memory");
        let mut live = vec![crumb];
        for bytes in [1_500_000, 700_000, 1_048_577, 2_051_111, 2_097_152] {
            let address = cuda.alloc(bytes).expect("memory");
            assert_eq!(address / block, (address + bytes - 1) / block, "{bytes}");
            live.push(address);
        }
        let before = cuda.beyond();
        let large = cuda.alloc(2_097_153).expect("memory");
        assert_eq!((large % block, cuda.beyond()), (0, before + 2 * block));
        let after: Vec<u64> = (0..3000)
            .map(|_| cuda.alloc(4096).expect("memory"))
            .collect();
        live.extend(after);
        assert!(
            live.iter()
                .all(|address| !(large..large + 2 * block).contains(address)),
            "a large request shares no block"
        );
        live.push(large);
        for address in live {
            assert_eq!(cuda.free(address), 0);
        }
        assert_eq!(cuda.beyond(), 0);
    });
}

#[test]
fn a_mix_takes_the_blocks_it_touches() {
    alone(&[], |cuda| {
        cuda.start();
        let block = 2 * MIB;
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut state = 1u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for step in 0..3000 {
            if live.is_empty() || random(if live.len() > 300 { 3 } else { 5 }) > 1 {
                let scale = random(23);
                let bytes = 1 + random(1 << scale);
                let address = cuda.alloc(bytes).expect("memory");
                if bytes > block {
                    assert_eq!(address % block, 0, "{bytes}");
                } else {
                    assert_eq!(address / block, (address + bytes - 1) / block);
                }
                live.push((address, bytes));
            } else {
                let (address, _) = live.swap_remove(random(live.len() as u64) as usize);
                assert_eq!(cuda.free(address), 0);
            }
            let touched: std::collections::BTreeSet<u64> = live
                .iter()
                .flat_map(|(at, bytes)| at / block..=(at + bytes - 1) / block)
                .collect();
            assert_eq!(cuda.beyond(), touched.len() as u64 * block, "step {step}");
        }
        for (address, _) in live {
            assert_eq!(cuda.free(address), 0);
        }
        assert_eq!(cuda.beyond(), 0, "all memory is given back");
    });
}

#[test]
fn large_requests_have_blocks_of_their_own() {
    alone(&[], |cuda| {
        cuda.start();
        for (bytes, taken) in [
            (1_048_577, 2 * MIB),
            (2_097_152, 2 * MIB),
            (2_097_153, 4 * MIB),
            (1 << 30, 1 << 30),
        ] {
            let address = cuda.alloc(bytes).expect("memory");
            assert_eq!(cuda.beyond(), taken, "{bytes}");
            assert_eq!(address % (2 * MIB), 0);
            let (mut base, mut size) = (0u64, 0u64);
            let inside = address as usize + bytes as usize - 1;
            let answer = [&raw mut base as usize, &raw mut size as usize, inside];
            assert_eq!(cuda.call("cuMemGetAddressRange_v2", &answer), 0);
            assert_eq!((base, size), (address, bytes));
            assert_eq!(cuda.free(address), 0);
            assert_eq!(cuda.beyond(), 0, "{bytes}");
            assert_eq!(cuda.free(address), 1, "the address is already free");
        }
        assert_eq!(cuda.alloc(0), Err(1));
        assert_eq!(cuda.free(0), 0);
        assert_eq!(cuda.free(4096), 1, "the address was never allocated");
        assert_eq!(cuda.alloc(1 << 40), Err(2));
    });
}

#[test]
fn pitch_is_a_multiple_of_512() {
    alone(&[], |cuda| {
        cuda.start();
        for (width, pitch) in [(1000, 1024), (1032, 1536), (512, 512)] {
            let mut got = 0u64;
            let address = cuda
                .get(
                    "cuMemAllocPitch_v2",
                    &[&raw mut got as usize, width, 3000, 4],
                )
                .expect("memory");
            assert_eq!(got, pitch);
            assert_eq!(cuda.beyond(), (pitch * 3000).next_multiple_of(2 * MIB));
            assert_eq!(cuda.free(address), 0);
        }
    });
}

#[test]
fn managed_and_pinned_memory_take_no_gpu_memory() {
    alone(&[], |cuda| {
        cuda.start();
        let managed = cuda
            .get("cuMemAllocManaged", &[1 << 30, 1])
            .expect("memory");
        let pinned = cuda.get("cuMemHostAlloc", &[1 << 20, 0]).expect("memory");
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(cuda.free(managed), 0);
        assert_eq!(cuda.call("cuMemFreeHost", &[pinned as usize]), 0);
    });
}

#[test]
fn the_stack_limit_takes_its_memory_at_once() {
    alone(&[], |cuda| {
        cuda.start();
        assert_eq!(cuda.call("cuCtxSetLimit", &[0, 16_384]), 0);
        assert_eq!(cuda.beyond(), 4_152_360_960);
        assert_eq!(cuda.get("cuCtxGetLimit", &[0]), Ok(16_384));
        assert_eq!(cuda.call("cuCtxSetLimit", &[0, 1024]), 0);
        assert_eq!(cuda.beyond(), 0);
    });
}

#[test]
fn a_small_context_has_few_multiprocessors() {
    if let Some(processors) = role() {
        let cuda = Cuda::load();
        cuda.start();
        let attribute = |number| {
            let mut value = 0i32;
            let arguments = [&raw mut value as usize, number, 0];
            assert_eq!(cuda.call("cuDeviceGetAttribute", &arguments), 0);
            value as u64
        };
        let (count, threads) = (attribute(16), attribute(39));
        assert_eq!((count.to_string(), threads), (processors, 2048));
        let before = used();
        assert!(
            count * threads * 1024 <= before,
            "a context has room for the stacks of all threads"
        );
        assert_eq!(cuda.call("cuCtxSetLimit", &[0, 2048]), 0);
        assert_eq!(
            used() - before,
            count * threads * 1024,
            "each thread gets 1024 more bytes of stack"
        );
        return;
    }
    for (context, processors) in [
        (10, "5"),
        (263, "132"),
        (262, "131"),
        (2, "1"),
        (400, "132"),
    ] {
        let bytes = (context * MIB).to_string();
        Machine::new(&[("GPULIMIT_SIM_CONTEXT_BYTES", &bytes)]).run(processors);
    }
}

#[test]
fn a_launch_keeps_its_local_memory() {
    alone(&[], |cuda| {
        cuda.start();
        let mut taken = 0;
        for (local, mib) in [
            (1024, 0),
            (4096, 792),
            (16_384, 3960),
            (65_536, 16_632),
            (4096, 16_632),
        ] {
            let ptx = format!(
                ".version 8.0\n.target sm_90\n.visible .entry work()\n{{\n\
                 .local .align 4 .b8 depot[{local}];\nret;\n}}\0"
            );
            let module = cuda
                .get("cuModuleLoadData", &[ptx.as_ptr() as usize])
                .expect("a module");
            let function = cuda
                .get(
                    "cuModuleGetFunction",
                    &[module as usize, c"work".as_ptr() as usize],
                )
                .expect("a function");
            let mut told = 0i32;
            assert_eq!(
                cuda.call(
                    "cuFuncGetAttribute",
                    &[&raw mut told as usize, 3, function as usize]
                ),
                0
            );
            assert_eq!(told, local, "local memory is reported before a launch");
            assert_eq!(cuda.beyond(), taken);
            assert_eq!(
                cuda.call("cuLaunchKernel", &[function as usize, 1, 1, 1, 1, 1, 1]),
                0
            );
            taken = mib * MIB;
            assert_eq!(cuda.beyond(), taken, "local {local}");
            assert_eq!(cuda.call("cuModuleUnload", &[module as usize]), 0);
            assert_eq!(cuda.beyond(), taken, "unloading does not free local memory");
        }
    });
}

#[test]
fn a_module_takes_its_variables() {
    alone(&[], |cuda| {
        cuda.start();
        let ptx = c".version 8.0\n.target sm_90\n.global .align 4 .b8 big[1073741824];\n";
        let module = cuda
            .get("cuModuleLoadData", &[ptx.as_ptr() as usize])
            .expect("a module");
        assert_eq!(cuda.beyond(), 1 << 30);
        let mut bytes = 0usize;
        let arguments = [
            &raw mut bytes as usize,
            module as usize,
            c"big".as_ptr() as usize,
        ];
        let address = cuda
            .get("cuModuleGetGlobal_v2", &arguments)
            .expect("the variable");
        assert_eq!(bytes, 1 << 30);
        assert_eq!(cuda.free(address), 1, "a program cannot free a variable");
        assert_eq!(cuda.call("cuModuleUnload", &[module as usize]), 0);
        assert_eq!(cuda.beyond(), 0);
    });
}

#[test]
fn stream_memory_stays_with_the_context() {
    alone(&[], |cuda| {
        cuda.start();
        let (mut taken, mut steps) = (0, Vec::new());
        let streams: Vec<u64> = (1..=4096)
            .map(|number| {
                let stream = cuda.get("cuStreamCreate", &[1]).expect("a stream");
                if number <= 256 && cuda.beyond() > taken {
                    taken = cuda.beyond();
                    steps.push(number);
                }
                match number {
                    64 => assert_eq!(taken, 34 * MIB),
                    256 => assert_eq!(taken, 140 * MIB),
                    _ => {}
                }
                stream
            })
            .collect();
        assert_eq!(
            steps[..14],
            [2, 6, 10, 14, 18, 22, 26, 30, 34, 36, 38, 42, 46, 50]
        );
        assert_eq!(steps.len(), 68);
        assert_eq!(cuda.beyond(), 2240 * MIB);
        for stream in streams {
            assert_eq!(cuda.call("cuStreamDestroy_v2", &[stream as usize]), 0);
        }
        assert_eq!(cuda.beyond(), 2240 * MIB);
        cuda.get("cuStreamCreate", &[1]).expect("a stream");
        assert_eq!(cuda.beyond(), 2240 * MIB, "the new stream reuses memory");
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
        assert_eq!(used(), 0);
    });
}

#[test]
fn pools_grow_in_steps() {
    alone(&[], |cuda| {
        cuda.start();
        let pool = cuda.get("cuDeviceGetDefaultMemPool", &[0]).expect("a pool") as usize;
        let attribute = |number: usize| {
            let mut value = 0u64;
            assert_eq!(
                cuda.call(
                    "cuMemPoolGetAttribute",
                    &[pool, number, &raw mut value as usize]
                ),
                0
            );
            value
        };
        for (bytes, reserved) in [
            (1, 32),
            (33_554_432, 32),
            (33_554_433, 64),
            (100 << 20, 128),
            (1 << 30, 1024),
        ] {
            let address = cuda.get("cuMemAllocAsync", &[bytes, 0]).expect("memory");
            assert_eq!(
                (attribute(5), cuda.beyond()),
                (reserved * MIB, reserved * MIB),
                "{bytes}"
            );
            assert_eq!(cuda.call("cuMemFreeAsync", &[address as usize, 0]), 0);
            assert_eq!(attribute(7), 0);
            assert_eq!(
                cuda.beyond(),
                reserved * MIB,
                "freeing keeps the memory in the pool"
            );
            assert_eq!(cuda.call("cuStreamSynchronize", &[0]), 0);
            assert_eq!(
                (attribute(5), cuda.beyond()),
                (0, 0),
                "synchronising frees the pool's memory"
            );
        }
        // With a high release threshold, the pool keeps its memory until it is trimmed.
        let mut threshold = u64::MAX;
        assert_eq!(
            cuda.call(
                "cuMemPoolSetAttribute",
                &[pool, 4, &raw mut threshold as usize]
            ),
            0
        );
        let (one, two) = (
            cuda.get("cuMemAllocAsync", &[100 << 20, 0]),
            cuda.get("cuMemAllocAsync", &[20 << 20, 0]),
        );
        assert_eq!(cuda.beyond(), 128 * MIB, "the second request uses the gap");
        for address in [one, two] {
            assert_eq!(
                cuda.call("cuMemFreeAsync", &[address.expect("memory") as usize, 0]),
                0
            );
        }
        assert_eq!(cuda.call("cuCtxSynchronize", &[]), 0);
        assert_eq!(cuda.beyond(), 128 * MIB);
        assert_eq!(cuda.call("cuMemPoolTrimTo", &[pool, 50 << 20]), 0);
        assert_eq!(
            cuda.beyond(),
            64 * MIB,
            "a trim keeps at least the requested bytes"
        );
        // The pool keeps the step with the live pointer. A cuMemAlloc that lacks room takes the
        // other steps.
        let live = cuda.get("cuMemAllocAsync", &[1 << 20, 0]).expect("memory");
        let free = 85_017_493_504 - used();
        let large = cuda
            .alloc(free / (2 * MIB) * (2 * MIB) + 32 * MIB)
            .expect("the pool gives back its unused step");
        assert_eq!(attribute(5), 32 * MIB);
        assert_eq!(cuda.alloc(64 * MIB), Err(2));
        assert_eq!((cuda.free(large), cuda.free(live)), (0, 0));
    });
}

#[test]
fn the_32_bit_interface_has_addresses_of_its_own() {
    alone(&[], |cuda| {
        cuda.start();
        let garbage = 0x5a5a_5a5ausize << 32;
        let allocate = |bytes: usize| {
            let mut address = [0u32, 7];
            let place = address.as_mut_ptr() as usize;
            let status = cuda.call("cuMemAlloc", &[place, bytes | garbage]);
            assert_eq!(address[1], 7, "cuMemAlloc writes an address of 4 bytes");
            (status, address[0] as usize)
        };
        let (status, small) = allocate(1000);
        assert_eq!((status, cuda.beyond()), (0, 2 * MIB));
        let (status, large) = allocate(5 << 20);
        assert_eq!((status, cuda.beyond()), (0, 8 * MIB));
        assert_eq!(allocate(0).0, 1);
        let mut places = [0u32; 2];
        let pitched = &raw mut places[0] as usize;
        let pitch = &raw mut places[1] as usize;
        let arguments = [pitched, pitch, 1000 | garbage, 4096 | garbage, 4 | garbage];
        assert_eq!(cuda.call("cuMemAllocPitch", &arguments), 0);
        assert_eq!((places[1], cuda.beyond()), (1024, 12 * MIB));
        // Memory from this pool can be copied like any other memory.
        let data = [1u8, 2, 3, 4];
        let mut back = [0u8; 4];
        let from = data.as_ptr() as usize;
        assert_eq!(cuda.call("cuMemcpyHtoD_v2", &[large, from, 4]), 0);
        let to = back.as_mut_ptr() as usize;
        assert_eq!(cuda.call("cuMemcpyDtoH_v2", &[to, large, 4]), 0);
        assert_eq!(back, data);
        assert_eq!(cuda.call("cuMemFree", &[small | garbage]), 0);
        assert_eq!(cuda.call("cuMemFree_v2", &[large]), 0);
        assert_eq!(cuda.call("cuMemFree", &[places[0] as usize | garbage]), 0);
        assert_eq!(cuda.call("cuMemFree", &[small]), 1, "the address is free");
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(allocate(1000), (0, small), "the freed address is reused");
        let mut numbers = [0u32; 3];
        let (free, total) = (&raw mut numbers[0] as usize, &raw mut numbers[1] as usize);
        assert_eq!(cuda.call("cuMemGetInfo", &[free, total]), 0);
        let bytes = &raw mut numbers[2] as usize;
        assert_eq!(cuda.call("cuDeviceTotalMem", &[bytes, 0]), 0);
        assert_eq!(numbers, [u32::MAX; 3]);
    });
}

/// Measured (H200, 580.159.04): managed pools, with or without a location, and managed variables
/// count for no process.
///
/// Managed pools report the attributes of other pools, reuse their addresses, and cannot be shared.
/// `cuMemCreate` cannot create managed memory.
#[test]
fn managed_memory_counts_for_no_process() {
    alone(&[], |cuda| {
        cuda.start();
        let properties = |kind: i32, handles: i32, place: i32| {
            let mut properties = [0i32; 22];
            (properties[0], properties[1], properties[2]) = (kind, handles, place);
            properties
        };
        let figures = |pool: usize| {
            [5, 7].map(|attribute| {
                let mut bytes = 0u64;
                let place = &raw mut bytes as usize;
                assert_eq!(
                    cuda.call("cuMemPoolGetAttribute", &[pool, attribute, place]),
                    0
                );
                bytes / MIB
            })
        };
        for place in [0, 1, 2] {
            let pool = properties(2, 0, place);
            let pool = cuda.get("cuMemPoolCreate", &[pool.as_ptr() as usize]);
            let pool = pool.expect("a pool") as usize;
            let mut addresses = Vec::new();
            for _ in 0..2 {
                let memory = cuda.get("cuMemAllocFromPoolAsync", &[100 << 20, pool, 0]);
                let memory = memory.expect("memory") as usize;
                assert_eq!(figures(pool), [128, 100]);
                assert_eq!(cuda.call("cuMemFreeAsync", &[memory, 0]), 0);
                assert_eq!(cuda.call("cuCtxSynchronize", &[]), 0);
                assert_eq!(figures(pool), [0, 0]);
                addresses.push(memory);
            }
            assert_eq!(addresses[0], addresses[1]);
            assert_eq!(cuda.call("cuMemPoolDestroy", &[pool]), 0);
        }
        let shared = properties(2, 1, 1);
        assert_eq!(
            cuda.get("cuMemPoolCreate", &[shared.as_ptr() as usize]),
            Err(1)
        );
        let mapped = properties(2, 0, 1);
        assert_eq!(
            cuda.get("cuMemCreate", &[2 << 20, mapped.as_ptr() as usize, 0]),
            Err(1)
        );
        let location = [1i32, 0];
        let default = cuda.get("cuMemGetDefaultMemPool", &[location.as_ptr() as usize, 2]);
        let default = default.expect("a pool") as usize;
        assert_eq!(cuda.call("cuMemPoolDestroy", &[default]), 1);
        let text = c".version 8.0\n.global .attribute(.managed) .align 4 .b8 m[104857600];\n";
        let module = cuda.get("cuModuleLoadData", &[text.as_ptr() as usize]);
        assert!(module.is_ok());
        assert_eq!(cuda.beyond(), 0);
    });
}
