//! Decompression of one zstd frame (RFC 8878) from a fat binary. The frame uses no dictionary.
//!
//! The optional checksum is not verified, because the decompressed bytes are not trusted anyway.

mod bits;
mod fse;
mod huffman;
mod literals;
mod sequences;

use super::output::Output;
use literals::Literals;
use sequences::Sequences;

/// Largest size of a zstd block in bytes, compressed or not.
const MOST_OF_A_BLOCK: usize = 128 << 10;

/// Decompresses the zstd frame `packed`. Returns `None` if the result does not have exactly `size`
/// bytes, or if memory is short.
pub fn decode(packed: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut rest = packed;
    if header(&mut rest)?.is_some_and(|content| content != size as u64) {
        return None;
    }
    let mut out = Output::new(size)?;
    let (mut literals, mut sequences) = (Literals::default(), Sequences::default());
    loop {
        let header = number(&mut rest, 3)? as usize;
        let (last, kind, length) = (header & 1 != 0, header >> 1 & 3, header >> 3);
        match kind {
            0 => out.append(take(&mut rest, length)?)?,
            1 => out.append_all(*take(&mut rest, 1)?.first()?, length)?,
            2 => {
                let mut block = take(&mut rest, length)?;
                literals.read(&mut block)?;
                sequences.execute(block, literals.bytes(), literals.len(), &mut out)?;
            }
            _ => return None,
        }
        if last {
            return out.done();
        }
    }
}

/// Reads the header of a zstd frame. Returns the size of the frame's content if the header states
/// the size.
fn header(rest: &mut &[u8]) -> Option<Option<u64>> {
    const MAGIC: u64 = 0xfd2f_b528;
    if number(rest, 4)? != MAGIC {
        return None;
    }
    let flags = number(rest, 1)?;
    let is_whole = flags & 0x20 != 0;
    if !is_whole {
        take(rest, 1)?;
    }
    let dictionary = number(rest, [0, 1, 2, 4][flags as usize & 3])?;
    if flags & 8 != 0 || dictionary != 0 {
        return None;
    }
    Some(match flags >> 6 {
        0 if !is_whole => None,
        0 => Some(number(rest, 1)?),
        1 => Some(number(rest, 2)? + 256),
        2 => Some(number(rest, 4)?),
        _ => Some(number(rest, 8)?),
    })
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(count)?;
    *rest = behind;
    Some(taken)
}

/// Reads a little-endian number of at most eight bytes.
fn number(rest: &mut &[u8], width: usize) -> Option<u64> {
    let mut wide = [0; 8];
    wide.get_mut(..width)?.copy_from_slice(take(rest, width)?);
    Some(u64::from_le_bytes(wide))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LICENSE: &[u8] = include_bytes!("../../../LICENSE-APACHE");
    const PACKED: &[u8] = include_bytes!("fixtures/license.zst");
    const MAGIC: &[u8] = b"\x28\xb5\x2f\xfd";

    /// Builds a zstd frame of one segment with these blocks, each given as kind, length and
    /// content.
    fn frame(size: u8, blocks: &[(usize, usize, &[u8])]) -> Vec<u8> {
        let mut frame = [MAGIC, &[0x20, size]].concat();
        for (number, (kind, length, content)) in blocks.iter().enumerate() {
            let last = usize::from(number + 1 == blocks.len());
            let header = length << 3 | kind << 1 | last;
            frame.extend(&header.to_le_bytes()[..3]);
            frame.extend(*content);
        }
        frame
    }

    #[test]
    fn blocks_of_every_kind() {
        let raw = frame(5, &[(0, 5, b"hello")]);
        assert_eq!(decode(&raw, 5).unwrap(), b"hello");
        let mixed = frame(9, &[(0, 3, b"abc"), (1, 6, b"x")]);
        assert_eq!(decode(&mixed, 9).unwrap(), b"abcxxxxxx");
        // The block contains three uncompressed literals and no sequences.
        let literals = frame(3, &[(2, 5, b"\x18abc\0")]);
        assert_eq!(decode(&literals, 3).unwrap(), b"abc");
        // The block contains five equal literals and no sequences.
        let repeated = frame(5, &[(2, 3, b"\x29z\0")]);
        assert_eq!(decode(&repeated, 5).unwrap(), b"zzzzz");
        assert_eq!(decode(PACKED, LICENSE.len()).unwrap(), LICENSE);
    }

    #[test]
    fn invalid_data_is_rejected() {
        let raw = frame(5, &[(0, 5, b"hello")]);
        for (frame, size) in [
            (&raw[..], 4),
            (&raw, 6),
            (&raw[..raw.len() - 1], 5),
            (&raw[1..], 5),
            (&[], 0),
            (MAGIC, 0),
            (&frame(5, &[(3, 5, b"hello")]), 5),
            (&frame(5, &[(2, 5, b"hello")]), 5),
            (&frame(5, &[(0, 6, b"hello!")]), 5),
            (&frame(5, &[(2, 6, b"\x18abc\0!")]), 5),
            (&[MAGIC, &[0x21, 7, 5, 0x29, 0, 0], b"hello"].concat(), 5), // a dictionary
            (&PACKED[..PACKED.len() - 1], LICENSE.len()),
        ] {
            assert_eq!(decode(frame, size), None, "{frame:x?}");
        }
        assert_eq!(decode(&raw, usize::MAX), None);
    }

    /// A damaged zstd frame must cause no panic, and must decode to the stated size or not at all.
    #[test]
    fn damaged() {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut refused = 0;
        for number in 0..20_000 {
            let mut frame = PACKED.to_vec();
            // Every second time, damage only the front of the frame, which describes the codes.
            let most = if number % 2 == 0 { 200 } else { frame.len() };
            for _ in 0..=random(2) {
                frame[random(most)] = random(256) as u8;
            }
            match decode(&frame.into_boxed_slice(), LICENSE.len()) {
                Some(decoded) => assert_eq!(decoded.len(), LICENSE.len()),
                None => refused += 1,
            }
        }
        assert!(refused > 1000, "{refused}");
    }
}
