//! Nodes of graphs that are not executable yet. A kernel node loads its kernel's code, in the
//! context that the node names or else in the current context (measured, H100, 580.159.04).

use crate::abi::{
    ConditionalNodeParams, In, KernelNodeParams, KernelNodeParamsV1, NODE_TYPE_CONDITIONAL,
    NODE_TYPE_KERNEL, Node, NodeParams, Out, SUCCESS, Status,
};
use crate::driver::Real;
use crate::handler::Call;
use crate::handler::lazy;

/// Runs `real`, the driver's function that makes a kernel node or changes its kernel. Charges the
/// memory for loading the kernel's code.
fn keep(call: Call, params: Option<KernelNodeParams>, real: &dyn Real) -> Status {
    match params.and_then(|params| Some((params.handle()?, params.context))) {
        Some((kernel, context)) => {
            let context = (context != 0).then_some(context);
            lazy::load(call, kernel, None, context, real)
        }
        None => real.call(),
    }
}

/// `cuGraphAddKernelNode`, `cuGraphKernelNodeSetParams`: Charged like `cuGraphAddKernelNode_v2`,
/// for a function of the current context.
pub fn kernel_v1(call: Call, real: &dyn Real, params: In<KernelNodeParamsV1>) -> Status {
    let params = params.read().map(|params| KernelNodeParams {
        function: params.function,
        ..KernelNodeParams::default()
    });
    keep(call, params, real)
}

/// `cuGraphAddKernelNode_v2`, `cuGraphKernelNodeSetParams_v2`: Charged like `cuLibraryGetModule`,
/// in the context that the node names or else in the current context.
pub fn kernel(call: Call, real: &dyn Real, params: In<KernelNodeParams>) -> Status {
    keep(call, params.read(), real)
}

/// `cuGraphNodeSetParams`, `cuGraphNodeSetParams_v2`: Charged like `cuGraphAddKernelNode_v2`.
pub fn set(call: Call, real: &dyn Real, params: In<NodeParams>) -> Status {
    let params = params.read();
    let kernel = params.filter(|params| params.kind == NODE_TYPE_KERNEL);
    keep(call, kernel.map(|params| params.kernel), real)
}

/// `cuGraphAddNode` and its later versions: Charged like `cuGraphAddKernelNode_v2`. Remembers the
/// graphs that a conditional node can run: the call that makes the node's graph executable needs
/// them.
pub fn add(call: Call, real: &dyn Real, node: Out<Node>, params: In<NodeParams>) -> Status {
    let status = set(call, real, params);
    // The driver tells the graphs of a conditional node only when the node is added (measured). The
    // function that tells them later, `cuGraphNodeGetParams`, exists only since CUDA 13.5. A record
    // of this one node suffices, because graphs with conditional nodes cannot be copied or put into
    // other graphs.
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
