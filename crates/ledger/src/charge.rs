//! Charging: reserve first, then look. No lock, no shared total.
//!
//! A request is *published* in the process's own word, as charged and undecided at once, before the
//! sum over all slots is read. Of two processes that race for the last bytes at least one therefore
//! sees the other; both may (and then both withdraw and look again), none cannot.
//!
//! Everything here is generic over where the words live, so that loom runs the same code.

use super::atomic::{Ordering, Word};

/// Bytes of one unit of a word.
pub(super) const UNIT: u64 = 4096;
/// Largest request in units (4 TiB).
pub(super) const REQUEST_MAX: u64 = 1 << 30;
/// A word that holds more units (8 TiB) gets nothing further, so that concurrent requests of one
/// process cannot carry from the charged half into the undecided half: that would take three
/// threads at once with 4 TiB each.
const WORD_MAX: u64 = 1 << 31;
/// Further looks that a refusal takes while the looks differ, that is while memory moves under
/// them.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 64 };
/// Of so many looks that find undecided requests in the way one asks whether those who made them
/// live.
const CONTENDED: u32 = if cfg!(loom) { 2 } else { 8 };
/// Times that one request asks its process for idle memory.
const RECLAIMS: u32 = 16;

/// Units charged in a word, undecided ones included.
#[inline]
pub(super) const fn charged(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// Undecided units of a word.
#[inline]
pub(super) const fn undecided(word: u64) -> u64 {
    word >> 32
}

/// Units of a word that were granted. Never underflows, whatever the file says.
#[inline]
pub(super) const fn granted(word: u64) -> u64 {
    charged(word).saturating_sub(undecided(word))
}

/// `n` units, charged and undecided.
#[inline]
const fn published(n: u64) -> u64 {
    n | n << 32
}

/// One device of one ledger on the path leaf → root, as the charging process sees it.
pub(super) trait Rung {
    type Word: Word;
    /// This process's own word.
    fn own(&self) -> &Self::Word;
    /// The number of slots to look at.
    fn high_water(&self) -> &Self::Word;
    /// The words of the slots below `high_water`, the own one included.
    fn words<'a>(&'a self, high_water: u64) -> impl Iterator<Item = &'a Self::Word>
    where
        Self::Word: 'a;
    /// The limit in units, less what is kept for others. To be read before the words that it is
    /// compared with.
    fn max(&self) -> u64;
    /// Whether what was read is not the words that others write. To be asked after they were read.
    fn is_lost(&self) -> bool {
        false
    }
    /// A request was granted: `total` units were granted in sum, `own` of them to this process.
    fn note(&self, total: u64, own: u64);
    /// Before the own word is changed; one of the next three comes after it. False: somebody else
    /// has changed what only this process may. That is put right, and nothing is to be granted.
    fn begin(&self) -> bool;
    /// The own word was not changed, or is as it was before.
    fn withdrawn(&self);
    /// `n` units were added to it.
    fn added(&self, n: u64);
    /// `n` units were taken from it.
    fn taken(&self, n: u64);
}

/// What the slow path needs from outside.
pub(super) trait Surroundings<R> {
    /// Gives back idle memory of this process; false when there is none.
    fn reclaim(&mut self) -> bool;
    /// Cleans the dead slots of a level. Says for a bounded time only that something was freed.
    fn reap(&mut self, rung: &R) -> Reaped;
    /// Asks the other processes at a level for idle memory; false when none came, or the time for
    /// that is over.
    fn ask_others(&mut self, rung: &R, n: u64) -> bool;
    /// Waits a random short time for other requests to be decided; false when the time for that is
    /// over.
    fn back_off(&mut self) -> bool;
    /// Waits a moment for dead slots to drain; false when the time for that is over.
    fn wait_for_drain(&mut self) -> bool;
}

/// What cleaning a level came to.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Reaped {
    /// Memory came back, or what a dead process had asked for is withdrawn.
    pub freed: bool,
    /// Units that will come back soon without anybody's doing: of slots that drain or that somebody
    /// is cleaning.
    pub pending: u64,
}

/// The level that said no, and the units granted there.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Refusal {
    pub level: usize,
    pub charged: u64,
}

/// The count of what a process has charged and does not use.
///
/// Both calls come while the units of the request are undecided in the process's words: who reads a
/// word and the count by `settled` sees the change of both, or of neither.
pub trait Idle {
    /// The request is granted: its bytes are charged, and not used yet.
    fn add(&self);
    /// The bytes are given back unused.
    fn remove(&self);
}

/// The bytes are used as soon as they are charged.
impl Idle for () {
    #[inline]
    fn add(&self) {}

    #[inline]
    fn remove(&self) {}
}

/// One try. `Err` is the level that was over its limit.
///
/// Not `inline`: it would be in the library once for each crate that calls it.
pub(super) fn attempt<R: Rung, I: Idle + ?Sized>(
    rungs: &[R],
    level: usize,
    n: u64,
    idle: &I,
) -> Result<(), usize> {
    let Some((rung, above)) = rungs.split_first() else {
        // After the fence of the last level: who sees the count sees the request, too.
        idle.add();
        return Ok(());
    };
    let own = rung.own();
    if !rung.begin() || word_is_full(rung, n) {
        rung.withdrawn();
        return Err(level);
    }
    let max = rung.max();
    // Releases, so that who sees memory arrive here also sees it gone from where it was.
    own.fetch_add(published(n), Ordering::Release);
    // Of two requests the one whose fence comes second sees what the other published. `high_water`
    // is read behind it too: a slot that is not below it now will see this request when it
    // publishes its own first.
    R::Word::fence(Ordering::SeqCst);
    let seen = total(rung, |_| {});
    if seen.charged > max || rung.is_lost() {
        own.fetch_sub(published(n), Ordering::Release);
        rung.withdrawn();
        return Err(level);
    }
    match attempt(above, level + 1, n, idle) {
        Ok(()) => {
            // Only now that all levels passed: cleared earlier, a request that is withdrawn later
            // would have looked granted to somebody, who was refused for it.
            let before = own.fetch_sub(n << 32, Ordering::Release);
            rung.added(n);
            // What is not decided yet, of others or of another thread, is nobody's usage.
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

/// Enters `n` units that the driver has handed out already, over the limit or not.
pub(super) fn enter<R: Rung>(rungs: &[R], n: u64) {
    for rung in rungs {
        // Whatever is found there: the driver has the memory.
        rung.begin();
        if word_is_full(rung, n) {
            rung.withdrawn();
        } else {
            rung.own().fetch_add(n, Ordering::Release);
            rung.added(n);
        }
    }
}

/// Gives `n` units back at every level. More than is charged gives back what is charged.
#[inline]
pub(super) fn uncharge<R: Rung>(rungs: &[R], n: u64) {
    for rung in rungs {
        rung.begin();
        rung.taken(take_out(rung.own(), n));
    }
}

/// As [`uncharge`], of units that were charged ahead and not used.
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
    // As in `take_out`.
    own.fetch_sub(published(there), Ordering::SeqCst);
    rung.taken(there);
}

/// A word and a figure that its process changes with it ([`Idle`]), as they were at one moment.
/// `again` lets time go by until the next look; false: there is none left, as where the process was
/// stopped in the middle of a request.
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

/// Takes `n` units out of a word, or what is charged there, and says how many that were.
#[inline]
pub(super) fn take_out(word: &impl Word, n: u64) -> u64 {
    // Not exact against another thread that gives back too much at the same time; a correct caller
    // never does.
    let n = n.min(granted(word.load(Ordering::Relaxed)));
    // Before the look whether somebody waits: one who began to wait after that look sees this gone.
    word.fetch_sub(n, Ordering::SeqCst);
    n
}

#[inline]
fn word_is_full<R: Rung>(rung: &R, n: u64) -> bool {
    charged(rung.own().load(Ordering::Relaxed)) + n > WORD_MAX
}

/// Units at a level.
struct Total {
    /// Undecided ones included.
    charged: u64,
    undecided: u64,
}

/// One pass over the words of a level, each of which `each` is told of.
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

/// A level as one pass over its words saw it; not a moment in time, as memory may move between
/// slots meanwhile.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Look {
    /// Units, undecided ones included.
    pub charged: u64,
    /// Units.
    pub undecided: u64,
    /// Differs when the words differ, but for rare chance.
    print: u64,
}

impl Look {
    pub(super) fn granted(&self) -> u64 {
        self.charged.saturating_sub(self.undecided)
    }
}

/// Reads a level without publishing.
pub(super) fn look<R: Rung>(rung: &R) -> Look {
    R::Word::fence(Ordering::SeqCst);
    let mut print = 0_u64;
    let Total { charged, undecided } = total(rung, |word| {
        print = (print.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    });
    Look {
        charged,
        undecided,
        print,
    }
}

/// What a look says about a request.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Verdict {
    Fits,
    /// It fits unless undecided requests of others are granted.
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
/// Ends: each round but the first is one of those that [`RECLAIMS`] bounds, or one that the
/// surroundings grant, and these are bounded in time. What does not fit then is refused.
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
                // What a dead process has asked for nobody decides.
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
                    // As with other requests in the way: room may come and go for ever.
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

/// Looks at least twice: one look may count memory twice that moves from a low slot to a high one
/// under it. Two equal looks saw no movement; while they differ, it looks on, so that even steady
/// movement does not make a refusal.
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
