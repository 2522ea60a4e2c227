//! The result codes of NVML (`nvmlReturn_t`).

use gpulimit_sim::Status;

/// The result of an NVML call: success, or the reason why the call failed.
pub type Answer = Result<(), Code>;

/// An error code of NVML: an `nvmlReturn_t` other than success.
#[derive(Clone, Copy)]
pub struct Code(pub i32);

impl Code {
    pub const UNINITIALIZED: Code = Code(1);
    pub const INVALID_ARGUMENT: Code = Code(2);
    pub const NOT_SUPPORTED: Code = Code(3);
    pub const NOT_FOUND: Code = Code(6);
    pub const INSUFFICIENT_SIZE: Code = Code(7);
    pub const DRIVER_NOT_LOADED: Code = Code(9);
    pub const VERSION_MISMATCH: Code = Code(25);
}

/// A NULL pointer makes an NVML call fail with "invalid argument".
impl From<Status> for Code {
    fn from(_: Status) -> Self {
        Code::INVALID_ARGUMENT
    }
}

/// Returns the NUL-terminated text of a result code for `nvmlErrorString`.
pub fn describe(code: i32) -> &'static str {
    match code {
        0 => "Success\0",
        1 => "Uninitialized\0",
        2 => "Invalid Argument\0",
        3 => "Not Supported\0",
        4 => "Insufficient Permissions\0",
        6 => "Not Found\0",
        7 => "Insufficient Size\0",
        9 => "Driver Not Loaded\0",
        25 => "Argument Version Mismatch\0",
        _ => "Unknown Error\0",
    }
}
