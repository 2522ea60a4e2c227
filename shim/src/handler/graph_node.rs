//! Nodes of graphs that are not executable yet: a node with a kernel loads its code, in the context
//! that it names or else in the current one (measured, H100, 580.159.04).

use crate::abi::{
    ConditionalNodeParams, In, KernelNodeParams, KernelNodeParamsV1, NODE_TYPE_CONDITIONAL,
    NODE_TYPE_KERNEL, Node, NodeParams, Out, SUCCESS, Status,
};
use crate::driver::Real;
use crate::handler::Call;
use crate::handler::lazy;

/// Runs `real`, which makes a node of this kernel, or puts it into one.
fn keep(call: Call, params: Option<KernelNodeParams>, real: &dyn Real) -> Status {
    match params.and_then(|params| Some((params.handle()?, params.context))) {
        Some((kernel, context)) => {
            let context = (context != 0).then_some(context);
            lazy::load(call, kernel, None, context, real)
        }
        None => real.call(),
    }
}

/// `cuGraphAddKernelNode`, `cuGraphKernelNodeSetParams`: as `cuGraphAddKernelNode_v2`. Their kernels
/// are functions of the current context.
pub fn kernel_v1(call: Call, real: &dyn Real, params: In<KernelNodeParamsV1>) -> Status {
    let params = params.read().map(|params| KernelNodeParams {
        function: params.function,
        ..KernelNodeParams::default()
    });
    keep(call, params, real)
}

/// `cuGraphAddKernelNode_v2`, `cuGraphKernelNodeSetParams_v2`: as `cuLibraryGetModule`, in the
/// context that the node names, or else in the current one.
pub fn kernel(call: Call, real: &dyn Real, params: In<KernelNodeParams>) -> Status {
    keep(call, params.read(), real)
}

/// `cuGraphNodeSetParams` and `_v2`: as `cuGraphAddKernelNode_v2`.
pub fn set(call: Call, real: &dyn Real, params: In<NodeParams>) -> Status {
    let params = params.read();
    let kernel = params.filter(|params| params.kind == NODE_TYPE_KERNEL);
    keep(call, kernel.map(|params| params.kernel), real)
}

/// `cuGraphAddNode` and its later versions: as `cuGraphAddKernelNode_v2`; remembers what a
/// conditional node may run, for the call that makes its graph executable. Nobody else tells
/// (measured; only drivers of CUDA 13.5 have `cuGraphNodeGetParams`), and graphs with such nodes can
/// be neither copied nor put into others.
pub fn add(call: Call, real: &dyn Real, node: Out<Node>, params: In<NodeParams>) -> Status {
    let status = set(call, real, params);
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
