//! Reads programs and libraries as ELF files, without loading or running them. The files may be
//! damaged or malicious.

use object::elf;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// The kind of a program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The kernel starts the program with this dynamic linker.
    Dynamic(String),
    /// The program has no dynamic linker, because it is linked statically.
    Static,
    /// The file is not a 64-bit ELF file for this machine. The text says what it is.
    Other(&'static str),
}

impl Kind {
    /// Returns whether the program is for the C library musl.
    pub fn is_musl(&self) -> bool {
        matches!(self, Self::Dynamic(linker) if linker.contains("/ld-musl"))
    }
}

const HEADER: usize = 64;
const SEGMENT: usize = 56;

const MACHINE: u16 = match cfg!(target_arch = "aarch64") {
    true => elf::EM_AARCH64.0,
    false => elf::EM_X86_64.0,
};

/// Returns `None` for a 64-bit ELF file for this machine's processor, and a description of any
/// other file.
fn foreign(header: &[u8]) -> Option<&'static str> {
    let header = header.first_chunk::<20>();
    match header.filter(|header| header.starts_with(b"\x7fELF")) {
        None => Some("not an ELF file"),
        Some(header) if header[4] != elf::ELFCLASS64.0 => Some("a 32-bit file"),
        Some(header)
            if header[5] != elf::ELFDATA2LSB.0
                || u16::from_le_bytes([header[18], header[19]]) != MACHINE =>
        {
            Some("a file for another processor")
        }
        Some(_) => None,
    }
}

/// Reads from a program's ELF headers how the kernel starts the program.
pub fn kind(mut file: &File) -> io::Result<Kind> {
    let mut start = Vec::new();
    file.by_ref().take(HEADER as u64).read_to_end(&mut start)?;
    if let Some(what) = foreign(&start) {
        return Ok(Kind::Other(what));
    }
    let header = start.first_chunk::<HEADER>();
    let header = header.ok_or(io::ErrorKind::UnexpectedEof)?;
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let (first, size, count) = (long(header, 32), short(54), short(56));
    for number in 0..u64::from(count) {
        let mut segment = [0; SEGMENT];
        let at = first.saturating_add(number * u64::from(size));
        file.read_exact_at(&mut segment, at)?;
        if !segment.starts_with(&elf::PT_INTERP.0.to_le_bytes()) {
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

/// The symbol of libgpulimit.so's version: a text that ends with a zero byte and needs no
/// relocation.
const VERSION: &[u8] = b"gpulimit_version_text";
/// The maximum length of the version text in bytes; longer texts are cut.
const LONGEST_VERSION: u64 = 256;
/// The maximum number of symbol versions to read. No C library has as many.
const MOST_NAMES: usize = 4_096;

/// A shared library for this machine's processor.
pub struct Library<'data>(ElfFile64<'data>);

impl<'data> Library<'data> {
    /// Parses the ELF headers of a shared library. For another file, the error says what is wrong.
    pub fn parse(bytes: &'data [u8]) -> Result<Self, String> {
        if let Some(what) = foreign(bytes) {
            return Err(format!("the file is {what}"));
        }
        let file =
            ElfFile64::parse(bytes).map_err(|error| format!("the file is damaged: {error}"))?;
        match file.elf_header().e_type(file.endian()) {
            elf::ET_DYN => Ok(Self(file)),
            _ => Err("the file is not a shared library".into()),
        }
    }

    /// Returns the version text in the file, in the form of `version::text`; `None` if the file is
    /// not libgpulimit.so.
    pub fn version(&self) -> Option<String> {
        let is_version = |name: object::Result<&[u8]>| name.is_ok_and(|name| name == VERSION);
        let mut symbols = self.0.dynamic_symbols().filter(ObjectSymbol::is_definition);
        let symbol = symbols.find(|symbol| is_version(symbol.name_bytes()))?;
        let section = self.0.section_by_index(symbol.section_index()?).ok()?;
        let size = symbol.size().min(LONGEST_VERSION);
        let bytes = section.data_range(symbol.address(), size).ok()??;
        let text = std::str::from_utf8(bytes.split(|c| *c == 0).next()?).ok()?;
        let is_plain = !text.is_empty() && text.bytes().all(|c| (b' '..=b'~').contains(&c));
        is_plain.then(|| text.into())
    }

    /// Returns the versions of glibc's symbols that this library needs from glibc, such as
    /// `GLIBC_2.17`.
    pub fn needs(&self) -> BTreeSet<String> {
        let read = || {
            let (endian, data, sections) = self.parts();
            let (entries, link) = sections.gnu_verneed(endian, data).ok()??;
            let strings = sections.strings(endian, data, link).ok()?;
            let names = entries.map_while(Result::ok);
            let names = names.flat_map(|(_, names)| names.map_while(Result::ok));
            let name = |entry: &elf::Vernaux<_>| glibc(entry.name(endian, strings).ok()?);
            Some(names.take(MOST_NAMES).filter_map(name).collect())
        };
        read().unwrap_or_default()
    }

    /// Returns the versions of the symbols that this library defines, such as `GLIBC_2.17`; empty
    /// if the library is not glibc.
    pub fn has(&self) -> BTreeSet<String> {
        let read = || {
            let (endian, data, sections) = self.parts();
            let (entries, link) = sections.gnu_verdef(endian, data).ok()??;
            let strings = sections.strings(endian, data, link).ok()?;
            // A version definition contains first the name of the version itself, and then the
            // names of its parent versions.
            let names = entries.map_while(Result::ok);
            let names = names.filter_map(|(_, mut names)| names.next().ok().flatten());
            let name = |entry: &elf::Verdaux<_>| glibc(entry.name(endian, strings).ok()?);
            Some(names.take(MOST_NAMES).filter_map(name).collect())
        };
        read().unwrap_or_default()
    }

    fn parts(&self) -> (object::Endianness, &'data [u8], &Sections<'data>) {
        (self.0.endian(), self.0.data(), self.0.elf_section_table())
    }
}

type Sections<'data> =
    object::read::elf::SectionTable<'data, elf::FileHeader64<object::Endianness>>;

/// Returns the name of a symbol version if it is one of glibc's versions, such as `GLIBC_2.17`.
fn glibc(name: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(name).ok()?;
    let number = text.strip_prefix("GLIBC_")?;
    let is_number = number.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    is_number.then(|| text.into())
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
        let own = File::open("/proc/self/exe").expect("readable");
        let found = kind(&own).expect("read");
        let Kind::Dynamic(linker) = &found else {
            panic!("{found:?}");
        };
        assert!(linker.contains("/ld-"), "{linker}");
    }

    #[test]
    fn kinds_of_files_are_distinguished() {
        let own = fs::read("/proc/self/exe").expect("readable");
        let scratch = gpulimit_support::Scratch::new();
        let path = scratch.at("file");
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = own[..4096.min(own.len())].to_vec();
            change(&mut bytes);
            fs::write(&path, bytes).expect("written");
            kind(&File::open(&path).expect("readable"))
        };
        assert!(matches!(with(&|_| ()), Ok(Kind::Dynamic(_))));
        assert_eq!(
            with(&|file| file[4] = 1).expect("read"),
            Kind::Other("a 32-bit file")
        );
        assert_eq!(
            with(&|file| file[18] = 40).expect("read"),
            Kind::Other("a file for another processor")
        );
        assert_eq!(
            with(&|file| file[0] = b'#').expect("read"),
            Kind::Other("not an ELF file")
        );
        // A program without segments counts as static.
        assert_eq!(
            with(&|file| file[56..58].fill(0)).expect("read"),
            Kind::Static
        );
        assert_eq!(
            with(&|file| file.truncate(10)).expect("read"),
            Kind::Other("not an ELF file")
        );
        assert!(with(&|file| file.truncate(30)).is_err());
        fs::remove_file(path).expect("removed");
    }

    #[test]
    fn the_c_library_has_what_this_program_needs() {
        let maps = fs::read_to_string("/proc/self/maps").expect("readable");
        let path = maps
            .lines()
            .filter_map(|line| line.find('/').map(|at| &line[at..]))
            .find(|path| path.ends_with("/libc.so.6"))
            .expect("a test with glibc");
        let libc = fs::read(path).expect("readable");
        let libc = Library::parse(&libc).expect("a library");
        let own = fs::read("/proc/self/exe").expect("readable");
        let own = Library::parse(&own).expect("like a library");
        assert!(!own.needs().is_empty() && own.needs().is_subset(&libc.has()));
        assert_eq!((own.version(), libc.version()), (None, None));
    }

    #[test]
    fn damaged_libraries_do_not_panic() {
        let own = fs::read("/proc/self/exe").expect("readable");
        let sections = u64::from_le_bytes(own[40..48].try_into().expect("eight"));
        let sections = usize::try_from(sections).expect("small");
        // Whichever byte of the ELF header or first section headers is wrong, the parser must not
        // panic.
        let mut bytes = own.clone();
        for at in (0..64).chain(sections..(sections + 6 * 64).min(own.len())) {
            for value in [0, 0x7f, 0xff] {
                bytes[at] = value;
                if let Ok(library) = Library::parse(&bytes) {
                    let _ = (library.version(), library.needs(), library.has());
                }
            }
            bytes[at] = own[at];
        }
        for length in [0, 3, 16, 63, 64, 1_000, sections, own.len() - 1] {
            if let Ok(library) = Library::parse(&own[..length]) {
                let _ = (library.version(), library.needs(), library.has());
            }
        }
    }
}
