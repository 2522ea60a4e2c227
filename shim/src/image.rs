//! What a code image says of the device memory that it will take.
//!
//! Loading code is measured, but a module with large `__device__` arrays, or one that uses device `malloc`, `assert` or `printf`, must be
//! refused before the driver takes the memory for them. PTX text, cubins (ELF) and fat binaries of these, compressed or not, say how much
//! that is.
//! Layouts: the PTX ISA, and binaries of nvcc 11 to 13.
#![allow(unsafe_code)]

mod compressed;
mod fatbin;
pub mod lz4;
mod output;
mod runtime;
pub mod zstd;

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

use crate::abi::Opaque;

/// What an image says that it takes beside its code.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Needs {
    /// Bytes of device memory for its variables.
    pub variables: u64,
    /// Its kernels use device `malloc`.
    pub device_malloc: bool,
    /// Its kernels use device `assert`.
    pub device_assert: bool,
    /// Its kernels use device `printf`.
    pub device_printf: bool,
}

impl Needs {
    /// Whether there is something of the device's runtime that it uses.
    pub fn uses_runtime(self) -> bool {
        self.device_malloc || self.device_assert || self.device_printf
    }

    /// What either takes at most.
    pub fn or(self, other: Needs) -> Needs {
        Needs {
            variables: self.variables.max(other.variables),
            device_malloc: self.device_malloc || other.device_malloc,
            device_assert: self.device_assert || other.device_assert,
            device_printf: self.device_printf || other.device_printf,
        }
    }

    /// What both take.
    pub fn and(self, other: Needs) -> Needs {
        Needs {
            variables: self.variables.saturating_add(other.variables),
            ..self.or(other)
        }
    }

    fn of_ptx(text: &[u8]) -> Needs {
        Needs {
            variables: in_ptx(text),
            ..runtime::of_ptx(text)
        }
    }
}

/// The image that a program hands to the driver, or the contents of a file. Memory is read where its headers say that it goes on, as the
/// driver does.
#[derive(Clone, Copy)]
enum Source<'a> {
    Memory(*const u8),
    File(&'a [u8]),
}

const FATBIN: u32 = 0xba55_ed50;
/// `__fatBinC_Wrapper_t`, which programs of nvcc register.
const WRAPPER: u32 = 0x4662_43b1;
const ELF: u32 = u32::from_le_bytes([0x7f, b'E', b'L', b'F']);
/// `e_machine` of cubins.
const EM_CUDA: u16 = 190;

/// Symbols of a cubin that are looked at, at most.
const MOST: u64 = 1 << 16;

/// One image: what a fat binary has several of.
enum Single<'a> {
    Ptx(&'a [u8]),
    /// From this offset on.
    Cubin(Source<'a>, u64),
}

impl Single<'_> {
    fn needs(&self) -> Option<Needs> {
        match self {
            Single::Ptx(text) => Some(Needs::of_ptx(text)),
            Single::Cubin(source, start) => source.in_cubin(*start),
        }
    }
}

/// What the image at this address says, for GPUs of these compute capabilities; nothing where it does not say.
pub fn needs(image: Opaque, capabilities: &dyn Fn() -> Vec<u32>) -> Needs {
    match image {
        0 => Needs::default(),
        address => Source::Memory(address as *const u8)
            .needs(capabilities)
            .unwrap_or_default(),
    }
}

/// The same of the file with the name at this address.
pub fn needs_of_file(path: Opaque, capabilities: &dyn Fn() -> Vec<u32>) -> Needs {
    if path == 0 {
        return Needs::default();
    }
    // SAFETY: the program passes a NUL-terminated name, or none.
    let path = unsafe { CStr::from_ptr(path as *const libc::c_char) };
    std::fs::read(OsStr::from_bytes(path.to_bytes()))
        .map(|bytes| needs_of_bytes(&bytes, capabilities))
        .unwrap_or_default()
}

/// The same of a file's content, which may be anything.
pub fn needs_of_bytes(bytes: &[u8], capabilities: &dyn Fn() -> Vec<u32>) -> Needs {
    Source::File(bytes).needs(capabilities).unwrap_or_default()
}

impl<'a> Source<'a> {
    fn bytes<const N: usize>(self, at: u64) -> Option<[u8; N]> {
        let at = usize::try_from(at).ok()?;
        match self {
            Source::Memory(start) => {
                // SAFETY: the image goes as far as its headers say.
                Some(unsafe { start.add(at).cast::<[u8; N]>().read_unaligned() })
            }
            Source::File(bytes) => bytes.get(at..at.checked_add(N)?)?.try_into().ok(),
        }
    }

    fn half(self, at: u64) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    fn word(self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn long(self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    /// Whether a NUL-terminated text begins so; does not read beyond its end.
    fn begins(self, at: u64, with: &[u8]) -> bool {
        let byte = |at| self.bytes::<1>(at).map(|[byte]| byte);
        let is_there =
            |(offset, wanted): (u64, &u8)| at.checked_add(offset).and_then(byte) == Some(*wanted);
        (0..).zip(with).all(is_there)
    }

    /// So many bytes from here on.
    fn slice(self, at: u64, length: u64) -> Option<&'a [u8]> {
        let (at, length) = (usize::try_from(at).ok()?, usize::try_from(length).ok()?);
        match self {
            // SAFETY: an entry of a fat binary has the length that its header says.
            Source::Memory(start) => unsafe {
                Some(std::slice::from_raw_parts(start.add(at), length))
            },
            Source::File(bytes) => bytes.get(at..)?.get(..length),
        }
    }

    /// The text up to its NUL, or up to `length` bytes.
    fn text(self, at: u64, length: Option<u64>) -> Option<&'a [u8]> {
        let bytes = match (self, length) {
            (_, Some(length)) => self.slice(at, length)?,
            // SAFETY: PTX text that is handed over without a length ends with a NUL.
            (Source::Memory(start), None) => unsafe {
                CStr::from_ptr(start.add(usize::try_from(at).ok()?).cast()).to_bytes()
            },
            (Source::File(bytes), None) => bytes.get(usize::try_from(at).ok()?..)?,
        };
        bytes.split(|byte| *byte == 0).next()
    }

    /// Calls `look` with every image that the driver may load from this one, on GPUs of these compute capabilities.
    fn each(
        self,
        capabilities: &dyn Fn() -> Vec<u32>,
        look: &mut dyn FnMut(Single<'_>),
    ) -> Option<()> {
        match self.word(0)? {
            FATBIN => fatbin::each(self, capabilities, look)?,
            WRAPPER => match (self, self.long(8)?) {
                (Source::Memory(_), data) if data != 0 => {
                    Source::Memory(data as *const u8).each(capabilities, look)?;
                }
                _ => {}
            },
            ELF => look(Single::Cubin(self, 0)),
            _ => look(Single::Ptx(self.text(0, None)?)),
        }
        Some(())
    }

    /// Images of one fat binary are alternatives: the largest counts.
    fn needs(self, capabilities: &dyn Fn() -> Vec<u32>) -> Option<Needs> {
        let mut largest: Option<Needs> = None;
        self.each(capabilities, &mut |image| {
            largest = largest.into_iter().chain(image.needs()).reduce(Needs::or);
        });
        largest
    }

    /// Sections of variables have names of their own.
    fn in_cubin(self, start: u64) -> Option<Needs> {
        const HEADER: u64 = 64;
        /// `SHT_SYMTAB`.
        const SYMBOLS: u32 = 2;
        let is_cubin = self.bytes::<6>(start)? == *b"\x7fELF\x02\x01"
            && self.half(start + 18)? == EM_CUDA
            && u64::from(self.half(start + 58)?) == HEADER;
        if !is_cubin {
            return None;
        }
        let sections = start.checked_add(self.long(start + 40)?)?;
        let section = |number: u16| sections.checked_add(u64::from(number) * HEADER);
        let names = section(self.half(start + 62)?)?.checked_add(24)?;
        let names = start.checked_add(self.long(names)?)?;
        let mut needs = Needs::default();
        // There is one table of symbols at most, and no more than that is looked at.
        let mut symbols = None;
        for number in 0..self.half(start + 60)? {
            let header = section(number)?;
            let name = names.checked_add(u64::from(self.word(header)?))?;
            if self.begins(name, b".nv.global") {
                needs.variables = needs.variables.checked_add(self.long(header + 32)?)?;
            } else if self.word(header + 4)? == SYMBOLS {
                symbols = Some((header, section(self.half(header + 40)?)?));
            }
        }
        if let Some((table, strings)) = symbols {
            needs = needs.or(self.of_symbols(start, table, strings)?);
        }
        Some(needs)
    }
}

/// Sum of the `.global` variables of a PTX text.
fn in_ptx(text: &[u8]) -> u64 {
    let statements = text.split(|byte| b";{}".contains(byte));
    statements.map(in_statement).fold(0, u64::saturating_add)
}

/// The same of one statement, which is looked through once, however often it says that it declares something.
fn in_statement(statement: &[u8]) -> u64 {
    const DECLARATION: &[u8] = b".global";
    let own = find(statement, b".extern").unwrap_or(statement.len());
    let mut rest = statement.get(..own).unwrap_or_default();
    let mut bytes = 0u64;
    let mut is_word = true;
    while let Some(found) = find(rest, DECLARATION) {
        let front = rest.get(..found).unwrap_or_default();
        // An instruction has the state space as a suffix: ld.global.
        is_word = front.last().map_or(is_word, u8::is_ascii_whitespace);
        rest = rest.get(found + DECLARATION.len()..).unwrap_or_default();
        if is_word && rest.first().is_some_and(u8::is_ascii_whitespace) {
            let end = find(rest, DECLARATION).unwrap_or(rest.len());
            let declaration = rest.get(..end).unwrap_or_default();
            let declaration = declaration.split(|byte| *byte == b'=').next();
            let declaration = std::str::from_utf8(declaration.unwrap_or_default());
            bytes = bytes.saturating_add(declared(declaration.unwrap_or_default()));
        }
        is_word = false;
    }
    bytes
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// Bytes of one declaration, behind its `.global`: `.align 16 .v4 .f32 name[10][20]`, several names after commas.
fn declared(declaration: &str) -> u64 {
    /// Variables do not share these bytes.
    const GRAIN: u64 = 256;
    if declaration.contains(".managed") {
        return 0; // not the device's
    }
    let (mut width, mut vector) = (0u64, 1);
    for word in declaration.split_whitespace() {
        match word {
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            word => {
                let bits = word
                    .strip_prefix('.')
                    .and_then(|word| word.strip_prefix(['b', 'u', 's', 'f']));
                let bits =
                    bits.map(|digits| digits.trim_end_matches(|c: char| !c.is_ascii_digit()));
                if let Some(Ok(bits)) = bits.map(str::parse::<u64>) {
                    width = bits / 8;
                }
            }
        }
    }
    let names = declaration.rsplit(char::is_whitespace);
    let of = |name: &str| {
        name.split('[')
            .skip(1)
            .fold(width * vector, |bytes, dimension| {
                let count = dimension
                    .split(']')
                    .next()
                    .and_then(|count| count.trim().parse::<u64>().ok());
                bytes.saturating_mul(count.unwrap_or(0))
            })
    };
    let list = match declaration.find(',') {
        // `a[2], b[3]`: the names are all behind the type.
        Some(_) => declaration,
        None => names
            .into_iter()
            .find(|word| !word.is_empty())
            .unwrap_or_default(),
    };
    let sum = list.split(',').map(|name| of(name).next_multiple_of(GRAIN));
    sum.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ptx(text: &str) -> u64 {
        in_ptx(text.as_bytes())
    }

    #[test]
    fn ptx_text() {
        assert_eq!(ptx(".version 7.0\n.visible .entry k() { ret; }"), 0);
        assert_eq!(ptx(".visible .global .align 16 .b8 big[1048576];"), 1 << 20);
        assert_eq!(
            ptx(".global .u32 one;\n.global .f64 two[4][1000];"),
            256 + 32_000
        );
        assert_eq!(ptx(".global .align 4 .b8 table[4] = {1, 2, 3, 4};"), 256);
        assert_eq!(ptx(".global .v4 .f32 vectors[1000];"), 16_128);
        assert_eq!(ptx(".extern .global .align 4 .b8 theirs[4096];"), 0);
        assert_eq!(ptx(".global .attribute(.managed) .align 4 .b8 m[4096];"), 0);
        assert_eq!(
            ptx(".entry k() { ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1; }"),
            0
        );
        assert_eq!(ptx(".global .align 1 .b8 a[300], b[600];"), 512 + 768);
        assert_eq!(ptx(".global .b8 x[99999999999999999999999];"), 0);
        assert_eq!(ptx(".global"), 0);
        assert_eq!(ptx(".global.global .b8 x[300];"), 0);
        assert_eq!(ptx(".global .b8 x[300] .global .b8 y[300];"), 1024);
    }

    /// A cubin with these sections.
    fn cubin(sections: &[(&str, u64)]) -> Vec<u8> {
        let mut names = vec![0u8];
        let mut headers = vec![[0u8; 64]];
        for (name, size) in sections {
            let mut header = [0u8; 64];
            header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
            header[32..40].copy_from_slice(&size.to_le_bytes());
            names.extend(name.bytes().chain([0]));
            headers.push(header);
        }
        let mut header = [0u8; 64];
        header[24..32].copy_from_slice(&64u64.to_le_bytes());
        headers.push(header);
        let mut image = vec![0u8; 64];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[18..20].copy_from_slice(&EM_CUDA.to_le_bytes());
        image[40..48].copy_from_slice(&(64 + names.len() as u64).to_le_bytes());
        image[58..60].copy_from_slice(&64u16.to_le_bytes());
        image[60..62].copy_from_slice(&(headers.len() as u16).to_le_bytes());
        image[62..64].copy_from_slice(&(headers.len() as u16 - 1).to_le_bytes());
        image.extend(names);
        image.extend(headers.concat());
        image
    }

    fn fatbin(entries: &[(u16, u64, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, flags, payload) in entries {
            let mut header = [0u8; 64];
            header[..2].copy_from_slice(&kind.to_le_bytes());
            header[4..8].copy_from_slice(&64u32.to_le_bytes());
            header[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
            header[40..48].copy_from_slice(&flags.to_le_bytes());
            body.extend(header);
            body.extend(*payload);
        }
        let mut image = FATBIN.to_le_bytes().to_vec();
        image.extend(1u16.to_le_bytes());
        image.extend(16u16.to_le_bytes());
        image.extend((body.len() as u64).to_le_bytes());
        image.extend(body);
        image
    }

    fn all(image: &[u8]) -> Option<Needs> {
        let gpus = || vec![90];
        let file = Source::File(image).needs(&gpus);
        assert_eq!(Source::Memory(image.as_ptr()).needs(&gpus), file);
        file
    }

    fn both(image: &[u8]) -> Option<u64> {
        all(image).map(|needs| needs.variables)
    }

    #[test]
    fn cubins() {
        let image = cubin(&[
            (".text.k", 4096),
            (".nv.global.init", 4000),
            (".nv.global", 300 << 20),
            (".nv.shared.k", 1 << 30),
        ]);
        assert_eq!(both(&image), Some((300 << 20) + 4000));
        assert_eq!(both(&cubin(&[])), Some(0));
        let mut other = image.clone();
        other[18] = 62; // x86-64
        assert_eq!(both(&other), None);
        for cut in [7, 63, 70, image.len() - 64] {
            assert_eq!(
                Source::File(&image[..cut]).needs(&Vec::new),
                None,
                "cut at {cut}"
            );
        }
    }

    /// A cubin with these symbols, and whether each is its own.
    fn symbols(list: &[(&str, bool)]) -> Vec<u8> {
        let (mut texts, mut table) = (vec![0u8], vec![0u8; 24]);
        for (name, own) in list {
            let mut symbol = [0u8; 24];
            symbol[..4].copy_from_slice(&(texts.len() as u32).to_le_bytes());
            symbol[6] = u8::from(*own);
            texts.extend(name.bytes().chain([0]));
            table.extend(symbol);
        }
        let mut image = cubin(&[(".symtab", table.len() as u64), (".strtab", 0)]);
        let headers = u64::from_le_bytes(image[40..48].try_into().unwrap()) as usize;
        let end = image.len() as u64;
        let mut set = |at: usize, value: u64| {
            image[headers + at..headers + at + 8].copy_from_slice(&value.to_le_bytes());
        };
        set(64 + 24, end);
        set(64 + 40, 2);
        set(128 + 24, end + table.len() as u64);
        image[headers + 64 + 4] = 2;
        image.extend(table);
        image.extend(texts);
        image
    }

    #[test]
    fn what_is_used_of_the_runtime_are_symbols_of_another() {
        for (list, uses) in [
            (&[("kernel", true), ("malloc", false)][..], (true, false)),
            (&[("free", false)], (true, false)),
            (&[("malloc", true), ("printf", false)], (false, false)),
            (&[("mallocs", false), ("mall", false)], (false, false)),
            (&[("__assertfail", false)], (false, true)),
            (&[("__assertfail", false), ("malloc", false)], (true, true)),
            (&[], (false, false)),
        ] {
            let image = symbols(list);
            let fat = fatbin(&[(2, 0x11, &image), (2, 0x11, &cubin(&[]))]);
            for image in [image, fat] {
                let needs = all(&image).unwrap();
                assert_eq!((needs.device_malloc, needs.device_assert), uses, "{list:?}");
            }
        }
    }

    #[test]
    fn fat_binaries() {
        let small = cubin(&[(".nv.global", 100)]);
        let large = cubin(&[(".nv.global", 5000)]);
        let text = b".global .b8 data[3000];\0\0\0";
        assert_eq!(
            both(&fatbin(&[
                (2, 0x11, &small),
                (2, 0x11, &large),
                (1, 0x11, text)
            ])),
            Some(5000)
        );
        assert_eq!(both(&fatbin(&[(1, 0x11, text)])), Some(3072));
        assert_eq!(
            both(&fatbin(&[(2, 0x8011, &large), (1, 0x2011, text)])),
            None,
            "compressed"
        );
        assert_eq!(
            both(&fatbin(&[(1, 0x8011, text), (2, 0x11, &small)])),
            Some(100)
        );
        assert_eq!(both(&fatbin(&[])), None);
        let mut endless = fatbin(&[(1, 0x11, text)]);
        endless[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(both(&endless), None);
    }

    #[test]
    fn wrapped() {
        let inner = fatbin(&[(1, 0x11, b".global .b8 data[512];")]);
        let mut wrapper = WRAPPER.to_le_bytes().to_vec();
        wrapper.extend(1u32.to_le_bytes());
        wrapper.extend((inner.as_ptr() as u64).to_le_bytes());
        wrapper.extend(0u64.to_le_bytes());
        assert_eq!(needs(wrapper.as_ptr() as Opaque, &Vec::new).variables, 512);
        assert_eq!(needs(0, &Vec::new), Needs::default());
    }
}
