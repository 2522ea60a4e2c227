//! Modules and libraries: code and `__device__` variables. What an image says of its variables and of device `malloc` is charged ahead; the rest is measured, and
//! unloaded again when the group has no room for it.

use crate::abi::{DevicePtr, LOADING_EAGER, Opaque, Out, SUCCESS, Status};
use crate::account::BLOCK;
use crate::handler::lazy;
use crate::handler::limits::{self, Use};
use crate::handler::linear::current_context;
use crate::hook::{Call, Real};
use crate::image::{self, Needs};
use crate::table::cuda;

fn needs(call: Call, image: Opaque) -> Needs {
    image::needs(image, &|| call.process.capabilities())
}

fn needs_of_file(call: Call, path: Opaque) -> Needs {
    image::needs_of_file(path, &|| call.process.capabilities())
}

/// Loads something that needs this.
fn load(call: Call, needs: Needs, real: &dyn Real, unload: Option<&dyn Fn()>) -> Status {
    match call.process.current_device() {
        Ok(device) => {
            let load = Use::Load;
            limits::run(
                call,
                device,
                current_context(),
                load,
                needs,
                0,
                real,
                unload,
            )
        }
        Err(failed) => call.process.unavailable(failed, real),
    }
}

fn load_module(call: Call, needs: Needs, module: Out<Opaque>, real: &dyn Real) -> Status {
    let unload = || {
        if let Some(module) = module.read() {
            cuda::cuModuleUnload(module);
        }
    };
    load(call, needs, real, Some(&unload))
}

/// `cuModuleLoad`: as `cuModuleLoadData`, from a file.
pub fn module_file(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque) -> Status,
    module: Out<Opaque>,
    path: Opaque,
) -> Status {
    load_module(call, needs_of_file(call, path), module, &|| {
        real(module, path)
    })
}

/// `cuModuleLoadData`, `cuModuleLoadFatBinary`: the variables that the image declares, and what device `malloc` takes, are charged before the call; the rest is measured after
/// it, and unloaded again where it does not fit.
pub fn module(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque) -> Status,
    module: Out<Opaque>,
    image: Opaque,
) -> Status {
    load_module(call, needs(call, image), module, &|| real(module, image))
}

/// `cuModuleLoadDataEx`: as `cuModuleLoadData`.
pub fn module_ex(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque, u32, Opaque, Opaque) -> Status,
    module: Out<Opaque>,
    image: Opaque,
    count: u32,
    options: Opaque,
    values: Opaque,
) -> Status {
    load_module(call, needs(call, image), module, &|| {
        real(module, image, count, options, values)
    })
}

/// `cuLibraryLoadData`: with eager loading charged as by `cuModuleLoadData`; else its variables are remembered for the call that loads them.
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
    open(call, needs(call, code), library, &|| {
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
    })
}

/// `cuLibraryLoadFromFile`: as `cuLibraryLoadData`, from a file.
#[allow(clippy::too_many_arguments)]
pub fn library_file(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque, Opaque, Opaque, u32, Opaque, Opaque, u32) -> Status,
    library: Out<Opaque>,
    path: Opaque,
    jit_options: Opaque,
    jit_values: Opaque,
    jit_count: u32,
    options: Opaque,
    values: Opaque,
    count: u32,
) -> Status {
    open(call, needs_of_file(call, path), library, &|| {
        real(
            library,
            path,
            jit_options,
            jit_values,
            jit_count,
            options,
            values,
            count,
        )
    })
}

/// Opens a library: works without a current context, and takes nothing yet, unless the program wants everything loaded at once.
fn open(call: Call, needs: Needs, library: Out<Opaque>, real: &dyn Real) -> Status {
    let mut mode = 0;
    let eager =
        cuda::cuModuleGetLoadingMode(Out::of(&mut mode)) == SUCCESS && mode == LOADING_EAGER;
    let unload = || {
        if let Some(library) = library.read() {
            cuda::cuLibraryUnload(library);
        }
    };
    let now = if eager { needs } else { Needs::default() };
    let status = load(call, now, real, Some(&unload));
    // Less is a matter of the driver's reserve, as code is.
    let is_large = needs.variables >= BLOCK || needs.uses_runtime();
    if let (SUCCESS, true, Some(library)) = (status, is_large, library.read()) {
        call.process.libraries.insert(library, needs);
    }
    status
}

/// `cuLibraryGetModule`: a lazily loaded library is loaded here, the first time in a context; its variables are charged before that, the rest
/// is measured after it.
pub fn library_module(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque) -> Status,
    module: Out<Opaque>,
    library: Opaque,
) -> Status {
    lazy::load(call, library, Some(library), None, &|| {
        real(module, library)
    })
}

/// `cuKernelGetFunction`: as `cuLibraryGetModule`.
pub fn kernel_function(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque) -> Status,
    function: Out<Opaque>,
    kernel: Opaque,
) -> Status {
    let status = lazy::load(call, kernel, None, None, &|| real(function, kernel));
    if let (SUCCESS, Some(function)) = (status, function.read()) {
        lazy::note_loaded(call, function);
    }
    status
}

/// `cuLibraryGetGlobal`: as `cuLibraryGetModule`.
pub fn global(
    call: Call,
    real: impl Fn(Out<DevicePtr>, Out<usize>, Opaque, Opaque) -> Status,
    dptr: Out<DevicePtr>,
    bytes: Out<usize>,
    library: Opaque,
    name: Opaque,
) -> Status {
    lazy::load(call, library, Some(library), None, &|| {
        real(dptr, bytes, library, name)
    })
}

/// `cuModuleGetFunction`: the code of a module is loaded lazily, perhaps here. It is measured after the call, for each function once.
pub fn module_function(
    call: Call,
    real: impl Fn(Out<Opaque>, Opaque, Opaque) -> Status,
    function: Out<Opaque>,
    module: Opaque,
    name: Opaque,
) -> Status {
    let status = real(function, module, name);
    if let (SUCCESS, Some(function)) = (status, function.read())
        && !lazy::is_loaded(call, function)
        && let Ok(device) = call.process.current_device()
    {
        device.driver.measure(device);
        lazy::note_loaded(call, function);
    }
    status
}

/// `cuLibraryGetKernel`: charges nothing; remembers that it is a kernel, which takes its memory in each context by itself.
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

/// `cuModuleUnload`: given back after the call is what a measurement finds gone.
pub fn unload(call: Call, real: impl Fn(Opaque) -> Status, module: Opaque) -> Status {
    let status = real(module);
    if status == SUCCESS {
        unloaded(call, module);
    }
    status
}

/// `cuLibraryUnload`: as `cuModuleUnload`.
pub fn unload_library(call: Call, real: impl Fn(Opaque) -> Status, library: Opaque) -> Status {
    let status = real(library);
    if status == SUCCESS {
        call.process.libraries.remove(library);
        unloaded(call, library);
    }
    status
}

fn unloaded(call: Call, code: Opaque) {
    call.process.launched.forget_library(code);
    for device in call.process.devices() {
        device.driver.measure(device);
    }
}
