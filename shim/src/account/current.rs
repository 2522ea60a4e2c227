//! The pointer to this process's account ([`Process`]).
//!
//! The parent's CUDA contexts, ledger slot and locks are invalid in a forked child. So the pointer
//! lies in a page that the kernel fills with zeros in the child (`MADV_WIPEONFORK`). A child with a
//! null pointer makes its own account. Children of vfork and CLONE_VM use the parent's account
//! until they exec.
//!
//! Linux before 4.14 cannot wipe a page. There each use of the account compares the pid.
#![allow(unsafe_code)]

use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use gpulimit_group::Undisturbed;
use gpulimit_ledger::Gate;
use once_cell::race::OnceRef;

use super::Process;

/// What is in the page: nothing, once the kernel has wiped it.
#[repr(C)]
struct Page {
    process: AtomicPtr<Process>,
    gate: OnceRef<'static, Gate>,
}

/// The page that holds the pointer to the account. Null before the first use, and where the kernel
/// cannot wipe pages.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(null_mut());

/// The account and the pid of its process. Used where the kernel cannot wipe pages.
static OWNED: AtomicPtr<Owned> = AtomicPtr::new(null_mut());

struct Owned {
    pid: u32,
    process: Process,
}

/// The account made last, and from it those of the processes that this one was forked from. Leak
/// detectors look for pointers in the variables of libraries, and not in mapped pages.
static KEPT: AtomicPtr<Process> = AtomicPtr::new(null_mut());

/// Notes the end of this program in the history of its groups, if the program ends by `exit`, as
/// most do. What it has used until then is certain. Makes a program that fails say that it was
/// refused: see [`Process::explain_end`].
pub fn note_end_at_exit() {
    unsafe extern "C" {
        // The libc crate does not declare this function of glibc.
        fn on_exit(
            function: extern "C" fn(libc::c_int, *mut libc::c_void),
            argument: *mut libc::c_void,
        ) -> libc::c_int;
    }
    extern "C" fn note(status: libc::c_int, _: *mut libc::c_void) {
        // A forked child has no account until it uses a GPU itself.
        let Some(process) = Process::existing() else {
            return;
        };
        if let Some(Ok(member)) = process.joined() {
            member.note_life();
        }
        // The parent of the program sees only these bits.
        if let status @ 1.. = status & 0xff {
            process.explain_end(status);
        }
    }
    // SAFETY: the function is never unloaded, as it belongs to a library that is linked with
    // `nodelete`. A program without room for another function only leaves no note.
    unsafe { on_exit(note, null_mut()) };
}

impl Process {
    /// Returns this process's account. Call only in a process that is
    /// [`limited`](super::limited::limited).
    #[inline]
    pub fn current() -> &'static Process {
        Process::existing().unwrap_or_else(first_use)
    }

    /// Returns this process's account if it has one.
    #[inline]
    pub fn existing() -> Option<&'static Process> {
        let page = PAGE.load(Ordering::Acquire);
        if page.is_null() {
            return owned();
        }
        // SAFETY: the page is never unmapped, a wiped page reads as a null pointer, and an account
        // that is published is leaked.
        unsafe { (*page).process.load(Ordering::Acquire).as_ref() }
    }
}

/// Returns the place in the page for the gate of this process; `None` where the kernel cannot wipe
/// pages.
pub fn place_of_gate() -> Option<&'static OnceRef<'static, Gate>> {
    // SAFETY: the page is never unmapped, and zeros are an empty place.
    page().map(|page| unsafe { &(*page).gate })
}

#[cold]
fn first_use() -> &'static Process {
    crate::fault::point("first-use");
    // A new account reads random numbers from the kernel. `Undisturbed` keeps `pthread_cancel` from
    // ending the thread there.
    let _undisturbed = Undisturbed::new();
    let Some(page) = page() else {
        return by_pid();
    };
    let fresh = Process {
        _parent: AtomicPtr::new(KEPT.load(Ordering::Relaxed)),
        ..Process::default()
    };
    // SAFETY: the page is never unmapped.
    let process = publish(unsafe { &(*page).process }, null_mut(), fresh);
    KEPT.store(ptr::from_ref(process).cast_mut(), Ordering::Relaxed);
    process
}

/// Stores `fresh` in `place` if `place` still holds `known`. Otherwise returns the value that
/// another thread has stored.
fn publish<T>(place: &AtomicPtr<T>, known: *mut T, fresh: T) -> &'static T {
    let mine = Box::into_raw(Box::new(fresh));
    // SAFETY: `mine` comes from Box::into_raw. Every published account is leaked. No other thread
    // has seen an unpublished `mine`.
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

/// Returns this process's account if it has one, where the kernel cannot wipe pages.
#[cold]
fn owned() -> Option<&'static Process> {
    // SAFETY: the pointer is null, or leads to an account that is leaked and so valid for ever.
    let owned = unsafe { OWNED.load(Ordering::Acquire).as_ref() }?;
    (owned.pid == std::process::id()).then_some(&owned.process)
}

fn by_pid() -> &'static Process {
    let (known, pid) = (OWNED.load(Ordering::Acquire), std::process::id());
    if let Some(process) = owned() {
        return process;
    }
    let process = Process::default();
    &publish(&OWNED, known, Owned { pid, process }).process
}

/// Returns the page that holds the pointer to the account; `None` where the kernel cannot wipe
/// pages.
fn page() -> Option<*mut Page> {
    let known = PAGE.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    if !OWNED.load(Ordering::Acquire).is_null() {
        return None;
    }
    let fresh = wiped_page()?.cast::<Page>();
    match PAGE.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fresh),
        // Another thread has published its page first. The page of this thread stays mapped, which
        // costs 4 KiB once.
        Err(theirs) => Some(theirs),
    }
}

const PAGE_BYTES: usize = 4096;

/// Maps a zeroed page that the kernel zeroes again in every forked child. `None`: the kernel cannot
/// map such a page.
fn wiped_page() -> Option<*mut libc::c_void> {
    // SAFETY: the call makes a new anonymous private mapping and touches no other memory.
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
    // SAFETY: this function has just mapped the page, and no other code knows its address.
    unsafe {
        if libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0 {
            return Some(page);
        }
        libc::munmap(page, PAGE_BYTES);
    }
    None
}
