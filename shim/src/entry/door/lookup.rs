//! `cuGetProcAddress`: the driver looks the function up, and the program gets the hook where the
//! result is a hooked function.
//!
//! The hook of `cuGetProcAddress` does not interpret the name, version or flags. Every pointer that
//! the driver returns is the address of an exported symbol, and that address alone determines the
//! hook.

use crate::abi::{Opaque, Out, SUCCESS, Status};
use crate::driver::Real;
use crate::handler::Call;

/// `cuGetProcAddress`, `cuGetProcAddress_v2`: If the driver returns the address of a hooked
/// function, the program gets the address of the hook instead.
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
