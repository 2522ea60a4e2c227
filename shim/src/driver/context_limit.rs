//! The limits of a CUDA context (`cuCtxGetLimit`, `cuCtxSetLimit`), as the driver reports them.

use super::capture::relaxed;
use super::{answer, cuda};
use crate::abi::{Context, Out, SUCCESS};

/// A limit of a CUDA context, as far as the driver reports it.
pub enum ContextLimit {
    /// The driver does not report the limit, for instance because the handle is not a context.
    Unknown,
    /// The limit of the context cannot be changed, because a loaded module uses the memory that the
    /// limit governs (measured).
    Fixed,
    /// The limit of the context can be changed, and its present value is this number.
    Free(usize),
}

/// Returns the limit `which` of the calling thread's current context.
pub fn current_limit(which: i32) -> ContextLimit {
    relaxed(|| match answer(|value| cuda::cuCtxGetLimit(value, which)) {
        Ok(value) if cuda::cuCtxSetLimit(which, value) == SUCCESS => ContextLimit::Free(value),
        Ok(_) => ContextLimit::Fixed,
        Err(_) => ContextLimit::Unknown,
    })
}

/// Returns the limit `which` of `context`.
pub fn limit_of(context: Context, which: i32) -> ContextLimit {
    if context == 0 || cuda::cuCtxPushCurrent_v2(context) != SUCCESS {
        return ContextLimit::Unknown;
    }
    let limit = current_limit(which);
    let mut popped = 0;
    cuda::cuCtxPopCurrent_v2(Out::of(&mut popped));
    limit
}

/// Returns whether code that is loaded in `context` uses the memory that the limit `which` governs.
pub fn is_in_use(context: Context, which: i32) -> bool {
    matches!(limit_of(context, which), ContextLimit::Fixed)
}
