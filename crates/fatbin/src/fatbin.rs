//! Memory needs of a fat binary, which contains code images for different GPUs.
//!
//! A fat binary begins with a header of 16 bytes, followed by entries. Each entry has a header of
//! its own and a payload. The layout is known from the output of nvcc 11 to 13.

use super::compressed::Method;
use super::cubin;
use super::numbers::File;
use super::ptx;
use super::{Known, Needs, Packed};

/// Size in bytes of a fat binary's header, and the least size of an entry's header.
pub const HEADER: usize = 16;
const ENTRY: usize = 64;
/// Largest number of images that are examined per fat binary. With more images, the memory needs
/// are unknown.
const MOST: usize = 1 << 16;
/// Largest number of bytes that are decompressed per fat binary. Beyond this limit, the memory
/// needs of compressed images are unknown.
const MOST_DECODED: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Ptx,
    Cubin,
}

/// The kind of a fat binary entry that contains several images.
const JOINED: u16 = 256;

impl Kind {
    /// Returns the kind of image for the number in an entry's header; `None` if the driver does not
    /// load this kind.
    fn of(kind: u16) -> Option<Kind> {
        match kind {
            1 => Some(Kind::Ptx),
            2 => Some(Kind::Cubin),
            _ => None,
        }
    }
}

/// An image in a fat binary.
#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    kind: Kind,
    /// The compute capability of the image times ten: 90 for 9.0.
    capability: u32,
    /// The bytes from the image's beginning to the end of its entry. For a compressed image, all
    /// compressed bytes of the entry.
    payload: &'a [u8],
    compressed: Option<Compressed>,
}

#[derive(Clone, Copy, Debug)]
struct Compressed {
    method: Method,
    packed: usize,
    /// The size of the payload after decompression, in bytes.
    stated: u64,
    /// Offset of the image in the decompressed payload.
    from: usize,
}

/// Returns the length of a fat binary according to its header; `None` for a header of another
/// version, and if the length exceeds the address space.
pub fn length(header: &[u8; HEADER]) -> Option<usize> {
    let header = File(header);
    let is_known = header.half(4)? == 1 && usize::from(header.half(6)?) == HEADER;
    is_known.then_some(HEADER.checked_add(header.place(8)?)?)
}

/// Returns the memory needs of a fat binary: the largest of an image that a GPU with these compute
/// capabilities may load.
pub fn needs(fatbin: &[u8], capabilities: &dyn Fn() -> Vec<u32>, known: &dyn Known) -> Needs {
    let mut entries = Vec::new();
    let whole = read(fatbin, &mut entries).is_some();
    let mut needs: Option<Needs> = None;
    let chosen = match entries.iter().any(|entry| entry.compressed.is_some()) {
        true => chosen_for(&entries, &capabilities()),
        false => Vec::new(),
    };
    let mut reader = Reader {
        decoded: None,
        left: MOST_DECODED,
        unread: fatbin.len(),
    };
    for (number, entry) in entries.iter().enumerate() {
        if entry.compressed.is_some() && chosen.get(number) != Some(&true) {
            continue;
        }
        let mut read = || reader.read(entry);
        let says = match entry.packed() {
            Some(packed) => known.needs(&packed, &mut read),
            None => read(),
        };
        needs = Some(needs.map_or(says, |needs| needs.or(says)));
    }
    let needs = needs.unwrap_or_default();
    Needs {
        unknown: needs.unknown || !whole,
        ..needs
    }
}

/// Reads the images of one fat binary, within bounds for all of them.
struct Reader<'a> {
    /// The last decompressed data, and the compressed bytes. If several images share compressed
    /// data, the data is decompressed only once.
    decoded: Option<(&'a [u8], Option<Vec<u8>>)>,
    /// The bytes that may still be decompressed.
    left: u64,
    /// The bytes that may still be read. Images may overlap, so a crafted file could be read many
    /// times.
    unread: usize,
}

impl<'a> Reader<'a> {
    /// Returns the memory needs of an image.
    fn read(&mut self, entry: &Entry<'a>) -> Needs {
        let image = match entry.compressed {
            None => Some(entry.payload),
            Some(compressed) => {
                self.decode(entry.payload, compressed);
                let bytes = self.decoded.as_ref().and_then(|(_, bytes)| bytes.as_ref());
                bytes.and_then(|bytes| bytes.get(compressed.from..))
            }
        };
        match (image, entry.kind) {
            (Some(image), Kind::Ptx) if self.unread > 0 => {
                let text = super::text(image);
                self.unread = self.unread.saturating_sub(text.len());
                ptx::needs(text)
            }
            (Some(image), Kind::Cubin) => cubin::needs_within(image, &mut self.unread),
            _ => Needs::UNKNOWN,
        }
    }

    /// Decompresses a payload, unless it is the last one that was decompressed.
    fn decode(&mut self, payload: &'a [u8], compressed: Compressed) {
        let is_last = |(of, _): &(&[u8], _)| of.as_ptr() == payload.as_ptr();
        if self.decoded.as_ref().is_some_and(is_last) {
            return;
        }
        // Frees the last data first.
        self.decoded = None;
        let bytes = compressed.decode(payload, &mut self.left);
        let length = bytes.as_ref().map_or(0, Vec::len);
        self.unread = self.unread.saturating_add(length);
        self.decoded = Some((payload, bytes));
    }
}

impl<'a> Entry<'a> {
    /// Returns everything that the image's needs depend on, if the image is compressed.
    fn packed(&self) -> Option<Packed<'a>> {
        let compressed = self.compressed?;
        Some(Packed {
            facts: [
                self.kind as u64,
                compressed.method as u64,
                compressed.packed as u64,
                compressed.stated,
                compressed.from as u64,
            ],
            bytes: self.payload,
        })
    }
}

impl Compressed {
    /// Decompresses the payload of an entry if the decompressed size is at most `left`, and
    /// subtracts that size from `left`.
    fn decode(self, payload: &[u8], left: &mut u64) -> Option<Vec<u8>> {
        let rest = left.checked_sub(self.stated)?;
        let packed = payload.get(..self.packed)?;
        *left = rest;
        self.method.decode(packed, self.stated)
    }
}

/// Appends the images of a fat binary to `entries`. Returns `None` if some images could not be
/// read.
fn read<'a>(fatbin: &'a [u8], entries: &mut Vec<Entry<'a>>) -> Option<()> {
    let header = fatbin.first_chunk()?;
    let whole = length(header)?;
    let end = whole.min(fatbin.len());
    let mut at = usize::from(File(fatbin).half(6)?);
    while at < end {
        let entry = File(fatbin.get(at..end)?);
        let (kind, size) = (entry.half(0)?, entry.short_place(4)?);
        if kind == 0 && size == 0 {
            // Padding after the last entry ends the list of entries.
            return entry.0.iter().all(|byte| *byte == 0).then_some(());
        }
        let next = size.checked_add(entry.place(8)?)?;
        let payload = entry.0.get(size..next)?;
        if size < ENTRY || entries.len() >= MOST {
            return None;
        }
        let compressed = match Method::of(entry.long(40)?) {
            Some(method) => Some(Compressed {
                method,
                packed: entry.short_place(16)?.min(payload.len()),
                stated: entry.long(56)?,
                from: 0,
            }),
            None => None,
        };
        let image = |record: File<'_>| {
            Some(Entry {
                kind: Kind::of(record.half(0)?)?,
                capability: record.word(28)?,
                payload,
                compressed,
            })
        };
        if kind == JOINED {
            joined(entry.0.get(..size)?, &image, entries)?;
        } else {
            entries.extend(image(entry));
        }
        at += next;
    }
    (at >= whole).then_some(())
}

/// Appends the images of an entry with several images (`fatbinary --concat`). One header per image
/// follows the entry's header.
fn joined<'a>(
    header: &[u8],
    image: &dyn Fn(File<'_>) -> Option<Entry<'a>>,
    entries: &mut Vec<Entry<'a>>,
) -> Option<()> {
    const COUNT: usize = 64;
    const FIRST: usize = 72;
    const RECORD: usize = 64;
    let count = File(header).short_place(COUNT)?;
    let mut records = header.get(FIRST..)?.chunks_exact(RECORD);
    for _ in 0..count {
        let record = File(records.next()?);
        // In an image's header, the field at byte 4 is the image's offset, not the size of the
        // header.
        let from = record.short_place(4)?;
        let Some(mut entry) = image(record) else {
            continue;
        };
        if entries.len() >= MOST {
            return None;
        }
        match &mut entry.compressed {
            Some(compressed) => compressed.from = from,
            None => entry.payload = entry.payload.get(from..)?,
        }
        entries.push(entry);
    }
    Some(())
}

/// Returns for each entry whether the driver may choose the entry's image for one of the GPUs.
fn chosen_for(entries: &[Entry<'_>], capabilities: &[u32]) -> Vec<bool> {
    let mut chosen = vec![false; entries.len()];
    for gpu in capabilities {
        // The driver takes the fitting cubin with the highest version, or else the fitting PTX
        // text.
        let nearest = |kind, lowest| {
            let fits = |entry: &&Entry<'_>| {
                entry.kind == kind && (lowest..=*gpu).contains(&entry.capability)
            };
            let nearest = entries
                .iter()
                .filter(fits)
                .map(|entry| entry.capability)
                .max();
            nearest.map(|capability| (kind, capability))
        };
        // A cubin fits only GPUs of the same major version. A PTX text fits all higher versions.
        let taken = nearest(Kind::Cubin, gpu / 10 * 10).or_else(|| nearest(Kind::Ptx, 0));
        for (entry, chosen) in entries.iter().zip(&mut chosen) {
            *chosen |= Some((entry.kind, entry.capability)) == taken;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const LZ4: &[u8] = include_bytes!("fixtures/lz4.fatbin");
    const ZSTD: &[u8] = include_bytes!("fixtures/zstd.fatbin");
    const JOINED: &[u8] = include_bytes!("fixtures/joined.fatbin");

    fn all(fatbin: &[u8], capabilities: &[u32]) -> Needs {
        needs(fatbin, &|| capabilities.to_vec(), &())
    }

    /// Returns the sizes of the variables of a fat binary, and asserts that all of the fat binary
    /// can be read.
    fn variables(fatbin: &[u8], capabilities: &[u32]) -> u64 {
        let needs = all(fatbin, capabilities);
        assert!(!needs.unknown);
        needs.variables
    }

    /// Returns the size of the variables in `fixtures/variables.cu`: an array of `mib` MiB, and a
    /// table of 4,000 bytes.
    fn version(mib: u64) -> u64 {
        // In PTX text the size of each variable is rounded up.
        (mib << 20) + if mib == 50 { 4096 } else { 4000 }
    }

    #[test]
    fn the_entry_for_the_gpu_counts() {
        for (name, fatbin) in [("lz4", LZ4), ("zstd", ZSTD), ("joined", JOINED)] {
            for (capability, mib) in [
                (75, 50),
                (80, 100),
                (86, 200),
                (89, 200),
                (90, 300),
                (100, 50),
                (121, 50),
            ] {
                assert_eq!(
                    variables(fatbin, &[capability]),
                    version(mib),
                    "{name} for {capability}"
                );
            }
            assert_eq!(variables(fatbin, &[80, 90]), version(300), "{name}");
            assert_eq!(variables(fatbin, &[70]), 0, "{name}");
            assert_eq!(variables(fatbin, &[]), 0, "{name}");
        }
    }

    /// Returns a zstd frame of a few bytes that decompresses to `size` equal bytes.
    fn bomb(size: u32) -> Vec<u8> {
        const LARGEST: u32 = 128 << 10;
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
        frame.extend(size.to_le_bytes());
        for at in (0..size).step_by(LARGEST as usize) {
            let length = (size - at).min(LARGEST);
            let last = u32::from(size - at <= LARGEST);
            frame.extend(&(last | 1 << 1 | length << 3).to_le_bytes()[..3]);
            frame.push(b' ');
        }
        frame
    }

    /// The entry has 60,000 images in the same bytes. Reading these bytes again for each image
    /// would take days.
    #[test]
    fn overlapping_images_are_read_once() {
        const COUNT: usize = 60_000;
        const SIZE: u32 = 2 << 20;
        let packed = bomb(SIZE);
        let mut record = [0u8; 64];
        // The image is PTX for every GPU, compressed by zstd, at the beginning of the payload.
        record[..2].copy_from_slice(&1u16.to_le_bytes());
        let header = 72 + COUNT * 64;
        let mut entry = vec![0u8; 72];
        entry[..2].copy_from_slice(&super::JOINED.to_le_bytes());
        entry[4..8].copy_from_slice(&(header as u32).to_le_bytes());
        entry[8..16].copy_from_slice(&(packed.len() as u64).to_le_bytes());
        entry[16..20].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        entry[40..48].copy_from_slice(&0x8000u64.to_le_bytes());
        entry[56..64].copy_from_slice(&u64::from(SIZE).to_le_bytes());
        entry[64..68].copy_from_slice(&(COUNT as u32).to_le_bytes());
        entry.extend(record.repeat(COUNT));
        entry.extend(packed);
        let mut image = super::super::FATBIN.to_vec();
        image.extend(1u16.to_le_bytes());
        image.extend(16u16.to_le_bytes());
        image.extend((entry.len() as u64).to_le_bytes());
        image.extend(entry);
        let needs = needs(&image, &|| vec![90], &());
        assert!(needs.unknown);
    }

    #[test]
    fn decoding_is_bounded() {
        const SIZE: u32 = 2 << 20;
        let packed = bomb(SIZE);
        let compressed = Compressed {
            method: Method::Zstd,
            packed: packed.len(),
            stated: u64::from(SIZE),
            from: 0,
        };
        let mut left = 5 << 20;
        for rest in [3, 1] {
            let decoded = compressed.decode(&packed, &mut left);
            assert_eq!(decoded.map(|bytes| bytes.len()), Some(SIZE as usize));
            assert_eq!(left, rest << 20);
        }
        assert_eq!(compressed.decode(&packed, &mut left), None);
        assert_eq!(left, 1 << 20);
        // An entry is decompressed only if its stated size is within the bound. Otherwise its
        // memory needs are unknown.
        let entry = |stated: u64| {
            let mut header = [0u8; ENTRY];
            (header[0], header[4], header[28]) = (1, ENTRY as u8, 90);
            header[8..16].copy_from_slice(&(packed.len() as u64).to_le_bytes());
            header[16..20].copy_from_slice(&(packed.len() as u32).to_le_bytes());
            header[40..48].copy_from_slice(&0x8011u64.to_le_bytes());
            header[56..64].copy_from_slice(&stated.to_le_bytes());
            [&header[..], &packed].concat()
        };
        for (stated, unknown) in [(u64::from(SIZE), false), (MOST_DECODED + 1, true)] {
            let entry = entry(stated);
            let mut image = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
            image.extend((entry.len() as u64).to_le_bytes());
            image.extend(entry);
            assert_eq!(all(&image, &[90]).unknown, unknown);
        }
    }

    #[test]
    fn only_compressed_entries_are_chosen_by_gpu() {
        let mut plain = LZ4.to_vec();
        // The PTX entry is compressed, but its flags say uncompressed. Its bytes then declare no
        // variable.
        plain[16 + 40..16 + 48].copy_from_slice(&0x11u64.to_le_bytes());
        assert_eq!(all(&plain, &[80]).variables, version(100));
        assert_eq!(all(&plain, &[70]).variables, 0);
    }

    /// Damaged images must cause no panic and no read outside the image.
    #[test]
    fn damaged() {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        let (mut other, mut same) = (0, 0);
        for fatbin in [LZ4, ZSTD, JOINED] {
            let whole = all(fatbin, &[86]);
            for _ in 0..4000 {
                let mut image = fatbin.to_vec();
                for _ in 0..=random(3) {
                    let at = random(image.len());
                    image[at] = match random(4) {
                        0 => 0,
                        1 => u8::MAX,
                        _ => random(256) as u8,
                    };
                }
                if random(4) == 0 {
                    image.truncate(random(image.len()));
                }
                // Use a separate allocation, so that tools can detect reads beyond its end.
                let image = image.into_boxed_slice();
                match all(&image, &[86]) == whole {
                    true => same += 1,
                    false => other += 1,
                }
            }
        }
        assert!(other > 1000 && same > 1000, "{other} and {same}");
    }
}
