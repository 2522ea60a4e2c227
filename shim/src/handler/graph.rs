//! Graphs. What their memory nodes take is paid for before a launch or an upload; what the driver itself takes for them is measured.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use crate::abi::{
    CUDA_ERROR_OUT_OF_MEMORY, Device as Ordinal, GRAPH_INSTANTIATE_UPLOAD, Graph, GraphExec,
    GraphInstantiateParams, In, Opaque, Out, SUCCESS, Status, Stream,
};
use crate::account::device::Device;
use crate::account::graphs::execs::{Exec, Need};
use crate::account::graphs::nodes::Nodes;
use crate::account::graphs::{Hope, Launch};
use crate::account::pools::PATIENCE;
use crate::handler::launch::{self, What};
use crate::handler::limits::{self, Use};
use crate::handler::linear::current_context;
use crate::handler::stream::{await_work, capturing, identity};
use crate::hook::{Call, Real};
use crate::image::Needs;
use crate::refusal::Refused;
use crate::table::cuda;

/// Makes an executable graph; in the same call it may be uploaded to a stream.
fn instantiate(
    call: Call,
    graph: Graph,
    exec: Out<GraphExec>,
    upload: Option<Stream>,
    real: &dyn Real,
) -> Status {
    let nodes = Nodes::of(graph, &call.process.bodies);
    let execs = &call.process.execs;
    let per_thread = Cell::new(0);
    let real = || prepare(call, exec, &nodes, &per_thread, real);
    if nodes.is_empty() {
        let status = real();
        if let (SUCCESS, Some(handle)) = (status, exec.read()) {
            // One of a context that is gone may have had this handle.
            execs.take(handle);
            execs.set_per_thread(handle, per_thread.get());
        }
        return status;
    }
    let known = Exec::new(current_context(), &nodes);
    let status = match upload {
        Some(stream) => with_memory(call, &known, &known.needs, stream, &real),
        None => real(),
    };
    if let (SUCCESS, Some(handle)) = (status, exec.read()) {
        execs.insert(handle, Arc::new(known));
        execs.set_per_thread(handle, per_thread.get());
    }
    status
}

/// Makes it, with what its kernels need paid ahead: their local memory is taken here (measured, H100, 580.159.04).
fn prepare(
    call: Call,
    exec: Out<GraphExec>,
    nodes: &Nodes,
    per_thread: &Cell<u64>,
    real: &dyn Real,
) -> Status {
    let device = match call.process.current_device() {
        Ok(device) => device,
        Err(failed) => return call.process.unavailable(failed, real),
    };
    let most = || {
        let needs = nodes
            .kernels()
            .map(|kernel| limits::per_thread(call, device, kernel));
        per_thread.set(needs.max().unwrap_or(0));
        per_thread.get()
    };
    let undo = || {
        if let Some(made) = exec.read() {
            cuda::cuGraphExecDestroy(made);
        }
    };
    let context = current_context();
    limits::run(
        call,
        device,
        context,
        Use::Graph(&most),
        Needs::default(),
        0,
        real,
        Some(&undo),
    )
}

/// `cuGraphInstantiateWithFlags`: the local memory of its kernels is charged before the call, and the rest measured after it; what its memory
/// nodes need is remembered for the launch.
pub fn instantiate_with_flags(
    call: Call,
    real: impl Fn(Out<GraphExec>, Graph, u64) -> Status,
    exec: Out<GraphExec>,
    graph: Graph,
    flags: u64,
) -> Status {
    instantiate(call, graph, exec, None, &|| real(exec, graph, flags))
}

/// `cuGraphInstantiateWithParams` and its twin: as `cuGraphInstantiateWithFlags`; where it uploads, as `cuGraphUpload` as well.
pub fn instantiate_with_params(
    call: Call,
    real: impl Fn(Out<GraphExec>, Graph, In<GraphInstantiateParams>) -> Status,
    exec: Out<GraphExec>,
    graph: Graph,
    params: In<GraphInstantiateParams>,
) -> Status {
    let upload = params
        .read()
        .filter(|params| params.flags & GRAPH_INSTANTIATE_UPLOAD != 0)
        .map(|params| params.upload_stream);
    instantiate(call, graph, exec, upload, &|| real(exec, graph, params))
}

/// `cuGraphInstantiate` and `_v2`: as `cuGraphInstantiateWithFlags`.
pub fn instantiate_with_log(
    call: Call,
    real: impl Fn(Out<GraphExec>, Graph, Opaque, Opaque, usize) -> Status,
    exec: Out<GraphExec>,
    graph: Graph,
    error_node: Opaque,
    log: Opaque,
    log_size: usize,
) -> Status {
    instantiate(call, graph, exec, None, &|| {
        real(exec, graph, error_node, log, log_size)
    })
}

/// `cuGraphLaunch`, `cuGraphUpload` and their twins: what the memory nodes may need beyond what the device keeps for graphs is charged before
/// the call, and what was not needed given back after it.
pub fn launch(
    call: Call,
    real: impl Fn(GraphExec, Stream) -> Status,
    exec: GraphExec,
    stream: Stream,
) -> Status {
    match call.process.execs.get(exec) {
        None => launch::launch(call, What::Graph(exec), stream, &|| real(exec, stream)),
        Some(known) => with_memory(call, &known, &known.needs, stream, &|| {
            // Under the handle itself a graph would pass by us from its second launch on.
            launch::launch(call, What::Graph(exec | 1), stream, &|| real(exec, stream))
        }),
    }
}

/// Runs `real`, which launches or uploads `exec` in `stream`, with what it `needs` paid ahead on each device.
fn with_memory(call: Call, exec: &Exec, needs: &[Need], stream: Stream, real: &dyn Real) -> Status {
    let Some((need, others)) = needs.split_first() else {
        return real.call();
    };
    let next = || with_memory(call, exec, others, stream, real);
    let device = match call.process.device(need.device) {
        Ok(device) => device,
        Err(failed) => return call.process.unavailable(failed, &next),
    };
    let memory = &device.graphs;
    let mut launch = memory.begin(need, exec.keeps, identity(call.symbol, stream));
    let quietly = |rest| device.charge_ahead_without_trim(rest);
    let paid = memory
        .pay(device, &mut launch, None, quietly)
        .or_else(|_| pay(call, device, &mut launch, stream));
    let status = match paid {
        Ok(()) => next(),
        Err(Refused) => CUDA_ERROR_OUT_OF_MEMORY,
    };
    memory.settle(device, launch, status == SUCCESS);
    status
}

/// Pays for a launch in a full group.
#[cold]
fn pay(
    call: Call,
    device: &'static Device,
    launch: &mut Launch<'_>,
    stream: Stream,
) -> Result<(), Refused> {
    if capturing(call.symbol, stream) {
        // It becomes a node of another graph.
        return Ok(());
    }
    let memory = &device.graphs;
    let until = Instant::now() + PATIENCE;
    let mut waited = false;
    loop {
        let quietly = |rest| device.charge_ahead_without_trim(rest);
        if memory.pay(device, launch, Some(until), quietly).is_ok() {
            return Ok(());
        }
        // What no graph uses makes room, and then what else costs nothing.
        let quietly = |rest| device.charge_ahead_quietly(rest);
        if memory.pay_by_trim(device, launch, quietly).is_ok() {
            return Ok(());
        }
        if Instant::now() >= until {
            break;
        }
        match memory.hope(launch, waited) {
            Some(Hope::Others) => {}
            Some(Hope::OwnWork) => {
                await_work(call.symbol, stream, until);
                waited = true;
            }
            None => break,
        }
    }
    let asked = launch.bytes();
    memory.pay(device, launch, None, |rest| {
        device.charge_ahead_of(call.symbol, rest, asked)
    })
}

/// `cuGraphExecDestroy`: gives nothing back, as the memory stays with the device; the handle may come back as another graph.
pub fn destroy(call: Call, real: impl Fn(GraphExec) -> Status, exec: GraphExec) -> Status {
    let known = call.process.execs.take(exec);
    let per_thread = call.process.execs.per_thread(exec);
    call.process.execs.set_per_thread(exec, 0);
    call.process.launched.remove(exec);
    call.process.launched.remove(exec | 1);
    let status = real(exec);
    if status != SUCCESS {
        call.process.execs.set_per_thread(exec, per_thread);
        if let Some(known) = known {
            call.process.execs.insert(exec, known);
        }
    }
    status
}

/// `cuDeviceGraphMemTrim`: given back after the call is what the device no longer keeps for graphs.
pub fn trim(call: Call, real: impl Fn(Ordinal) -> Status, ordinal: Ordinal) -> Status {
    let status = real(ordinal);
    if let Ok(device) = call.process.device(ordinal) {
        device.graphs.trimmed(device);
    }
    status
}
