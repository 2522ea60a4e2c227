//! The literals of a zstd block: bytes that are not copied from earlier output.

use super::super::output::STEP;
use super::huffman::Table;
use super::{MOST_OF_A_BLOCK, number, take};

/// The literals of the current zstd block, and the Huffman table, which a later block may use
/// again.
#[derive(Default)]
pub struct Literals {
    bytes: Vec<u8>,
    length: usize,
    table: Option<Table>,
}

impl Literals {
    /// Reads the literals from the front of a zstd block.
    pub fn read(&mut self, block: &mut &[u8]) -> Option<()> {
        let first = usize::from(*block.first()?);
        let (kind, format) = (first & 3, first >> 2 & 3);
        // Size of the header in bytes, and width in bits of each size that the header contains.
        let (bytes, bits) = match (kind, format) {
            (0 | 1, 0 | 2) => (1, 5),
            (0 | 1, 1) => (2, 12),
            (0 | 1, _) => (3, 20),
            (_, 0 | 1) => (3, 10),
            (_, 2) => (4, 14),
            _ => (5, 18),
        };
        let header = number(block, bytes)?;
        let size = |place: u32| (header >> place) as usize & ((1 << bits) - 1);
        self.length = match bits {
            5 => size(3),
            _ => size(4),
        };
        if self.length > MOST_OF_A_BLOCK {
            return None;
        }
        self.bytes.clear();
        self.bytes.resize(self.length + STEP, 0);
        let out = self.bytes.get_mut(..self.length)?;
        match kind {
            0 => out.copy_from_slice(take(block, self.length)?),
            1 => out.fill(*take(block, 1)?.first()?),
            _ => {
                let mut packed = take(block, size(4 + bits))?;
                if kind == 2 {
                    self.table = Some(Table::read(&mut packed)?);
                }
                let table = self.table.as_ref()?;
                match format {
                    0 => table.decode(packed, out)?,
                    _ => table.decode_four(packed, out)?,
                }
            }
        }
        Some(())
    }

    /// Returns the literals of the current block, followed by `STEP` bytes of padding.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.length
    }
}
