//! The sequences of a zstd block: each sequence copies some literals, and then repeats earlier
//! output.

use super::bits::Backward;
use super::{Output, fse, number};

/// One state of a sequence decoder: a value, the number of bits to add to the value, and the next
/// state.
#[derive(Clone, Copy, Default)]
struct State {
    base: u32,
    more: u8,
    bits: u8,
    next: u16,
}

#[derive(Default)]
struct Table {
    log: u32,
    states: Vec<State>,
}

/// One of the three kinds of numbers in a zstd sequence.
struct Kind {
    most_log: u32,
    /// For each symbol, the smallest value and the number of bits to read and add to it.
    codes: &'static [(u32, u8)],
    log: u32,
    /// The default distribution.
    counts: &'static [i16],
}

const LITERALS: Kind = Kind {
    most_log: 9,
    codes: &{
        let mut codes = [(0, 0); 36];
        let bits = [
            1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
        ];
        let (mut at, mut base) = (0, 0);
        while at < codes.len() {
            let more = if at < 16 { 0 } else { bits[at - 16] };
            codes[at] = (base, more);
            (at, base) = (at + 1, base + (1 << more));
        }
        codes
    },
    log: 6,
    counts: &[
        4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1,
        1, 1, -1, -1, -1, -1,
    ],
};

const MATCHES: Kind = Kind {
    most_log: 9,
    codes: &{
        let mut codes = [(0, 0); 53];
        let bits = [
            1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
        ];
        let (mut at, mut base) = (0, 3);
        while at < codes.len() {
            let more = if at < 32 { 0 } else { bits[at - 32] };
            codes[at] = (base, more);
            (at, base) = (at + 1, base + (1 << more));
        }
        codes
    },
    log: 6,
    counts: &[
        1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
    ],
};

const OFFSETS: Kind = Kind {
    most_log: 8,
    codes: &{
        let mut codes = [(0, 0); 32];
        let mut at = 0;
        while at < codes.len() {
            codes[at] = (1 << at, at as u8);
            at += 1;
        }
        codes
    },
    log: 5,
    counts: &[
        1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1,
    ],
};

impl Table {
    /// Selects the decoding table for the block's mode. If the block describes the table, reads the
    /// description from the front of `rest`.
    fn read(&mut self, mode: usize, kind: &Kind, rest: &mut &[u8]) -> Option<()> {
        match mode {
            0 => self.set(kind, kind.log, &fse::table(kind.log, kind.counts)?),
            1 => {
                let one = fse::State {
                    symbol: number(rest, 1)? as u8,
                    ..fse::State::default()
                };
                self.set(kind, 0, &[one])
            }
            2 => {
                let (log, counts) = fse::distribution(rest, kind.most_log, kind.codes.len())?;
                self.set(kind, log, &fse::table(log, &counts)?)
            }
            // This mode uses the table of the previous block again.
            _ => (!self.states.is_empty()).then_some(()),
        }
    }

    fn set(&mut self, kind: &Kind, log: u32, states: &[fse::State]) -> Option<()> {
        self.log = log;
        self.states.clear();
        for state in states {
            let (base, more) = *kind.codes.get(usize::from(state.symbol))?;
            self.states.push(State {
                base,
                more,
                bits: state.bits,
                next: state.next,
            });
        }
        Some(())
    }
}

impl State {
    #[inline]
    fn value(self, bits: &mut Backward<'_>) -> u64 {
        u64::from(self.base) + bits.read(u32::from(self.more))
    }

    #[inline]
    fn next(self, bits: &mut Backward<'_>) -> usize {
        usize::from(self.next) + bits.read(u32::from(self.bits)) as usize
    }
}

/// The decoding tables of the last block, and the distances of recent matches. A later block may
/// use both again.
pub struct Sequences {
    literals: Table,
    offsets: Table,
    matches: Table,
    recent: [usize; 3],
}

impl Default for Sequences {
    fn default() -> Self {
        Sequences {
            literals: Table::default(),
            offsets: Table::default(),
            matches: Table::default(),
            recent: [1, 4, 8],
        }
    }
}

impl Sequences {
    /// Executes the sequences of `block`. `literals` holds `count` literals and some bytes of
    /// padding.
    pub fn execute(
        &mut self,
        mut block: &[u8],
        mut literals: &[u8],
        mut count: usize,
        out: &mut Output,
    ) -> Option<()> {
        let sequences = match number(&mut block, 1)? {
            few @ 0..128 => few,
            255 => number(&mut block, 2)? + 0x7f00,
            more => (more - 128) << 8 | number(&mut block, 1)?,
        };
        if sequences == 0 {
            return out.append(literals.get(..count)?);
        }
        let modes = number(&mut block, 1)? as usize;
        self.literals.read(modes >> 6, &LITERALS, &mut block)?;
        self.offsets.read(modes >> 4 & 3, &OFFSETS, &mut block)?;
        self.matches.read(modes >> 2 & 3, &MATCHES, &mut block)?;
        let mut bits = Backward::new(block)?;
        bits.refill();
        let mut literal = bits.read(self.literals.log) as usize;
        let mut offset = bits.read(self.offsets.log) as usize;
        let mut length = bits.read(self.matches.log) as usize;
        for number in 1..=sequences {
            let (from, to, by) = (
                *self.offsets.states.get(offset)?,
                *self.matches.states.get(length)?,
                *self.literals.states.get(literal)?,
            );
            bits.refill();
            let distance = from.value(&mut bits);
            // A refill gives at least 56 bits. The transitions to the next states need up to 26 of
            // them.
            if from.more + to.more + by.more > 30 {
                bits.refill();
            }
            let matched = to.value(&mut bits) as usize;
            let copied = by.value(&mut bits) as usize;
            if from.more + to.more + by.more > 30 {
                bits.refill();
            }
            if number < sequences {
                literal = by.next(&mut bits);
                length = to.next(&mut bits);
                offset = from.next(&mut bits);
            }
            count = count.checked_sub(copied)?;
            out.append_front(literals, copied)?;
            literals = literals.get(copied..)?;
            let distance = self.distance(distance, copied)?;
            out.repeat(distance, matched)?;
        }
        if bits.left() != 0 {
            return None;
        }
        out.append(literals.get(..count)?)
    }

    /// Returns the match distance for `value`. The values 1 to 3 stand for recent distances.
    #[inline]
    fn distance(&mut self, value: u64, copied: usize) -> Option<usize> {
        let [first, second, third] = self.recent;
        let which = value + u64::from(copied == 0);
        let distance = match (value, which) {
            (4.., _) => usize::try_from(value - 3).ok()?,
            (_, 1) => return Some(first),
            (_, 2) => {
                self.recent = [second, first, third];
                return Some(second);
            }
            (_, 3) => third,
            _ => first.checked_sub(1)?,
        };
        self.recent = [distance, first, second];
        Some(distance)
    }
}
