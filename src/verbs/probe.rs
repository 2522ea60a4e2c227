//! The hidden verb `gpulimit __probe`, which other verbs run in a child process. The work could
//! crash or block forever: in a driver, in a preloaded libgpulimit.so, or in another process's
//! files.
//!
//! The child answers with lines `key value` on standard output, or with JSON about a running
//! process.
#![allow(unsafe_code)]

use crate::machine::child::What;
use crate::machine::{library::mapped, look, look::Candidate, obstacles, trial};
use crate::shown::output;
use crate::suspension::checkpoint::Checkpoints;
use crate::words::failure::Failure;
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_ledger::{MappedFile, Mappings};
use libloading::os::unix::Library;
use serde_json::{Value, json};
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

/// The arguments of the hidden verb `__probe`.
#[derive(clap::Args)]
pub struct Args {
    /// The question to answer.
    what: What,
    /// What the question is about: the path of the preloaded libgpulimit.so, the pid of a process,
    /// a ledger, or the path of a mapped file.
    about: Option<PathBuf>,
}

/// Runs the probe. `look_at` returns what `gpulimit doctor --pid` finds, and `facts` what tells
/// whether a process is in a group.
pub fn probe(
    args: &Args,
    look_at: impl Fn(u32) -> Value,
    facts: impl Fn(u32) -> Candidate + Sync,
) -> Result<ExitCode, Failure> {
    let answer = match args.what {
        What::Driver => driver(),
        What::Gpus => gpus(),
        What::Checkpoints => match Checkpoints::load() {
            Ok(_) => String::new(),
            Err(missing) => format!("missing {missing}\n"),
        },
        What::Preload => preload(args.about.as_deref()),
        What::Process => {
            close_inherited();
            let pid = args.about.as_deref().and_then(Path::to_str);
            let pid = pid.and_then(|pid| pid.parse().ok());
            let pid = pid.ok_or_else(|| Failure::new("expected a pid"))?;
            output::json(&look_at(pid))?;
            return Ok(ExitCode::SUCCESS);
        }
        What::Member | What::Uses | What::Command | What::Contents | What::Candidate => {
            close_inherited();
            return processes(args.what, args.about.clone().unwrap_or_default(), facts);
        }
    };
    output::print(&answer)?;
    Ok(ExitCode::SUCCESS)
}

/// Answers one question about each process whose pid is on standard input.
fn processes(
    what: What,
    about: PathBuf,
    facts: impl Fn(u32) -> Candidate + Sync,
) -> Result<ExitCode, Failure> {
    let input = io::read_to_string(io::stdin()).map_err(Failure::new)?;
    let pids = input.lines().filter_map(|line| line.parse().ok()).collect();
    let file = MappedFile::from(about.to_string_lossy().into_owned());
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let look = |pid: u32| match what {
        What::Member => match Mappings::of(pid).and_then(|all| file.has_member(&all)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => look::DENIED.into(),
            is => yes(is.unwrap_or(false)),
        },
        What::Uses => yes(trial::uses(pid, &about).unwrap_or(false)),
        What::Contents => obstacles::answer(pid),
        What::Candidate => json!(facts(pid)).to_string(),
        _ => {
            let line = Identity::command_line(pid);
            let bytes = line.iter().flatten();
            bytes.map(|byte| format!("{byte:02x}")).collect()
        }
    };
    look::answer(pids, look, |line| {
        // Ignore errors: a caller that has closed the pipe needs no answer.
        let _ = output::print(line);
    });
    Ok(ExitCode::SUCCESS)
}

/// Closes all descriptors except the first three. This process may block forever, and must keep no
/// lock or pipe open.
fn close_inherited() {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let open: Vec<c_int> = entries.filter_map(|entry| number(entry.ok()?)).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // SAFETY: the descriptor is inherited, so no code here uses it. The directory's own
        // descriptor is already closed.
        unsafe { libc::close(descriptor) };
    }
}

/// `CUresult cuInit(unsigned int)`.
type Init = extern "C" fn(u32) -> c_int;
/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`.
const INTEGRATED: c_int = 18;
/// The type of a driver function that writes a number, such as the driver's version.
type WriteNumber = extern "C" fn(*mut c_int) -> c_int;

/// Looks up a function of a loaded library.
///
/// # Safety
///
/// `F` must be the type of a pointer to this function. The library must stay loaded while the
/// pointer is used.
unsafe fn function<F: Copy>(library: &Library, name: &[u8]) -> Option<F> {
    // SAFETY: the caller promises that `F` is the function's type.
    unsafe { library.get::<F>(name) }.ok().map(|found| *found)
}

/// Returns facts about the CUDA driver as lines:
///
/// - `missing WHY`: there is no driver, and no other line.
/// - `file PATH` and `version N`.
/// - `init N`: the result of cuInit.
/// - `suspends true`: the driver has the functions that suspend processes.
fn driver() -> String {
    let mut out = String::new();
    // SAFETY: loading runs the driver's constructors, as in every CUDA program.
    let library = match unsafe { Library::new("libcuda.so.1") } {
        Ok(library) => library,
        Err(error) => return format!("missing {error}\n"),
    };
    if let Some(path) = mapped("/libcuda.so") {
        let _ = writeln!(out, "file {path}");
    }
    let mut version: c_int = 0;
    // SAFETY: the CUDA driver API declares cuDriverGetVersion(int*), and allows it before cuInit.
    let read = unsafe { function::<WriteNumber>(&library, b"cuDriverGetVersion\0") };
    if read.is_some_and(|read| read(&mut version) == 0) {
        let _ = writeln!(out, "version {version}");
    }
    // SAFETY: the CUDA driver API declares cuInit(unsigned int).
    if let Some(init) = unsafe { function::<Init>(&library, b"cuInit\0") } {
        let _ = writeln!(out, "init {}", init(0));
    }
    // SAFETY: the symbol is looked up, but not called.
    let suspends = unsafe { function::<Init>(&library, b"cuCheckpointProcessLock\0") }.is_some();
    let _ = writeln!(out, "suspends {suspends}");
    // Do not unload the driver, because it may crash then. This process ends soon anyway.
    std::mem::forget(library);
    out
}

/// Returns a line `gpu UUID` for each GPU or MIG instance that CUDA shows, and a line `integrated
/// UUID BYTES` for each that has no memory of its own, with the memory that CUDA shows. An
/// instance's UUID is written like a GPU's.
fn gpus() -> String {
    let mut out = String::new();
    // SAFETY: loading runs the driver's constructors, as in every CUDA program.
    let Ok(library) = (unsafe { Library::new("libcuda.so.1") }) else {
        return out;
    };
    // SAFETY: the types are those of the CUDA driver API, and the pointers lead to values of these
    // types.
    let mut ask = || unsafe {
        type WriteUuid = extern "C" fn(*mut [u8; 16], c_int) -> c_int;
        let init: Init = function(&library, b"cuInit\0")?;
        let count: WriteNumber = function(&library, b"cuDeviceGetCount\0")?;
        let get: extern "C" fn(*mut c_int, c_int) -> c_int = function(&library, b"cuDeviceGet\0")?;
        // Only the second version of cuDeviceGetUuid tells MIG instances apart.
        let uuid: WriteUuid = function(&library, b"cuDeviceGetUuid_v2\0")
            .or_else(|| function(&library, b"cuDeviceGetUuid\0"))?;
        type Attribute = extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
        let attribute: Attribute = function(&library, b"cuDeviceGetAttribute\0")?;
        type Bytes = extern "C" fn(*mut usize, c_int) -> c_int;
        let bytes: Bytes = function(&library, b"cuDeviceTotalMem_v2\0")?;
        let mut number = 0;
        (init(0) == 0 && count(&mut number) == 0).then_some(())?;
        for ordinal in 0..number {
            let (mut device, mut id) = (0, [0; 16]);
            (get(&mut device, ordinal) == 0 && uuid(&mut id, device) == 0).then_some(())?;
            let id = DeviceId::gpu(id);
            let _ = writeln!(out, "gpu {id}");
            let (mut is_integrated, mut total) = (0, 0);
            let known = attribute(&mut is_integrated, INTEGRATED, device) == 0
                && bytes(&mut total, device) == 0;
            if known && is_integrated == 1 {
                let _ = writeln!(out, "integrated {id} {total}");
            }
        }
        Some(())
    };
    let _ = ask();
    // Do not unload the driver, because it may crash then.
    std::mem::forget(library);
    out
}

/// Returns the version of the C library, such as `2.36`.
fn c_library() -> String {
    // SAFETY: `gnu_get_libc_version` returns a constant C string.
    let text = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    text.to_string_lossy().into_owned()
}

/// Returns facts about the preloaded libgpulimit.so as lines:
///
/// - `mapped PATH`: the library is in this process.
/// - `contains 1`: the library catches its own panics.
/// - `hook SYMBOL CLASS STATE`: one line for each hook.
fn preload(library: Option<&Path>) -> String {
    let mut out = format!("glibc {}\n", c_library());
    let library = library.and_then(|path| fs::canonicalize(path).ok());
    if let Some(path) = library.and_then(|path| mapped(&path.to_string_lossy())) {
        let _ = writeln!(out, "mapped {path}");
    }
    let this = Library::this();
    // SAFETY: the library declares `const char *gpulimit_hooks(void)`, and the C string is
    // constant.
    let text = unsafe {
        let hooks: Option<extern "C" fn() -> *const c_char> = function(&this, b"gpulimit_hooks\0");
        let text = hooks.map(|hooks| hooks()).filter(|text| !text.is_null());
        text.map(|text| CStr::from_ptr(text))
    };
    for line in text.unwrap_or_default().to_string_lossy().lines() {
        let _ = writeln!(out, "hook {line}");
    }
    // SAFETY: the library declares `int gpulimit_contains_panics(void)`.
    let contains: Option<extern "C" fn() -> c_int> =
        unsafe { function(&this, b"gpulimit_contains_panics\0") };
    if let Some(contains) = contains {
        let _ = writeln!(out, "contains {}", contains());
    }
    out
}
