//! The driver's functions for streams, events and capture.

use gpulimit_sim::driver::driver;
use gpulimit_sim::graph::Graph;
use gpulimit_sim::ipc::Handle;
use gpulimit_sim::pool::Pool;
use gpulimit_sim::stream::{Event, Stream, is_legacy};
use gpulimit_sim::work::{self, Name};
use gpulimit_sim::{Outcome, Status, capture};

use crate::context::here;
use crate::device;
use gpulimit_sim::abi::Out;
use gpulimit_sim::context::{Context, current, top};

pub fn create(out: Out<usize>, flags: u32) -> Outcome<()> {
    create_with_priority(out, flags, 0)
}

pub fn create_with_priority(out: Out<usize>, flags: u32, priority: i32) -> Outcome<()> {
    here()?;
    let context = top().ok_or(Status::INVALID_CONTEXT)?;
    if flags > 1 || out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    out.put(Stream::create(context, flags, priority.clamp(-5, 0))?.handle())
}

fn own(handle: usize) -> Outcome<&'static Stream> {
    driver()?;
    Stream::from_handle(handle)?.ok_or(Status::INVALID_HANDLE)
}

pub fn destroy(handle: usize) -> Outcome<()> {
    own(handle)?.destroy();
    Ok(())
}

pub fn synchronize(handle: usize, twin: bool) -> Outcome<()> {
    driver()?;
    let context = Stream::context_of(handle)?;
    capture::waits_for(Stream::from_handle(handle)?)?;
    if let Some(queue) = (Name { handle, twin }).queue() {
        work::wait(queue.end());
    }
    Pool::synchronize_all(context.device());
    Ok(())
}

pub fn query(handle: usize, twin: bool) -> Outcome<()> {
    known(handle)?;
    capture::waits_for(Stream::from_handle(handle)?)?;
    match (Name { handle, twin }).queue() {
        Some(queue) => work::query(queue.end()),
        None => Ok(()),
    }
}

/// Checks that a handle is an existing stream.
fn known(handle: usize) -> Outcome<()> {
    driver()?;
    Stream::context_of(handle).map(drop)
}

/// Begins a driver call on a stream. Returns whether the call is captured into a graph; a captured
/// call is not executed.
pub fn enqueue(handle: usize, twin: bool) -> Outcome<bool> {
    driver()?;
    match Stream::from_handle(handle)? {
        Some(stream) => stream.captures(),
        None => implicit(current()?, handle, twin).map(|_| false),
    }
}

/// Begins a driver call on a default stream of the context.
#[inline(always)]
pub fn implicit(context: &'static Context, handle: usize, twin: bool) -> Outcome<&'static Context> {
    if is_legacy(handle, twin) {
        capture::legacy(context)?;
    }
    Ok(context)
}

pub fn wait_event(handle: usize, event: usize, _flags: u32, twin: bool) -> Outcome<()> {
    let captured = enqueue(handle, twin)?;
    let event = Event::from_handle(event)?;
    if let Some(queue) = (Name { handle, twin }).queue()
        && !captured
    {
        queue.add(event.end(), 0);
    }
    Ok(())
}

pub fn flags(handle: usize, flags: Out<u32>, _twin: bool) -> Outcome<()> {
    known(handle)?;
    flags.put(Stream::from_handle(handle)?.map_or(0, |stream| stream.flags))
}

pub fn priority(handle: usize, priority: Out<i32>, _twin: bool) -> Outcome<()> {
    known(handle)?;
    priority.put(Stream::from_handle(handle)?.map_or(0, |stream| stream.priority))
}

pub fn context(handle: usize, context: Out<usize>, _twin: bool) -> Outcome<()> {
    driver()?;
    context.put(match Stream::from_handle(handle)? {
        Some(stream) => stream.named.handle(),
        None => here().and(top().ok_or(Status::INVALID_CONTEXT))?.handle(),
    })
}

pub fn id(handle: usize, id: Out<u64>, twin: bool) -> Outcome<()> {
    known(handle)?;
    id.put(
        Stream::from_handle(handle)?.map_or(1 + u64::from(twin || handle == 2), |stream| stream.id),
    )
}

pub fn device(handle: usize, out: Out<i32>, _twin: bool) -> Outcome<()> {
    driver()?;
    out.put(device::ordinal(Stream::context_of(handle)?.device())?)
}

/// `cuStreamAttachMemAsync`. The driver never captures this call into a graph.
pub fn attach(
    handle: usize,
    _address: u64,
    _bytes: usize,
    _flags: u32,
    _twin: bool,
) -> Outcome<()> {
    known(handle)?;
    capture::waits_for(Stream::from_handle(handle)?)
}

pub fn host_function(handle: usize, function: usize, data: usize, twin: bool) -> Outcome<()> {
    enqueue(handle, twin)?;
    if function == 0 {
        return Err(Status::INVALID_VALUE);
    }
    if captured(handle)? {
        return Ok(());
    }
    // SAFETY: the C caller promises that this is the address of a function of this type.
    let function: extern "C" fn(usize) = unsafe { std::mem::transmute(function) };
    function(data);
    Ok(())
}

pub fn callback(
    handle: usize,
    callback: usize,
    data: usize,
    _flags: u32,
    twin: bool,
) -> Outcome<()> {
    enqueue(handle, twin)?;
    capture::waits_for(Stream::from_handle(handle)?)?;
    if callback == 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the C caller promises that this is the address of a function of this type.
    let callback: extern "C" fn(usize, i32, usize) = unsafe { std::mem::transmute(callback) };
    callback(handle, 0, data);
    Ok(())
}

pub fn begin_capture(handle: usize, twin: bool) -> Outcome<()> {
    begin_capture_v2(handle, 0, twin)
}

/// Begins a capture of a stream. The default streams cannot be captured.
pub fn begin_capture_v2(handle: usize, mode: i32, _twin: bool) -> Outcome<()> {
    driver()?;
    let stream = Stream::from_handle(handle)?.ok_or(Status::STREAM_CAPTURE_UNSUPPORTED)?;
    capture::begin(stream, mode, None)
}

/// `cuStreamBeginCaptureToGraph`. The simulated driver ignores the nodes on which the captured
/// calls depend.
pub fn begin_capture_to_graph(
    handle: usize,
    graph: usize,
    _dependencies: usize,
    _edges: usize,
    _count: usize,
    mode: i32,
    _twin: bool,
) -> Outcome<()> {
    driver()?;
    let stream = Stream::from_handle(handle)?.ok_or(Status::STREAM_CAPTURE_UNSUPPORTED)?;
    capture::begin(stream, mode, Some(Graph::from_handle(graph)?))
}

/// `cuStreamBeginRecaptureToGraph`. The simulated driver does not compare the captured calls with
/// the nodes that the graph has.
pub fn begin_recapture(
    handle: usize,
    mode: i32,
    graph: usize,
    _callback: usize,
    _data: usize,
    twin: bool,
) -> Outcome<()> {
    begin_capture_to_graph(handle, graph, 0, 0, 0, mode, twin)
}

pub fn end_capture(handle: usize, graph: Out<usize>, _twin: bool) -> Outcome<()> {
    let ended = capture::end(own(handle)?);
    if ended.is_err() {
        graph.put_if(0);
    }
    graph.put(ended?.handle())
}

fn captured(handle: usize) -> Outcome<bool> {
    Ok(status_of(handle)? != capture::NONE)
}

fn status_of(handle: usize) -> Outcome<i32> {
    Ok(Stream::from_handle(handle)?.map_or(capture::NONE, Stream::capture_status))
}

pub fn is_capturing(handle: usize, status: Out<i32>, twin: bool) -> Outcome<()> {
    driver()?;
    if let Some(stream) = Stream::from_handle(handle)? {
        return status.put(stream.capture_status());
    }
    let context = current()?;
    // If a capture forbids the use of the legacy stream, `cuStreamIsCapturing` of the legacy stream
    // fails. The capture stays valid.
    if is_legacy(handle, twin) && capture::holds_legacy(context) {
        return Err(Status::STREAM_CAPTURE_IMPLICIT);
    }
    status.put(capture::NONE)
}

pub fn capture_info(handle: usize, status: Out<i32>, id: Out<u64>, twin: bool) -> Outcome<()> {
    capture_info_v2(
        handle,
        status,
        id,
        Out::null(),
        Out::null(),
        Out::null(),
        twin,
    )
}

/// Returns the state of a capture. The simulated driver does not return the graph nodes on which
/// the next captured call depends.
pub fn capture_info_v2(
    handle: usize,
    status: Out<i32>,
    id: Out<u64>,
    graph: Out<usize>,
    dependencies: Out<usize>,
    count: Out<usize>,
    twin: bool,
) -> Outcome<()> {
    is_capturing(handle, status, twin)?;
    if status_of(handle)? == capture::ACTIVE
        && let Some(stream) = Stream::from_handle(handle)?
        && let Some((number, captured)) = capture::info(stream)
    {
        id.put_if(number);
        graph.put_if(captured.handle());
        dependencies.put_if(0);
        count.put_if(0);
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn capture_info_v3(
    handle: usize,
    status: Out<i32>,
    id: Out<u64>,
    graph: Out<usize>,
    dependencies: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
    twin: bool,
) -> Outcome<()> {
    capture_info_v2(handle, status, id, graph, dependencies, count, twin)?;
    if captured(handle)? {
        edges.put_if(0);
    }
    Ok(())
}

pub fn exchange_mode(mode: Out<i32>) -> Outcome<()> {
    driver()?;
    mode.put(capture::exchange_mode(mode.read()?)?)
}

pub fn create_event(out: Out<usize>, _flags: u32) -> Outcome<()> {
    out.put(Event::create(here()?).handle())
}

/// Opens an event of another process. Any handle makes a new event here.
pub fn open_event(out: Out<usize>, _handle: Handle) -> Outcome<()> {
    create_event(out, 0)
}

fn event(handle: usize) -> Outcome<&'static Event> {
    driver()?;
    Event::from_handle(handle)
}

pub fn destroy_event(handle: usize) -> Outcome<()> {
    event(handle)?.destroy();
    Ok(())
}

pub fn record(event: usize, handle: usize, twin: bool) -> Outcome<()> {
    let captured = enqueue(handle, twin)?;
    let queue = (Name { handle, twin }).queue().filter(|_| !captured);
    self::event(event)?.record(queue);
    Ok(())
}

pub fn record_with_flags(handle: usize, stream: usize, _flags: u32, twin: bool) -> Outcome<()> {
    record(handle, stream, twin)
}

pub fn query_event(handle: usize) -> Outcome<()> {
    capture::unsafe_call()?;
    work::query(event(handle)?.end())
}

pub fn synchronize_event(handle: usize) -> Outcome<()> {
    capture::unsafe_call()?;
    let event = event(handle)?;
    work::wait(event.end());
    Pool::synchronize_all(event.context.device());
    Ok(())
}

pub fn elapsed(ms: Out<f32>, start: usize, end: usize) -> Outcome<()> {
    ms.put(event(end)?.elapsed_since(event(start)?)?)
}
