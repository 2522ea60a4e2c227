//! How this process joins its group. The administrator's rules or the environment name the group.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

use gpulimit_base::device::DeviceId;
use gpulimit_group::{Member, Undisturbed};
use gpulimit_policy::{self as policy, Assignment, PolicyError};
use once_cell::race::OnceBox;

use crate::message;

unsafe extern "C" {
    // The C library has `secure_getenv` since GLIBC_2.17; the libc crate does not declare it.
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// The outcome for a process that could not join its group. The reason was already written to
/// standard error.
pub enum Failed {
    /// The process gets no GPU memory, for this reason.
    Closed(Box<str>),
    /// The process runs without a limit, because the administrator's rule allows that.
    Open,
    /// The process cannot join yet: its limits depend on its GPUs, which it sees after `cuInit`.
    /// Nothing was written to standard error.
    Early,
}

/// Returns an environment variable, read through the C library, because programs can change it by
/// `setenv`.
fn variable(name: &str) -> Option<OsString> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a NUL, and the value is copied at once. As `getenv`, the call
    // races with `setenv`.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // `secure_getenv` returns null in a setuid program, whose environment must not be trusted.
    if value.is_null() {
        return None;
    }
    // SAFETY: `secure_getenv` returned a C string of the environment.
    let bytes = unsafe { CStr::from_ptr(value) }.to_bytes();
    Some(OsStr::from_bytes(bytes).to_os_string())
}

/// Returns whether the environment has one of the variables `names`. Allocates no memory.
fn any_in_environment(names: &[&str]) -> bool {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: `environ` is null or an array that ends with null. Constructors run before other
    // threads can change the array.
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

/// gpulimit's environment variables at the start of the program. A program that empties its
/// environment keeps its limit.
static AT_START: OnceBox<Vec<(&'static str, OsString)>> = OnceBox::new();

/// Returns the group that the rules and the environment name, now or else at the start; `None`
/// without a limit.
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

/// Returns the name of the group that this process will join; `None` if it will run without a
/// limit. Fails if the process cannot join, as far as that shows without joining.
pub fn prospect() -> Result<Option<String>, PolicyError> {
    let Some(assignment) = assignment()? else {
        return Ok(None);
    };
    match assignment.check() {
        Err(_) if assignment.is_open() => Ok(None),
        checked => checked.map(|()| Some(assignment.group)),
    }
}

/// Joins the group. On failure, writes the reason to standard error. The process then gets no GPU
/// memory, unless a rule allows otherwise or the process only asks before `cuInit`
/// ([`Failed::Early`]).
///
/// `devices` returns the visible GPUs with their CUDA ordinals, `capacity` a GPU's bytes.
pub fn join(
    devices: &dyn Fn() -> Vec<(u32, DeviceId)>,
    capacity: &dyn Fn(u32) -> Option<u64>,
) -> Result<Member, Failed> {
    message::check_standard_error();
    let told = |error: &dyn std::fmt::Display| {
        message::line(format_args!("no GPU memory for this program: {error}"));
        Failed::Closed(error.to_string().into())
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
    if assignment.needs_gpus() && devices().is_empty() {
        return Err(Failed::Early);
    }
    assignment.join(devices, capacity).map_err(|error| {
        if !assignment.is_open() {
            return told(&error);
        }
        message::line(format_args!("this program runs without a limit: {error}"));
        Failed::Open
    })
}

/// Returns whether the user wants no lines at the end of a program.
pub fn is_quiet() -> bool {
    variable("GPULIMIT_QUIET").is_some_and(|value| !value.is_empty())
}

/// Returns whether `run --explain` has started the program, and its Python has not read the file
/// that then notes what PyTorch holds (`python/gpulimit/_explain.py`).
pub fn is_unheard() -> bool {
    let heard = || variable("GPULIMIT_HEARD").and_then(|pid| pid.to_str()?.parse().ok());
    variable("GPULIMIT_EXPLAIN").is_some() && heard() != Some(std::process::id())
}

/// Returns the limit and the charged bytes of a device for a process that cannot join yet; `None`
/// without a limit. See [`Assignment::outlook`].
pub fn outlook(device: DeviceId, ordinal: Option<u32>, capacity: u64) -> Option<(u64, u64)> {
    let _undisturbed = Undisturbed::new();
    let assignment = assignment().ok()??;
    Some(assignment.outlook(device, ordinal, capacity))
}

/// Runs in every program. Opens no file, and makes no group and no driver call. Without a limit,
/// only reads the environment.
pub fn at_start() {
    name_job();
    if any_in_environment(&[policy::GROUP]) {
        let names = [policy::GROUP, policy::LIMITS, "GPULIMIT_ROOT"].into_iter();
        let names = names.chain(policy::JOB_VARIABLES.iter().copied());
        let set = names.filter_map(|name| Some((name, variable(name)?)));
        let _ = AT_START.set(Box::new(set.collect()));
    }
}

/// Names the group of a job whose environment states only a limit, so that child processes share
/// this limit.
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
    // SAFETY: constructors run before the program starts threads; both strings end with a NUL, and
    // `setenv` copies them.
    unsafe { libc::setenv(c"GPULIMIT_GROUP".as_ptr(), name.as_ptr(), 0) };
}
