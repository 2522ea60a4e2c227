//! Asks the driver about this process's suspension (`cuCheckpointProcess…`). A process may make
//! these calls while it is locked. They wait for a lock under way, and do not hold it up (measured,
//! H200, driver 580.159.04).

use gpulimit_ledger::Says;

use crate::abi::{CUDA_ERROR_NOT_INITIALIZED, Out, Status};
use crate::driver::{answer, cuda};

/// Values of `CUprocessState`.
const RUNNING: i32 = 0;
const LOCKED: i32 = 1;
const CHECKPOINTED: i32 = 2;

fn own() -> i32 {
    std::process::id() as i32
}

fn state() -> Result<i32, Status> {
    answer(|state: Out<i32>| cuda::cuCheckpointProcessGetState(own(), state))
}

/// Returns whether the driver has moved this process's memory to the host.
pub fn is_suspended() -> bool {
    state() == Ok(CHECKPOINTED)
}

/// Returns where this process's memory is. No process is suspended by a driver that lacks the
/// functions for it, or before `cuInit`.
pub fn says() -> Says {
    match state() {
        Ok(RUNNING) | Err(CUDA_ERROR_NOT_INITIALIZED) => Says::Runs,
        Err(_) if !cuda::has::cuCheckpointProcessGetState() => Says::Runs,
        Ok(LOCKED) => Says::IsLocked,
        _ => Says::IsAway,
    }
}

/// Lets the calls of this process go on, if it is locked.
pub fn unlock() {
    let _ = cuda::cuCheckpointProcessUnlock(own(), 0);
}
