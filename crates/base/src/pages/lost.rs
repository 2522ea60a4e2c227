//! Files that somebody cuts short while they are mapped.
//!
//! A page that is gone is answered by SIGBUS, and nothing on a tmpfs path prevents that: seals need
//! a memfd, and a lease or a lock binds nobody. So that one member of a group cannot end the
//! programs of all others, a handler gives the *whole* mapping zeros of the process's own and marks
//! it as lost. What is read there then means nothing; who reads asks `Watch::is_lost`, after a look
//! at [`any`].
//!
//! The handler is there as soon as a file is mapped, so never in a program without a limit. It
//! answers for addresses of these mappings only; all else goes to the handler that was there
//! before. A program that installs its own afterwards keeps that one, and a thread that has the
//! signal blocked ends the program: the kernel asks no handler then.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// Mappings that are watched at once. Those beyond end the process, as without a handler.
const WATCHED: usize = 500;
/// In place of an address, while an entry is filled.
const TAKEN: usize = 1;

/// The mappings of one process. All zeros: nobody's, as a forked child finds it.
struct Registry {
    /// Whose mappings these are, for kernels that do not wipe.
    pid: AtomicI32,
    entries: [Entry; WATCHED],
}

struct Entry {
    /// 0: free.
    start: AtomicUsize,
    len: AtomicUsize,
    lost: AtomicBool,
}

/// Pages that the kernel wipes in a forked child, which has none of the mappings; never unmapped.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(null_mut());
/// Whether anything was ever lost here.
static ANY: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// What was there before; never freed.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Whether some mapping of this process may be lost. One load.
#[inline]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// A mapping that is watched until drop.
pub(super) struct Watch(Option<&'static Entry>);

impl Watch {
    pub(super) fn over(start: NonNull<libc::c_void>, len: usize) -> Self {
        if !INSTALLED.swap(true, Ordering::AcqRel) {
            install();
        }
        let start = start.as_ptr().addr();
        let free = own_registry().and_then(|registry| {
            let mut entries = registry.entries.iter();
            entries.find(|entry| entry.take(start, len))
        });
        Self(free)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.0
            .is_some_and(|entry| entry.lost.load(Ordering::Acquire))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.start.store(0, Ordering::Release);
        }
    }
}

impl Entry {
    /// False when it is somebody else's.
    fn take(&self, start: usize, len: usize) -> bool {
        let taken = self
            .start
            .compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if taken {
            self.len.store(len, Ordering::Relaxed);
            self.lost.store(false, Ordering::Relaxed);
            self.start.store(start, Ordering::Release);
        }
        taken
    }

    /// The mapping, if the address lies in it.
    fn around(&self, address: usize) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Acquire);
        // Another mapping's length may have come meanwhile, then that has another start.
        let is_one = start > TAKEN && self.start.load(Ordering::Relaxed) == start;
        (is_one && (start..start.saturating_add(len)).contains(&address)).then_some((start, len))
    }
}

/// The registry of this process; none without memory.
fn own_registry() -> Option<&'static Registry> {
    let known = REGISTRY.load(Ordering::Acquire);
    if let Some(own) = of_this_process(known) {
        return Some(own);
    }
    let pages = super::Pages::private(size_of::<Registry>()).ok()?;
    // Kernels before 4.14 cannot; there the pid tells.
    let _ = pages.advise(libc::MADV_WIPEONFORK);
    let fresh = pages.start().as_ptr().cast::<Registry>();
    // SAFETY: fresh pages, zeroed by the kernel, which is a valid `Registry`; large enough and
    // aligned to more than it needs.
    let pid = unsafe { &(*fresh).pid };
    pid.store(std::process::id().cast_signed(), Ordering::Release);
    match REGISTRY.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            std::mem::forget(pages);
            of_this_process(fresh)
        }
        Err(theirs) => of_this_process(theirs),
    }
}

/// Async-signal-safe.
fn of_this_process(registry: *const Registry) -> Option<&'static Registry> {
    // SAFETY: null, or pages that are never unmapped and, wiped or not, hold a valid `Registry`.
    let registry = unsafe { registry.as_ref() }?;
    // SAFETY: always succeeds and touches nothing.
    let pid = unsafe { libc::getpid() };
    (registry.pid.load(Ordering::Acquire) == pid).then_some(registry)
}

/// Puts our handler before the one that is there, with the same mask and stack.
fn install() {
    // SAFETY: integers and a set of bits, for which zero is valid.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the present action, into a structure of ours.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) } != 0 {
        return;
    }
    let mut ours = before;
    ours.sa_sigaction = on_bus as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO
        | match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => libc::SA_ONSTACK,
            _ => before.sa_flags & !libc::SA_RESETHAND,
        };
    // Before the handler can need it.
    BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
    // SAFETY: a handler of the kind that the flags say, and async-signal-safe.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, null_mut()) };
}

extern "C" fn on_bus(signal: i32, about: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; and the kernel's description of the signal, whose address is valid where
    // the code says so.
    let (error, code, address) = unsafe { (*errno, (*about).si_code, (*about).si_addr().addr()) };
    let is_ours = code == libc::BUS_ADRERR && replace(address);
    // SAFETY: as above. The program that was interrupted may be about to read it.
    unsafe { *errno = error };
    if !is_ours {
        pass_on(signal, about, context);
    }
}

/// Gives the mapping around the address zeros, if it is a watched one.
fn replace(address: usize) -> bool {
    let Some(registry) = of_this_process(REGISTRY.load(Ordering::Acquire)) else {
        return false;
    };
    let around = |entry: &'static Entry| Some((entry, entry.around(address)?));
    let Some((entry, (start, len))) = registry.entries.iter().find_map(around) else {
        return false;
    };
    // First: who reads the zeros finds it said.
    entry.lost.store(true, Ordering::SeqCst);
    ANY.store(true, Ordering::SeqCst);
    // As wide as the kernel's registers.
    let protection = libc::c_long::from(libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (flags, no_file, advice) = (
        libc::c_long::from(flags),
        libc::c_long::from(-1),
        libc::c_long::from(libc::MADV_DONTFORK),
    );
    // System calls, as others wrap these functions with what is not for handlers. SAFETY: the range
    // is a whole mapping of ours, alive as somebody has just looked into it. It is made of atomics,
    // for which zeros are valid, and what reads them is told. Children are to have it as little as
    // before.
    unsafe {
        let mapped = libc::syscall(
            libc::SYS_mmap,
            start,
            len,
            protection,
            flags,
            no_file,
            0usize,
        );
        libc::syscall(libc::SYS_madvise, start, len, advice);
        mapped != -1
    }
}

/// As if we were not there.
fn pass_on(signal: i32, about: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: never freed; null only in the instant before it is known.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    let action = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let flags = before.map_or(0, |before| before.sa_flags);
    // SAFETY: written by the kernel.
    let code = unsafe { (*about).si_code };
    // Which the kernel does not let anybody ignore: the instruction would be repeated for ever.
    let is_fault = (libc::BUS_ADRALN..=libc::BUS_MCEERR_AR).contains(&code);
    match action {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            set_default();
            if !is_fault {
                // SAFETY: to this thread, as soon as the handler has returned.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            if flags & libc::SA_RESETHAND != 0 {
                set_default();
            }
            // SAFETY: a handler that the program has installed for this signal, of the kind that
            // its flags say; called with what the kernel gave.
            unsafe {
                if flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    handler(signal, about, context);
                } else {
                    let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                    handler(signal);
                }
            }
        }
    }
}

fn set_default() {
    // SAFETY: integers and a set of bits, for which zero is valid: the default action.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, &raw const default, null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pages;
    use std::fs::{self, OpenOptions};
    use std::sync::atomic::{AtomicU64, Ordering};

    const LEN: usize = 4 * 4096;

    fn word(pages: &Pages, at: usize) -> &AtomicU64 {
        assert!(at < LEN / 8);
        // SAFETY: within the mapping, aligned, and zeros or the file's bytes.
        unsafe { pages.start().cast::<AtomicU64>().add(at).as_ref() }
    }

    #[test]
    fn what_is_cut_off_reads_as_zeros_everywhere_and_is_said_to_be_lost() {
        let scratch = gpulimit_scratch::Scratch::new();
        let path = scratch.at("file");
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .clone();
        let file = options.open(&path).expect("made");
        for (keep, touched) in [(0, 0), (LEN / 2, LEN / 8 - 1)] {
            fs::write(&path, [7; LEN]).expect("written");
            let pages = Pages::of_file(&file, LEN, true).expect("mapped");
            let other = Pages::of_file(&file, LEN, false).expect("mapped");
            assert_ne!(word(&pages, 0).load(Ordering::Relaxed), 0);
            file.set_len(keep as u64).expect("cut");
            assert!(!pages.is_lost(), "nobody has looked");
            assert_eq!(word(&pages, touched).load(Ordering::Relaxed), 0);
            assert!(pages.is_lost() && super::any());
            assert_eq!(word(&pages, 0).load(Ordering::Relaxed), 0);
            word(&pages, 1).store(5, Ordering::Relaxed);
            assert_eq!(word(&pages, 1).load(Ordering::Relaxed), 5);
            assert!(!other.is_lost());
            drop(pages);
            // An entry that was lost before.
            let again = Pages::of_file(&file, LEN, true).expect("mapped");
            assert!(!again.is_lost());
        }
    }
}
