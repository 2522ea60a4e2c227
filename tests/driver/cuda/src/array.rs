//! The driver's functions for arrays and mipmapped arrays.

use gpulimit_sim::array::{self, Kind, Mapping, Part};
use gpulimit_sim::driver::driver;
use gpulimit_sim::tiling::{GRAIN, Shape};
use gpulimit_sim::{Outcome, Status, capture};

use crate::context::here;
use crate::device;
use crate::stream::enqueue;
use gpulimit_sim::abi::{In, Out};

fn make(out: Out<u64>, shape: Outcome<Shape>, levels: Option<u32>) -> Outcome<()> {
    let context = here()?;
    let shape = shape?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    capture::unsafe_call()?;
    out.put(array::create(context, shape, levels)?)
}

/// The variants of `cuArrayCreate` and `cuArray3DCreate` with 32-bit sizes. In a 64-bit process
/// both fail with error 201 (measured).
pub fn create_v1(_array: Out<u64>, _descriptor: In<u8>) -> Outcome<()> {
    driver()?;
    Err(Status::INVALID_CONTEXT)
}

/// Creates the array that a `CUDA_ARRAY_DESCRIPTOR` describes.
pub fn create(out: Out<u64>, descriptor: In<u8>) -> Outcome<()> {
    let shape = || {
        let [width, height] = descriptor.field::<[u64; 2]>(0).get()?;
        let [format, channels] = descriptor.field::<[u32; 2]>(16).get()?;
        Ok(Shape {
            width,
            height,
            depth: 0,
            format,
            channels,
            flags: 0,
        })
    };
    make(out, shape(), None)
}

/// Reads the shape of an array from a `CUDA_ARRAY3D_DESCRIPTOR`.
fn shape(descriptor: In<u8>) -> Outcome<Shape> {
    let [width, height, depth] = descriptor.field::<[u64; 3]>(0).get()?;
    let [format, channels, flags] = descriptor.field::<[u32; 3]>(24).get()?;
    Ok(Shape {
        width,
        height,
        depth,
        format,
        channels,
        flags,
    })
}

pub fn create_3d(out: Out<u64>, descriptor: In<u8>) -> Outcome<()> {
    make(out, shape(descriptor), None)
}

pub fn create_mipmapped(out: Out<u64>, descriptor: In<u8>, levels: u32) -> Outcome<()> {
    make(out, shape(descriptor), Some(levels))
}

fn end(kind: Kind, handle: u64) -> Outcome<()> {
    driver()?;
    capture::unsafe_call()?;
    array::destroy(kind, handle)
}

pub fn destroy(handle: u64) -> Outcome<()> {
    end(Kind::Array, handle)
}

pub fn destroy_mipmapped(handle: u64) -> Outcome<()> {
    end(Kind::Mipmapped, handle)
}

pub fn descriptor(out: Out<u8>, handle: u64) -> Outcome<()> {
    driver()?;
    let shape = array::shape(handle)?;
    out.cast().put([shape.width, shape.height])?;
    out.at(16).cast().put([shape.format, shape.channels])
}

pub fn descriptor_3d(out: Out<u8>, handle: u64) -> Outcome<()> {
    driver()?;
    let shape = array::shape(handle)?;
    out.cast().put([shape.width, shape.height, shape.depth])?;
    let words = [shape.format, shape.channels, shape.flags];
    out.at(24).cast().put(words)
}

/// Writes a `CUDA_ARRAY_MEMORY_REQUIREMENTS` for an array: size and alignment.
fn require(out: Out<[u64; 4]>, kind: Kind, handle: u64, ordinal: i32) -> Outcome<()> {
    driver()?;
    device::index(ordinal)?;
    out.put([array::requirement(kind, handle)?, GRAIN, 0, 0])
}

pub fn requirements(out: Out<[u64; 4]>, handle: u64, ordinal: i32) -> Outcome<()> {
    require(out, Kind::Array, handle, ordinal)
}

pub fn requirements_mipmapped(out: Out<[u64; 4]>, handle: u64, ordinal: i32) -> Outcome<()> {
    require(out, Kind::Mipmapped, handle, ordinal)
}

pub fn level(out: Out<u64>, handle: u64, number: u32) -> Outcome<()> {
    driver()?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    out.put(array::level(handle, number)?)
}

/// Size of a `CUarrayMapInfo` in bytes.
const MAP_INFO: usize = 96;

fn mapping(info: In<u8>) -> Outcome<Mapping> {
    let kind = match info.field::<u32>(0).get()? {
        0 => Kind::Array,
        1 => Kind::Mipmapped,
        _ => return Err(Status::INVALID_VALUE),
    };
    let part = match info.field::<u32>(16).get()? {
        0 => {
            let [level, layer, x, y, z, width, height, depth] = info.field::<[u32; 8]>(24).get()?;
            Part::Level {
                level,
                layer,
                offset: [x, y, z].map(u64::from),
                extent: [width, height, depth].map(u64::from),
            }
        }
        1 => {
            let [offset, size] = info.field::<[u64; 2]>(32).get()?;
            Part::Tail {
                layer: info.field(24).get()?,
                offset,
                size,
            }
        }
        _ => return Err(Status::INVALID_VALUE),
    };
    let memory = match info.field::<[u32; 2]>(56).get()? {
        [1, 0] => Some(info.field(64).get()?),
        [2, _] => None,
        _ => return Err(Status::INVALID_VALUE),
    };
    Ok(Mapping {
        kind,
        array: info.field(8).get()?,
        part,
        memory,
    })
}

pub fn map(list: In<u8>, count: u32, handle: usize, twin: bool) -> Outcome<()> {
    if enqueue(handle, twin)? {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    }
    if list.is_null() || count == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let infos = (0..count as usize).map(|index| mapping(list.field(index * MAP_INFO)));
    let mappings = infos.collect::<Outcome<Vec<Mapping>>>()?;
    array::map(&mappings)
}
