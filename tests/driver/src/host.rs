//! A machine whose GPUs have no memory of their own (the knob `host-memory`): GPUs, the memory that
//! the driver takes on the host, and other programs share one count.
//!
//! The driver's memory on the host (managed, pinned) stands in the slots under the number
//! [`HOST`], so that it goes with its process. When the sum passes the host's memory, the host ends
//! the process that took the last block, as a real one would end some process, or stand still.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::{Mutex, PoisonError};

use crate::context::Context;
use crate::driver::driver;
use crate::machine::{BLOCK, MAX_DEVICES, Machine};
use crate::{Outcome, device, grant};

/// The number under which slots have memory of the host. On such a machine no GPU has this number.
pub const HOST: usize = MAX_DEVICES - 1;

/// Returns whether the GPUs of this machine share the host's memory.
pub fn is_shared(machine: &Machine) -> bool {
    total(machine) != 0
}

/// Returns the host's memory (`MemTotal`) in bytes; 0 for a machine whose GPUs have their own.
pub fn total(machine: &Machine) -> u64 {
    machine.knobs.host_memory.load(Acquire)
}

/// Returns the bytes that are in use and that the kernel cannot take back.
pub fn used(machine: &Machine) -> u64 {
    let devices = (0..device::count(machine)).chain([HOST]);
    let blocks: u64 = devices.map(|device| grant::used(machine, device)).sum();
    blocks * BLOCK + machine.knobs.host_used.load(Relaxed)
}

/// Returns `MemAvailable`.
pub fn available(machine: &Machine) -> u64 {
    total(machine).saturating_sub(used(machine))
}

/// Returns `MemFree`, which CUDA shows as free: the kernel would also give its page cache away.
pub fn free(machine: &Machine) -> u64 {
    available(machine).saturating_sub(machine.knobs.page_cache.load(Relaxed))
}

/// Returns whether the machine uses more than the host has.
pub fn is_overrun(machine: &Machine) -> bool {
    is_shared(machine) && used(machine) > total(machine)
}

/// Ends the calling process if the machine uses more than the host has.
pub fn check(machine: &Machine) {
    if is_overrun(machine) {
        let (used, total) = (used(machine), total(machine));
        machine.knobs.overruns.fetch_add(1, SeqCst);
        eprintln!("gpulimit-sim: the host is out of memory: {used} bytes of {total}");
        // SAFETY: only sends a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// The pinned memory of this process, by address: its context and its bytes.
static PINNED: Mutex<BTreeMap<usize, (usize, u64)>> = Mutex::new(BTreeMap::new());

/// Counts pinned memory, which goes with its context.
///
/// # Errors
/// `NOT_INITIALIZED`.
pub fn pin(context: &Context, address: usize, bytes: u64) -> Outcome<()> {
    change(|all| {
        all.insert(address, (context.index, bytes));
    })
}

/// Counts pinned memory no more.
///
/// # Errors
/// `NOT_INITIALIZED`.
pub fn unpin(address: usize) -> Outcome<()> {
    change(|all| {
        all.remove(&address);
    })
}

/// Counts the pinned memory of a destroyed context no more.
///
/// # Errors
/// `NOT_INITIALIZED`.
pub fn clear(context: &Context) -> Outcome<()> {
    change(|all| all.retain(|_, (index, _)| *index != context.index))
}

/// Changes the list, and takes or frees whole blocks of all pinned memory together.
fn change(change: impl FnOnce(&mut BTreeMap<usize, (usize, u64)>)) -> Outcome<()> {
    let blocks = |all: &BTreeMap<usize, (usize, u64)>| {
        let bytes: u64 = all.values().map(|(_, bytes)| bytes).sum();
        bytes.next_multiple_of(BLOCK)
    };
    let driver = driver()?;
    let mut all = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = blocks(&all);
    change(&mut all);
    let after = blocks(&all);
    driver.take_host(after.saturating_sub(before));
    driver.give_host(before.saturating_sub(after));
    Ok(())
}

/// Returns the lines of `/proc/meminfo` about this memory.
pub fn meminfo(machine: &Machine) -> String {
    let lines = [
        ("MemTotal", total(machine)),
        ("MemFree", free(machine)),
        ("MemAvailable", available(machine)),
    ];
    let line = |(name, bytes): (&str, u64)| {
        let name = format!("{name}:");
        format!("{name:<16}{:>8} kB\n", bytes / 1024)
    };
    lines.map(line).concat()
}
