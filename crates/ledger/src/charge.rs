//! The charge algorithm: a process first publishes its request for memory, and then checks the sum
//! of all charges against the limit. The algorithm uses neither a lock nor a shared total.
//!
//! A process *publishes* a request: in one step it adds the requested units of memory to its own
//! word in the ledger, both as charged and as undecided. Only then does the process read the sum
//! over all slots. If two processes race for the last bytes, at least one of them therefore sees
//! the request of the other. If both see the request of the other, both withdraw their requests and
//! look at the words again.
//!
//! The code is generic over the kind of the words. The model checker loom therefore runs the same
//! code on words of its own.

use super::atomic::{Ordering, Word};

/// Bytes per unit of a word.
pub(super) const UNIT: u64 = 4096;
/// Largest request in units of 4 KiB (4 TiB).
pub(super) const REQUEST_MAX: u64 = 1 << 30;
/// Largest number of charged units in a word (8 TiB). A word with more charged units receives no
/// further charge. Otherwise concurrent requests of one process could overflow from the charged
/// half of the word into the undecided half. Even so, three threads that request 4 TiB each at the
/// same time could cause an overflow.
const WORD_MAX: u64 = 1 << 31;
/// Number of additional looks at a level's words before a request is refused. Additional looks are
/// needed if successive looks differ, because memory may be moving between slots.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 64 };
/// Number of looks that may find undecided requests of other processes in the way. After so many
/// looks the algorithm checks whether these processes are alive.
const CONTENDED: u32 = if cfg!(loom) { 2 } else { 8 };
/// Largest number of times that a request makes its own process give back idle memory.
const RECLAIMS: u32 = 16;

/// Returns the charged units of a word, including undecided units.
#[inline]
pub(super) const fn charged(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// Returns the undecided units of a word.
#[inline]
pub(super) const fn undecided(word: u64) -> u64 {
    word >> 32
}

/// Returns the granted units of a word. The subtraction never underflows, whatever the ledger file
/// contains.
#[inline]
pub(super) const fn granted(word: u64) -> u64 {
    charged(word).saturating_sub(undecided(word))
}

/// Returns the number to add to a word to publish a request of `n` units: `n` charged and `n`
/// undecided units.
#[inline]
const fn published(n: u64) -> u64 {
    n | n << 32
}

/// One device in the ledger of one level, as the charging process sees it. The first level is the
/// process's own group, the last level is the root group.
pub(super) trait Rung {
    type Word: Word;
    /// Returns this process's own word in the ledger.
    fn own(&self) -> &Self::Word;
    /// Returns the word that holds `high_water`: a sum over the slots reads this number of slots.
    fn high_water(&self) -> &Self::Word;
    /// Returns the words of the slots with an index below `high_water`, including this process's
    /// own.
    fn words<'a>(&'a self, high_water: u64) -> impl Iterator<Item = &'a Self::Word>
    where
        Self::Word: 'a;
    /// Returns the limit in units, minus the units that are protected for other groups. Call this
    /// method before reading the words whose sum is compared with the limit.
    fn max(&self) -> u64;
    /// Returns whether the mapping of the ledger was replaced by private zeros. Call this method
    /// after reading words: if the result is true, the words were not those of the ledger.
    fn is_lost(&self) -> bool {
        false
    }
    /// Raises the peaks after a grant. `total` is the number of units that are granted to all
    /// processes, and `own` is the number of those units that are granted to this process.
    fn note(&self, total: u64, own: u64);
    /// Begins a change of this process's own word. Call before the change, and call one of the next
    /// three methods after it. Returns false if another process has changed this process's word.
    /// The method has then repaired the word, and the caller may not grant a request.
    fn begin(&self) -> bool;
    /// Ends a change that left the own word as it was at [`Self::begin`].
    fn withdrawn(&self);
    /// Ends a change that added `n` units to the own word.
    fn added(&self, n: u64);
    /// Ends a change that took `n` units from the own word.
    fn taken(&self, n: u64);
}

/// The actions that the slow path of a charge needs from its caller.
pub(super) trait Surroundings<R> {
    /// Gives back idle memory of this process; returns false if this process has none.
    fn reclaim(&mut self) -> bool;
    /// Cleans the slots of dead processes at a level. The method reports freed memory only for a
    /// bounded time: the slow path repeats while memory is freed, and must end.
    fn reap(&mut self, rung: &R) -> Reaped;
    /// Asks the other processes of a level to give back their idle memory. Returns false if no
    /// memory was given back, or if the time for asking is over.
    fn ask_others(&mut self, rung: &R, n: u64) -> bool;
    /// Waits for a short random time, so that requests of other processes can be decided. Returns
    /// false if the time for such waits is over.
    fn back_off(&mut self) -> bool;
    /// Waits a moment for the slots of dead processes to drain. Returns false if the time for
    /// draining is over.
    fn wait_for_drain(&mut self) -> bool;
}

/// The result of cleaning the slots of dead processes at a level.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Reaped {
    /// Whether the cleaning freed memory or withdrew a dead process's undecided request.
    pub freed: bool,
    /// Units that will be freed soon without an action of this process. They lie in slots that
    /// drain, or in slots that another process is cleaning.
    pub pending: u64,
}

/// The level that refused a request, and the units granted at that level.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Refusal {
    pub level: usize,
    pub charged: u64,
}

/// A counter of the memory that a process has charged but does not use.
///
/// Both methods are called while the units of the request are undecided in the process's words.
/// Therefore `settled` can read a word and this counter together. It sees the request in both of
/// them or in neither.
pub trait Idle {
    /// Adds the bytes of a granted request to the counter, because the process does not use them
    /// yet.
    fn add(&self);
    /// Removes the bytes of a request from the counter, because the process gives them back unused.
    fn remove(&self);
}

/// A counter that counts nothing. For requests whose bytes are used as soon as they are charged.
impl Idle for () {
    #[inline]
    fn add(&self) {}

    #[inline]
    fn remove(&self) {}
}

/// Makes one attempt to charge `n` units at every level. On failure, returns the level at which the
/// request exceeded the limit.
///
/// The function is not `inline`. Otherwise the library would contain a copy of the function for
/// each crate that calls it.
pub(super) fn attempt<R: Rung, I: Idle + ?Sized>(
    rungs: &[R],
    level: usize,
    n: u64,
    idle: &I,
) -> Result<(), usize> {
    let Some((rung, above)) = rungs.split_first() else {
        // The idle counter changes after the fence of the last level. A process that sees the
        // change of the counter therefore also sees the request.
        idle.add();
        return Ok(());
    };
    let own = rung.own();
    if !rung.begin() || word_is_full(rung, n) {
        rung.withdrawn();
        return Err(level);
    }
    let max = rung.max();
    // Release order is for memory that moves from another slot to this slot. A process that sees
    // the memory in this slot then also sees that the memory has left the other slot.
    own.fetch_add(published(n), Ordering::Release);
    // If two processes publish requests, the process whose fence comes second sees the request of
    // the other process. `high_water` is also read after the fence. A process that then has no slot
    // below `high_water` has not published a request yet. It will see this request after it has
    // published its first request.
    R::Word::fence(Ordering::SeqCst);
    let seen = total(rung, |_| {});
    if seen.charged > max || rung.is_lost() {
        own.fetch_sub(published(n), Ordering::Release);
        rung.withdrawn();
        return Err(level);
    }
    match attempt(above, level + 1, n, idle) {
        Ok(()) => {
            // The request stays undecided until it fits at all levels. If the request were decided
            // earlier and withdrawn later, another process could count the request as granted in
            // between. That process could then be refused for memory that nobody gets.
            let before = own.fetch_sub(n << 32, Ordering::Release);
            rung.added(n);
            // The peak does not include undecided units of other processes or other threads.
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

/// Charges `n` units that the driver has already handed out, even if the limit does not allow them.
pub(super) fn add_unchecked<R: Rung>(rungs: &[R], n: u64) {
    for rung in rungs {
        // The driver has already handed out the memory, so the charge is made whatever `begin`
        // returns.
        rung.begin();
        if word_is_full(rung, n) {
            rung.withdrawn();
        } else {
            rung.own().fetch_add(n, Ordering::Release);
            rung.added(n);
        }
    }
}

/// Gives back `n` units at every level, or all granted units if these are fewer.
#[inline]
pub(super) fn uncharge<R: Rung>(rungs: &[R], n: u64) {
    for rung in rungs {
        rung.begin();
        rung.taken(take_out(rung.own(), n));
    }
}

/// Gives back `n` units at every level, as [`uncharge`] does. The units were charged ahead and not
/// used, so the function also removes them from `idle`.
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
    // The order is SeqCst for the reason that `take_out` gives: the units must be gone from the
    // word before the caller checks for waiting processes.
    own.fetch_sub(published(there), Ordering::SeqCst);
    rung.taken(there);
}

/// Reads a word together with a figure that belongs to it, such as the counter [`Idle`]. The owner
/// of the word changes both during one request. The function repeats its look until both values are
/// from one moment, and calls `again` between two looks, to let time pass. If `again` returns
/// false, the function returns the last values, although they may be from different moments. This
/// happens if the owner of the word was stopped in the middle of a request.
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

/// Takes `n` units out of a word, or all granted units if these are fewer. Returns the number of
/// units taken.
#[inline]
pub(super) fn take_out(word: &impl Word, n: u64) -> u64 {
    // The number of granted units is outdated only if another thread gives back more than it has
    // charged, at the same time. A correct caller never does that.
    let n = n.min(granted(word.load(Ordering::Relaxed)));
    // The order SeqCst takes the units out before the caller checks for waiting processes. A
    // process that begins to wait after this check therefore finds the units gone from the word.
    word.fetch_sub(n, Ordering::SeqCst);
    n
}

#[inline]
fn word_is_full<R: Rung>(rung: &R, n: u64) -> bool {
    charged(rung.own().load(Ordering::Relaxed)) + n > WORD_MAX
}

/// The totals over the words of one level, in units.
struct Total {
    /// Includes undecided units.
    charged: u64,
    undecided: u64,
}

/// Adds up the words of a level in one pass, and calls `each` for every word.
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

/// The result of one pass over a level's words. The words are not from one moment: memory may move
/// between slots during the pass.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Look {
    /// Charged units, including undecided units.
    pub charged: u64,
    /// Undecided units.
    pub undecided: u64,
    /// A hash of the words: if two passes read different words, the hashes very probably differ.
    hash: u64,
}

impl Look {
    pub(super) fn granted(&self) -> u64 {
        self.charged.saturating_sub(self.undecided)
    }
}

/// Reads the words of a level without publishing a request.
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

/// The verdict on a request after one look at a level.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Verdict {
    Fits,
    /// The request fits unless undecided requests of other processes are granted first.
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

/// The slow path of a charge, taken when the first attempt found that the request exceeds the limit
/// of `level`.
///
/// The loop of the slow path always ends. After the first round there are at most [`RECLAIMS`]
/// rounds that reclaim idle memory. All other rounds need the consent of `surroundings`, which
/// consents for a bounded time only. A request that still does not fit is then refused.
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
                // An undecided request in the way may belong to a dead process. Such a request
                // stays undecided until the dead process's slot is cleaned.
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
                    // One of the looks found room for the request, so the request is tried again.
                    // It first backs off as if undecided requests were in the way. The time of all
                    // back-offs is bounded, because room may come and go forever.
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

/// Confirms that a request must be refused, with at least two looks at the level's words. One look
/// may count memory twice if the memory moves from a low slot to a high slot during the look. Two
/// equal looks show that no memory moved. While successive looks differ, the function looks again,
/// up to [`LOOKS`] times. Memory that keeps moving therefore does not cause a refusal by itself.
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
