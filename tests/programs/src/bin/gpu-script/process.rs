//! Calls of the C library without a safe form: loading, forking, descriptors.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a call of the driver has changed `errno`.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Returns whether a call of the driver has changed `errno` since the last question.
pub fn has_changed_errno() -> bool {
    CHANGED.swap(false, Ordering::Relaxed)
}

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Calls `dlopen`; returns null if it fails.
pub fn open(path: &str, flags: i32) -> usize {
    // SAFETY: the path is NUL-terminated and lives during the call.
    unsafe { libc::dlopen(c_string(path).as_ptr(), flags) as usize }
}

/// Calls `dlsym`; returns 0 if there is no such symbol.
pub fn find(handle: usize, name: &str) -> usize {
    // SAFETY: the handle comes from `dlopen`, and the name is NUL-terminated.
    unsafe { libc::dlsym(handle as *mut _, c_string(name).as_ptr()) as usize }
}

/// Returns `dlerror` without the path of the library, which differs between machines.
pub fn error() -> Option<String> {
    // SAFETY: the text is copied before any other call that could change it.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return None;
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    };
    Some(match text.rsplit_once('/') {
        Some((_, rest)) => rest.to_owned(),
        None => text,
    })
}

/// The place of an address.
pub struct Place {
    /// The file name of the object.
    pub owner: String,
    /// The symbol at the address, if the object exports one.
    pub symbol: String,
}

/// Returns the object and the symbol of an address.
pub fn place(address: usize) -> Option<Place> {
    let text = |text: *const libc::c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: `dladdr`'s strings are NUL-terminated and live as long as their object, which is
        // never closed.
        false => unsafe { CStr::from_ptr(text).to_string_lossy().into_owned() },
    };
    // SAFETY: an all-zero `Dl_info` is valid.
    let info = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address as *const _, &mut info) == 0 {
            return None;
        }
        info
    };
    let path = text(info.dli_fname);
    Some(Place {
        owner: path.rsplit('/').next().unwrap_or_default().to_owned(),
        symbol: text(info.dli_sname),
    })
}

/// Returns `count` words at `address`.
pub fn words_at(address: usize, count: usize) -> Vec<u64> {
    let word = |at: usize| (address as *const u64).wrapping_add(at);
    // SAFETY: the driver has made a list of this many words and keeps it.
    (0..count).map(|at| unsafe { word(at).read() }).collect()
}

/// Returns the file name of the object that contains an address.
pub fn owner(address: usize) -> Option<String> {
    place(address).map(|place| place.owner)
}

/// Calls the function at `address`. Additional arguments are harmless in the C calling convention.
pub fn call(address: usize, arguments: &[usize]) -> i32 {
    type Function = extern "C" fn(
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
    ) -> i32;
    let mut a = [0; 11];
    a[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: the caller passes the address of a driver function, which takes integers, and
    // pointers that the caller keeps alive.
    let function: Function = unsafe { std::mem::transmute(address) };
    // SAFETY: the address of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = libc::ENOTSUP };
    let status = function(
        a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
    );
    // SAFETY: as above.
    let after = unsafe { *libc::__errno_location() };
    CHANGED.fetch_or(after != libc::ENOTSUP, Ordering::Relaxed);
    status
}

/// Calls `cuIpcOpenMemHandle`, which takes its handle by value.
pub fn open_handle(address: usize, result: &mut u64, handle: [u64; 8]) -> i32 {
    #[repr(C)]
    struct Handle([u64; 8]);
    // SAFETY: the address is that of the driver's function or of its hook, called with the
    // arguments of its header.
    let function: extern "C" fn(*mut u64, Handle, u32) -> i32 =
        unsafe { std::mem::transmute(address) };
    function(result, Handle(handle), 1)
}

/// Calls a function that looks up a name.
pub fn lookup(address: usize, name: &str) -> usize {
    let name = c_string(name);
    // SAFETY: the address is that of `linked` in c/linked.c.
    let function: extern "C" fn(*const libc::c_char) -> usize =
        unsafe { std::mem::transmute(address) };
    function(name.as_ptr())
}

/// Calls a function that returns a text.
pub fn text(address: usize) -> String {
    // SAFETY: the address is that of `gpulimit_hooks` of the preloaded library, which returns null
    // or a NUL-terminated string that stays valid.
    unsafe {
        let function: extern "C" fn() -> *const libc::c_char = std::mem::transmute(address);
        let text = function();
        if text.is_null() {
            String::new()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// Calls a function that returns a number.
pub fn number(address: usize) -> i32 {
    // SAFETY: the address is that of `gpulimit_contains_panics` of the preloaded library.
    let function: extern "C" fn() -> i32 = unsafe { std::mem::transmute(address) };
    function()
}

/// Reads one byte of standard input; returns 0 at its end.
pub fn read_input(byte: &mut [u8; 1]) -> usize {
    // SAFETY: the call writes at most one byte, to `byte`.
    let read = unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) };
    usize::try_from(read).unwrap_or(0)
}

/// Writes a whole line in one call, since forked children share the output.
pub fn write_line(line: &str) {
    let line = format!("{line}\n");
    // SAFETY: the line lives during the call.
    unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
}

/// Runs `child` in a forked process; returns the pid.
pub fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the script has one thread when it forks; the child runs only `child` and leaves by
    // `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: the call ends the child without the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        pid => pid,
    }
}

/// Runs `child` in a forked process that reads and writes these files and leads its own process
/// group, until `exit` or the end of this process; returns the pid. Processes that the child leaves
/// behind become children of this process.
pub fn spawn(input: &str, output: &str, child: impl FnOnce() -> i32) -> i32 {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
    // SAFETY: as for `fork`; the paths are NUL-terminated, and `exit` ends a process that has
    // joined its threads.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        match libc::fork() {
            0 => {
                libc::setpgid(0, 0);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The children yield to their parent, however many they are.
                libc::nice(10);
                let from = libc::open(c_string(input).as_ptr(), libc::O_RDONLY);
                let to = libc::open(c_string(output).as_ptr(), flags, 0o600);
                for (new, old) in [(from, 0), (to, 1), (to, 2)] {
                    libc::dup2(new, old);
                }
                libc::exit(child())
            }
            pid => {
                libc::setpgid(pid, pid);
                pid
            }
        }
    }
}

/// Returns all children that have ended as `PID:CODE`, with the code of [`wait`]. Kills the
/// remaining processes of a child's group.
pub fn reap() -> String {
    let mut ended = Vec::new();
    loop {
        // SAFETY: an all-zero `siginfo_t` is valid, and this function owns it. No other process or
        // group gets the child's number until the child has been waited for.
        let pid = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let which = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, &mut info, which) != 0 || info.si_pid() == 0 {
                return ended.join(" ");
            }
            libc::kill(-info.si_pid(), libc::SIGKILL);
            info.si_pid()
        };
        ended.push(format!("{pid}:{}", wait(pid)));
    }
}

/// Waits for a child; returns its exit code, or minus the signal that killed it.
pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the call writes only `status`.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    if libc::WIFSIGNALED(status) {
        -libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    }
}

/// Runs this program again with the same arguments. Returns only if that failed.
pub fn exec() {
    let arguments: Vec<CString> = std::env::args_os()
        .filter_map(|argument| CString::new(argument.as_bytes()).ok())
        .collect();
    let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: the strings are NUL-terminated, and a NULL ends the list; the environment is the C
    // library's own.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), pointers.as_ptr()) };
}

/// Closes all descriptors from `first` on.
pub fn close_from(first: i32) {
    for descriptor in first..1024 {
        close(descriptor);
    }
}

/// Closes a descriptor.
pub fn close(descriptor: i32) {
    // SAFETY: closing a descriptor that is not open is harmless; scripts close descriptors of the
    // library on purpose.
    unsafe { libc::close(descriptor) };
}

/// Empties the environment.
pub fn clear_environment() {
    // SAFETY: the script has one thread here.
    unsafe { libc::clearenv() };
}

/// Removes a variable from the environment.
pub fn unset(name: &str) {
    // SAFETY: the name is NUL-terminated, and the script has one thread here.
    unsafe { libc::unsetenv(c_string(name).as_ptr()) };
}

/// Sets an environment variable in the C library only, without Rust's own functions.
pub fn set(name: &str, value: &str) {
    let (name, value) = (c_string(name), c_string(value));
    // SAFETY: both strings are NUL-terminated and copied; the script has one thread here.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
}

/// Makes this signal interrupt the current system call without any other effect.
pub fn catch(signal: i32) {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: an all-zero `sigaction` is valid: it has no flags, so system calls are not restarted,
    // and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: the handler does nothing.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}
