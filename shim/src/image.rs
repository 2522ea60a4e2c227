//! Reads the code images that programs load (cubins, fat binaries and PTX), from memory or from a
//! file.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

use gpulimit_base::pages::Pages;
use gpulimit_fatbin::{
    ELF, FATBIN, WRAPPER, length_of_cubin, length_of_fat_binary, needs_of_bytes,
};

pub use gpulimit_fatbin::{Known, Needs, Packed};

use crate::abi::{FileName, Image, Opaque};

/// Returns the memory that the code image takes on GPUs of these compute capabilities. The image's
/// headers state its length.
pub fn needs(image: Image, capabilities: &dyn Fn() -> Vec<u32>, known: &dyn Known) -> Needs {
    let image = image.address();
    if image == 0 {
        return Needs::default();
    }
    // SAFETY: the program passes an image. A wrapper has 24 bytes, with the wrapped image's address
    // at offset 8.
    let bytes = unsafe {
        let image = match begins(image, WRAPPER) {
            true => (image as *const u8)
                .add(8)
                .cast::<Opaque>()
                .read_unaligned(),
            false => image,
        };
        in_memory(image)
    };
    match bytes {
        Some(bytes) => needs_of_bytes(bytes, capabilities, known),
        None => Needs::UNKNOWN,
    }
}

/// Returns the most bytes that the code of an image takes; 0 if unknown, as for a fat binary, whose
/// parts may be compressed. Code compiled from PTX takes up to six times the length of the text
/// (measured with one store a line).
pub fn code(image: Image) -> u64 {
    const ALIGNED: u64 = 64 << 10;
    // SAFETY: the program passes an image.
    let Some(bytes) = (unsafe { in_memory(image.address()) }) else {
        return 0;
    };
    let length = bytes.len() as u64;
    match bytes.first_chunk() {
        Some(&FATBIN) => 0,
        Some(&ELF) => ALIGNED.saturating_add(length),
        _ => ALIGNED.saturating_add(length.saturating_mul(8)),
    }
}

/// Returns whether the image begins with the bytes `with`. Reads no further than the NUL of a text.
///
/// # Safety
/// `image` is the address of a NUL-terminated text or of a binary.
unsafe fn begins(image: Opaque, with: [u8; 4]) -> bool {
    (0..).zip(with).all(|(offset, wanted)| {
        // SAFETY: the caller promises a text or a binary. All bytes before this one matched, so
        // none was a text's NUL.
        unsafe { (image as *const u8).add(offset).read() == wanted }
    })
}

/// Returns the code image; `None` for address 0, a fat binary wrapper, a header of another kind of
/// file, or a length beyond mapped memory.
///
/// # Safety
/// `image` is 0, or the address of an image that stays there for `'a`.
unsafe fn in_memory<'a>(image: Opaque) -> Option<&'a [u8]> {
    let start = image as *const u8;
    // SAFETY: the caller promises that an image lies there.
    let begins = |with| unsafe { begins(image, with) };
    let length = match () {
        () if image == 0 || begins(WRAPPER) => return None,
        // SAFETY: a fat binary begins with a whole header.
        () if begins(FATBIN) => length_of_fat_binary(unsafe { &*start.cast() })?,
        // SAFETY: a cubin begins with a whole header.
        () if begins(ELF) => length_of_cubin(unsafe { &*start.cast() })?,
        // SAFETY: PTX text, which programs pass without a length, ends with a NUL.
        () => return Some(unsafe { CStr::from_ptr(start.cast()) }.to_bytes()),
    };
    // SAFETY: the header states the image's length, all of it is mapped, and the program does not
    // write to the image during the call.
    is_mapped(image, length).then(|| unsafe { std::slice::from_raw_parts(start, length) })
}

/// Returns whether `length` bytes are mapped at an address.
fn is_mapped(start: usize, length: usize) -> bool {
    let page = start & 4095;
    let Ok(whole) = isize::try_from(length.saturating_add(page)) else {
        return false;
    };
    // SAFETY: MS_ASYNC changes nothing. The kernel only looks at the mappings.
    let found = unsafe { libc::syscall(libc::SYS_msync, start - page, whole, libc::MS_ASYNC) };
    found == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM)
}

/// Returns the memory that the code image in a file takes. `path` is the address of the file's
/// name.
pub fn needs_of_file(
    path: FileName,
    capabilities: &dyn Fn() -> Vec<u32>,
    known: &dyn Known,
) -> Needs {
    let path = path.address();
    if path == 0 {
        return Needs::default();
    }
    // SAFETY: the address is not 0, so the program passes a NUL-terminated name.
    let path = unsafe { CStr::from_ptr(path as *const libc::c_char) };
    let Some((pages, length)) = mapped(OsStr::from_bytes(path.to_bytes())) else {
        return Needs::UNKNOWN;
    };
    // SAFETY: the mapping has this length. Like the driver, the library counts on a file that
    // nobody writes to; a truncated file reads as zeros.
    let bytes = unsafe { std::slice::from_raw_parts(pages.start().as_ptr().cast(), length) };
    let needs = needs_of_bytes(bytes, capabilities, known);
    match pages.is_lost() {
        true => Needs::UNKNOWN,
        false => needs,
    }
}

/// Maps a regular file; `None` for others, whose bytes may be missing for the driver afterwards.
/// Also returns the file's length.
fn mapped(path: &OsStr) -> Option<(Pages, usize)> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    let about = file.metadata().ok()?;
    let length = usize::try_from(about.len()).ok()?;
    if !about.is_file() {
        return None;
    }
    Some((Pages::of_file(&file, length, false).ok()?, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! fixture {
        ($name:literal) => {
            include_bytes!(concat!("../../crates/fatbin/src/fixtures/", $name))
        };
    }

    #[test]
    fn an_image_in_memory_has_the_length_in_its_header() {
        for image in [
            &fixture!("managed.cubin")[..],
            fixture!("managed.ptx"),
            fixture!("zstd.fatbin"),
        ] {
            let mut memory = image.to_vec();
            memory.push(0);
            let found = needs(Image::at(memory.as_ptr() as Opaque), &|| vec![90], &());
            assert_eq!(found, needs_of_bytes(image, &|| vec![90], &()));
            assert!(found != Needs::NOTHING && !found.unknown, "{found:?}");
        }
    }

    #[test]
    fn a_wrapper_leads_to_its_image() {
        let inner = fixture!("zstd.fatbin");
        let gpus = || vec![90];
        let mut wrapper = WRAPPER.to_vec();
        wrapper.extend(1u32.to_le_bytes());
        wrapper.extend((inner.as_ptr() as u64).to_le_bytes());
        wrapper.extend(0u64.to_le_bytes());
        let found = needs(Image::at(wrapper.as_ptr() as Opaque), &gpus, &());
        assert_eq!(found, needs_of_bytes(inner, &gpus, &()));
        assert_eq!(needs(Image::at(0), &Vec::new, &()), Needs::default());
        // The wrapper of a fat binary whose pointer leads to the wrapper itself.
        let itself = wrapper.as_ptr() as u64;
        wrapper[8..16].copy_from_slice(&itself.to_le_bytes());
        assert!(needs(Image::at(wrapper.as_ptr() as Opaque), &Vec::new, &()).unknown);
    }

    /// The tables, or the end, lie where nothing is mapped.
    #[test]
    fn a_forged_length_is_not_believed() {
        let far = (1u64 << 40).to_le_bytes();
        for (image, at) in [
            (&fixture!("managed.cubin")[..], 40),
            (fixture!("managed.cubin"), 32),
            (fixture!("zstd.fatbin"), 8),
        ] {
            let mut memory = image.to_vec();
            memory[at..at + 8].copy_from_slice(&far);
            let found = needs(Image::at(memory.as_ptr() as Opaque), &|| vec![90], &());
            assert_eq!(found, Needs::UNKNOWN, "{at}");
        }
        assert!(is_mapped(&raw const far as usize, 1) && !is_mapped(0, 1));
        assert!(!is_mapped(4096, usize::MAX));
    }

    /// The file is sparse, and longer than the memory that a test gets.
    #[test]
    fn a_file_is_not_read_whole() {
        let folder = gpulimit_support::Scratch::new();
        let path = folder.join("image");
        std::fs::write(&path, fixture!("managed.cubin")).expect("a file");
        let file = File::options().write(true).open(&path).expect("the file");
        file.set_len(64 << 30).expect("a sparse file");
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("a name");
        let found = needs_of_file(FileName::at(name.as_ptr() as Opaque), &Vec::new, &());
        let expected = needs_of_bytes(fixture!("managed.cubin"), &Vec::new, &());
        assert_eq!(found, expected);
    }

    #[test]
    fn files_that_are_not_regular_have_unknown_needs() {
        for path in [c"/dev/zero", c"/nowhere", c"/"] {
            let needs = needs_of_file(FileName::at(path.as_ptr() as Opaque), &Vec::new, &());
            assert_eq!(needs, Needs::UNKNOWN);
        }
    }
}
