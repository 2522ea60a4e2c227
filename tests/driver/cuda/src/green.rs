//! The driver's functions for green contexts, which are parts of a primary context. Only their
//! memory is simulated.

use gpulimit_sim::abi::{In, Out};
use gpulimit_sim::context::{self, Context};
use gpulimit_sim::driver::driver;
use gpulimit_sim::stream::Stream;
use gpulimit_sim::{Outcome, Status};

use crate::device;

/// `CU_GREEN_CTX_DEFAULT_STREAM`, a required flag.
const DEFAULT_STREAM: u32 = 1;
/// `CU_DEV_RESOURCE_TYPE_SM`.
const MULTIPROCESSORS: i32 = 1;
/// The handle of the only resource description that exists: all multiprocessors.
const DESCRIPTION: usize = 0x5200_0000_0010;
/// A green context has two handles. Its `CUgreenCtx` handle is its `CUcontext` handle plus this
/// number.
const GREEN: usize = 8;

/// Writes a `CUdevResource`: the kind of resource, then 92 bytes that only the driver understands,
/// then the number of multiprocessors.
pub fn resource(ordinal: i32, resource: Out<u8>, kind: i32) -> Outcome<()> {
    device::index(ordinal)?;
    if kind != MULTIPROCESSORS {
        return Err(Status::INVALID_VALUE);
    }
    let count = gpulimit_sim::device::multiprocessors(driver()?.machine);
    resource.cast().put(kind)?;
    resource.at(96).cast().put(count as u32)
}

pub fn describe(description: Out<usize>, resources: In<u8>, count: u32) -> Outcome<()> {
    driver()?;
    if resources.is_null() || count == 0 {
        return Err(Status::INVALID_VALUE);
    }
    description.put(DESCRIPTION)
}

pub fn create(out: Out<usize>, description: usize, ordinal: i32, flags: u32) -> Outcome<()> {
    let index = device::index(ordinal)?;
    if out.is_null() || description != DESCRIPTION || flags != DEFAULT_STREAM {
        return Err(Status::INVALID_VALUE);
    }
    let primary = driver()?.gpu(index).primary;
    primary.retain()?;
    match primary.add_green() {
        Ok(green) => out.put(green.handle() + GREEN),
        Err(status) => primary.release().and(Err(status)),
    }
}

fn given(handle: usize) -> Outcome<&'static Context> {
    driver()?;
    Context::from_handle(handle.wrapping_sub(GREEN)).map_err(|_| Status::INVALID_HANDLE)
}

/// Destroys a green context. Each green context holds a reference to its primary context; this
/// function releases that reference.
pub fn destroy(handle: usize) -> Outcome<()> {
    let green = given(handle)?;
    let primary = green.end_green()?;
    if context::top().is_some_and(|top| std::ptr::eq(top, green)) {
        context::pop();
    }
    primary.release()
}

pub fn context(out: Out<usize>, handle: usize) -> Outcome<()> {
    out.put(given(handle)?.handle())
}

pub fn stream(out: Out<usize>, handle: usize, flags: u32, priority: i32) -> Outcome<()> {
    let green = given(handle)?;
    // Streams of green contexts must have the flag `CU_STREAM_NON_BLOCKING`.
    if out.is_null() || flags != 1 {
        return Err(Status::INVALID_VALUE);
    }
    if !green.is_active() {
        return Err(Status::CONTEXT_IS_DESTROYED);
    }
    out.put(Stream::create(green, flags, priority.clamp(-5, 0))?.handle())
}
