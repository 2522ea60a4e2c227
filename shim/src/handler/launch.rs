//! Launches: the first one of a kernel may load its code and take local memory, the first one of a graph that of its kernels.

use std::cell::Cell;

use crate::abi::{Context, In, LaunchConfig, LaunchParams, Opaque, Out, SUCCESS, Status, Stream};
use crate::account::driver_share::RESERVE;
use crate::account::maps::Set;
use crate::capture::relaxed;
use crate::handler::lazy::Lazy;
use crate::handler::limits::{self, Use};
use crate::handler::linear::current_context;
use crate::handler::stream::capturing;
use crate::hook::{Call, Real};
use crate::table::cuda;

/// A process's very first launch may set up far more than its code: 92 MiB with PyTorch on an H100 (measured).
const FIRST: u64 = 128 << 20;

/// What is launched.
#[derive(Clone, Copy)]
pub enum What {
    /// A `CUfunction`, or a `CUkernel` in its place.
    Function(Opaque),
    Graph(Opaque),
}

/// Launches a kernel, or a graph apart from its memory nodes.
pub fn launch(call: Call, what: What, stream: Stream, real: &dyn Real) -> Status {
    let (What::Function(handle) | What::Graph(handle)) = what;
    let launched = &call.process.launched;
    if launched.contains(handle) {
        return real.call();
    }
    let device = match call.process.stream_device(stream) {
        Ok(device) => device,
        Err(failed) => return call.process.unavailable(failed, real),
    };
    let context = match context_of(call, stream) {
        Some(context) => context,
        None => return real.call(),
    };
    if launched.contains_in(handle, context) {
        return real.call();
    }
    if let Some(per_thread) = launched.need(handle, context) {
        let memory = device.kernels.context(context);
        let _stays = memory.alone.read();
        if device.kernels.growth(&memory, per_thread) == 0 {
            return real.call();
        }
    }
    // A launch that becomes a node of a graph loads code, but takes nothing for the kernel to run. "Loaded" is the odd number beside
    // the handle.
    let loads = capturing(call.symbol, stream);
    if loads && (launched.contains(handle | 1) || launched.contains_in(handle | 1, context)) {
        return real.call();
    }
    // Where the group has less than that left, most programs need less: they get what there is.
    let more = if launched.has_begun() {
        0
    } else {
        FIRST - RESERVE
    };
    let need = Cell::new(0);
    let per_thread = || {
        need.set(match what {
            What::Function(function) => limits::per_thread(call, device, function),
            What::Graph(exec) => call.process.execs.per_thread(exec & !1),
        });
        need.get()
    };
    let usage = match what {
        _ if loads => Use::Load,
        What::Function(_) => Use::Launch(&per_thread),
        What::Graph(_) => Use::Graph(&per_thread),
    };
    let lazy = Lazy::of(call, None, handle, context);
    let status = limits::run(call, device, context, usage, lazy.needs, more, real, None);
    if status == SUCCESS {
        lazy.loaded(call);
        if !loads {
            launched.begin();
        }
        if let (What::Function(function), false) = (what, loads) {
            call.process.learn_need(function, need.get());
        }
        let seen = if loads { handle | 1 } else { handle };
        match need.get() {
            large if device.kernels.is_large(large) => launched.insert_large(seen, context, large),
            _ => launched.insert_in(seen, context, call.process.context_count()),
        }
    }
    status
}

/// The context that holds what a launch in `stream` takes.
fn context_of(call: Call, stream: Stream) -> Option<Context> {
    // 0, 1 and 2 are the NULL, legacy and per-thread streams of the current context.
    let context = if stream <= 2 {
        current_context()
    } else {
        let mut context = 0;
        let asked = relaxed(|| cuda::cuStreamGetCtx(stream, Out::of(&mut context)));
        if asked != SUCCESS {
            return None;
        }
        call.process.greens.holder(context)
    };
    (context != 0).then_some(context)
}

/// `cuLaunchKernel` and its twin: before the first launch of a kernel in a context its local memory, its library and the driver's reserve are
/// paid ahead, and measured after it; later ones pass.
#[allow(clippy::too_many_arguments)]
pub fn kernel(
    call: Call,
    real: impl Fn(Opaque, u32, u32, u32, u32, u32, u32, u32, Stream, Opaque, Opaque) -> Status,
    function: Opaque,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: Stream,
    params: Opaque,
    extra: Opaque,
) -> Status {
    launch(call, What::Function(function), stream, &|| {
        real(
            function, gx, gy, gz, bx, by, bz, shared, stream, params, extra,
        )
    })
}

/// `cuLaunchKernelEx` and its twin: as `cuLaunchKernel`.
pub fn kernel_ex(
    call: Call,
    real: impl Fn(In<LaunchConfig>, Opaque, Opaque, Opaque) -> Status,
    config: In<LaunchConfig>,
    function: Opaque,
    params: Opaque,
    extra: Opaque,
) -> Status {
    let real = || real(config, function, params, extra);
    match config.read() {
        Some(LaunchConfig { stream, .. }) => launch(call, What::Function(function), stream, &real),
        None => real(),
    }
}

/// `cuLaunchCooperativeKernel` and its twin: as `cuLaunchKernel`.
#[allow(clippy::too_many_arguments)]
pub fn cooperative(
    call: Call,
    real: impl Fn(Opaque, u32, u32, u32, u32, u32, u32, u32, Stream, Opaque) -> Status,
    function: Opaque,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: Stream,
    params: Opaque,
) -> Status {
    launch(call, What::Function(function), stream, &|| {
        real(function, gx, gy, gz, bx, by, bz, shared, stream, params)
    })
}

/// `cuLaunchCooperativeKernelMultiDevice`: a launch on each of several devices, which all must be paid for before the call.
pub fn multi_device(
    call: Call,
    real: impl Fn(In<LaunchParams>, u32, u32) -> Status,
    list: In<LaunchParams>,
    count: u32,
    flags: u32,
) -> Status {
    fn each(call: Call, list: In<LaunchParams>, left: u32, real: &dyn Real) -> Status {
        let Some((left, params)) = left
            .checked_sub(1)
            .and_then(|left| Some((left, list.at(left as usize).read()?)))
        else {
            return real.call();
        };
        launch(
            call,
            What::Function(params.function),
            params.stream,
            &|| each(call, list, left, real),
        )
    }
    let real = || real(list, count, flags);
    // One launch per device: the driver refuses longer lists. An empty one may be anywhere.
    if i64::from(count) > i64::from(call.process.device_count()) {
        return real();
    }
    let launched = &call.process.launched;
    let is_known = |params: LaunchParams| launched.contains(params.function);
    if (0..count as usize).all(|at| list.at(at).read().is_some_and(is_known)) {
        return real();
    }
    let _alone = launched.on_many.lock();
    // Two on one device the driver refuses, and we would wait for ourselves.
    let mut contexts = Set::default();
    let mut is_new = |params: LaunchParams| contexts.insert(context_of(call, params.stream));
    if !(0..count as usize).all(|at| list.at(at).read().is_some_and(&mut is_new)) {
        return real();
    }
    each(call, list, count, &real)
}

/// `cuLaunch`: as `cuLaunchKernel`.
pub fn plain(call: Call, real: impl Fn(Opaque) -> Status, function: Opaque) -> Status {
    launch(call, What::Function(function), 0, &|| real(function))
}

/// `cuLaunchGrid`: as `cuLaunchKernel`.
pub fn grid(
    call: Call,
    real: impl Fn(Opaque, i32, i32) -> Status,
    function: Opaque,
    width: i32,
    height: i32,
) -> Status {
    launch(call, What::Function(function), 0, &|| {
        real(function, width, height)
    })
}

/// `cuLaunchGridAsync`: as `cuLaunchKernel`.
pub fn grid_async(
    call: Call,
    real: impl Fn(Opaque, i32, i32, Stream) -> Status,
    function: Opaque,
    width: i32,
    height: i32,
    stream: Stream,
) -> Status {
    launch(call, What::Function(function), stream, &|| {
        real(function, width, height, stream)
    })
}
