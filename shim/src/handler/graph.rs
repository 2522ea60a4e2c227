//! CUDA graphs. Their memory nodes are charged before a launch or an upload. The driver's own
//! memory is measured.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use crate::abi::{
    Device as Ordinal, GRAPH_INSTANTIATE_UPLOAD, Graph, GraphExec, GraphInstantiateParams, In, Out,
    SUCCESS, Status, Stream,
};
use crate::account::charged::Charged;
use crate::account::contexts::current_context;
use crate::account::device::Device;
use crate::account::graphs::execs::{Exec, Need};
use crate::account::graphs::nodes::Nodes;
use crate::account::graphs::{Hope, UnderWay};
use crate::account::handles::Kind;
use crate::account::pools::patience;
use crate::account::request::Request;
use crate::driver::Real;
use crate::driver::cuda;
use crate::fault;
use crate::handler::Call;
use crate::handler::aside::attempt;
use crate::handler::handles;
use crate::handler::launch::{self, Target};
use crate::handler::loading::{self, Use};
use crate::handler::measured;
use crate::handler::stream::{await_work, capturing, identity};
use crate::image::Needs;
use crate::refusal::Refused;

/// `cuGraphInstantiate`, `cuGraphInstantiate_v2`, `cuGraphInstantiateWithFlags`: Charges the
/// kernels' local memory before the call, and measures afterwards. Remembers the memory nodes.
pub fn instantiate(call: Call, real: &dyn Real, exec: Out<GraphExec>, graph: Graph) -> Status {
    make(call, graph, exec, None, real)
}

/// `cuGraphInstantiateWithParams`: Charged like `cuGraphInstantiateWithFlags`. If the call also
/// uploads the graph, the memory nodes are charged as by `cuGraphUpload`.
pub fn instantiate_with_params(
    call: Call,
    real: &dyn Real,
    exec: Out<GraphExec>,
    graph: Graph,
    params: In<GraphInstantiateParams>,
) -> Status {
    let params = params.read();
    let upload = params.filter(|params| params.flags & GRAPH_INSTANTIATE_UPLOAD != 0);
    make(
        call,
        graph,
        exec,
        upload.map(|params| params.upload_stream),
        real,
    )
}

/// Makes an executable graph of `graph`. If `upload` names a stream, the same call uploads the
/// graph.
fn make(
    call: Call,
    graph: Graph,
    exec: Out<GraphExec>,
    upload: Option<Stream>,
    real: &dyn Real,
) -> Status {
    if !call.process.handles.knows(Kind::Graph, graph) {
        return instantiate_unknown(call, graph, exec, real);
    }
    let nodes = Nodes::of(graph, &call.process.bodies);
    let per_thread = Cell::new(0);
    let real = || prepare(call, exec, &nodes, &per_thread, real);
    let known = Exec::new(current_context(), &nodes);
    let status = match upload {
        Some(stream) => with_memory(call, &known, &known.needs, stream, &real),
        None => real(),
    };
    if let (SUCCESS, Some(handle)) = (status, exec.read()) {
        enter(call, handle, known, &nodes, per_thread.get());
    }
    status
}

/// Remembers the nodes of the executable graph `exec`.
fn enter(call: Call, exec: GraphExec, known: Exec, nodes: &Nodes, per_thread: u64) {
    let execs = &call.process.execs;
    // The driver can reuse the handle of an executable graph that ended with its context, so remove
    // the old record.
    execs.take(exec);
    if !nodes.is_empty() {
        execs.insert(exec, Arc::new(known));
    }
    execs.set_per_thread(exec, per_thread);
    let handles = &call.process.handles;
    match has_known_code(call, nodes) {
        true => handles.insert(Kind::Exec, exec, handles::current_origin()),
        false => drop(handles.take(Kind::Exec, exec)),
    }
}

/// Returns whether gpulimit knows all kernels of a graph. gpulimit asks the driver about known
/// handles only.
fn has_known_code(call: Call, nodes: &Nodes) -> bool {
    let handles = &call.process.handles;
    nodes
        .kernels()
        .all(|kernel| handles.knows(Kind::Code, kernel))
}

/// Returns the most local memory per thread that any known kernel of the graph needs, bytes.
fn most(call: Call, device: &Device, nodes: &Nodes) -> u64 {
    let handles = &call.process.handles;
    let known = nodes
        .kernels()
        .filter(|kernel| handles.knows(Kind::Code, *kernel));
    let needs = known.map(|kernel| loading::per_thread(call, device, kernel));
    needs.max().unwrap_or(0)
}

/// Makes an executable graph of a graph unknown to gpulimit. Queries its nodes only after the
/// driver's call.
#[cold]
fn instantiate_unknown(call: Call, graph: Graph, exec: Out<GraphExec>, real: &dyn Real) -> Status {
    let status = measured::unknown(call, measured::ALL, real, Some(&|| undo(exec)));
    if let (SUCCESS, Some(handle)) = (status, exec.read())
        && let Ok(device) = call.process.current_device()
    {
        let nodes = Nodes::of(graph, &call.process.bodies);
        let (context, per_thread) = (current_context(), most(call, device, &nodes));
        loading::has_grown(device, context, per_thread);
        enter(call, handle, Exec::new(context, &nodes), &nodes, per_thread);
    }
    status
}

fn undo(exec: Out<GraphExec>) {
    if let Some(made) = exec.read() {
        cuda::cuGraphExecDestroy(made);
    }
}

/// Runs `real`, which makes an executable graph. Charges the kernels' local memory first, because
/// the driver takes it in this call.
fn prepare(
    call: Call,
    exec: Out<GraphExec>,
    nodes: &Nodes,
    per_thread: &Cell<u64>,
    real: &dyn Real,
) -> Status {
    attempt(real, || {
        let device = call.process.current_device()?;
        let undo = || undo(exec);
        if !has_known_code(call, nodes) {
            per_thread.set(most(call, device, nodes));
            return Ok(measured::unknown(call, measured::ALL, real, Some(&undo)));
        }
        let most = || {
            per_thread.set(most(call, device, nodes));
            per_thread.get()
        };
        let context = current_context();
        loading::run(
            call,
            device,
            context,
            Use::Graph(&most),
            Needs::default(),
            0,
            real,
            Some(&undo),
        )
    })
}

/// `cuGraphLaunch`, `cuGraphUpload`: Charges the needs of the memory nodes beyond the memory that
/// the GPU keeps for graphs.
pub fn launch(call: Call, real: &dyn Real, exec: GraphExec, stream: Stream) -> Status {
    match call.process.execs.get(exec) {
        None => launch::launch(call, Target::Graph(exec), stream, real),
        Some(known) => with_memory(call, &known, &known.needs, stream, &|| {
            // With the handle's lowest bit set, the next launch of this graph does not pass
            // uncharged as a recent launch.
            launch::launch(call, Target::Graph(exec | 1), stream, real)
        }),
    }
}

/// Runs `real`, which launches or uploads `exec`. First charges the memory in `needs` on each
/// device.
fn with_memory(call: Call, exec: &Exec, needs: &[Need], stream: Stream, real: &dyn Real) -> Status {
    let Some((need, others)) = needs.split_first() else {
        return real.call();
    };
    let next = || with_memory(call, exec, others, stream, real);
    attempt(&next, || {
        let device = call.process.device(need.device)?;
        let stream_of = identity(call.symbol, stream);
        let memory = &device.graphs;
        let mut under_way = memory.begin(&device.book, need, exec.keeps, stream_of);
        let quietly = |rest| pay_ahead(device, Request::reclaiming(rest));
        let paid = under_way
            .pay(None, &quietly)
            .or_else(|_| pay(call, device, &mut under_way, stream));
        fault::point("graph");
        let status = paid.map(|()| next());
        under_way.settle(status == Ok(SUCCESS));
        Ok(status?)
    })
}

/// Charges bytes in advance for the memory of graphs. The bytes stay charged after the launch.
fn pay_ahead(device: &Device, request: Request<'_>) -> Result<(), Refused> {
    device.charge_ahead(request).map(Charged::spend)
}

/// Charges the memory for a graph launch in a group that has no room for it: waits, trims and
/// reclaims.
#[cold]
fn pay(
    call: Call,
    device: &'static Device,
    under_way: &mut UnderWay<'_>,
    stream: Stream,
) -> Result<(), Refused> {
    if capturing(call.symbol, stream) {
        // The graph launch is captured: it becomes a node of another graph and takes no memory now.
        return Ok(());
    }
    let until = Instant::now() + patience();
    let mut waited = false;
    loop {
        let quietly = |rest| pay_ahead(device, Request::reclaiming(rest));
        if under_way.pay(Some(until), &quietly).is_ok() {
            return Ok(());
        }
        // Trims unused memory of graphs first, and then reclaims other unused memory.
        let quietly = |rest| pay_ahead(device, Request::trimming(rest));
        if under_way.pay_by_trim(&quietly).is_ok() {
            return Ok(());
        }
        if Instant::now() >= until {
            break;
        }
        match under_way.hope(waited) {
            Some(Hope::Others) => {}
            Some(Hope::OwnWork) => {
                await_work(call.symbol, stream, until);
                waited = true;
            }
            None => break,
        }
    }
    let asked = under_way.bytes();
    under_way.pay(None, &|rest| {
        let request = Request::insisting(call.symbol, rest).of(asked);
        pay_ahead(device, request)
    })
}

/// `cuGraphExecDestroy`: Uncharges nothing, because the GPU keeps the memory. Forgets the
/// executable graph, whose handle can be reused.
pub fn destroy(call: Call, real: &dyn Real, exec: GraphExec) -> Status {
    let known = call.process.execs.take(exec);
    let per_thread = call.process.execs.per_thread(exec);
    call.process.execs.set_per_thread(exec, 0);
    call.process.launched.remove(exec);
    call.process.launched.remove(exec | 1);
    let handle = call.process.handles.take(Kind::Exec, exec);
    let status = real.call();
    if status != SUCCESS {
        call.process.handles.restore(handle);
        call.process.execs.set_per_thread(exec, per_thread);
        if let Some(known) = known {
            call.process.execs.insert(exec, known);
        }
    }
    status
}

/// `cuDeviceGraphMemTrim`: Uncharges, after the call, the memory that the GPU no longer keeps for
/// graphs.
pub fn trim(call: Call, real: &dyn Real, ordinal: Ordinal) -> Status {
    let status = real.call();
    if let Ok(device) = call.process.device(ordinal) {
        device.graphs.trimmed(&device.book);
    }
    status
}
