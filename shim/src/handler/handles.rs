//! The driver functions that hand out handles or take them back without taking or freeing memory.

use gpulimit_base::obstacle::Obstacle;

use crate::abi::{Graph, Opaque, Out, SUCCESS, Status, Stream};
use crate::account::handles::{Kind, Origin};
use crate::driver::{Real, cuda};
use crate::handler::Call;

/// Returns the origin (context and owner) of a handle that was made in the current context.
pub fn current_origin() -> Origin {
    let mut context = 0;
    cuda::cuCtxGetCurrent(Out::of(&mut context));
    Origin { context, owner: 0 }
}

/// `cuGraphCreate`, `cuGraphClone`: Charges nothing. Remembers the graph's
/// handle, so that later hooks can ask the driver about the graph.
pub fn make_graph(call: Call, real: &dyn Real, graph: Out<Graph>) -> Status {
    let status = real.call();
    if let (SUCCESS, Some(graph @ 1..)) = (status, graph.read()) {
        // A graph belongs to no context and no module, so the origin of its handle is empty.
        let handles = &call.process.handles;
        handles.insert(Kind::Graph, graph, Origin::default());
    }
    status
}

/// `cuStreamDestroy`, `cuStreamDestroy_v2`: Charges nothing. Forgets the stream's handle and
/// capture.
pub fn destroy_stream(call: Call, real: &dyn Real, stream: Stream) -> Status {
    // The driver can reuse the handle at once, so the capture goes before the driver's call.
    let captures = &call.process.captures;
    let captured = captures.end(stream) as u64;
    let status = destroy(call, real, Kind::Stream, stream);
    if captured > 0 {
        let stays = status != SUCCESS;
        if stays {
            captures.begin(stream, current_origin().context);
        }
        let ended = captured - u64::from(stays);
        call.process.end_obstacle(Obstacle::Capture, ended);
    }
    status
}

/// `cuGraphDestroy`: Charges nothing. Forgets the graph's handle and the graphs inside it.
pub fn destroy_graph(call: Call, real: &dyn Real, graph: Graph) -> Status {
    let bodies = call.process.bodies.take(graph);
    let status = destroy(call, real, Kind::Graph, graph);
    if status != SUCCESS {
        call.process.bodies.restore(bodies);
    }
    status
}

/// Runs `real`, the driver's function that destroys `handle`.
fn destroy(call: Call, real: &dyn Real, kind: Kind, handle: usize) -> Status {
    let taken = call.process.handles.take(kind, handle);
    let status = real.call();
    if status != SUCCESS {
        call.process.handles.restore(taken);
    }
    status
}

/// `cuModuleEnumerateFunctions`: Charges nothing. Remembers the functions of a known module for
/// later queries of the driver.
pub fn functions(
    call: Call,
    real: &dyn Real,
    list: Out<Opaque>,
    count: u32,
    module: Opaque,
) -> Status {
    let status = real.call();
    // This driver function accepts some handles that are not modules. Other functions crash on such
    // handles.
    let Some(Origin { context, .. }) = call.process.handles.origin(Kind::Module, module) else {
        return status;
    };
    listed(call, status, list, count, context, module, || {
        let mut all = 0;
        let asked = cuda::cuModuleGetFunctionCount(Out::of(&mut all), module);
        (asked == SUCCESS).then_some(all)
    })
}

/// `cuLibraryEnumerateKernels`: Charges nothing. Remembers the kernels of a known CUDA library for
/// later queries of the driver.
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

/// Remembers the functions or kernels in `list`, at most `room`. `are()` returns how many the code
/// has.
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
        handles.adopt(Kind::Code, code, Origin { context, owner });
    }
    status
}
