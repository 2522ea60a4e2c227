//! The gate of a process: calls of the driver that must not begin while the driver keeps the
//! process's memory on the host. Other members also tell the process there to look at its charges.
//!
//! Most calls of a suspended process wait in the driver. Some do not, and crash the process or fail
//! (measured, H100, driver 580.159.04). The process marks these calls in its slot, in the ledger of
//! its own group. An actor closes the gate and waits until no such call is under way.
//!
//! Each thread marks its call in a *line*, which is a cache line of its own as long as there are
//! enough. A thread remembers the line that it used last in its *own* word, whose address is its
//! mark. Threads that find no free line count their calls in the high half of the gate's word. The
//! low half of the word says what the gate holds back, and is a futex.
//!
//! A thread marks its call and then reads the gate. An actor closes the gate and then reads the
//! marks. So an actor that has closed the gate and sees no call knows that none begins. A call that
//! a thread makes inside another one (in a callback of the driver, or a signal handler) passes a
//! closed gate, because the actor waits for the outer one. Of a thread without a line, such a call
//! waits until the actor lets calls pass for a while.
//!
//! A mark stays if its thread is cancelled in the call, or jumps out of the call: the process
//! cannot be suspended any more. The slot's next owner clears the marks of a killed process.
//!
//! An actor may die at any time, and nobody need come after it. So a thread that waits at the gate
//! asks the driver now and then, and opens the gate of a process that runs ([`step`]). The low half
//! has a *generation*, which each change of the gate by an actor raises: a thread that has taken an
//! actor for dead does not undo the work of the next one, and an actor notices such a thread.

use super::Ledger;
use super::atomic::{AtomicU64, Ordering};
use super::os;
use super::slot::Slot;
use gpulimit_base::identity::Identity;
use std::time::Duration;

/// Number of threads with a line.
const LINES: usize = if cfg!(all(test, loom)) { 1 } else { 20 };

/// The gate holds back calls that wait for work on the GPU.
const WAITS: u64 = 1;
/// The gate holds back all calls.
const ALL: u64 = 1 << 1;
/// An actor is about to lock the process, or has locked it: a lock that the driver reports is the
/// actor's, and not that of another tool.
const OURS: u64 = 1 << 2;
const HELD: u64 = WAITS | ALL | OURS;
const GENERATION: u64 = 1 << 3;
/// The bits of an actor's work: what the gate holds back, and the generation, which only actors
/// raise.
const LOW: u64 = i32::MAX as u64;
/// The process is to compare its charges with its own records: the next call does so, and goes on.
const RESTORE: u64 = 1 << 31;
/// One short call under way, and one that waits for work on the GPU.
const SHORT: u64 = 1 << 32;
const WAIT: u64 = 1 << 48;

/// A kind of calls that a gate holds back.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Calls {
    /// Calls that end soon.
    Short,
    /// Calls that wait for work on the GPU.
    Waits,
}

impl Calls {
    const fn one(self) -> u64 {
        match self {
            Self::Short => SHORT,
            Self::Waits => WAIT,
        }
    }

    /// Returns the mark of a call of the thread with this own word. No other living thread of the
    /// process has that word, and its address is even.
    fn mark(self, own: &AtomicU64) -> u64 {
        std::ptr::from_ref(own).addr() as u64 | matches!(self, Self::Waits) as u64
    }

    /// Returns whether such calls do more at a gate with this word than to mark themselves.
    const fn are_stopped(self, word: u64) -> bool {
        self.are_held(word) || word & RESTORE != 0
    }

    /// Returns whether a gate with this word holds such calls back.
    const fn are_held(self, word: u64) -> bool {
        match self {
            Self::Short => word & ALL != 0,
            Self::Waits => word & (WAITS | ALL) != 0,
        }
    }
}

/// How long a thread sleeps before it looks at the gate again. Opening the gate wakes it.
const NAP: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 1_000 });
/// How often in a row a thread sees the same before it acts: an actor may be between two steps.
const SURE: u32 = 2;
/// How often in a row a thread sees its process locked before it takes what the ledger says of an
/// actor for forged: half an hour. An actor that moves a terabyte of other processes needs less.
pub const FORGED: u32 = 1_800;

/// The state in which the driver reports the process that owns a gate.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Says {
    /// The process runs.
    Runs,
    /// The process is locked, and its memory is on the GPUs.
    IsLocked,
    /// The memory is on the host or on its way, or the driver does not say where it is.
    IsAway,
}

/// The next action of a thread that waits at a closed gate.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// Look again later.
    Wait,
    /// Charge what is suspended, and open the gate.
    Open,
    /// Charge what is suspended, and unlock the process.
    Unlock,
}

/// Returns the next step of a thread that has seen the same `looks` times in a row. `is_ours`: the
/// gate says that an actor has locked the process. Another tool's lock is left alone. Any member
/// can write the gate, and hold the lock of an actor (`has_actor`): so this wait is bounded, too.
pub fn step(says: Says, looks: u32, is_ours: bool, has_actor: impl FnOnce() -> bool) -> Step {
    match says {
        Says::Runs if looks >= SURE => Step::Open,
        Says::IsLocked if looks >= FORGED => Step::Unlock,
        Says::IsLocked if looks >= SURE && is_ours && !has_actor() => Step::Unlock,
        _ => Step::Wait,
    }
}

/// The process of a thread that waits at a closed gate. No function of it makes a gated call.
pub trait Owner {
    /// Asks the driver.
    fn says(&self) -> Says;
    /// Returns whether an actor works on the process.
    fn has_actor(&self) -> bool;
    /// Charges the suspended bytes: see [`Ledger::take_back`]. Returns false if that must be tried
    /// again.
    fn charge(&self, is_due: &dyn Fn() -> bool) -> bool;
    /// Asks the driver to unlock the process.
    fn unlock(&self);
    /// Restores the charges that other processes have lowered. Takes no lock.
    fn restore(&self);
}

/// The gate of a process, in its slot.
#[derive(Debug)]
#[repr(C)]
pub struct Gate {
    word: AtomicU64,
    /// Number of threads that have made a call.
    threads: AtomicU64,
    spare: [AtomicU64; LINES - 1],
    lines: [GateLine; LINES],
}

/// The mark of a call under way, or 0. Processors fetch cache lines in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct GateLine(AtomicU64);

/// Where a call is marked: in a line, or in the gate's word. `None`: the thread has marked an outer
/// call.
#[derive(Debug)]
#[must_use]
pub struct Place<'a>(Option<&'a AtomicU64>);

impl Gate {
    /// Begins a call in the line that the thread used last. Fails where [`Gate::enter`] has to do
    /// more than that.
    #[inline(always)]
    pub fn enter_line(&self, own: &AtomicU64, calls: Calls) -> Option<&GateLine> {
        let line = self.take_last(own, calls)?;
        if calls.are_stopped(self.word.load(Ordering::SeqCst)) {
            line.leave();
            return None;
        }
        Some(line)
    }

    /// Begins a call. Fails if an actor holds such calls back, or if the process is to restore its
    /// charges: call [`Gate::wait`] then. `own` is 0 in a new thread, and no other living thread of
    /// the process has it.
    pub fn enter(&self, own: &AtomicU64, calls: Calls) -> Result<Place<'_>, Place<'_>> {
        let place = self.mark(own, calls);
        match place.0.is_some() && calls.are_stopped(self.word.load(Ordering::SeqCst)) {
            true => Err(place),
            false => Ok(place),
        }
    }

    fn mark(&self, own: &AtomicU64, calls: Calls) -> Place<'_> {
        let last = self.take_last(own, calls).map(|line| &line.0);
        Place(last.or_else(|| self.find_place(own, calls)))
    }

    #[inline(always)]
    fn take_last(&self, own: &AtomicU64, calls: Calls) -> Option<&GateLine> {
        let last = own.load(Ordering::Relaxed).wrapping_sub(1);
        let line = self.lines.get(last as usize)?;
        line.take(calls.mark(own)).then_some(line)
    }

    fn find_place(&self, own: &AtomicU64, calls: Calls) -> Option<&AtomicU64> {
        let is_own =
            |line: &GateLine| line.0.load(Ordering::Relaxed) & !1 == Calls::Short.mark(own);
        if self.lines.iter().any(is_own) {
            return None;
        }
        let first = match own.load(Ordering::Relaxed) {
            0 => self.threads.fetch_add(1, Ordering::Relaxed),
            last => last - 1,
        } as usize
            % LINES;
        for at in (first..LINES).chain(0..first) {
            // Before the mark: a signal handler that comes in between finds the mark here.
            own.store(at as u64 + 1, Ordering::Relaxed);
            if self.lines[at].take(calls.mark(own)) {
                return Some(&self.lines[at].0);
            }
        }
        self.word.fetch_add(calls.one(), Ordering::SeqCst);
        Some(&self.word)
    }

    /// Ends a call.
    pub fn leave(&self, calls: Calls, place: Place<'_>) {
        match place.0 {
            Some(word) if std::ptr::eq(word, &self.word) => {
                self.word.fetch_sub(calls.one(), Ordering::SeqCst);
            }
            Some(line) => line.store(0, Ordering::Release),
            None => {}
        }
    }

    /// Returns whether an actor holds calls back.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.word.load(Ordering::SeqCst) & HELD != 0
    }

    /// Returns whether calls are under way.
    pub fn has_calls(&self) -> bool {
        self.under_way(Calls::Short) > 0
    }

    fn under_way(&self, calls: Calls) -> u64 {
        let marks = self.lines.iter().map(|line| line.0.load(Ordering::SeqCst));
        let word = self.word.load(Ordering::SeqCst);
        match calls {
            Calls::Waits => word / WAIT + marks.map(|mark| mark & 1).sum::<u64>(),
            Calls::Short => {
                let marked = marks.filter(|mark| *mark != 0).count() as u64;
                word / WAIT + word % WAIT / SHORT + marked
            }
        }
    }

    /// Returns the words of the gate: its own, and those that threads mark calls in.
    #[cfg(all(test, loom))]
    pub(super) fn words(&self) -> (&AtomicU64, impl Iterator<Item = &AtomicU64>) {
        (&self.word, self.lines.iter().map(|line| &line.0))
    }

    /// Opens the gate, and forgets all calls.
    pub(super) fn clear(&self) {
        let lines = self.lines.iter().map(|line| &line.0);
        for word in lines.chain([&self.threads, &self.word]) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Begins the call for which [`Gate::enter`] has failed, once the gate is open. Restores
    /// charges first if that is asked for.
    #[cold]
    pub fn wait(
        &self,
        own: &AtomicU64,
        calls: Calls,
        place: Place<'_>,
        owner: &dyn Owner,
    ) -> Place<'_> {
        self.leave(calls, place);
        let (mut looked, mut seen, mut looks) = (os::now(), None, 0);
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if word & RESTORE != 0 {
                // First, so that a member which asks again meanwhile is heard.
                self.word.fetch_and(!RESTORE, Ordering::SeqCst);
                owner.restore();
            }
            if !calls.are_held(word) {
                let place = self.mark(own, calls);
                if place.0.is_none() || !calls.are_held(self.word.load(Ordering::SeqCst)) {
                    return place;
                }
                self.leave(calls, place);
                continue;
            }
            if os::now().duration_since(looked) < NAP {
                os::futex_wait(&self.word, word as u32, NAP);
                continue;
            }
            let low = word & LOW;
            let says = owner.says();
            looks = if seen == Some((low, says)) {
                looks + 1
            } else {
                1
            };
            seen = Some((low, says));
            let is_due = || self.word.load(Ordering::SeqCst) & LOW == low;
            match step(says, looks, low & OURS != 0, || owner.has_actor()) {
                Step::Open if owner.charge(&is_due) && self.open(low, calls) => {
                    return Place(Some(&self.word));
                }
                Step::Unlock if owner.charge(&is_due) => owner.unlock(),
                _ => {}
            }
            looked = os::now();
        }
    }

    /// Opens the gate if its low half is still this, and begins a call in the same step: a member
    /// that closes the gate again and again does not keep the thread for ever.
    fn open(&self, low: u64, calls: Calls) -> bool {
        let mut word = self.word.load(Ordering::SeqCst);
        while word & LOW == low {
            let open = (word & !HELD).wrapping_add(calls.one());
            let order = Ordering::SeqCst;
            match self.word.compare_exchange(word, open, order, order) {
                Ok(_) => {
                    os::futex_wake_all(&self.word);
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }
}

impl Slot {
    /// Returns this process's gate. It is open when the slot is claimed.
    pub fn gate(&self) -> &Gate {
        &self.page().gate
    }
}

impl GateLine {
    #[inline]
    fn take(&self, mark: u64) -> bool {
        let (set, failed) = (Ordering::SeqCst, Ordering::Relaxed);
        self.0.compare_exchange(0, mark, set, failed).is_ok()
    }

    /// Ends the call that [`Gate::enter_line`] has begun.
    #[inline]
    pub fn leave(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Ledger {
    /// Lets the calls of a member wait that begin from now on, those of one kind or
    /// ([`Calls::Short`]) all. Returns the mark of that: see [`Ledger::is_held_back`].
    pub fn close_gate(&self, process: &Identity, calls: Calls) -> u64 {
        let held = match calls {
            Calls::Waits => WAITS,
            Calls::Short => WAITS | ALL | OURS,
        };
        let next = |word: u64| (word & LOW & !HELD).wrapping_add(GENERATION) & LOW | held;
        let change = |word| Some(word & !LOW | next(word));
        let Some(Gate { word: gate, .. }) = self.gate_of(process) else {
            return 0;
        };
        let (set, failed) = (Ordering::SeqCst, Ordering::SeqCst);
        let (Ok(before) | Err(before)) = gate.fetch_update(set, failed, change);
        // Short calls may have been held back before.
        os::futex_wake_all(gate);
        next(before)
    }

    /// Returns whether the gate of a member is closed as this actor has closed it. A thread of the
    /// member, or another actor, may have changed it.
    pub fn is_held_back(&self, process: &Identity, mark: u64) -> bool {
        let gate = self.gate_of(process);
        gate.is_none_or(|gate| gate.word.load(Ordering::SeqCst) & LOW == mark)
    }

    /// Says whether a lock of a member that the driver reports is that of an actor.
    pub fn note_lock(&self, process: &Identity, is_ours: bool) {
        if let Some(Gate { word: gate, .. }) = self.gate_of(process) {
            match is_ours {
                true => gate.fetch_or(OURS, Ordering::SeqCst),
                false => gate.fetch_and(!OURS, Ordering::SeqCst),
            };
        }
    }

    /// Lets the calls of a member go on. The member must be charged for what it has on the GPUs.
    pub fn open_gate(&self, process: &Identity) {
        if let Some(Gate { word, .. }) = self.gate_of(process)
            && word.fetch_and(!HELD, Ordering::SeqCst) & HELD != 0
        {
            os::futex_wake_all(word);
        }
    }

    /// Returns how many calls of a living member are under way, those that wait for work on the GPU
    /// or all.
    pub fn calls_under_way(&self, process: &Identity, calls: Calls) -> u64 {
        let gate = self.gate_of(process);
        gate.map_or(0, |gate| gate.under_way(calls))
    }

    /// Tells the members of the group to restore the charges that were lowered, at their next call
    /// that passes the gate. Members of groups below have their gates elsewhere.
    pub fn let_restore(&self) {
        let slots = self.high_water() * usize::from(self.map.writable());
        for page in &self.content().slots[..slots] {
            page.gate.word.fetch_or(RESTORE, Ordering::SeqCst);
        }
    }

    fn gate_of(&self, process: &Identity) -> Option<&Gate> {
        let slot = self.slot_of(process).filter(|_| self.map.writable())?;
        Some(&self.content().slots[slot].gate)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use gpulimit_support::wait_until;
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::thread;

    /// A process, as its driver and its ledger tell of it.
    struct Process {
        says: Mutex<Says>,
        has_actor: bool,
        looks: AtomicU32,
        is_charged: AtomicBool,
        is_unlocked: AtomicBool,
        restored: AtomicU32,
    }

    impl Process {
        fn that(says: Says) -> Self {
            Self {
                says: Mutex::new(says),
                has_actor: false,
                looks: AtomicU32::new(0),
                is_charged: AtomicBool::new(false),
                is_unlocked: AtomicBool::new(false),
                restored: AtomicU32::new(0),
            }
        }

        fn set(&self, says: Says) {
            *self.says.lock().expect("no panic") = says;
        }

        /// Waits until a thread at the gate has looked several times.
        fn await_looks(&self) {
            let before = self.looks.load(Ordering::SeqCst);
            let looks = || self.looks.load(Ordering::SeqCst) > before + 2 * SURE;
            wait_until("a thread looks", looks);
        }
    }

    impl Owner for Process {
        fn says(&self) -> Says {
            self.looks.fetch_add(1, Ordering::SeqCst);
            *self.says.lock().expect("no panic")
        }

        fn has_actor(&self) -> bool {
            self.has_actor
        }

        fn charge(&self, is_due: &dyn Fn() -> bool) -> bool {
            self.is_charged.store(true, Ordering::SeqCst);
            is_due()
        }

        fn restore(&self) {
            self.restored.fetch_add(1, Ordering::SeqCst);
        }

        fn unlock(&self) {
            assert!(self.is_charged.load(Ordering::SeqCst), "charged first");
            self.is_unlocked.store(true, Ordering::SeqCst);
            self.set(Says::Runs);
        }
    }

    /// Begins a call of another thread.
    #[track_caller]
    fn other(gate: &Gate, calls: Calls) -> Place<'_> {
        gate.enter(new_thread(), calls).expect("the gate is open")
    }

    /// Returns the own word of a new thread.
    fn new_thread() -> &'static AtomicU64 {
        Box::leak(Box::default())
    }

    #[test]
    fn a_closed_gate_holds_back_calls_until_it_opens() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own, away) = (
            slot.gate(),
            Identity::of_self(),
            Process::that(Says::IsAway),
        );
        let [short, waits] = [Calls::Short, Calls::Waits].map(|calls| other(gate, calls));
        scratch.close_gate(&own, Calls::Short);
        gate.leave(Calls::Short, short);
        assert_eq!(scratch.calls_under_way(&own, Calls::Short), 1);
        gate.leave(Calls::Waits, waits);
        let is_in = AtomicBool::new(false);
        thread::scope(|scope| {
            let entering = scope.spawn(|| {
                let own = new_thread();
                let held = gate.enter(own, Calls::Short).expect_err("closed");
                let _ = gate.wait(own, Calls::Short, held, &away);
                is_in.store(true, Ordering::SeqCst);
            });
            away.await_looks();
            assert!(!is_in.load(Ordering::SeqCst), "the gate is closed");
            scratch.open_gate(&own);
            entering.join().expect("the thread ends");
        });
        assert_eq!(scratch.calls_under_way(&own, Calls::Short), 1);
        assert!(!away.is_charged.load(Ordering::SeqCst));
    }

    #[test]
    fn short_calls_go_on_while_waits_are_held_back() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own) = (slot.gate(), Identity::of_self());
        let _waits = other(gate, Calls::Waits);
        let mark = scratch.close_gate(&own, Calls::Waits);
        let _short = other(gate, Calls::Short);
        let _held = (gate.enter(new_thread(), Calls::Waits)).expect_err("held back");
        let under_way = |calls| scratch.calls_under_way(&own, calls);
        assert_eq!((under_way(Calls::Waits), under_way(Calls::Short)), (2, 3));
        assert!(scratch.is_held_back(&own, mark));
        scratch.open_gate(&own);
        assert!(!scratch.is_held_back(&own, mark));
        let _waits = other(gate, Calls::Waits);
        let again = scratch.close_gate(&own, Calls::Waits);
        assert!(again != mark && scratch.is_held_back(&own, again));
    }

    #[test]
    fn no_call_is_under_way_once_a_closed_gate_shows_none() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own, away) = (
            slot.gate(),
            Identity::of_self(),
            Process::that(Says::IsAway),
        );
        let (down, over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            for calls in [Calls::Short, Calls::Waits, Calls::Short] {
                let (away, down, over) = (&away, &down, &over);
                scope.spawn(move || {
                    let own = new_thread();
                    while !over.load(Ordering::SeqCst) {
                        let entered = gate.enter(own, calls);
                        let wait = |held| gate.wait(own, calls, held, away);
                        let place = entered.unwrap_or_else(wait);
                        let crashes = down.load(Ordering::SeqCst);
                        gate.leave(calls, place);
                        assert!(!crashes, "a call is under way");
                    }
                });
            }
            for _ in 0..200 {
                scratch.close_gate(&own, Calls::Short);
                while scratch.calls_under_way(&own, Calls::Short) > 0 {
                    thread::yield_now();
                }
                down.store(true, Ordering::SeqCst);
                thread::yield_now();
                down.store(false, Ordering::SeqCst);
                scratch.open_gate(&own);
            }
            over.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn a_gate_that_a_dead_actor_has_closed_opens() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own) = (slot.gate(), Identity::of_self());
        for (says, is_locked) in [(Says::Runs, false), (Says::IsLocked, true)] {
            let process = Process::that(says);
            scratch.close_gate(&own, Calls::Short);
            let own = new_thread();
            let held = gate.enter(own, Calls::Waits).expect_err("held back");
            let place = gate.wait(own, Calls::Waits, held, &process);
            assert!(process.is_charged.load(Ordering::SeqCst));
            assert_eq!(process.is_unlocked.load(Ordering::SeqCst), is_locked);
            // Other calls go on.
            gate.leave(Calls::Short, other(gate, Calls::Short));
            gate.leave(Calls::Waits, place);
        }
        assert_eq!(scratch.calls_under_way(&own, Calls::Short), 0);
    }

    #[test]
    fn the_lock_of_another_tool_is_left_alone() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own, process) = (
            slot.gate(),
            Identity::of_self(),
            Process::that(Says::IsLocked),
        );
        scratch.close_gate(&own, Calls::Short);
        scratch.note_lock(&own, false);
        let thread = new_thread();
        let held = gate.enter(thread, Calls::Short).expect_err("held back");
        thread::scope(|scope| {
            let entering = scope.spawn(|| gate.wait(thread, Calls::Short, held, &process));
            process.await_looks();
            assert!(!process.is_unlocked.load(Ordering::SeqCst) && !entering.is_finished());
            process.set(Says::Runs);
        });
        assert!(!process.is_unlocked.load(Ordering::SeqCst));
    }

    #[test]
    fn a_thread_waits_for_an_actor_but_not_for_ever() {
        let step = |looks, is_ours, has_actor| step(Says::IsLocked, looks, is_ours, || has_actor);
        assert_eq!(step(SURE - 1, true, false), Step::Wait);
        assert_eq!(step(SURE, true, false), Step::Unlock);
        for (is_ours, has_actor) in [(true, true), (false, false)] {
            assert_eq!(step(FORGED - 1, is_ours, has_actor), Step::Wait);
            assert_eq!(step(FORGED, is_ours, has_actor), Step::Unlock, "forged");
        }
    }

    /// The bit by which a member asks for restored charges holds back no call, and leaves the mark
    /// of an actor as it is.
    #[test]
    fn the_next_call_restores_charges_and_goes_on() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own, thread) = (slot.gate(), Identity::of_self(), new_thread());
        let process = Process::that(Says::IsAway);
        for calls in [Calls::Short, Calls::Waits] {
            let mark = scratch.close_gate(&own, Calls::Waits);
            scratch.let_restore();
            assert!(scratch.is_held_back(&own, mark));
            scratch.open_gate(&own);
            assert!(gate.enter_line(thread, calls).is_none());
            let stopped = gate.enter(thread, calls).expect_err("asked");
            let place = gate.wait(thread, calls, stopped, &process);
            gate.leave(calls, place);
            let line = gate.enter_line(thread, calls).expect("asked once");
            line.leave();
        }
        assert_eq!(process.restored.load(Ordering::SeqCst), 2);
        // A call inside another one leaves it to the next.
        let line = gate.enter_line(thread, Calls::Short).expect("open");
        scratch.let_restore();
        assert!(
            gate.enter(thread, Calls::Short)
                .expect("nested")
                .0
                .is_none()
        );
        line.leave();
        let _stopped = gate.enter(thread, Calls::Short).expect_err("asked");
    }

    /// A thread that has taken an actor for dead must not open the gate for the next one.
    #[test]
    fn the_close_of_the_next_actor_is_not_undone() {
        struct Late<'a>(Process, &'a Ledger, AtomicBool);
        impl Owner for Late<'_> {
            fn says(&self) -> Says {
                self.0.says()
            }
            fn has_actor(&self) -> bool {
                false
            }
            fn charge(&self, is_due: &dyn Fn() -> bool) -> bool {
                assert!(is_due() && !self.2.swap(true, Ordering::SeqCst));
                self.1.close_gate(&Identity::of_self(), Calls::Short);
                self.0.set(Says::IsAway);
                assert!(!is_due());
                true
            }
            fn unlock(&self) {}
            fn restore(&self) {}
        }
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own) = (slot.gate(), Identity::of_self());
        scratch.close_gate(&own, Calls::Short);
        let thread = new_thread();
        let held = gate.enter(thread, Calls::Short).expect_err("held back");
        let process = Late(Process::that(Says::Runs), &scratch, AtomicBool::new(false));
        thread::scope(|scope| {
            let entering = scope.spawn(|| gate.wait(thread, Calls::Short, held, &process));
            wait_until("the thread acts", || process.2.load(Ordering::SeqCst));
            process.0.await_looks();
            assert!(!entering.is_finished(), "the next actor is at work");
            scratch.open_gate(&own);
        });
    }

    /// Each wait ends, whatever other members write.
    #[test]
    fn a_member_that_closes_the_gate_again_and_again_keeps_no_call() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, over) = (slot.gate(), AtomicBool::new(false));
        let process = Process {
            has_actor: true,
            ..Process::that(Says::Runs)
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    gate.word.fetch_or(ALL | RESTORE, Ordering::SeqCst);
                }
            });
            for calls in [Calls::Short, Calls::Waits] {
                let own = new_thread();
                let entered = gate.enter(own, calls);
                let place = entered.unwrap_or_else(|held| gate.wait(own, calls, held, &process));
                gate.leave(calls, place);
            }
            over.store(true, Ordering::SeqCst);
        });
    }

    /// A mark that is not counted would let an actor suspend the process in the middle of a call.
    #[test]
    fn threads_have_lines_of_their_own_and_each_counts() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own) = (slot.gate(), Identity::of_self());
        let begin = |thread: &AtomicU64, at: usize| {
            let calls = [Calls::Short, Calls::Waits][at % 2];
            (calls, gate.enter(thread, calls).expect("open"))
        };
        let under_way = |calls| scratch.calls_under_way(&own, calls);
        let count = || (under_way(Calls::Waits), under_way(Calls::Short));
        for round in 0..3 {
            let mut begun = Vec::new();
            for at in 0..LINES + 2 {
                assert_eq!(
                    gate.word.load(Ordering::SeqCst) > LOW,
                    at > LINES,
                    "{round}"
                );
                begun.push(begin(new_thread(), at));
                assert_eq!(count(), (at.div_ceil(2) as u64, at as u64 + 1));
            }
            let lines = || gate.lines.iter().map(|line| line.0.load(Ordering::SeqCst));
            assert!(lines().all(|mark| mark != 0), "each has its own");
            for (left, (calls, place)) in begun.into_iter().enumerate() {
                assert!(gate.has_calls());
                gate.leave(calls, place);
                assert_eq!(count().1, (LINES + 1 - left) as u64);
            }
            assert!(!gate.has_calls());
        }
        // A thread that calls alone has a line of its own, and finds it again.
        let threads: [_; LINES + 1] = std::array::from_fn(|_| new_thread());
        let lines = || {
            threads.map(|thread| {
                let (calls, place) = begin(thread, 0);
                gate.leave(calls, place);
                thread.load(Ordering::SeqCst)
            })
        };
        let before = lines();
        assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), LINES);
        assert_eq!(before, lines());
        // Two threads that have the same line part when they meet there.
        let shared = [threads[0], threads[LINES]];
        let both = shared.map(|thread| begin(thread, 0));
        for (calls, place) in both {
            gate.leave(calls, place);
        }
        let [one, other] = shared.map(|thread| thread.load(Ordering::SeqCst));
        assert_ne!(one, other);
    }

    /// An actor waits for the outer call, which waits for the inner one.
    #[test]
    fn a_call_inside_another_one_passes_a_closed_gate() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let (gate, own) = (slot.gate(), Identity::of_self());
        let thread = new_thread();
        let place = gate.enter(thread, Calls::Waits).expect("open");
        scratch.close_gate(&own, Calls::Short);
        for calls in [Calls::Short, Calls::Waits] {
            let inner = gate.enter(thread, calls);
            let inner = inner.expect("the actor waits for the outer call");
            gate.leave(calls, inner);
            assert_eq!(scratch.calls_under_way(&own, Calls::Short), 1);
        }
        gate.leave(Calls::Waits, place);
        assert_eq!(scratch.calls_under_way(&own, Calls::Short), 0);
        assert!(gate.enter_line(thread, Calls::Short).is_none());
        assert_eq!(scratch.calls_under_way(&own, Calls::Short), 0);
        assert!(gate.enter(thread, Calls::Short).is_err());
    }

    #[test]
    fn the_next_owner_of_a_slot_has_an_open_gate() {
        let scratch = Scratch::new();
        let slot = scratch.join();
        let own = Identity::of_self();
        let [one, two] = [new_thread(), new_thread()];
        for thread in [one, two] {
            let _place = slot.gate().enter(thread, Calls::Short).expect("open");
        }
        scratch.close_gate(&own, Calls::Short);
        drop(slot);
        let slot = scratch.join();
        assert_eq!(scratch.calls_under_way(&own, Calls::Short), 0);
        let _place = slot.gate().enter(two, Calls::Short).expect("open");
        assert_eq!(scratch.calls_under_way(&own, Calls::Short), 1);
    }
}
