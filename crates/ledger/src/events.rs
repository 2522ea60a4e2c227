//! The most recent events of a group, in a ring buffer in the group's ledger.
//!
//! A writer takes the next event number, which selects an entry of the ring, and writes the event
//! without a lock. Readers skip an entry whose stamp does not match the number: its writer died
//! halfway or was too slow.

use super::atomic::{AtomicU64, Ordering};
use super::layout::{EVENTS, EventEntry, Ring, load_bytes, store_bytes};
use super::trail::LATEST_US;
use super::{DeviceIndex, stamp};
use gpulimit_base::identity::Identity;

/// The kind of an event.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(u64)]
pub enum EventKind {
    /// A request was refused.
    Refusal = 1,
    /// A request began to wait.
    Wait = 2,
    /// A request that had waited for memory was granted.
    Granted = 3,
    /// Usage passed `high`.
    High = 4,
    /// The memory of a dead process was uncharged.
    Reap = 5,
    /// A process is being killed to make room for a request.
    Kill = 6,
    /// The limits were changed.
    Limits = 7,
    /// Processes are about to be killed to make room for a request.
    Oom = 8,
    /// Processes were asked to give back memory in use.
    Asked = 9,
    /// Processes that were asked have given memory back, or the time for it is over.
    Given = 10,
    /// The memory of a living process was moved to the host.
    Suspend = 11,
    /// The memory of a suspended process was moved back to the GPU.
    Resume = 12,
    /// The driver could not bring the memory of a suspended process back, and never will.
    Lost = 13,
    /// A process was granted as much as it was refused within the second before.
    Recovered = 14,
    /// A process outside of all groups uses memory of the device.
    Outside = 15,
}

impl EventKind {
    /// All kinds with their names, as users see them.
    pub const ALL: [(Self, &'static str); 15] = [
        (Self::Refusal, "refusal"),
        (Self::Wait, "wait"),
        (Self::Granted, "granted"),
        (Self::High, "high"),
        (Self::Reap, "reap"),
        (Self::Kill, "kill"),
        (Self::Limits, "limits"),
        (Self::Oom, "oom"),
        (Self::Asked, "asked"),
        (Self::Given, "given"),
        (Self::Suspend, "suspend"),
        (Self::Resume, "resume"),
        (Self::Lost, "lost"),
        (Self::Recovered, "recovered"),
        (Self::Outside, "outside"),
    ];

    /// Returns the word `count` of an event; 0 for kinds that do not have it.
    pub(super) fn counted(self, count: u64) -> u64 {
        match self {
            Self::Asked | Self::Given => count,
            _ => 0,
        }
    }

    /// Returns the name of the event kind, as users see it.
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(kind, _)| *kind == self);
        named.map_or("", |(_, name)| name)
    }
}

/// The content of an event. The event gets its number when it is recorded in the ring buffer.
#[derive(Copy, Clone, Debug)]
pub struct Happening {
    /// The kind of the event.
    pub kind: EventKind,
    /// The device that the event is about; `None` for all devices.
    pub device: Option<DeviceIndex>,
    /// The process that the event happened to.
    pub process: Identity,
    /// Bytes that were requested, waited for or uncharged. If the limits were changed, the new
    /// `max`. For [`EventKind::Asked`] the bytes that processes were asked for, for
    /// [`EventKind::Given`] those that they have given back. For [`EventKind::Suspend`],
    /// [`EventKind::Resume`] and [`EventKind::Lost`] the suspended bytes.
    pub bytes: u64,
    /// Bytes charged in the group at the time of the event.
    pub charged: u64,
    /// The group's limit in bytes at the time of the event; `u64::MAX` for no limit or an unknown
    /// one.
    pub max: u64,
}

/// An event that was read from the ring buffer.
#[derive(Copy, Clone, Debug)]
pub struct Event {
    /// The event's number; the events of a group are numbered from 0.
    pub number: u64,
    /// The time of the event by the wall clock, in microseconds since 1970.
    pub time_us: u64,
    /// The event's content. The command is cut off after 32 bytes, and the start time is always 0.
    pub what: Happening,
    /// See [`Details::count`](super::Details::count); 0 for other kinds.
    pub count: u64,
}

const DEVICE_SHIFT: u32 = 32;

/// Takes the number of a new event, and returns the number.
pub(super) fn take(ring: &Ring) -> u64 {
    ring.head.fetch_add(1, Ordering::Relaxed)
}

/// Writes the event whose number was taken.
pub(super) fn record(ring: &Ring, number: u64, time_us: u64, happening: &Happening, count: u64) {
    let entry = &ring.entries[(number % EVENTS as u64) as usize];
    let write = || entry.store(time_us, happening, count);
    stamp::write(&entry.stamp, number, write);
}

/// Returns the time by the wall clock, in microseconds since 1970.
pub(super) fn now_us() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

/// Returns a kind and a device as one word.
pub(super) fn pack(kind: EventKind, device: Option<DeviceIndex>) -> u64 {
    let device = device.map_or(0, |device| device.get() as u64 + 1);
    kind as u64 | device << DEVICE_SHIFT
}

/// Returns the kind and the device of a word that [`pack`] has made; `None` for an unknown kind.
fn unpack(what: u64) -> Option<(EventKind, Option<DeviceIndex>)> {
    let kind = what & ((1 << DEVICE_SHIFT) - 1);
    let mut all = EventKind::ALL.into_iter().map(|(kind, _)| kind);
    let kind = all.find(|known| *known as u64 == kind)?;
    let device = ((what >> DEVICE_SHIFT) as usize).checked_sub(1);
    Some((kind, device.and_then(DeviceIndex::new)))
}

impl EventEntry {
    /// Writes an event, without the stamp.
    pub fn store(&self, time_us: u64, happening: &Happening, count: u64) {
        let process = &happening.process;
        for (word, value) in [
            (&self.time, time_us),
            (&self.what, pack(happening.kind, happening.device)),
            (&self.pid, process.pid.into()),
            (&self.pid_ns, process.pid_ns),
            (&self.uid, process.uid.into()),
            (&self.bytes, happening.bytes),
            (&self.charged, happening.charged),
            (&self.max, happening.max),
            (&self.count, count),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        store_bytes(&self.command, &process.command);
    }

    /// Reads event `number`. Any member can write any entry: returns `None` for an unknown kind, an
    /// impossible process or an impossible time.
    pub fn load(&self, number: u64) -> Option<Event> {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let (kind, device) = unpack(read(&self.what))?;
        let time_us = Some(read(&self.time)).filter(|time| *time <= LATEST_US)?;
        Some(Event {
            number,
            time_us,
            what: Happening {
                kind,
                device,
                process: Identity {
                    pid: read(&self.pid).try_into().ok()?,
                    pid_ns: read(&self.pid_ns),
                    start_time: 0,
                    uid: read(&self.uid).try_into().ok()?,
                    command: load_bytes(&self.command),
                },
                bytes: read(&self.bytes),
                charged: read(&self.charged),
                max: read(&self.max),
            },
            count: kind.counted(read(&self.count)),
        })
    }
}

/// Returns the events whose number is `since` or higher. Leaves out events that a newer one has
/// replaced, that a process is writing, and that are impossible.
pub(super) fn read(ring: &Ring, since: u64) -> Vec<Event> {
    let head = ring.head.load(Ordering::Acquire);
    let first = since.max(head.saturating_sub(EVENTS as u64));
    (first..head)
        .filter_map(|number| {
            let entry = &ring.entries[(number % EVENTS as u64) as usize];
            stamp::read(&entry.stamp, number, || entry.load(number))?
        })
        .collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn happening(bytes: u64) -> Happening {
        Happening {
            kind: EventKind::Refusal,
            device: None,
            process: Identity::of_self(),
            bytes,
            charged: 0,
            max: 0,
        }
    }

    fn numbers(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn events_are_counted_by_kind_beyond_the_ring() {
        let scratch = Scratch::new();
        for _ in 0..EVENTS + 5 {
            scratch.record(&happening(1));
        }
        assert_eq!(scratch.event_count(EventKind::Refusal), EVENTS as u64 + 5);
        assert_eq!(scratch.event_count(EventKind::Kill), 0);
        scratch.readonly().record(&happening(1));
        assert_eq!(scratch.event_count(EventKind::Refusal), EVENTS as u64 + 5);
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let scratch = Scratch::new();
        let devices = [None, DeviceIndex::new(0), DeviceIndex::new(31)];
        let before = std::time::SystemTime::now();
        for (kind, _) in EventKind::ALL {
            for device in devices {
                scratch.record(&Happening {
                    kind,
                    device,
                    process: Identity {
                        pid: 4711,
                        pid_ns: 1 << 40,
                        start_time: 5,
                        uid: u32::MAX,
                        command: [b'x'; 64],
                    },
                    bytes: 1 << 50,
                    charged: 2,
                    max: u64::MAX,
                });
            }
        }
        let events = scratch.events(0);
        let wanted = EventKind::ALL
            .iter()
            .flat_map(|(kind, _)| devices.map(|device| (*kind, device)));
        assert!(
            events
                .iter()
                .map(|event| (event.what.kind, event.what.device))
                .eq(wanted)
        );
        let count = EventKind::ALL.len() * devices.len();
        assert!(numbers(&events).into_iter().eq(0..count as u64));
        let what = &events[count - 1].what;
        assert_eq!((what.bytes, what.charged, what.max), (1 << 50, 2, u64::MAX));
        let process = &what.process;
        assert_eq!(
            (process.pid, process.pid_ns, process.uid),
            (4711, 1 << 40, u32::MAX)
        );
        assert_eq!(process.start_time, 0, "not stored");
        assert_eq!(process.command().to_string(), "x".repeat(32));
        let since = before
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        assert!(u128::from(events[0].time_us) >= since.as_micros());
    }

    #[test]
    fn the_most_recent_events_are_kept_and_can_be_followed() {
        let scratch = Scratch::new();
        let all = EVENTS as u64 * 2 + 7;
        for bytes in 0..all {
            scratch.record(&happening(bytes));
        }
        let events = scratch.events(0);
        assert!(numbers(&events).into_iter().eq(EVENTS as u64 + 7..all));
        assert!(events.iter().all(|event| event.what.bytes == event.number));
        assert_eq!(numbers(&scratch.events(all - 2)), [all - 2, all - 1]);
        assert!(scratch.events(all).is_empty());
    }

    #[test]
    fn incomplete_events_and_unknown_kinds_are_skipped() {
        let scratch = Scratch::new();
        let ring = &scratch.content().header.ring;
        for bytes in 0..4 {
            scratch.record(&happening(bytes));
        }
        ring.entries[1].stamp.store(0, Ordering::Relaxed);
        ring.entries[2].what.store(99, Ordering::Relaxed);
        assert_eq!(numbers(&scratch.events(0)), [0, 3]);
        scratch.readonly().record(&happening(4));
        assert_eq!(
            scratch.events(0).len(),
            2,
            "a ledger opened for reading records no event"
        );
    }

    #[test]
    fn only_impossible_times_are_skipped() {
        let scratch = Scratch::new();
        let ring = &scratch.content().header.ring;
        for bytes in 0..4 {
            scratch.record(&happening(bytes));
        }
        let tomorrow = now_us() + 86_400_000_000;
        for (entry, time) in [(1, tomorrow), (2, LATEST_US + 1), (3, u64::MAX)] {
            ring.entries[entry].time.store(time, Ordering::Relaxed);
        }
        assert_eq!(numbers(&scratch.events(0)), [0, 1]);
    }

    #[test]
    fn event_kinds_have_distinct_names() {
        let names: std::collections::BTreeSet<_> = EventKind::ALL.map(|(_, name)| name).into();
        assert_eq!(names.len(), EventKind::ALL.len());
        assert_eq!(EventKind::Kill.name(), "kill");
    }
}
