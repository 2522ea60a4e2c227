//! One block of LZ4 as it lies in a fat binary: without a frame around it, of a size that is stated
//! elsewhere.
//!
//! Layout: LZ4 block format description.

use super::output::{Output, STEP};

/// What a match is longer than its code says.
const SHORTEST_MATCH: usize = 4;
/// A length of so much in its four bits goes on in the bytes behind them.
const GOES_ON: usize = 15;

/// The `size` bytes that `packed` says; `None` where it says anything else, or where there is no
/// memory for them.
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
            // The last sequence has no match.
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
        // Three literals, nine bytes from three before, one literal.
        assert_eq!(decode(b"\x35abc\x03\0\x10!", 13).unwrap(), b"abcabcabcabc!");
        // A run: what is copied is what has just been appended.
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
    fn what_is_not_right_says_nothing() {
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
