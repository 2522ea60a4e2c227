//! Nodes of graphs that are not executable yet: a node with a kernel loads its code, in the context that it names or else in the current one
//! (measured, H100, 580.159.04).

use crate::abi::{
    Graph, In, KernelNodeParams, KernelNodeParamsV1, NODE_TYPE_KERNEL, Node, NodeParams, Opaque,
    Out, Status,
};
use crate::handler::lazy;
use crate::hook::Call;

/// Runs `real`, which makes a node of this kernel, or puts it into one.
fn keep(call: Call, params: Option<KernelNodeParams>, real: impl Fn() -> Status) -> Status {
    match params.and_then(|params| Some((params.handle()?, params.context))) {
        Some((kernel, 0)) => lazy::load(call, kernel, None, None, real),
        Some((kernel, context)) => lazy::load(call, kernel, None, Some(context), real),
        None => real(),
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
    keep(call, first(params), || {
        real(node, graph, dependencies, count, params)
    })
}

/// `cuGraphAddKernelNode_v2`: as `cuLibraryGetModule`, in the context that the node names, or else in the current one.
pub fn add_kernel(
    call: Call,
    real: impl Fn(Out<Node>, Graph, Opaque, usize, In<KernelNodeParams>) -> Status,
    node: Out<Node>,
    graph: Graph,
    dependencies: Opaque,
    count: usize,
    params: In<KernelNodeParams>,
) -> Status {
    keep(call, params.read(), || {
        real(node, graph, dependencies, count, params)
    })
}

/// `cuGraphAddNode`: as `cuGraphAddKernelNode_v2`.
pub fn add(
    call: Call,
    real: impl Fn(Out<Node>, Graph, Opaque, usize, In<NodeParams>) -> Status,
    node: Out<Node>,
    graph: Graph,
    dependencies: Opaque,
    count: usize,
    params: In<NodeParams>,
) -> Status {
    keep(call, kernel(params), || {
        real(node, graph, dependencies, count, params)
    })
}

/// `cuGraphAddNode_v2`, `cuGraphAddNode_v3`: as `cuGraphAddKernelNode_v2`.
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
    keep(call, kernel(params), || {
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
    keep(call, first(params), || real(node, params))
}

/// `cuGraphKernelNodeSetParams_v2`: as `cuGraphAddKernelNode_v2`.
pub fn set_kernel(
    call: Call,
    real: impl Fn(Node, In<KernelNodeParams>) -> Status,
    node: Node,
    params: In<KernelNodeParams>,
) -> Status {
    keep(call, params.read(), || real(node, params))
}

/// `cuGraphNodeSetParams` and `_v2`: as `cuGraphAddKernelNode_v2`.
pub fn set(
    call: Call,
    real: impl Fn(Node, In<NodeParams>) -> Status,
    node: Node,
    params: In<NodeParams>,
) -> Status {
    keep(call, kernel(params), || real(node, params))
}
