//! Result codes of the CUDA driver functions.

/// The result of a driver call: a value, or the reason why the call failed.
pub type Outcome<T> = Result<T, Status>;

/// An error code of the CUDA driver: a `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub i32);

macro_rules! table {
    ($($konst:ident = $code:literal $name:literal $text:literal;)*) => {
        impl Status {
            $(
                #[doc = $name]
                pub const $konst: Status = Status($code);
            )*
        }
        const NAMED: &[(i32, &str, &str)] = &[
            (0, "CUDA_SUCCESS\0", "no error\0"),
            $(($code, concat!($name, "\0"), concat!($text, "\0"))),*
        ];
    };
}

table! {
    INVALID_VALUE = 1 "CUDA_ERROR_INVALID_VALUE" "invalid argument";
    OUT_OF_MEMORY = 2 "CUDA_ERROR_OUT_OF_MEMORY" "out of memory";
    NOT_INITIALIZED = 3 "CUDA_ERROR_NOT_INITIALIZED" "initialization error";
    DEINITIALIZED = 4 "CUDA_ERROR_DEINITIALIZED" "driver shutting down";
    NO_DEVICE = 100 "CUDA_ERROR_NO_DEVICE" "no CUDA-capable device is detected";
    INVALID_DEVICE = 101 "CUDA_ERROR_INVALID_DEVICE" "invalid device ordinal";
    INVALID_IMAGE = 200 "CUDA_ERROR_INVALID_IMAGE" "device kernel image is invalid";
    INVALID_CONTEXT = 201 "CUDA_ERROR_INVALID_CONTEXT" "invalid device context";
    ALREADY_MAPPED = 208 "CUDA_ERROR_ALREADY_MAPPED" "resource already mapped";
    NO_BINARY_FOR_GPU = 209 "CUDA_ERROR_NO_BINARY_FOR_GPU"
        "no kernel image is available for execution on the device";
    NOT_MAPPED = 211 "CUDA_ERROR_NOT_MAPPED" "resource not mapped";
    UNSUPPORTED_LIMIT = 215 "CUDA_ERROR_UNSUPPORTED_LIMIT"
        "limit is not supported on this architecture";
    PEER_ACCESS_UNSUPPORTED = 217 "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
        "peer access is not supported between these two devices";
    INVALID_SOURCE = 300 "CUDA_ERROR_INVALID_SOURCE" "device kernel image is invalid";
    FILE_NOT_FOUND = 301 "CUDA_ERROR_FILE_NOT_FOUND" "file not found";
    OPERATING_SYSTEM = 304 "CUDA_ERROR_OPERATING_SYSTEM"
        "OS call failed or operation not supported";
    INVALID_HANDLE = 400 "CUDA_ERROR_INVALID_HANDLE" "invalid resource handle";
    NOT_FOUND = 500 "CUDA_ERROR_NOT_FOUND" "named symbol not found";
    NOT_READY = 600 "CUDA_ERROR_NOT_READY" "device not ready";
    PEER_ACCESS_ALREADY_ENABLED = 704 "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"
        "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705 "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"
        "peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE = 708 "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"
        "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709 "CUDA_ERROR_CONTEXT_IS_DESTROYED" "context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712 "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713 "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
        "pointer does not correspond to a registered memory region";
    NOT_PERMITTED = 800 "CUDA_ERROR_NOT_PERMITTED" "operation not permitted";
    NOT_SUPPORTED = 801 "CUDA_ERROR_NOT_SUPPORTED" "operation not supported";
    STREAM_CAPTURE_UNSUPPORTED = 900 "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901 "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
        "operation failed due to a previous error during capture";
    STREAM_CAPTURE_IMPLICIT = 906 "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
        "operation would make the legacy stream depend on a capturing blocking stream";
    STREAM_CAPTURE_WRONG_THREAD = 908 "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"
        "attempt to terminate a thread-local capture sequence from another thread";
    EXEC_UPDATE_FAILURE = 910 "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"
        "the graph update was not performed because it included changes which violated \
            constraints specific to instantiated graph update";
    ILLEGAL_STATE = 401 "CUDA_ERROR_ILLEGAL_STATE"
        "the operation cannot be performed in the present state";
    UNKNOWN = 999 "CUDA_ERROR_UNKNOWN" "unknown error";
}

/// Returns the NUL-terminated name and description of an error code, for `cuGetErrorName` and
/// `cuGetErrorString`.
pub fn describe(code: i32) -> Option<(&'static str, &'static str)> {
    NAMED
        .iter()
        .find(|named| named.0 == code)
        .map(|named| (named.1, named.2))
}
