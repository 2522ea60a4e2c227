//! Names of users and unix groups.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
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

/// The number of a user, given by name or number.
pub fn id(name: &str) -> Option<u32> {
    number(name).or_else(|| {
        let name = CString::new(name).ok()?;
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut buffer = vec![0; 16 * 1024];
        let mut found = ptr::null_mut();
        // SAFETY: a NUL-terminated name; the others are ours and large enough. `found` is NULL or points to `entry`.
        unsafe {
            let (at, length) = (buffer.as_mut_ptr(), buffer.len());
            let status =
                libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), at, length, &mut found);
            (status == 0 && !found.is_null()).then(|| (*found).pw_uid)
        }
    })
}

/// The number of a unix group, given by name or number.
pub fn group_id(name: &str) -> Option<u32> {
    number(name).or_else(|| {
        let name = CString::new(name).ok()?;
        let mut entry = MaybeUninit::<libc::group>::uninit();
        // With the names of all members.
        let mut buffer = vec![0; 1024 * 1024];
        let mut found = ptr::null_mut();
        // SAFETY: as above.
        unsafe {
            let (at, length) = (buffer.as_mut_ptr(), buffer.len());
            let status =
                libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), at, length, &mut found);
            (status == 0 && !found.is_null()).then(|| (*found).gr_gid)
        }
    })
}

/// The largest number means nobody to the system.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|number| digits && *number != u32::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_and_unknown() {
        assert_eq!(super::name(0), "root");
        assert_eq!(super::name(4_123_456_789), "4123456789");
        assert_eq!(super::id("root"), Some(0));
        assert_eq!(super::group_id("root"), Some(0));
        for lookup in [super::id, super::group_id] {
            assert_eq!(lookup("4123456789"), Some(4_123_456_789));
            for nobody in ["", "nobody of this name", "4294967295", "-1", "a\0b"] {
                assert_eq!(lookup(nobody), None, "{nobody}");
            }
        }
    }
}
