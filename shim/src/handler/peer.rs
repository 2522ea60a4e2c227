//! Access of a GPU to the memory of another one. It takes no memory. A process that has had it must
//! not be suspended, because the driver may not restore the process.
//!
//! Measured on two H200 with 580.159.04: memory of 1 GiB to which another GPU has access at the
//! suspension, by `cuCtxEnablePeerAccess` or `cuMemSetAccess`, loses the process. Processes came
//! back with 64 MiB, with access to a pool, and after the access was taken back. The hooks do not
//! make these differences: it is not known where the bound lies.

use gpulimit_base::obstacle::Obstacle;

use crate::abi::{
    AccessDesc, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, Device as Ordinal, DevicePtr, In, MemPool,
    SUCCESS, Status,
};
use crate::driver::Real;
use crate::handler::Call;
use crate::handler::pool::device_of_drivers_pool;

/// `cuCtxEnablePeerAccess`: Charges nothing. The process must not be suspended any more.
pub fn enable(call: Call, real: &dyn Real) -> Status {
    let possible = call.process.expect_obstacle(Obstacle::PeerAccess);
    let status = real.call();
    if matches!(status, SUCCESS | CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
        possible.stay();
    }
    status
}

/// `cuMemSetAccess`: Charges nothing. The process must not be suspended any more if it gives a
/// device access to memory of another one.
pub fn set_access(
    call: Call,
    real: &dyn Real,
    ptr: DevicePtr,
    size: usize,
    desc: In<AccessDesc>,
    count: usize,
) -> Status {
    let vmm = &call.process.vmm;
    let is_peer = |device| vmm.is_mapped_of_other(ptr, size as u64, device);
    let parts = || vmm.mappings_in(ptr, size as u64).saturating_mul(count);
    give(call, real, desc, count, is_peer, parts)
}

/// `cuMemPoolSetAccess`: Charges nothing. Like `cuMemSetAccess`, for all memory of a pool. An
/// imported pool counts as memory of another device where there are several.
pub fn set_pool_access(
    call: Call,
    real: &dyn Real,
    pool: MemPool,
    map: In<AccessDesc>,
    count: usize,
) -> Status {
    let known = call.process.pools.get(pool);
    let is_peer = |device| match known {
        Some(pool) => pool.may_be_of_other(device),
        None => device_of_drivers_pool(call, pool).is_some_and(|home| home != device),
    };
    give(call, real, map, count, is_peer, || count)
}

/// Runs `real`, which sets the rights in `descs`. `is_peer` returns whether the memory lies on
/// another device than the given one. `parts` returns how many rights the driver sets.
fn give(
    call: Call,
    real: &dyn Real,
    descs: In<AccessDesc>,
    count: usize,
    is_peer: impl Fn(Ordinal) -> bool,
    parts: impl FnOnce() -> usize,
) -> Status {
    if call.process.device_count() < 2 {
        return real.call();
    }
    let possible = call.process.expect_obstacle(Obstacle::PeerAccess);
    let status = real.call();
    let gives = |desc: AccessDesc| desc.flags != 0 && desc.location.device().is_some_and(&is_peer);
    let may_have_given = match status {
        SUCCESS => (0..count).any(|at| descs.at(at).read().is_some_and(gives)),
        // The driver may have set some rights before one failed. `descs` may not be readable.
        _ => parts() > 1,
    };
    if may_have_given {
        possible.stay();
    }
    status
}
