//! Tests of how `cuGetProcAddress` finds functions. The rules were found by calling real drivers.

use crate::rig::{Cuda, alone};

/// Calls `cuGetProcAddress_v2`; returns its result code, the pointer and the status.
fn v2(cuda: &Cuda, name: &std::ffi::CStr, version: i32, flags: u64) -> (i32, usize, i32) {
    let (mut found, mut status) = (0xdead_usize, 77i32);
    let arguments = [
        name.as_ptr() as usize,
        &raw mut found as usize,
        version as usize,
        flags as usize,
        &raw mut status as usize,
    ];
    (cuda.call("cuGetProcAddress_v2", &arguments), found, status)
}

/// Calls `cuGetProcAddress` of CUDA 11; returns its result code and the pointer.
fn v1(cuda: &Cuda, name: &std::ffi::CStr, version: i32, flags: u64) -> (i32, usize) {
    let mut found = 0xdead_usize;
    let arguments = [
        name.as_ptr() as usize,
        &raw mut found as usize,
        version as usize,
        flags as usize,
    ];
    (cuda.call("cuGetProcAddress", &arguments), found)
}

#[test]
fn a_lookup_returns_the_newest_variant_of_the_version() {
    alone(&[], |cuda| {
        let at = |name| cuda.find(name);
        for (name, version, flags, found) in [
            (c"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
            (c"cuMemAlloc", 12_000, 0, "cuMemAlloc_v2"),
            (c"cuMemAlloc", 2000, 0, "cuMemAlloc"),
            (c"cuMemAlloc", -1, 0, "cuMemAlloc_v2"),
            (c"cuMemAlloc", 3020, 2, "cuMemAlloc_v2"),
            (c"cuMemAllocAsync", 11_020, 0, "cuMemAllocAsync"),
            (c"cuMemAllocAsync", 11_020, 1, "cuMemAllocAsync"),
            (c"cuMemAllocAsync", 11_020, 2, "cuMemAllocAsync_ptsz"),
            (c"cuMemAllocAsync", 11_020, 3, "cuMemAllocAsync_ptsz"),
            (c"cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"),
            (c"cuMemcpyHtoD", 3020, 2, "cuMemcpyHtoD_v2"),
            (c"cuCtxCreate", 11_030, 0, "cuCtxCreate_v2"),
            (c"cuCtxCreate", 11_040, 0, "cuCtxCreate_v3"),
            (c"cuCtxCreate", 13_000, 0, "cuCtxCreate_v4"),
            (
                c"cuDevicePrimaryCtxRelease",
                7000,
                0,
                "cuDevicePrimaryCtxRelease",
            ),
            (
                c"cuDevicePrimaryCtxRelease",
                11_000,
                0,
                "cuDevicePrimaryCtxRelease_v2",
            ),
            (c"cuGetProcAddress", 11_030, 0, "cuGetProcAddress"),
            (c"cuGetProcAddress", 12_000, 0, "cuGetProcAddress_v2"),
        ] {
            assert_ne!(at(found), 0, "{found}");
            assert_eq!(
                v2(cuda, name, version, flags),
                (0, at(found), 0),
                "{name:?} {version} {flags}"
            );
            assert_eq!(
                v1(cuda, name, version, flags),
                (0, at(found)),
                "{name:?} {version} {flags}"
            );
        }
    });
}

#[test]
fn a_failed_lookup_answers_as_its_version_does() {
    alone(&[], |cuda| {
        assert_eq!(
            v2(cuda, c"cuMemAlloc_v2", 12_000, 0),
            (0, 0, 1),
            "the lookup takes base names, not exported names"
        );
        assert_eq!(v2(cuda, c"cuMemAllocAsync_ptsz", 12_000, 0), (0, 0, 1));
        assert_eq!(v2(cuda, c"cuNoSuchThing", 12_000, 0), (0, 0, 1));
        assert_eq!(
            v2(cuda, c"cuMemAllocAsync", 11_010, 0),
            (0, 0, 2),
            "the requested version is older than the function"
        );
        assert_eq!(v2(cuda, c"", 0, 0).0, 0);
        assert_eq!(v2(cuda, c"", 0, 0).1, 0);
        assert_eq!(
            v2(cuda, c"cuMemAlloc", 13_010, 0),
            (1, 0xdead, 77),
            "the requested version is newer than the driver"
        );
        assert_eq!(
            v2(cuda, c"cuMemAlloc", 12_000, 4),
            (1, 0xdead, 77),
            "the flag 4 does not exist"
        );
        assert_eq!(v1(cuda, c"cuMemAlloc_v2", 12_000, 0), (500, 0xdead));
        assert_eq!(v1(cuda, c"cuMemAllocAsync", 11_010, 0), (500, 0xdead));
        let mut found = 0usize;
        let arguments = [
            c"cuInit".as_ptr() as usize,
            &raw mut found as usize,
            12_000,
            0,
            0,
        ];
        assert_eq!(
            cuda.call("cuGetProcAddress_v2", &arguments),
            0,
            "the pointer to the status can be NULL"
        );
        assert_eq!(found, cuda.find("cuInit"));
    });
}

#[test]
fn an_older_driver_hides_newer_functions() {
    alone(&[("GPULIMIT_SIM_DRIVER_VERSION", "12020")], |cuda| {
        assert_eq!(
            v2(cuda, c"cuCtxCreate", 13_000, 0),
            (0, cuda.find("cuCtxCreate_v3"), 0),
            "the lookup finds the newest variant that the driver has"
        );
        assert_eq!(v2(cuda, c"cuMemGetMemPool", 13_000, 0), (0, 0, 1));
    });
}
