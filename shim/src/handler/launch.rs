//! Kernel and graph launches. The first launch of a kernel or graph can load code and take local
//! memory.

use std::cell::Cell;
use std::time::Instant;

use crate::abi::{
    CUDA_ERROR_OUT_OF_MEMORY, Context, In, LaunchConfig, LaunchParams, Opaque, Out, SUCCESS,
    Status, Stream,
};
use crate::account::book::RESERVE;
use crate::account::contexts::current_context;
use crate::account::device::Device;
use crate::account::driver_part::Prepaid;
use crate::account::handles::{Kind, Origin};
use crate::account::launched::loaded;
use crate::account::locks::{Place, hold};
use crate::account::maps::Set;
use crate::account::pools::patience;
use crate::driver::Real;
use crate::driver::capture::relaxed;
use crate::driver::cuda;
use crate::handler::Call;
use crate::handler::aside::{Aside, attempt};
use crate::handler::lazy::Lazy;
use crate::handler::loading::{self, Shortage, Use};
use crate::handler::measured;
use crate::handler::payment::{ROUNDS, insist};
use crate::handler::stream::{self, capturing, is_capturing};

/// The bytes charged before the first launch of a process. PyTorch's first launch takes 92 MiB
/// (measured).
const FIRST: u64 = 128 << 20;

/// The function or graph that a driver call launches.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// A single function: a `CUfunction`, or a `CUkernel`, which launches accept as well.
    Function(Opaque),
    /// A `CUfunction` or `CUkernel` that is one of several that the same driver call launches.
    OneOfSeveral(Opaque, &'a Shortage),
    Graph(Opaque),
}

/// Launches a kernel or a graph, and charges its memory, except the memory of a graph's memory
/// nodes.
pub fn launch(call: Call, what: Target<'_>, stream: Stream, real: &dyn Real) -> Status {
    let (Target::Function(handle) | Target::OneOfSeveral(handle, _) | Target::Graph(handle)) = what;
    let launched = &call.process.launched;
    if launched.contains(handle) {
        return real.call();
    }
    attempt(real, || {
        let known = is_known(call, what, stream).then(|| call.process.stream_device(stream));
        let Some(device) = known.flatten() else {
            return Ok(launch_unknown(call, what, stream, real));
        };
        let device = device?;
        let context = context_of(call, stream).ok_or(Aside::NoDevice)?;
        if launched.contains_in(handle, context) {
            return Ok(real.call());
        }
        if let Some(per_thread) = launched.need(handle, context) {
            let memory = device.kernels.context(context);
            let _stays = hold(Place::Alone, || memory.alone.read());
            if device.kernels.growth(&memory, per_thread) == 0 {
                return Ok(real.call());
            }
        }
        // A captured launch becomes a graph node: the driver loads the code, but takes no local
        // memory.
        let loads = capturing(call.symbol, stream);
        if loads
            && (launched.contains(loaded(handle)) || launched.contains_in(loaded(handle), context))
        {
            let status = real.call();
            ask_for_graph(call, what, status);
            return Ok(status);
        }
        // If less than `FIRST` bytes are left, charges what is left: most programs need less than
        // `FIRST`.
        let more = if launched.has_begun() {
            0
        } else {
            FIRST - RESERVE
        };
        let need = Cell::new(0);
        let per_thread = || {
            need.set(match what {
                Target::Function(function) | Target::OneOfSeveral(function, _) => {
                    loading::per_thread(call, device, function)
                }
                Target::Graph(exec) => call.process.execs.per_thread(exec & !1),
            });
            need.get()
        };
        let usage = match what {
            _ if loads => Use::Load,
            Target::Function(_) => Use::Launch(&per_thread),
            Target::OneOfSeveral(_, shortage) => Use::OneOfSeveral(&per_thread, shortage),
            Target::Graph(_) => Use::Graph(&per_thread),
        };
        let lazy = match what {
            Target::Function(function) | Target::OneOfSeveral(function, _) => {
                Lazy::of(call, None, function, context)
            }
            // The driver loaded the CUDA libraries of the graph when it made the graph executable.
            Target::Graph(_) => Lazy::none(context),
        };
        let status = loading::run(call, device, context, usage, lazy.needs, more, real, None)?;
        if status == SUCCESS {
            lazy.loaded(call);
            match loads {
                true => ask_for_graph(call, what, status),
                false => launched.begin(),
            }
            if let (Target::Function(function) | Target::OneOfSeveral(function, _), false) =
                (what, loads)
            {
                call.process.learn_need(function, need.get());
            }
            let seen = if loads { loaded(handle) } else { handle };
            remember(call, device, context, seen, need.get());
        }
        Ok(status)
    })
}

/// Learns the need of a kernel whose captured launch has become a node of a graph.
fn ask_for_graph(call: Call, what: Target<'_>, status: Status) {
    if let (SUCCESS, Target::Function(function) | Target::OneOfSeveral(function, _)) =
        (status, what)
    {
        loading::ask_for_graph(call, function);
    }
}

/// Remembers a launch of `seen` in `context`. Its kernels need `per_thread` bytes of local memory
/// per thread.
fn remember(call: Call, device: &Device, context: Context, seen: Opaque, per_thread: u64) {
    let launched = &call.process.launched;
    match per_thread {
        large if device.kernels.is_large(large) => launched.insert_large(seen, context, large),
        _ => launched.insert_in(seen, context, call.process.context_count()),
    }
}

/// Returns whether gpulimit knows the launched handle and the stream. The driver can crash on
/// queries about invalid handles.
fn is_known(call: Call, what: Target<'_>, stream: Stream) -> bool {
    let handles = &call.process.handles;
    let code = match what {
        Target::Function(function) | Target::OneOfSeveral(function, _) => {
            handles.knows(Kind::Code, function)
        }
        Target::Graph(exec) => handles.knows(Kind::Exec, exec & !1),
    };
    code && stream::is_known(stream)
}

/// Launches with an unknown handle or stream. Asks the driver about handle and stream only after
/// the launch.
#[cold]
fn launch_unknown(call: Call, what: Target<'_>, stream: Stream, real: &dyn Real) -> Status {
    let status = measured::unknown(call, measured::ALL, real, None);
    if status != SUCCESS || is_capturing(call.symbol, stream) {
        ask_for_graph(call, what, status);
        return status;
    }
    // gpulimit never learns the needs of an unknown graph, so each launch of the graph is handled
    // here.
    if let Target::Function(function) | Target::OneOfSeveral(function, _) = what
        && let Some(context) = context_of_accepted(call, stream)
        && let Some(device) = call.process.context_device(context)
    {
        let handles = &call.process.handles;
        handles.adopt(Kind::Code, function, Origin::default());
        Lazy::of(call, None, function, context).loaded(call);
        let need = loading::per_thread(call, device, function);
        loading::has_grown(device, context, need);
        call.process.launched.begin();
        call.process.learn_need(function, need);
        remember(call, device, context, function, need);
    }
    status
}

/// Returns the context whose memory a launch in `stream` takes; `None` without a current context or
/// for an unknown stream.
fn context_of(call: Call, stream: Stream) -> Option<Context> {
    let context = if stream <= 2 {
        // The NULL, legacy and per-thread streams (handles 0, 1 and 2) belong to the current
        // context.
        current_context()
    } else {
        let origin = call.process.handles.origin(Kind::Stream, stream)?;
        call.process.greens.holder(origin.context)
    };
    (context != 0).then_some(context)
}

/// Like [`context_of`], returns the context whose memory a launch in `stream` takes. The driver has
/// just accepted the stream.
fn context_of_accepted(call: Call, stream: Stream) -> Option<Context> {
    if stream::is_known(stream) {
        return context_of(call, stream);
    }
    let mut context = 0;
    let asked = relaxed(|| cuda::cuStreamGetCtx(stream, Out::of(&mut context)));
    let holder = call.process.greens.holder(context);
    (asked == SUCCESS && holder != 0).then_some(holder)
}

/// `cuLaunchKernel`, `cuLaunchCooperativeKernel`, `cuLaunchGridAsync`: Charges memory before a
/// kernel's first launch in a context, and measures afterwards. Later launches go straight to the
/// driver.
pub fn kernel(call: Call, real: &dyn Real, function: Opaque, stream: Stream) -> Status {
    launch(call, Target::Function(function), stream, real)
}

/// `cuLaunchKernelEx`: Charged like `cuLaunchKernel`.
pub fn kernel_ex(
    call: Call,
    real: &dyn Real,
    config: In<LaunchConfig>,
    function: Opaque,
) -> Status {
    match config.read() {
        Some(config) => kernel(call, real, function, config.stream),
        None => real.call(),
    }
}

/// `cuLaunchCooperativeKernelMultiDevice`: The call launches one kernel on each of several devices.
/// Charges all these launches like `cuLaunchKernel`, before the call.
pub fn multi_device(call: Call, real: &dyn Real, list: In<LaunchParams>, count: u32) -> Status {
    fn each(
        call: Call,
        list: In<LaunchParams>,
        left: u32,
        shortage: &Shortage,
        real: &dyn Real,
    ) -> Status {
        let Some((left, params)) = left
            .checked_sub(1)
            .and_then(|left| Some((left, list.at(left as usize).read()?)))
        else {
            return real.call();
        };
        launch(
            call,
            Target::OneOfSeveral(params.function, shortage),
            params.stream,
            &|| each(call, list, left, shortage, real),
        )
    }
    // The driver refuses lists with more launches than devices, so gpulimit does not read such a
    // list.
    if i64::from(count) > i64::from(call.process.device_count()) {
        return real.call();
    }
    let launched = &call.process.launched;
    let is_known = |params: LaunchParams| launched.contains(params.function);
    if (0..count as usize).all(|at| list.at(at).read().is_some_and(is_known)) {
        return real.call();
    }
    // The driver refuses two launches on one device. For the second, gpulimit would wait for this
    // thread's own lock.
    let mut contexts = Set::default();
    let mut is_new = |params: LaunchParams| contexts.insert(context_of(call, params.stream));
    if !(0..count as usize).all(|at| list.at(at).read().is_some_and(&mut is_new)) {
        return real.call();
    }
    for _ in 0..ROUNDS {
        let shortage = Shortage::default();
        let status = {
            let _alone = hold(Place::OnMany, || launched.on_many.lock());
            each(call, list, count, &shortage, real)
        };
        let Some((device, due)) = shortage.get() else {
            return status;
        };
        // This thread can wait, because it holds no lock here. Another thread can still take the
        // room first.
        let mut paid = Prepaid::none(device);
        if device.driver_part.await_others(Instant::now() + patience()) {
            continue;
        }
        if insist(call, &mut paid, due, &|_| true).is_err() {
            break;
        }
    }
    CUDA_ERROR_OUT_OF_MEMORY
}

/// `cuLaunch`, `cuLaunchGrid`: Charged like `cuLaunchKernel`.
pub fn plain(call: Call, real: &dyn Real, function: Opaque) -> Status {
    kernel(call, real, function, 0)
}
