//! What belongs to this process and not to its forked children.
//!
//! CUDA contexts, our slots in the ledger and every lock of ours end with `fork`. All of it hangs on one pointer in a page that the kernel
//! wipes in the child (`MADV_WIPEONFORK`): a child finds null, whatever made it (fork, clone, a raw system call), and starts as a new
//! process on its first use. vfork and CLONE_VM children share the parent's memory until they exec and see the parent's pointer.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use gpulimit_core::group::Undisturbed;

use crate::account::Account;

/// This process as the hooks see it.
pub type Process = Account;

/// The page with the pointer. Null until first use.
static PAGE: AtomicPtr<AtomicPtr<Process>> = AtomicPtr::new(null_mut());

const UNKNOWN: u8 = 0;
const UNLIMITED: u8 = 1;
const LIMITED: u8 = 2;
/// Whether the administrator's rules or the environment ask for a limit: the same in forked children, so not in the page.
static ASKED: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether this process is to be limited at all (also when the limit cannot be applied).
#[inline]
pub fn limited() -> bool {
    match ASKED.load(Ordering::Relaxed) {
        UNKNOWN => ask(),
        answer => answer == LIMITED,
    }
}

#[cold]
fn ask() -> bool {
    let _undisturbed = Undisturbed::new();
    let limited = !matches!(crate::membership::assignment(), Ok(None));
    ASKED.store(if limited { LIMITED } else { UNLIMITED }, Ordering::Relaxed);
    limited
}

/// From now on this process runs without a limit.
pub fn let_go() {
    ASKED.store(UNLIMITED, Ordering::Relaxed);
}

impl Process {
    /// This process's account. Only for one that is [`limited`].
    #[inline]
    pub fn current() -> &'static Process {
        let page = PAGE.load(Ordering::Acquire);
        if !page.is_null() {
            // SAFETY: the page is never unmapped; wiped, it reads as a null pointer.
            let process = unsafe { (*page).load(Ordering::Acquire) };
            if !process.is_null() {
                // SAFETY: leaked, so valid for ever.
                return unsafe { &*process };
            }
        }
        first_use()
    }
}

#[cold]
fn first_use() -> &'static Process {
    // The maps in it ask the kernel for random numbers.
    let _undisturbed = Undisturbed::new();
    let page = page();
    let mine = Box::into_raw(Box::new(Process::new()));
    // SAFETY: `page` is valid for ever; `mine` comes from Box::into_raw and is either published (leaked) or, when another thread
    // was first, taken back before anybody saw it.
    unsafe {
        match (*page).compare_exchange(null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => &*mine,
            Err(theirs) => {
                drop(Box::from_raw(mine));
                &*theirs
            }
        }
    }
}

#[cold]
fn page() -> *mut AtomicPtr<Process> {
    let known = PAGE.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let fresh = wiped_page().cast::<AtomicPtr<Process>>();
    match PAGE.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => fresh,
        // The loser's page stays mapped: 4 KiB, once.
        Err(theirs) => theirs,
    }
}

const PAGE_BYTES: usize = 4096;

/// A zeroed page that is zero again in every forked child.
fn wiped_page() -> *mut libc::c_void {
    // SAFETY: a fresh anonymous private mapping.
    let page = unsafe {
        libc::mmap(
            null_mut(),
            PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        // Out of address space: no fork protection, but no crash either.
        return Box::into_raw(Box::new([0u64; 1])).cast();
    }
    // SAFETY: the page just mapped.
    let wiped = unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) } == 0;
    if !wiped {
        // Linux before 4.14: the C library's fork at least tells.
        // SAFETY: `forget` is async-signal-safe: one store.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
    page
}

extern "C" fn forget() {
    let page = PAGE.load(Ordering::Relaxed);
    if !page.is_null() {
        // SAFETY: the page is never unmapped.
        unsafe { (*page).store(null_mut(), Ordering::Relaxed) };
    }
}
