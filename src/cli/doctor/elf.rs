//! What a program file is: whether the dynamic linker of this machine's libraries starts it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// The kind of a program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Started by this dynamic linker.
    Dynamic(String),
    /// No dynamic linker starts it.
    Static,
    /// Not a program of this machine's own kind: what it is.
    Other(&'static str),
}

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const INTERPRETER: u32 = 3;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Reads the file's headers (ELF).
pub(super) fn kind(path: &Path) -> io::Result<Kind> {
    let mut file = File::open(path)?;
    let mut header = [0; HEADER];
    file.read_exact(&mut header)?;
    if header[..4] != *b"\x7fELF" {
        return Ok(Kind::Other("no ELF file"));
    }
    if header[4] != 2 {
        return Ok(Kind::Other("of 32 bits"));
    }
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    if header[5] != 1 || short(18) != MACHINE {
        return Ok(Kind::Other("of another processor"));
    }
    let start = long(&header, 32);
    let (size, count) = (short(54), short(56));
    for number in 0..u64::from(count) {
        let mut segment = [0; SEGMENT];
        file.seek(SeekFrom::Start(start + number * u64::from(size)))?;
        file.read_exact(&mut segment)?;
        if u32::from_le_bytes([segment[0], segment[1], segment[2], segment[3]]) != INTERPRETER {
            continue;
        }
        let length = long(&segment, 32).min(4096);
        let mut path = Vec::new();
        file.seek(SeekFrom::Start(long(&segment, 8)))?;
        file.by_ref().take(length).read_to_end(&mut path)?;
        path.retain(|c| *c != 0);
        return Ok(Kind::Dynamic(String::from_utf8_lossy(&path).into_owned()));
    }
    Ok(Kind::Static)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn this_program_is_dynamic() {
        let Ok(Kind::Dynamic(linker)) = kind(Path::new("/proc/self/exe")) else {
            panic!("{:?}", kind(Path::new("/proc/self/exe")));
        };
        assert!(linker.contains("/ld-"), "{linker}");
    }

    #[test]
    fn others_are_told_apart() {
        let own = fs::read("/proc/self/exe").expect("readable");
        let path = std::env::temp_dir().join(format!("gpulimit-elf-{}", std::process::id()));
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = own[..4096.min(own.len())].to_vec();
            change(&mut bytes);
            fs::write(&path, bytes).expect("written");
            kind(&path)
        };
        assert!(matches!(with(&|_| ()), Ok(Kind::Dynamic(_))));
        assert_eq!(
            with(&|file| file[4] = 1).expect("read"),
            Kind::Other("of 32 bits")
        );
        assert_eq!(
            with(&|file| file[18] = 40).expect("read"),
            Kind::Other("of another processor")
        );
        assert_eq!(
            with(&|file| file[0] = b'#').expect("read"),
            Kind::Other("no ELF file")
        );
        // No segments at all.
        assert_eq!(
            with(&|file| file[56..58].fill(0)).expect("read"),
            Kind::Static
        );
        assert!(with(&|file| file.truncate(10)).is_err());
        fs::remove_file(path).expect("removed");
    }
}
