//! Decoding tables of finite state entropy (FSE) codes.

use super::bits::Forward;

/// A state of the decoder.
#[derive(Clone, Copy, Default)]
pub struct State {
    pub symbol: u8,
    /// Number of bits to read from the stream for the next state.
    pub bits: u8,
    /// The base of the next state: the next state is this number plus the bits read from the
    /// stream.
    pub next: u16,
}

/// Reads a symbol distribution. Returns the table's size as a binary logarithm, and the
/// frequencies; -1 is a frequency below 1.
pub fn distribution(rest: &mut &[u8], most_log: u32, most: usize) -> Option<(u32, Vec<i16>)> {
    let mut bits = Forward::new(rest);
    let log = bits.peek(4) as u32 + 5;
    bits.skip(4);
    if log > most_log {
        return None;
    }
    let mut counts = Vec::with_capacity(most);
    let mut left = 1usize << log;
    while left > 0 {
        if counts.len() >= most {
            return None;
        }
        let width = (left + 1).ilog2() as usize + 1;
        let (value, low) = (bits.peek(width), (1 << (width - 1)) - 1);
        // In the description, a small frequency takes one bit less than a large frequency.
        let spare = (1 << width) - 2 - left;
        let value = if value & low < spare {
            bits.skip(width - 1);
            value & low
        } else {
            bits.skip(width);
            if value > low { value - spare } else { value }
        };
        let count = value as i16 - 1;
        left = left.checked_sub(usize::from(count.unsigned_abs()))?;
        counts.push(count);
        if count == 0 {
            loop {
                let zeros = bits.peek(2);
                bits.skip(2);
                counts.extend(std::iter::repeat_n(0, zeros));
                if zeros < 3 || counts.len() > most {
                    break;
                }
            }
        }
    }
    *rest = bits.behind()?;
    (counts.len() <= most).then_some((log, counts))
}

/// Returns the decoding table of a symbol distribution, which has `1 << log` states.
pub fn table(log: u32, counts: &[i16]) -> Option<Vec<State>> {
    let size = 1usize << log;
    let mut table = vec![State::default(); size];
    let mut seen = [0u16; 256];
    let mut high = size;
    for (symbol, count) in counts.iter().enumerate() {
        let seen = seen.get_mut(symbol)?;
        *seen = count.unsigned_abs();
        if *count < 0 {
            high = high.checked_sub(1)?;
            table.get_mut(high)?.symbol = symbol as u8;
        }
    }
    if seen.iter().map(|count| usize::from(*count)).sum::<usize>() != size {
        return None;
    }
    let step = (size >> 1) + (size >> 3) + 3;
    let mut at = 0;
    for (symbol, count) in counts.iter().enumerate() {
        for _ in 0..*count {
            table.get_mut(at)?.symbol = symbol as u8;
            loop {
                at = (at + step) & (size - 1);
                if at < high {
                    break;
                }
                if high == 0 {
                    return None;
                }
            }
        }
    }
    for state in &mut table {
        let seen = seen.get_mut(usize::from(state.symbol))?;
        let number = u32::from(*seen);
        *seen += 1;
        state.bits = (log - number.checked_ilog2()?) as u8;
        state.next = ((number << state.bits) - size as u32) as u16;
    }
    Some(table)
}
