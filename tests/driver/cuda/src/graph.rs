//! Graphs, as far as they take memory. They come from captures only.

use gpulimit_sim::abi::{In, Out};
use gpulimit_sim::driver::driver;
use gpulimit_sim::graph::{Exec, Graph};
use gpulimit_sim::stream::Stream;
use gpulimit_sim::{Outcome, Status, graph};

use crate::context::here;
use crate::device;
use crate::stream::implicit;

fn make(out: Out<usize>, graph: usize, flags: u64) -> Outcome<()> {
    let context = here()?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    out.put(Exec::make(context, Graph::from_handle(graph)?, flags)?.handle())
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

pub fn instantiate_with_flags(exec: Out<usize>, graph: usize, flags: u64) -> Outcome<()> {
    make(exec, graph, flags)
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`: flags, stream of the upload, node in error, result.
pub fn instantiate_with_params(
    exec: Out<usize>,
    graph: usize,
    params: Out<[u64; 4]>,
    _twin: bool,
) -> Outcome<()> {
    let [flags, stream, _, rest] = params.read()?;
    make(exec, graph, flags)?;
    params.put([flags, stream, 0, rest >> 32 << 32])
}

pub fn upload(exec: usize, stream: usize, twin: bool) -> Outcome<()> {
    driver()?;
    let exec = Exec::from_handle(exec)?;
    match Stream::from_handle(stream)? {
        Some(stream) if stream.captures()? => Err(Status::STREAM_CAPTURE_UNSUPPORTED),
        Some(_) => exec.upload(),
        None => implicit(here()?, stream, twin).and_then(|_| exec.upload()),
    }
}

pub fn launch(exec: usize, stream: usize, twin: bool) -> Outcome<()> {
    driver()?;
    let exec = Exec::from_handle(exec)?;
    match Stream::from_handle(stream)? {
        Some(stream) if stream.captures()? => Ok(()),
        Some(_) => exec.launch(),
        None => implicit(here()?, stream, twin).and_then(|_| exec.launch()),
    }
}

pub fn destroy_exec(exec: usize) -> Outcome<()> {
    driver()?;
    Exec::from_handle(exec)?.destroy();
    Ok(())
}

pub fn destroy(graph: usize) -> Outcome<()> {
    driver()?;
    Graph::from_handle(graph)?.destroy();
    Ok(())
}

/// How many nodes there are; the nodes themselves are no objects here.
pub fn nodes(graph: usize, nodes: Out<usize>, count: Out<usize>) -> Outcome<()> {
    driver()?;
    let found = Graph::from_handle(graph)?.count()?;
    if !nodes.is_null() {
        return Err(Status::NOT_SUPPORTED);
    }
    count.put(found)
}

pub fn trim(ordinal: i32) -> Outcome<()> {
    graph::trim(device::index(ordinal)?);
    Ok(())
}

pub fn attribute(ordinal: i32, attribute: i32, value: Out<u64>) -> Outcome<()> {
    value.put(graph::attribute(device::index(ordinal)?, attribute)?)
}

pub fn set_attribute(ordinal: i32, attribute: i32, value: In<u64>) -> Outcome<()> {
    graph::set_attribute(device::index(ordinal)?, attribute, value.get()?)
}
