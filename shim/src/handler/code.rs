//! Modules and libraries: code, `__device__` and `__managed__` variables. What an image says of its
//! variables and of device `malloc` is charged ahead; the rest is measured, and unloaded again when
//! the group has no room for it.

use std::cell::Cell;

use crate::abi::{
    Context, DevicePtr, FileName, Image, LOADING_EAGER, Opaque, Out, SUCCESS, Status,
};
use crate::account::BLOCK;
use crate::account::contexts::current_context;
use crate::account::handles::{Kind, Origin};
use crate::driver::Real;
use crate::driver::capture::relaxed;
use crate::driver::cuda;
use crate::handler::Call;
use crate::handler::aside::attempt;
use crate::handler::loading::{self, Use};
use crate::handler::{handles, lazy, managed};
use crate::image::{self, Needs};

fn needs(call: Call, image: Image) -> Needs {
    image::needs(image, &|| call.process.capabilities())
}

fn needs_of_file(call: Call, path: FileName) -> Needs {
    image::needs_of_file(path, &|| call.process.capabilities())
}

/// Loads something that needs this.
fn load(call: Call, needs: Needs, real: &dyn Real, unload: Option<&dyn Fn()>) -> Status {
    attempt(real, || {
        let device = call.process.current_device()?;
        let load = Use::Load;
        let context = current_context();
        loading::run(call, device, context, load, needs, 0, real, unload)
    })
}

fn load_module(call: Call, needs: Needs, module: Out<Opaque>, real: &dyn Real) -> Status {
    let unload = || {
        if let Some(module) = module.read() {
            cuda::cuModuleUnload(module);
        }
    };
    let context = current_context();
    let load = || load(call, needs, real, Some(&unload));
    let status = managed::variables(call, needs.managed, module, context, &load);
    note(call, Kind::Module, module, status, handles::here);
    if let (SUCCESS, Some(module)) = (status, module.read()) {
        note_variables(call, module, context, needs.least);
    }
    status
}

/// The driver may have handed out a handle.
fn note(call: Call, kind: Kind, handle: Out<Opaque>, status: Status, origin: impl Fn() -> Origin) {
    let known = &call.process.handles;
    if let (SUCCESS, Some(handle)) = (status, handle.read())
        && !known.knows(kind, handle)
    {
        known.insert(kind, handle, origin());
    }
}

/// Code has been loaded in the current context, with at least so many bytes of variables.
fn note_variables(call: Call, code: Opaque, context: Context, bytes: u64) {
    if let Ok(device) = call.process.current_device() {
        device.note_variables(code, context, bytes);
    }
}

/// `cuModuleLoad`: as `cuModuleLoadData`, from a file.
pub fn module_file(call: Call, real: &dyn Real, module: Out<Opaque>, path: FileName) -> Status {
    load_module(call, needs_of_file(call, path), module, real)
}

/// `cuModuleLoadData`, `cuModuleLoadDataEx`, `cuModuleLoadFatBinary`: the variables that the image
/// declares, and what device `malloc` takes, are charged before the call; the rest is measured after
/// it, and unloaded again where it does not fit.
pub fn module(call: Call, real: &dyn Real, module: Out<Opaque>, image: Image) -> Status {
    load_module(call, needs(call, image), module, real)
}

/// `cuLibraryLoadData`: with eager loading charged as by `cuModuleLoadData`; else its variables are
/// remembered for the call that loads them.
pub fn library(call: Call, real: &dyn Real, library: Out<Opaque>, code: Image) -> Status {
    open(call, needs(call, code), library, real)
}

/// `cuLibraryLoadFromFile`: as `cuLibraryLoadData`, from a file.
pub fn library_file(call: Call, real: &dyn Real, library: Out<Opaque>, path: FileName) -> Status {
    open(call, needs_of_file(call, path), library, real)
}

/// Opens a library: works without a current context, and takes only its managed variables yet,
/// unless the program wants everything loaded at once. So is a library that cannot be read: what it
/// takes shows when it is loaded, and only while it is opened can that be undone.
fn open(call: Call, needs: Needs, library: Out<Opaque>, real: &dyn Real) -> Status {
    let mut mode = 0;
    let eager =
        cuda::cuModuleGetLoadingMode(Out::of(&mut mode)) == SUCCESS && mode == LOADING_EAGER;
    let unload = || {
        if let Some(library) = library.read() {
            cuda::cuLibraryUnload(library);
        }
    };
    let context = current_context();
    let trial = needs.unknown && context != 0;
    let tried = Cell::new(false);
    let real = || {
        let status = real.call();
        if let (SUCCESS, true, Some(library)) = (status, trial, library.read()) {
            let mut module = 0;
            let load = || cuda::cuLibraryGetModule(Out::of(&mut module), library);
            tried.set(relaxed(load) == SUCCESS);
        }
        status
    };
    let now = if eager || trial {
        needs
    } else {
        Needs::default()
    };
    let used = || match call.process.current_device() {
        Ok(device) => device.driver_part.used(),
        Err(_) => 0,
    };
    let before = used();
    let status = managed::variables(call, needs.managed, library, 0, &|| {
        load(call, now, &real, Some(&unload))
    });
    let mut needs = Needs {
        managed: 0,
        ..needs
    };
    if tried.get() {
        // What it took here it takes in other contexts.
        needs.variables = needs.variables.max(used().saturating_sub(before));
        needs.unknown = false;
    }
    if let (SUCCESS, Some(library)) = (status, library.read()) {
        let handles = &call.process.handles;
        handles.insert(Kind::Library, library, Origin::default());
    }
    // Less is a matter of the driver's reserve, as code is.
    let is_large = needs.variables >= BLOCK || needs.uses_runtime();
    if let (SUCCESS, true, Some(library)) = (status, is_large, library.read()) {
        call.process.libraries.insert(library, needs);
        if tried.get() {
            let bytes = call.process.libraries.loaded(library, context);
            note_variables(call, library, context, bytes);
        }
    }
    status
}

/// `cuLibraryGetModule`: a lazily loaded library is loaded here, the first time in a context; its
/// variables are charged before that, the rest is measured after it.
pub fn library_module(call: Call, real: &dyn Real, module: Out<Opaque>, library: Opaque) -> Status {
    let status = lazy::library(call, real, library);
    note(call, Kind::Module, module, status, || Origin {
        owner: library,
        ..handles::here()
    });
    status
}

/// `cuKernelGetFunction`: as `cuLibraryGetModule`.
pub fn kernel_function(
    call: Call,
    real: &dyn Real,
    function: Out<Opaque>,
    kernel: Opaque,
) -> Status {
    let status = lazy::function(call, real, kernel);
    if let (SUCCESS, Some(made)) = (status, function.read())
        && !call.process.launched.is_loaded(made)
    {
        note(call, Kind::Code, function, status, || {
            let kernel = call.process.handles.origin(Kind::Code, kernel);
            Origin {
                owner: kernel.map_or(0, |kernel| kernel.owner),
                ..handles::here()
            }
        });
        call.process.launched.note_loaded(made);
    }
    status
}

/// `cuModuleGetFunction`: the code of a module is loaded lazily, perhaps here. It is measured after
/// the call, for each function once.
pub fn module_function(
    call: Call,
    real: &dyn Real,
    function: Out<Opaque>,
    module: Opaque,
) -> Status {
    let status = real.call();
    if let (SUCCESS, Some(made)) = (status, function.read())
        && !call.process.launched.is_loaded(made)
    {
        note(call, Kind::Code, function, status, || {
            let module_of = call.process.handles.origin(Kind::Module, module);
            Origin {
                owner: module,
                ..module_of.unwrap_or_else(handles::here)
            }
        });
        if let Ok(device) = call.process.current_device() {
            device.measure();
            call.process.launched.note_loaded(made);
        }
    }
    status
}

/// `cuLibraryGetKernel`: charges nothing; remembers that it is a kernel, which takes its memory in
/// each context by itself.
pub fn kernel(call: Call, real: &dyn Real, kernel: Out<Opaque>, library: Opaque) -> Status {
    let status = real.call();
    if let (SUCCESS, Some(kernel)) = (status, kernel.read()) {
        call.process.launched.note_kernel(kernel, library);
    }
    // A kernel belongs to no context.
    note(call, Kind::Code, kernel, status, || Origin {
        context: 0,
        owner: library,
    });
    status
}

/// `cuLibraryUnload`: as `cuModuleUnload`.
pub fn unload_library(call: Call, real: &dyn Real, library: Opaque) -> Status {
    let known = call.process.libraries.take(library);
    let status = unload(call, real, library);
    if let (true, Some(known)) = (status != SUCCESS, known) {
        call.process.libraries.put_back(library, known);
    }
    status
}

/// `cuModuleUnload`: given back after the call is what a measurement finds gone. Its handles are
/// forgotten before it: once the driver has freed them another thread may get them for other code,
/// which has to be paid for.
pub fn unload(call: Call, real: &dyn Real, code: Opaque) -> Status {
    call.process.launched.forget_library(code);
    let taken = call.process.handles.take_code(code);
    // With what is charged for its managed variables.
    let status = managed::free(call, code as DevicePtr, real).unwrap_or_else(|| real.call());
    if status != SUCCESS {
        call.process.handles.restore(taken);
    } else {
        // What other threads' launches have remembered meanwhile may be of this code.
        call.process.launched.forget_library(code);
        for device in call.process.devices() {
            device.forget_variables(code);
            device.measure();
        }
    }
    status
}
