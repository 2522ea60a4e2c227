//! Names of users.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

/// The name of a user, or the number where there is no name.
pub fn name(uid: u32) -> String {
    lookup(uid).unwrap_or_else(|| uid.to_string())
}

fn lookup(uid: u32) -> Option<String> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut buffer = vec![0; 16 * 1024];
    let mut found = ptr::null_mut();
    // SAFETY: all three are ours and large enough; `found` is NULL or points to `entry`.
    let status = unsafe {
        libc::getpwuid_r(
            uid,
            entry.as_mut_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        )
    };
    if status != 0 || found.is_null() {
        return None;
    }
    // SAFETY: filled in; the name is a C string in `buffer`.
    let name = unsafe { CStr::from_ptr((*found).pw_name) };
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_and_unknown() {
        assert_eq!(super::name(0), "root");
        assert_eq!(super::name(4_123_456_789), "4123456789");
    }
}
