//! Modules and libraries: code and `__device__` variables. Their size is nowhere said, so they are measured, and unloaded again when the
//! group has no room for them.

use crate::abi::{DevicePtr, Opaque, Out, SUCCESS, Status};
use crate::handler::limits::{self, Use};
use crate::handler::linear::current_context;
use crate::hook::Call;
use crate::table::cuda;

fn load(call: Call, real: impl Fn() -> Status, unload: Option<&dyn Fn()>) -> Status {
    match call.process.current_device() {
        Ok(device) => {
            let load = Use::<fn() -> u64>::Load;
            limits::run(call, device, current_context(), load, 0, real, unload)
        }
        Err(failed) => call.process.unavailable(failed, real),
    }
}

fn load_module(call: Call, module: Out<Opaque>, real: impl Fn() -> Status) -> Status {
    let unload = || {
        if let Some(module) = module.read() {
            cuda::cuModuleUnload(module);
        }
    };
    load(call, real, Some(&unload))
}

/// `cuModuleLoad`, `cuModuleLoadData`, `cuModuleLoadFatBinary`.
pub fn module(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque) -> Status,
    module: Out<Opaque>,
    image: Opaque,
) -> Status {
    load_module(call, module, || real(module, image))
}

/// `cuModuleLoadDataEx`.
pub fn module_ex(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque, u32, Opaque, Opaque) -> Status,
    module: Out<Opaque>,
    image: Opaque,
    count: u32,
    options: Opaque,
    values: Opaque,
) -> Status {
    load_module(call, module, || real(module, image, count, options, values))
}

/// `cuLibraryLoadData` and `cuLibraryLoadFromFile`: works without a current context, and then takes nothing yet.
#[allow(clippy::too_many_arguments)]
pub fn library(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque, Opaque, Opaque, u32, Opaque, Opaque, u32) -> Status,
    library: Out<Opaque>,
    code: Opaque,
    jit_options: Opaque,
    jit_values: Opaque,
    jit_count: u32,
    options: Opaque,
    values: Opaque,
    count: u32,
) -> Status {
    let unload = || {
        if let Some(library) = library.read() {
            cuda::cuLibraryUnload(library);
        }
    };
    load(
        call,
        || {
            real(
                library,
                code,
                jit_options,
                jit_values,
                jit_count,
                options,
                values,
                count,
            )
        },
        Some(&unload),
    )
}

/// `cuKernelGetFunction`, `cuLibraryGetModule`: a lazily loaded library is loaded here, the first time.
pub fn first_use(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque) -> Status,
    handle: Out<Opaque>,
    of: Opaque,
) -> Status {
    load_once(call, of, || real(handle, of))
}

/// `cuLibraryGetGlobal`: likewise.
pub fn global(
    call: Call,
    real: impl Fn(Out<DevicePtr>, Out<usize>, Opaque, Opaque) -> Status,
    dptr: Out<DevicePtr>,
    bytes: Out<usize>,
    library: Opaque,
    name: Opaque,
) -> Status {
    load_once(call, library, || real(dptr, bytes, library, name))
}

/// Measures what `real` loads for `handle`, unless it has done so before: libraries ask for the same kernel at every call.
fn load_once(call: Call, handle: Opaque, real: impl Fn() -> Status) -> Status {
    // Handles are aligned: the odd number beside one says "loaded", the handle itself "launched".
    let (loaded, launched) = (handle | 1, &call.process.launched);
    if launched.contains(loaded) {
        return real();
    }
    // A library is loaded in every context by itself.
    let context = current_context();
    launched.note_kernel(loaded, 0);
    if launched.contains_in(loaded, context) {
        return real();
    }
    let status = load(call, real, None);
    if status == SUCCESS {
        launched.insert_in(loaded, context, call.process.context_count());
    }
    status
}

/// `cuLibraryGetKernel`: a kernel, which can be launched in any context.
pub fn kernel(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque, Opaque) -> Status,
    kernel: Out<Opaque>,
    library: Opaque,
    name: Opaque,
) -> Status {
    let status = real(kernel, library, name);
    if let (SUCCESS, Some(kernel)) = (status, kernel.read()) {
        call.process.launched.note_kernel(kernel, library);
    }
    status
}

/// `cuModuleUnload` and `cuLibraryUnload`.
pub fn unload(call: Call, real: impl Fn(Opaque) -> Status, code: Opaque) -> Status {
    let status = real(code);
    if status == SUCCESS {
        call.process.launched.forget_library(code);
        for device in call.process.devices() {
            device.driver.measure(device);
        }
    }
    status
}
