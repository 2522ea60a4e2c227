//! Tools: as NVIDIA's driver does, `cuInit` loads the library that `CUDA_INJECTION64_PATH` names,
//! and calls its `InitializeInjection`. A tool that subscribes is called at the begin and the end
//! of every call of a thread, as CUPTI calls tools, except for the calls that it makes itself.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

type Callback = extern "C" fn(function: *const c_char, is_end: c_int);

/// The callback of the tool; 0 without one.
static SUBSCRIBER: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread is in the tool's callback.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Sets the callback of the tool. Tools look this function up by its name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn gpulimitSimSubscribe(callback: Callback) {
    SUBSCRIBER.store(callback as usize, Ordering::Release);
}

/// Loads the tool, once.
pub fn load() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(path) = std::env::var("CUDA_INJECTION64_PATH").ok() else {
            return;
        };
        let path = CString::new(path).expect("no NUL in a variable");
        // SAFETY: the strings are NUL-terminated, and the function of a tool has this type.
        unsafe {
            let tool = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            if tool.is_null() {
                return;
            }
            let start = libc::dlsym(tool, c"InitializeInjection".as_ptr());
            assert!(!start.is_null(), "{path:?} is no tool");
            std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> c_int>(start)();
        }
    });
}

/// Tells the tool that a call begins or ends.
#[inline]
pub fn tell(function: &CStr, is_end: bool) {
    let subscriber = SUBSCRIBER.load(Ordering::Acquire);
    if subscriber != 0 {
        call(subscriber, function, is_end);
    }
}

#[cold]
fn call(subscriber: usize, function: &CStr, is_end: bool) {
    if !INSIDE.replace(true) {
        // SAFETY: `gpulimitSimSubscribe` stores functions of this type.
        let callback = unsafe { std::mem::transmute::<usize, Callback>(subscriber) };
        callback(function.as_ptr(), is_end.into());
        INSIDE.set(false);
    }
}
