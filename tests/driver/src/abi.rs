//! What C hands over, and the gate that every call passes.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use crate::machine::Machine;
use crate::{Outcome, Status, checkpoint};

/// A pointer to which the call writes a result.
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

    /// Writes the result where there is a pointer.
    pub fn put_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the C interface promises a pointer to such a value, however
            // aligned.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// No pointer.
    pub const fn null() -> Self {
        Out(std::ptr::null_mut())
    }

    /// Reads what the caller put there before.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL.
    pub fn read(self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// The n-th element of an array of results.
    pub fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }

    /// The same address as a pointer to something else.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// The same address to read from.
    pub fn as_in(self) -> In<T> {
        In(self.0.cast_const())
    }

    /// Whether it is NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl Out<u8> {
    /// Writes text and a NUL into a buffer of so many bytes, cut where it is too long.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL or no room.
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

/// A pointer from which the call reads.
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
        // SAFETY: the caller of the C interface promises a pointer to such a value, however
        // aligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The n-th element of an array.
    pub fn at(self, index: usize) -> In<T> {
        In(self.0.wrapping_add(index))
    }

    /// Something at so many bytes from the start.
    pub fn field<U>(self, offset: usize) -> In<U> {
        In(self.0.wrapping_byte_add(offset).cast())
    }

    /// Whether it is NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A C string.
pub type Text = In<c_char>;

impl Text {
    /// The bytes before the NUL.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL.
    pub fn bytes(self) -> Outcome<&'static [u8]> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller promises a NUL-terminated string that lives as long as the call, and
        // no handler keeps it.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The text before the NUL.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL or what is no text.
    pub fn str(self) -> Outcome<&'static str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Status::INVALID_VALUE)
    }
}

/// One exported function: its name, and how often it was called while knobs were set.
pub struct Site {
    name: &'static str,
    calls: AtomicU64,
}

static ALWAYS: AtomicU32 = AtomicU32::new(1);
static NEVER: AtomicU32 = AtomicU32::new(0);
static ACTIVE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const ALWAYS).cast_mut());

impl Site {
    /// The site of the function with this name.
    pub const fn new(name: &'static str) -> Self {
        Site {
            name,
            calls: AtomicU64::new(0),
        }
    }

    /// Does the call's work as the knobs say: after a wait, before a wait, or not at all. One
    /// branch when none is set.
    #[inline(always)]
    pub fn run(&self, work: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the pointer is one of the two statics above or a word of the machine, which is
        // never unmapped.
        let active = unsafe { &*ACTIVE.load(Relaxed) };
        if active.load(Relaxed) == 0 {
            work()
        } else {
            self.obey(work)
        }
    }

    /// Passes a status on, and notes the name of a function that fails in the file that
    /// `GPULIMIT_SIM_FAILED` names, a line each: tests see from it who was given a wrong handle.
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
        let open = || {
            let path = std::env::var_os("GPULIMIT_SIM_FAILED")?;
            File::options().create(true).append(true).open(path).ok()
        };
        if let Some(mut file) = FILE.get_or_init(open).as_ref() {
            let _ = file.write_all(format!("{}\n", self.name).as_bytes());
        }
    }

    #[cold]
    fn obey(&self, work: impl FnOnce() -> i32) -> i32 {
        let Ok(machine) = Machine::get() else {
            ACTIVE.store((&raw const NEVER).cast_mut(), Release);
            return work();
        };
        ACTIVE.store((&raw const machine.knobs.active).cast_mut(), Release);
        if machine.knobs.active.load(Acquire) == 0 {
            return work();
        }
        checkpoint::wait_if_locked();
        let calls = self.calls.fetch_add(1, Relaxed) + 1;
        let orders = machine.knobs.orders(self.name, calls);
        wait(orders.latency);
        let code = orders.failure.unwrap_or_else(work);
        wait(orders.delay);
        code
    }
}

/// Short waits spin, as sleeping is not that exact.
fn wait(ns: u64) {
    let (start, wanted) = (Instant::now(), Duration::from_nanos(ns));
    if ns > 200_000 {
        std::thread::sleep(wanted);
    }
    while start.elapsed() < wanted {
        std::hint::spin_loop();
    }
}

thread_local! {
    /// The call under way was given a handle at which the driver's memory has something else by
    /// now.
    static FATAL: Cell<bool> = const { Cell::new(false) };
}

/// Functions that end in a memory fault when they get a handle that was destroyed, or is one of
/// another kind (measured, H200, 580.159.03). `cuLibraryUnload` does, too; random programs of the
/// tests unload what is no library.
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

/// Marks the status of a call that was given a handle which is not null and none: see `CRASHES`.
pub fn fatal(status: Status) -> Status {
    FATAL.set(true);
    status
}

/// Ends the process as a memory fault in the driver does: what some functions do with a handle that
/// has been destroyed.
pub fn crash() -> ! {
    // SAFETY: a signal to the process itself; a handler would return to where nothing can go on.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV)
    };
    std::process::abort()
}

/// What the C caller gets.
pub fn code(outcome: Outcome<()>) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(status) => status.0,
    }
}
