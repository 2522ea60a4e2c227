//! Goes through every order of the steps of a play, and through every place at which a process may
//! end.
//!
//! Each process is a coroutine that stops before each of its steps: an operation on a word that
//! others may change, on a lock of the file, of the driver, a look at the clock. One choice after
//! the other says which of them takes its step, or dies instead, or what the kernel does for the
//! dead. What is local to a process follows from what it has seen, so a state is the words, and a
//! hash of that for each process; from a state that was there before everything has been gone
//! through already.
//!
//! A process that is stopped for ever is one that is not chosen until all others have ended; that
//! is among the orders.

use super::super::lock;
use super::play::Play;
use super::word::{self, Mode, Name};
use generator::{Generator, Gn};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

/// Processes of a play, at most.
pub(crate) const CAST: usize = 3;
/// Who is not one of them: the judge, and loom's threads.
pub(crate) const AUDIENCE: usize = 8;
/// Steps that a process takes at most: who takes more is held up by others.
const STEPS: u32 = 2_000;
/// 64-bit words of a coroutine's stack.
const STACK: usize = 0x4000;
/// The clock when a run begins.
const BOOT_MS: u64 = 1_000;
/// What the first wait of a process takes; each further one takes four times as long. A sleep may
/// take that long on a loaded machine, and two are more than anybody's patience with requests of
/// others.
const WAIT_MS: u64 = 600;

/// What a step does to what others can see.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// Nothing. To die before it is to die before the next one that is not of this kind.
    Read,
    Write,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Choice {
    Step(usize),
    Kill(usize),
    /// The kernel drops the dead process's mappings, and with them the locks of slots.
    DropOwner(usize),
    /// It closes its files.
    DropClaims(usize),
    /// The driver frees what it had.
    Free(usize),
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Life {
    Running,
    Finished,
    Dead,
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(AUDIENCE) };
    static CLOCK: Cell<u64> = const { Cell::new(BOOT_MS) };
    /// What the current process is about to do.
    static PENDING: Cell<(Name, Effect)> = const { Cell::new((Name::Clock, Effect::Read)) };
    /// What it has seen so far.
    static SEEN: Cell<u64> = const { Cell::new(0) };
    /// What it knows after a wait.
    static WAITED: Cell<u64> = const { Cell::new(0) };
    static WAITS: [Cell<u32>; AUDIENCE + 1] = Default::default();
    static DRAWN: [Cell<usize>; AUDIENCE + 1] = Default::default();
    static LIVES: [Cell<Life>; CAST] = const { [const { Cell::new(Life::Running) }; CAST] };
    static VIOLATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The process that runs.
pub(crate) fn process() -> usize {
    CURRENT.get()
}

/// Runs as a process, outside of any order.
pub(crate) fn as_process<T>(process: usize, run: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(process);
    let result = run();
    CURRENT.set(before);
    result
}

pub(crate) fn life(process: usize) -> Life {
    LIVES.with(|lives| lives[process].get())
}

/// Milliseconds.
pub(crate) fn clock() -> u64 {
    CLOCK.get()
}

/// The clock and the numbers begin anew.
pub(crate) fn restart_clock() {
    CLOCK.set(BOOT_MS);
    forget_waits();
}

fn forget_waits() {
    WAITS.with(|waits| waits.iter().for_each(|waits| waits.set(0)));
    DRAWN.with(|drawn| drawn.iter().for_each(|drawn| drawn.set(0)));
}

/// 1, 2, 3, …
pub(crate) fn draw() -> usize {
    DRAWN.with(|drawn| {
        let drawn = &drawn[process()];
        drawn.set(drawn.get() + 1);
        drawn.get()
    })
}

/// The current process waits.
pub(crate) fn pause() {
    match word::mode() {
        Mode::Step => stop(Name::Clock, Effect::Read),
        Mode::Weak => loom::thread::yield_now(),
        Mode::Plain => {}
    }
    let waits = WAITS.with(|waits| {
        let waits = &waits[process()];
        waits.set(waits.get() + 1);
        waits.get()
    });
    CLOCK.set(CLOCK.get() + (WAIT_MS << (2 * waits.min(6) - 2)));
    if word::mode() == Mode::Step {
        // The locks of the dead go within milliseconds, and their memory within 190.
        super::play::bury_all();
        super::play::look_anew(process());
        // A request looks at everything anew after it has waited: what it keeps is when it did.
        SEEN.set(mix(WAITED.get(), CLOCK.get()));
        WAITED.set(SEEN.get());
    }
}

/// The current process begins something new: what it saw before is of no more use to it than `kept`
/// says.
pub(crate) fn begin(kept: &[u64]) {
    let hash = kept
        .iter()
        .fold(process() as u64 + 1, |hash, kept| mix(hash, *kept));
    SEEN.set(hash);
    WAITED.set(hash);
    WAITS.with(|waits| waits[process()].set(0));
    DRAWN.with(|drawn| drawn[process()].set(0));
}

/// The play has gone wrong.
pub(crate) fn violation(what: String) {
    // Of a play that is over nobody asks.
    if word::mode() == Mode::Step || process() == AUDIENCE {
        VIOLATION.with_borrow_mut(|violation| {
            violation.get_or_insert(what);
        });
    }
}

pub(crate) fn mix(hash: u64, value: u64) -> u64 {
    let mixed = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .rotate_left(31)
}

fn see(value: u64) {
    SEEN.set(mix(SEEN.get(), value));
}

#[allow(deprecated)]
fn stop(name: Name, effect: Effect) {
    PENDING.set((name, effect));
    // Known to the coroutine that runs, wherever in it this is.
    generator::yield_with(());
}

/// One step of the current process.
pub(crate) fn step<T>(
    name: Name,
    effect: Effect,
    operate: impl FnOnce() -> T,
    seen: impl FnOnce(&T) -> u64,
) -> T {
    if word::mode() != Mode::Step {
        return operate();
    }
    if let Name::Charged { book, slot } = name {
        let owner = owner(book, slot);
        if effect == Effect::Read && owner == Some(process()) {
            // Nobody else changes it as long as it has an owner, which is what the other half of
            // this looks after.
            return operate();
        }
        stop(name, effect);
        let stranger = owner_alive(book, slot).is_some_and(|owner| owner != process());
        if effect == Effect::Write && stranger && !super::play::strangers() {
            violation(format!(
                "process {} changed slot {slot}, whose owner lives",
                process()
            ));
        }
    } else {
        stop(name, effect);
    }
    let result = operate();
    see(seen(&result));
    result
}

fn owner(book: usize, slot: usize) -> Option<usize> {
    lock::process(lock::holder(
        lock::locks(book).peek(),
        lock::Bytes::owner(slot),
    ))
}

fn owner_alive(book: usize, slot: usize) -> Option<usize> {
    owner(book, slot).filter(|owner| *owner < CAST && life(*owner) != Life::Dead)
}

/// What was gone through.
#[derive(Debug, Default)]
pub(crate) struct Explored {
    /// Different states.
    pub states: usize,
    /// Orders, whole ones and those that came to a state that was there before.
    pub runs: u64,
    /// Runs in which all came to their ends.
    pub ends: u64,
    /// What went wrong, and how it came to that.
    pub violation: Option<String>,
}

struct Branch {
    options: Vec<Choice>,
    taken: usize,
}

struct Explorer {
    play: Rc<Play>,
    cast: Vec<Generator<'static, (), ()>>,
    pending: [(Name, Effect); CAST],
    seen: [u64; CAST],
    waited: [u64; CAST],
    steps: [u32; CAST],
    kills: u32,
}

thread_local! {
    static PLAY: RefCell<Option<Rc<Play>>> = const { RefCell::new(None) };
    static QUIT: Cell<bool> = const { Cell::new(false) };
}

#[allow(deprecated)]
fn coroutine(process: usize) -> Generator<'static, (), ()> {
    let mut coroutine = Gn::<()>::new_opt(STACK, move || {
        loop {
            generator::yield_with(());
            if QUIT.get() {
                break;
            }
            let play = PLAY.with_borrow(Option::clone).expect("a play");
            play.perform(process);
            LIVES.with(|lives| {
                if lives[process].get() == Life::Running {
                    lives[process].set(Life::Finished);
                }
            });
        }
    });
    coroutine.resume();
    coroutine
}

/// Goes through a play, up to the first thing that goes wrong or until there are `states_max`
/// states.
pub(crate) fn explore(play: Play, states_max: usize) -> Explored {
    let play = Rc::new(play);
    PLAY.set(Some(Rc::clone(&play)));
    let mut explorer = Explorer {
        cast: (0..play.cast()).map(coroutine).collect(),
        pending: [(Name::Clock, Effect::Read); CAST],
        seen: [0; CAST],
        waited: [0; CAST],
        steps: [0; CAST],
        kills: 0,
        play,
    };
    let mut explored = Explored::default();
    let mut visited = HashSet::new();
    let mut path: Vec<Branch> = Vec::new();
    loop {
        explored.runs += 1;
        explorer.run(&mut path, &mut visited, &mut explored);
        explored.states = visited.len();
        let violation = VIOLATION.take();
        if let Some(what) = violation {
            explored.violation = Some(format!("{what}\n{}", explorer.retell(&path)));
            break;
        }
        assert!(
            explored.states < states_max,
            "a play of too many states: {explored:?}"
        );
        while let Some(last) = path.last_mut() {
            last.taken += 1;
            if last.taken < last.options.len() {
                break;
            }
            path.pop();
        }
        if path.is_empty() {
            break;
        }
    }
    explorer.quit();
    explored
}

impl Explorer {
    fn run(&mut self, path: &mut Vec<Branch>, visited: &mut HashSet<u64>, explored: &mut Explored) {
        self.start();
        let mut depth = 0;
        loop {
            self.play.judge();
            if VIOLATION.with_borrow(Option::is_some) {
                break;
            }
            if depth == path.len() {
                let options = self.options();
                if options.is_empty() {
                    explored.ends += 1;
                    word::set_mode(Mode::Plain);
                    self.play.judge_end();
                    break;
                }
                if !visited.insert(self.state()) {
                    break;
                }
                path.push(Branch { options, taken: 0 });
            }
            let Branch { options, taken } = &path[depth];
            self.choose(options[*taken]);
            depth += 1;
        }
        self.finish();
    }

    fn start(&mut self) {
        word::set_mode(Mode::Plain);
        restart_clock();
        LIVES.with(|lives| lives.iter().for_each(|life| life.set(Life::Running)));
        self.play.set();
        self.kills = self.play.kills;
        self.steps = [0; CAST];
        forget_waits();
        word::set_mode(Mode::Step);
        for process in 0..self.cast.len() {
            self.seen[process] = 0;
            self.resume(process);
        }
    }

    fn resume(&mut self, process: usize) {
        CURRENT.set(process);
        (
            SEEN.set(self.seen[process]),
            WAITED.set(self.waited[process]),
        );
        self.cast[process].resume();
        (self.seen[process], self.waited[process]) = (SEEN.get(), WAITED.get());
        self.pending[process] = PENDING.get();
        CURRENT.set(AUDIENCE);
    }

    fn options(&self) -> Vec<Choice> {
        let mut options = Vec::new();
        let all = || 0..self.cast.len();
        let running: Vec<_> = all().filter(|p| life(*p) == Life::Running).collect();
        if running.is_empty() {
            return options;
        }
        options.extend(running.iter().map(|p| Choice::Step(*p)));
        if self.kills > 0 {
            let kill = |p: &&usize| self.play.may_die(**p) && self.pending[**p].1 == Effect::Write;
            options.extend(running.iter().filter(kill).map(|p| Choice::Kill(*p)));
        }
        for dead in all().filter(|p| life(*p) == Life::Dead) {
            let left = self.play.left_by(dead);
            let after = [
                (left.owner, Choice::DropOwner(dead)),
                (left.claims, Choice::DropClaims(dead)),
                (left.memory, Choice::Free(dead)),
            ];
            options.extend(
                after
                    .iter()
                    .filter(|(is, _)| *is)
                    .map(|(_, choice)| *choice),
            );
        }
        options
    }

    fn choose(&mut self, choice: Choice) {
        match choice {
            Choice::Step(process) => {
                assert_eq!(
                    life(process),
                    Life::Running,
                    "the same choices lead to the same state"
                );
                self.steps[process] += 1;
                if self.steps[process] > STEPS {
                    violation(format!("process {process} does not come to an end"));
                }
                self.resume(process);
            }
            Choice::Kill(process) => {
                self.kills -= 1;
                LIVES.with(|lives| lives[process].set(Life::Dead));
            }
            Choice::DropOwner(process) => self.play.drop_owner(process),
            Choice::DropClaims(process) => self.play.drop_claims(process),
            Choice::Free(process) => self.play.free(process),
        }
    }

    fn state(&self) -> u64 {
        let mut hash = self.play.state();
        for (process, seen) in self.seen.iter().enumerate().take(self.cast.len()) {
            hash = mix(mix(hash, life(process) as u64), *seen);
        }
        mix(mix(hash, CLOCK.get()), self.kills.into())
    }

    /// Lets everybody go to the end of the program, the dead as well, where nobody looks any more:
    /// so that all can begin anew.
    fn finish(&mut self) {
        word::set_mode(Mode::Plain);
        for process in 0..self.cast.len() {
            // A finished one waits for its next run already.
            if life(process) != Life::Finished {
                as_process(process, || self.cast[process].resume());
            }
        }
        self.play.clear();
    }

    fn quit(&mut self) {
        QUIT.set(true);
        for coroutine in &mut self.cast {
            coroutine.resume();
        }
        QUIT.set(false);
    }

    /// The choices on a path, each with what it came to.
    fn retell(&mut self, path: &[Branch]) -> String {
        let mut told = String::new();
        self.start();
        for Branch { options, taken } in path {
            let choice = options[*taken];
            let step = match choice {
                Choice::Step(process) => format!("{:?}", self.pending[process]),
                _ => String::new(),
            };
            self.choose(choice);
            told += &format!("{choice:?} {step}  → {}\n", self.play.tell());
        }
        self.finish();
        VIOLATION.take();
        told
    }
}
