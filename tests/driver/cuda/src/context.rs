//! The driver's functions for contexts.

use std::sync::atomic::Ordering::Relaxed;

use gpulimit_sim::cancel;
use gpulimit_sim::context::{self, Context, current};
use gpulimit_sim::driver::driver;
use gpulimit_sim::pool::Pool;
use gpulimit_sim::{Outcome, Status, capture, checkpoint, work};

use crate::device;
use gpulimit_sim::abi::{In, Out};

fn primary(ordinal: i32) -> Outcome<&'static Context> {
    Ok(driver()?.gpu(device::index(ordinal)?).primary)
}

/// Returns the context that a handle stands for. The handle NULL stands for the current context.
pub fn given(handle: usize) -> Outcome<&'static Context> {
    driver()?;
    if handle == 0 {
        return current();
    }
    let context = Context::from_handle(handle)?;
    if context.is_active() {
        Ok(context.base())
    } else {
        Err(Status::CONTEXT_IS_DESTROYED)
    }
}

/// Returns the current context. Fails while the driver is not initialised.
pub fn here() -> Outcome<&'static Context> {
    driver()?;
    current()
}

pub fn retain(out: Out<usize>, ordinal: i32) -> Outcome<()> {
    let context = primary(ordinal)?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    context.retain()?;
    out.put(context.handle())
}

pub fn release(ordinal: i32) -> Outcome<()> {
    primary(ordinal)?.release()
}

pub fn reset(ordinal: i32) -> Outcome<()> {
    primary(ordinal)?.reset()
}

pub fn set_primary_flags(ordinal: i32, flags: u32) -> Outcome<()> {
    cancel::note_flags(flags);
    primary(ordinal)?.flags.store(flags, Relaxed);
    Ok(())
}

/// `cuDevicePrimaryCtxSetFlags` before CUDA 11. This version fails if the context is active.
pub fn set_primary_flags_v1(ordinal: i32, flags: u32) -> Outcome<()> {
    if primary(ordinal)?.is_active() {
        return Err(Status::PRIMARY_CONTEXT_ACTIVE);
    }
    set_primary_flags(ordinal, flags)
}

pub fn primary_state(ordinal: i32, flags: Out<u32>, active: Out<i32>) -> Outcome<()> {
    let context = primary(ordinal)?;
    flags.put(context.flags.load(Relaxed))?;
    active.put(context.is_active().into())
}

pub fn create(out: Out<usize>, flags: u32, ordinal: i32) -> Outcome<()> {
    let index = device::index(ordinal)?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let context = Context::create(index, flags)?;
    cancel::note_flags(flags);
    context::push(context);
    out.put(context.handle())
}

pub fn create_v3(
    out: Out<usize>,
    _params: In<u8>,
    _count: i32,
    flags: u32,
    ordinal: i32,
) -> Outcome<()> {
    create(out, flags, ordinal)
}

pub fn create_v4(out: Out<usize>, _params: In<u8>, flags: u32, ordinal: i32) -> Outcome<()> {
    create(out, flags, ordinal)
}

pub fn create_vdpau(
    out: Out<usize>,
    flags: u32,
    ordinal: i32,
    _device: u32,
    _get_proc_address: usize,
) -> Outcome<()> {
    create(out, flags, ordinal)
}

pub fn destroy(handle: usize) -> Outcome<()> {
    driver()?;
    Context::from_handle(handle)?.destroy()
}

pub fn attach(out: Out<usize>, flags: u32) -> Outcome<()> {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let context = here()?;
    context.references.fetch_add(1, Relaxed);
    out.put(context.handle())
}

pub fn detach(handle: usize) -> Outcome<()> {
    let context = given(handle)?;
    if context.is_primary() {
        return context.release();
    }
    match context.references.fetch_sub(1, Relaxed) {
        1 => context.destroy(),
        _ => Ok(()),
    }
}

pub fn get_current(out: Out<usize>) -> Outcome<()> {
    driver()?;
    out.put(context::top().map_or(0, Context::handle))
}

pub fn set_current(handle: usize) -> Outcome<()> {
    driver()?;
    context::set_current(if handle == 0 {
        None
    } else {
        Some(Context::from_handle(handle)?)
    });
    Ok(())
}

pub fn push_current(handle: usize) -> Outcome<()> {
    driver()?;
    context::push(Context::from_handle(handle)?);
    Ok(())
}

pub fn pop_current(out: Out<usize>) -> Outcome<()> {
    driver()?;
    let popped = context::pop().ok_or(Status::INVALID_CONTEXT)?;
    out.put_if(popped.handle());
    Ok(())
}

pub fn get_device(out: Out<i32>) -> Outcome<()> {
    driver()?;
    let context = context::top().ok_or(Status::INVALID_CONTEXT)?;
    out.put(device::ordinal(context.device())?)
}

pub fn get_device_v2(out: Out<i32>, handle: usize) -> Outcome<()> {
    out.put(device::ordinal(given(handle)?.device())?)
}

pub fn synchronize() -> Outcome<()> {
    synchronize_one(here()?)
}

fn synchronize_one(context: &Context) -> Outcome<()> {
    capture::synchronizes(context)?;
    work::wait_for(context);
    Pool::synchronize_all(context.device());
    Ok(())
}

pub fn synchronize_v2(handle: usize) -> Outcome<()> {
    synchronize_one(given(handle)?)
}

pub fn api_version(handle: usize, version: Out<u32>) -> Outcome<()> {
    given(handle)?;
    version.put(3020)
}

pub fn get_flags(flags: Out<u32>) -> Outcome<()> {
    flags.put(here()?.flags.load(Relaxed))
}

pub fn set_flags(flags: u32) -> Outcome<()> {
    cancel::note_flags(flags);
    here()?.flags.store(flags, Relaxed);
    Ok(())
}

pub fn get_id(handle: usize, id: Out<u64>) -> Outcome<()> {
    id.put(given(handle)?.id())
}

pub fn get_limit(value: Out<usize>, limit: i32) -> Outcome<()> {
    value.put(here()?.limit(limit)? as usize)
}

pub fn set_limit(limit: i32, value: usize) -> Outcome<()> {
    here()?.set_limit(limit, value as u64)
}

pub fn priority_range(least: Out<i32>, greatest: Out<i32>) -> Outcome<()> {
    here()?;
    least.put_if(0);
    greatest.put_if(-5);
    Ok(())
}

pub fn get_config(config: Out<i32>) -> Outcome<()> {
    here()?;
    config.put(0)
}

pub fn set_config(_config: i32) -> Outcome<()> {
    here().map(drop)
}

pub fn reset_l2() -> Outcome<()> {
    here().map(drop)
}

pub fn peer_access(peer: usize, _flags: u32) -> Outcome<()> {
    let (here, there) = (here()?.device(), given(peer)?.device());
    if there == here {
        Err(Status::INVALID_DEVICE)
    } else {
        checkpoint::note_access(Some(here), Some(there));
        Ok(())
    }
}

pub fn no_peer_access(peer: usize) -> Outcome<()> {
    here()?;
    given(peer).map(drop)
}
