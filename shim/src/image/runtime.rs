//! Whether an image uses device `malloc`: it then refers to a function that the driver has.

use super::{MOST, Source, find};

/// Device `new` and `delete` come down to these.
const NAMES: [&[u8]; 2] = [b"malloc", b"free"];

impl Source<'_> {
    /// Of a cubin at `start`: whether the symbols in the section with this header, named in the other, are such functions of another's.
    pub(super) fn names_malloc(self, start: u64, table: u64, strings: u64) -> Option<bool> {
        const SYMBOL: u64 = 24;
        const UNDEFINED: u16 = 0;
        let symbols = start.checked_add(self.long(table + 24)?)?;
        let texts = start.checked_add(self.long(strings + 24)?)?;
        for number in 0..(self.long(table + 32)? / SYMBOL).min(MOST) {
            let symbol = symbols.checked_add(number * SYMBOL)?;
            let name = texts.checked_add(u64::from(self.word(symbol)?))?;
            let is = |wanted: &&[u8]| {
                self.begins(name, wanted) && self.begins(name + wanted.len() as u64, b"\0")
            };
            if self.half(symbol + 6)? == UNDEFINED && NAMES.iter().any(is) {
                return Some(true);
            }
        }
        Some(false)
    }
}

/// Whether a PTX text declares one of them: `.extern .func (.param .b64 r) malloc (.param .b64 n);`.
pub fn in_ptx(text: &[u8]) -> bool {
    const EXTERN: &[u8] = b".extern";
    let mut rest = text;
    while let Some(at) = find(rest, EXTERN) {
        rest = rest.get(at + EXTERN.len()..).unwrap_or_default();
        let statement = rest.split(|byte| *byte == b';').next().unwrap_or_default();
        let mut words =
            statement.split(|byte| !byte.is_ascii_alphanumeric() && !b"_$.".contains(byte));
        if words.clone().any(|word| word == b".func") && words.any(|word| NAMES.contains(&word)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::in_ptx;

    #[test]
    fn ptx_text() {
        for (text, uses) in [
            (
                ".extern .func (.param .b64 r) malloc (.param .b64 n);",
                true,
            ),
            (
                ".extern .func  (.param .b64 func_retval0) malloc\n(\n\t.param .b64 malloc_param_0\n)\n;\n",
                true,
            ),
            (
                ".extern .func free\n(\n\t.param .b64 free_param_0\n)\n;",
                true,
            ),
            (
                ".extern .func (.param .b32 r) vprintf (.param .b64 a);",
                false,
            ),
            (
                ".extern .global .b8 malloc[16];\n.func free() { ret; }",
                false,
            ),
            (".extern .func mallocs (.param .b64 n);", false),
            (".extern", false),
        ] {
            assert_eq!(in_ptx(text.as_bytes()), uses, "{text}");
        }
    }
}
