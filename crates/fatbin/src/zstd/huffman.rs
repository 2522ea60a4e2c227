//! Decoding of literals in Huffman codes.

use super::bits::Backward;
use super::{fse, number, take};

const MOST_BITS: u32 = 11;
/// Number of Huffman codes that can be read between two refills of the bit reader.
const AT_ONCE: usize = 5;

/// A Huffman decoding table. The next `bits` bits of the stream select a symbol and its code
/// length.
#[derive(Default)]
pub struct Table {
    bits: u32,
    codes: Vec<(u8, u8)>,
}

impl Table {
    /// Reads the description of a Huffman table from the front of `rest`.
    pub fn read(rest: &mut &[u8]) -> Option<Table> {
        let weights = weights(rest)?;
        let sum: u32 = weights.iter().map(|weight| 1 << weight >> 1).sum();
        let bits = sum.checked_ilog2()? + 1;
        // The weight of the last symbol is not stored. This symbol gets the rest of the table.
        let left = (1 << bits) - sum;
        if bits > MOST_BITS || !u32::is_power_of_two(left) {
            return None;
        }
        let last = left.ilog2() as u8 + 1;
        let mut codes = Vec::with_capacity(1 << bits);
        for weight in 1..=bits as u8 {
            for (symbol, of) in weights.iter().chain([&last]).enumerate() {
                if *of == weight {
                    let code = (symbol as u8, bits as u8 + 1 - weight);
                    codes.extend(std::iter::repeat_n(code, 1 << weight >> 1));
                }
            }
        }
        (codes.len() == 1 << bits).then_some(Table { bits, codes })
    }

    /// Decodes one stream of Huffman codes into all of `out`.
    pub fn decode(&self, stream: &[u8], out: &mut [u8]) -> Option<()> {
        let mut bits = Backward::new(stream)?;
        for out in out.chunks_mut(AT_ONCE) {
            self.some(&mut bits, out)?;
        }
        (bits.left() == 0).then_some(())
    }

    /// Decodes four streams of Huffman codes into the four quarters of `out`. The sizes of three
    /// streams come first.
    pub fn decode_four(&self, mut streams: &[u8], out: &mut [u8]) -> Option<()> {
        let mut sizes = [0; 3];
        for size in &mut sizes {
            *size = number(&mut streams, 2)? as usize;
        }
        let [first, second, third] = sizes;
        let mut bits = [
            Backward::new(take(&mut streams, first)?)?,
            Backward::new(take(&mut streams, second)?)?,
            Backward::new(take(&mut streams, third)?)?,
            Backward::new(streams)?,
        ];
        let quarter = out.len().div_ceil(4);
        let (a, rest) = out.split_at_mut_checked(quarter)?;
        let (b, rest) = rest.split_at_mut_checked(quarter)?;
        let (c, d) = rest.split_at_mut_checked(quarter)?;
        // The four streams are decoded alternately: they do not depend on each other, so the
        // processor can overlap the work.
        let together = d.len() / AT_ONCE * AT_ONCE;
        let ([a, a_rest], [b, b_rest], [c, c_rest], [d, d_rest]) = (
            <[&mut [u8]; 2]>::from(a.split_at_mut_checked(together)?),
            <[&mut [u8]; 2]>::from(b.split_at_mut_checked(together)?),
            <[&mut [u8]; 2]>::from(c.split_at_mut_checked(together)?),
            <[&mut [u8]; 2]>::from(d.split_at_mut_checked(together)?),
        );
        let [first, second, third, fourth] = &mut bits;
        let chunks = a.chunks_exact_mut(AT_ONCE).zip(b.chunks_exact_mut(AT_ONCE));
        let others = c.chunks_exact_mut(AT_ONCE).zip(d.chunks_exact_mut(AT_ONCE));
        for ((a, b), (c, d)) in chunks.zip(others) {
            self.some(first, a)?;
            self.some(second, b)?;
            self.some(third, c)?;
            self.some(fourth, d)?;
        }
        for (bits, rest) in bits.iter_mut().zip([a_rest, b_rest, c_rest, d_rest]) {
            for out in rest.chunks_mut(AT_ONCE) {
                self.some(bits, out)?;
            }
            if bits.left() != 0 {
                return None;
            }
        }
        Some(())
    }

    #[inline(always)]
    fn some(&self, bits: &mut Backward<'_>, out: &mut [u8]) -> Option<()> {
        bits.refill();
        for place in out {
            let (symbol, length) = *self.codes.get(bits.peek(self.bits) as usize)?;
            bits.skip(u32::from(length));
            *place = symbol;
        }
        Some(())
    }
}

fn weights(rest: &mut &[u8]) -> Option<Vec<u8>> {
    const MOST: usize = 255;
    let header = number(rest, 1)? as usize;
    if header >= 128 {
        let count = header - 127;
        let packed = take(rest, count.div_ceil(2))?;
        let weights = packed.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        return Some(weights.take(count).collect());
    }
    let mut packed = take(rest, header)?;
    let (log, counts) = fse::distribution(&mut packed, 6, 16)?;
    let table = fse::table(log, &counts)?;
    let mut bits = Backward::new(packed)?;
    bits.refill();
    let mut states = [bits.read(log) as usize, bits.read(log) as usize];
    let mut weights = Vec::new();
    while weights.len() < MOST {
        bits.refill();
        let [state, other] = states;
        let state = table.get(state)?;
        weights.push(state.symbol);
        if bits.left() < isize::from(state.bits) {
            weights.push(table.get(other)?.symbol);
            let fit = weights.len() <= MOST
                && weights.iter().all(|weight| u32::from(*weight) <= MOST_BITS);
            return fit.then_some(weights);
        }
        let next = usize::from(state.next) + bits.read(u32::from(state.bits)) as usize;
        states = [other, next];
    }
    None
}
