//! Where this process's own [`Process`] is, which its forked children do not share.
//!
//! CUDA contexts, our slots in the ledger and every lock of ours end with `fork`. All of it hangs
//! on one pointer in a page that the kernel wipes in the child (`MADV_WIPEONFORK`): a child finds
//! null, whatever made it (fork, clone, a raw system call), and starts as a new process on its
//! first use. vfork and CLONE_VM children share the parent's memory until they exec and see the
//! parent's pointer. Linux before 4.14 wipes no page; there the pid tells, at a system call for
//! each look.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpulimit_group::Undisturbed;

use super::Process;

/// The page with the pointer. Null until first use, and for good where the kernel wipes none.
static PAGE: AtomicPtr<AtomicPtr<Process>> = AtomicPtr::new(null_mut());

/// In place of the page where the kernel wipes none: forked children see their parent's.
static OWNED: AtomicPtr<Owned> = AtomicPtr::new(null_mut());

struct Owned {
    pid: u32,
    process: Process,
}

impl Process {
    /// This process's account. Only for one that is [`limited`](super::limited::limited).
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
    crate::fault::point("first-use");
    // The maps in it ask the kernel for random numbers.
    let _undisturbed = Undisturbed::new();
    let Some(page) = page() else {
        return by_pid();
    };
    // SAFETY: the page is never unmapped.
    publish(unsafe { &*page }, null_mut(), Process::default())
}

/// Publishes `fresh` in `place`, where `known` has been; or returns what another thread was faster
/// to publish.
fn publish<T>(place: &AtomicPtr<T>, known: *mut T, fresh: T) -> &'static T {
    let mine = Box::into_raw(Box::new(fresh));
    // SAFETY: `mine` comes from Box::into_raw and is either published (leaked) or, when another
    // thread was first, taken back before anybody saw it.
    unsafe {
        match place.compare_exchange(known, mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => &*mine,
            Err(theirs) => {
                drop(Box::from_raw(mine));
                &*theirs
            }
        }
    }
}

fn by_pid() -> &'static Process {
    let (known, pid) = (OWNED.load(Ordering::Acquire), std::process::id());
    // SAFETY: null, or leaked and so valid for ever.
    if let Some(owned) = unsafe { known.as_ref() }
        && owned.pid == pid
    {
        return &owned.process;
    }
    let process = Process::default();
    &publish(&OWNED, known, Owned { pid, process }).process
}

/// None where the kernel wipes no page.
fn page() -> Option<*mut AtomicPtr<Process>> {
    let known = PAGE.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    if !OWNED.load(Ordering::Acquire).is_null() {
        return None;
    }
    let fresh = wiped_page()?.cast::<AtomicPtr<Process>>();
    match PAGE.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fresh),
        // The loser's page stays mapped: 4 KiB, once.
        Err(theirs) => Some(theirs),
    }
}

const PAGE_BYTES: usize = 4096;

/// A zeroed page that is zero again in every forked child; none where the kernel cannot, or has no
/// memory.
fn wiped_page() -> Option<*mut libc::c_void> {
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
        return None;
    }
    // SAFETY: the page just mapped, which nobody else knows.
    unsafe {
        if libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0 {
            return Some(page);
        }
        libc::munmap(page, PAGE_BYTES);
    }
    None
}
