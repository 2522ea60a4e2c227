//! The driver functions that change the kernels of executable graphs. Some programs call them
//! before every launch.
//!
//! New kernels can need more local memory, which is charged before the change. If the driver takes
//! it later, gpulimit charges it before the launch.

use std::cell::{Cell, RefCell};

use gpulimit_base::order;

use crate::abi::{
    Graph, GraphExec, In, KernelNodeParams, KernelNodeParamsV1, NODE_TYPE_GRAPH, NODE_TYPE_KERNEL,
    NodeParams, Opaque, SUCCESS, Status,
};
use crate::account::contexts::current_context;
use crate::account::graphs::nodes::each_kernel;
use crate::account::handles::{Kind, Origin};
use crate::account::locks::{Place, hold};
use crate::driver::Real;
use crate::handler::Call;
use crate::handler::aside::{Aside, attempt};
use crate::handler::lazy::Lazy;
use crate::handler::loading::{self, Use};
use crate::handler::measured;
use crate::image::Needs;

/// The source of the kernels that a call puts into an executable graph.
#[derive(Clone, Copy)]
enum Source {
    /// The call copies all kernels of this graph into the executable graph.
    Graph(Graph),
    /// The call sets this one kernel; `None` for a node that is not a kernel node.
    Kernel(Option<Opaque>),
}

impl Source {
    /// Calls `show` for each kernel that the call puts into the executable graph.
    fn each(self, call: Call, show: &mut dyn FnMut(Opaque)) {
        match self {
            Source::Graph(graph) => each_kernel(graph, &call.process.bodies, show),
            Source::Kernel(kernel) => kernel.into_iter().for_each(show),
        }
    }
}

/// Runs `real`, the driver's function that puts the kernels of `source` into `exec`.
fn change(call: Call, exec: GraphExec, source: Source, real: &dyn Real) -> Status {
    let handles = &call.process.handles;
    if let Source::Graph(graph) = source
        && !handles.knows(Kind::Graph, graph)
    {
        return change_unknown(call, exec, source, real);
    }
    let launched = &call.process.launched;
    let bound = match source {
        Source::Graph(_) => launched.largest_need(),
        Source::Kernel(_) => None,
    };
    // Most programs get here with the same graphs before each launch, so no node is looked at: the
    // executable graph counts with the largest need of all kernels that are in graphs.
    if let Some(largest) = bound
        && let Some(status) = match largest {
            0 => Some(real.call()),
            _ => change_within(call, exec, largest, real),
        }
    {
        return status;
    }
    let (mut known, mut unseen) = (0, Vec::new());
    // The driver names a kernel of a library by a function that the program never got.
    source.each(call, &mut |kernel| match launched.need_of(kernel) {
        None if bound.is_none() || handles.knows(Kind::Code, kernel) => unseen.push(kernel),
        bytes => known = known.max(bytes.or(bound).unwrap_or(0)),
    });
    if unseen.is_empty() {
        if known == 0 {
            return real.call();
        }
        if let Some(status) = change_within(call, exec, known, real) {
            return status;
        }
    } else if !unseen.iter().all(|code| handles.knows(Kind::Code, *code)) {
        return change_unknown(call, exec, source, real);
    }
    let device = match call.process.current_device() {
        Ok(device) => device,
        Err(failed) => return Aside::from(failed).answer(real),
    };
    let context = current_context();
    let most = Cell::new(known);
    order::sort(&mut unseen);
    unseen.dedup();
    // The driver's call also loads the lazily loaded CUDA libraries of the kernels, each library
    // once.
    let mut declared = Needs::default();
    let mut lazies: Vec<Lazy> = Vec::new();
    for kernel in &unseen {
        let lazy = Lazy::of(call, None, *kernel, context);
        if !lazy.is_empty() && !lazies.iter().any(|known| known.library == lazy.library) {
            declared = declared.and(lazy.needs);
            lazies.push(lazy);
        }
    }
    let asked = RefCell::new(Vec::new());
    let need = || {
        for &kernel in &unseen {
            let bytes = loading::per_thread(call, device, kernel);
            most.set(most.get().max(bytes));
            asked.borrow_mut().push((kernel, bytes));
        }
        most.get()
    };
    // The driver's call can also load the code of kernels that gpulimit has not seen before.
    let usage = Use::Graph(&need);
    let load = || loading::run(call, device, context, usage, declared, 0, real, None);
    let status = attempt(real, load);
    if status == SUCCESS {
        lazies.iter().for_each(|lazy| lazy.loaded(call));
        for (kernel, bytes) in asked.into_inner() {
            call.process.learn_need(kernel, bytes);
        }
    }
    remember(call, exec, most.get(), status)
}

/// Does the work of [`change`] for kernels that have been launched or asked for, and need at most
/// `per_thread` bytes of local memory per thread. Returns `None` if the context has less.
fn change_within(call: Call, exec: GraphExec, per_thread: u64, real: &dyn Real) -> Option<Status> {
    let device = call.process.current_device().ok()?;
    let memory = device.kernels.context(current_context());
    let _stays = hold(Place::Alone, || memory.alone.read());
    let fits = device.kernels.growth(&memory, per_thread) == 0;
    fits.then(|| remember(call, exec, per_thread, real.call()))
}

/// Does the work of [`change`] for an unknown handle. Asks the driver about the handle only after
/// the call.
#[cold]
fn change_unknown(call: Call, exec: GraphExec, source: Source, real: &dyn Real) -> Status {
    let status = measured::unknown(call, measured::ALL, real, None);
    let Ok(device) = call.process.current_device() else {
        return status;
    };
    if status != SUCCESS {
        return status;
    }
    let handles = &call.process.handles;
    if let Source::Kernel(Some(kernel)) = source {
        handles.adopt(Kind::Code, kernel, Origin::default());
    }
    let (mut most, mut all_known) = (0, true);
    source.each(
        call,
        &mut |kernel| match handles.knows(Kind::Code, kernel) {
            true => most = most.max(loading::per_thread(call, device, kernel)),
            false => all_known = false,
        },
    );
    loading::has_grown(device, current_context(), most);
    if !all_known {
        // Some kernels of the graph are unknown, so gpulimit does not know what a launch needs.
        handles.take(Kind::Exec, exec);
        call.process.launched.remove(exec);
        call.process.launched.remove(exec | 1);
    }
    remember(call, exec, most, status)
}

/// Remembers that a kernel of `exec` may need `per_thread` bytes of local memory per thread, if
/// `status` is a success.
fn remember(call: Call, exec: GraphExec, per_thread: u64, status: Status) -> Status {
    if status == SUCCESS && call.process.execs.raise_per_thread(exec, per_thread) {
        // The recorded launches of this graph were made with other kernels, so the next launch must
        // be charged again.
        call.process.launched.remove(exec);
        call.process.launched.remove(exec | 1);
    }
    status
}

/// `cuGraphExecUpdate`, `cuGraphExecUpdate_v2`, `cuGraphExecChildGraphNodeSetParams`: Charged like
/// `cuGraphExecKernelNodeSetParams_v2`, for all kernels of the graph.
pub fn update(call: Call, real: &dyn Real, exec: GraphExec, graph: Graph) -> Status {
    change(call, exec, Source::Graph(graph), real)
}

/// `cuGraphExecKernelNodeSetParams_v2`: Charges growth of local memory before the call, or before
/// the launch that takes it. Measures once per kernel.
pub fn set_kernel(
    call: Call,
    real: &dyn Real,
    exec: GraphExec,
    params: In<KernelNodeParams>,
) -> Status {
    let kernel = params.read().and_then(|params| params.handle());
    change(call, exec, Source::Kernel(kernel), real)
}

/// `cuGraphExecKernelNodeSetParams`: Charged like `cuGraphExecKernelNodeSetParams_v2`.
pub fn set_kernel_v1(
    call: Call,
    real: &dyn Real,
    exec: GraphExec,
    params: In<KernelNodeParamsV1>,
) -> Status {
    let kernel = params.read().map(|params| params.function);
    change(call, exec, Source::Kernel(kernel), real)
}

/// `cuGraphExecNodeSetParams`: Charged like the function that sets a node of the same type:
/// `cuGraphExecKernelNodeSetParams_v2` or `cuGraphExecChildGraphNodeSetParams`.
pub fn set_node(call: Call, real: &dyn Real, exec: GraphExec, params: In<NodeParams>) -> Status {
    let source = match params.read() {
        Some(params) if params.kind == NODE_TYPE_KERNEL => Source::Kernel(params.kernel.handle()),
        Some(params) if params.kind == NODE_TYPE_GRAPH => Source::Graph(params.child()),
        _ => Source::Kernel(None),
    };
    change(call, exec, source, real)
}
