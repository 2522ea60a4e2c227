//! The charge algorithm. It uses neither a lock nor a shared total.
//!
//! Each process counts its charged memory in its own ledger word. To *publish* a request, the
//! process adds the requested memory to its word, marked as undecided. Only then does it add up all
//! words and compare the sum with the limit.
//!
//! If two processes race for the last bytes, at least one of them sees the request of the other. If
//! both do, both withdraw their requests and try again.

use super::atomic::{Ordering, Word};
use super::os;
use super::tick::Tick;

/// Bytes per unit: the ledger counts memory in units of 4 KiB.
pub(super) const UNIT: u64 = 4096;
/// Largest request, in units of 4 KiB: 4 TiB.
pub(super) const REQUEST_MAX: u64 = 1 << 30;
/// Largest number of charged units in one ledger word: 8 TiB of the possible 16 TiB. Concurrent
/// requests use the rest.
pub(super) const WORD_MAX: u64 = 1 << 31;
/// How often a request reads a group's charges again while two readings differ, because memory may
/// be moving between slots.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 64 };
/// Undecided requests of other processes can block a request. After this many blocked attempts, the
/// request checks whether those processes are dead.
const CONTENDED: u32 = if cfg!(loom) { 2 } else { 8 };
/// How often the recorder looks at an undecided charge.
const DECIDING: u32 = 8;
/// Largest number of times that one request reclaims idle memory of its own process.
const RECLAIMS: u32 = 16;

/// The bit of a ledger word that says that the slot's suspended bytes are in it: see `suspension`.
/// Sums over words count the bit as undecided units, and builds that do not know the bit count it
/// so in single words, too: a request that would fit without these units waits for a decision.
pub(super) const MOVING: u64 = 1 << 63;

/// Returns the charged units that a ledger word counts, including undecided units.
#[inline]
pub(super) const fn charged(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// Returns the undecided units that a ledger word counts.
#[inline]
pub(super) const fn undecided(word: u64) -> u64 {
    (word & !MOVING) >> 32
}

/// Returns the granted units: charged units minus undecided units. A damaged ledger word gives 0
/// instead of an underflow.
#[inline]
pub(super) const fn granted(word: u64) -> u64 {
    charged(word).saturating_sub(undecided(word))
}

/// Returns what publishing a request of `n` units adds to the ledger word: `n` charged and `n`
/// undecided units.
#[inline]
const fn published(n: u64) -> u64 {
    n | n << 32
}

/// The charge of one slot on one device.
pub(super) struct Charged<'a, W> {
    /// Counts units: see [`charged`] and [`undecided`].
    pub word: &'a W,
    /// Bytes that the owner has charged ahead but does not use.
    pub idle: &'a W,
}

impl<W: Word> Charged<'_, W> {
    /// Returns the units in use: granted and not idle. Looks at an undecided charge several times,
    /// because most requests are soon decided, and calls `pause` in between.
    #[cold]
    fn in_use(&self, pause: impl Fn()) -> u64 {
        let mut looks = 0;
        let again = || {
            pause();
            looks += 1;
            looks < DECIDING
        };
        let (word, idle) = settled(self.word, || self.idle.load(Ordering::Relaxed), again);
        granted(word).saturating_sub(idle / UNIT)
    }
}

/// One device at one level, a group on the path of the process: what a charge needs of its ledger.
/// A process charges its own group first and the topmost group last.
pub(super) trait Rung {
    type Word: Word;
    /// Returns this process's own charge in the ledger.
    fn own(&self) -> Charged<'_, Self::Word>;
    /// Returns the word `high_water`, which tells how many slots to read to add up the charges.
    fn high_water(&self) -> &Self::Word;
    /// Returns the charges of all slots with an index below `high_water`, including this process's
    /// charge.
    fn charges<'a>(&'a self, high_water: u64) -> impl Iterator<Item = Charged<'a, Self::Word>>
    where
        Self::Word: 'a;
    /// Returns the limit minus the memory that is protected for other child groups, in units. Call
    /// before adding up the charges.
    fn max(&self) -> u64;
    /// Returns whether the ledger file was truncated and its mapping replaced by zeros. Call after
    /// reading words; if true, discard the words.
    fn is_lost(&self) -> bool {
        false
    }
    /// Returns whether the ledger records the usage over time.
    fn records(&self) -> bool;
    /// Raises the recorded peaks after a grant. `total` is the granted units of all processes, and
    /// `own` is those of this process. This process's idle bytes are in `idle`.
    fn note(&self, total: u64, own: u64, idle: &Self::Word);
    /// Records the usage after a grant. `before` is the units in use before the grant, `None` if
    /// undecided requests make that unknown. `rise` is the units by which the grant has raised it.
    fn record(&self, now: Tick, before: Option<u64>, rise: u64);
    /// Begins a change of this process's word. Call before the change, and call `withdrawn`,
    /// `added` or `taken` after it. Returns false if another process has changed the word. This
    /// method has then repaired the word, but the caller must not grant a request. `now` is `None`
    /// if the ledger does not record the usage.
    fn begin(&self, own: &Self::Word, now: Option<Tick>) -> bool;
    /// Ends a change whose net effect on this process's word is zero.
    fn withdrawn(&self);
    /// Ends a change that added `n` units to this process's word.
    fn added(&self, n: u64);
    /// Ends a change that took `n` units from this process's word.
    fn taken(&self, n: u64);
    /// Notes that `n` units that were to be taken are not in this process's word. If the process is
    /// suspended, they are among its suspended bytes.
    fn lacked(&self, _n: u64) {}
}

/// The actions that the slow path of a charge needs from its caller.
pub(super) trait Surroundings<R> {
    /// Gives back idle memory of this process; returns false if this process has none.
    fn reclaim(&mut self) -> bool;
    /// Cleans the slots of dead processes in one group's ledger. Reports freed memory for a bounded
    /// time only, because the caller then retries.
    fn reap(&mut self, rung: &R) -> Reaped;
    /// Asks other members for the idle memory that a request of `n` units lacks beside `pending`
    /// units. Returns false if no memory came back or the time for asking is used up.
    fn ask_others(&mut self, rung: &R, n: u64, pending: u64) -> bool;
    /// Waits a short random time for the requests of other processes to finish. Returns false if
    /// the time for such waits is used up.
    fn back_off(&mut self) -> bool;
    /// Waits a moment for the driver to free dead processes' memory. Returns false if the time for
    /// such waits is used up.
    fn wait_for_drain(&mut self) -> bool;
}

/// The result of cleaning the slots of dead processes in the ledger of one group.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Reaped {
    /// Whether the cleaning freed memory, or withdrew the undecided request of a dead process.
    pub freed: bool,
    /// Units that will soon be free: the driver is still freeing them, or another process is
    /// cleaning their slot.
    pub pending: u64,
}

/// The index of the group that refused a request, and the units granted in that group.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Refusal {
    pub level: usize,
    pub charged: u64,
    /// Those of the granted units that will soon be free: see [`Reaped::pending`].
    pub pending: u64,
}

/// A counter of charged but unused memory. The counter changes while a request is undecided, so
/// that a reader of counter and ledger detects the change.
pub trait Idle {
    /// Adds a granted request to the counter, because the process does not use the memory yet.
    fn add(&self);
    /// Removes a request from the counter, because the process gives the memory back unused.
    fn remove(&self);
    /// Returns whether the counter counts nothing: the bytes of a granted request are in use.
    fn is_used(&self) -> bool {
        false
    }
}

/// A counter that counts nothing, for memory that is used as soon as it is charged.
impl Idle for () {
    #[inline]
    fn add(&self) {}

    #[inline]
    fn remove(&self) {}

    #[inline]
    fn is_used(&self) -> bool {
        true
    }
}

/// Tries once to charge `n` units in every group. On failure, returns the index of the group that
/// refused the request.
#[inline]
pub(super) fn attempt<R: Rung, I: Idle + ?Sized>(
    rungs: &[R],
    n: u64,
    idle: &I,
) -> Result<(), usize> {
    climb(rungs, 0, n, idle, None)
}

/// Returns the present time if the ledger records the usage. All levels share one look at the
/// clock, which is most of the cost of a recorded change.
#[inline]
fn now<R: Rung>(rung: &R, clock: &mut Option<Tick>) -> Option<Tick> {
    (rung.records()).then(|| *clock.get_or_insert_with(os::wall_tick))
}

/// Tries once to charge `n` units in the groups from `level` upwards.
// Not `inline`, so that the library contains the function only once.
fn climb<R: Rung, I: Idle + ?Sized>(
    rungs: &[R],
    level: usize,
    n: u64,
    idle: &I,
    mut clock: Option<Tick>,
) -> Result<(), usize> {
    let Some((rung, above)) = rungs.split_first() else {
        // A process that sees the counter's change also sees the request, because the request was
        // published before the last fence.
        idle.add();
        return Ok(());
    };
    let Charged {
        word: own,
        idle: own_idle,
    } = rung.own();
    let now = now(rung, &mut clock);
    if !rung.begin(own, now) || word_is_full(own, n) {
        rung.withdrawn();
        return Err(level);
    }
    let max = rung.max();
    // `Release`: a process that sees moved memory in this slot also sees that the memory has left
    // the other slot.
    own.fetch_add(published(n), Ordering::Release);
    // Of two processes that publish requests, the process with the later fence sees the request of
    // the other.
    R::Word::fence(Ordering::SeqCst);
    // `high_water` is read after the fence. Processes with later slots will publish later, and see
    // this request.
    let high_water = rung.high_water().load(Ordering::Relaxed);
    let seen = match now {
        Some(_) => total_with_idle(rung.charges(high_water)),
        None => total(rung.charges(high_water), Ordering::Relaxed, |_, _| {}),
    };
    if seen.charged > max || rung.is_lost() {
        own.fetch_sub(published(n), Ordering::Release);
        rung.withdrawn();
        return Err(level);
    }
    match climb(above, level + 1, n, idle, clock) {
        Ok(()) => {
            // The request stays undecided until it fits in all groups. Otherwise a request that
            // fails later could make other requests fail.
            let before = own.fetch_sub(n << 32, Ordering::Release);
            rung.added(n);
            // The peak counts granted units and this request, but not the undecided units of
            // others.
            let others = seen.undecided.saturating_sub(n);
            rung.note(
                seen.charged.saturating_sub(others),
                granted(before.wrapping_sub(n << 32)),
                own_idle,
            );
            if let Some(now) = now {
                let rise = if idle.is_used() { n } else { 0 };
                rung.record(now, seen.in_use(n), rise);
            }
            Ok(())
        }
        Err(refusing) => {
            own.fetch_sub(published(n), Ordering::Release);
            rung.withdrawn();
            Err(refusing)
        }
    }
}

/// Charges `n` units that the driver has already handed out, even above the limit.
pub(super) fn add_unchecked<R: Rung>(rungs: &[R], n: u64) {
    let mut clock = None;
    for rung in rungs {
        // The process has the memory already, so the charge is made even if `begin` returns false.
        let own = rung.own().word;
        rung.begin(own, now(rung, &mut clock));
        if word_is_full(own, n) {
            rung.withdrawn();
        } else {
            own.fetch_add(n, Ordering::Release);
            rung.added(n);
        }
    }
}

/// Charges `n` units that the slot of another process counts, too, and that this process is about
/// to take out of that slot. Returns false, and charges nothing, if an undecided request leaves no
/// room: it might have read this slot before the units came, and read the other one after they have
/// left, and so be granted without them.
pub(super) fn add_moved<R: Rung>(rungs: &[R], n: u64) -> bool {
    add_unchecked(rungs, n);
    let is_safe = |rung: &R| {
        // Requests that this look does not see find the units in this slot.
        let seen = look(rung);
        seen.undecided == 0 || seen.charged <= rung.max().saturating_add(n)
    };
    let are_safe = rungs.iter().all(is_safe);
    if !are_safe {
        uncharge(rungs, n);
    }
    are_safe
}

/// Uncharges `n` units in every group, or all granted units if there are fewer.
#[inline]
pub(super) fn uncharge<R: Rung>(rungs: &[R], n: u64) {
    let mut clock = None;
    for rung in rungs {
        let own = rung.own().word;
        rung.begin(own, now(rung, &mut clock));
        let taken = take_out(own, n);
        rung.taken(taken);
        if taken < n {
            rung.lacked(n - taken);
        }
    }
}

/// Uncharges `n` units of one group, or all granted units if there are fewer, after `receive` has
/// charged them to another process. `receive` gets a question: do the charges of all, without these
/// units, keep the limit? Takes nothing if `receive` fails.
pub(super) fn hand_over<R: Rung, E>(
    rung: &R,
    n: u64,
    receive: impl FnOnce(&dyn Fn() -> bool) -> Result<(), E>,
) -> Result<(), E> {
    let own = rung.own().word;
    rung.begin(own, now(rung, &mut None));
    // Undecided units make a request of a third process wait. Without the mark, the request could
    // be refused while the units count twice.
    let there = change_granted(own, n, |word, there| word + (there << 32));
    let max = rung.max();
    let received = receive(&|| look(rung).charged <= max.saturating_add(there));
    if received.is_ok() {
        own.fetch_sub(published(there), Ordering::SeqCst);
        rung.taken(there);
    } else {
        own.fetch_sub(there << 32, Ordering::SeqCst);
        rung.withdrawn();
    }
    received
}

/// Uncharges `n` units that were charged ahead and never used. Also removes them from the counter
/// `idle`.
pub(super) fn uncharge_idle<R: Rung>(rungs: &[R], n: u64, idle: &dyn Idle) {
    descend(rungs, n, idle, None);
}

fn descend<R: Rung>(rungs: &[R], n: u64, idle: &dyn Idle, mut clock: Option<Tick>) {
    let Some((rung, above)) = rungs.split_first() else {
        R::Word::fence(Ordering::SeqCst);
        idle.remove();
        return;
    };
    let own = rung.own().word;
    rung.begin(own, now(rung, &mut clock));
    let there = change_granted(own, n, |word, there| word + (there << 32));
    descend(above, n, idle, clock);
    // `SeqCst`: the caller checks for waiting processes next. A process that begins to wait later
    // finds the units gone.
    own.fetch_sub(published(there), Ordering::SeqCst);
    rung.taken(there);
    if there < n {
        rung.lacked(n - there);
    }
}

/// Reads a word and a figure until two readings agree without an undecided request. If `again`
/// returns false, the result may be inconsistent.
pub(super) fn settled<W: Word>(
    word: &W,
    figure: impl Fn() -> u64,
    mut again: impl FnMut() -> bool,
) -> (u64, u64) {
    let look = || {
        let units = word.load(Ordering::Acquire);
        let figure = figure();
        W::fence(Ordering::Acquire);
        (units, figure)
    };
    let mut seen = look();
    loop {
        let next = look();
        if (next == seen && undecided(next.0) == 0) || !again() {
            return next;
        }
        seen = next;
    }
}

/// Takes `n` units out of a ledger word, or all granted units if there are fewer. Returns the
/// number of units taken.
#[inline]
pub(super) fn take_out(word: &impl Word, n: u64) -> u64 {
    // `SeqCst`: the caller checks for waiting processes next. A process that begins to wait later
    // finds the units gone.
    change_granted(word, n, |word, n| word - n)
}

/// Changes a word by `n` units, or by all granted units if there are fewer. Returns the number of
/// units. The granted units can fall at any time: another process may suspend the owner.
#[inline]
fn change_granted(word: &impl Word, n: u64, change: impl Fn(u64, u64) -> u64) -> u64 {
    let mut before = word.load(Ordering::Relaxed);
    loop {
        let n = n.min(granted(before));
        match word.replace(before, change(before, n), Ordering::SeqCst) {
            Ok(_) => return n,
            Err(now) => before = now,
        }
    }
}

/// Empties a charge without an owner.
pub(super) fn empty<W: Word>(charge: &Charged<'_, W>) {
    let Charged { word, idle } = charge;
    let before = word.load(Ordering::Relaxed);
    if idle.load(Ordering::Relaxed) != 0 {
        // The idle bytes change while the word is undecided, as in a charge: a process that adds up
        // both sees the change.
        word.store(published(charged(before)), Ordering::Release);
        W::fence(Ordering::Release);
        idle.store(0, Ordering::Relaxed);
    }
    if before != 0 {
        word.store(0, Ordering::Release);
    }
}

#[inline]
fn word_is_full(own: &impl Word, n: u64) -> bool {
    charged(own.load(Ordering::Relaxed)) + n > WORD_MAX
}

/// The sums over the charges of one ledger, in units.
struct Total {
    /// Includes undecided units.
    charged: u64,
    undecided: u64,
    /// Idle bytes; 0 if they were not read.
    idle: u64,
}

impl Total {
    /// Returns the units in use without the `own` undecided ones. `None` if others are undecided,
    /// or if a member has published more idle bytes than can be.
    #[inline]
    fn in_use(&self, own: u64) -> Option<u64> {
        let in_use = self.charged.checked_sub(own + self.idle / UNIT)?;
        (self.undecided == own).then_some(in_use)
    }
}

/// Adds up the words of all charges in one pass, and calls `each` for every charge.
#[inline]
fn total<'a, W: Word + 'a>(
    charges: impl Iterator<Item = Charged<'a, W>>,
    order: Ordering,
    mut each: impl FnMut(u64, &W),
) -> Total {
    let (mut words, mut high_halves) = (0_u64, 0);
    for Charged { word, idle } in charges {
        let word = word.load(order);
        words = words.wrapping_add(word);
        high_halves += word >> 32;
        each(word, idle);
    }
    W::fence(Ordering::Acquire);
    Total {
        charged: words.wrapping_sub(high_halves << 32),
        undecided: high_halves,
        idle: 0,
    }
}

/// Adds up the words and the idle bytes of all charges in one pass.
#[inline(always)]
fn total_with_idle<'a, W: Word + 'a>(charges: impl Iterator<Item = Charged<'a, W>>) -> Total {
    let mut sum = 0_u64;
    // `Acquire`: if a request that was charged ahead is seen as granted, so are its idle bytes.
    let total = total(charges, Ordering::Acquire, |_, idle| {
        sum = idle.load(Ordering::Relaxed).wrapping_add(sum);
    });
    Total { idle: sum, ..total }
}

/// Returns the units in use of all charges. Calls `pause` between two looks at an undecided charge.
pub(super) fn in_use<'a, W: Word + 'a, I: Iterator<Item = Charged<'a, W>>>(
    charges: impl Fn() -> I,
    pause: impl Fn(),
) -> u64 {
    let seen = total_with_idle(charges()).in_use(0);
    seen.unwrap_or_else(|| charges().map(|charge| charge.in_use(&pause)).sum())
}

/// The result of reading the words of all slots one after the other. Memory may move between slots
/// meanwhile.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Look {
    /// Charged units, including undecided units.
    pub charged: u64,
    /// Undecided units.
    pub undecided: u64,
    /// A hash of all words read. Two readings with the same hash have very probably read the same
    /// words.
    hash: u64,
}

impl Look {
    pub(super) fn granted(&self) -> u64 {
        self.charged.saturating_sub(self.undecided)
    }
}

/// Reads the words of all slots without publishing a request.
pub(super) fn look<R: Rung>(rung: &R) -> Look {
    R::Word::fence(Ordering::SeqCst);
    let mut hash = 0_u64;
    let high_water = rung.high_water().load(Ordering::Relaxed);
    let seen = total(rung.charges(high_water), Ordering::Relaxed, |word, _| {
        hash = (hash.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    });
    Look {
        charged: seen.charged,
        undecided: seen.undecided,
        hash,
    }
}

/// The verdict on a request after reading the charges of a group once.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Verdict {
    Fits,
    /// The request fits now, but will not fit if the undecided requests of other processes are
    /// granted.
    Contended,
    Over,
}

fn verdict<R: Rung>(rung: &R, max: u64, look: &Look, n: u64) -> Verdict {
    if look.granted() + n > max || word_is_full(rung.own().word, n) {
        Verdict::Over
    } else if look.charged + n > max {
        Verdict::Contended
    } else {
        Verdict::Fits
    }
}

/// The slow path of a charge over the limit of the group `level`. The loop ends, because reclaims
/// and waiting times are bounded.
#[cold]
pub(super) fn contend<R: Rung>(
    rungs: &[R],
    n: u64,
    mut level: usize,
    surroundings: &mut impl Surroundings<R>,
    idle: &dyn Idle,
) -> Result<(), Refusal> {
    let (mut reclaims, mut contended) = (0, 0_u32);
    loop {
        let mut worst = Verdict::Fits;
        for (index, rung) in rungs.iter().enumerate() {
            let max = rung.max();
            match verdict(rung, max, &look(rung), n) {
                Verdict::Fits => {}
                Verdict::Contended => {
                    if worst == Verdict::Fits {
                        (worst, level) = (Verdict::Contended, index);
                    }
                }
                Verdict::Over => {
                    (worst, level) = (Verdict::Over, index);
                    break;
                }
            }
        }
        let Some(rung) = rungs.get(level) else {
            return Ok(());
        };
        match worst {
            Verdict::Fits => match attempt(rungs, n, idle) {
                Ok(()) => return Ok(()),
                Err(refusing) => level = refusing,
            },
            Verdict::Contended => {
                contended += 1;
                // The blocking request may be that of a dead process. Then only another process can
                // withdraw the request.
                if contended.is_multiple_of(CONTENDED) && surroundings.reap(rung).freed {
                    continue;
                }
            }
            Verdict::Over => {
                if reclaims < RECLAIMS && surroundings.reclaim() {
                    reclaims += 1;
                    continue;
                }
                let reaped = surroundings.reap(rung);
                if reaped.freed {
                    continue;
                }
                let pending = reaped.pending;
                let refusal = |charged| Refusal {
                    level,
                    charged,
                    pending,
                };
                match confirm(rung, n, pending) {
                    Confirmed::Over(charged) => {
                        if !surroundings.ask_others(rung, n, pending) {
                            return Err(refusal(charged));
                        }
                        continue;
                    }
                    Confirmed::OnlyDraining(charged) => {
                        if !surroundings.wait_for_drain() {
                            return Err(refusal(charged));
                        }
                        continue;
                    }
                    // The charges left room when read again, so the request is retried. The total
                    // time of back-offs is bounded.
                    Confirmed::Not => {}
                }
            }
        }
        if !surroundings.back_off() {
            let reap = |rung| surroundings.reap(rung).freed;
            if rungs.get(level).is_some_and(reap) {
                continue;
            }
            let charged = rungs.get(level).map_or(0, |rung| look(rung).granted());
            return Err(Refusal {
                level,
                charged,
                pending: 0,
            });
        }
    }
}

enum Confirmed {
    Over(u64),
    OnlyDraining(u64),
    Not,
}

/// Confirms that a request does not fit, by two equal readings of all words, or by more than
/// [`LOOKS`] in a row. In one reading, moving memory may count twice.
fn confirm<R: Rung>(rung: &R, n: u64, pending: u64) -> Confirmed {
    let max = rung.max();
    let over = |look: &Look| verdict(rung, max, look, n) == Verdict::Over;
    let mut last = look(rung);
    if !over(&last) {
        return Confirmed::Not;
    }
    for _ in 0..LOOKS {
        let next = look(rung);
        if !over(&next) {
            return Confirmed::Not;
        }
        if next == last {
            break;
        }
        last = next;
    }
    let charged = last.granted();
    if charged.saturating_sub(pending) + n > max || word_is_full(rung.own().word, n) {
        Confirmed::Over(charged)
    } else {
        Confirmed::OnlyDraining(charged)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
