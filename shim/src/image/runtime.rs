//! What an image uses of the device's runtime: it then refers to functions that the driver has.

use super::{MOST, Needs, Source, find};

/// Device `new` and `delete` come down to the first two (measured: `free` alone takes what `malloc` does).
const NAMES: [(&[u8], Needs); 4] = [
    (b"malloc", MALLOC),
    (b"free", MALLOC),
    (b"__assertfail", ASSERT),
    (b"vprintf", PRINTF),
];
const MALLOC: Needs = Needs {
    device_malloc: true,
    ..NOTHING
};
const ASSERT: Needs = Needs {
    device_assert: true,
    ..NOTHING
};
const PRINTF: Needs = Needs {
    device_printf: true,
    ..NOTHING
};
const NOTHING: Needs = Needs {
    variables: 0,
    device_malloc: false,
    device_assert: false,
    device_printf: false,
};

impl Source<'_> {
    /// Of a cubin at `start`: what the symbols in the section with this header, named in the other, refer to.
    pub(super) fn of_symbols(self, start: u64, table: u64, strings: u64) -> Option<Needs> {
        const SYMBOL: u64 = 24;
        const UNDEFINED: u16 = 0;
        let symbols = start.checked_add(self.long(table + 24)?)?;
        let texts = start.checked_add(self.long(strings.checked_add(24)?)?)?;
        let mut needs = NOTHING;
        for number in 0..(self.long(table + 32)? / SYMBOL).min(MOST) {
            let symbol = symbols.checked_add(number * SYMBOL)?;
            if self.half(symbol.checked_add(6)?)? != UNDEFINED {
                continue;
            }
            let name = texts.checked_add(u64::from(self.word(symbol)?))?;
            for (wanted, use_of) in NAMES {
                let end = name.checked_add(wanted.len() as u64)?;
                if self.begins(name, wanted) && self.begins(end, b"\0") {
                    needs = needs.or(use_of);
                }
            }
        }
        Some(needs)
    }
}

/// What a PTX text declares, `.extern .func (.param .b64 r) malloc (.param .b64 n);`, and calls: of a declaration alone nothing comes (measured).
pub fn of_ptx(text: &[u8]) -> Needs {
    // Declared so far. What is used is declared before.
    let mut declared = [false; NAMES.len()];
    let mut needs = NOTHING;
    for statement in text.split(|byte| *byte == b';') {
        for ((name, use_of), declared) in NAMES.iter().zip(declared) {
            if declared && find(statement, name).is_some() {
                needs = needs.or(*use_of);
            }
        }
        let Some(at) = find(statement, b".extern") else {
            continue;
        };
        let declaration = statement.get(at..).unwrap_or_default();
        let words =
            declaration.split(|byte| !byte.is_ascii_alphanumeric() && !b"_$.".contains(byte));
        if words.clone().any(|word| word == b".func") {
            for ((name, _), declared) in NAMES.iter().zip(&mut declared) {
                *declared |= words.clone().any(|word| word == *name);
            }
        }
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::{ASSERT, MALLOC, NOTHING, PRINTF, of_ptx};

    #[test]
    fn ptx_text() {
        for (text, needs) in [
            (
                ".extern .func __assertfail (.param .b64 a); call.uni __assertfail, (x);",
                ASSERT,
            ),
            (
                ".extern .func (.param .b64 r) malloc (.param .b64 n); call (r), malloc, (n);",
                MALLOC,
            ),
            (
                ".extern .func  (.param .b64 func_retval0) malloc\n(\n\t.param .b64 malloc_param_0\n)\n;\ncall.uni (r),\nmalloc,\n(n);",
                MALLOC,
            ),
            (
                ".extern .func free\n(\n\t.param .b64 free_param_0\n)\n; call free, (x);",
                MALLOC,
            ),
            (
                ".extern .func (.param .b32 r) vprintf (.param .b64 a); call vprintf, (a);",
                PRINTF,
            ),
            (
                ".extern .func (.param .b32 r) vprintf (.param .b64 vprintf_0);",
                NOTHING,
            ),
            (
                ".extern .global .b8 malloc[16];\n.func free() { ret; } malloc",
                NOTHING,
            ),
            (
                ".extern .func mallocs (.param .b64 n); call mallocs, (n);",
                NOTHING,
            ),
            (".extern", NOTHING),
        ] {
            assert_eq!(of_ptx(text.as_bytes()), needs, "{text}");
        }
    }
}
