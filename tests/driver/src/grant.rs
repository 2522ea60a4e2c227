//! The protocol by which processes take and give back physical memory of the simulated GPUs. The
//! protocol is exact and needs no locks. So a process can be killed or stopped between any two
//! instructions.
//!
//! Each GPU has one word in shared memory: its used blocks, the number of the last operation, and
//! the slot of that operation. Each slot has a word of its own for every GPU.
//!
//! Before a process changes a GPU's word, it adds the last operation to the word of that
//! operation's slot. This step is called *settling*. Any process can settle any operation, with the
//! same result. So for each GPU at most one operation is missing in the words of the slots.
//!
//! | word | bits, low to high |
//! |---|---|
//! | device | 24 blocks used, 12 slot, 28 sequence |
//! | slot, held | 24 blocks held, 12 unused, 28 sequence |
//! | slot, intent | 25 blocks of change (plus a bias), 11 unused, 28 sequence |
//!
//! While the owner of a slot lives, only the owner makes operations for the slot, one at a time per
//! GPU. After the owner's death, other processes (reapers) make them. Several reapers can work on
//! the same slot, because reapers only give back its blocks.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::host::{self, HOST};
use crate::machine::{BLOCK, DeviceWords, Held, Machine};

const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const CHANGE: u64 = (1 << (COUNT_BITS + 1)) - 1;
const BIAS: i64 = 1 << COUNT_BITS;
/// The slot number in a GPU's word before the first operation.
const NO_SLOT: u64 = 0xfff;
const SEQUENCE: u64 = (1 << 28) - 1;

/// The value of a GPU's word before the first operation.
pub const EMPTY: u64 = NO_SLOT << COUNT_BITS;

fn count(word: u64) -> u64 {
    word & COUNT
}

fn sequence(word: u64) -> u64 {
    word >> 36
}

fn device_word(used: u64, slot: usize, sequence: u64) -> u64 {
    used | (slot as u64) << COUNT_BITS | sequence << 36
}

fn intent_word(change: i64, sequence: u64) -> u64 {
    (change + BIAS) as u64 | sequence << 36
}

/// Settles the last operation on the GPU and returns the GPU's word.
fn settle(machine: &Machine, device: usize) -> u64 {
    let words = &machine.devices[device];
    'look: loop {
        let word = words.word.load(SeqCst);
        let slot = (word >> COUNT_BITS) & NO_SLOT;
        if slot == NO_SLOT {
            return word;
        }
        words.peak.fetch_max(count(word), AcqRel);
        let operation = sequence(word);
        let held = &machine.slots[slot as usize].held[device];
        loop {
            let old = held.word.load(SeqCst);
            if sequence(old) == operation {
                return word;
            }
            let intent = held.intent.load(SeqCst);
            // The slot is not in the state before this operation, so the GPU's word has changed.
            // Read that word again.
            if (sequence(old) + 1) & SEQUENCE != operation || sequence(intent) != operation {
                continue 'look;
            }
            let change = (intent & CHANGE) as i64 - BIAS;
            let new = (count(old) as i64 + change) as u64 | operation << 36;
            let _ = held.word.compare_exchange(old, new, SeqCst, SeqCst);
        }
    }
}

/// Returns the blocks of the GPU that all processes together use.
pub fn used(machine: &Machine, device: usize) -> u64 {
    count(machine.devices[device].word.load(Acquire))
}

/// Returns the blocks of the GPU that one slot holds.
pub fn held(machine: &Machine, slot: usize, device: usize) -> u64 {
    settle(machine, device);
    count(machine.slots[slot].held[device].word.load(Acquire))
}

/// Returns the largest number of the GPU's blocks that were ever in use at once.
pub fn peak(machine: &Machine, device: usize) -> u64 {
    settle(machine, device);
    machine.devices[device].peak.load(Acquire)
}

/// Resets the GPU's peak to the number of blocks that are used now.
pub fn reset_peak(machine: &Machine, device: usize) {
    let word = settle(machine, device);
    machine.devices[device].peak.store(count(word), SeqCst);
    settle(machine, device);
}

/// Adds `blocks` to a slot's blocks on the GPU. Returns false if the GPU has too few.
///
/// The caller prevents concurrent calls for the same slot and GPU.
pub fn change(machine: &Machine, slot: usize, device: usize, blocks: i64) -> bool {
    let words: &DeviceWords = &machine.devices[device];
    let held: &Held = &machine.slots[slot].held[device];
    let capacity = match device == HOST && host::is_shared(machine) {
        true => u64::MAX >> 1,
        false => machine.knobs.capacity[device].load(Acquire) / BLOCK,
    };
    settle(machine, device);
    let operation = (sequence(held.word.load(SeqCst)) + 1) & SEQUENCE;
    held.intent.store(intent_word(blocks, operation), SeqCst);
    loop {
        let word = settle(machine, device);
        let used = count(word) as i64 + blocks;
        if blocks > 0 && used > capacity as i64 {
            return false;
        }
        let new = device_word(used as u64, slot, operation);
        if words
            .word
            .compare_exchange(word, new, SeqCst, SeqCst)
            .is_ok()
        {
            settle(machine, device);
            return true;
        }
    }
}

/// Gives back the blocks of a dead owner's slot on the GPU. Several processes may do this at once,
/// at any time.
pub fn reap(machine: &Machine, slot: usize, device: usize, owner: u64) {
    let words = &machine.devices[device];
    let line = &machine.slots[slot];
    let held = &line.held[device];
    loop {
        settle(machine, device);
        let intent = held.intent.load(SeqCst);
        let before = held.word.load(SeqCst);
        // The word `before` counts the dead process's blocks only if that process still owned the
        // slot when this thread read the word.
        if line.owner.load(SeqCst) != owner || count(before) == 0 {
            return;
        }
        let operation = (sequence(before) + 1) & SEQUENCE;
        let mine = intent_word(-(count(before) as i64), operation);
        if intent != mine
            && held
                .intent
                .compare_exchange(intent, mine, SeqCst, SeqCst)
                .is_err()
        {
            continue;
        }
        let word = settle(machine, device);
        if held.word.load(SeqCst) != before {
            continue;
        }
        let new = device_word(count(word) - count(before), slot, operation);
        if words
            .word
            .compare_exchange(word, new, SeqCst, SeqCst)
            .is_ok()
        {
            settle(machine, device);
        }
    }
}
