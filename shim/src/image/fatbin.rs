//! Fat binaries: images for different GPUs in one, each perhaps compressed.
//!
//! Layout: 16 bytes of header, then entries, each a header of its own and a payload. Seen in what nvcc 11 to 13 make, and in NVIDIA's libraries.

use super::compressed::Method;
use super::{Single, Source};

/// Entries that are looked at, at most.
const MOST: usize = 1 << 12;
/// Bytes that are decoded of one fat binary, at most. What is beyond that is left to the measurement.
const MOST_DECODED: u64 = 4 << 30;

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
struct Entry {
    kind: Kind,
    /// 90 for compute capability 9.0.
    capability: u32,
    /// Where it is, or what it is compressed in.
    start: u64,
    /// Its bytes, perhaps padded; compressed or not.
    payload: u64,
    compressed: Option<Compressed>,
}

#[derive(Clone, Copy, Debug)]
struct Compressed {
    method: Method,
    packed: u64,
    /// The size without compression.
    stated: u64,
    /// Where in that the image begins.
    from: u64,
}

/// Calls `look` with the images of a fat binary that the driver may choose for GPUs of these compute capabilities. One that is not compressed
/// costs nothing to look at, and so is seen whatever it is for. `None` where not all is there.
pub fn each(
    fatbin: Source<'_>,
    capabilities: &dyn Fn() -> Vec<u32>,
    look: &mut dyn FnMut(Single<'_>),
) -> Option<()> {
    let entries = entries(fatbin)?;
    let chosen = match entries.iter().any(|entry| entry.compressed.is_some()) {
        true => chosen_for(&entries, &capabilities()),
        false => Vec::new(),
    };
    // Images that are compressed together are decoded once.
    let mut decoded = (0, None);
    let mut left = MOST_DECODED;
    for (number, entry) in entries.iter().enumerate() {
        let (source, at) = match entry.compressed {
            None => (fatbin, entry.start),
            Some(_) if chosen.get(number) != Some(&true) => continue,
            Some(compressed) => {
                if decoded.0 != entry.start {
                    let packed = fatbin.slice(entry.start, compressed.packed)?;
                    let bytes = match left.checked_sub(compressed.stated) {
                        Some(rest) => {
                            left = rest;
                            compressed.method.decode(packed, compressed.stated)
                        }
                        None => None,
                    };
                    decoded = (entry.start, bytes);
                }
                match &decoded.1 {
                    Some(bytes) => (Source::File(bytes), compressed.from),
                    None => continue,
                }
            }
        };
        match entry.kind {
            Kind::Ptx => {
                // Decoded, it ends with what it is in.
                let length = entry.compressed.is_none().then_some(entry.payload);
                look(Single::Ptx(source.text(at, length)?));
            }
            Kind::Cubin => look(Single::Cubin(source, at)),
        }
    }
    Some(())
}

fn entries(fatbin: Source<'_>) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut at = u64::from(fatbin.half(6)?);
    let end = at.checked_add(fatbin.long(8)?)?;
    while at < end && entries.len() < MOST {
        let kind = fatbin.half(at)?;
        let (header, payload) = (u64::from(fatbin.word(at + 4)?), fatbin.long(at + 8)?);
        let start = at.checked_add(header)?;
        let next = start.checked_add(payload)?;
        if next > end || next <= at {
            break;
        }
        let compressed = match Method::of(fatbin.long(at + 40)?) {
            Some(method) => Some(Compressed {
                method,
                packed: u64::from(fatbin.word(at + 16)?).min(payload),
                stated: fatbin.long(at + 56)?,
                from: 0,
            }),
            None => None,
        };
        let entry = |record: u64| {
            Some(Entry {
                kind: Kind::of(fatbin.half(record)?)?,
                capability: fatbin.word(record + 28)?,
                start,
                payload,
                compressed,
            })
        };
        if kind == JOINED {
            joined(fatbin, at, header, &entry, &mut entries)?;
        } else {
            entries.extend(entry(at));
        }
        at = next;
    }
    Some(entries)
}

/// Several images in one payload (`fatbinary --concat`): behind the entry's own header is one for each.
fn joined(
    fatbin: Source<'_>,
    at: u64,
    header: u64,
    entry: &dyn Fn(u64) -> Option<Entry>,
    entries: &mut Vec<Entry>,
) -> Option<()> {
    const COUNT: u64 = 64;
    const FIRST: u64 = 72;
    const RECORD: u64 = 64;
    let room = header.saturating_sub(FIRST) / RECORD;
    for number in 0..u64::from(fatbin.word(at + COUNT)?).min(room) {
        if entries.len() >= MOST {
            break;
        }
        let record = at + FIRST + number * RECORD;
        // What is the header's size elsewhere.
        let from = u64::from(fatbin.word(record + 4)?);
        let Some(mut entry) = entry(record) else {
            continue;
        };
        match &mut entry.compressed {
            Some(compressed) => compressed.from = from,
            None if from > entry.payload => continue,
            None => {
                entry.start += from;
                entry.payload -= from;
            }
        }
        entries.push(entry);
    }
    Some(())
}

/// Which entries the driver may choose, for any of the GPUs: machine code of the same major version and the nearest minor one that is not
/// above the GPU's; without any, the latest PTX that is not above it. Those for one GPU in several variants (`sm_90a`) all count.
fn chosen_for(entries: &[Entry], capabilities: &[u32]) -> Vec<bool> {
    let mut chosen = vec![false; entries.len()];
    for gpu in capabilities {
        let nearest = |kind, lowest| {
            let fits =
                |entry: &&Entry| entry.kind == kind && (lowest..=*gpu).contains(&entry.capability);
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

    fn variables(fatbin: &[u8], capabilities: &[u32]) -> Option<u64> {
        let capabilities = || capabilities.to_vec();
        let found = Source::File(fatbin).needs(&capabilities);
        let start = fatbin.as_ptr();
        assert_eq!(Source::Memory(start).needs(&capabilities), found);
        found.map(|needs| needs.variables)
    }

    /// What `fixtures/variables.cu` has in its version for so many MiB, beside 4,000 bytes of a table.
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
                    Some(version(mib)),
                    "{name} for {capability}"
                );
            }
            assert_eq!(variables(fatbin, &[80, 90]), Some(version(300)), "{name}");
            assert_eq!(variables(fatbin, &[70]), None, "{name}");
            assert_eq!(variables(fatbin, &[]), None, "{name}");
        }
    }

    #[test]
    fn only_what_is_compressed_is_chosen_among() {
        let mut plain = LZ4.to_vec();
        // Its PTX, said to be a plain one: no text that declares anything, but it counts.
        plain[16 + 40..16 + 48].copy_from_slice(&0x11u64.to_le_bytes());
        assert_eq!(variables(&plain, &[80]), Some(version(100)));
        assert_eq!(variables(&plain, &[70]), Some(0));
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
            let whole = Source::File(fatbin).needs(&|| vec![86]);
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
                match Source::File(&image).needs(&|| vec![86]) == whole {
                    true => same += 1,
                    false => other += 1,
                }
            }
        }
        assert!(other > 1000 && same > 1000, "{other} and {same}");
    }
}
