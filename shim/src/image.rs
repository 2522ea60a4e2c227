//! Code images where programs have them: at an address, or in a file.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

use gpulimit_fatbin::{
    ELF, FATBIN, WRAPPER, length_of_cubin, length_of_fat_binary, needs_of_bytes,
};

pub use gpulimit_fatbin::Needs;

use crate::abi::{FileName, Image, Opaque};

/// The largest file that is read, bytes.
const LARGEST_FILE: u64 = 4 << 30;

/// Returns what the image at this address takes, on GPUs of these compute capabilities. Memory is
/// read where the headers of the image say that it goes on, as the driver does.
pub fn needs(image: Image, capabilities: &dyn Fn() -> Vec<u32>) -> Needs {
    let image = image.address();
    if image == 0 {
        return Needs::default();
    }
    // SAFETY: the program passes an image. Of a wrapper it passes 24 bytes, with the address of one
    // at the eighth.
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
        Some(bytes) => needs_of_bytes(bytes, capabilities),
        None => Needs::UNKNOWN,
    }
}

/// Whether the NUL-terminated text or binary at this address begins so; does not read beyond the
/// end of a text.
///
/// # Safety
/// A text that a NUL ends or a binary is there.
unsafe fn begins(image: Opaque, with: [u8; 4]) -> bool {
    (0..).zip(with).all(|(offset, wanted)| {
        // SAFETY: the caller's promise: there is a byte as long as those before it have not ended a
        // text, and none of `with` is 0.
        unsafe { (image as *const u8).add(offset).read() == wanted }
    })
}

/// The bytes of the image at this address, as many as its header says; `None` where there is none,
/// or that cannot be.
///
/// # Safety
/// The address is 0, or that of an image which stays there for `'a`.
unsafe fn in_memory<'a>(image: Opaque) -> Option<&'a [u8]> {
    let start = image as *const u8;
    // SAFETY: the caller's promise.
    let begins = |with| unsafe { begins(image, with) };
    let length = match () {
        () if image == 0 || begins(WRAPPER) => return None,
        // SAFETY: a binary has its header.
        () if begins(FATBIN) => length_of_fat_binary(unsafe { &*start.cast() })?,
        // SAFETY: as above.
        () if begins(ELF) => length_of_cubin(unsafe { &*start.cast() })?,
        // SAFETY: PTX text that is handed over without a length ends with a NUL.
        () => return Some(unsafe { CStr::from_ptr(start.cast()) }.to_bytes()),
    };
    let fits = isize::try_from(length).is_ok() && image.checked_add(length).is_some();
    // SAFETY: an image goes as far as its header says, and is not written to during the call.
    fits.then(|| unsafe { std::slice::from_raw_parts(start, length) })
}

/// Returns what the file with the name at this address takes.
pub fn needs_of_file(path: FileName, capabilities: &dyn Fn() -> Vec<u32>) -> Needs {
    let path = path.address();
    if path == 0 {
        return Needs::default();
    }
    // SAFETY: the program passes a NUL-terminated name, or none.
    let path = unsafe { CStr::from_ptr(path as *const libc::c_char) };
    match content(OsStr::from_bytes(path.to_bytes())) {
        Some(bytes) => needs_of_bytes(&bytes, capabilities),
        None => Needs::UNKNOWN,
    }
}

/// The content of a regular file. Others (a FIFO, a device) are left to the driver: what is read of
/// them may be gone then, or have no end.
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
    fn an_image_in_memory_goes_as_far_as_it_says() {
        for image in [
            &fixture!("managed.cubin")[..],
            fixture!("managed.ptx"),
            fixture!("zstd.fatbin"),
        ] {
            let mut memory = image.to_vec();
            memory.push(0);
            let found = needs(Image::at(memory.as_ptr() as Opaque), &|| vec![90]);
            assert_eq!(found, needs_of_bytes(image, &|| vec![90]));
            assert!(found != Needs::NOTHING && !found.unknown, "{found:?}");
        }
    }

    #[test]
    fn wrapped() {
        let inner = fixture!("zstd.fatbin");
        let gpus = || vec![90];
        let mut wrapper = WRAPPER.to_vec();
        wrapper.extend(1u32.to_le_bytes());
        wrapper.extend((inner.as_ptr() as u64).to_le_bytes());
        wrapper.extend(0u64.to_le_bytes());
        let found = needs(Image::at(wrapper.as_ptr() as Opaque), &gpus);
        assert_eq!(found, needs_of_bytes(inner, &gpus));
        assert_eq!(needs(Image::at(0), &Vec::new), Needs::default());
        // One that wraps itself.
        let itself = wrapper.as_ptr() as u64;
        wrapper[8..16].copy_from_slice(&itself.to_le_bytes());
        assert!(needs(Image::at(wrapper.as_ptr() as Opaque), &Vec::new).unknown);
    }

    #[test]
    fn files_that_are_none() {
        for path in [c"/dev/zero", c"/nowhere", c"/"] {
            let needs = needs_of_file(FileName::at(path.as_ptr() as Opaque), &Vec::new);
            assert_eq!(needs, Needs::UNKNOWN);
        }
    }
}
