//! Code that the driver loads at its first use: functions of modules one by one, CUDA libraries as
//! a whole.
//!
//! The first use can be one of many driver functions, such as an occupancy query or a new graph
//! node.

use crate::abi::{
    CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY, Context, Device as Ordinal, Opaque, Out,
    SUCCESS, Status,
};
use crate::account::book::RESERVE;
use crate::account::contexts::current_context;
use crate::account::device::Device;
use crate::account::handles::{Kind, Origin};
use crate::account::launched::loaded;
use crate::account::{BLOCK, round_up};
use crate::driver::Real;
use crate::driver::capture::relaxed;
use crate::driver::cuda;
use crate::handler::Call;
use crate::handler::aside::{Aside, attempt};
use crate::handler::loading::{self, Use};
use crate::handler::measured;
use crate::image::Needs;

/// Runs `real`, which uses the CUDA library, function or kernel `handle` in `context` or in the
/// current context.
///
/// The first use loads the code: charges the memory before the call, and measures afterwards.
pub fn load(
    call: Call,
    handle: Opaque,
    library: Option<Opaque>,
    context: Option<Context>,
    real: &dyn Real,
) -> Status {
    if call.process.launched.is_loaded(handle) {
        return real.call();
    }
    attempt(real, || {
        let (loaded, launched) = (loaded(handle), &call.process.launched);
        let holder = match context {
            Some(context) => call.process.greens.holder(context),
            None => current_context(),
        };
        // The driver loads code only into a context, so a call without a context loads nothing.
        if holder == 0
            || launched.contains_in(loaded, holder)
            || launched.contains_in(handle, holder)
        {
            return Ok(real.call());
        }
        let device = match context {
            Some(context) => match call.process.context_device(context) {
                Some(device) => device,
                None => {
                    let most = |_: &Device| most(call, library, handle, holder);
                    return Ok(measured::unknown(call, &most, real, None));
                }
            },
            None => call.process.current_device()?,
        };
        let lazy = Lazy::of(call, library, handle, holder);
        let loads = Use::Load;
        let status = loading::run(call, device, holder, loads, lazy.needs, 0, real, None)?;
        if status == SUCCESS {
            if library.is_none() {
                let handles = &call.process.handles;
                handles.adopt(Kind::Code, handle, Origin::default());
            }
            lazy.loaded(call);
            // Records the load for this context only, because the code of a kernel is loaded in
            // each context separately.
            launched.note_kernel(loaded, 0);
            launched.insert_in(loaded, holder, call.process.context_count());
        }
        Ok(status)
    })
}

/// Returns the most bytes that loading `handle` takes in `context`: the bytes that [`loading::run`]
/// would charge for it.
fn most(call: Call, library: Option<Opaque>, handle: Opaque, context: Context) -> u64 {
    let needs = Lazy::of(call, library, handle, context).needs;
    let runtime = |device: &'static Device| device.kernels.runtime(needs);
    let runtime = call.process.devices().map(runtime).max().unwrap_or(0);
    RESERVE
        .saturating_add(round_up(needs.variables, BLOCK))
        .saturating_add(runtime)
}

/// `cuKernelSetAttribute`, `cuKernelSetCacheConfig`: Charged like `cuLibraryGetModule`, but in all
/// contexts of the device.
pub fn everywhere(call: Call, real: &dyn Real, kernel: Opaque, ordinal: Ordinal) -> Status {
    if call.process.launched.is_loaded(kernel) {
        return real.call();
    }
    attempt(real, || {
        let device = call.process.device(ordinal)?;
        if !call.process.handles.knows(Kind::Code, kernel) {
            let most = |_: &Device| {
                let contexts = call.process.context_count() as u64;
                most(call, None, kernel, 0).saturating_mul(contexts)
            };
            let status = measured::unknown(call, &most, real, None);
            if status == SUCCESS {
                let handles = &call.process.handles;
                handles.adopt(Kind::Code, kernel, Origin::default());
            }
            return Ok(status);
        }
        let current = current_context();
        // Loads the kernel in the other contexts one by one, so that each load is charged before.
        for context in device.contexts.all() {
            if context == current {
                continue;
            }
            let load_there = || {
                relaxed(|| {
                    let (mut function, mut popped) = (0, 0);
                    match cuda::cuCtxPushCurrent_v2(context) {
                        SUCCESS => {}
                        failed => return failed,
                    }
                    let status = cuda::cuKernelGetFunction(Out::of(&mut function), kernel);
                    cuda::cuCtxPopCurrent_v2(Out::of(&mut popped));
                    status
                })
            };
            // Other errors are left to the program's own call, which meets and reports the same
            // error.
            if load(call, kernel, None, Some(context), &load_there) == CUDA_ERROR_OUT_OF_MEMORY {
                return Err(Aside::Refused);
            }
        }
        Ok(load(call, kernel, None, None, real))
    })
}

/// A lazily loaded CUDA library that a driver call can load.
pub struct Lazy {
    pub library: Option<Opaque>,
    /// A kernel of an unknown CUDA library, or 0. gpulimit asks for the library once the driver
    /// accepts the kernel.
    kernel: Opaque,
    context: Context,
    /// The memory that the CUDA library's image declares; 0 if the library is already loaded.
    pub needs: Needs,
}

impl Lazy {
    /// Returns the `Lazy` of a driver call that loads no CUDA library.
    pub fn none(context: Context) -> Lazy {
        Lazy {
            library: None,
            kernel: 0,
            context,
            needs: Needs::default(),
        }
    }

    /// Returns the `Lazy` of a call that loads `library` in `context`. `None` stands for the CUDA
    /// library of `kernel`.
    pub fn of(call: Call, library: Option<Opaque>, kernel: Opaque, context: Context) -> Lazy {
        let mut lazy = Lazy {
            library,
            ..Lazy::none(context)
        };
        if call.process.libraries.is_empty() {
            return lazy;
        }
        if library.is_none() {
            lazy.library = call.process.launched.library_of(kernel);
        }
        if lazy.library.is_none() && !call.process.handles.knows(Kind::Code, kernel) {
            // gpulimit does not know this kernel, which may belong to any CUDA library.
            lazy.kernel = kernel;
        } else if lazy.library.is_none() {
            match library_of(kernel) {
                Ok(library) => lazy.library = Some(library),
                // This version of the driver cannot tell to which CUDA library a kernel belongs.
                Err(CUDA_ERROR_NOT_FOUND) => {}
                // The handle is a function of a module, which was charged when the module was
                // loaded.
                Err(_) => return lazy,
            }
        }
        lazy.needs = call.process.libraries.pending(lazy.library, lazy.context);
        lazy
    }

    /// Returns whether the driver call has no CUDA library to load.
    pub fn is_empty(&self) -> bool {
        self.needs == Needs::default()
    }

    /// Remembers that the driver call has loaded the CUDA library.
    pub fn loaded(&self, call: Call) {
        if self.is_empty() {
            return;
        }
        let library = match self.kernel {
            0 => self.library,
            kernel => library_of(kernel).ok(),
        };
        if let Some(library) = library {
            let bytes = call.process.libraries.loaded(library, self.context);
            let mut devices = call.process.devices();
            if let Some(device) = devices.find(|device| device.contexts.has(self.context)) {
                device.note_variables(library, self.context, bytes, 0);
            }
        }
    }
}

/// Asks the driver for the CUDA library of `kernel`, a handle that is known to be valid.
fn library_of(kernel: Opaque) -> Result<Opaque, Status> {
    let mut library = 0;
    match cuda::cuKernelGetLibrary(Out::of(&mut library), kernel) {
        SUCCESS => Ok(library),
        failed => Err(failed),
    }
}

/// `cuFuncLoad`, `cuFuncSetAttribute`, `cuFuncSetCacheConfig`, `cuFuncSetSharedMemConfig`,
/// `cuKernelGetParamInfo`, `cuKernelGetParamCount`, `cuOccupancy` functions: Charged like
/// `cuLibraryGetModule`. For loaded code, the hook costs one table lookup.
pub fn function(call: Call, real: &dyn Real, function: Opaque) -> Status {
    load(call, function, None, None, real)
}

/// `cuLibraryGetGlobal`: Charged like `cuLibraryGetModule`.
pub fn library(call: Call, real: &dyn Real, library: Opaque) -> Status {
    load(call, library, Some(library), None, real)
}
