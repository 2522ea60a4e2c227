//! Memory needs of a cubin, the ELF file that holds code for one GPU architecture.
//!
//! Variables lie in sections with special names. The symbols tell which variables are managed, and
//! which runtime functions the code calls.
//!
//! If the cubin is damaged, its memory needs are [unknown](Needs::unknown). The readable parts
//! still count.

use super::numbers::File;
use super::{Needs, runtime};

/// Size in bytes of the ELF header, and of a section's header.
const HEADER: usize = 64;
/// Size in bytes of a segment's header.
const SEGMENT: usize = 56;
/// The value of `e_machine` in cubins.
const EM_CUDA: u16 = 190;
/// The section type `SHT_SYMTAB`.
const SYMBOLS: u32 = 2;

impl<'a> File<'a> {
    /// Returns the offset of a section's header in the cubin.
    fn section(self, number: u16) -> Option<usize> {
        self.place(40)?
            .checked_add(usize::from(number).checked_mul(HEADER)?)
    }

    /// Returns the content of the section whose header is at this offset.
    fn content(self, header: usize) -> Option<&'a [u8]> {
        let (start, length) = (self.place(header + 24)?, self.place(header + 32)?);
        self.0.get(start..start.checked_add(length)?)
    }
}

/// Returns the length of a cubin, which ends with its section or segment table; `None` for the
/// header of another file, and beyond the address space.
pub fn length(header: &[u8; HEADER]) -> Option<usize> {
    let header = File(header);
    let end = |table: usize, count: usize, size: usize, each: usize| match header.half(count)? {
        0 => Some(0),
        _ if usize::from(header.half(size)?) != each => None,
        count => header
            .place(table)?
            .checked_add(usize::from(count).checked_mul(each)?),
    };
    let (sections, segments) = (end(40, 60, 58, HEADER)?, end(32, 56, 54, SEGMENT)?);
    is_cubin(header)?.then_some(sections.max(segments).max(HEADER))
}

fn is_cubin(header: File<'_>) -> Option<bool> {
    Some(header.bytes::<6>(0)? == *b"\x7fELF\x02\x01" && header.half(18)? == EM_CUDA)
}

/// Returns the memory needs of a cubin.
pub fn needs(cubin: &[u8]) -> Needs {
    needs_within(cubin, &mut cubin.len())
}

/// Returns the memory needs of a cubin. Reads at most `left` bytes of its tables, and lowers `left`
/// accordingly.
pub fn needs_within(cubin: &[u8], left: &mut usize) -> Needs {
    let mut found = Found::default();
    let whole = found.read(File(cubin), left);
    let sum = |of: fn(u64, u64) -> u64| {
        let each = found.globals.iter().map(|(_, says, end)| of(*says, *end));
        let all = each.fold(0, u64::saturating_add);
        all.saturating_sub(found.managed)
    };
    Needs {
        variables: sum(u64::max),
        least: sum(u64::min),
        managed: found.managed,
        unknown: found.broken || whole.is_none(),
        ..found.runtime
    }
}

#[derive(Default)]
struct Found {
    /// The sections that hold variables: the number, the size in the header, and the size of the
    /// symbols.
    globals: Vec<(u16, u64, u64)>,
    managed: u64,
    runtime: Needs,
    /// Whether some part of the cubin could not be read.
    broken: bool,
}

impl Found {
    /// Reads the sections and symbols of a cubin. Returns `None` if the section table cannot be
    /// found.
    fn read(&mut self, file: File<'_>, left: &mut usize) -> Option<()> {
        let is_cubin = is_cubin(file)? && usize::from(file.half(58)?) == HEADER;
        let count = file.half(60)?;
        if !is_cubin || count == 0 {
            return None;
        }
        let names = file.content(file.section(file.half(62)?)?)?;
        let inside = count.min(u16::try_from(file.0.len() / HEADER).unwrap_or(u16::MAX));
        self.broken |= inside < count;
        *left = left.checked_sub(usize::from(inside).checked_mul(HEADER)?)?;
        let mut tables = Vec::new();
        for number in 0..inside {
            let read = file
                .section(number)
                .and_then(|header| self.section(file, number, header, names));
            match read {
                Some(true) => tables.push(number),
                Some(false) => {}
                None => self.broken = true,
            }
        }
        // Count a cubin without a symbol table as damaged: the driver does not load it (measured).
        self.broken |= tables.is_empty();
        for number in tables {
            self.broken |= self.table(file, number, left).is_none();
        }
        Some(())
    }

    /// Reads a section's header. Returns whether the section is a symbol table.
    fn section(
        &mut self,
        file: File<'_>,
        number: u16,
        header: usize,
        names: &[u8],
    ) -> Option<bool> {
        let name = names.get(file.short_place(header)?..)?;
        if name.starts_with(b".nv.global") {
            self.globals.push((number, file.long(header + 32)?, 0));
        }
        Some(file.word(header + 4)? == SYMBOLS)
    }

    fn table(&mut self, file: File<'_>, number: u16, left: &mut usize) -> Option<()> {
        let header = file.section(number)?;
        let strings = u16::try_from(file.word(header + 40)?).ok()?;
        let strings = file.content(file.section(strings)?)?;
        let table = file.content(header)?;
        *left = left.checked_sub(table.len())?;
        self.symbols(table, strings)
    }

    fn symbols(&mut self, table: &[u8], strings: &[u8]) -> Option<()> {
        const SYMBOL: usize = 24;
        /// The symbol type `STT_OBJECT`, in the low half of `st_info`.
        const OBJECT: u8 = 1;
        /// The flag `STO_CUDA_MANAGED` in `st_other` (for `__managed__` variables, ptxas 12.9).
        const MANAGED: u8 = 4;
        for symbol in table.chunks_exact(SYMBOL).map(File) {
            let (info, other) = (symbol.byte(4)?, symbol.byte(5)?);
            if symbol.half(6)? == 0 {
                let name = strings.get(symbol.short_place(0)?..)?;
                // Runtime functions have short names, so do not read a longer name to its end.
                let name = name.get(..=runtime::LONGEST).unwrap_or(name);
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                self.runtime = self.runtime.with(runtime::of(name));
            } else if info & 15 == OBJECT {
                let (start, size) = (symbol.long(8)?, symbol.long(16)?);
                if other & MANAGED != 0 {
                    self.managed = self.managed.saturating_add(size);
                }
                // If a section's header and the symbols in the section state different sizes, the
                // driver uses the size from the symbols (measured).
                let section = symbol.half(6)?;
                let found = self
                    .globals
                    .binary_search_by_key(&section, |(number, ..)| *number);
                if let Some((_, _, end)) = found.ok().and_then(|at| self.globals.get_mut(at)) {
                    *end = (*end).max(start.saturating_add(size));
                }
            }
        }
        Some(())
    }
}
