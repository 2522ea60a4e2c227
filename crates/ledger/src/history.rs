//! The history of a group: for each device the largest and the smallest usage of past periods, and
//! the memory that each user has used over time.
//!
//! Members write the history while they charge; no process samples. A period is a second, a minute
//! or a quarter of an hour, and the ledger keeps a ring of each. A word of a ring holds the number
//! of its period, so a member that writes to a new period replaces what an older one has left. All
//! words are written by single compare-and-swaps: a member that dies or stops in between leaves at
//! most one of three rings without its figure.
//!
//! A charge has just read the charges of the group, so it records the usage after and before it.
//! The first change in a second, charge or release, records the usage before it. Between two
//! charges usage only falls. A release leaves its time in its slot, and does not read the usage:
//! the smallest usage of a period is known only as far as charges followed.
//!
//! Times are those of the wall clock, because the monotonic clocks of two processes differ if their
//! time namespaces differ. If the wall clock was set back, words from the future are replaced.
//! A process measures its byte-seconds by the monotonic clock, which no step of the wall clock
//! changes and which stands still while the machine sleeps. Only the time since the last change of
//! a charge is measured by the wall clock, which readers share with the process.
//!
//! The kernel does not say when a killed process has died. Its charge surely counts up to the last
//! sign of life: the last change of the charge, or the last look of another process that found it
//! alive. Up to the first look that found it dead, the charge is uncertain.

use super::atomic::{AtomicU64, Ordering, Word};
use super::charge::{self, UNIT};
use super::layout::{self, Bucket, DeviceHistory, Lasting, UserBill};
use super::lock::Description;
use super::{DeviceIndex, Ledger, file, moment, os};
use std::collections::BTreeMap;

/// The lengths of the periods of the history.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Resolution {
    /// Ten minutes, in seconds.
    Seconds,
    /// A day, in minutes.
    Minutes,
    /// A week, in quarters of an hour.
    Quarters,
}

impl Resolution {
    /// All resolutions, from the finest to the coarsest.
    pub const ALL: [Self; 3] = [Self::Seconds, Self::Minutes, Self::Quarters];

    /// Returns the length of a period in seconds.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Seconds => 1,
            Self::Minutes => 60,
            Self::Quarters => 900,
        }
    }

    /// Returns the number of periods that the ledger keeps.
    pub fn periods(self) -> usize {
        match self {
            Self::Seconds => 600,
            Self::Minutes => 1_440,
            Self::Quarters => 672,
        }
    }

    fn ring(self, history: &DeviceHistory) -> &[Bucket] {
        match self {
            Self::Seconds => &history.seconds,
            Self::Minutes => &history.minutes,
            Self::Quarters => &history.quarters,
        }
    }
}

/// The usage of one device in one past period.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Period {
    /// Begin of the period, in seconds since 1970.
    pub start: u64,
    /// The largest and the smallest usage in bytes; `None` if no member charged in this period.
    pub usage: Option<Extremes>,
    /// Number of refused requests; at most 4,095 are counted.
    pub refusals: u32,
    /// Seconds for which requests waited that ended in this period; at most 4,095 are counted.
    pub waited: u32,
    /// Number of processes that were killed to make room; at most 255 are counted.
    pub kills: u32,
}

impl Period {
    /// The most refusals, and the most seconds of waiting, that a period counts.
    pub const MOST: u32 = 0xfff;
}

/// The largest and the smallest usage of a period, in bytes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Extremes {
    /// The largest usage.
    pub max: u64,
    /// The smallest usage.
    pub min: u64,
}

/// The memory that a user's processes have used over time on one device.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Bill {
    /// The user id; `None` for all users that did not fit into the ledger's table.
    pub uid: Option<u32>,
    /// The device.
    pub device: DeviceIndex,
    /// Charged bytes times seconds, as far as the processes surely lived.
    pub byte_seconds: u128,
    /// Charged bytes times seconds in which killed processes may have lived.
    pub uncertain: u128,
}

/// A charge over time, in units times milliseconds: a sure and an uncertain part.
type Spent = [u64; 2];

/// An event that is counted in the history.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Count {
    Refusal,
    WaitedSeconds(u64),
    Kill,
}

impl Count {
    /// Returns the lowest bit and the largest value of the count in [`Bucket::counts`].
    const fn field(self) -> (u32, u64) {
        match self {
            Self::Refusal => (0, Period::MOST as u64),
            Self::WaitedSeconds(_) => (12, Period::MOST as u64),
            Self::Kill => (24, 0xff),
        }
    }

    fn add(self, counts: u64) -> u64 {
        let (shift, most) = self.field();
        let more = match self {
            Self::WaitedSeconds(seconds) => seconds,
            Self::Refusal | Self::Kill => 1,
        };
        let before = counts >> shift & most;
        let after = before.saturating_add(more).min(most);
        counts & !(most << shift) | after << shift
    }

    fn of(self, counts: u64) -> u32 {
        let (shift, most) = self.field();
        (counts >> shift & most) as u32
    }
}

/// Bits of a word for the period's number; the others hold the word's value.
const PERIOD_SHIFT: u32 = 32;
const VALUE: u64 = (1 << PERIOD_SHIFT) - 1;
/// Number of attempts to write a word. An attempt fails if another member has written the word
/// meanwhile. A member that writes without pause could otherwise make the others loop.
const ATTEMPTS: u32 = 16;
/// Number of periods by which a word can be ahead of the clock of the process that reads it: the
/// coarse clocks of two processors can differ by some milliseconds.
const AHEAD: u64 = 1;

/// Changes a word's value for the period: `change` gets the value, or `None` if the word has no
/// value for this period, and returns the new value, or `None` to leave the word. Drops the change
/// if the word already belongs to the next period.
pub(super) fn change(word: &impl Word, period: u64, change: impl Fn(Option<u64>) -> Option<u64>) {
    let mut seen = word.load(Ordering::Relaxed);
    for _ in 0..ATTEMPTS {
        let theirs = seen >> PERIOD_SHIFT;
        if theirs > period && theirs <= period + AHEAD {
            return;
        }
        let value = (theirs == period).then_some(seen & VALUE);
        let Some(value) = change(value) else {
            return;
        };
        let wanted = period << PERIOD_SHIFT | value.min(VALUE);
        match word.replace(seen, wanted, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Returns the value of a word for the period; `None` if the word belongs to another period.
pub(super) fn value(word: &impl Word, period: u64) -> Option<u64> {
    let word = word.load(Ordering::Relaxed);
    (word >> PERIOD_SHIFT == period).then_some(word & VALUE)
}

/// Returns a ring's bucket at a time in seconds since 1970, and the number of its period.
fn bucket(history: &DeviceHistory, resolution: Resolution, second: u64) -> (&Bucket, u64) {
    let period = second / resolution.seconds();
    let ring = resolution.ring(history);
    (&ring[period as usize % ring.len()], period)
}

/// Returns whether a largest and a smallest usage of a second in units change nothing in the words
/// of this second.
#[inline(always)]
pub(super) fn includes(words: [&AtomicU64; 2], second: u64, max: u64, min: u64) -> bool {
    let [most, least] = words;
    // Words of other periods become larger than any value.
    let value = |word: &AtomicU64| word.load(Ordering::Relaxed) ^ second << PERIOD_SHIFT;
    (max..=VALUE).contains(&value(most)) && value(least) <= min
}

impl DeviceHistory {
    /// Returns the words of the largest and the smallest usage of a second.
    fn extremes(&self, second: u64) -> [&AtomicU64; 2] {
        let (Bucket { max, min, .. }, _) = bucket(self, Resolution::Seconds, second);
        [max, min]
    }

    /// Adds a largest and a smallest usage, in units. The ring of seconds comes last: what it
    /// includes, the others include too.
    fn note(&self, second: u64, max: u64, min: u64) {
        for resolution in Resolution::ALL.into_iter().rev() {
            let (bucket, period) = bucket(self, resolution, second);
            let raised = |known: Option<u64>| known.is_none_or(|known| max > known).then_some(max);
            let lowered = |known: Option<u64>| known.is_none_or(|known| min < known).then_some(min);
            change(&bucket.max, period, raised);
            change(&bucket.min, period, lowered);
        }
    }

    fn count(&self, second: u64, count: Count) {
        for resolution in Resolution::ALL {
            let (bucket, period) = bucket(self, resolution, second);
            change(&bucket.counts, period, |known| {
                Some(count.add(known.unwrap_or(0)))
            });
        }
    }

    /// Returns the periods of a ring that have a figure, oldest first. Any member can write any
    /// word, so words of the future and of periods that the ring no longer holds are left out.
    fn read(&self, resolution: Resolution, now: u64) -> Vec<Period> {
        let last = now / resolution.seconds() + AHEAD;
        let ring = resolution.ring(self);
        let first = (last + 1).saturating_sub(ring.len() as u64);
        (first..=last)
            .filter_map(|period| {
                let bucket = &ring[period as usize % ring.len()];
                let max = value(&bucket.max, period);
                let min = value(&bucket.min, period);
                let counts = value(&bucket.counts, period);
                let extremes = |max: u64, min: u64| {
                    let [max, min] = [max, min.min(max)].map(|units| units * UNIT);
                    Extremes { max, min }
                };
                (max.or(min).or(counts)).map(|_| Period {
                    start: period * resolution.seconds(),
                    usage: max.map(|max| extremes(max, min.unwrap_or(max))),
                    refusals: counts.map_or(0, |counts| Count::Refusal.of(counts)),
                    waited: counts.map_or(0, |counts| Count::WaitedSeconds(0).of(counts)),
                    kills: counts.map_or(0, |counts| Count::Kill.of(counts)),
                })
            })
            .collect()
    }
}

impl Ledger {
    /// Returns the device's history; `None` if the ledger keeps none.
    #[inline]
    fn recorded(&self, device: DeviceIndex) -> Option<&DeviceHistory> {
        let bits = self.signals().recorded.load(Ordering::Relaxed);
        (bits >> device.get() & 1 != 0).then(|| &self.content().history[device.get()])
    }

    /// Returns whether the ledger keeps a history of the device.
    #[inline]
    pub fn records(&self, device: DeviceIndex) -> bool {
        self.recorded(device).is_some()
    }

    /// Returns whether the ledger was created to keep a history.
    pub fn keeps_history(&self) -> bool {
        self.header().lasting.load(Ordering::Relaxed) != Lasting::Nothing as u64
    }

    /// Makes a new ledger keep a history and no trail, for a group whose events go elsewhere.
    pub fn keep_history(&self) {
        let lasting = &self.header().lasting;
        let (nothing, history) = (Lasting::Nothing as u64, Lasting::History as u64);
        // A ledger with a trail also keeps a history.
        let _ = lasting.compare_exchange(nothing, history, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns whether the ledger was created to keep a trail, too.
    pub fn keeps_trail(&self) -> bool {
        self.header().lasting.load(Ordering::Relaxed) == Lasting::Trail as u64
    }

    /// Begins the device's history if the ledger keeps one and has none of this device yet. If the
    /// file system has no room for the history, the device gets none, and nothing else changes.
    pub(super) fn begin_history(&self, device: DeviceIndex) {
        if !self.keeps_history() || self.records(device) {
            return;
        }
        let Ok(file) = self.place.open(true) else {
            return;
        };
        if reserve(&file, device).is_ok() {
            let bit = 1 << device.get();
            let with = |bits: u64| Some(bits | bit);
            let recorded = &self.signals().recorded;
            let _ = recorded.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
        }
    }

    /// Returns the words of the history for a second: see [`includes`].
    pub(super) fn extremes(&self, device: DeviceIndex, second: u64) -> Option<[&AtomicU64; 2]> {
        self.recorded(device)
            .map(|history| history.extremes(second))
    }

    /// Records that the usage has been `max` and `min` units.
    pub(super) fn note_between(&self, device: DeviceIndex, second: u64, max: u64, min: u64) {
        if let Some(history) = self.recorded(device)
            && !includes(history.extremes(second), second, max, min)
        {
            history.note(second, max, min);
        }
    }

    /// Records the usage before the first change of a charge in this second.
    pub(super) fn open_second(&self, device: DeviceIndex, second: u64) {
        let is_open = |history: &DeviceHistory| {
            let (bucket, period) = bucket(history, Resolution::Seconds, second);
            value(&bucket.min, period).is_some()
        };
        if self
            .recorded(device)
            .is_some_and(|history| !is_open(history))
        {
            self.note_use(device, second, 0);
        }
    }

    /// Records the present usage, after it has risen by `rise` units. Reads the charges of all
    /// members.
    pub(super) fn note_use(&self, device: DeviceIndex, second: u64, rise: u64) {
        if self.records(device) {
            let usage = self.units_in_use(device);
            self.note_between(device, second, usage, usage.saturating_sub(rise));
        }
    }

    pub(super) fn count(&self, device: DeviceIndex, count: Count) {
        if let Some(history) = self.recorded(device) {
            history.count(os::wall_ms() / 1_000, count);
        }
    }

    /// Returns the usage of a device in units: charged units less idle and undecided ones.
    fn units_in_use(&self, device: DeviceIndex) -> u64 {
        let high_water = self.signals().high_water.load(Ordering::Relaxed);
        charge::in_use(|| self.charges(device, high_water), os::spin)
    }

    /// Returns the periods of a device's history, oldest first. Periods without a charge, a refusal
    /// or a kill are left out.
    pub fn history(&self, device: DeviceIndex, resolution: Resolution) -> Vec<Period> {
        self.history_until(device, resolution, os::wall_ms() / 1_000)
    }

    /// Returns the periods that [`Self::history`] returned at a time in seconds since 1970, if the
    /// history has not gone on since.
    pub fn history_until(
        &self,
        device: DeviceIndex,
        resolution: Resolution,
        until: u64,
    ) -> Vec<Period> {
        self.recorded(device)
            .map_or_else(Vec::new, |history| history.read(resolution, until))
    }

    /// Returns the last second, since 1970, of which the history says something; `None` if it says
    /// nothing.
    pub fn last_recorded(&self) -> Option<u64> {
        let latest = os::wall_ms() / 1_000 + AHEAD;
        let histories = DeviceIndex::all().filter_map(|device| self.recorded(device));
        let buckets = histories.flat_map(|history| &history.seconds);
        let words = buckets.flat_map(|Bucket { max, min, counts }| [max, min, counts]);
        let seconds = words.map(|word| word.load(Ordering::Relaxed) >> PERIOD_SHIFT);
        seconds.filter(|second| (1..=latest).contains(second)).max()
    }

    /// Notes that the owner of a slot lived at this time by the wall clock, in milliseconds, if the
    /// ledger keeps a history.
    pub(super) fn note_alive(&self, slot: usize, now: u64) {
        if self.keeps_history() {
            let alive_at = &self.content().slots[slot].alive_at;
            alive_at.store(now, Ordering::Relaxed);
        }
    }

    /// Notes that this process, the owner of the slot, lives at this moment, if the ledger keeps a
    /// history.
    pub fn note_own_life(&self, own: &super::Slot) {
        self.note_alive(own.index(), os::wall_ms());
    }

    /// Returns what the users of the group have used over time: the ended processes, and the living
    /// ones up to now.
    pub fn bills(&self) -> Vec<Bill> {
        let mut sums: BTreeMap<(Option<u32>, DeviceIndex), [u128; 2]> = BTreeMap::new();
        let mut add = |uid, device, spent: Spent| {
            if spent != [0; 2] {
                let sums = sums.entry((uid, device)).or_default();
                (sums.iter_mut().zip(spent)).for_each(|(sum, more)| *sum += u128::from(more));
            }
        };
        let devices: Vec<_> = DeviceIndex::all().filter(|it| self.records(*it)).collect();
        if devices.is_empty() {
            // No space is reserved for the table of users.
            return Vec::new();
        }
        for number in 0..layout::USERS {
            let words = self.bill_words(number);
            if words[0] == 0 {
                break;
            }
            let Some(uid) = UserBill::user(words[0]) else {
                continue;
            };
            for &device in &devices {
                let at = 1 + 2 * device.get();
                add(uid, device, [words[at], words[at + 1]]);
            }
        }
        // If opening the ledger fails, all processes count as living.
        let file = self.open_file(false).ok();
        for slot in 0..self.high_water() {
            let Some(owner) = self.owner(slot) else {
                continue;
            };
            let lives = !file.as_ref().is_some_and(|file| self.has_died(file, slot));
            for &device in &devices {
                add(Some(owner.uid), device, self.spent(slot, device, lives));
            }
        }
        let byte_seconds = |units_ms: u128| units_ms * u128::from(UNIT) / 1_000;
        let bills = sums.into_iter();
        bills
            .map(|((uid, device), [sure, uncertain])| Bill {
                uid,
                device,
                byte_seconds: byte_seconds(sure),
                uncertain: byte_seconds(uncertain),
            })
            .collect()
    }

    /// Reads an entry of the table of users. Of the first entries, a short look reads the file,
    /// which takes a fifth of the time of a page fault in the mapping.
    fn bill_words(&self, number: usize) -> [u64; BILL_WORDS] {
        let mut words = [0; BILL_WORDS];
        let at = layout::users_offset() + (number * size_of::<UserBill>()) as u64;
        let look = self.look.as_ref().filter(|_| number < FEW);
        let read = look.map(|look| file::read_words(&look.file, at, &mut words));
        if !matches!(read, Some(Ok(()))) {
            let UserBill { uid, unit_ms } = &self.content().users[number];
            let mapped = [uid].into_iter().chain(unit_ms.as_flattened());
            for (word, mapped) in words.iter_mut().zip(mapped) {
                *word = mapped.load(Ordering::Relaxed);
            }
        }
        words
    }

    /// Returns a slot's charge over time. Any member can write the slot, so the result is at most
    /// the device's memory since the owner's birth.
    fn spent(&self, slot: usize, device: DeviceIndex, lives: bool) -> Spent {
        let page = &self.content().slots[slot];
        let stats = &page.stats[device.get()];
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let now = os::boot_ms();
        // How long ago the owner was found dead.
        let dead_since = moment::age(&page.owner.dead_since, now);
        let ago = dead_since.filter(|_| !lives).unwrap_or(0);
        // A birth in the future is that of a process in another time namespace. It is unknown.
        let birth = read(&page.owner.birth);
        let age = now.checked_sub(birth).unwrap_or(now).saturating_sub(ago);
        let changed = read(&stats.changed);
        // The wall clock may have been set forward since the last change.
        let since = match changed {
            0 => 0,
            changed => os::wall_ms().saturating_sub(ago).saturating_sub(changed),
        };
        let since = since.min(age);
        // A sign of life is not bounded by `since`: the clocks there differ by a tick, and what was
        // billed once must not shrink.
        let seen = match (lives, changed) {
            (true, _) => since,
            (false, 0) => 0,
            (false, changed) => read(&page.alive_at).saturating_sub(changed).min(age),
        };
        let units = charge::granted(read(self.word(slot, device)));
        let capacity = read(&self.header().gpus[device.get()].capacity);
        let most = (capacity / UNIT).saturating_mul(age);
        let sure = read(&stats.unit_ms)
            .saturating_add(units.saturating_mul(seen))
            .min(most);
        let uncertain = units.saturating_mul(since.saturating_sub(seen));
        [sure, uncertain.min(most - sure)]
    }

    /// Adds what the owner of a slot has used to the bill of its user, and records the usage. Call
    /// before the slot is zeroed, and [`Self::note_left`] after it.
    pub(super) fn fold(&self, slot: usize) -> Left {
        let mut left = Left(0);
        let Some(owner) = self.owner(slot) else {
            return left;
        };
        // A leaving owner lives. The owner of a charged slot that is being cleaned was found dead.
        let dead_since = &self.content().slots[slot].owner.dead_since;
        let lives = dead_since.load(Ordering::Relaxed) == 0;
        for device in DeviceIndex::all().filter(|device| self.records(*device)) {
            self.open_second(device, os::wall_ms() / 1_000);
            let word = self.word(slot, device).load(Ordering::Relaxed);
            left.0 |= u32::from(word != 0) << device.get();
            let spent = self.spent(slot, device, lives);
            if spent != [0; 2] {
                // A process that dies here loses the figure; the other order would count it twice.
                let stats = &self.content().slots[slot].stats[device.get()];
                stats.unit_ms.store(0, Ordering::Relaxed);
                stats.changed.store(0, Ordering::Relaxed);
                for (bill, units_ms) in self.bill_of(owner.uid, device).iter().zip(spent) {
                    bill.fetch_add(units_ms, Ordering::Relaxed);
                }
            }
        }
        left
    }

    /// Records the usage without the charges of a slot that was zeroed.
    pub(super) fn note_left(&self, left: Left) {
        for device in DeviceIndex::all().filter(|device| left.0 >> device.get() & 1 != 0) {
            self.note_use(device, os::wall_ms() / 1_000, 0);
        }
    }

    /// Returns the bill of a user for a device, or that of all other users if the table is full.
    fn bill_of(&self, uid: u32, device: DeviceIndex) -> &[AtomicU64; 2] {
        let [users @ .., last] = &self.content().users;
        let wanted = u64::from(uid) + 1;
        let order = Ordering::Relaxed;
        let is_its = |bill: &&UserBill| {
            let taken = bill.uid.compare_exchange(0, wanted, order, order);
            taken.is_ok() || taken == Err(wanted)
        };
        let found = users.iter().find(is_its).unwrap_or_else(|| {
            last.uid.store(UserBill::OTHERS, order);
            last
        });
        &found.unit_ms[device.get()]
    }
}

/// Number of words of an entry of the table of users.
const BILL_WORDS: usize = size_of::<UserBill>() / 8;
/// Number of entries that a short look reads from the file; a page fault is faster for more.
const FEW: usize = 4;

/// The devices on which a slot had a charge, one bit each.
pub(super) struct Left(u32);

impl UserBill {
    /// The user id of the entry for all users without an entry.
    const OTHERS: u64 = u64::MAX;
    /// Returns the user id in the first word of an entry, `None` for that of all other users.
    /// Returns `None` if the entry is free or damaged.
    fn user(word: u64) -> Option<Option<u32>> {
        match word {
            Self::OTHERS => Some(None),
            _ => u32::try_from(word.checked_sub(1)?).ok().map(Some),
        }
    }
}

/// Reserves space on the file system for the device's history and for the bills.
fn reserve(file: &Description, device: DeviceIndex) -> std::io::Result<()> {
    let history = layout::history_offset(device.get());
    os::reserve(file, history, size_of::<DeviceHistory>() as u64)?;
    let bills = size_of::<[UserBill; layout::USERS]>() as u64;
    os::reserve(file, layout::users_offset(), bills)
}

#[cfg(all(test, not(loom)))]
mod tests;
