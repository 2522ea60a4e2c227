//! Nodes of graphs. Adding a kernel node loads the kernel's code in the node's context or in the
//! current context.

use crate::abi::{
    ConditionalNodeParams, Graph, In, KernelNodeParams, KernelNodeParamsV1, NODE_TYPE_CONDITIONAL,
    NODE_TYPE_KERNEL, Node, NodeParams, Out, SUCCESS, Status,
};
use crate::driver::Real;
use crate::handler::Call;
use crate::handler::{lazy, loading};

/// Runs `real`, which makes or changes a kernel node. Charges the memory for the kernel's code.
fn keep(call: Call, params: Option<KernelNodeParams>, real: &dyn Real) -> Status {
    match params.and_then(|params| Some((params.handle()?, params.context))) {
        Some((kernel, context)) => {
            let context = (context != 0).then_some(context);
            let status = lazy::load(call, kernel, None, context, real);
            if status == SUCCESS {
                loading::ask_for_graph(call, kernel);
            }
            status
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
/// graphs that a conditional node can run.
pub fn add(
    call: Call,
    real: &dyn Real,
    node: Out<Node>,
    graph: Graph,
    params: In<NodeParams>,
) -> Status {
    let status = set(call, real, params);
    // Before CUDA 13.5 the driver names a conditional node's graphs only here. Such nodes cannot be
    // copied.
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
        call.process.bodies.insert(graph, node, graphs.collect());
    }
    status
}
