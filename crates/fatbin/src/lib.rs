//! Estimates of the GPU memory that a code image takes when the driver loads it.
//!
//! For most code, gpulimit measures the memory after loading. This is too late for large
//! `__device__` arrays and for device `malloc`. Such a load must be refused before the driver takes
//! the memory.
//!
//! An image is a PTX text, a cubin (ELF), or a fat binary of these, compressed or not.

mod compressed;
mod cubin;
mod fatbin;
pub mod lz4;
mod numbers;
mod output;
mod ptx;
mod runtime;
pub mod zstd;

pub use cubin::length as length_of_cubin;
pub use fatbin::length as length_of_fat_binary;

/// The memory needs of a code image, without the memory for the code itself.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Needs {
    /// Upper bound of the bytes of GPU memory that the image's variables take.
    pub variables: u64,
    /// Lower bound of the bytes of GPU memory that the image's variables take.
    pub least: u64,
    /// Bytes of managed memory that the image's variables take.
    pub managed: u64,
    /// Whether the image's kernels use device `malloc`.
    pub device_malloc: bool,
    /// Whether the image's kernels use device `assert`.
    pub device_assert: bool,
    /// Whether the image's kernels use device `printf`.
    pub device_printf: bool,
    /// Whether some part of the image could not be read. The image may then need more memory than
    /// the other fields say.
    pub unknown: bool,
}

impl Needs {
    /// The memory needs of an image that takes no memory besides its code.
    pub const NOTHING: Needs = Needs {
        variables: 0,
        least: 0,
        managed: 0,
        device_malloc: false,
        device_assert: false,
        device_printf: false,
        unknown: false,
    };

    /// The memory needs of an image that cannot be read at all.
    pub const UNKNOWN: Needs = Needs {
        unknown: true,
        ..Needs::NOTHING
    };

    /// Returns whether the image uses any function of the device's runtime, such as device
    /// `malloc`.
    pub fn uses_runtime(self) -> bool {
        self.device_malloc || self.device_assert || self.device_printf
    }

    /// Returns memory needs that hold for each of two images, one of which the driver loads.
    pub fn or(self, other: Needs) -> Needs {
        Needs {
            variables: self.variables.max(other.variables),
            least: self.least.min(other.least),
            managed: self.managed.max(other.managed),
            device_malloc: self.device_malloc || other.device_malloc,
            device_assert: self.device_assert || other.device_assert,
            device_printf: self.device_printf || other.device_printf,
            unknown: self.unknown || other.unknown,
        }
    }

    /// Returns these memory needs with the runtime functions of `runtime` added. Sizes stay the
    /// same.
    fn with(self, runtime: Needs) -> Needs {
        Needs {
            least: self.least,
            ..self.or(runtime)
        }
    }

    /// Returns the memory needs of two images together.
    pub fn and(self, other: Needs) -> Needs {
        Needs {
            variables: self.variables.saturating_add(other.variables),
            least: self.least.saturating_add(other.least),
            managed: self.managed.saturating_add(other.managed),
            ..self.or(other)
        }
        .bounded()
    }

    /// Returns these memory needs with each size capped at 2^48 bytes, so that sums do not
    /// overflow.
    fn bounded(self) -> Needs {
        const MOST: u64 = 1 << 48;
        Needs {
            variables: self.variables.min(MOST),
            least: self.least.min(MOST),
            managed: self.managed.min(MOST),
            ..self
        }
    }
}

/// A compressed image in a fat binary: all that its memory needs depend on.
pub struct Packed<'a> {
    /// The facts in the entry's header: the kind, the compression method, the compressed size, the
    /// decompressed size (bytes), and the image's offset after decompression.
    pub facts: [u64; 5],
    /// The compressed bytes.
    pub bytes: &'a [u8],
}

impl Packed<'_> {
    /// Returns the size of the image's entry after decompression, in bytes.
    pub fn decompressed(&self) -> u64 {
        self.facts[3]
    }
}

/// Remembers the memory needs of compressed images, which take long to read.
pub trait Known {
    /// Returns the needs of an image, from memory or from `read`, which decompresses the image.
    fn needs(&self, image: &Packed<'_>, read: &mut dyn FnMut() -> Needs) -> Needs;
}

/// Remembers nothing.
impl Known for () {
    fn needs(&self, _: &Packed<'_>, read: &mut dyn FnMut() -> Needs) -> Needs {
        read()
    }
}

/// The first bytes of a fat binary.
pub const FATBIN: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
/// The first bytes of a `__fatBinC_Wrapper_t`, which has the address of a fat binary at byte 8.
pub const WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();
/// The first bytes of a cubin.
pub const ELF: [u8; 4] = [0x7f, b'E', b'L', b'F'];

/// Returns the memory needs of an image of any kind. The bytes may be damaged.
pub fn needs_of_bytes(
    bytes: &[u8],
    capabilities: &dyn Fn() -> Vec<u32>,
    known: &dyn Known,
) -> Needs {
    let needs = match bytes.first_chunk() {
        Some(&FATBIN) => fatbin::needs(bytes, capabilities, known),
        Some(&ELF) => cubin::needs(bytes),
        Some(&WRAPPER) => Needs::UNKNOWN,
        _ => ptx::needs(text(bytes)),
    };
    needs.bounded()
}

/// Returns the part of a text before the first NUL.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a cubin for a test, with these sections and an empty symbol table.
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
        header[4] = 2;
        header[40] = headers.len() as u8;
        headers.push(header);
        let mut header = [0u8; 64];
        header[24..32].copy_from_slice(&64u64.to_le_bytes());
        header[32..40].copy_from_slice(&(names.len() as u64).to_le_bytes());
        headers.push(header);
        let mut image = vec![0u8; 64];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[18..20].copy_from_slice(&190u16.to_le_bytes());
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
        let mut image = FATBIN.to_vec();
        image.extend(1u16.to_le_bytes());
        image.extend(16u16.to_le_bytes());
        image.extend((body.len() as u64).to_le_bytes());
        image.extend(body);
        image
    }

    /// Returns the memory needs of an image. Asserts that bytes after the image's stated length
    /// make no difference.
    fn all(image: &[u8]) -> Needs {
        let gpus = || vec![90];
        let file = needs_of_bytes(image, &gpus, &());
        let length = match image.first_chunk() {
            Some(&FATBIN) => length_of_fat_binary(image.first_chunk().expect("a header")),
            Some(&ELF) => length_of_cubin(image.first_chunk().expect("a header")),
            _ => Some(image.len()),
        };
        let memory = length.map_or(Needs::UNKNOWN, |length| {
            needs_of_bytes(&image[..length], &gpus, &())
        });
        assert_eq!(memory, file);
        file
    }

    /// Returns the size of an image's variables, and whether parts of the image could not be read.
    fn variables(image: &[u8]) -> (u64, bool) {
        let needs = all(image);
        (needs.variables, needs.unknown)
    }

    const KNOWN: bool = false;
    const UNKNOWN: bool = true;

    fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the offset of a section's header in the test cubin.
    fn section(image: &[u8], number: usize) -> usize {
        u64::from_le_bytes(image[40..48].try_into().unwrap()) as usize + number * 64
    }

    #[test]
    fn cubins() {
        let image = cubin(&[
            (".text.k", 4096),
            (".nv.global.init", 4000),
            (".nv.global", 300 << 20),
            (".nv.shared.k", 1 << 30),
        ]);
        assert_eq!(variables(&image), ((300 << 20) + 4000, KNOWN));
        assert_eq!(variables(&cubin(&[])), (0, KNOWN));
        let mut other = image.clone();
        other[18] = 62; // x86-64
        assert_eq!(variables(&other), (0, UNKNOWN));
        for cut in [7, 63, 70, image.len() - 64] {
            assert_eq!(
                needs_of_bytes(&image[..cut], &Vec::new, &()).variables % 4000,
                0,
                "cut at {cut}"
            );
            assert!(needs_of_bytes(&image[..cut], &Vec::new, &()).unknown);
        }
    }

    /// Contradictory headers hide parts of an image. The hidden parts are unknown; the others
    /// count.
    #[test]
    fn contradictory_headers_are_unknown() {
        let whole = cubin(&[(".nv.global.init", 4000), (".nv.global", 300 << 20)]);
        let all_of_it = (300 << 20) + 4000;
        for (at, value, found) in [
            (4, &[1u8][..], 0),
            (5, &[2], 0),
            (58, &0u16.to_le_bytes(), 0),
            (58, &128u16.to_le_bytes(), 0),
            (60, &0u16.to_le_bytes(), 0),
            (60, &u16::MAX.to_le_bytes(), all_of_it),
            (62, &u16::MAX.to_le_bytes(), 0),
        ] {
            let mut image = whole.clone();
            put(&mut image, at, value);
            // Do not call `all` here: some of these headers state a greater length than the image
            // has.
            let needs = needs_of_bytes(&image, &Vec::new, &());
            assert_eq!((needs.variables, needs.unknown), (found, true), "{at}");
        }
        let mut image = whole.clone();
        let name = section(&image, 1);
        put(&mut image, name, &u32::MAX.to_le_bytes());
        assert_eq!(
            variables(&image),
            (300 << 20, UNKNOWN),
            "the name of a section lies outside the image"
        );
        let mut image = whole.clone();
        let size = section(&image, 1) + 32;
        put(&mut image, size, &u64::MAX.to_le_bytes());
        assert_eq!(variables(&image), (1 << 48, KNOWN), "a capped sum");
        for at in [24, 32] {
            let mut image = symbols(&[("malloc", 0, 0)]);
            let table = section(&image, 1) + at;
            put(&mut image, table, &(1u64 << 44).to_le_bytes());
            assert!(all(&image).unknown, "symbols outside the image: {at}");
        }
        let mut image = symbols(&[("malloc", 0, 0)]);
        let strings = section(&image, 1) + 40;
        put(&mut image, strings, &9999u32.to_le_bytes());
        assert!(all(&image).unknown, "names of symbols outside the image");
    }

    /// Builds a cubin with symbols: name, number of the section (0: undefined), size of the managed
    /// variable (0: none).
    fn symbols(list: &[(&str, u8, u64)]) -> Vec<u8> {
        let (mut texts, mut table) = (vec![0u8], vec![0u8; 24]);
        for (name, own, managed) in list {
            let mut symbol = [0u8; 24];
            symbol[..4].copy_from_slice(&(texts.len() as u32).to_le_bytes());
            symbol[6] = *own;
            if *managed > 0 {
                symbol[4..6].copy_from_slice(&[0x11, 4]);
                symbol[8..16].copy_from_slice(&4096u64.to_le_bytes());
                symbol[16..].copy_from_slice(&managed.to_le_bytes());
            }
            texts.extend(name.bytes().chain([0]));
            table.extend(symbol);
        }
        let lengths = [table.len() as u64, texts.len() as u64];
        let global = list.iter().map(|(_, _, managed)| managed).sum::<u64>() + 4096;
        let mut image = cubin(&[
            (".symtab", lengths[0]),
            (".strtab", lengths[1]),
            (".nv.global", global),
        ]);
        let (first, second) = (section(&image, 1), section(&image, 2));
        let end = image.len() as u64;
        put(&mut image, first + 4, &2u32.to_le_bytes());
        put(&mut image, first + 24, &end.to_le_bytes());
        put(&mut image, first + 40, &2u32.to_le_bytes());
        put(&mut image, second + 24, &(end + lengths[0]).to_le_bytes());
        image.extend(table);
        image.extend(texts);
        // The test cubin ends with a segment table of one entry.
        let end = image.len() as u64;
        put(&mut image, 32, &end.to_le_bytes());
        put(&mut image, 54, &56u16.to_le_bytes());
        put(&mut image, 56, &1u16.to_le_bytes());
        image.extend([0; 56]);
        image
    }

    /// If a section's header and its symbols state different sizes, the driver takes as much memory
    /// as the symbols say (measured).
    #[test]
    fn symbols_beyond_the_size_of_their_section_count() {
        let mut image = symbols(&[("k", 1, 0), ("m", 3, 1 << 30)]);
        let size = section(&image, 3) + 32;
        put(&mut image, size, &0u64.to_le_bytes());
        let needs = all(&image);
        assert_eq!((needs.managed, needs.variables), (1 << 30, 4096));
        let table =
            u64::from_le_bytes(image[section(&image, 1) + 24..][..8].try_into().unwrap()) as usize;
        image[table + 2 * 24 + 5] = 0;
        assert_eq!(variables(&image), ((1 << 30) + 4096, KNOWN));
    }

    #[test]
    fn only_known_headers_state_a_length() {
        let cubin = |image: &[u8]| length_of_cubin(image.first_chunk().expect("a header"));
        let whole = symbols(&[]);
        assert_eq!(cubin(&whole), Some(whole.len()));
        // The class, the machine, and the sizes of an entry in each table.
        for at in [4, 18, 54, 58] {
            let mut image = whole.clone();
            image[at] ^= 1;
            assert_eq!(cubin(&image), None, "{at}");
        }
        let fatbin = |image: &[u8]| length_of_fat_binary(image.first_chunk().expect("a header"));
        let whole = super::tests::fatbin(&[]);
        assert_eq!(fatbin(&whole), Some(whole.len()));
        // The version, and the size of the header.
        for at in [4, 6] {
            let mut image = whole.clone();
            image[at] ^= 2;
            assert_eq!(fatbin(&image), None, "{at}");
        }
    }

    #[test]
    fn managed_variables_of_cubins() {
        const CUBIN: &[u8] = include_bytes!("fixtures/managed.cubin");
        const PTX: &[u8] = include_bytes!("fixtures/managed.ptx");
        let expected = Needs {
            managed: (300 << 20) + 4,
            variables: (100 << 20) + 4,
            least: (100 << 20) + 4,
            ..Needs::default()
        };
        assert_eq!(all(CUBIN), expected);
        let rounded = Needs {
            managed: (300 << 20) + 256,
            variables: (100 << 20) + 256,
            least: (100 << 20) + 4,
            ..Needs::default()
        };
        assert_eq!(all(PTX), rounded);
        let image = symbols(&[("k", 3, 0), ("m", 3, 1 << 30), ("n", 3, 4)]);
        let needs = all(&image);
        assert_eq!((needs.managed, needs.variables), ((1 << 30) + 4, 4096));
        assert!(!needs.unknown);
        let fat = all(&fatbin(&[(2, 0x11, &image)]));
        assert_eq!(fat, needs);
    }

    #[test]
    fn undefined_symbols_show_the_use_of_the_runtime() {
        for (list, uses) in [
            (&[("kernel", 1, 0), ("malloc", 0, 0)][..], (true, false)),
            (&[("free", 0, 0)], (true, false)),
            (&[("malloc", 1, 0), ("printf", 0, 0)], (false, false)),
            (&[("mallocs", 0, 0), ("mall", 0, 0)], (false, false)),
            (&[("__assertfail", 0, 0)], (false, true)),
            (&[("__assertfail", 0, 0), ("malloc", 0, 0)], (true, true)),
            (&[], (false, false)),
        ] {
            let image = symbols(list);
            let fat = fatbin(&[(2, 0x11, &image), (2, 0x11, &cubin(&[]))]);
            for image in [image, fat] {
                let needs = all(&image);
                assert_eq!((needs.device_malloc, needs.device_assert), uses, "{list:?}");
            }
        }
    }

    #[test]
    fn fat_binaries() {
        let small = cubin(&[(".nv.global", 100)]);
        let large = cubin(&[(".nv.global", 5000)]);
        let text = b".global .b8 data[3000];\0\0\0";
        let three = fatbin(&[(2, 0x11, &small), (2, 0x11, &large), (1, 0x11, text)]);
        assert_eq!(variables(&three), (5000, KNOWN));
        assert_eq!(variables(&fatbin(&[(1, 0x11, text)])), (3072, KNOWN));
        assert_eq!(variables(&fatbin(&[])), (0, KNOWN));
        let mut padded = fatbin(&[(1, 0x11, text)]);
        let length = padded.len() as u64 - 16 + 8;
        put(&mut padded, 8, &length.to_le_bytes());
        padded.extend([0; 8]);
        assert_eq!(variables(&padded), (3072, KNOWN));
    }

    /// The readable parts of a damaged fat binary still count.
    #[test]
    fn damaged_fat_binaries() {
        let small = cubin(&[(".nv.global", 100)]);
        let large = cubin(&[(".nv.global", 5000)]);
        let text = b".global .b8 data[3000];";
        let packed = fatbin(&[(2, 0x8011, &large), (1, 0x2011, text)]);
        assert_eq!(
            variables(&packed),
            (0, UNKNOWN),
            "the flags call the payloads compressed, but they are not"
        );
        let mut odd = large.clone();
        put(&mut odd, 58, &[0]);
        for entries in [
            [(2, 0x11, &odd[..]), (2, 0x11, &large), (2, 0x11, &small)],
            [(2, 0x11, &large), (2, 0x11, &odd), (2, 0x11, &small)],
        ] {
            assert_eq!(variables(&fatbin(&entries)), (5000, UNKNOWN));
        }
        let mut endless = fatbin(&[(2, 0x11, &large), (1, 0x11, text)]);
        let second = 16 + 64 + large.len() + 8;
        put(&mut endless, second, &u64::MAX.to_le_bytes());
        assert_eq!(variables(&endless), (5000, UNKNOWN));
        let cut = &fatbin(&[(2, 0x11, &large), (1, 0x11, text)])[..second];
        let needs = needs_of_bytes(cut, &Vec::new, &());
        assert_eq!((needs.variables, needs.unknown), (5000, true));
    }

    #[test]
    fn an_entry_after_many_others_counts() {
        let large = cubin(&[(".nv.global", 5000)]);
        for (count, unknown) in [(5000, KNOWN), (1 << 16, UNKNOWN)] {
            let mut entries = vec![(2, 0x11, &[][..]); count];
            // The other entries are PTX, because the needs of empty cubins would be unknown.
            entries.fill((1, 0x11, b".version"));
            entries.insert(0, (2, 0x11, &large));
            entries.push((1, 0x11, b".global .b8 x[30000];"));
            let found = variables(&fatbin(&entries));
            let expected = if unknown { 5000 } else { 30_208 };
            assert_eq!(found, (expected, unknown), "{count}");
        }
    }

    /// These images have many sections or names. Reading all bytes again for each of them would
    /// take days.
    #[test]
    fn overlapping_tables_and_endless_names_are_read_once() {
        const SECTIONS: u16 = 40_000;
        let mut image = vec![0u8; 64 * usize::from(SECTIONS) + 64];
        let length = image.len() as u64 - 64;
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[18..20].copy_from_slice(&190u16.to_le_bytes());
        image[40..48].copy_from_slice(&64u64.to_le_bytes());
        image[58..60].copy_from_slice(&64u16.to_le_bytes());
        image[60..62].copy_from_slice(&SECTIONS.to_le_bytes());
        for header in image[64..].chunks_exact_mut(64) {
            // Each section of the first image is a symbol table, made of all section headers.
            header[..4].copy_from_slice(&1u32.to_le_bytes());
            header[4..8].copy_from_slice(&2u32.to_le_bytes());
            header[24..32].copy_from_slice(&64u64.to_le_bytes());
            header[32..40].copy_from_slice(&length.to_le_bytes());
        }
        assert!(needs_of_bytes(&image, &Vec::new, &()).unknown);
        // The second image has one symbol table. The names of its symbols have no end.
        let symbols = vec![0u8; 24 << 17];
        let names = vec![b'x'; 8 << 20];
        let mut image = cubin(&[(".x", 0)]);
        let table = section(&image, 2);
        let (start, end) = (image.len() as u64, (image.len() + symbols.len()) as u64);
        image.extend(&symbols);
        image.extend(&names);
        put(&mut image, table + 24, &start.to_le_bytes());
        put(
            &mut image,
            table + 32,
            &(symbols.len() as u64).to_le_bytes(),
        );
        put(&mut image, table + 40, &1u32.to_le_bytes());
        let of_names = section(&image, 1);
        put(&mut image, of_names + 24, &end.to_le_bytes());
        put(
            &mut image,
            of_names + 32,
            &(names.len() as u64).to_le_bytes(),
        );
        assert!(!needs_of_bytes(&image, &Vec::new, &()).uses_runtime());
    }
}
