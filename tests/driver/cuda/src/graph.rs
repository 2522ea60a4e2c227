//! The driver's functions for graphs. Only the memory that graphs take is simulated.

use gpulimit_sim::abi::{In, Out};
use gpulimit_sim::driver::driver;
use gpulimit_sim::graph::{Exec, Graph, Kind, Need, Node};
use gpulimit_sim::work::Name;
use gpulimit_sim::{Outcome, Status, capture, graph};

use crate::context::{given, here};
use crate::device;
use crate::module;
use crate::stream::enqueue;

/// Values of `CUgraphNodeType`.
const KERNEL: i32 = 0;
const CHILD: i32 = 4;
const EMPTY: i32 = 5;
const ALLOC: i32 = 10;
const FREE: i32 = 11;
const CONDITIONAL: i32 = 13;
/// Values of `CUgraphConditionalNodeType`.
const IF: u32 = 0;
const WHILE: u32 = 1;
const SWITCH: u32 = 2;
/// `CUgraphChildGraphNodeOwnership`: the node takes over the child graph.
const MOVE: i32 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

pub fn create(out: Out<usize>, flags: u32) -> Outcome<()> {
    here()?;
    if flags != 0 || out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    out.put(Graph::make().handle())
}

/// Copies a graph.
///
/// # Errors
/// `NOT_SUPPORTED` for memory nodes, conditional nodes, and the body of a conditional node
/// (NVIDIA's documentation).
pub fn clone(clone: Out<usize>, graph: usize) -> Outcome<()> {
    here()?;
    let graph = Graph::from_handle(graph)?;
    if clone.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if !graph.may_be_child()? || graph.has_memory()? {
        return Err(Status::NOT_SUPPORTED);
    }
    clone.put(graph.copy()?.handle())
}

fn dependencies(list: In<usize>, count: usize) -> Outcome<Vec<&'static Node>> {
    (0..count)
        .map(|index| Node::from_handle(list.at(index).get()?))
        .collect()
}

/// Adds a node that allocates memory, from a `CUDA_MEM_ALLOC_NODE_PARAMS`.
fn allocate(graph: &Graph, after: Vec<&'static Node>, params: Out<u8>) -> Outcome<&'static Node> {
    let [pinned, _, kind, ordinal] = params.cast::<[i32; 4]>().read()?;
    if (pinned, kind) != (1, 1) {
        return Err(Status::INVALID_VALUE);
    }
    let device = device::index(ordinal)?;
    let bytes = params.at(104).cast::<u64>().read()?;
    let (node, address) = graph.allocate(here()?, device, bytes, after)?;
    params.at(112).cast::<u64>().put(address)?;
    Ok(node)
}

/// Adds a child graph as a node: a copy, or the graph itself. A graph with memory nodes cannot be
/// copied.
fn child(
    graph: &Graph,
    after: Vec<&'static Node>,
    child: usize,
    moved: bool,
) -> Outcome<&'static Node> {
    let child = Graph::from_handle(child)?;
    if !child.may_be_child()? || (!moved && child.has_memory()?) {
        return Err(Status::NOT_SUPPORTED);
    }
    graph.add(Kind::Child(child), after)
}

/// Returns a handle for the condition of a conditional node. Conditions are never evaluated, so any
/// number serves.
pub fn conditional_handle(
    out: Out<u64>,
    graph: usize,
    context: usize,
    _default: u32,
    _flags: u32,
) -> Outcome<()> {
    given(context)?;
    out.put(Graph::from_handle(graph)?.handle() as u64)
}

/// Adds a conditional node, from a `CUDA_CONDITIONAL_NODE_PARAMS`. Fails with error 201 without a
/// context (measured).
fn conditional(
    graph: &Graph,
    after: Vec<&'static Node>,
    params: Out<u8>,
) -> Outcome<&'static Node> {
    let [kind, count] = params.at(8).cast::<[u32; 2]>().read()?;
    let right = match kind {
        IF => (1..=2).contains(&count),
        WHILE => count == 1,
        SWITCH => count > 0,
        _ => false,
    };
    if !right {
        return Err(Status::INVALID_VALUE);
    }
    match params.at(24).cast::<usize>().read()? {
        0 => return Err(Status::INVALID_CONTEXT),
        context => given(context)?,
    };
    let (node, bodies) = graph.add_conditional(count as usize, after)?;
    let handles = bodies.iter().map(|body| body.handle());
    let list: &[usize] = handles.collect::<Vec<_>>().leak();
    params.at(16).cast::<usize>().put(list.as_ptr() as usize)?;
    Ok(node)
}

pub fn add_alloc_node(
    node: Out<usize>,
    graph: usize,
    list: In<usize>,
    count: usize,
    params: Out<u8>,
) -> Outcome<()> {
    let after = dependencies(list, count)?;
    node.put(allocate(Graph::from_handle(graph)?, after, params)?.handle())
}

pub fn add_free_node(
    node: Out<usize>,
    graph: usize,
    list: In<usize>,
    count: usize,
    address: u64,
) -> Outcome<()> {
    let after = dependencies(list, count)?;
    node.put(Graph::from_handle(graph)?.free(address, after)?.handle())
}

pub fn add_child_node(
    node: Out<usize>,
    graph: usize,
    list: In<usize>,
    count: usize,
    inner: usize,
) -> Outcome<()> {
    let after = dependencies(list, count)?;
    node.put(child(Graph::from_handle(graph)?, after, inner, false)?.handle())
}

pub fn add_empty_node(
    node: Out<usize>,
    graph: usize,
    list: In<usize>,
    count: usize,
) -> Outcome<()> {
    let after = dependencies(list, count)?;
    let kind = Kind::Other(EMPTY);
    node.put(Graph::from_handle(graph)?.add(kind, after)?.handle())
}

/// Returns the function of a kernel node and the memory that the function needs, and loads its
/// code.
///
/// Reads a `CUDA_KERNEL_NODE_PARAMS_v2`:
/// - offset 0: the function, or 0; a kernel here is error 400 (measured);
/// - offset 56: the kernel;
/// - offset 64: the context; 0 means the current context.
fn kernel_of(params: In<u8>) -> Outcome<(usize, Need)> {
    match params.field(0).get()? {
        0 => module::kernel_node(params.field(56).get()?, given(params.field(64).get()?)?),
        function => module::function_node(function),
    }
}

fn add_kernel(
    graph: usize,
    list: In<usize>,
    count: usize,
    kernel: (usize, Need),
) -> Outcome<usize> {
    let (function, need) = kernel;
    let after = dependencies(list, count)?;
    let kind = Kind::Kernel { function, need };
    Ok(Graph::from_handle(graph)?.add(kind, after)?.handle())
}

pub fn add_kernel_node_v1(
    node: Out<usize>,
    graph: usize,
    list: In<usize>,
    count: usize,
    params: In<usize>,
) -> Outcome<()> {
    node.put(add_kernel(
        graph,
        list,
        count,
        module::function_node(params.get()?)?,
    )?)
}

pub fn add_kernel_node_v2(
    node: Out<usize>,
    graph: usize,
    list: In<usize>,
    count: usize,
    params: In<u8>,
) -> Outcome<()> {
    node.put(add_kernel(graph, list, count, kernel_of(params)?)?)
}

pub fn set_kernel_node_v1(node: usize, params: In<usize>) -> Outcome<()> {
    let (function, need) = module::function_node(params.get()?)?;
    Node::from_handle(node)?.set_kernel(function, need)
}

pub fn set_kernel_node_v2(node: usize, params: In<u8>) -> Outcome<()> {
    let (function, need) = kernel_of(params)?;
    Node::from_handle(node)?.set_kernel(function, need)
}

/// Changes a node of a graph. Reads `CUgraphNodeParams` as [`add_node`] does.
pub fn set_node_params(node: usize, params: In<u8>) -> Outcome<()> {
    match params.field(0).get()? {
        KERNEL => set_kernel_node_v2(node, params.field(16)),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// Adds a node of any type. A `CUgraphNodeParams` begins with the type; the parameters begin at
/// offset 16.
pub fn add_node(
    node: Out<usize>,
    graph: usize,
    list: In<usize>,
    count: usize,
    params: Out<u8>,
) -> Outcome<()> {
    let graph = Graph::from_handle(graph)?;
    let after = dependencies(list, count)?;
    let inner = params.at(16);
    let added = match params.cast::<i32>().read()? {
        KERNEL => {
            let (function, need) = kernel_of(inner.as_in())?;
            graph.add(Kind::Kernel { function, need }, after)
        }
        ALLOC => allocate(graph, after, inner),
        FREE => graph.free(inner.cast().read()?, after),
        CHILD => {
            let moved = inner.at(8).cast::<i32>().read()? == MOVE;
            child(graph, after, inner.cast().read()?, moved)
        }
        EMPTY => graph.add(Kind::Other(EMPTY), after),
        CONDITIONAL => conditional(graph, after, inner),
        _ => Err(Status::NOT_SUPPORTED),
    };
    node.put(added?.handle())
}

pub fn add_node_v2(
    node: Out<usize>,
    graph: usize,
    list: In<usize>,
    _edges: In<u8>,
    count: usize,
    params: Out<u8>,
) -> Outcome<()> {
    add_node(node, graph, list, count, params)
}

pub fn node_type(node: usize, number: Out<i32>) -> Outcome<()> {
    number.put(Node::from_handle(node)?.number())
}

pub fn alloc_params(node: usize, params: Out<u8>) -> Outcome<()> {
    let Kind::Alloc {
        address,
        bytes,
        device,
    } = Node::from_handle(node)?.kind()
    else {
        return Err(Status::INVALID_VALUE);
    };
    params.cast::<[u64; 15]>().put([0; 15])?;
    let placed = [1, 0, 1, device::ordinal(device)?];
    params.cast::<[i32; 4]>().put(placed)?;
    params.at(104).cast::<[u64; 2]>().put([bytes, address])
}

/// Writes a node's `CUDA_KERNEL_NODE_PARAMS`, a structure of `WORDS` words. The first word is the
/// function; the other words are 0.
fn kernel_params<const WORDS: usize>(node: usize, params: Out<u8>) -> Outcome<()> {
    let Kind::Kernel { function, .. } = Node::from_handle(node)?.kind() else {
        return Err(Status::INVALID_VALUE);
    };
    let mut words = [0u64; WORDS];
    words[0] = function as u64;
    params.cast::<[u64; WORDS]>().put(words)
}

pub fn kernel_params_v1(node: usize, params: Out<u8>) -> Outcome<()> {
    kernel_params::<7>(node, params)
}

pub fn kernel_params_v2(node: usize, params: Out<u8>) -> Outcome<()> {
    kernel_params::<9>(node, params)
}

pub fn free_params(node: usize, address: Out<u64>) -> Outcome<()> {
    match Node::from_handle(node)?.kind() {
        Kind::Free(freed) => address.put(freed),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub fn child_graph(node: usize, graph: Out<usize>) -> Outcome<()> {
    match Node::from_handle(node)?.kind() {
        Kind::Child(child) => graph.put(child.handle()),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn make(out: Out<usize>, graph: usize, flags: u64) -> Outcome<&'static Exec> {
    let context = here()?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let exec = Exec::make(context, Graph::from_handle(graph)?, flags)?;
    out.put(exec.handle())?;
    Ok(exec)
}

pub fn instantiate(
    exec: Out<usize>,
    graph: usize,
    _error_node: Out<usize>,
    log: Out<u8>,
    log_size: usize,
) -> Outcome<()> {
    make(exec, graph, 0)?;
    if log_size > 0 {
        log.put_if(0);
    }
    Ok(())
}

/// `cuGraphInstantiateWithFlags`. Fails if the upload flag is set (measured).
pub fn instantiate_with_flags(exec: Out<usize>, graph: usize, flags: u64) -> Outcome<()> {
    if flags & UPLOAD != 0 {
        return Err(Status::INVALID_VALUE);
    }
    make(exec, graph, flags).map(drop)
}

/// Instantiates a graph. Reads `CUDA_GRAPH_INSTANTIATE_PARAMS`. Its fields are the flags, the
/// stream of the upload, the failed node, and the result.
pub fn instantiate_with_params(
    exec: Out<usize>,
    graph: usize,
    params: Out<[u64; 4]>,
    twin: bool,
) -> Outcome<()> {
    let [flags, stream, _, rest] = params.read()?;
    let made = make(exec, graph, flags)?;
    if flags & UPLOAD != 0
        && let Err(failed) = upload(made.handle(), stream as usize, twin)
    {
        made.destroy();
        exec.put(0)?;
        return Err(failed);
    }
    params.put([flags, stream, 0, rest >> 32 << 32])
}

/// Values of `CUgraphExecUpdateResult`.
const SUCCESS: i32 = 0;
const TOPOLOGY_CHANGED: i32 = 2;

fn update_exec(exec: usize, graph: usize) -> Outcome<(i32, Outcome<()>)> {
    driver()?;
    let updated = Exec::from_handle(exec)?.update(Graph::from_handle(graph)?);
    match updated {
        Err(Status::EXEC_UPDATE_FAILURE) => Ok((TOPOLOGY_CHANGED, updated)),
        Err(failed) => Err(failed),
        Ok(()) => Ok((SUCCESS, updated)),
    }
}

pub fn update(exec: usize, graph: usize, error_node: Out<usize>, result: Out<i32>) -> Outcome<()> {
    let (told, updated) = update_exec(exec, graph)?;
    error_node.put_if(0);
    result.put(told)?;
    updated
}

/// Updates an executable graph and writes a `CUgraphExecUpdateResultInfo`, which never names a
/// failed node.
pub fn update_v2(exec: usize, graph: usize, info: Out<[u64; 3]>) -> Outcome<()> {
    let (told, updated) = update_exec(exec, graph)?;
    info.put([told as u64, 0, 0])?;
    updated
}

/// Replaces a kernel in an executable graph. The parameters are laid out as for `kernel_of`.
pub fn set_kernel_v2(exec: usize, node: usize, params: In<u8>) -> Outcome<()> {
    let need = match params.field(0).get()? {
        0 => module::kernel_need(params.field(56).get()?)?,
        function => module::function_need(function)?,
    };
    set_kernel(exec, node, need)
}

pub fn set_kernel_v1(exec: usize, node: usize, params: In<usize>) -> Outcome<()> {
    set_kernel(exec, node, module::function_need(params.get()?)?)
}

fn set_kernel(exec: usize, node: usize, need: Need) -> Outcome<()> {
    driver()?;
    Exec::from_handle(exec)?.set_kernel(Node::from_handle(node)?, need)
}

pub fn set_child(exec: usize, node: usize, graph: usize) -> Outcome<()> {
    driver()?;
    let exec = Exec::from_handle(exec)?;
    exec.set_child(Node::from_handle(node)?, Graph::from_handle(graph)?)
}

/// Changes a node in an executable graph. Reads `CUgraphNodeParams` as [`add_node`] does.
pub fn set_node(exec: usize, node: usize, params: In<u8>) -> Outcome<()> {
    let inner = params.field(16);
    match params.field(0).get()? {
        KERNEL => set_kernel_v2(exec, node, inner),
        CHILD => set_child(exec, node, inner.field(0).get()?),
        ALLOC | FREE => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub fn upload(exec: usize, handle: usize, twin: bool) -> Outcome<()> {
    driver()?;
    let exec = Exec::from_handle(exec)?;
    if enqueue(handle, twin)? {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    }
    exec.upload(Name { handle, twin })
}

pub fn launch(exec: usize, handle: usize, twin: bool) -> Outcome<()> {
    driver()?;
    let exec = Exec::from_handle(exec)?;
    if enqueue(handle, twin)? {
        return Ok(());
    }
    exec.launch(Name { handle, twin })
}

pub fn destroy_exec(exec: usize) -> Outcome<()> {
    driver()?;
    Exec::from_handle(exec)?.destroy();
    Ok(())
}

pub fn destroy(graph: usize) -> Outcome<()> {
    driver()?;
    let graph = Graph::from_handle(graph)?;
    // A program cannot destroy the body of a conditional node (measured).
    if graph.is_owned() {
        return Err(Status::INVALID_VALUE);
    }
    graph.destroy();
    Ok(())
}

pub fn nodes(graph: usize, nodes: Out<usize>, count: Out<usize>) -> Outcome<()> {
    driver()?;
    let found = Graph::from_handle(graph)?.nodes()?;
    if nodes.is_null() {
        return count.put(found.len());
    }
    let room = count.read()?;
    for index in 0..room {
        let node = found.get(index).map_or(0, |node| node.handle());
        nodes.at(index).put(node)?;
    }
    count.put(room.min(found.len()))
}

pub fn trim(ordinal: i32) -> Outcome<()> {
    capture::unsafe_call()?;
    graph::trim(device::index(ordinal)?);
    Ok(())
}

pub fn attribute(ordinal: i32, attribute: i32, value: Out<u64>) -> Outcome<()> {
    capture::unsafe_call()?;
    value.put(graph::attribute(device::index(ordinal)?, attribute)?)
}

pub fn set_attribute(ordinal: i32, attribute: i32, value: In<u64>) -> Outcome<()> {
    graph::set_attribute(device::index(ordinal)?, attribute, value.get()?)
}
