//! Reads compiled code: cubins, and fat binaries of nvcc 11 to 13.
//!
//! A fat binary has an image of the same code for each kind of GPU. The images can be compressed
//! with LZ4 or zstd.

use std::borrow::Cow;

use gpulimit_sim::abi::Text;
use gpulimit_sim::{Outcome, Status};
use ruzstd::decoding::FrameDecoder;

const FATBIN: [u8; 8] = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
const WRAPPER: [u8; 4] = [0xb1, 0x43, 0x62, 0x46];
const ELF: [u8; 4] = [0x7f, b'E', b'L', b'F'];
/// The compute capability 9.0 of the simulated GPUs, as `cuDeviceGetAttribute` reports it.
const GPU: u32 = 90;

/// The part of a code image that the driver loads.
pub enum Code<'a> {
    Text(Cow<'a, [u8]>),
    /// Machine code: the bytes of its variables in device memory, and the bytes of its managed
    /// variables.
    Machine {
        bytes: u64,
        managed: u64,
    },
}

/// Returns the code image at this pointer. PTX text ends with a NUL; other images have a header
/// with the length.
pub fn behind(image: Text) -> Outcome<Cow<'static, [u8]>> {
    if image.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let start: [u8; 4] = image.field(0).get()?;
    if start == WRAPPER {
        return behind(image.field::<Text>(8).get()?);
    }
    let length = if start == FATBIN[..4] {
        16 + image.field::<u64>(8).get()?
    } else if start == ELF {
        // An ELF file ends with its table of sections or with its table of segments.
        let sections =
            image.field::<u64>(40).get()? + u64::from(image.field::<u16>(60).get()?) * 64;
        let segments =
            image.field::<u64>(32).get()? + u64::from(image.field::<u16>(56).get()?) * 56;
        sections.max(segments)
    } else {
        return image.bytes().map(Cow::Borrowed);
    };
    (0..length as usize)
        .map(|at| image.field(at).get())
        .collect::<Outcome<Vec<u8>>>()
        .map(Cow::Owned)
}

/// Returns the part of a code image that the driver loads.
pub fn code(image: &[u8]) -> Outcome<Code<'_>> {
    if image.starts_with(&FATBIN) {
        let (kind, code) = choice(image).ok_or(Status::NO_BINARY_FOR_GPU)?;
        return match kind {
            1 => Ok(Code::Text(code)),
            _ => machine(&code),
        };
    }
    match image.starts_with(&ELF) {
        true => machine(image),
        false => Ok(Code::Text(Cow::Borrowed(image))),
    }
}

fn machine(cubin: &[u8]) -> Outcome<Code<'static>> {
    let (all, managed) = variables(cubin)
        .zip(managed(cubin))
        .ok_or(Status::INVALID_IMAGE)?;
    let bytes = all.saturating_sub(managed);
    Ok(Code::Machine { bytes, managed })
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let mut wide = [0; 8];
    wide.get_mut(..width)?
        .copy_from_slice(bytes.get(at..)?.get(..width)?);
    Some(u64::from_le_bytes(wide))
}

/// Returns the entry of a fat binary that the simulated GPU runs: machine code, otherwise the
/// newest PTX text that fits.
fn choice(fatbin: &[u8]) -> Option<(u64, Cow<'_, [u8]>)> {
    let mut rest = fatbin.get(16..)?;
    let mut best = None;
    while rest.len() >= 64 {
        let (kind, made_for) = (number(rest, 0, 2)?, number(rest, 28, 4)? as u32);
        let (header, payload) = (number(rest, 4, 4)? as usize, number(rest, 8, 8)? as usize);
        let fits = match kind {
            1 => made_for <= GPU,
            2 => made_for / 10 == GPU / 10 && made_for <= GPU,
            _ => false,
        };
        let rank = (kind, made_for);
        if fits && best.is_none_or(|(best, _)| rank > best) {
            best = Some((rank, rest));
        }
        rest = rest.get(header.checked_add(payload)?..)?;
    }
    let ((kind, _), entry) = best?;
    Some((kind, content(entry)?))
}

/// Returns the decompressed content of an entry of a fat binary.
fn content(entry: &[u8]) -> Option<Cow<'_, [u8]>> {
    let (flags, packed, size) = (
        number(entry, 40, 8)?,
        number(entry, 16, 4)? as usize,
        number(entry, 56, 8)? as usize,
    );
    let payload = entry.get(number(entry, 4, 4)? as usize..)?;
    if flags & 0x2000 != 0 {
        let content = lz4_flex::block::decompress(payload.get(..packed)?, size).ok()?;
        return Some(Cow::Owned(content));
    }
    if flags & 0x8000 != 0 {
        let mut content = vec![0; size];
        let mut decoder = FrameDecoder::new();
        decoder
            .decode_all(payload.get(..packed)?, &mut content)
            .ok()?;
        return Some(Cow::Owned(content));
    }
    Some(Cow::Borrowed(payload.get(..number(entry, 8, 8)? as usize)?))
}

/// Returns the total size of a cubin's variables: the size of the sections `.nv.global` and
/// `.nv.global.init` together.
fn variables(cubin: &[u8]) -> Option<u64> {
    let table = number(cubin, 40, 8)? as usize;
    let section = |index: u64| table + index as usize * 64;
    let names = number(cubin, section(number(cubin, 62, 2)?) + 24, 8)? as usize;
    (0..number(cubin, 60, 2)?)
        .map(|index| {
            let name = names + number(cubin, section(index), 4)? as usize;
            let name = cubin.get(name..)?.split(|byte| *byte == 0).next()?;
            match name {
                b".nv.global" | b".nv.global.init" => number(cubin, section(index) + 32, 8),
                _ => Some(0),
            }
        })
        .sum()
}

/// Returns the total size of a cubin's managed variables. ptxas 12.9 sets bit 2 of `st_other` in
/// their symbols.
fn managed(cubin: &[u8]) -> Option<u64> {
    let table = number(cubin, 40, 8)? as usize;
    let mut sum = 0;
    for index in 0..number(cubin, 60, 2)? as usize {
        let section = table + index * 64;
        if number(cubin, section + 4, 4)? != 2 {
            continue;
        }
        let start = number(cubin, section + 24, 8)? as usize;
        let end = start.checked_add(number(cubin, section + 32, 8)? as usize)?;
        for symbol in cubin.get(start..end)?.chunks_exact(24) {
            if number(symbol, 4, 1)? & 15 == 1 && number(symbol, 5, 1)? & 4 != 0 {
                sum += number(symbol, 16, 8)?;
            }
        }
    }
    Some(sum)
}
