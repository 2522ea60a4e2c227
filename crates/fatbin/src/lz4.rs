//! Decompression of one LZ4 block from a fat binary. The block has no LZ4 frame around it.

use super::output::{Output, STEP};

/// Length of an LZ4 match whose length code is 0.
const SHORTEST_MATCH: usize = 4;
/// A special value of a four-bit length field. It means that the length continues in the following
/// bytes.
const GOES_ON: usize = 15;

/// Decompresses the LZ4 block `packed`. Returns `None` if the result does not have exactly `size`
/// bytes, or if memory is short.
pub fn decode(packed: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut out = Output::new(size)?;
    let mut rest = packed;
    loop {
        let token = usize::from(take(&mut rest)?);
        let literals = length(token >> 4, &mut rest)?;
        match rest.len() > literals.saturating_add(STEP) {
            true => out.append_front(rest, literals)?,
            false => out.append(rest.get(..literals)?)?,
        }
        rest = rest.get(literals..)?;
        if rest.is_empty() {
            // The last sequence of an LZ4 block consists of literals only.
            return out.done();
        }
        let offset = usize::from(take(&mut rest)?) | usize::from(take(&mut rest)?) << 8;
        let count = length(token & GOES_ON, &mut rest)?.checked_add(SHORTEST_MATCH)?;
        out.repeat(offset, count)?;
    }
}

fn take(rest: &mut &[u8]) -> Option<u8> {
    let (first, behind) = rest.split_first()?;
    *rest = behind;
    Some(*first)
}

fn length(code: usize, rest: &mut &[u8]) -> Option<usize> {
    let mut length = code;
    if code == GOES_ON {
        loop {
            let more = take(rest)?;
            length = length.checked_add(usize::from(more))?;
            if more != u8::MAX {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_matches() {
        assert_eq!(decode(b"\x50hello", 5).unwrap(), b"hello");
        // The block contains three literals, a match of nine bytes at distance three, and one
        // literal.
        assert_eq!(decode(b"\x35abc\x03\0\x10!", 13).unwrap(), b"abcabcabcabc!");
        // The block contains a run: a match that copies bytes that the match itself has just
        // written.
        assert_eq!(
            decode(b"\x1fx\x01\0\xff\x00\x00", 275).unwrap(),
            [b'x'; 275]
        );
        let mut long = vec![0xf0, 255, 30];
        long.extend([7; 300]);
        assert_eq!(decode(&long, 300).unwrap(), [7; 300]);
        assert_eq!(decode(b"\0", 0).unwrap(), b"");
    }

    #[test]
    fn invalid_data_is_rejected() {
        for (packed, size) in [
            (&b""[..], 0),
            (b"\x50hell", 5),
            (b"\x50hello", 4),
            (b"\x50hello", 6),
            (b"\x35abc", 12),
            (b"\x35abc\x04\0\x10!", 13),
            (b"\x35abc\0\0\x10!", 13),
            (b"\x35abc\x03\0\x10!", 12),
            (b"\x35abc\x03", 12),
            (b"\xf0\xff\xff", 1 << 20),
        ] {
            assert_eq!(decode(packed, size), None, "{packed:x?}");
        }
        assert_eq!(decode(b"\x50hello", usize::MAX), None);
    }
}
