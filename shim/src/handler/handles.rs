//! Functions that hand out handles, or take them back, and do nothing to memory.

use crate::abi::{Graph, Opaque, Out, SUCCESS, Status, Stream};
use crate::account::handles::{Kind, Origin};
use crate::driver::{Real, cuda};
use crate::handler::Call;

/// The origin of a handle that belongs to the current context.
pub fn here() -> Origin {
    let mut context = 0;
    cuda::cuCtxGetCurrent(Out::of(&mut context));
    Origin { context, owner: 0 }
}

/// `cuGraphCreate`, `cuGraphClone`, `cuStreamEndCapture` and its twin: charges nothing; the graph is
/// known from here on.
pub fn make_graph(call: Call, real: &dyn Real, graph: Out<Graph>) -> Status {
    let status = real.call();
    if let (SUCCESS, Some(graph @ 1..)) = (status, graph.read()) {
        // A graph belongs to no context.
        let handles = &call.process.handles;
        handles.insert(Kind::Graph, graph, Origin::default());
    }
    status
}

/// `cuStreamDestroy` and `_v2`: charges nothing; the stream is known no longer.
pub fn destroy_stream(call: Call, real: &dyn Real, stream: Stream) -> Status {
    destroy(call, real, Kind::Stream, stream)
}

/// `cuGraphDestroy`: charges nothing; the graph is known no longer.
pub fn destroy_graph(call: Call, real: &dyn Real, graph: Graph) -> Status {
    destroy(call, real, Kind::Graph, graph)
}

/// Runs `real`, which destroys this handle.
fn destroy(call: Call, real: &dyn Real, kind: Kind, handle: usize) -> Status {
    let taken = call.process.handles.take(kind, handle);
    let status = real.call();
    if status != SUCCESS {
        call.process.handles.restore(taken);
    }
    status
}

/// `cuModuleEnumerateFunctions`: charges nothing; the functions of a known module are known from
/// here on. The driver answers 0 for some handles that are no modules, and another function then
/// crashes with them (measured).
pub fn functions(
    call: Call,
    real: &dyn Real,
    list: Out<Opaque>,
    count: u32,
    module: Opaque,
) -> Status {
    let status = real.call();
    let Some(Origin { context, .. }) = call.process.handles.origin(Kind::Module, module) else {
        return status;
    };
    listed(call, status, list, count, context, module, || {
        let mut all = 0;
        let asked = cuda::cuModuleGetFunctionCount(Out::of(&mut all), module);
        (asked == SUCCESS).then_some(all)
    })
}

/// `cuLibraryEnumerateKernels`: charges nothing; the kernels of a known library are known from here
/// on, as the functions of a module are.
pub fn kernels(
    call: Call,
    real: &dyn Real,
    list: Out<Opaque>,
    count: u32,
    library: Opaque,
) -> Status {
    let status = real.call();
    if !call.process.handles.knows(Kind::Library, library) {
        return status;
    }
    listed(call, status, list, count, 0, library, || {
        let mut all = 0;
        let asked = cuda::cuLibraryGetKernelCount(Out::of(&mut all), library);
        (asked == SUCCESS).then_some(all)
    })
}

/// Code that the driver has listed. It writes no more entries than there `are`, whatever the list
/// has room for.
fn listed(
    call: Call,
    status: Status,
    list: Out<Opaque>,
    room: u32,
    context: usize,
    owner: usize,
    are: impl Fn() -> Option<u32>,
) -> Status {
    if status != SUCCESS || list.is_null() {
        return status;
    }
    let count = are().map_or(0, |all| all.min(room));
    let handles = &call.process.handles;
    for code in (0..count as usize).filter_map(|at| list.at(at).read()) {
        if !handles.knows(Kind::Code, code) {
            handles.insert(Kind::Code, code, Origin { context, owner });
        }
    }
    status
}
