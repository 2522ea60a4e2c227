//! The explorer: a model checker that runs a scenario in every order of its processes' steps.
//!
//! Each process is a coroutine that pauses before each step. A step is an operation on a shared
//! word, a file lock, the simulated driver or the clock. Before each step, the explorer chooses
//! what happens:
//!
//! - A process takes its step.
//! - A process dies, if the scenario allows deaths.
//! - The kernel or the driver releases something that a dead process held.
//! - A process stops until all others have ended.
//!
//! The state of a scenario consists of the shared words and, for each process, a hash of the values
//! that the process has seen. The explorer does not explore a state twice.

use super::super::lock;
use super::scenario::Scenario;
use super::word::{self, Mode, Name};
use generator::{Generator, Gn};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

/// Largest number of processes in a scenario.
pub(crate) const MAX_PROCESSES: usize = 3;
/// Process number of callers outside a scenario: the checks of its rules, and loom's threads.
pub(crate) const OBSERVER: usize = 8;
/// Largest number of steps of one process. Taking more steps violates the rule that all processes
/// end.
const STEPS: u32 = 2_000;
/// Size of a coroutine's stack, in 64-bit words.
const STACK: usize = 0x4000;
/// The time of the model's clock at the start of a run, in milliseconds.
const BOOT_MS: u64 = 1_000;
/// Duration of a process's first wait, in milliseconds. Each further wait takes four times as long,
/// so two waits exhaust a request's patience.
const WAIT_MS: u64 = 600;

/// The effect of a step: whether the step changes state that other processes can see.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// The step changes no shared state. Death before this step is not tried, because death before
    /// a later step is equivalent.
    Read,
    Write,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Choice {
    Step(usize),
    Kill(usize),
    /// The kernel drops the dead process's mappings, and with them its owner locks.
    DropOwner(usize),
    /// The kernel closes the dead process's files, and with them drops its claim locks.
    DropClaims(usize),
    /// The simulated driver frees the dead process's memory.
    Free(usize),
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Life {
    Running,
    Finished,
    Dead,
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(OBSERVER) };
    static CLOCK: Cell<u64> = const { Cell::new(BOOT_MS) };
    /// The step that the current process is about to take.
    static PENDING: Cell<(Name, Effect)> = const { Cell::new((Name::Clock, Effect::Read)) };
    /// Hash of the values that the current process has seen so far.
    static SEEN: Cell<u64> = const { Cell::new(0) };
    /// Hash of what the current process knew after its last wait.
    static WAITED: Cell<u64> = const { Cell::new(0) };
    static WAITS: [Cell<u32>; OBSERVER + 1] = Default::default();
    static DRAWN: [Cell<usize>; OBSERVER + 1] = Default::default();
    static LIVES: [Cell<Life>; MAX_PROCESSES] =
        const { [const { Cell::new(Life::Running) }; MAX_PROCESSES] };
    static VIOLATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns the number of the process whose coroutine is running.
pub(crate) fn process() -> usize {
    CURRENT.get()
}

/// Calls `run` as if the given process called it. No step is scheduled meanwhile.
pub(crate) fn as_process<T>(process: usize, run: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(process);
    let result = run();
    CURRENT.set(before);
    result
}

pub(crate) fn life(process: usize) -> Life {
    LIVES.with(|lives| lives[process].get())
}

/// Returns the time of the model's clock in milliseconds.
pub(crate) fn clock() -> u64 {
    CLOCK.get()
}

/// Resets the model's clock, and the waits and random numbers of all processes.
pub(crate) fn restart_clock() {
    CLOCK.set(BOOT_MS);
    forget_waits();
}

fn forget_waits() {
    WAITS.with(|waits| waits.iter().for_each(|waits| waits.set(0)));
    DRAWN.with(|drawn| drawn.iter().for_each(|drawn| drawn.set(0)));
}

/// Returns 1, 2, 3, … at successive calls of the current process.
pub(crate) fn draw() -> usize {
    DRAWN.with(|drawn| {
        let drawn = &drawn[process()];
        drawn.set(drawn.get() + 1);
        drawn.get()
    })
}

/// Makes the current process wait, and advances the model's clock.
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
        // During a wait, the kernel and the driver finish all deaths. A real death takes up to 190
        // ms, less than any wait.
        super::scenario::finish_deaths();
        super::scenario::forget_obstacles(process());
        // After a wait, a request reads all words anew. It remembers only how long it has waited.
        SEEN.set(mix(WAITED.get(), CLOCK.get()));
        WAITED.set(SEEN.get());
    }
}

/// Starts an action of the current process. `kept` are the values that the process remembers from
/// its earlier actions.
pub(crate) fn begin(kept: &[u64]) {
    let hash = kept
        .iter()
        .fold(process() as u64 + 1, |hash, kept| mix(hash, *kept));
    SEEN.set(hash);
    WAITED.set(hash);
    WAITS.with(|waits| waits[process()].set(0));
    DRAWN.with(|drawn| drawn[process()].set(0));
}

/// Records that a rule of the scenario was violated.
pub(crate) fn violation(what: String) {
    // After a run, all processes run to the end of their programs. Violations are then ignored.
    if word::mode() == Mode::Step || process() == OBSERVER {
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
    // This pauses the coroutine that is running; the library `generator` knows which one it is.
    generator::yield_with(());
}

/// Pauses the current process until the explorer chooses it, and then takes one step.
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
        let strangers = super::scenario::strangers();
        if effect == Effect::Read && owner == Some(process()) && !strangers {
            // Reading the process's own word is no step, because no other process changes it. The
            // check below reports any such change.
            return operate();
        }
        stop(name, effect);
        let stranger = owner_alive(book, slot).is_some_and(|owner| owner != process());
        if effect == Effect::Write && stranger && !strangers {
            violation(format!(
                "process {} changed slot {slot}, whose owner is alive",
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
    owner(book, slot).filter(|owner| *owner < MAX_PROCESSES && life(*owner) != Life::Dead)
}

/// The result of exploring a scenario.
#[derive(Debug, Default)]
pub(crate) struct Explored {
    /// Number of different states that were visited.
    pub states: usize,
    /// Number of runs, including those that ended early because they reached a known state.
    pub runs: u64,
    /// Number of runs in which all processes ended.
    pub ends: u64,
    /// The first violation of a rule, and the choices that led to it.
    pub violation: Option<String>,
}

struct Branch {
    options: Vec<Choice>,
    taken: usize,
}

struct Explorer {
    scenario: Rc<Scenario>,
    coroutines: Vec<Generator<'static, (), ()>>,
    pending: [(Name, Effect); MAX_PROCESSES],
    seen: [u64; MAX_PROCESSES],
    waited: [u64; MAX_PROCESSES],
    steps: [u32; MAX_PROCESSES],
    kills: u32,
}

thread_local! {
    static SCENARIO: RefCell<Option<Rc<Scenario>>> = const { RefCell::new(None) };
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
            let scenario = SCENARIO.with_borrow(Option::clone).expect("a scenario");
            scenario.perform(process);
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

/// Explores a scenario until a rule is violated, or until all states are explored. Panics if there
/// are `states_max` states or more.
pub(crate) fn explore(scenario: Scenario, states_max: usize) -> Explored {
    let scenario = Rc::new(scenario);
    SCENARIO.set(Some(Rc::clone(&scenario)));
    let mut explorer = Explorer {
        coroutines: (0..scenario.process_count()).map(coroutine).collect(),
        pending: [(Name::Clock, Effect::Read); MAX_PROCESSES],
        seen: [0; MAX_PROCESSES],
        waited: [0; MAX_PROCESSES],
        steps: [0; MAX_PROCESSES],
        kills: 0,
        scenario,
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
            explored.violation = Some(format!("{what}\n{}", explorer.describe_path(&path)));
            break;
        }
        assert!(
            explored.states < states_max,
            "the scenario has too many states: {explored:?}"
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
            self.scenario.judge();
            if VIOLATION.with_borrow(Option::is_some) {
                break;
            }
            if depth == path.len() {
                let options = self.options();
                if options.is_empty() {
                    explored.ends += 1;
                    word::set_mode(Mode::Plain);
                    self.scenario.judge_end();
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
        self.scenario.set();
        self.kills = self.scenario.kills;
        self.steps = [0; MAX_PROCESSES];
        forget_waits();
        word::set_mode(Mode::Step);
        for process in 0..self.coroutines.len() {
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
        self.coroutines[process].resume();
        (self.seen[process], self.waited[process]) = (SEEN.get(), WAITED.get());
        self.pending[process] = PENDING.get();
        CURRENT.set(OBSERVER);
    }

    fn options(&self) -> Vec<Choice> {
        let mut options = Vec::new();
        let all = || 0..self.coroutines.len();
        let running: Vec<_> = all().filter(|p| life(*p) == Life::Running).collect();
        if running.is_empty() {
            return options;
        }
        // A process that the driver has locked waits in its next call.
        let waits = |p: usize| {
            self.pending[p].0 == Name::Driver { process: p } && self.scenario.is_locked(p)
        };
        let ready = running.iter().filter(|p| !waits(**p));
        options.extend(ready.map(|p| Choice::Step(*p)));
        if self.kills > 0 {
            let kill =
                |p: &&usize| self.scenario.may_die(**p) && self.pending[**p].1 == Effect::Write;
            options.extend(running.iter().filter(kill).map(|p| Choice::Kill(*p)));
        }
        for dead in all().filter(|p| life(*p) == Life::Dead) {
            let left = self.scenario.left_by(dead);
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
                    "only a running process takes a step"
                );
                self.steps[process] += 1;
                if self.steps[process] > STEPS {
                    violation(format!("process {process} does not end"));
                }
                self.resume(process);
            }
            Choice::Kill(process) => {
                self.kills -= 1;
                LIVES.with(|lives| lives[process].set(Life::Dead));
            }
            Choice::DropOwner(process) => self.scenario.drop_owner(process),
            Choice::DropClaims(process) => self.scenario.drop_claims(process),
            Choice::Free(process) => self.scenario.free(process),
        }
    }

    fn state(&self) -> u64 {
        let mut hash = self.scenario.state();
        for (process, seen) in self.seen.iter().enumerate().take(self.coroutines.len()) {
            hash = mix(mix(hash, life(process) as u64), *seen);
        }
        mix(mix(hash, CLOCK.get()), self.kills.into())
    }

    /// Runs the programs of all processes to their ends, even those of dead processes, without
    /// scheduling. Then the next run can start.
    fn finish(&mut self) {
        word::set_mode(Mode::Plain);
        for process in 0..self.coroutines.len() {
            // The coroutine of a finished process is ready for the next run.
            if life(process) != Life::Finished {
                as_process(process, || self.coroutines[process].resume());
            }
        }
        self.scenario.clear();
    }

    fn quit(&mut self) {
        QUIT.set(true);
        for coroutine in &mut self.coroutines {
            coroutine.resume();
        }
        QUIT.set(false);
    }

    /// Repeats one run, and describes each choice of the explorer and the state after it.
    fn describe_path(&mut self, path: &[Branch]) -> String {
        let mut text = String::new();
        self.start();
        for Branch { options, taken } in path {
            let choice = options[*taken];
            let step = match choice {
                Choice::Step(process) => format!("{:?}", self.pending[process]),
                _ => String::new(),
            };
            self.choose(choice);
            text += &format!("{choice:?} {step} leads to {}\n", self.scenario.describe());
        }
        self.finish();
        VIOLATION.take();
        text
    }
}
