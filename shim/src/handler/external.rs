//! Objects of other programming interfaces, such as Vulkan. They are not charged. A process that
//! has them must not be suspended.

use gpulimit_base::obstacle::Obstacle;

use crate::abi::{SUCCESS, Status};
use crate::driver::Real;
use crate::handler::Call;

/// `cuImportExternalMemory`: Charges nothing, because the other interface has allocated the memory.
pub fn import_memory(call: Call, real: &dyn Real) -> Status {
    lasting(call, Obstacle::ExternalMemory, real)
}

/// `cuDestroyExternalMemory`: Charges nothing. The process may be suspended again without such
/// memory.
pub fn destroy_memory(call: Call, real: &dyn Real) -> Status {
    ended(call, Obstacle::ExternalMemory, real)
}

/// `cuImportExternalSemaphore`: Charges nothing.
pub fn import_semaphore(call: Call, real: &dyn Real) -> Status {
    lasting(call, Obstacle::ExternalSemaphore, real)
}

/// `cuDestroyExternalSemaphore`: Charges nothing. The process may be suspended again without such
/// semaphores.
pub fn destroy_semaphore(call: Call, real: &dyn Real) -> Status {
    ended(call, Obstacle::ExternalSemaphore, real)
}

/// Runs `real`, which makes an obstacle.
pub fn lasting(call: Call, obstacle: Obstacle, real: &dyn Real) -> Status {
    let possible = call.process.expect_obstacle(obstacle);
    let status = real.call();
    if status == SUCCESS {
        possible.stay();
    }
    status
}

/// Runs `real`, which ends an obstacle.
fn ended(call: Call, obstacle: Obstacle, real: &dyn Real) -> Status {
    let status = real.call();
    if status == SUCCESS {
        call.process.end_obstacle(obstacle, 1);
    }
    status
}
