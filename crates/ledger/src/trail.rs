//! The trail: the most recent events of a lasting group and of the groups below it, in the ledger
//! of the lasting group. The trail keeps the events of groups that are gone.
//!
//! Entries have stamps, as in `events`. The space for the trail is reserved page by page, when an
//! event first needs a page. If the file system has no room, the event is left out. Readers touch
//! only reserved pages.

use super::atomic::{AtomicU64, Ordering, fence};
use super::events::{now_us, pack, unpack};
use super::layout::{self, HOLDERS, Holder, TRAIL, TrailEntry, load_bytes, store_bytes};
use super::{DeviceIndex, Event, Happening, Ledger, charge, os};
use gpulimit_base::identity::Identity;

/// Why a process was killed.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(u64)]
pub enum Cause {
    /// The group had no room for a request, and its options say that processes are killed then.
    Oom = 1,
    /// A user has sent a signal to the process.
    Command = 2,
}

impl Cause {
    /// Returns the name of the cause, as users see it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Command => "command",
        }
    }

    fn of(word: u64) -> Option<Self> {
        let mut known = [Self::Oom, Self::Command].into_iter();
        known.find(|cause| *cause as u64 == word)
    }
}

/// A process and its bytes.
#[derive(Copy, Clone, Debug)]
pub struct Holding {
    /// The process. In an event that was read, the command is cut off after 16 bytes, and the pid
    /// namespace and the start time are 0.
    pub process: Identity,
    /// Bytes that the process uses, or has requested.
    pub bytes: u64,
}

/// What the trail stores of an event besides the event itself.
#[derive(Copy, Clone, Debug, Default)]
pub struct Details<'a> {
    /// The name of the group where the event happened, relative to the group of the trail. Empty
    /// for that group itself.
    pub group: &'a str,
    /// The name of the function that made the request; empty if unknown.
    pub function: &'a str,
    /// The processes that used the most memory at the time of the event.
    pub holders: [Option<Holding>; HOLDERS],
    /// Why a process was killed.
    pub cause: Option<Cause>,
    /// The process that requested a kill.
    pub by: Option<Holding>,
}

/// An event that was read from a trail.
#[derive(Clone, Debug)]
pub struct TrailEvent {
    /// The event's number in the trail.
    pub number: u64,
    /// The event, with its number in the ring of its group. Its device is one of the ledger with
    /// the trail.
    pub event: Event,
    /// The name of the group where the event happened, relative to the group of the trail. Has only
    /// characters of group names. If the name is longer than the trail can store, has its end after
    /// [`Self::CUT`].
    pub group: String,
    /// The name of the function that made the request; empty if unknown.
    pub function: String,
    /// The processes that used the most memory, the largest first.
    pub holders: Vec<Holding>,
    /// Why a process was killed.
    pub cause: Option<Cause>,
    /// The process that requested a kill.
    pub by: Option<Holding>,
}

impl TrailEvent {
    /// The first character of the name of a group whose beginning is cut off.
    pub const CUT: char = '~';
}

/// Number of attempts to take a number for an event.
const ATTEMPTS: u32 = 16;
/// How far the time of an event can be in the future: the wall clock may have been set back by that
/// much. Readers leave out later events.
const AHEAD_US: u64 = 60_000_000;
/// Number of entries in a page.
const IN_PAGE: u64 = 4096 / size_of::<TrailEntry>() as u64;

impl Ledger {
    /// Adds an event of `group`'s ledger to this ledger's trail, if there is one and the file
    /// system has room.
    pub(super) fn add_to_trail(
        &self,
        group: &Self,
        in_ring: u64,
        time_us: u64,
        happening: &Happening,
        details: &Details<'_>,
    ) {
        if !self.keeps_history() || !self.map.writable() || self.map.is_lost() {
            return;
        }
        let device = match happening.device {
            Some(index) if !std::ptr::eq(self, group) => group
                .device_entry(index)
                .and_then(|entry| self.device(entry.id, entry.capacity).ok()),
            device => device,
        };
        let Some(number) = self.take_number() else {
            return;
        };
        let entry = &self.content().trail.entries[place(number)];
        entry.stamp.store(0, Ordering::Relaxed);
        // See `events::record`.
        fence(Ordering::Release);
        let process = &happening.process;
        for (word, value) in words(entry).into_iter().zip([
            time_us,
            pack(happening.kind, device),
            u64::from(process.pid),
            process.pid_ns,
            u64::from(process.uid),
            happening.bytes,
            happening.charged,
            happening.max,
            in_ring,
            details.cause.map_or(0, |cause| cause as u64),
        ]) {
            word.store(value, Ordering::Relaxed);
        }
        store_bytes(&entry.command, &process.command);
        store_bytes(&entry.function, details.function.as_bytes());
        store_name(&entry.group, details.group.as_bytes());
        entry.by.store(details.by.as_ref());
        for (holder, holding) in entry.holders.iter().zip(&details.holders) {
            holder.store(holding.as_ref());
        }
        entry.stamp.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Takes the number of a new event. Reserves the page of the event's entry first; returns
    /// `None` if the file system has no room.
    fn take_number(&self) -> Option<u64> {
        let head = &self.header().trail_head;
        let mut number = head.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS {
            self.reserve_trail(place(number) as u64)?;
            let next = number.wrapping_add(1);
            match head.compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(number),
                Err(now) => number = now,
            }
        }
        None
    }

    /// Reserves space for the trail up to the page of an entry.
    fn reserve_trail(&self, entry: u64) -> Option<()> {
        let reserved = &self.header().trail_reserved;
        let from = reserved.load(Ordering::Relaxed) / IN_PAGE * IN_PAGE;
        if entry < from {
            return Some(());
        }
        let end = (entry / IN_PAGE + 1) * IN_PAGE;
        let file = self.place.open(true).ok()?;
        let offset = |entry: u64| layout::trail_offset(entry as usize);
        os::reserve(&file, offset(from), offset(end) - offset(from)).ok()?;
        reserved.fetch_max(end, Ordering::Relaxed);
        Some(())
    }

    /// Returns the number of events in the trail so far.
    pub fn trail_head(&self) -> u64 {
        self.header().trail_head.load(Ordering::Acquire)
    }

    /// Returns the events of the trail whose number is `since` or higher, oldest first. Any member
    /// can write any entry, so impossible entries are left out. A ledger without a trail has no
    /// events in it.
    pub fn trail(&self, since: u64) -> Vec<TrailEvent> {
        let head = self.trail_head();
        let first = since.max(head.saturating_sub(TRAIL as u64));
        let until = now_us().saturating_add(AHEAD_US);
        let reserved = self.header().trail_reserved.load(Ordering::Relaxed);
        (first..head)
            .filter(|number| (place(*number) as u64) < reserved)
            .filter_map(|number| self.one_of_trail(number))
            .filter(|event| event.event.time_us <= until)
            .collect()
    }

    fn one_of_trail(&self, number: u64) -> Option<TrailEvent> {
        let entry = &self.content().trail.entries[place(number)];
        let stamp = number.wrapping_add(1);
        if entry.stamp.load(Ordering::Acquire) != stamp {
            return None;
        }
        let [
            time_us,
            what,
            pid,
            pid_ns,
            uid,
            bytes,
            charged,
            max,
            in_ring,
            cause,
        ] = words(entry).map(|word| word.load(Ordering::Relaxed));
        let command = load_bytes(&entry.command);
        let function: [u8; 8 * layout::FUNCTION_WORDS] = load_bytes(&entry.function);
        let group: [u8; GROUP_BYTES] = load_bytes(&entry.group);
        let holders: Vec<Holding> = entry.holders.iter().filter_map(Holder::load).collect();
        let by = entry.by.load();
        fence(Ordering::Acquire);
        if entry.stamp.load(Ordering::Relaxed) != stamp {
            return None;
        }
        let (kind, device) = unpack(what)?;
        let process = Identity {
            pid: u32::try_from(pid).ok()?,
            pid_ns,
            start_time: 0,
            uid: u32::try_from(uid).ok()?,
            command,
        };
        let what = Happening {
            kind,
            device,
            process,
            bytes,
            charged,
            max,
        };
        Some(TrailEvent {
            number,
            event: Event {
                number: in_ring,
                time_us,
                what,
            },
            group: text(&group, "._-/~")?,
            function: text(&function, "_")?,
            holders,
            cause: Cause::of(cause),
            by,
        })
    }

    /// Returns the processes that use the most memory of a device, the largest first. Looks at each
    /// slot once, and allocates no memory.
    pub fn largest(&self, device: DeviceIndex) -> [Option<Holding>; HOLDERS] {
        let mut most = [(0, 0); HOLDERS];
        for slot in 0..self.high_water() {
            let charge = self.charge(slot, device);
            let units = charge::granted(charge.word.load(Ordering::Relaxed));
            let bytes = units.saturating_mul(charge::UNIT);
            let in_use = bytes.saturating_sub(charge.idle.load(Ordering::Relaxed));
            if let Some(at) = most.iter().position(|(bytes, _)| in_use > *bytes) {
                most[at..].rotate_right(1);
                most[at] = (in_use, slot);
            }
        }
        most.map(|(bytes, slot)| {
            let process = (bytes > 0).then(|| self.owner(slot)).flatten()?;
            Some(Holding { process, bytes })
        })
    }
}

impl Holder {
    fn store(&self, holding: Option<&Holding>) {
        let (pid, uid, bytes) = holding.map_or((0, 0, 0), |Holding { process, bytes }| {
            (u64::from(process.pid), u64::from(process.uid), *bytes)
        });
        self.pid.store(pid, Ordering::Relaxed);
        self.uid.store(uid, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        let command = holding.map_or(&[][..], |holding| &holding.process.command);
        store_bytes(&self.command, command);
    }

    /// Returns the process and its bytes; `None` if there is none.
    fn load(&self) -> Option<Holding> {
        let number = |word: &AtomicU64| u32::try_from(word.load(Ordering::Relaxed)).ok();
        let pid = number(&self.pid).filter(|pid| *pid != 0)?;
        Some(Holding {
            process: Identity {
                pid,
                pid_ns: 0,
                start_time: 0,
                uid: number(&self.uid)?,
                command: load_bytes(&self.command),
            },
            bytes: self.bytes.load(Ordering::Relaxed),
        })
    }
}

const GROUP_BYTES: usize = 8 * layout::TRAIL_GROUP_WORDS;

/// Returns the index of the entry of an event.
const fn place(number: u64) -> usize {
    (number % TRAIL as u64) as usize
}

fn words(entry: &TrailEntry) -> [&AtomicU64; 10] {
    [
        &entry.time,
        &entry.what,
        &entry.pid,
        &entry.pid_ns,
        &entry.uid,
        &entry.bytes,
        &entry.charged,
        &entry.max,
        &entry.in_ring,
        &entry.cause,
    ]
}

/// Stores the name of a group. Of a name that does not fit, stores [`TrailEvent::CUT`] and the end.
fn store_name(words: &[AtomicU64], name: &[u8]) {
    match name.len().checked_sub(GROUP_BYTES) {
        None | Some(0) => store_bytes(words, name),
        Some(more) => {
            let mut cut = [TrailEvent::CUT as u8; GROUP_BYTES];
            cut[1..].copy_from_slice(&name[more + 1..]);
            store_bytes(words, &cut);
        }
    }
}

/// Returns a text that is padded with zeros; `None` if it has characters that are neither ASCII
/// letters or digits nor in `others`.
fn text(bytes: &[u8], others: &str) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = std::str::from_utf8(&bytes[..end.unwrap_or(bytes.len())]).ok()?;
    let known = |char: char| char.is_ascii_alphanumeric() || others.contains(char);
    text.chars().all(known).then(|| text.to_owned())
}

#[cfg(all(test, not(loom)))]
mod tests;
