//! `cuGetProcAddress`: the driver answers, and where its answer is a hooked function the program
//! gets our hook.
//!
//! No name, version or flag is looked at: every pointer that the driver returns is the address of
//! an exported symbol.

use crate::abi::{Opaque, Out, SUCCESS, Status};
use crate::driver::Real;
use crate::handler::Call;

/// `cuGetProcAddress` and `_v2`: where the driver gives out a function that is hooked, the program
/// gets the hook.
pub fn proc_address(_: Call, real: &dyn Real, pfn: Out<Opaque>) -> Status {
    let status = real.call();
    // A name that is not there: the first version fails and leaves `pfn` alone, the second succeeds
    // with null.
    if let (SUCCESS, Some(found)) = (status, pfn.read())
        && let Some(hook) = super::translate(found as *const _)
    {
        pfn.write(hook as Opaque);
    }
    status
}
