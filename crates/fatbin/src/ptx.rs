//! Memory needs of a PTX text: its variables, and the runtime functions that its kernels call.
//!
//! The text is split into tokens, so a comment or a string never looks like a declaration. A
//! declaration that cannot be parsed makes the needs [unknown](Needs::unknown). The accepted syntax
//! was checked with ptxas 12.9.

use std::iter::Peekable;

use super::Needs;
use super::runtime::NAMES;

/// The alignment of variables in GPU memory, in bytes. Two variables never share an aligned block
/// of this size.
const GRAIN: u64 = 256;
/// Largest number of bytes that a texture, sampler or surface reference takes in GPU memory.
const REFERENCE: u64 = 256;
/// Largest number of `.extern` declarations whose definitions are searched. With more, the memory
/// needs are unknown.
const MOST_EXTERNS: usize = 64;
/// Directives that may stand before `.global` in a variable's declaration.
const LINKAGE: [&[u8]; 4] = [b".visible", b".extern", b".weak", b".common"];

/// Returns the memory needs of a PTX text.
pub fn needs(text: &[u8]) -> Needs {
    let mut reader = Reader {
        tokens: Tokens(text).peekable(),
        previous: None,
        is_extern: false,
        called: [false; NAMES.len()],
        needs: Needs::default(),
        defined: Vec::new(),
        externs: Vec::new(),
    };
    reader.read();
    reader.needs
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    /// A token that is a name, a number, or a directive with its dot.
    Word(&'a [u8]),
    /// A quoted string.
    Text,
    /// Any other character.
    Sign(u8),
    /// A comment or a string that does not end before the end of the text.
    Broken,
}

/// An iterator over the tokens of a PTX text. Comments are skipped.
struct Tokens<'a>(&'a [u8]);

impl<'a> Tokens<'a> {
    /// Removes the first `length` bytes of the remaining text and returns them.
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Skips the text up to and including the next `end`. Returns false if `end` does not occur.
    fn skip_past(&mut self, end: &[u8]) -> bool {
        let found = self
            .0
            .windows(end.len())
            .position(|window| window == end)
            .map(|at| at + end.len());
        self.take(found.unwrap_or(self.0.len()));
        found.is_some()
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let in_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_$%".contains(byte);
        loop {
            let first = *self.0.first()?;
            if first.is_ascii_whitespace() {
                self.take(1);
            } else if self.0.starts_with(b"//") {
                // A comment on the last line may end without a line feed.
                self.skip_past(b"\n");
            } else if self.0.starts_with(b"/*") {
                self.take(2);
                if !self.skip_past(b"*/") {
                    return Some(Token::Broken);
                }
            } else if first == b'"' {
                self.take(1);
                return Some(match self.skip_past(b"\"") {
                    true => Token::Text,
                    false => Token::Broken,
                });
            } else if first == b'.' || in_word(&first) {
                let name = self.0.get(1..).unwrap_or_default();
                let length = name.iter().take_while(|byte| in_word(byte)).count();
                return Some(Token::Word(self.take(1 + length)));
            } else {
                self.take(1);
                return Some(Token::Sign(first));
            }
        }
    }
}

/// A variable.
#[derive(Clone, Copy)]
struct Variable<'a> {
    name: &'a [u8],
    bytes: u64,
    /// The size of the variable rounded up to its alignment: the largest number of bytes that the
    /// variable takes.
    room: u64,
    is_managed: bool,
}

struct Reader<'a> {
    tokens: Peekable<Tokens<'a>>,
    /// The token that was read last; `None` at the beginning of a statement.
    previous: Option<Token<'a>>,
    /// Whether the current statement contains `.extern`.
    is_extern: bool,
    /// The functions of the device's runtime that the text has declared so far.
    called: [bool; NAMES.len()],
    needs: Needs,
    /// Names of the variables that the PTX text defines.
    defined: Vec<&'a [u8]>,
    /// The `.extern` variables: this PTX text declares them, and another text may define them.
    externs: Vec<Variable<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        let token = self.tokens.next()?;
        self.needs.unknown |= token == Token::Broken;
        self.previous = Some(token);
        Some(token)
    }

    fn peek(&mut self) -> Option<Token<'a>> {
        self.tokens.peek().copied()
    }

    fn read(&mut self) {
        loop {
            let before = self.previous;
            let Some(token) = self.next() else { break };
            match token {
                Token::Word(b".global") if self.declares(before) => {
                    if self.declaration().is_none() {
                        self.needs.unknown = true;
                    }
                    self.is_extern = false;
                }
                Token::Word(b".target") => self.target(),
                Token::Word(b".extern") => match self.peek() {
                    Some(Token::Word(b".func")) => self.extern_function(),
                    _ => self.is_extern = true,
                },
                Token::Word(word) => self.used(word),
                Token::Sign(b';') => self.is_extern = false,
                _ => {}
            }
        }
        self.add_externs();
    }

    /// Returns whether `.global` after the token `before` begins a variable's declaration, unlike
    /// in `ld.global`.
    fn declares(&mut self, before: Option<Token<'a>>) -> bool {
        match before {
            None | Some(Token::Sign(_) | Token::Text | Token::Broken) => true,
            Some(Token::Word(b".ptr")) => false,
            Some(Token::Word(word)) => {
                let number = word.strip_prefix(b".").unwrap_or(word);
                LINKAGE.contains(&word)
                    || number.iter().all(u8::is_ascii_digit)
                    || is_number(word)
                    || matches!(self.peek(), Some(Token::Word(b".align" | b".attribute")))
            }
        }
    }

    /// Skips the names after the directive `.target`. No semicolon ends this directive.
    fn target(&mut self) {
        while let Some(Token::Word([b'a'..=b'z' | b'A'..=b'Z' | b'_', ..]) | Token::Sign(b',')) =
            self.peek()
        {
            self.next();
        }
        self.previous = None;
    }

    /// Records which runtime functions a statement `.extern .func …;` declares.
    fn extern_function(&mut self) {
        while let Some(token) = self.next() {
            match token {
                Token::Sign(b';') => break,
                Token::Word(word) => {
                    for ((name, _), called) in NAMES.iter().zip(&mut self.called) {
                        *called |= word == *name;
                    }
                }
                _ => {}
            }
        }
    }

    /// Records the use of a runtime function if `word` names one. A function that is only declared
    /// takes no memory.
    fn used(&mut self, word: &[u8]) {
        for ((name, use_of), called) in NAMES.iter().zip(self.called) {
            if called && word == *name {
                self.needs = self.needs.with(*use_of);
            }
        }
    }

    /// Parses a variable's declaration after `.global`, such as `.align 16 .f32 name[10], other;`.
    /// Returns `None` if the declaration is incomplete.
    fn declaration(&mut self) -> Option<()> {
        let (mut width, mut vector, mut align, mut is_managed) = (None, 1u64, 1u64, false);
        while let Token::Word(word @ [b'.', ..]) = self.peek()? {
            self.next();
            match word {
                b".attribute" => is_managed |= self.attribute()?,
                b".align" => align = self.number()?,
                b".v2" => vector = 2,
                b".v4" => vector = 4,
                b".v8" => vector = 8,
                b".texref" | b".samplerref" | b".surfref" => width = Some(REFERENCE),
                word => width = Some(width_of(word)?),
            }
        }
        let item = width?.checked_mul(vector)?;
        loop {
            let Token::Word(name) = self.next()? else {
                return None;
            };
            let (mut count, mut is_open) = (1u64, false);
            while self.peek()? == Token::Sign(b'[') {
                self.next();
                if self.peek()? == Token::Sign(b']') {
                    is_open = true;
                } else {
                    count = count.saturating_mul(self.number()?);
                }
                if self.next()? != Token::Sign(b']') {
                    return None;
                }
            }
            if self.peek()? == Token::Sign(b'=') {
                let values = self.values()?;
                if is_open {
                    count = values;
                }
            } else if is_open {
                return None;
            }
            let bytes = item.saturating_mul(count);
            self.enter(Variable {
                name,
                bytes,
                room: rounded(bytes, align.max(GRAIN)),
                is_managed,
            });
            match self.next()? {
                Token::Sign(b',') => {}
                Token::Sign(b';') => return Some(()),
                _ => return None,
            }
        }
    }

    /// Parses the list `(…)` after `.attribute`. Returns whether the list contains `.managed`.
    fn attribute(&mut self) -> Option<bool> {
        let (mut depth, mut is_managed) = (0u32, false);
        loop {
            match self.next()? {
                Token::Sign(b'(') => depth += 1,
                Token::Sign(b')') => depth = depth.checked_sub(1)?,
                Token::Word(b".managed") => is_managed = true,
                Token::Word(_) | Token::Sign(b',') if depth > 0 => {}
                _ => return None,
            }
            if depth == 0 {
                return Some(is_managed);
            }
        }
    }

    /// Parses an initializer `= {1, {2, 3}}`. Returns the largest possible number of its values.
    fn values(&mut self) -> Option<u64> {
        let (mut depth, mut count) = (0u32, 1u64);
        loop {
            match self.peek()? {
                Token::Sign(b',' | b';') if depth == 0 => return Some(count),
                Token::Sign(b';') => return None,
                Token::Sign(b',') => count += 1,
                Token::Sign(b'{' | b'(') => depth += 1,
                Token::Sign(b'}' | b')') => depth = depth.checked_sub(1)?,
                _ => {}
            }
            self.next();
        }
    }

    fn number(&mut self) -> Option<u64> {
        match self.next()? {
            Token::Word(word) => number(word),
            _ => None,
        }
    }

    fn enter(&mut self, variable: Variable<'a>) {
        if !self.is_extern {
            self.defined.push(variable.name);
            self.add(variable);
        } else if self.externs.len() < MOST_EXTERNS {
            self.externs.push(variable);
        } else {
            self.needs.unknown = true;
        }
    }

    fn add(&mut self, variable: Variable<'_>) {
        let add = |sum: &mut u64, bytes| *sum = sum.saturating_add(bytes);
        if variable.is_managed {
            add(&mut self.needs.managed, variable.room);
        } else {
            add(&mut self.needs.variables, variable.room);
            add(&mut self.needs.least, variable.bytes);
        }
    }

    /// Adds the `.extern` variables. Skips variables that this PTX text also defines, because the
    /// compiler reserves memory for each variable only once.
    fn add_externs(&mut self) {
        for variable in std::mem::take(&mut self.externs) {
            if !self.defined.contains(&variable.name) {
                self.defined.push(variable.name);
                self.add(variable);
            }
        }
    }
}

/// Returns the size in bytes of one item of a PTX type such as `.b8`, `.f16x2` or `.bf16`.
fn width_of(word: &[u8]) -> Option<u64> {
    let word = word.strip_prefix(b".")?;
    let (kind, digits) = word.split_at(word.iter().position(u8::is_ascii_digit)?);
    if ![&b"b"[..], b"u", b"s", b"f", b"bf"].contains(&kind) {
        return None;
    }
    let (digits, twice) = match digits.strip_suffix(b"x2") {
        Some(digits) => (digits, 2),
        None => (digits, 1),
    };
    Some(number(digits)?.checked_mul(twice)?.div_ceil(8))
}

fn is_number(word: &[u8]) -> bool {
    number(word).is_some()
}

/// Parses a number in C syntax: `16`, `0x10`, `020` or `0b10000`, each with an optional `U`.
fn number(word: &[u8]) -> Option<u64> {
    let digits = word.strip_suffix(b"U").unwrap_or(word);
    let (digits, base) = match digits {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        [b'0', b'b' | b'B', digits @ ..] => (digits, 2),
        [b'0', digits @ ..] if !digits.is_empty() => (digits, 8),
        digits => (digits, 10),
    };
    // `from_str_radix` would accept a sign.
    if !digits.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, base).ok()
}

fn rounded(bytes: u64, step: u64) -> u64 {
    bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns the sizes of the variables of a PTX text, and asserts that all of the text was
    /// understood.
    fn ptx(text: &str) -> u64 {
        let needs = needs(text.as_bytes());
        assert_eq!((needs.unknown, needs.managed), (false, 0), "{text}");
        needs.variables
    }

    #[test]
    fn declarations() {
        assert_eq!(ptx(".version 7.0\n.visible .entry k() { ret; }"), 0);
        assert_eq!(ptx(".visible .global .align 16 .b8 big[1048576];"), MIB);
        assert_eq!(
            ptx(".global .u32 one;\n.global .f64 two[4][1000];"),
            256 + 32_000
        );
        assert_eq!(ptx(".global .align 4 .b8 table[4] = {1, 2, 3, 4};"), 256);
        assert_eq!(ptx(".global .v4 .f32 vectors[1000];"), 16_128);
        assert_eq!(ptx(".global .align 1 .b8 a[300], b[600];"), 512 + 768);
        assert_eq!(ptx(".global .f16x2 h[1024]; .global .bf16 b[1024];"), 6144);
        assert_eq!(ptx(".visible .global .align 1048576 .b8 x[1];"), MIB);
        assert_eq!(
            ptx(".weak .global .b8 a[512]; .common .global .b8 b[512];"),
            1024
        );
        assert_eq!(ptx(".global .texref t[2]; .global .surfref s;"), 768);
    }

    #[test]
    fn global_in_instructions_and_parameters_is_not_a_declaration() {
        for text in [
            ".entry k() { ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1; }",
            ".entry k() { @%p ld.relaxed.gpu.global.b8 r, [a]; cvta.to.global.u64 x, y; }",
            ".entry k(.param .u64 .ptr .global .align 4 p) { ret; }",
            "{ cp.async.ca.shared::cta.global [d], [s], 4; \
             cp.reduce.async.bulk.global.add.u32 x; }",
            "{ prefetch.global.L2 [a]; ld.L1::evict_last.global.b8 r, [a]; }",
        ] {
            assert_eq!(ptx(text), 0, "{text}");
        }
    }

    #[test]
    fn comments_and_white_space_do_not_hide_declarations() {
        for text in [
            "// .extern declarations: none\n.visible .global .b8 x[4096];",
            "/* .extern */ .global .b8 x[4096];",
            ".global /* .managed */ .align 4 .b8 x[4096];",
            ".global .b8 x/* */[/* 1 */4096 // 2\n];",
            ".visible.global.align 4 .b8 x [ 4096 ] ;",
            ".global\t.b8\rx[4096];",
            "// /*\n.global .b8 x[4096]; // */",
            ".file 1 \"a//b/*c\"\n.global .b8 x[4096];",
            ".version 8.0\n.target sm_90, texmode_independent\n.global .b8 x[4096];",
            ".target sm_90\n.address_size 64\n.global .b8 x[4096];",
            ".func f() { .global .b8 x[4096]; ret; }",
            ".func f() { ret; L: .global .b8 x[4096]; }",
            ".loc 1 2 3 .global .b8 x[4096];",
        ] {
            assert_eq!(ptx(text), 4096, "{text}");
        }
        assert_eq!(ptx("/* .global .b8 x[4096]; */ // .global .b8 y[4096];"), 0);
        assert_eq!(ptx(".pragma \".global .b8 x[4096];\";"), 0);
    }

    #[test]
    fn numbers() {
        for number in [
            "4096",
            "4096U",
            "0x1000",
            "0X1000U",
            "010000",
            "0b1000000000000",
            "64][64",
        ] {
            assert_eq!(ptx(&format!(".global .b8 x[{number}];")), 4096, "{number}");
        }
        assert_eq!(ptx(".global .b32 x[] = {1, 2, 3}, y[1000];"), 256 + 4096);
        assert_eq!(ptx(".global .b32 x[][2] = {{1, 2}, {3, 4}};"), 256);
        assert_eq!(ptx(".global .u64 x = generic(y)+8, z[512];"), 256 + 4096);
        assert_eq!(ptx(".global .b64 x[0x4000000000000000];"), u64::MAX);
    }

    #[test]
    fn external_variables_count_once() {
        assert_eq!(ptx(".extern .global .align 4 .b8 theirs[4096];"), 4096);
        assert_eq!(
            ptx(".extern .global .b8 x[4096]; .global .b8 x[4096]; .extern .global .b8 x[4096];"),
            4096
        );
        assert_eq!(ptx(".extern .func f; .global .b8 x[4096];"), 4096);
    }

    #[test]
    fn managed_variables() {
        for (text, managed, variables) in [
            (
                ".global .attribute(.managed) .align 4 .b8 m[4096];",
                4096,
                0,
            ),
            (".global .attribute ( .managed ) .b8 m[4096];", 4096, 0),
            (
                ".global .align 4 .attribute(.managed) .b8 m[4096];",
                4096,
                0,
            ),
            (
                ".visible .global .attribute(.managed, .unified(1,2)) .b8 m[4096];",
                4096,
                0,
            ),
            (".global .attribute(.unified(1,2)) .b8 m[4096];", 0, 4096),
            (
                ".global .attribute(.managed) .b8 m[512], n[256]; .global .b8 x[4096];",
                768,
                4096,
            ),
        ] {
            let needs = needs(text.as_bytes());
            let found = (needs.managed, needs.variables, needs.unknown);
            assert_eq!(found, (managed, variables, false), "{text}");
        }
    }

    #[test]
    fn unknown_declarations_keep_the_known_ones() {
        let known = ".global .b8 known[4096];\n";
        let last = "\n.global .b8 last[256];";
        for text in [
            ".global .b8 x[2*1024];",
            ".global .b8 x[(1<<20)];",
            ".global .b8 x[N];",
            ".global .b8 x[];",
            ".global .b8 x[99999999999999999999999];",
            ".global .e4m3x2 x[4];",
            ".global",
            ".global .b8",
            ".global .b8 .global .b8 x[4];",
            ".global .attribute(.managed .b8 x[4];",
            ".global .b8 x[] = {1, 2;",
            "/* .global",
            ".file 1 \"",
        ] {
            let needs = needs(format!("{known}{text}").as_bytes());
            assert_eq!((needs.variables, needs.unknown), (4096, true), "{text}");
        }
        let broken = needs(format!("{known}.global .b8 x[2*1024];{last}").as_bytes());
        assert_eq!((broken.variables, broken.unknown), (4096 + 256, true));
    }

    #[test]
    fn functions_of_the_runtime() {
        for (text, [malloc, assert, printf]) in [
            (
                ".extern .func __assertfail (.param .b64 a); call.uni __assertfail, (x);",
                [false, true, false],
            ),
            (
                ".extern .func (.param .b64 r) malloc (.param .b64 n); call (r), malloc, (n);",
                [true, false, false],
            ),
            (
                ".extern .func  (.param .b64 func_retval0) malloc\n(\n\t\
                 .param .b64 malloc_param_0\n)\n;\ncall.uni (r),\nmalloc,\n(n);",
                [true, false, false],
            ),
            (
                ".extern .func free\n(\n\t.param .b64 free_param_0\n)\n; call free, (x);",
                [true, false, false],
            ),
            (
                ".extern .func (.param .b32 r) vprintf (.param .b64 a); call vprintf, (a);",
                [false, false, true],
            ),
            (
                ".extern .func (.param .b32 r) vprintf (.param .b64 vprintf_0);",
                [false; 3],
            ),
            (
                ".extern .func (.param .b32 r) vprintf (.param .b64 a); // vprintf",
                [false; 3],
            ),
            (
                ".extern .global .b8 malloc[16];\n.func free() { ret; } malloc",
                [false; 3],
            ),
            (
                ".extern .func mallocs (.param .b64 n); call mallocs, (n);",
                [false; 3],
            ),
            (".extern", [false; 3]),
        ] {
            let needs = needs(text.as_bytes());
            assert_eq!(
                [
                    needs.device_malloc,
                    needs.device_assert,
                    needs.device_printf
                ],
                [malloc, assert, printf],
                "{text}"
            );
        }
    }
}
