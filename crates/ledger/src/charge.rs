//! The charge algorithm. A process first publishes its request for memory. Then it compares the sum
//! of all charges with the limit. The algorithm uses neither a lock nor a shared total.
//!
//! Each process has its own word in the ledger, which counts its charged memory. To *publish* a
//! request, the process adds the requested memory to its word. It marks this memory as undecided in
//! the same step. Only then does the process read the words of all slots. If two processes race for
//! the last bytes, at least one of them sees the request of the other. If both see the request of
//! the other, both withdraw their requests and try again.
//!
//! The code is generic over the type of the words, so that the model checker loom can run it on its
//! own words.

use super::atomic::{Ordering, Word};

/// Bytes per unit: the ledger counts memory in units of 4 KiB.
pub(super) const UNIT: u64 = 4096;
/// Largest request, in units of 4 KiB: 4 TiB.
pub(super) const REQUEST_MAX: u64 = 1 << 30;
/// Largest number of charged units in one ledger word (8 TiB). A request that would exceed it is
/// refused. The lower half of a word counts charged units, up to 16 TiB. The rest is a reserve for
/// threads that make requests at the same time. Three such requests of 4 TiB each overflow the
/// lower half if 4 TiB are already charged.
const WORD_MAX: u64 = 1 << 31;
/// Largest number of times that a request reads a group's charges again before it is refused. It
/// reads again while two readings differ, because memory may be moving between slots.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 64 };
/// Undecided requests of other processes can block a request. After this many blocked attempts, the
/// request checks whether those processes are dead.
const CONTENDED: u32 = if cfg!(loom) { 2 } else { 8 };
/// Largest number of times that one request reclaims idle memory of its own process.
const RECLAIMS: u32 = 16;

/// Returns the charged units that a ledger word counts, including undecided units.
#[inline]
pub(super) const fn charged(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// Returns the undecided units that a ledger word counts.
#[inline]
pub(super) const fn undecided(word: u64) -> u64 {
    word >> 32
}

/// Returns the granted units: charged units minus undecided units. A damaged ledger word gives 0
/// instead of an underflow.
#[inline]
pub(super) const fn granted(word: u64) -> u64 {
    charged(word).saturating_sub(undecided(word))
}

/// Returns what a process adds to its ledger word to publish a request of `n` units: `n` charged
/// units and `n` undecided units.
#[inline]
const fn published(n: u64) -> u64 {
    n | n << 32
}

/// One device in the ledger of one group. A process charges its own group first and the root group
/// last.
pub(super) trait Rung {
    type Word: Word;
    /// Returns this process's own word in the ledger.
    fn own(&self) -> &Self::Word;
    /// Returns the word `high_water`, which tells how many slots to read to add up the charges.
    fn high_water(&self) -> &Self::Word;
    /// Returns the words of all slots with an index below `high_water`, including this process's
    /// word.
    fn words<'a>(&'a self, high_water: u64) -> impl Iterator<Item = &'a Self::Word>
    where
        Self::Word: 'a;
    /// Returns the group's limit minus the memory that is protected for child groups without this
    /// process, in units. Call this method before adding up the charges, because their sum is
    /// compared with the result.
    fn max(&self) -> u64;
    /// Returns true if the ledger file was truncated, so that the kernel replaced its mapping by
    /// zeros. Call this method after reading words. If it returns true, discard the values read.
    fn is_lost(&self) -> bool {
        false
    }
    /// Raises the recorded peaks after a grant. `total` is the granted units of all processes, and
    /// `own` is the granted units of this process.
    fn note(&self, total: u64, own: u64);
    /// Begins a change of this process's word. Call before the change, and call `withdrawn`,
    /// `added` or `taken` after it. Returns false if another process has changed the word. This
    /// method has then repaired the word, but the caller must not grant a request.
    fn begin(&self) -> bool;
    /// Ends a change whose net effect on this process's word is zero.
    fn withdrawn(&self);
    /// Ends a change that added `n` units to this process's word.
    fn added(&self, n: u64);
    /// Ends a change that took `n` units from this process's word.
    fn taken(&self, n: u64);
}

/// The actions that the slow path of a charge needs from its caller.
pub(super) trait Surroundings<R> {
    /// Gives back idle memory of this process; returns false if this process has none.
    fn reclaim(&mut self) -> bool;
    /// Cleans the slots of dead processes in the ledger of one group. The caller tries again as
    /// long as this method reports freed memory. Implementations report freed memory for a bounded
    /// time only, so that the caller's loop ends.
    fn reap(&mut self, rung: &R) -> Reaped;
    /// Asks the other members of a group to give back idle memory. Returns false if no memory came
    /// back, or if the time for asking is used up.
    fn ask_others(&mut self, rung: &R, n: u64) -> bool;
    /// Waits for a short random time, so that other processes can finish their requests. Returns
    /// false if the time for such waits is used up.
    fn back_off(&mut self) -> bool;
    /// Waits a moment, so that the driver can free the memory of dead processes. Returns false if
    /// the time for such waits is used up.
    fn wait_for_drain(&mut self) -> bool;
}

/// The result of cleaning the slots of dead processes in the ledger of one group.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Reaped {
    /// Whether the cleaning freed memory, or withdrew the undecided request of a dead process.
    pub freed: bool,
    /// Units that will soon be free without an action of this process. Either the driver is still
    /// freeing them, or another process is cleaning their slot.
    pub pending: u64,
}

/// The index of the group that refused a request, and the units granted in that group.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Refusal {
    pub level: usize,
    pub charged: u64,
}

/// A counter of memory that a process has charged but does not use.
///
/// The counter changes while the request is undecided in the ledger. A process that reads the
/// counter and the ledger therefore sees the request in both of them or in neither.
pub trait Idle {
    /// Adds a granted request to the counter, because the process does not use the memory yet.
    fn add(&self);
    /// Removes a request from the counter, because the process gives the memory back unused.
    fn remove(&self);
}

/// A counter that counts nothing, for memory that is used as soon as it is charged.
impl Idle for () {
    #[inline]
    fn add(&self) {}

    #[inline]
    fn remove(&self) {}
}

/// Tries once to charge `n` units in every group. On failure, returns the index of the group whose
/// limit the request exceeded.
///
/// Not `inline`, so that the library contains the function only once.
pub(super) fn attempt<R: Rung, I: Idle + ?Sized>(
    rungs: &[R],
    level: usize,
    n: u64,
    idle: &I,
) -> Result<(), usize> {
    let Some((rung, above)) = rungs.split_first() else {
        // The request was published before the last memory fence. The idle counter changes after
        // that fence. A process that sees the counter's change therefore also sees the request.
        idle.add();
        return Ok(());
    };
    let own = rung.own();
    if !rung.begin() || word_is_full(rung, n) {
        rung.withdrawn();
        return Err(level);
    }
    let max = rung.max();
    // `Release` order is needed for memory that moves from another slot to this slot. A process
    // that sees the memory in this slot then also sees that it has left the other slot.
    own.fetch_add(published(n), Ordering::Release);
    // When two processes publish requests, the process with the later fence sees the request of the
    // other. `high_water` is also read after the fence. A process whose slot is not below
    // `high_water` has not published a request yet. It will see this request when it publishes its
    // first request.
    R::Word::fence(Ordering::SeqCst);
    let seen = total(rung, |_| {});
    if seen.charged > max || rung.is_lost() {
        own.fetch_sub(published(n), Ordering::Release);
        rung.withdrawn();
        return Err(level);
    }
    match attempt(above, level + 1, n, idle) {
        Ok(()) => {
            // The request stays undecided until it fits in all groups. Otherwise another process
            // might count it as granted, although a parent group refuses it afterwards. The other
            // process could then be refused although the memory is free.
            let before = own.fetch_sub(n << 32, Ordering::Release);
            rung.added(n);
            // The peak counts granted units and this request, but not the undecided units of
            // others.
            let others = seen.undecided.saturating_sub(n);
            rung.note(
                seen.charged.saturating_sub(others),
                granted(before.wrapping_sub(n << 32)),
            );
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
    for rung in rungs {
        // The process has the memory already, so the charge is made even if `begin` returns false.
        rung.begin();
        if word_is_full(rung, n) {
            rung.withdrawn();
        } else {
            rung.own().fetch_add(n, Ordering::Release);
            rung.added(n);
        }
    }
}

/// Uncharges `n` units in every group, or all granted units if there are fewer.
#[inline]
pub(super) fn uncharge<R: Rung>(rungs: &[R], n: u64) {
    for rung in rungs {
        rung.begin();
        rung.taken(take_out(rung.own(), n));
    }
}

/// Uncharges `n` units that were charged ahead and never used. Also removes them from the counter
/// `idle`.
pub(super) fn uncharge_idle<R: Rung>(rungs: &[R], n: u64, idle: &dyn Idle) {
    let Some((rung, above)) = rungs.split_first() else {
        R::Word::fence(Ordering::SeqCst);
        idle.remove();
        return;
    };
    let own = rung.own();
    rung.begin();
    let there = n.min(granted(own.load(Ordering::Relaxed)));
    own.fetch_add(there << 32, Ordering::Release);
    uncharge_idle(above, n, idle);
    // The caller checks for waiting processes next. `SeqCst` ensures that a process that begins to
    // wait after that check finds the units gone from the word.
    own.fetch_sub(published(there), Ordering::SeqCst);
    rung.taken(there);
}

/// Reads a ledger word and a related figure, such as the counter [`Idle`], both as of the same
/// moment. The word's owner changes both during a request. Therefore the function reads until two
/// readings are equal and no request is undecided. It calls `again` between two readings to let
/// time pass. If `again` returns false, the last values are returned. They can be inconsistent if
/// the owner was stopped during a request.
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
    // Before the subtraction below, the granted units can fall below `n` only if another thread
    // uncharges more than it has charged. A correct caller never does that.
    let n = n.min(granted(word.load(Ordering::Relaxed)));
    // The caller checks for waiting processes after this subtraction. `SeqCst` ensures that a
    // process that begins to wait after the check finds the units gone from the word.
    word.fetch_sub(n, Ordering::SeqCst);
    n
}

#[inline]
fn word_is_full<R: Rung>(rung: &R, n: u64) -> bool {
    charged(rung.own().load(Ordering::Relaxed)) + n > WORD_MAX
}

/// The sums over the words of one ledger, in units.
struct Total {
    /// Includes undecided units.
    charged: u64,
    undecided: u64,
}

/// Adds up the words of all slots in one pass, and calls `each` for every word.
#[inline]
fn total<R: Rung>(rung: &R, mut each: impl FnMut(u64)) -> Total {
    let high_water = rung.high_water().load(Ordering::Relaxed);
    let mut sum = Total {
        charged: 0,
        undecided: 0,
    };
    for word in rung.words(high_water) {
        let word = word.load(Ordering::Relaxed);
        sum.charged += charged(word);
        sum.undecided += undecided(word);
        each(word);
    }
    R::Word::fence(Ordering::Acquire);
    sum
}

/// The result of reading the words of all slots once. The words are read one after the other, and
/// memory may move between slots meanwhile.
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
    let Total { charged, undecided } = total(rung, |word| {
        hash = (hash.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    });
    Look {
        charged,
        undecided,
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
    if look.granted() + n > max || word_is_full(rung, n) {
        Verdict::Over
    } else if look.charged + n > max {
        Verdict::Contended
    } else {
        Verdict::Fits
    }
}

/// The slow path of a charge, for a request that exceeded the limit of the group `level` at first.
///
/// The loop always ends. At most [`RECLAIMS`] rounds reclaim idle memory of this process. Every
/// other round asks `surroundings` for more time, and the sum of these times is bounded. If the
/// request still does not fit, it is refused.
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
            Verdict::Fits => match attempt(rungs, 0, n, idle) {
                Ok(()) => return Ok(()),
                Err(refusing) => level = refusing,
            },
            Verdict::Contended => {
                contended += 1;
                // The undecided request that blocks this one may be that of a dead process. It then
                // stays undecided until another process withdraws it.
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
                match confirm(rung, n, reaped.pending) {
                    Confirmed::Over(charged) => {
                        if !surroundings.ask_others(rung, n) {
                            return Err(Refusal { level, charged });
                        }
                        continue;
                    }
                    Confirmed::OnlyDraining(charged) => {
                        if !surroundings.wait_for_drain() {
                            return Err(Refusal { level, charged });
                        }
                        continue;
                    }
                    // There was room for the request while the charges were read again. The request
                    // is therefore tried again after a back-off. The total time of back-offs is
                    // bounded, because room may come and go forever.
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
            return Err(Refusal { level, charged });
        }
    }
}

enum Confirmed {
    Over(u64),
    OnlyDraining(u64),
    Not,
}

/// Confirms that a request does not fit, by reading the words of all slots at least twice. One
/// reading can be too high: memory that moves from a low slot to a high slot is counted twice. Two
/// equal readings show that no memory moved. If the readings differ, the function reads again, at
/// most [`LOOKS`] times.
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
    if charged.saturating_sub(pending) + n > max || word_is_full(rung, n) {
        Confirmed::Over(charged)
    } else {
        Confirmed::OnlyDraining(charged)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
