//! Fat binaries: images for different GPUs in one, each perhaps compressed.
//!
//! Layout: 16 bytes of header, then entries, each a header of its own and a payload. Seen in what
//! nvcc 11 to 13 make, and in NVIDIA's libraries.

use super::Needs;
use super::compressed::Method;
use super::cubin;
use super::numbers::File;
use super::ptx;

/// The size of a fat binary's header, and the least that an entry's header has.
pub const HEADER: usize = 16;
const ENTRY: usize = 64;
/// Entries that are remembered. What a fat binary with more of them takes is unknown.
const MOST: usize = 1 << 16;
/// Bytes that are decoded of one fat binary. What it has beyond that is unknown.
const MOST_DECODED: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Ptx,
    Cubin,
}

/// The kind of an entry that holds several.
const JOINED: u16 = 256;

impl Kind {
    /// `None` for what is not loaded.
    fn of(kind: u16) -> Option<Kind> {
        match kind {
            1 => Some(Kind::Ptx),
            2 => Some(Kind::Cubin),
            _ => None,
        }
    }
}

/// One image.
#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    kind: Kind,
    /// 90 for compute capability 9.0.
    capability: u32,
    /// The image, perhaps padded, or what it is compressed in.
    payload: &'a [u8],
    compressed: Option<Compressed>,
}

#[derive(Clone, Copy, Debug)]
struct Compressed {
    method: Method,
    packed: usize,
    /// The size without compression.
    stated: u64,
    /// Where in that the image begins.
    from: usize,
}

/// Returns the bytes that a fat binary has by its own header; `None` where that is more than memory
/// can hold.
pub fn length(header: &[u8; HEADER]) -> Option<usize> {
    usize::from(File(header).half(6)?).checked_add(File(header).place(8)?)
}

/// Returns what a fat binary takes: the images that the driver may choose for GPUs of these compute
/// capabilities are alternatives, and the largest counts. One that is not compressed costs nothing
/// to look at, and so is seen whatever GPU it is for.
pub fn needs(fatbin: &[u8], capabilities: &dyn Fn() -> Vec<u32>) -> Needs {
    let mut entries = Vec::new();
    let whole = read(fatbin, &mut entries).is_some();
    let mut needs: Option<Needs> = None;
    let chosen = match entries.iter().any(|entry| entry.compressed.is_some()) {
        true => chosen_for(&entries, &capabilities()),
        false => Vec::new(),
    };
    // Images that are compressed together are decoded once.
    let mut decoded: Option<(&[u8], Option<Vec<u8>>)> = None;
    let mut left = MOST_DECODED;
    // Images that are joined in one payload each have a part of it: they are not all read to its
    // end.
    let mut unread = fatbin.len();
    for (number, entry) in entries.iter().enumerate() {
        let image = match entry.compressed {
            None => Some(entry.payload),
            Some(_) if chosen.get(number) != Some(&true) => continue,
            Some(compressed) => {
                let known = decoded.take();
                let known = known.filter(|(of, _)| of.as_ptr() == entry.payload.as_ptr());
                let (_, bytes) = decoded.insert(known.unwrap_or_else(|| {
                    let bytes = compressed.decode(entry.payload, &mut left);
                    unread = unread.saturating_add(bytes.as_ref().map_or(0, Vec::len));
                    (entry.payload, bytes)
                }));
                bytes
                    .as_ref()
                    .and_then(|bytes| bytes.get(compressed.from..))
            }
        };
        let says = match (image, entry.kind) {
            (Some(image), Kind::Ptx) if unread > 0 => {
                let text = super::text(image);
                unread = unread.saturating_sub(text.len());
                ptx::needs(text)
            }
            (Some(image), Kind::Cubin) => cubin::needs_within(image, &mut unread),
            _ => Needs::UNKNOWN,
        };
        needs = Some(needs.map_or(says, |needs| needs.or(says)));
    }
    let needs = needs.unwrap_or_default();
    Needs {
        unknown: needs.unknown || !whole,
        ..needs
    }
}

impl Compressed {
    /// Decodes the payload, if that is not more than is `left`.
    fn decode(self, payload: &[u8], left: &mut u64) -> Option<Vec<u8>> {
        let rest = left.checked_sub(self.stated)?;
        let packed = payload.get(..self.packed)?;
        *left = rest;
        self.method.decode(packed, self.stated)
    }
}

/// Adds the images of a fat binary to `entries`. `None` where not all is there; what has been added
/// stays.
fn read<'a>(fatbin: &'a [u8], entries: &mut Vec<Entry<'a>>) -> Option<()> {
    let header = fatbin.first_chunk()?;
    let whole = length(header)?;
    let end = whole.min(fatbin.len());
    let mut at = usize::from(File(fatbin).half(6)?);
    while at < end {
        let entry = File(fatbin.get(at..end)?);
        let (kind, size) = (entry.half(0)?, entry.short_place(4)?);
        if kind == 0 && size == 0 {
            // Padding.
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

/// Several images in one payload (`fatbinary --concat`): behind the entry's own header is one for
/// each.
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
        // What is the header's size elsewhere.
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

/// Which entries the driver may choose, for any of the GPUs: machine code of the same major version
/// and the nearest minor one that is not above the GPU's; without any, the latest PTX that is not
/// above it. Those for one GPU in several variants (`sm_90a`) all count.
fn chosen_for(entries: &[Entry<'_>], capabilities: &[u32]) -> Vec<bool> {
    let mut chosen = vec![false; entries.len()];
    for gpu in capabilities {
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
        needs(fatbin, &|| capabilities.to_vec())
    }

    /// The variables of a fat binary that can be read.
    fn variables(fatbin: &[u8], capabilities: &[u32]) -> u64 {
        let needs = all(fatbin, capabilities);
        assert!(!needs.unknown);
        needs.variables
    }

    /// What `fixtures/variables.cu` has in its version for so many MiB, beside 4,000 bytes of a
    /// table.
    fn version(mib: u64) -> u64 {
        // In PTX each variable is rounded up.
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

    /// A zstd frame of one block that repeats a byte, `size` times as its header says: a few bytes
    /// that stand for many.
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

    /// Each byte read anew for each of as many images as an entry can name would take days.
    #[test]
    fn images_over_each_other_are_read_once() {
        const COUNT: usize = 60_000;
        const SIZE: u32 = 2 << 20;
        let packed = bomb(SIZE);
        let mut record = [0u8; 64];
        // PTX for every GPU, by zstd, which begins where the payload does.
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
        let needs = needs(&image, &|| vec![90]);
        assert!(needs.unknown);
    }

    #[test]
    fn what_is_decoded_has_a_bound() {
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
        // As an entry: read while there is room, else unknown.
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
    fn only_what_is_compressed_is_chosen_among() {
        let mut plain = LZ4.to_vec();
        // Its PTX, said to be a plain one: no text that declares anything, but it is looked at.
        plain[16 + 40..16 + 48].copy_from_slice(&0x11u64.to_le_bytes());
        assert_eq!(all(&plain, &[80]).variables, version(100));
        assert_eq!(all(&plain, &[70]).variables, 0);
    }

    /// Whatever is wrong in an image: no panic, and nothing is read that is not there.
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
                // An allocation of its own: reading beyond it would be seen by tools that look.
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
