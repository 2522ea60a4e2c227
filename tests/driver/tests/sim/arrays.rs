//! Tests of arrays and mipmapped arrays in the simulated driver, against the figures that were
//! measured on an H100 (580.159.04).

use crate::rig::{CONTEXT, Cuda, MIB, alone, used};

/// The shape of an array: width, height, depth, format, channels, flags.
type Shape = [u32; 6];

const DEFERRED: u32 = 0x80;
const SPARSE: u32 = 0x40;
const GRAIN: u64 = 64 << 10;

/// Returns the `CUDA_ARRAY3D_DESCRIPTOR` of an array with this shape.
fn descriptor([width, height, depth, format, channels, flags]: Shape) -> [u64; 5] {
    let words = u64::from(format) | u64::from(channels) << 32;
    let sizes = [width, height, depth].map(u64::from);
    [sizes[0], sizes[1], sizes[2], words, flags.into()]
}

fn with(shape: Shape, flag: u32) -> Shape {
    let [width, height, depth, format, channels, flags] = shape;
    [width, height, depth, format, channels, flags | flag]
}

fn create(cuda: &Cuda, shape: Shape) -> Result<u64, i32> {
    let descriptor = descriptor(shape);
    cuda.get("cuArray3DCreate_v2", &[descriptor.as_ptr() as usize])
}

fn create_mipmapped(cuda: &Cuda, shape: Shape, levels: usize) -> Result<u64, i32> {
    let descriptor = descriptor(shape);
    cuda.get(
        "cuMipmappedArrayCreate",
        &[descriptor.as_ptr() as usize, levels],
    )
}

fn destroy(cuda: &Cuda, array: u64) -> i32 {
    cuda.call("cuArrayDestroy", &[array as usize])
}

fn destroy_mipmapped(cuda: &Cuda, array: u64) -> i32 {
    cuda.call("cuMipmappedArrayDestroy", &[array as usize])
}

/// Returns size and alignment of an array's memory as the driver function `function` reports them.
fn requirement(cuda: &Cuda, function: &str, array: u64) -> Result<(u64, u64), i32> {
    let mut told = [0u64; 4];
    match cuda.call(function, &[told.as_mut_ptr() as usize, array as usize, 0]) {
        0 => Ok((told[0], told[1])),
        error => Err(error),
    }
}

/// Per array: the shape, the MiB that its creation takes, and the required memory in units of 64
/// KiB.
const ARRAYS: &[(Shape, u64, u64)] = &[
    ([1024, 1024, 0, 32, 4, 0], 16, 256),
    ([4096, 4096, 0, 32, 4, 0], 256, 4096),
    ([1000, 1000, 0, 32, 4, 0], 16, 250),
    ([5000, 3000, 0, 32, 4, 0], 236, 3750),
    ([100, 100, 0, 32, 4, 0], 2, 4),
    ([1, 0, 0, 1, 1, 0], 2, 1),
    ([65536, 0, 0, 32, 4, 0], 8, 128),
    ([100000, 0, 0, 1, 1, 0], 2, 13),
    ([64, 64, 64, 32, 4, 0], 4, 64),
    ([100, 100, 100, 32, 4, 0], 18, 285),
    ([333, 77, 41, 32, 1, 0], 6, 79),
    ([512, 512, 64, 1, 1, 0], 16, 256),
    ([1000, 1000, 10, 32, 4, 1], 158, 2500),
    ([100, 100, 6, 32, 4, 4], 2, 19),
    ([1000, 1000, 6, 16, 2, 4], 24, 378),
    ([100, 100, 12, 32, 4, 5], 4, 38),
    ([1024, 1024, 0, 32, 4, 2], 16, 256),
    ([3000, 2000, 0, 1, 1, 2], 6, 94),
    ([777, 333, 5, 3, 2, 3], 12, 184),
    ([16384, 16384, 0, 1, 1, 0], 256, 4096),
    ([16384, 1, 0, 1, 1, 0], 2, 2),
    ([1, 16384, 0, 1, 1, 0], 2, 16),
    ([20000, 20000, 0, 2, 1, 0], 768, 12266),
    ([31000, 17, 0, 32, 4, 0], 16, 243),
    ([17, 31000, 0, 32, 4, 0], 10, 152),
    ([2048, 2048, 2048, 1, 1, 0], 8192, 131072),
    ([700, 900, 300, 16, 4, 0], 1478, 23617),
    ([300, 200, 2000, 32, 2, 1], 1188, 19000),
    ([2, 2, 16384, 1, 1, 0], 8, 128),
    ([5000, 100, 3, 2, 4, 1], 16, 235),
    ([1000, 1000, 0, 32, 4, 8], 16, 250),
    ([8000, 5000, 0, 16, 4, 2], 314, 5000),
];

/// Per mipmapped array: the shape, the levels, the MiB of its creation, and the required memory in
/// units of 64 KiB.
const MIPMAPS: &[(Shape, usize, u64, u64)] = &[
    ([4096, 1024, 0, 32, 4, 0], 4, 86, 1360),
    ([1024, 1024, 0, 32, 4, 0], 11, 22, 342),
    ([1000, 1000, 0, 32, 4, 0], 10, 22, 334),
    ([100, 100, 0, 32, 4, 0], 7, 2, 5),
    ([256, 256, 64, 32, 1, 0], 9, 20, 293),
    ([512, 512, 6, 32, 4, 4], 10, 34, 513),
    ([3000, 2000, 5, 16, 4, 1], 12, 314, 5005),
    ([4096, 4096, 0, 1, 1, 0], 1, 16, 256),
];

#[test]
fn arrays_take_and_require_the_measured_bytes() {
    alone(&[], |cuda| {
        cuda.start();
        for (shape, taken, required) in ARRAYS {
            let array = create(cuda, *shape).expect("an array");
            assert_eq!(cuda.beyond(), taken * MIB, "{shape:?}");
            assert_eq!(
                requirement(cuda, "cuArrayGetMemoryRequirements", array),
                Err(1)
            );
            let deferred = create(cuda, with(*shape, DEFERRED)).expect("an array");
            assert_eq!(
                requirement(cuda, "cuArrayGetMemoryRequirements", deferred),
                Ok((required * GRAIN, GRAIN)),
                "{shape:?}"
            );
            assert_eq!(
                cuda.beyond(),
                taken * MIB,
                "an array with deferred mapping takes no memory"
            );
            assert_eq!(destroy(cuda, deferred) + destroy(cuda, array), 0);
            assert_eq!(cuda.beyond(), 0, "{shape:?}");
        }
    });
}

#[test]
fn mipmapped_arrays_take_and_require_the_measured_bytes() {
    alone(&[], |cuda| {
        cuda.start();
        for (shape, levels, taken, required) in MIPMAPS {
            let array = create_mipmapped(cuda, *shape, *levels).expect("an array");
            assert_eq!(cuda.beyond(), taken * MIB, "{shape:?}");
            let deferred =
                create_mipmapped(cuda, with(*shape, DEFERRED), *levels).expect("an array");
            assert_eq!(
                requirement(cuda, "cuMipmappedArrayGetMemoryRequirements", deferred),
                Ok((required * GRAIN, GRAIN)),
                "{shape:?}"
            );
            let ends = [deferred, array].map(|array| destroy_mipmapped(cuda, array));
            assert_eq!(ends, [0, 0]);
            assert_eq!(cuda.beyond(), 0, "{shape:?}");
        }
    });
}

#[test]
fn small_arrays_share_blocks() {
    alone(&[], |cuda| {
        cuda.start();
        // Per case: the shape of the arrays, how many of them share blocks, and the MiB of these
        // blocks.
        for (shape, per_block, block) in [
            ([1, 0, 0, 1, 1, 0], 32, 2),
            ([64, 64, 0, 32, 4, 0], 32, 2),
            ([200, 200, 0, 32, 4, 0], 2, 2),
            ([300, 300, 0, 32, 4, 0], 1, 2),
            ([400, 400, 0, 32, 4, 0], 1, 4),
        ] {
            let mut live = Vec::new();
            for number in 0..24 {
                live.push(create(cuda, shape).expect("an array"));
                let blocks = number / per_block + 1;
                assert_eq!(cuda.beyond(), blocks * block * MIB, "{shape:?} {number}");
            }
            let all = cuda.beyond();
            let linear = cuda.alloc(1000).expect("memory");
            assert_eq!(
                cuda.beyond(),
                all + 2 * MIB,
                "arrays do not share blocks with linear memory"
            );
            for array in live {
                assert_eq!(destroy(cuda, array), 0);
            }
            assert_eq!(cuda.beyond(), 2 * MIB, "{shape:?}");
            assert_eq!(cuda.free(linear), 0);
            assert_eq!(cuda.beyond(), 0, "{shape:?}");
        }
    });
}

#[test]
fn a_block_is_freed_with_its_last_array_and_gaps_are_reused() {
    alone(&[], |cuda| {
        cuda.start();
        let mut live: Vec<u64> = (0..64)
            .map(|_| create(cuda, [1, 0, 0, 1, 1, 0]).expect("an array"))
            .collect();
        assert_eq!(cuda.beyond(), 4 * MIB);
        for array in live.drain(1..32) {
            assert_eq!(destroy(cuda, array), 0);
        }
        assert_eq!(
            cuda.beyond(),
            4 * MIB,
            "one array is left in the first block"
        );
        let again = create(cuda, [300, 300, 0, 32, 4, 0]).expect("an array");
        assert_eq!(cuda.beyond(), 4 * MIB, "the array fits in the first block");
        assert_eq!(destroy(cuda, again), 0);
        assert_eq!(destroy(cuda, live.remove(0)), 0);
        assert_eq!(cuda.beyond(), 2 * MIB);
    });
}

#[test]
fn contexts_do_not_share_array_blocks_and_free_their_arrays() {
    alone(&[], |cuda| {
        cuda.start();
        let small = create(cuda, [1, 0, 0, 1, 1, 0]).expect("an array");
        let context = cuda.get("cuCtxCreate_v2", &[0, 0]).expect("a context") as usize;
        let before = used();
        let other = create(cuda, [1, 0, 0, 1, 1, 0]).expect("an array");
        assert_eq!(used(), before + 2 * MIB);
        create(cuda, [1024, 1024, 0, 32, 4, 0]).expect("an array");
        create_mipmapped(cuda, [100, 100, 0, 32, 4, 0], 7).expect("an array");
        assert_eq!(used(), before + 18 * MIB);
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), 0);
        assert_eq!(cuda.beyond(), 2 * MIB);
        assert_eq!(destroy(cuda, other), 709);
        assert_eq!(destroy(cuda, small), 0);
        assert_eq!(destroy(cuda, small), 709, "the array is destroyed");
        assert_eq!(used(), CONTEXT);
    });
}

#[test]
fn every_function_that_creates_an_array() {
    alone(&[], |cuda| {
        cuda.start();
        let float4 = 0x20u64 | 4 << 32;
        let flat = [1000, 1000, float4];
        let deep = [100, 100, 100, float4, 0];
        for (function, place, taken) in [
            ("cuArrayCreate_v2", flat.as_ptr(), 16),
            ("cuArray3DCreate_v2", deep.as_ptr(), 18),
        ] {
            let array = cuda.get(function, &[place as usize]).expect("an array");
            assert_eq!(cuda.beyond(), taken * MIB, "{function}");
            let mut told = [0u64; 5];
            let places = [told.as_mut_ptr() as usize, array as usize];
            assert_eq!(cuda.call("cuArray3DGetDescriptor_v2", &places), 0);
            let depth = [0, 100][usize::from(taken == 18)];
            let side = [1000, 100][usize::from(taken == 18)];
            assert_eq!(told, [side, side, depth, float4, 0], "{function}");
            let mut told = [0u64; 3];
            let places = [told.as_mut_ptr() as usize, array as usize];
            assert_eq!(cuda.call("cuArrayGetDescriptor_v2", &places), 0);
            assert_eq!(told, [side, side, float4], "{function}");
            assert_eq!(destroy(cuda, array), 0);
        }
        assert_eq!(cuda.beyond(), 0);
        for function in ["cuArrayCreate", "cuArray3DCreate"] {
            let narrow = [1000u32, 1000, 0x20, 4, 0, 0];
            assert_eq!(cuda.get(function, &[narrow.as_ptr() as usize]), Err(201));
        }
    });
}

/// The relaxed capture mode allows creating arrays with deferred mapping, and querying the memory
/// that they require.
#[test]
fn creating_an_array_invalidates_a_global_capture() {
    alone(&[], |cuda| {
        cuda.start();
        let stream = cuda.get("cuStreamCreate", &[1]).expect("a stream") as usize;
        let begin = || assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, 0]), 0);
        let end = || {
            let mut graph = 0usize;
            let arguments = [stream, &raw mut graph as usize];
            cuda.call("cuStreamEndCapture", &arguments)
        };
        begin();
        assert_eq!(create(cuda, [1024, 1024, 0, 32, 4, 0]), Err(900));
        assert_eq!(end(), 901);
        begin();
        let mut mode = 2i32;
        let exchange = [&raw mut mode as usize];
        assert_eq!(cuda.call("cuThreadExchangeStreamCaptureMode", &exchange), 0);
        let twin = create(cuda, [1024, 1024, 0, 32, 4, DEFERRED]).expect("an array");
        let asked = requirement(cuda, "cuArrayGetMemoryRequirements", twin);
        assert_eq!((asked.is_ok(), destroy(cuda, twin)), (true, 0));
        assert_eq!(cuda.call("cuThreadExchangeStreamCaptureMode", &exchange), 0);
        assert_eq!(end(), 0);
    });
}

#[test]
fn levels_are_destroyed_with_their_array() {
    alone(&[], |cuda| {
        cuda.start();
        let whole = create_mipmapped(cuda, [1000, 600, 0, 32, 4, 0], 100).expect("an array");
        let taken = cuda.beyond();
        let level = |number| cuda.get("cuMipmappedArrayGetLevel", &[whole as usize, number]);
        assert_eq!(level(10), Err(1), "the array has ten levels");
        let third = level(3).expect("a level");
        let mut told = [0u64; 5];
        let places = [told.as_mut_ptr() as usize, third as usize];
        assert_eq!(cuda.call("cuArray3DGetDescriptor_v2", &places), 0);
        assert_eq!(told[..3], [125, 75, 0]);
        assert_eq!(cuda.beyond(), taken);
        for _ in 0..2 {
            assert_eq!(destroy(cuda, third), 0, "destroying a level does nothing");
            assert_eq!(cuda.call("cuArray3DGetDescriptor_v2", &places), 0);
        }
        assert_eq!(destroy(cuda, whole), 400, "the handle is a mipmapped array");
        assert_eq!(cuda.beyond(), taken);
        assert_eq!(destroy_mipmapped(cuda, whole), 0);
        assert_eq!(cuda.beyond(), 0);
    });
}

#[test]
fn invalid_shapes_are_refused() {
    alone(&[], |cuda| {
        cuda.start();
        for shape in [
            [0, 0, 0, 1, 1, 0],
            [0, 10, 0, 1, 1, 0],
            [10, 0, 10, 1, 1, 0],
            [10, 10, 0, 7, 1, 0],
            [10, 10, 0, 1, 3, 0],
            [1000, 1000, 0, 32, 1, 16],
            [10, 10, 0, 1, 1, 0x8000],
            [10, 10, 0, 1, 1, SPARSE | DEFERRED],
            [10, 10, 0, 1, 1, 4],
            [10, 12, 6, 1, 1, 4],
            [10, 10, 7, 1, 1, 5],
            [u32::MAX, u32::MAX, u32::MAX, 1, 1, 0],
        ] {
            assert_eq!(create(cuda, shape), Err(1), "{shape:?}");
            assert_eq!(create_mipmapped(cuda, shape, 1), Err(1), "{shape:?}");
        }
        let endless = [1u64 << 63, 1 << 63, 1 << 63, 1 | 1 << 32, 0];
        assert_eq!(
            cuda.get("cuArray3DCreate_v2", &[endless.as_ptr() as usize]),
            Err(1)
        );
        assert_eq!(cuda.get("cuArray3DCreate_v2", &[0]), Err(1));
        let fine = descriptor([10, 10, 0, 1, 1, 0]);
        assert_eq!(
            cuda.call("cuArray3DCreate_v2", &[0, fine.as_ptr() as usize]),
            1
        );
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(create(cuda, [16384, 16384, 1024, 32, 4, 0]), Err(2));
    });
}

/// Checks that a simulated driver of this version rejects the array flag `flag`.
fn unknown(version: &str, flag: u32) {
    alone(&[("GPULIMIT_SIM_DRIVER_VERSION", version)], |cuda| {
        cuda.start();
        let shape = [1000, 1000, 0, 32, 4, 0];
        assert_eq!(create(cuda, with(shape, flag)), Err(1));
        assert!(create(cuda, shape).is_ok());
    });
}

#[test]
fn sparse_arrays_came_with_11_1() {
    unknown("11000", SPARSE);
}

#[test]
fn deferred_mapping_came_with_11_6() {
    unknown("11050", DEFERRED);
}

/// Returns a `CUarrayMapInfo` for one array. `part` is level, layer, offset and extent; `memory` is
/// `None` to unmap.
fn map_info(kind: u64, array: u64, part: [u32; 8], memory: Option<u64>) -> [u64; 12] {
    let pair = |at: usize| u64::from(part[at]) | u64::from(part[at + 1]) << 32;
    let operation = if memory.is_some() { 1 } else { 2 };
    let mut info = [0; 12];
    info[..9].copy_from_slice(&[
        kind,
        array,
        0,
        pair(0),
        pair(2),
        pair(4),
        pair(6),
        operation,
        memory.unwrap_or(0),
    ]);
    info[10] = 1;
    info
}

fn map(cuda: &Cuda, infos: &[[u64; 12]]) -> i32 {
    let arguments = [infos.as_ptr() as usize, infos.len(), 0];
    cuda.call("cuMemMapArrayAsync", &arguments)
}

/// Creates memory for the tiles of arrays, with the usage `CU_MEM_CREATE_USAGE_TILE_POOL`.
fn tile_pool(cuda: &Cuda, bytes: u64) -> Result<u64, i32> {
    let mut properties = [0u8; 32];
    (properties[0], properties[8], properties[26]) = (1, 1, 1);
    let arguments = [bytes as usize, properties.as_ptr() as usize, 0];
    cuda.get("cuMemCreate", &arguments)
}

fn memory(cuda: &Cuda, bytes: u64) -> u64 {
    tile_pool(cuda, bytes).expect("memory")
}

fn release(cuda: &Cuda, handle: u64) -> i32 {
    cuda.call("cuMemRelease", &[handle as usize])
}

#[test]
fn mapped_memory_is_freed_with_its_handle() {
    alone(&[], |cuda| {
        cuda.start();
        assert_eq!(tile_pool(cuda, 64 << 10), Err(1), "the pool is below 2 MiB");
        let array = create(cuda, [8192, 8192, 0, 32, 4, SPARSE]).expect("an array");
        assert_eq!(cuda.beyond(), 0);
        // A part of the array: level 0, 8 × 4 tiles of 64 × 64 elements each.
        let tiles = [0, 0, 0, 0, 0, 512, 256, 1];
        let one = memory(cuda, 2 * MIB);
        assert_eq!(map(cuda, &[map_info(0, array, tiles, Some(one))]), 0);
        assert_eq!(cuda.call("cuCtxSynchronize", &[]), 0);
        assert_eq!(cuda.beyond(), 2 * MIB);
        assert_eq!(release(cuda, one), 0);
        assert_eq!(
            cuda.beyond(),
            0,
            "releasing the handle frees the memory even while it is mapped"
        );
        assert_eq!(map(cuda, &[map_info(0, array, tiles, None)]), 0);
        let two = memory(cuda, 2 * MIB);
        assert_eq!(map(cuda, &[map_info(0, array, tiles, Some(two))]), 0);
        assert_eq!(destroy(cuda, array), 0);
        assert_eq!(cuda.beyond(), 2 * MIB, "mapped memory outlives its array");
        assert_eq!(release(cuda, two), 0);
        assert_eq!(cuda.beyond(), 0);
    });
}

#[test]
fn invalid_mappings_are_refused() {
    alone(&[], |cuda| {
        cuda.start();
        let plain = create(cuda, [1024, 1024, 0, 32, 4, 0]).expect("an array");
        let sparse = create(cuda, [1024, 1024, 0, 32, 4, SPARSE]).expect("an array");
        let one = memory(cuda, 2 * MIB);
        let tile = [0, 0, 0, 0, 0, 64, 64, 1];
        let odd = [0, 0, 1, 0, 0, 64, 64, 1];
        let beyond = [0, 0, 1024, 0, 0, 64, 64, 1];
        assert_eq!(map(cuda, &[map_info(0, plain, tile, Some(one))]), 1);
        assert_eq!(map(cuda, &[map_info(0, sparse, odd, Some(one))]), 1);
        assert_eq!(map(cuda, &[map_info(0, sparse, beyond, Some(one))]), 1);
        assert_eq!(map(cuda, &[map_info(0, sparse, tile, Some(99))]), 1);
        assert_eq!(map(cuda, &[map_info(1, sparse, tile, Some(one))]), 400);
        let both = [
            map_info(0, sparse, tile, Some(one)),
            map_info(0, sparse, odd, None),
        ];
        assert_eq!(map(cuda, &both), 1);
        assert_eq!(release(cuda, one), 0);
        assert_eq!(cuda.beyond(), 16 * MIB, "the failed calls changed nothing");
    });
}

#[test]
fn a_deferred_array_is_mapped_as_a_whole() {
    alone(&[], |cuda| {
        cuda.start();
        let array = create_mipmapped(cuda, [1024, 1024, 0, 32, 4, DEFERRED], 11).expect("an array");
        let backing = memory(cuda, 22 * MIB);
        let mut info = map_info(1, array, [0; 8], Some(backing));
        let (size, _) =
            requirement(cuda, "cuMipmappedArrayGetMemoryRequirements", array).expect("a size");
        (info[2], info[5]) = (1, size);
        assert_eq!(map(cuda, &[info]), 0);
        assert_eq!(release(cuda, backing), 0);
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(destroy_mipmapped(cuda, array), 0);
        assert_eq!(cuda.beyond(), 0);
    });
}
