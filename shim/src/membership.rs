//! How this process comes to its group: the administrator's rules and the environment say which,
//! the library joins it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

use gpulimit_base::device::DeviceId;
use gpulimit_group::Member;
use gpulimit_policy::{self as policy, Assignment, PolicyError};
use once_cell::race::OnceBox;

use crate::message;

unsafe extern "C" {
    // Since GLIBC_2.17; not in the libc crate.
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// The limit cannot be applied; the reason has been said.
pub enum Failed {
    /// So there is no GPU memory.
    Closed,
    /// The administrator's rule wants the program to run without it.
    Open,
}

/// An environment variable, read through the C library: the program may change its environment by
/// `setenv`.
fn variable(name: &str) -> Option<OsString> {
    let name = CString::new(name).ok()?;
    // SAFETY: a NUL-terminated name. `secure_getenv`: in a setuid program the environment is not to
    // be trusted. The value is copied at once; a program that changes its environment in another
    // thread at this moment has the race it would have with any getenv.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: a C string of the environment.
    let bytes = unsafe { CStr::from_ptr(value) }.to_bytes();
    Some(OsStr::from_bytes(bytes).to_os_string())
}

/// Whether one of these variables is set. Allocates nothing.
fn any_in_environment(names: &[&str]) -> bool {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the C library's variable; null, or an array of C strings that a null pointer ends.
    // Constructors run before the program's threads, so nobody changes it meanwhile.
    let entry = |at: usize| unsafe {
        let entries = environ;
        let entry = (!entries.is_null()).then(|| *entries.add(at))?;
        (!entry.is_null()).then(|| CStr::from_ptr(entry).to_bytes())
    };
    let is_one = |entry: &[u8]| {
        let name = entry.split(|byte| *byte == b'=').next();
        names.iter().any(|wanted| Some(wanted.as_bytes()) == name)
    };
    (0..).map_while(entry).any(is_one)
}

/// The variables as they were at the start: a program that empties its environment afterwards is
/// limited all the same.
static AT_START: OnceBox<Vec<(&'static str, OsString)>> = OnceBox::new();

/// The group that the rules or the environment ask for, or asked for at the start; `None` when
/// there is no limit.
pub fn assignment() -> Result<Option<Assignment>, PolicyError> {
    let now = policy::assignment(&variable)?;
    let chosen = |now: &Assignment| !now.is_by_rule_alone();
    match AT_START.get() {
        Some(then) if !now.as_ref().is_some_and(chosen) => policy::assignment(&|name| {
            let found = then.iter().find(|(there, _)| *there == name);
            found.map(|(_, value)| value.clone())
        }),
        _ => Ok(now),
    }
}

/// Joins the group. A failure is said in one line and closes the GPU to this process, unless the
/// administrator's rule wants it open: a limit that cannot be applied must not be none.
///
/// `devices` are the GPUs that this process sees, by CUDA ordinal; `capacity` the memory of one in
/// bytes.
pub fn join(
    devices: &dyn Fn() -> Vec<(u32, DeviceId)>,
    capacity: &dyn Fn(u32) -> Option<u64>,
) -> Result<Member, Failed> {
    message::look();
    let told = |error: &dyn std::fmt::Display| {
        message::line(format_args!("no GPU memory for this program: {error}"));
        Failed::Closed
    };
    let assignment = match assignment() {
        Ok(Some(assignment)) => assignment,
        Ok(None) => {
            return Err(told(
                &"the limit was removed from the environment or the rules after the program \
                 started: restart the program",
            ));
        }
        Err(error) => return Err(told(&error)),
    };
    assignment.join(devices, capacity).map_err(|error| {
        if !assignment.is_open() {
            return told(&error);
        }
        message::line(format_args!("this program runs without a limit: {error}"));
        Failed::Open
    })
}

/// Runs as a constructor, in every program: it creates nothing, calls no driver, opens no file, and
/// where no limit is asked for touches no memory but the environment.
pub fn at_start() {
    name_job();
    if any_in_environment(&[policy::GROUP]) {
        let names = [policy::GROUP, "GPULIMIT_ROOT"].into_iter();
        let names = names.chain(policy::JOB_VARIABLES.iter().copied());
        let set = names.filter_map(|name| Some((name, variable(name)?)));
        let _ = AT_START.set(Box::new(set.collect()));
    }
}

/// Gives a job that came with nothing but a size a group name, so that its children share its
/// limit.
fn name_job() {
    if !any_in_environment(policy::JOB_VARIABLES) {
        return;
    }
    let present = |name: &str| variable(name).is_some();
    if present("GPULIMIT_GROUP") || !policy::JOB_VARIABLES.iter().any(|name| present(name)) {
        return;
    }
    let Ok(name) = CString::new(policy::own_job_group_name()) else {
        return;
    };
    // SAFETY: constructors run before the program's threads; both strings are NUL-terminated and
    // copied.
    unsafe { libc::setenv(c"GPULIMIT_GROUP".as_ptr(), name.as_ptr(), 0) };
}
