//! Reads the code images that programs load (cubins, fat binaries and PTX), from memory or from a
//! file.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

use gpulimit_fatbin::{
    ELF, FATBIN, WRAPPER, length_of_cubin, length_of_fat_binary, needs_of_bytes,
};

pub use gpulimit_fatbin::{Known, Needs, Packed};

use crate::abi::{FileName, Image, Opaque};

/// The largest image file that gpulimit reads, bytes.
const LARGEST_FILE: u64 = 4 << 30;

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

/// Returns the code image; `None` for address 0, a fat binary wrapper, or an impossible length.
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
    let fits = isize::try_from(length).is_ok() && image.checked_add(length).is_some();
    // SAFETY: the header states the image's length, and the program does not write to the image
    // during the call.
    fits.then(|| unsafe { std::slice::from_raw_parts(start, length) })
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
    match content(OsStr::from_bytes(path.to_bytes())) {
        Some(bytes) => needs_of_bytes(&bytes, capabilities, known),
        None => Needs::UNKNOWN,
    }
}

/// Returns the content of a regular file; `None` for others. Reading a FIFO would take its bytes
/// from the driver.
fn content(path: &OsStr) -> Option<Vec<u8>> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    let about = file.metadata().ok()?;
    let length = about.len();
    if !about.is_file() || length > LARGEST_FILE {
        return None;
    }
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(usize::try_from(length).ok()?)
        .ok()?;
    file.take(length).read_to_end(&mut bytes).ok()?;
    Some(bytes)
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

    #[test]
    fn files_that_are_not_regular_have_unknown_needs() {
        for path in [c"/dev/zero", c"/nowhere", c"/"] {
            let needs = needs_of_file(FileName::at(path.as_ptr() as Opaque), &Vec::new, &());
            assert_eq!(needs, Needs::UNKNOWN);
        }
    }
}
