//! The last events of a group, in a ring in its ledger.
//!
//! Writers take turns by number and write without a lock: one that dies, or is overtaken by a whole round of the ring, leaves an entry
//! whose stamp does not fit, and that is left out.

use super::atomic::{AtomicU64, Ordering, fence};
use super::layout::{EVENT_COMMAND_WORDS, EVENTS, EventEntry, Ring};
use super::{DeviceIndex, Identity};

/// What kind of event.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(u64)]
pub enum EventKind {
    /// A request was refused.
    Refusal = 1,
    /// A request began to wait.
    Wait = 2,
    /// A request that waited was granted.
    Granted = 3,
    /// Usage passed `high`.
    High = 4,
    /// What a dead process held was given back.
    Reap = 5,
    /// A process was killed to make room.
    Kill = 6,
    /// The limits were changed.
    Limits = 7,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Refusal,
        Self::Wait,
        Self::Granted,
        Self::High,
        Self::Reap,
        Self::Kill,
        Self::Limits,
    ];

    /// As shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refusal => "refusal",
            Self::Wait => "wait",
            Self::Granted => "granted",
            Self::High => "high",
            Self::Reap => "reap",
            Self::Kill => "kill",
            Self::Limits => "limits",
        }
    }
}

/// What happened, before it has a number.
#[derive(Copy, Clone, Debug)]
pub struct Happening {
    /// What.
    pub kind: EventKind,
    /// On which device; `None`: on all.
    pub device: Option<DeviceIndex>,
    /// The process that it happened to.
    pub process: Identity,
    /// Bytes asked for, waited for, given back or, of limits, the new `max`.
    pub bytes: u64,
    /// Bytes charged in the group at that time.
    pub charged: u64,
    /// The group's limit in bytes at that time.
    pub max: u64,
}

/// An event as it was written down.
#[derive(Copy, Clone, Debug)]
pub struct Event {
    /// Events of a group are numbered from 0.
    pub number: u64,
    /// Microseconds of the wall clock.
    pub time_us: u64,
    /// What happened. The command of its process is cut at 32 bytes; when it started is not known.
    pub what: Happening,
}

const DEVICE_SHIFT: u32 = 32;

pub(super) fn record(ring: &Ring, happening: &Happening) {
    let number = ring.head.fetch_add(1, Ordering::Relaxed);
    let entry = &ring.entries[(number % EVENTS as u64) as usize];
    entry.stamp.store(0, Ordering::Relaxed);
    // Who sees a new word sees that the stamp is gone.
    fence(Ordering::Release);
    let device = happening.device.map_or(0, |device| device.get() as u64 + 1);
    let process = &happening.process;
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64);
    for (word, value) in words(entry).into_iter().zip([
        now,
        happening.kind as u64 | device << DEVICE_SHIFT,
        u64::from(process.pid),
        process.pid_ns,
        u64::from(process.uid),
        happening.bytes,
        happening.charged,
        happening.max,
    ]) {
        word.store(value, Ordering::Relaxed);
    }
    for (word, bytes) in entry.command.iter().zip(process.command.as_chunks::<8>().0) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    entry.stamp.store(number.wrapping_add(1), Ordering::Release);
}

fn words(entry: &EventEntry) -> [&AtomicU64; 8] {
    [
        &entry.time,
        &entry.what,
        &entry.pid,
        &entry.pid_ns,
        &entry.uid,
        &entry.bytes,
        &entry.charged,
        &entry.max,
    ]
}

pub(super) fn read(ring: &Ring, since: u64) -> Vec<Event> {
    let head = ring.head.load(Ordering::Acquire);
    let first = since.max(head.saturating_sub(EVENTS as u64));
    (first..head)
        .filter_map(|number| one(ring, number))
        .collect()
}

/// `None` when the entry is another one, or being written.
fn one(ring: &Ring, number: u64) -> Option<Event> {
    let entry = &ring.entries[(number % EVENTS as u64) as usize];
    let stamp = number.wrapping_add(1);
    if entry.stamp.load(Ordering::Acquire) != stamp {
        return None;
    }
    let [time_us, what, pid, pid_ns, uid, bytes, charged, max] =
        words(entry).map(|word| word.load(Ordering::Relaxed));
    let mut command = [0; 64];
    for (bytes, word) in command
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(&entry.command)
    {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
    const { assert!(EVENT_COMMAND_WORDS * 8 <= 64) };
    fence(Ordering::Acquire);
    if entry.stamp.load(Ordering::Relaxed) != stamp {
        return None;
    }
    let kind = what & ((1 << DEVICE_SHIFT) - 1);
    let kind = EventKind::ALL
        .into_iter()
        .find(|known| *known as u64 == kind)?;
    Some(Event {
        number,
        time_us,
        what: Happening {
            kind,
            device: ((what >> DEVICE_SHIFT) as usize)
                .checked_sub(1)
                .and_then(DeviceIndex::new),
            process: Identity {
                pid: pid as u32,
                pid_ns,
                start_time: 0,
                uid: uid as u32,
                command,
            },
            bytes,
            charged,
            max,
        },
    })
}
