//! The driver's functions that copy and fill memory. A call returns when its copy is done, but
//! moves only the first part of large data (see [`space`]).

use gpulimit_sim::space::space;
use gpulimit_sim::{Outcome, Status};

use crate::context::here;
use crate::stream::{enqueue, implicit};
use gpulimit_sim::abi::In;

pub fn copy(to: u64, from: u64, bytes: usize, twin: bool) -> Outcome<()> {
    implicit(here()?, 0, twin)?;
    copy_now(to, from, bytes)
}

fn copy_now(to: u64, from: u64, bytes: usize) -> Outcome<()> {
    if bytes == 0 {
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the C caller promises that it may access the addresses outside the device space.
    unsafe { space().copy(to, from, bytes) };
    Ok(())
}

pub fn copy_async(to: u64, from: u64, bytes: usize, stream: usize, twin: bool) -> Outcome<()> {
    if enqueue(stream, twin)? {
        return Ok(());
    }
    here()?;
    copy_now(to, from, bytes)
}

pub fn copy_peer(
    to: u64,
    _target: usize,
    from: u64,
    _source: usize,
    bytes: usize,
    twin: bool,
) -> Outcome<()> {
    copy(to, from, bytes, twin)
}

pub fn copy_peer_async(
    to: u64,
    _target: usize,
    from: u64,
    _source: usize,
    bytes: usize,
    stream: usize,
    twin: bool,
) -> Outcome<()> {
    copy_async(to, from, bytes, stream, twin)
}

/// Accepts a two- or three-dimensional copy, but moves no data.
pub fn copy_shape(params: In<u8>, _twin: bool) -> Outcome<()> {
    here()?;
    if params.is_null() {
        Err(Status::INVALID_VALUE)
    } else {
        Ok(())
    }
}

pub fn copy_shape_async(params: In<u8>, _stream: usize, twin: bool) -> Outcome<()> {
    copy_shape(params, twin)
}

fn fill(to: u64, value: u32, width: usize, count: usize, twin: bool) -> Outcome<()> {
    implicit(here()?, 0, twin)?;
    fill_now(to, value, width, count)
}

fn fill_now(to: u64, value: u32, width: usize, count: usize) -> Outcome<()> {
    if count > 0 && !space().contains(to) && crate::host::find(to as usize).is_none() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the address was just found to be in the device space or in memory that the C caller
    // pinned.
    unsafe { space().fill(to, value, width, count) };
    Ok(())
}

fn fill_async(
    to: u64,
    value: u32,
    width: usize,
    count: usize,
    stream: usize,
    twin: bool,
) -> Outcome<()> {
    if enqueue(stream, twin)? {
        return Ok(());
    }
    here()?;
    fill_now(to, value, width, count)
}

pub fn fill8(to: u64, value: u8, count: usize, twin: bool) -> Outcome<()> {
    fill(to, value.into(), 1, count, twin)
}

pub fn fill16(to: u64, value: u16, count: usize, twin: bool) -> Outcome<()> {
    fill(to, value.into(), 2, count, twin)
}

pub fn fill32(to: u64, value: u32, count: usize, twin: bool) -> Outcome<()> {
    fill(to, value, 4, count, twin)
}

pub fn fill8_async(to: u64, value: u8, count: usize, stream: usize, twin: bool) -> Outcome<()> {
    fill_async(to, value.into(), 1, count, stream, twin)
}

pub fn fill16_async(to: u64, value: u16, count: usize, stream: usize, twin: bool) -> Outcome<()> {
    fill_async(to, value.into(), 2, count, stream, twin)
}

pub fn fill32_async(to: u64, value: u32, count: usize, stream: usize, twin: bool) -> Outcome<()> {
    fill_async(to, value, 4, count, stream, twin)
}
