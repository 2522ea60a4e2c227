//! `cuGetProcAddress`: the driver answers, and where its answer is a hooked function the program
//! gets our hook.
//!
//! No name, version or flag is looked at: every pointer that the driver returns is the address of
//! an exported symbol.

use crate::abi::{Opaque, Out, SUCCESS, Status};
use crate::handler::Call;

fn translated(status: Status, pfn: Out<Opaque>) -> Status {
    // A name that is not there: the first version fails and leaves `pfn` alone, the second succeeds
    // with null.
    if let (SUCCESS, Some(found)) = (status, pfn.read())
        && let Some(hook) = super::translate(found as *const _)
    {
        pfn.write(hook as Opaque);
    }
    status
}

/// `cuGetProcAddress`: where the driver gives out a function that is hooked, the program gets the
/// hook.
pub fn proc_address(
    _: Call,
    real: impl Fn(Opaque, Out<Opaque>, i32, u64) -> Status,
    symbol: Opaque,
    pfn: Out<Opaque>,
    version: i32,
    flags: u64,
) -> Status {
    translated(real(symbol, pfn, version, flags), pfn)
}

/// `cuGetProcAddress_v2`: as `cuGetProcAddress`.
pub fn proc_address_v2(
    _: Call,
    real: impl Fn(Opaque, Out<Opaque>, i32, u64, Opaque) -> Status,
    symbol: Opaque,
    pfn: Out<Opaque>,
    version: i32,
    flags: u64,
    status: Opaque,
) -> Status {
    translated(real(symbol, pfn, version, flags, status), pfn)
}
