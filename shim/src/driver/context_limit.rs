//! What the driver says of a context's limits (`cuCtxGetLimit`).

use super::capture::relaxed;
use super::{answer, cuda};
use crate::abi::{Context, Out, SUCCESS};

/// What the driver says of a limit.
pub enum ContextLimit {
    /// It cannot be told, as of a context that is none.
    Unknown,
    /// It cannot be set: a module has been loaded that uses what it is for (measured).
    Fixed,
    /// Its value.
    Free(usize),
}

/// This limit of the current context.
pub fn current_limit(which: i32) -> ContextLimit {
    relaxed(|| match answer(|value| cuda::cuCtxGetLimit(value, which)) {
        Ok(value) if cuda::cuCtxSetLimit(which, value) == SUCCESS => ContextLimit::Free(value),
        Ok(_) => ContextLimit::Fixed,
        Err(_) => ContextLimit::Unknown,
    })
}

/// This limit of `context`.
pub fn limit_of(context: Context, which: i32) -> ContextLimit {
    if context == 0 || cuda::cuCtxPushCurrent_v2(context) != SUCCESS {
        return ContextLimit::Unknown;
    }
    let limit = current_limit(which);
    let mut popped = 0;
    cuda::cuCtxPopCurrent_v2(Out::of(&mut popped));
    limit
}

/// Whether code in `context` uses what the limit is for.
pub fn is_in_use(context: Context, which: i32) -> bool {
    matches!(limit_of(context, which), ContextLimit::Fixed)
}
