//! The trail: the most recent events of a lasting group and of the groups below it, in the ledger
//! of the lasting group. The trail keeps the events of groups that are gone.
//!
//! An entry begins like one of `events`, and adds details. The space for the trail is reserved page
//! by page, when an event first needs a page. If the file system has no room, the event is left
//! out. Readers touch only reserved pages.

mod repeats;

pub(super) use repeats::Recent;

use super::atomic::{AtomicU64, Ordering, Word};
use super::events::pack;
use super::layout::{self, HOLDERS, Holder, TRAIL, TrailEntry, load_bytes, store_bytes};
use super::{DeviceIndex, Event, Happening, Ledger, charge, os, stamp};
use gpulimit_base::identity::Identity;

/// Why a process was killed, or a request refused.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
#[repr(u64)]
pub enum Cause {
    /// The group had no room for a request, and its options say that processes are killed then.
    Oom = 1,
    /// A user has sent a signal to the process.
    Command = 2,
    /// The request did not fit in the group's limit.
    #[default]
    Limit = 3,
    /// The request did not fit in the group's limit, and the processes that hold the memory wait
    /// for each other.
    Standstill = 4,
    /// The group's limit is smaller than a CUDA context.
    Context = 5,
    /// The request was larger than the GPU.
    Capacity = 6,
    /// The group had room, and the GPU had not: processes outside this process's groups hold the
    /// memory.
    Outside = 7,
    /// The group and the GPU had room, and the driver refused: memory of the host, an address space
    /// or a container was full.
    Host = 8,
    /// After the request, less would be free on the GPU than `keep_free` keeps.
    KeepFree = 9,
    /// The request waited for room in the group, and a signal to the process ended the wait.
    Signal = 10,
}

impl Cause {
    /// All causes with their names.
    const ALL: [(Self, &str); 10] = [
        (Self::Oom, "oom"),
        (Self::Command, "command"),
        (Self::Limit, "limit"),
        (Self::Standstill, "standstill"),
        (Self::Context, "context"),
        (Self::Capacity, "capacity"),
        (Self::Outside, "outside"),
        (Self::Host, "host"),
        (Self::KeepFree, "keep_free"),
        (Self::Signal, "signal"),
    ];

    /// Returns the name of the cause, as users see it.
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(cause, _)| *cause == self);
        named.map_or("", |(_, name)| name)
    }

    fn of(word: u64) -> Option<Self> {
        let mut all = Self::ALL.into_iter().map(|(cause, _)| cause);
        all.find(|cause| *cause as u64 == word)
    }
}

/// A process and its bytes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Holding {
    /// The process. In an event that was read, the command is cut off after 16 bytes, and the pid
    /// namespace and the start time are 0.
    pub process: Identity,
    /// Bytes that the process uses, or has requested.
    pub bytes: u64,
    /// Bytes that are charged to the process, and that it does not use.
    pub reserve: u64,
    /// Bytes of the process that lie on the host while it is suspended.
    pub suspended: u64,
    /// Whether the process gives memory in use back when it is asked.
    pub is_registered: bool,
}

impl Holding {
    /// Returns a process with bytes in use, and nothing else.
    pub const fn new(process: Identity, bytes: u64) -> Self {
        Self {
            process,
            bytes,
            reserve: 0,
            suspended: 0,
            is_registered: false,
        }
    }
}

/// The memory of a device that is used, and not charged to any group of the process.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Outside {
    /// Bytes in use.
    pub bytes: u64,
    /// The largest processes as far as they are known, with what NVML says that they use.
    pub holders: [Option<Holding>; HOLDERS],
}

/// What the trail stores of an event besides the event itself.
#[derive(Copy, Clone, Debug, Default)]
pub struct Details<'a> {
    /// The name of the group where the event happened, relative to the group of the trail. Empty
    /// for that group itself.
    pub group: &'a str,
    /// The name of the function that made the request; empty if unknown.
    pub function: &'a str,
    /// The processes that used the most memory of the device at the time of the event: members of
    /// the group, or for [`Cause::Outside`] and [`Cause::KeepFree`] those of [`Outside`].
    pub holders: [Option<Holding>; HOLDERS],
    /// Why a process was killed, or a request refused.
    pub cause: Option<Cause>,
    /// The process that requested a kill, or that has suspended or resumed the process.
    pub by: Option<Holding>,
    /// The number of processes that were asked ([`super::EventKind::Asked`]), or the milliseconds
    /// since then ([`super::EventKind::Given`]).
    pub count: u64,
    /// For a refusal, the bytes of the device that were left: of the group's limit, or for
    /// [`Cause::Outside`], [`Cause::Capacity`] and [`Cause::KeepFree`] of the GPU.
    pub left: u64,
    /// For a refusal by the driver, the bytes of the device that are used outside this process's
    /// groups.
    pub outside: u64,
    /// For a refusal, the bytes of the group's limit that were kept for other groups, or for
    /// [`Cause::KeepFree`] those of the GPU that the group keeps free.
    pub kept: u64,
    /// The name of the process's own group relative to the group of the event; empty for that
    /// group itself.
    pub home: &'a str,
    /// For a refusal, the bytes that would have been charged: a pool grows in steps, and takes more
    /// than the program asks for.
    pub takes: u64,
    /// Whether the program runs under `gpulimit run --explain`, and its Python, if any, has not
    /// read our file.
    pub is_unheard: bool,
    /// The owner of the root where the group is, for the trail of another root: that of the
    /// process's own user, who cannot read the trail where the event is too.
    pub owner: Option<u32>,
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
    /// See [`Details::holders`]; the largest first.
    pub holders: Vec<Holding>,
    /// Why a process was killed, or a request refused.
    pub cause: Option<Cause>,
    /// The process that requested a kill, or that has suspended or resumed the process.
    pub by: Option<Holding>,
    /// See [`Details::left`].
    pub left: u64,
    /// See [`Details::outside`].
    pub outside: u64,
    /// See [`Details::kept`].
    pub kept: u64,
    /// See [`Details::home`]. Like [`Self::group`].
    pub home: String,
    /// See [`Details::takes`].
    pub takes: u64,
    /// See [`Details::is_unheard`].
    pub is_unheard: bool,
    /// See [`Details::owner`].
    pub owner: Option<u32>,
    /// Number of later events that share the entry: equal ones of the same process. The figures
    /// are those of the last one, and the number in the ring that of the first.
    pub repeats: u64,
    /// The time of the last of these events, in microseconds since 1970.
    pub last_us: u64,
}

/// The properties that equal events share, in the form in which an entry stores them.
struct Key<'a> {
    what: u64,
    cause: u64,
    process: &'a Identity,
    function: [u8; FUNCTION_BYTES],
    group: [u8; GROUP_BYTES],
}

impl TrailEvent {
    /// The first character of the name of a group whose beginning is cut off.
    pub const CUT: char = '~';
}

/// Number of attempts to take a number for an event.
const ATTEMPTS: u32 = 16;
/// The latest time of an event: the end of the year 9999. Any member can write any time, so later
/// ones are left out. Other times of the future are shown: the wall clock may have been wrong,
/// and been set back.
pub(super) const LATEST_US: u64 = 253_402_300_799_999_999;
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
        if !self.keeps_trail() || !self.map.writable() || self.map.is_lost() {
            return;
        }
        let device = match happening.device {
            Some(index) if !std::ptr::eq(self, group) => group
                .device_entry(index)
                .and_then(|entry| self.device(entry.id, entry.capacity).ok()),
            device => device,
        };
        let happening = &Happening {
            device,
            ..*happening
        };
        let key = Key {
            what: pack(happening.kind, device),
            cause: details.cause.map_or(0, |cause| cause as u64),
            process: &happening.process,
            function: padded(details.function.as_bytes()),
            group: end_of(details.group.as_bytes()),
        };
        let owner = details.owner.map_or(0, |uid| u64::from(uid) + 1);
        let write = |entry: &TrailEntry, first_us| {
            entry.event.store(first_us, happening, details.count);
            for (word, value) in [
                (&entry.last, time_us),
                (&entry.cause, key.cause),
                (&entry.left, details.left),
                (&entry.outside, details.outside),
                (&entry.owner, owner),
                (&entry.kept, details.kept),
                (&entry.takes, details.takes),
                (&entry.is_unheard, details.is_unheard.into()),
            ] {
                word.store(value, Ordering::Relaxed);
            }
            for (holder, holding) in entry.holders.iter().zip(&details.holders) {
                holder.store(holding.as_ref());
            }
        };
        if let Some(entry) = self.repeated(happening.kind, time_us, &key) {
            // The first time and the numbers stay. A reader may see figures of two of the events.
            write(entry, entry.event.time.load(Ordering::Relaxed));
            entry.repeats.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let reserve = |number| self.reserve_trail(place(number) as u64);
        let Some(number) = take_number(&self.header().trail_head, reserve) else {
            return;
        };
        let entry = self.trail_entry(number);
        stamp::write(&entry.event.stamp, number, || {
            write(entry, time_us);
            entry.in_ring.store(in_ring, Ordering::Relaxed);
            entry.repeats.store(0, Ordering::Relaxed);
            store_bytes(&entry.function, &key.function);
            store_bytes(&entry.group, &key.group);
            store_bytes(&entry.home, &end_of(details.home.as_bytes()));
            entry.by.store(details.by.as_ref());
        });
        self.remember(happening.kind, number);
    }

    fn trail_entry(&self, number: u64) -> &TrailEntry {
        &self.content().trail.entries[place(number)]
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
        let reserved = self.header().trail_reserved.load(Ordering::Relaxed);
        (first..head)
            .filter(|number| (place(*number) as u64) < reserved)
            .filter_map(|number| {
                let entry = self.trail_entry(number);
                stamp::read(&entry.event.stamp, number, || entry.load(number))?
            })
            .collect()
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
            let page = &self.content().slots[slot];
            let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
            Some(Holding {
                process,
                bytes,
                reserve: load(&self.charge(slot, device).idle),
                suspended: load(&page.stats[device.get()].suspended),
                is_registered: load(&page.pressure.registered) != 0,
            })
        })
    }
}

/// Takes the number of a new event from `head`. Calls `reserve` first, which reserves space for the
/// event; returns `None` if that fails.
pub(super) fn take_number(
    head: &impl Word,
    mut reserve: impl FnMut(u64) -> Option<()>,
) -> Option<u64> {
    let mut number = head.load(Ordering::Relaxed);
    for _ in 0..ATTEMPTS {
        reserve(number)?;
        match head.replace(number, number.wrapping_add(1), Ordering::Relaxed) {
            Ok(_) => return Some(number),
            Err(now) => number = now,
        }
    }
    None
}

impl TrailEntry {
    /// Reads event `number` of the trail; `None` for an impossible one.
    fn load(&self, number: u64) -> Option<TrailEvent> {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let event = Event {
            number: read(&self.in_ring),
            ..self.event.load(number)?
        };
        let name = |words| text(&load_bytes::<GROUP_BYTES>(words), "._-/~");
        let (repeats, last_us) = self.repeats_of(&event);
        Some(TrailEvent {
            number,
            event,
            group: name(&self.group)?,
            home: name(&self.home)?,
            function: text(&load_bytes::<FUNCTION_BYTES>(&self.function), "_")?,
            holders: self.holders.iter().filter_map(Holder::load).collect(),
            cause: Cause::of(read(&self.cause)),
            by: self.by.load(),
            left: read(&self.left),
            outside: read(&self.outside),
            kept: read(&self.kept),
            takes: read(&self.takes),
            is_unheard: read(&self.is_unheard) != 0,
            owner: (read(&self.owner).checked_sub(1)).and_then(|uid| uid.try_into().ok()),
            repeats,
            last_us,
        })
    }
}

impl Holder {
    fn store(&self, holding: Option<&Holding>) {
        let values = holding.map_or([0; 6], |holding| {
            [
                u64::from(holding.process.pid),
                u64::from(holding.process.uid),
                holding.bytes,
                holding.reserve,
                holding.suspended,
                u64::from(holding.is_registered),
            ]
        });
        for (word, value) in self.words().into_iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        let command = holding.map_or(&[][..], |holding| &holding.process.command);
        store_bytes(&self.command, command);
    }

    /// Returns the process and its bytes; `None` if there is none.
    fn load(&self) -> Option<Holding> {
        let words = self.words().map(|word| word.load(Ordering::Relaxed));
        let [pid, uid, bytes, reserve, suspended, registered] = words;
        let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0)?;
        Some(Holding {
            process: Identity {
                pid,
                pid_ns: 0,
                start_time: 0,
                uid: uid.try_into().ok()?,
                command: load_bytes(&self.command),
            },
            bytes,
            reserve,
            suspended,
            is_registered: registered != 0,
        })
    }

    fn words(&self) -> [&AtomicU64; 6] {
        [
            &self.pid,
            &self.uid,
            &self.bytes,
            &self.reserve,
            &self.suspended,
            &self.registered,
        ]
    }
}

const FUNCTION_BYTES: usize = 8 * layout::FUNCTION_WORDS;
const GROUP_BYTES: usize = 8 * layout::TRAIL_GROUP_WORDS;

/// Returns the index of the entry of an event.
const fn place(number: u64) -> usize {
    (number % TRAIL as u64) as usize
}

/// Returns bytes padded with zeros. Bytes that do not fit are cut off.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    for (to, from) in padded.iter_mut().zip(bytes) {
        *to = *from;
    }
    padded
}

/// Returns the name of a group padded with zeros. Of a name that does not fit, returns
/// [`TrailEvent::CUT`] and the end.
fn end_of(name: &[u8]) -> [u8; GROUP_BYTES] {
    match name.len().checked_sub(GROUP_BYTES) {
        None | Some(0) => padded(name),
        Some(more) => {
            let mut cut = [TrailEvent::CUT as u8; GROUP_BYTES];
            cut[1..].copy_from_slice(&name[more + 1..]);
            cut
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
