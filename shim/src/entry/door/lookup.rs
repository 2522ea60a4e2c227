//! `cuGetProcAddress`: the program gets the hook if the driver returns a hooked function.
//!
//! The name, version and flags do not matter: the address that the driver returns determines the
//! hook.

use crate::abi::{Opaque, Out, SUCCESS, Status};
use crate::driver::Real;
use crate::handler::Call;

/// `cuGetProcAddress`, `cuGetProcAddress_v2`: If the driver returns a hooked function, the program
/// gets the hook instead.
pub fn proc_address(_: Call, real: &dyn Real, pfn: Out<Opaque>) -> Status {
    let status = real.call();
    // For an unknown name `cuGetProcAddress` fails and leaves `pfn` unchanged;
    // `cuGetProcAddress_v2` succeeds and writes null to `pfn`.
    if let (SUCCESS, Some(found)) = (status, pfn.read())
        && let Some(hook) = super::translate(found as *const _)
    {
        pfn.write(hook as Opaque);
    }
    status
}
