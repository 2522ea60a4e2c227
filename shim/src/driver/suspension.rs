//! What the driver says of this process's suspension (`cuCheckpointProcess…`).

use crate::abi::Out;
use crate::driver::{answer, cuda};

/// `CU_PROCESS_STATE_CHECKPOINTED`.
const CHECKPOINTED: i32 = 2;

/// Returns whether the driver has moved this process's memory to the host. The function of the
/// driver may be called by a process that is locked.
pub fn is_suspended() -> bool {
    let own = std::process::id() as i32;
    answer(|state: Out<i32>| cuda::cuCheckpointProcessGetState(own, state)) == Ok(CHECKPOINTED)
}
