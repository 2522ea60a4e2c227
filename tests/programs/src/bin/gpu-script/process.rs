//! Calls of the C library that have no safe form: loading, forking, descriptors.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// `dlopen`; null when it fails.
pub fn open(path: &str, flags: i32) -> usize {
    // SAFETY: a NUL-terminated path.
    unsafe { libc::dlopen(c_string(path).as_ptr(), flags) as usize }
}

/// `dlsym`; 0 when there is none.
pub fn find(handle: usize, name: &str) -> usize {
    // SAFETY: a handle of `dlopen`, a NUL-terminated name.
    unsafe { libc::dlsym(handle as *mut _, c_string(name).as_ptr()) as usize }
}

/// `dlerror`, without the path of the library, which differs between machines.
pub fn error() -> Option<String> {
    // SAFETY: the text is copied before any other call of its kind.
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

/// Where an address is.
pub struct Place {
    /// File name of the object.
    pub owner: String,
    /// The symbol there, as far as the object exports one.
    pub symbol: String,
}

/// The object and the symbol that an address is in.
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

/// So many words that lie at `address`.
pub fn words_at(address: usize, count: usize) -> Vec<u64> {
    let word = |at: usize| (address as *const u64).wrapping_add(at);
    // SAFETY: a list of so many that the driver has made and keeps.
    (0..count).map(|at| unsafe { word(at).read() }).collect()
}

/// File name of the object that an address is in.
pub fn owner(address: usize) -> Option<String> {
    place(address).map(|place| place.owner)
}

/// Calls the function at `address`. Arguments beyond its own are harmless in the C calling
/// convention.
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
    // SAFETY: a function of the driver interface, which takes integers and pointers that the caller
    // keeps alive.
    let function: Function = unsafe { std::mem::transmute(address) };
    function(
        a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
    )
}

/// Calls `cuIpcOpenMemHandle`, whose handle comes by value.
pub fn open_handle(address: usize, result: &mut u64, handle: [u64; 8]) -> i32 {
    #[repr(C)]
    struct Handle([u64; 8]);
    // SAFETY: the driver's function, or ours in its place, with the arguments of its header.
    let function: extern "C" fn(*mut u64, Handle, u32) -> i32 =
        unsafe { std::mem::transmute(address) };
    function(result, Handle(handle), 1)
}

/// Calls a function that looks a name up.
pub fn lookup(address: usize, name: &str) -> usize {
    let name = c_string(name);
    // SAFETY: `linked` of c/linked.c.
    let function: extern "C" fn(*const libc::c_char) -> usize =
        unsafe { std::mem::transmute(address) };
    function(name.as_ptr())
}

/// Calls a function that returns a text.
pub fn text(address: usize) -> String {
    // SAFETY: `gpulimit_hooks` of the preloaded library: a NUL-terminated string that stays valid,
    // or null.
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
    // SAFETY: `gpulimit_contains_panics` of the preloaded library.
    let function: extern "C" fn() -> i32 = unsafe { std::mem::transmute(address) };
    function()
}

/// Reads one byte of standard input; 0 at its end.
pub fn read_input(byte: &mut [u8; 1]) -> usize {
    // SAFETY: one byte that is ours to write.
    let read = unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) };
    usize::try_from(read).unwrap_or(0)
}

/// Writes a whole line in one call: forked children share the output.
pub fn write_line(line: &str) {
    let line = format!("{line}\n");
    // SAFETY: the bytes are valid.
    unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
}

/// Runs `child` in a forked process; its pid.
pub fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the script has one thread when it forks; the child goes on in `child` and leaves by
    // `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        pid => pid,
    }
}

/// Runs `child` in a forked process that reads and writes these files and leads a process group of
/// its own, until `exit` or our end; its pid. Whom it leaves behind becomes ours.
pub fn spawn(input: &str, output: &str, child: impl FnOnce() -> i32) -> i32 {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
    // SAFETY: as `fork`; the paths are NUL-terminated, and `exit` ends a process that has joined
    // its threads.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        match libc::fork() {
            0 => {
                libc::setpgid(0, 0);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // However many they are, who spawned them is to be heard.
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

/// All children that have ended, and what they came to: `PID:CODE`, the code as that of [`wait`].
/// Who is left of the group that one of them has led is killed.
pub fn reap() -> String {
    let mut ended = Vec::new();
    loop {
        // SAFETY: zero is a valid `siginfo_t`, which is ours to write. As long as nobody has waited
        // for the child no other process or group gets its number.
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

/// Waits for a child: its exit code, or minus the signal that killed it.
pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a status that is ours to write.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    if libc::WIFSIGNALED(status) {
        -libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    }
}

/// Becomes this program anew, with the same arguments. Returns only if that failed.
pub fn exec() {
    let arguments: Vec<CString> = std::env::args_os()
        .filter_map(|argument| CString::new(argument.as_bytes()).ok())
        .collect();
    let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: NUL-terminated strings and a NULL at the end; the environment is the C library's own.
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
    // SAFETY: closing a descriptor that is not open is harmless; that it may be somebody else's is
    // the point.
    unsafe { libc::close(descriptor) };
}

/// Empties the environment.
pub fn clear_environment() {
    // SAFETY: the script has one thread here.
    unsafe { libc::clearenv() };
}

/// Takes a variable out of the environment.
pub fn unset(name: &str) {
    // SAFETY: a NUL-terminated name; the script has one thread here.
    unsafe { libc::unsetenv(c_string(name).as_ptr()) };
}

/// Gives the environment a variable, of which Rust's side of this program knows nothing.
pub fn set(name: &str, value: &str) {
    let (name, value) = (c_string(name), c_string(value));
    // SAFETY: NUL-terminated, and copied; the script has one thread here.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
}

/// From now on this signal interrupts what is under way, and nothing else happens.
pub fn catch(signal: i32) {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: zero is a valid `sigaction`: no flags, so that system calls are not restarted, and an
    // empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: a handler that does nothing.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}
