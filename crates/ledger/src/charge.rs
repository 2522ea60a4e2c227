//! The charge algorithm: reserve first, then check the sum. It uses neither a lock nor a shared
//! total.
//!
//! A process *publishes* a request: in one step it adds the request to its own word both as charged
//! and as undecided. Only then does the process read the sum over all slots. If two processes race
//! for the last bytes, at least one of them therefore sees the other's request. Both may see the
//! other; then both withdraw and look again. It cannot happen that neither sees the other.
//!
//! The code is generic over the location of the words, so that the model checker loom runs the same
//! code.

use super::atomic::{Ordering, Word};

/// Bytes per unit of a word.
pub(super) const UNIT: u64 = 4096;
/// Largest request in units (4 TiB).
pub(super) const REQUEST_MAX: u64 = 1 << 30;
/// A word with more units than this (8 TiB) receives no further charge, so that concurrent requests
/// of one process cannot carry from the charged half into the undecided half. A carry would take
/// three threads that request 4 TiB each at the same time.
const WORD_MAX: u64 = 1 << 31;
/// Number of additional looks at the words before a refusal, while successive looks differ because
/// memory moves between slots.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 64 };
/// After this many looks that find undecided requests in the way, the algorithm checks whether the
/// requesting processes are alive.
const CONTENDED: u32 = if cfg!(loom) { 2 } else { 8 };
/// Number of times that one request asks its own process to give back idle memory.
const RECLAIMS: u32 = 16;

/// Returns the charged units of a word, undecided ones included.
#[inline]
pub(super) const fn charged(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// Returns the undecided units of a word.
#[inline]
pub(super) const fn undecided(word: u64) -> u64 {
    word >> 32
}

/// Returns the granted units of a word. Never underflows, whatever the file contains.
#[inline]
pub(super) const fn granted(word: u64) -> u64 {
    charged(word).saturating_sub(undecided(word))
}

/// Returns the change that publishes a request of `n` units: charged and undecided.
#[inline]
const fn published(n: u64) -> u64 {
    n | n << 32
}

/// One device of one ledger, on the path from the process's own group up to the root, as the
/// charging process sees it.
pub(super) trait Rung {
    type Word: Word;
    /// Returns this process's own word.
    fn own(&self) -> &Self::Word;
    /// Returns the word that holds the number of slots to read.
    fn high_water(&self) -> &Self::Word;
    /// Returns the words of the slots below `high_water`, including this process's own.
    fn words<'a>(&'a self, high_water: u64) -> impl Iterator<Item = &'a Self::Word>
    where
        Self::Word: 'a;
    /// Returns the limit in units, minus the units that are protected for other groups. Must be
    /// read before the words that it is compared with.
    fn max(&self) -> u64;
    /// Returns whether the mapping was replaced by zeros, so that the words just read were not the
    /// shared ones. Call after reading the words.
    fn is_lost(&self) -> bool {
        false
    }
    /// Records the usage after a grant: `total` units are granted in sum, `own` of them to this
    /// process.
    fn note(&self, total: u64, own: u64);
    /// Call before changing the own word, and then one of the next three methods afterwards.
    /// Returns false if another process has changed this process's word; the word is then repaired,
    /// and no request may be granted.
    fn begin(&self) -> bool;
    /// Ends a change: the own word is as it was at [`Self::begin`].
    fn withdrawn(&self);
    /// Ends a change: `n` units were added to the own word.
    fn added(&self, n: u64);
    /// Ends a change: `n` units were taken from the own word.
    fn taken(&self, n: u64);
}

/// The actions that the slow path needs from its caller.
pub(super) trait Surroundings<R> {
    /// Gives back idle memory of this process; false if there is none.
    fn reclaim(&mut self) -> bool;
    /// Cleans the dead slots of a level. Reports freed memory only for a bounded time, so that the
    /// slow path ends.
    fn reap(&mut self, rung: &R) -> Reaped;
    /// Asks the other processes of a level for their idle memory; false if no memory came, or if
    /// the time for asking is over.
    fn ask_others(&mut self, rung: &R, n: u64) -> bool;
    /// Waits for a short random time, so that other requests can be decided; false if the time for
    /// waiting is over.
    fn back_off(&mut self) -> bool;
    /// Waits a moment for dead slots to drain; false if the time for draining is over.
    fn wait_for_drain(&mut self) -> bool;
}

/// The result of cleaning a level.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Reaped {
    /// Whether memory was freed or a dead process's undecided request was withdrawn.
    pub freed: bool,
    /// Units that will be freed soon without further action: those of slots that drain or that
    /// another process is cleaning.
    pub pending: u64,
}

/// The level that refused a request, and the units granted there.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Refusal {
    pub level: usize,
    pub charged: u64,
}

/// A counter of memory that a process has charged but does not use.
///
/// Both methods are called while the units of the request are undecided in the process's words.
/// `settled` can therefore read a word and the counter so that it sees both changes or neither.
pub trait Idle {
    /// Adds the request's bytes: the request is granted, and its bytes are not used yet.
    fn add(&self);
    /// Removes the request's bytes: they are given back unused.
    fn remove(&self);
}

/// For requests whose bytes are used as soon as they are charged.
impl Idle for () {
    #[inline]
    fn add(&self) {}

    #[inline]
    fn remove(&self) {}
}

/// Makes one attempt to charge `n` units at every level. On failure returns the level that was over
/// its limit.
///
/// Not `inline`, because each calling crate would then add a copy to the library.
pub(super) fn attempt<R: Rung, I: Idle + ?Sized>(
    rungs: &[R],
    level: usize,
    n: u64,
    idle: &I,
) -> Result<(), usize> {
    let Some((rung, above)) = rungs.split_first() else {
        // Called after the last level's fence, so that a process that sees the counter's change
        // also sees the request.
        idle.add();
        return Ok(());
    };
    let own = rung.own();
    if !rung.begin() || word_is_full(rung, n) {
        rung.withdrawn();
        return Err(level);
    }
    let max = rung.max();
    // Release order: a process that sees moved memory arrive here also sees it gone from its old
    // slot.
    own.fetch_add(published(n), Ordering::Release);
    // Of two requests, the one whose fence comes second sees what the other published. `high_water`
    // is also read after the fence: the owner of a slot that is not below `high_water` now will see
    // this request after publishing its own first one.
    R::Word::fence(Ordering::SeqCst);
    let seen = total(rung, |_| {});
    if seen.charged > max || rung.is_lost() {
        own.fetch_sub(published(n), Ordering::Release);
        rung.withdrawn();
        return Err(level);
    }
    match attempt(above, level + 1, n, idle) {
        Ok(()) => {
            // The request stays undecided until all levels have passed. If it were decided earlier
            // and then withdrawn, another process could have seen it as granted and been refused
            // because of it.
            let before = own.fetch_sub(n << 32, Ordering::Release);
            rung.added(n);
            // Undecided units of other processes or other threads do not count as usage.
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

/// Charges `n` units that the driver has already handed out, whether or not the limit allows them.
pub(super) fn add_unchecked<R: Rung>(rungs: &[R], n: u64) {
    for rung in rungs {
        // The result is ignored, because the driver has already handed out the memory.
        rung.begin();
        if word_is_full(rung, n) {
            rung.withdrawn();
        } else {
            rung.own().fetch_add(n, Ordering::Release);
            rung.added(n);
        }
    }
}

/// Gives back `n` units at every level, or the charged units if they are fewer.
#[inline]
pub(super) fn uncharge<R: Rung>(rungs: &[R], n: u64) {
    for rung in rungs {
        rung.begin();
        rung.taken(take_out(rung.own(), n));
    }
}

/// Gives back `n` units at every level, as [`uncharge`] does, that were charged ahead and not used.
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
    // SeqCst for the same reason as in `take_out`.
    own.fetch_sub(published(there), Ordering::SeqCst);
    rung.taken(there);
}

/// Reads a word, and a figure that its process changes together with the word ([`Idle`]), as they
/// were at one moment. `again` passes time until the next look; if it returns false, the last
/// values are returned although they may be inconsistent. This happens if the process was stopped
/// in the middle of a request.
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

/// Takes `n` units out of a word, or the granted units if they are fewer. Returns the number of
/// units taken.
#[inline]
pub(super) fn take_out(word: &impl Word, n: u64) -> u64 {
    // Inexact if another thread gives back too much at the same time, which a correct caller never
    // does.
    let n = n.min(granted(word.load(Ordering::Relaxed)));
    // Happens before the caller checks for waiting processes (SeqCst): a process that begins to
    // wait after that check sees these units gone.
    word.fetch_sub(n, Ordering::SeqCst);
    n
}

#[inline]
fn word_is_full<R: Rung>(rung: &R, n: u64) -> bool {
    charged(rung.own().load(Ordering::Relaxed)) + n > WORD_MAX
}

/// The sums of a level's words, in units.
struct Total {
    /// Includes undecided units.
    charged: u64,
    undecided: u64,
}

/// Sums up the words of a level in one pass. Calls `each` for every word.
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

/// The result of one pass over a level's words. Not a snapshot of one moment: memory may move
/// between slots during the pass.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Look {
    /// Units, including undecided ones.
    pub charged: u64,
    /// Undecided units.
    pub undecided: u64,
    /// A hash of the words: if two passes read different words, their hashes very probably differ.
    hash: u64,
}

impl Look {
    pub(super) fn granted(&self) -> u64 {
        self.charged.saturating_sub(self.undecided)
    }
}

/// Reads a level without publishing a request.
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
    /// The request fits unless undecided requests of other processes are granted.
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

/// The slow path, taken when the first attempt found `level` over its limit.
///
/// This loop ends. Every round but the first is either one of the [`RECLAIMS`] reclaiming rounds or
/// allowed by `surroundings`, which bounds all other rounds in time. A request that still does not
/// fit is refused.
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
                // A dead process's undecided request would otherwise stay undecided.
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
                    // Treated like requests in the way, with a bound in time, because room may come
                    // and go forever.
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

/// Confirms a refusal with at least two looks. One look may count memory twice if the memory moves
/// from a low slot to a high one during the look. Two equal looks saw no movement. While looks
/// differ, the function repeats them, up to [`LOOKS`] times, so that steady movement alone does not
/// cause a refusal.
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
