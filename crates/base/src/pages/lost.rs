//! Protection of this process from the truncation of files that it has mapped.
//!
//! Reading a page beyond the end of a truncated file raises SIGBUS. Any member of a group could
//! therefore end the other members' programs. No seal, lease or lock prevents truncation on tmpfs.
//!
//! A SIGBUS handler replaces the *whole* mapping with private zeros and marks the mapping as lost.
//! Code that reads the mapping checks [`any`] and `Watch::is_lost`, because the zeros are not data.
//!
//! The handler is installed when the first file is mapped. The handler treats only faults in
//! watched mappings, and passes all other signals on. Two cases remain unprotected:
//!
//! - The program later installs its own SIGBUS handler.
//! - A thread blocks SIGBUS. The kernel then ends the program.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// Number of mappings that can be watched at once. Further mappings are unprotected: truncation
/// ends the process with SIGBUS.
const WATCHED: usize = 500;
/// Value of `Entry::start` while a thread is filling the registry entry.
const TAKEN: usize = 1;

/// The mappings of this process that are watched for truncation. The kernel zeroes a forked child's
/// copy; pid 0 means no owner.
struct Registry {
    /// The pid of the mappings' owner. Identifies a forked copy on kernels that cannot wipe pages
    /// on fork.
    pid: AtomicI32,
    entries: [Entry; WATCHED],
}

struct Entry {
    /// Address of the watched mapping; 0 if the entry is free; `TAKEN` while the entry is being
    /// filled.
    start: AtomicUsize,
    len: AtomicUsize,
    lost: AtomicBool,
}

/// Points to the registry, which is never unmapped. The kernel wipes the registry in a forked
/// child, which inherits no watched mapping.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(null_mut());
/// Whether any mapping of this process was ever lost because its file was truncated.
static ANY: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The SIGBUS action that was installed before gpulimit's; never freed.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Returns whether some mapping of this process may have been lost. Costs one load.
#[inline]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Watches a mapping for truncation of its file until dropped. `None` if the registry was full; the
/// mapping is then unprotected.
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
    /// Takes this registry entry for a mapping. Returns false if another mapping has the entry.
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

    /// Returns the start and the length of this entry's mapping if `address` lies in the mapping.
    fn around(&self, address: usize) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Acquire);
        // If `start` has changed, another mapping has taken the entry, and `len` may belong to that
        // mapping.
        let is_one = start > TAKEN && self.start.load(Ordering::Relaxed) == start;
        (is_one && (start..start.saturating_add(len)).contains(&address)).then_some((start, len))
    }
}

/// Returns the registry of this process. Creates the registry if the process has none. Returns
/// `None` if memory is short.
fn own_registry() -> Option<&'static Registry> {
    let known = REGISTRY.load(Ordering::Acquire);
    if let Some(own) = of_this_process(known) {
        return Some(own);
    }
    let pages = super::Pages::private(size_of::<Registry>()).ok()?;
    // Kernels before 4.14 cannot wipe pages on fork. There, a forked child recognises the copy by
    // the parent's pid.
    let _ = pages.advise(libc::MADV_WIPEONFORK);
    let fresh = pages.start().as_ptr().cast::<Registry>();
    // SAFETY: the pages are zeroed, large enough and aligned, and all zeros is a valid `Registry`.
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

/// Returns the registry of watched mappings if the registry belongs to this process.
/// Async-signal-safe.
fn of_this_process(registry: *const Registry) -> Option<&'static Registry> {
    // SAFETY: the pointer is null or points to pages that are never unmapped and always hold a
    // valid `Registry`, wiped or not.
    let registry = unsafe { registry.as_ref() }?;
    // SAFETY: getpid always succeeds and accesses no memory.
    let pid = unsafe { libc::getpid() };
    (registry.pid.load(Ordering::Acquire) == pid).then_some(registry)
}

/// Installs gpulimit's SIGBUS handler in front of the present handler, with that handler's mask and
/// stack.
fn install() {
    // SAFETY: `sigaction` consists of integers and a bit set, for which all zeros is valid.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call only reads the present action, into a local structure.
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
    // The previous action is stored before the new handler is installed, because the new handler
    // reads it.
    BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
    // SAFETY: `on_bus` has the signature that SA_SIGINFO requires, and is async-signal-safe.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, null_mut()) };
}

extern "C" fn on_bus(signal: i32, about: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the address of the calling thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: errno belongs to this thread, and the kernel's description of the signal is valid.
    // The address is used only if `code` says that the address is valid.
    let (error, code, address) = unsafe { (*errno, (*about).si_code, (*about).si_addr().addr()) };
    let is_ours = code == libc::BUS_ADRERR && replace(address);
    // SAFETY: errno belongs to this thread. The old value is restored because the interrupted
    // program may be about to read it.
    unsafe { *errno = error };
    if !is_ours {
        pass_on(signal, about, context);
    }
}

/// Finds the watched mapping that contains the address, and replaces it with zeros. Returns false
/// if no watched mapping contains the address.
fn replace(address: usize) -> bool {
    let Some(registry) = of_this_process(REGISTRY.load(Ordering::Acquire)) else {
        return false;
    };
    let around = |entry: &'static Entry| Some((entry, entry.around(address)?));
    let Some((entry, (start, len))) = registry.entries.iter().find_map(around) else {
        return false;
    };
    // The mapping is marked as lost before its bytes become zeros, so that code that reads the
    // zeros finds the mark.
    entry.lost.store(true, Ordering::SeqCst);
    ANY.store(true, Ordering::SeqCst);
    // A raw system call takes arguments as wide as a register, so the integers are widened.
    let protection = libc::c_long::from(libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (flags, no_file, advice) = (
        libc::c_long::from(flags),
        libc::c_long::from(-1),
        libc::c_long::from(libc::MADV_DONTFORK),
    );
    // SAFETY: a thread has just accessed the watched mapping, so the whole range is alive. The
    // content is atomics, which accept zeros. Readers find the mapping marked as lost. Forked
    // children inherit neither mapping.
    unsafe {
        // These are raw system calls, because a program can replace the C library's functions by
        // functions that are not async-signal-safe.
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

/// Passes a signal on to the handler that the program had installed before gpulimit's handler.
fn pass_on(signal: i32, about: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the action is never freed; the pointer is null only before an action is stored.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    let action = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let flags = before.map_or(0, |before| before.sa_flags);
    // SAFETY: the kernel has written the description of the signal.
    let code = unsafe { (*about).si_code };
    // For a fault, SIG_IGN counts as SIG_DFL, as in the kernel. An ignored fault would repeat the
    // instruction forever.
    let is_fault = (libc::BUS_ADRALN..=libc::BUS_MCEERR_AR).contains(&code);
    match action {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            set_default();
            if !is_fault {
                // SAFETY: raise sends the signal to this thread, which receives it when the handler
                // returns.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            if flags & libc::SA_RESETHAND != 0 {
                set_default();
            }
            // SAFETY: the program installed this SIGBUS handler, and the flags tell its signature.
            // The handler gets the kernel's own arguments.
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
    // SAFETY: all zeros is a valid `sigaction`, and means the default action.
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
        // SAFETY: the word lies in the mapping, is aligned, and consists of zeros or of the file's
        // bytes.
        unsafe { pages.start().cast::<AtomicU64>().add(at).as_ref() }
    }

    #[test]
    fn a_truncated_mapping_reads_as_zeros_and_is_lost() {
        let scratch = gpulimit_support::Scratch::new();
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
            file.set_len(keep as u64).expect("truncated");
            assert!(!pages.is_lost(), "not accessed yet");
            assert_eq!(word(&pages, touched).load(Ordering::Relaxed), 0);
            assert!(pages.is_lost() && super::any());
            assert_eq!(word(&pages, 0).load(Ordering::Relaxed), 0);
            word(&pages, 1).store(5, Ordering::Relaxed);
            assert_eq!(word(&pages, 1).load(Ordering::Relaxed), 5);
            assert!(!other.is_lost());
            drop(pages);
            // The new mapping reuses the registry entry of the lost mapping.
            let again = Pages::of_file(&file, LEN, true).expect("mapped");
            assert!(!again.is_lost());
        }
    }
}
