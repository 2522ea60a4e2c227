//! Nodes of graphs that are not executable yet: a node with a kernel loads its code, in the context
//! that it names or else in the current one (measured, H100, 580.159.04).

use crate::abi::{
    ConditionalNodeParams, Graph, In, KernelNodeParams, KernelNodeParamsV1, NODE_TYPE_CONDITIONAL,
    NODE_TYPE_KERNEL, Node, NodeParams, Opaque, Out, SUCCESS, Status,
};
use crate::driver::Real;
use crate::handler::Call;
use crate::handler::lazy;

/// Runs `real`, which makes a node of this kernel, or puts it into one.
fn keep(call: Call, params: Option<KernelNodeParams>, real: &dyn Real) -> Status {
    match params.and_then(|params| Some((params.handle()?, params.context))) {
        Some((kernel, 0)) => lazy::load(call, kernel, None, None, real),
        Some((kernel, context)) => lazy::load(call, kernel, None, Some(context), real),
        None => real.call(),
    }
}

/// Of the first version, which knows functions of the current context only.
fn first(params: In<KernelNodeParamsV1>) -> Option<KernelNodeParams> {
    params.read().map(|params| KernelNodeParams {
        function: params.function,
        ..KernelNodeParams::default()
    })
}

/// Of a node with a kernel.
fn kernel(params: In<NodeParams>) -> Option<KernelNodeParams> {
    let params = params.read()?;
    (params.kind == NODE_TYPE_KERNEL).then_some(params.kernel)
}

/// Runs `real`, which adds a node of any kind. What a conditional one may run is remembered: nobody
/// else tells (measured; only drivers of CUDA 13.5 have `cuGraphNodeGetParams`), and graphs with
/// such nodes can be neither copied nor put into others.
fn any(call: Call, node: Out<Node>, params: In<NodeParams>, real: &dyn Real) -> Status {
    let status = keep(call, kernel(params), real);
    let is_conditional = || {
        params
            .read()
            .is_some_and(|params| params.kind == NODE_TYPE_CONDITIONAL)
    };
    if status == SUCCESS
        && is_conditional()
        && let (Some(node), Some(params)) =
            (node.read(), params.cast::<ConditionalNodeParams>().read())
    {
        let graphs = (0..params.size as usize).filter_map(|at| params.graphs.at(at).read());
        call.process.bodies.insert(node, graphs.collect());
    }
    status
}

/// `cuGraphAddKernelNode`: as `cuGraphAddKernelNode_v2`.
pub fn add_kernel_v1(
    call: Call,
    real: impl Fn(Out<Node>, Graph, Opaque, usize, In<KernelNodeParamsV1>) -> Status,
    node: Out<Node>,
    graph: Graph,
    dependencies: Opaque,
    count: usize,
    params: In<KernelNodeParamsV1>,
) -> Status {
    keep(call, first(params), &move || {
        real(node, graph, dependencies, count, params)
    })
}

/// `cuGraphAddKernelNode_v2`: as `cuLibraryGetModule`, in the context that the node names, or else
/// in the current one.
pub fn add_kernel(
    call: Call,
    real: impl Fn(Out<Node>, Graph, Opaque, usize, In<KernelNodeParams>) -> Status,
    node: Out<Node>,
    graph: Graph,
    dependencies: Opaque,
    count: usize,
    params: In<KernelNodeParams>,
) -> Status {
    keep(call, params.read(), &move || {
        real(node, graph, dependencies, count, params)
    })
}

/// `cuGraphAddNode`: as `cuGraphAddKernelNode_v2`; remembers what a conditional node may run, for
/// the call that makes its graph executable.
pub fn add(
    call: Call,
    real: impl Fn(Out<Node>, Graph, Opaque, usize, In<NodeParams>) -> Status,
    node: Out<Node>,
    graph: Graph,
    dependencies: Opaque,
    count: usize,
    params: In<NodeParams>,
) -> Status {
    any(call, node, params, &move || {
        real(node, graph, dependencies, count, params)
    })
}

/// `cuGraphAddNode_v2`, `cuGraphAddNode_v3`: as `cuGraphAddNode`.
#[allow(clippy::too_many_arguments)]
pub fn add_with_edges(
    call: Call,
    real: impl Fn(Out<Node>, Graph, Opaque, Opaque, usize, In<NodeParams>) -> Status,
    node: Out<Node>,
    graph: Graph,
    dependencies: Opaque,
    edges: Opaque,
    count: usize,
    params: In<NodeParams>,
) -> Status {
    any(call, node, params, &move || {
        real(node, graph, dependencies, edges, count, params)
    })
}

/// `cuGraphKernelNodeSetParams`: as `cuGraphAddKernelNode_v2`.
pub fn set_kernel_v1(
    call: Call,
    real: impl Fn(Node, In<KernelNodeParamsV1>) -> Status,
    node: Node,
    params: In<KernelNodeParamsV1>,
) -> Status {
    keep(call, first(params), &move || real(node, params))
}

/// `cuGraphKernelNodeSetParams_v2`: as `cuGraphAddKernelNode_v2`.
pub fn set_kernel(
    call: Call,
    real: impl Fn(Node, In<KernelNodeParams>) -> Status,
    node: Node,
    params: In<KernelNodeParams>,
) -> Status {
    keep(call, params.read(), &move || real(node, params))
}

/// `cuGraphNodeSetParams` and `_v2`: as `cuGraphAddKernelNode_v2`.
pub fn set(
    call: Call,
    real: impl Fn(Node, In<NodeParams>) -> Status,
    node: Node,
    params: In<NodeParams>,
) -> Status {
    keep(call, kernel(params), &move || real(node, params))
}
