//! Code with its `__device__` and `__managed__` variables: modules and CUDA libraries.
//!
//! gpulimit charges the memory that a code image declares before the driver's call. It measures the
//! rest afterwards, and unloads the code if the group has no room for the rest.

use std::cell::Cell;

use crate::abi::{
    Context, DevicePtr, FileName, Image, LOADING_EAGER, Opaque, Out, SUCCESS, Status,
};
use crate::account::book::RESERVE;
use crate::account::contexts::current_context;
use crate::account::driver_part::Prepaid;
use crate::account::handles::{Kind, Origin};
use crate::account::known_images::KnownImages;
use crate::account::{BLOCK, round_up};
use crate::driver::Real;
use crate::driver::capture::relaxed;
use crate::driver::cuda;
use crate::handler::Call;
use crate::handler::aside::attempt;
use crate::handler::loading::{self, Use};
use crate::handler::{handles, lazy, managed};
use crate::image::{self, Needs};

fn needs(call: Call, image: Image) -> Needs {
    image::needs(
        image,
        &|| call.process.capabilities(),
        &KnownImages(call.process),
    )
}

fn needs_of_file(call: Call, path: FileName) -> Needs {
    let known = KnownImages(call.process);
    image::needs_of_file(path, &|| call.process.capabilities(), &known)
}

/// Runs `real`, the driver's function that loads code, and charges the memory in `needs` before it.
fn load(call: Call, needs: Needs, real: &dyn Real, unload: Option<&dyn Fn()>) -> Status {
    attempt(real, || {
        let device = call.process.current_device()?;
        let load = Use::Load;
        let context = current_context();
        loading::run(call, device, context, load, needs, 0, real, unload)
    })
}

/// Loads a module. `most`: the most bytes that its code takes; 0 if unknown.
fn load_module(
    call: Call,
    needs: Needs,
    most: u64,
    module: Out<Opaque>,
    real: &dyn Real,
) -> Status {
    let unload = || {
        if let Some(module) = module.read() {
            cuda::cuModuleUnload(module);
        }
    };
    let context = current_context();
    if context == 0 {
        return real.call();
    }
    let load = || load(call, needs, real, Some(&unload));
    let status = managed::variables(call, needs.managed, module, context, &load);
    remember_handle(call, Kind::Module, module, status, handles::current_origin);
    if let (SUCCESS, Some(module)) = (status, module.read()) {
        note_variables(call, module, context, needs.least, most);
    }
    status
}

/// Remembers the new `handle` for later queries of the driver. Does nothing where the driver's call
/// has failed.
fn remember_handle(
    call: Call,
    kind: Kind,
    handle: Out<Opaque>,
    status: Status,
    origin: impl Fn() -> Origin,
) {
    if let (SUCCESS, Some(handle)) = (status, handle.read())
        && !call.process.handles.knows(kind, handle)
    {
        call.process.handles.adopt(kind, handle, origin());
    }
}

/// Remembers that `code`, just loaded in `context`, has at least `bytes` bytes of variables, and
/// takes `most` bytes itself at most.
fn note_variables(call: Call, code: Opaque, context: Context, bytes: u64, most: u64) {
    if let Ok(device) = call.process.current_device() {
        device.note_variables(code, context, bytes, most);
    }
}

/// `cuModuleLoad`: Charged like `cuModuleLoadData`; the image is read from the file.
pub fn module_file(call: Call, real: &dyn Real, module: Out<Opaque>, path: FileName) -> Status {
    load_module(call, needs_of_file(call, path), 0, module, real)
}

/// `cuModuleLoadData`, `cuModuleLoadDataEx`, `cuModuleLoadFatBinary`: Charges the declared memory
/// before the call, and measures afterwards. Unloads a module that does not fit.
pub fn module(call: Call, real: &dyn Real, module: Out<Opaque>, image: Image) -> Status {
    load_module(call, needs(call, image), image::code(image), module, real)
}

/// `cuLibraryLoadData`: With eager loading, charged like `cuModuleLoadData`. With lazy loading,
/// charged before the call that loads the code.
pub fn library(call: Call, real: &dyn Real, library: Out<Opaque>, code: Image) -> Status {
    open_library(call, needs(call, code), library, real)
}

/// `cuLibraryLoadFromFile`: Charged like `cuLibraryLoadData`; the image is read from the file.
pub fn library_file(call: Call, real: &dyn Real, library: Out<Opaque>, path: FileName) -> Status {
    open_library(call, needs_of_file(call, path), library, real)
}

/// Opens a CUDA library. Unless loading is eager, only managed variables take memory.
///
/// If the image is unreadable, loads and measures the library now, because only this call can be
/// undone.
fn open_library(call: Call, needs: Needs, library: Out<Opaque>, real: &dyn Real) -> Status {
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
        // In other contexts the CUDA library takes as much memory as it took in this context.
        needs.variables = needs.variables.max(used().saturating_sub(before));
        needs.unknown = false;
    }
    if let (SUCCESS, Some(library)) = (status, library.read()) {
        let handles = &call.process.handles;
        handles.insert(Kind::Library, library, Origin::default());
    }
    // Records only CUDA libraries with large memory needs, because the driver's reserve covers
    // smaller needs.
    let is_large = needs.variables >= BLOCK || needs.uses_runtime();
    if let (SUCCESS, true, Some(library)) = (status, is_large, library.read()) {
        call.process.libraries.insert(library, needs);
        if tried.get() {
            let bytes = call.process.libraries.loaded(library, context);
            note_variables(call, library, context, bytes, 0);
        }
    }
    status
}

/// `cuLibraryGetModule`: The first use in a context loads a CUDA library. Charges its variables
/// before that call, and measures afterwards.
pub fn library_module(call: Call, real: &dyn Real, module: Out<Opaque>, library: Opaque) -> Status {
    let status = lazy::library(call, real, library);
    remember_handle(call, Kind::Module, module, status, || Origin {
        owner: library,
        ..handles::current_origin()
    });
    status
}

/// `cuKernelGetFunction`: Charged like `cuLibraryGetModule`.
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
        remember_handle(call, Kind::Code, function, status, || {
            let kernel = call.process.handles.origin(Kind::Code, kernel);
            Origin {
                owner: kernel.map_or(0, |kernel| kernel.owner),
                ..handles::current_origin()
            }
        });
        call.process.launched.note_loaded(made);
    }
    status
}

/// `cuModuleGetFunction`: The call can load the code of a lazily loaded module. Small code stays
/// charged by an estimate, and other code is measured.
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
        remember_handle(call, Kind::Code, function, status, || {
            let module_of = call.process.handles.origin(Kind::Module, module);
            Origin {
                owner: module,
                ..module_of.unwrap_or_else(handles::current_origin)
            }
        });
        if let Ok(device) = call.process.current_device() {
            let code = call.process.variables.code_of(module, current_context());
            let deferred = code.is_some_and(|most| {
                // Functions whose sum is half as large fit into these bytes and one block more. The
                // ledger counts pages.
                let bytes = round_up(most.saturating_mul(2), 4096);
                Prepaid::lend(device, bytes) && Prepaid::lent(device, bytes).defer().is_ok()
            });
            if !deferred && device.measure_fails() {
                device.assume(RESERVE as i64);
            }
            call.process.launched.note_loaded(made);
        }
    }
    status
}

/// `cuLibraryGetKernel`: Charges nothing. Remembers the kernel, whose code takes memory in each
/// context separately.
pub fn kernel(call: Call, real: &dyn Real, kernel: Out<Opaque>, library: Opaque) -> Status {
    let status = real.call();
    if let (SUCCESS, Some(kernel)) = (status, kernel.read()) {
        call.process.launched.note_kernel(kernel, library);
    }
    // A `CUkernel` belongs to its CUDA library, not to a context.
    remember_handle(call, Kind::Code, kernel, status, || Origin {
        context: 0,
        owner: library,
    });
    status
}

/// `cuLibraryUnload`: Uncharged like `cuModuleUnload`.
pub fn unload_library(call: Call, real: &dyn Real, library: Opaque) -> Status {
    let known = call.process.libraries.take(library);
    let status = unload(call, real, library);
    if let (true, Some(known)) = (status != SUCCESS, known) {
        call.process.libraries.put_back(library, known);
    }
    status
}

/// `cuModuleUnload`: Uncharges the freed memory after the call. Forgets the functions' handles
/// before, because the driver can reuse them.
pub fn unload(call: Call, real: &dyn Real, code: Opaque) -> Status {
    let taken = call.process.handles.take_code(code);
    call.process.forget_code();
    // `managed::free` also uncharges the managed variables of the code.
    let status = managed::free(call, code as DevicePtr, real).unwrap_or_else(|| real.call());
    if status != SUCCESS {
        call.process.handles.restore(taken);
    } else {
        // During the driver's call, other threads may have launched functions of this code. Forgets
        // the records of these launches.
        call.process.forget_code();
        for device in call.process.devices() {
            device.forget_variables(code);
            device.measure();
        }
    }
    status
}
