//! Code that is loaded where it is first needed: of a module each function by itself, and of a
//! library, with its variables, all of it in each context by itself (measured, H100, 580.159.04).
//!
//! Many calls may be the first: whatever has to know the code, as sums of what fits onto a
//! multiprocessor, or keeps it, as nodes of graphs.

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

/// Charges ahead and measures what `real` loads for `handle` (a library, or else a function or
/// kernel) in `context` (`None`: the current one), unless it is there: programs ask for the same
/// kernel at every call.
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
        // Without a context nothing is loaded.
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
            if library.is_none() && !call.process.handles.knows(Kind::Code, handle) {
                let handles = &call.process.handles;
                handles.insert(Kind::Code, handle, Origin::default());
            }
            lazy.loaded(call);
            // A function is taken for a kernel as well, which has code in every context.
            launched.note_kernel(loaded, 0);
            launched.insert_in(loaded, holder, call.process.context_count());
        }
        Ok(status)
    })
}

/// What loading takes in a context at most, as [`loading::run`] pays for it, bytes.
fn most(call: Call, library: Option<Opaque>, handle: Opaque, context: Context) -> u64 {
    let needs = Lazy::of(call, library, handle, context).needs;
    let runtime = |device: &'static Device| device.kernels.runtime(needs);
    let runtime = call.process.devices().map(runtime).max().unwrap_or(0);
    RESERVE
        .saturating_add(round_up(needs.variables, BLOCK))
        .saturating_add(runtime)
}

/// `cuKernelSetAttribute`, `cuKernelSetCacheConfig`: as `cuLibraryGetModule`, in all contexts of the
/// device, whichever is current (measured, H100, 580.159.04).
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
                handles.insert(Kind::Code, kernel, Origin::default());
            }
            return Ok(status);
        }
        let current = current_context();
        // In the others by ourselves, so that each is paid for in turn.
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
            // Of anything else that is wrong the program's call says it.
            if load(call, kernel, None, Some(context), &load_there) == CUDA_ERROR_OUT_OF_MEMORY {
                return Err(Aside::Refused);
            }
        }
        Ok(load(call, kernel, None, None, real))
    })
}

/// A library that a call may load.
pub struct Lazy {
    pub library: Option<Opaque>,
    /// The kernel to be asked for it when the driver has accepted it; 0 for none.
    kernel: Opaque,
    context: Context,
    /// What its image says, as far as it is not there yet.
    pub needs: Needs,
}

impl Lazy {
    /// Of nothing.
    pub fn none(context: Context) -> Lazy {
        Lazy {
            library: None,
            kernel: 0,
            context,
            needs: Needs::default(),
        }
    }

    /// Of `library`, or else of the one that `kernel` belongs to, in `context`.
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
            // It may be of any.
            lazy.kernel = kernel;
        } else if lazy.library.is_none() {
            match library_of(kernel) {
                Ok(library) => lazy.library = Some(library),
                // A driver that does not tell.
                Err(CUDA_ERROR_NOT_FOUND) => {}
                // A function of a module, which has been loaded.
                Err(_) => return lazy,
            }
        }
        lazy.needs = call.process.libraries.pending(lazy.library, lazy.context);
        lazy
    }

    /// Whether there is nothing that is not there.
    pub fn is_empty(&self) -> bool {
        self.needs == Needs::default()
    }

    /// The call has loaded it.
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
                device.note_variables(library, self.context, bytes);
            }
        }
    }
}

/// The library of a kernel that is known.
fn library_of(kernel: Opaque) -> Result<Opaque, Status> {
    let mut library = 0;
    match cuda::cuKernelGetLibrary(Out::of(&mut library), kernel) {
        SUCCESS => Ok(library),
        failed => Err(failed),
    }
}

/// `cuFuncLoad`, `cuFuncSetAttribute`, `cuFuncSetCacheConfig`, `cuFuncSetSharedMemConfig`,
/// `cuKernelGetParamInfo`, `cuKernelGetParamCount` and the `cuOccupancy` functions: as
/// `cuLibraryGetModule`, of the code of one function; of loaded code they cost one look.
pub fn function(call: Call, real: &dyn Real, function: Opaque) -> Status {
    load(call, function, None, None, real)
}

/// `cuLibraryGetGlobal`: as `cuLibraryGetModule`.
pub fn library(call: Call, real: &dyn Real, library: Opaque) -> Status {
    load(call, library, Some(library), None, real)
}
