//! Streams, events and capture.

use gpulimit_sim::driver::driver;
use gpulimit_sim::pool::Pool;
use gpulimit_sim::stream::{Event, Stream};
use gpulimit_sim::{Outcome, Status};

use crate::context::here;
use crate::device;
use gpulimit_sim::abi::Out;

pub fn create(out: Out<usize>, flags: u32) -> Outcome<()> {
    create_with_priority(out, flags, 0)
}

pub fn create_with_priority(out: Out<usize>, flags: u32, priority: i32) -> Outcome<()> {
    let context = here()?;
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

pub fn synchronize(handle: usize, _twin: bool) -> Outcome<()> {
    driver()?;
    let context = Stream::context_of(handle)?;
    if Stream::from_handle(handle)?.is_some_and(Stream::is_capturing) {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    }
    Pool::synchronize_all(context.device());
    Ok(())
}

pub fn query(handle: usize, _twin: bool) -> Outcome<()> {
    driver()?;
    Stream::context_of(handle).map(drop)
}

pub fn wait_event(handle: usize, event: usize, _flags: u32, twin: bool) -> Outcome<()> {
    query(handle, twin)?;
    Event::from_handle(event).map(drop)
}

pub fn flags(handle: usize, flags: Out<u32>, twin: bool) -> Outcome<()> {
    query(handle, twin)?;
    flags.put(Stream::from_handle(handle)?.map_or(0, |stream| stream.flags))
}

pub fn priority(handle: usize, priority: Out<i32>, twin: bool) -> Outcome<()> {
    query(handle, twin)?;
    priority.put(Stream::from_handle(handle)?.map_or(0, |stream| stream.priority))
}

pub fn context(handle: usize, context: Out<usize>, _twin: bool) -> Outcome<()> {
    driver()?;
    context.put(Stream::context_of(handle)?.handle())
}

pub fn id(handle: usize, id: Out<u64>, twin: bool) -> Outcome<()> {
    query(handle, twin)?;
    id.put(
        Stream::from_handle(handle)?.map_or(1 + u64::from(twin || handle == 2), |stream| stream.id),
    )
}

pub fn device(handle: usize, out: Out<i32>, _twin: bool) -> Outcome<()> {
    driver()?;
    out.put(device::ordinal(Stream::context_of(handle)?.device())?)
}

pub fn attach(handle: usize, _address: u64, _bytes: usize, _flags: u32, twin: bool) -> Outcome<()> {
    query(handle, twin)
}

pub fn host_function(handle: usize, function: usize, data: usize, twin: bool) -> Outcome<()> {
    query(handle, twin)?;
    if function == 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the C caller promises a function of this type.
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
    query(handle, twin)?;
    if callback == 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the C caller promises a function of this type.
    let callback: extern "C" fn(usize, i32, usize) = unsafe { std::mem::transmute(callback) };
    callback(handle, 0, data);
    Ok(())
}

pub fn begin_capture(handle: usize, twin: bool) -> Outcome<()> {
    begin_capture_v2(handle, 0, twin)
}

/// The default streams cannot be captured.
pub fn begin_capture_v2(handle: usize, _mode: i32, _twin: bool) -> Outcome<()> {
    driver()?;
    Stream::from_handle(handle)?
        .ok_or(Status::STREAM_CAPTURE_UNSUPPORTED)?
        .begin_capture()
}

/// Graphs are not modelled: the handle is good for nothing.
pub fn end_capture(handle: usize, graph: Out<usize>, _twin: bool) -> Outcome<()> {
    own(handle)?.end_capture()?;
    graph.put(handle)
}

pub fn is_capturing(handle: usize, status: Out<i32>, twin: bool) -> Outcome<()> {
    query(handle, twin)?;
    status.put(
        Stream::from_handle(handle)?
            .is_some_and(Stream::is_capturing)
            .into(),
    )
}

pub fn exchange_mode(mode: Out<i32>) -> Outcome<()> {
    driver()?;
    mode.put(0)
}

pub fn create_event(out: Out<usize>, _flags: u32) -> Outcome<()> {
    out.put(Event::create(here()?).handle())
}

fn event(handle: usize) -> Outcome<&'static Event> {
    driver()?;
    Event::from_handle(handle)
}

pub fn destroy_event(handle: usize) -> Outcome<()> {
    event(handle)?.destroy();
    Ok(())
}

pub fn record(handle: usize, stream: usize, twin: bool) -> Outcome<()> {
    query(stream, twin)?;
    event(handle)?.record();
    Ok(())
}

pub fn record_with_flags(handle: usize, stream: usize, _flags: u32, twin: bool) -> Outcome<()> {
    record(handle, stream, twin)
}

pub fn query_event(handle: usize) -> Outcome<()> {
    event(handle).map(drop)
}

pub fn synchronize_event(handle: usize) -> Outcome<()> {
    Pool::synchronize_all(event(handle)?.context.device());
    Ok(())
}

pub fn elapsed(ms: Out<f32>, start: usize, end: usize) -> Outcome<()> {
    ms.put(event(end)?.elapsed_since(event(start)?)?)
}
