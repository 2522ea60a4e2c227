//! Wrappers for the pointers and strings that C callers pass to the simulated driver. [`Site::run`]
//! applies the knobs to each driver call.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use crate::checkpoint::{Conduct, UnderWay};
use crate::knobs::Death;
use crate::machine::Machine;
use crate::{Outcome, Status};

/// A pointer to which a driver call writes a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes the result.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL.
    pub fn put(self, value: T) -> Outcome<()> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        self.put_if(value);
        Ok(())
    }

    /// Writes the result through the pointer, unless the pointer is NULL.
    pub fn put_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the C caller promises a writable value of this type unless the pointer is
            // NULL. Alignment does not matter.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Returns a NULL pointer.
    pub const fn null() -> Self {
        Out(std::ptr::null_mut())
    }

    /// Reads the value to which the pointer points.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL.
    pub fn read(self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Returns the pointer to element `index` of an array of results that begins at this pointer.
    pub fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }

    /// Returns this pointer with another result type.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Returns this pointer as an [`In`], from which the driver call reads.
    pub fn as_in(self) -> In<T> {
        In(self.0.cast_const())
    }

    /// Returns whether the pointer is NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl Out<u8> {
    /// Writes a text and a NUL, cut to the caller's buffer of `length` bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL or a length below 1.
    pub fn text(self, text: &str, length: i32) -> Outcome<()> {
        let room = usize::try_from(length)
            .ok()
            .filter(|room| *room > 0)
            .ok_or(Status::INVALID_VALUE)?;
        for (index, byte) in text.bytes().take(room - 1).chain([0]).enumerate() {
            self.at(index).put(byte)?;
        }
        Ok(())
    }
}

/// A pointer from which a driver call reads.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// Reads the value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL.
    pub fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the C caller promises a readable value of this type unless the pointer is NULL.
        // Alignment does not matter.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Returns the pointer to element `index` of an array that begins at this pointer.
    pub fn at(self, index: usize) -> In<T> {
        In(self.0.wrapping_add(index))
    }

    /// Returns the pointer to a struct field that lies `offset` bytes after this pointer.
    pub fn field<U>(self, offset: usize) -> In<U> {
        In(self.0.wrapping_byte_add(offset).cast())
    }

    /// Returns whether the pointer is NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A C string.
pub type Text = In<c_char>;

impl Text {
    /// Returns the bytes of the caller's C string, without the NUL.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL.
    pub fn bytes(self) -> Outcome<&'static [u8]> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the C caller promises a NUL-terminated string for the length of the call.
        // Handlers do not keep the slice.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// Returns the caller's C string as text, without the NUL.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL or for bytes that are not UTF-8.
    pub fn str(self) -> Outcome<&'static str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Status::INVALID_VALUE)
    }
}

/// One exported driver function: its name, and the number of its calls while a knob was set.
pub struct Site {
    name: &'static str,
    calls: AtomicU64,
}

static ALWAYS: AtomicU32 = AtomicU32::new(1);
static NEVER: AtomicU32 = AtomicU32::new(0);
static ACTIVE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const ALWAYS).cast_mut());

impl Site {
    /// Returns the `Site` of the function with this name.
    pub const fn new(name: &'static str) -> Self {
        Site {
            name,
            calls: AtomicU64::new(0),
        }
    }

    /// Runs `work`, the body of a driver call; a knob can delay or fail the call. Without knobs,
    /// the call costs one branch more.
    #[inline(always)]
    pub fn run(&self, work: impl FnOnce() -> i32) -> i32 {
        // SAFETY: `ACTIVE` holds the address of a static, or of a word of the machine's shared
        // file, which is never unmapped.
        let active = unsafe { &*ACTIVE.load(Relaxed) };
        if active.load(Relaxed) == 0 {
            work()
        } else {
            self.obey(work)
        }
    }

    /// Returns `code`. Appends the function's name to the file that `GPULIMIT_SIM_FAILED` names if
    /// `code` is an error.
    pub fn note(&self, code: i32) -> i32 {
        if code != 0 {
            self.failed();
        }
        code
    }

    #[cold]
    fn failed(&self) {
        let name = self.name.strip_suffix("_ptsz").unwrap_or(self.name);
        if FATAL.take() && CRASHES.contains(&name) {
            crash();
        }
        static FILE: OnceLock<Option<File>> = OnceLock::new();
        if let Some(mut file) = FILE.get_or_init(|| journal("GPULIMIT_SIM_FAILED")).as_ref() {
            let _ = file.write_all(format!("{}\n", self.name).as_bytes());
        }
    }

    #[cold]
    fn obey(&self, work: impl FnOnce() -> i32) -> i32 {
        let Ok(machine) = Machine::get() else {
            ACTIVE.store((&raw const NEVER).cast_mut(), Release);
            return work();
        };
        let death = Death::ordered();
        if death.is_none() {
            ACTIVE.store((&raw const machine.knobs.active).cast_mut(), Release);
            if machine.knobs.active.load(Acquire) == 0 {
                return work();
            }
        }
        let calls = self.calls.fetch_add(1, Relaxed) + 1;
        let orders = machine.knobs.orders(self.name, calls);
        let latency = || wait(orders.latency, || machine.knobs.waits(self.name).0);
        let conduct = Conduct::of(self.name);
        // Another process can lock and checkpoint this one during the latency.
        if conduct != Conduct::Waits {
            latency();
        }
        let _under_way = UnderWay::begin(self.name, conduct);
        if conduct == Conduct::Waits {
            latency();
        }
        let end = |after| {
            if death.is_some_and(|death| death.is_at(self.name, calls, after)) {
                // SAFETY: the process signals itself.
                unsafe { libc::raise(libc::SIGKILL) };
            }
        };
        end(false);
        let began = trace().map(|_| Stamp::now());
        let code = orders.failure.unwrap_or_else(work);
        if let Some((began, mut file)) = began.zip(trace()) {
            let (name, ended) = (self.name, Stamp::now());
            let _ = file.write_all(format!("{name} {code} {began} {ended}\n").as_bytes());
        }
        end(true);
        wait(orders.delay, || machine.knobs.waits(self.name).1);
        code
    }
}

/// A thread's own time: the nanoseconds that it has run, and how often it has gone to sleep. A busy
/// machine lets the thread wait for a processor, which changes neither.
struct Stamp(u64, u64);

impl Stamp {
    fn now() -> Self {
        // SAFETY: zeros are valid values of these structures of numbers.
        let (mut time, mut usage): (libc::timespec, libc::rusage) = unsafe { std::mem::zeroed() };
        // SAFETY: both are valid places to write to.
        unsafe {
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        }
        let nanoseconds = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        Self(nanoseconds, usage.ru_nvcsw as u64)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

/// Returns the file that gets a line for each call while a knob is set: the function, its answer,
/// and the [`Stamp`] of the thread before and after the work. `GPULIMIT_SIM_TRACE` names it.
fn trace() -> Option<&'static File> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    FILE.get_or_init(|| journal("GPULIMIT_SIM_TRACE")).as_ref()
}

/// Opens the file with this path in the environment, to append lines.
fn journal(variable: &str) -> Option<File> {
    let path = std::env::var_os(variable)?;
    File::options().create(true).append(true).open(path).ok()
}

/// Waits after the work of a function of NVML, if the knob `delay` names it.
pub fn linger(machine: &Machine, name: &str) {
    let delay = || machine.knobs.delay_of(name).unwrap_or(0);
    wait(delay(), delay);
}

/// Waits for `ns` nanoseconds, or until the knob, which `most` reads, is set to less.
fn wait(ns: u64, most: impl Fn() -> u64) {
    const PIECE: Duration = Duration::from_millis(5);
    let start = Instant::now();
    let left = |ns: u64| Duration::from_nanos(ns).checked_sub(start.elapsed());
    if ns > 200_000 {
        while let Some(time) = left(ns.min(most())) {
            std::thread::sleep(time.min(PIECE));
        }
    } else {
        // A sleep is not exact enough.
        while left(ns).is_some() {
            std::hint::spin_loop();
        }
    }
}

thread_local! {
    /// Whether the present driver call got a wrong handle. A real driver can crash on a wrong
    /// handle.
    static FATAL: Cell<bool> = const { Cell::new(false) };
}

/// Functions of the real driver that crash for the handle of a destroyed object or of another kind
/// of object (measured, H200, 580.159.03).
///
/// The list omits `cuLibraryUnload`, because random tests call it with wrong handles.
const CRASHES: &[&str] = &[
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuKernelGetFunction",
    "cuKernelGetParamInfo",
    "cuKernelSetAttribute",
    "cuKernelSetCacheConfig",
    "cuLaunchKernelEx",
    "cuLibraryGetGlobal",
    "cuLibraryGetKernelCount",
    "cuLibraryGetModule",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuStreamGetCtx",
    "cuStreamGetId",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

/// Returns `status`, and crashes the process at the end of the present call if `CRASHES` lists the
/// function.
pub fn fatal(status: Status) -> Status {
    FATAL.set(true);
    status
}

/// Ends the process by SIGSEGV, like a crash in the real driver.
pub fn crash() -> ! {
    // SAFETY: the process signals itself. The default action is set first, so no signal handler
    // runs.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV)
    };
    std::process::abort()
}

/// Converts the outcome of a driver call to its `CUresult`.
pub fn code(outcome: Outcome<()>) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(status) => status.0,
    }
}
