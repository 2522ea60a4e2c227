//! Access of a GPU to the memory of another one. It takes no memory. A process that has had it must
//! not be suspended: the driver cannot restore the process (measured, two H200, 580.159.04).

use gpulimit_base::obstacle::Obstacle;

use crate::abi::{AccessDesc, Device as Ordinal, DevicePtr, In, MemPool, SUCCESS, Status};
use crate::driver::Real;
use crate::handler::Call;
use crate::handler::external::lasting;
use crate::handler::pool::device_of_drivers_pool;

/// `cuCtxEnablePeerAccess`: Charges nothing. The process must not be suspended any more.
pub fn enable(call: Call, real: &dyn Real) -> Status {
    lasting(call, Obstacle::PeerAccess, real)
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
    give(call, real, desc, count, is_peer)
}

/// `cuMemPoolSetAccess`: Charges nothing. Like `cuMemSetAccess`, for all memory of a pool.
pub fn set_pool_access(
    call: Call,
    real: &dyn Real,
    pool: MemPool,
    map: In<AccessDesc>,
    count: usize,
) -> Status {
    let home = || {
        let known = call.process.pools.get(pool).map(|pool| pool.device);
        known.or_else(|| device_of_drivers_pool(call, pool))
    };
    let is_peer = |device| home().is_some_and(|home| home != device);
    give(call, real, map, count, is_peer)
}

/// Runs `real`, which sets the rights in `descs`. `is_peer` returns whether the memory lies on
/// another device than the given one.
fn give(
    call: Call,
    real: &dyn Real,
    descs: In<AccessDesc>,
    count: usize,
    is_peer: impl Fn(Ordinal) -> bool,
) -> Status {
    if call.process.device_count() < 2 {
        return real.call();
    }
    let possible = call.process.expect_obstacle(Obstacle::PeerAccess);
    let status = real.call();
    // Only the driver knows before the call whether all of `descs` can be read.
    let gives = |desc: AccessDesc| desc.flags != 0 && desc.location.device().is_some_and(&is_peer);
    if status == SUCCESS && (0..count).any(|at| descs.at(at).read().is_some_and(gives)) {
        possible.stay();
    }
    status
}
