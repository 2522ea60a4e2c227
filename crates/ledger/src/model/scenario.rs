//! Scenarios: processes with short programs that use ledgers and a simulated driver.
//!
//! After each step, `judge` compares the ledgers with the memory that the driver has handed out.
//! The variable `book` is the number of a ledger.

use super::super::atomic::Ordering;
use super::super::charge::{UNIT, granted, undecided};
use super::super::gate::{Calls, Gate, Owner, Says};
use super::super::level::{Level, Pressure};
use super::super::lock::{self, BOOKS, Bytes, SLOTS};
use super::super::reap::{self, NoWitness, Witness};
use super::super::{DeviceIndex, Ledger, Slot, Unmoved, hand_over, level};
use super::explorer::{self, Effect, Life, MAX_PROCESSES, OBSERVER, life, violation};
use super::fault::{self, Fault};
use super::word::{AtomicU64, Name};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;

/// An action of a process in a scenario. Numbers are units of memory.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Action {
    /// Claims a slot in the ledgers of the process's group and all parent groups.
    Claim,
    /// Charges memory. If the request is granted, takes the memory from the simulated driver.
    Take(u64),
    /// Makes the simulated driver free all memory of the process, and then uncharges it.
    Give,
    /// Cleans the slots of dead processes in the ledgers of the process's group and all parent
    /// groups.
    Clean,
    /// Gives up all slots of the process.
    Leave,
    /// Does nothing. The process may die before this action.
    Idle,
    /// Changes the limit of a group. The new limit applies to requests that begin later.
    Limit { book: usize, units: u64 },
    /// Charges memory with a faulty algorithm.
    TakeBy(u64, fn(&[Level<'_>], u64) -> bool),
    /// Charges memory like [`Action::Take`], but tries only once. Any refusal is accepted.
    Try(u64),
    /// Uncharges like [`Action::Give`], but the memory was charged ahead and never used.
    GiveIdle,
    /// Uncharges memory before the simulated driver has freed it. This order is a deliberate error.
    GiveEarly,
    /// Has the driver move the memory of another process to the host, and then moves its charge to
    /// its suspended bytes. Finishes what a dead process has begun.
    Suspend(usize),
    /// Brings the memory of a suspended process back, if there is room.
    Resume(usize),
    /// Suspends the first two processes, both or none. If `fails`, the driver cannot move the
    /// memory of the second one.
    SuspendBoth { fails: bool },
    /// Waits until this function takes the entrance of the device.
    Enter(fn(&Slot, DeviceIndex) -> bool),
    /// Makes the context, and then the first request.
    Depart,
    /// Makes a gated call as a thread of the first process, with another one inside.
    Call(Calls),
    /// Closes the gate of the first process, suspends the process for a moment once no call is
    /// under way, and opens the gate.
    HoldBack,
    /// Tells the first process to restore its charges.
    Tell,
}

/// The part that one process plays in a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    /// The ledgers in which the process is charged: first its own group's, last the topmost.
    pub path: &'static [usize],
    /// Units that the process holds at the start; `None` if it has not joined the group yet.
    pub holds: Option<u64>,
    pub actions: Vec<Action>,
    pub may_die: bool,
}

/// How processes learn that the driver has freed a dead process's memory: from NVML, or after the
/// grace time.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum DeathEvidence {
    Nvml,
    Grace,
}

pub(crate) struct Scenario {
    pub kills: u32,
    evidence: DeathEvidence,
    roles: Vec<Role>,
    limits: Vec<u64>,
    books: Vec<&'static Arc<Ledger>>,
    device: DeviceIndex,
    watched: Vec<(Name, &'static AtomicU64)>,
    /// The own word of each process's thread: see [`Gate::enter`].
    threads: [AtomicU64; MAX_PROCESSES],
    suspends: bool,
}

/// What the checks of the rules know about one process.
#[derive(Default)]
struct Actor {
    slots: RefCell<Vec<Slot>>,
    places: [Cell<Option<usize>>; BOOKS],
    held: Cell<u64>,
    memory: Cell<u64>,
    /// Units that the simulated driver has moved to the host.
    away: Cell<u64>,
    /// What the simulated driver does with the process: [`RUNNING`], [`LOCKED`] or
    /// [`CHECKPOINTED`].
    state: Cell<u64>,
    asks: Cell<u64>,
    asks_since: Cell<u64>,
    /// Whether the process's request exceeded the limit at some moment since the request began.
    too_much: Cell<bool>,
    /// Whether another living process was in the middle of a request or of cleaning, at some moment
    /// since this process last waited.
    in_the_way: Cell<bool>,
    /// The time until which the process is in the entrance.
    inside: Cell<u64>,
    /// Whether a gated call of the process is under way.
    calls: Cell<bool>,
}

const RUNNING: u64 = 0;
const LOCKED: u64 = 1;
const CHECKPOINTED: u64 = 2;

/// What the kernel and the driver still keep of a dead process.
pub(crate) struct Left {
    pub owner: bool,
    pub claims: bool,
    pub memory: bool,
}

thread_local! {
    static ACTORS: [Actor; MAX_PROCESSES] = Default::default();
    static LIMITS: [Cell<u64>; BOOKS] = Default::default();
    /// False while requests that began before the limit was last changed may use the earlier limit.
    static SETTLED: [Cell<bool>; BOOKS] = Default::default();
    static STRANGERS: Cell<bool> = const { Cell::new(false) };
    /// Whether the first process is suspended by an actor that has closed its gate.
    static DOWN: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a process may change charges in the slots of other living processes.
pub(crate) fn strangers() -> bool {
    STRANGERS.get()
}

/// Lets the kernel drop all file locks of dead processes, and the driver free their memory.
pub(crate) fn finish_deaths() {
    for process in (0..MAX_PROCESSES).filter(|process| life(*process) == Life::Dead) {
        for book in 0..BOOKS {
            drop_locks(process, book, |_| true);
        }
        actor(process, |actor| actor.memory.set(0));
    }
}

/// Forgets that other processes blocked a request before its present wait. They no longer justify
/// refusing the request.
pub(crate) fn forget_obstacles(process: usize) {
    actor(process, |actor| actor.in_the_way.set(false));
}

fn actor<T>(process: usize, run: impl FnOnce(&Actor) -> T) -> T {
    ACTORS.with(|actors| run(&actors[process]))
}

fn limit(book: usize) -> u64 {
    LIMITS.with(|limits| limits[book].get())
}

fn drop_locks(process: usize, book: usize, which: impl Fn(usize) -> bool) {
    let word = lock::locks(book);
    let gone = |at: usize, holder| which(at) && lock::process(holder) == Some(process);
    word.store_plain(lock::without(word.peek(), gone));
    if which(SLOTS) {
        let word = lock::actors(book);
        let gone = |_, holder| lock::process(holder) == Some(process);
        word.store_plain(lock::without(word.peek(), gone));
    }
}

impl Role {
    /// Returns the role of a process that is a member of the first group from the start.
    pub(crate) fn member(holds: u64, actions: &[Action]) -> Self {
        Self {
            path: &[0],
            holds: Some(holds),
            actions: actions.to_vec(),
            may_die: true,
        }
    }

    /// Returns the role of a process that has no slot at the start.
    pub(crate) fn newcomer(actions: &[Action]) -> Self {
        Self {
            holds: None,
            ..Self::member(0, actions)
        }
    }

    pub(crate) fn immortal(self) -> Self {
        Self {
            may_die: false,
            ..self
        }
    }

    pub(crate) fn on(self, path: &'static [usize]) -> Self {
        Self { path, ..self }
    }
}

impl Scenario {
    /// Creates a scenario. `limits` are the limits of its groups in units. At most `kills`
    /// processes die.
    pub(crate) fn new(limits: &[u64], roles: Vec<Role>, kills: u32) -> Self {
        let mut books = Vec::new();
        let mut device = None;
        for book in 0..limits.len() {
            let ledger = Ledger::open(Path::new(&book.to_string())).expect("memory");
            let ledger: &'static Arc<Ledger> = Box::leak(Box::new(Arc::new(ledger)));
            device = ledger.device(GPU, 80 << 30).ok();
            books.push(ledger);
        }
        let device = device.expect("a device");
        let acts = |role: &Role| {
            let acts = |action: &Action| {
                use Action::{Resume, Suspend, SuspendBoth};
                matches!(action, Suspend(_) | Resume(_) | SuspendBoth { .. })
            };
            role.actions.iter().any(acts)
        };
        let suspends = roles.iter().any(acts);
        let mut watched: Vec<_> = books
            .iter()
            .enumerate()
            .flat_map(|(book, ledger)| words(book, ledger, device))
            .collect();
        if suspends {
            for (book, ledger) in books.iter().enumerate() {
                watched.push((Name::Actors { book }, lock::actors(book)));
                watched.extend((0..SLOTS).map(|slot| {
                    let stats = &ledger.content().slots[slot].stats[device.get()];
                    (Name::Suspended { book, slot }, &stats.suspended)
                }));
            }
        }
        let has = |wanted: fn(&Action) -> bool| {
            let mut actions = roles.iter().flat_map(|role| &role.actions);
            actions.any(wanted)
        };
        if has(|action| matches!(action, Action::Enter(_))) {
            let gpu = &books[0].content().header.gpus[device.get()];
            watched.push((Name::Entrance, &gpu.entrance));
        }
        if has(|action| matches!(action, Action::Call(_))) {
            let (word, lines) = books[0].content().slots[0].gate.words();
            watched.push((Name::Gate, word));
            watched.extend(lines.map(|line| (Name::Line, line)));
        }
        STRANGERS.set(suspends);
        let scenario = Self {
            kills,
            evidence: DeathEvidence::Nvml,
            roles,
            limits: limits.to_vec(),
            books,
            device,
            watched,
            threads: Default::default(),
            suspends,
        };
        scenario.watch();
        scenario
    }

    /// Returns whether the simulated driver holds the calls of a process.
    pub(crate) fn is_locked(&self, process: usize) -> bool {
        let calls = matches!(self.roles[process].actions[..], [Action::Call(_), ..]);
        if calls {
            // A thread that waits at the gate looks again when the actor has opened it or is dead.
            let actor = self.roles.len() - 1;
            return DOWN.get() || life(actor) == Life::Running && self.is_gate_closed();
        }
        self.suspends && actor(process, |actor| actor.state.get()) != RUNNING
    }

    /// Selects the words whose operations are steps: words that change in this scenario and on
    /// which a process bases decisions.
    fn watch(&self) {
        let newcomers = self.roles.iter().any(|role| role.holds.is_none());
        let counts = |name: &Name| match name {
            Name::HighWater { .. } => newcomers,
            // Without a lock, the pid of a slot's owner is only a hint. Reading it is therefore no
            // step.
            Name::Pid { .. } => newcomers && super::is_deep(),
            Name::DeadSince { .. } => self.evidence == DeathEvidence::Grace,
            _ => true,
        };
        let watched = self.watched.iter().copied();
        super::word::watch(watched.filter(|(name, _)| counts(name)));
    }

    pub(crate) fn without_nvml(self) -> Self {
        let scenario = Self {
            evidence: DeathEvidence::Grace,
            ..self
        };
        scenario.watch();
        scenario
    }

    /// Limits the number of slots that can be claimed in each ledger.
    pub(crate) fn crowded(self, slots: usize) -> Self {
        lock::use_slots(slots);
        self
    }

    pub(crate) fn process_count(&self) -> usize {
        self.roles.len()
    }

    pub(crate) fn may_die(&self, process: usize) -> bool {
        self.roles[process].may_die
    }

    /// Puts all processes and ledgers into their initial state.
    pub(crate) fn set(&self) {
        for (book, limit) in self.limits.iter().enumerate() {
            LIMITS.with(|limits| limits[book].set(*limit));
            SETTLED.with(|settled| settled[book].set(true));
        }
        for (process, role) in self.roles.iter().enumerate() {
            actor(process, |actor| {
                actor.held.set(0);
                actor.memory.set(0);
                actor.away.set(0);
                actor.state.set(RUNNING);
                actor.asks.set(0);
                actor.inside.set(0);
                actor.calls.set(false);
            });
            DOWN.set(false);
            let Some(holds) = role.holds else {
                continue;
            };
            explorer::as_process(process, || {
                self.claim(process);
                self.with_levels(process, |levels| {
                    level::charge_unchecked(levels, holds * UNIT);
                });
                actor(process, |actor| {
                    actor.held.set(holds);
                    actor.memory.set(holds);
                });
            });
        }
    }

    /// Removes all members and empties the ledgers of the scenario.
    pub(crate) fn clear(&self) {
        for (process, _) in self.roles.iter().enumerate() {
            actor(process, |actor| {
                actor.slots.take();
                actor.places.iter().for_each(|place| place.set(None));
            });
        }
        for (book, ledger) in self.books.iter().enumerate() {
            empty(book, ledger);
        }
    }

    /// Claims a slot for a process in each of its ledgers. Returns false if a ledger has no free
    /// slot.
    fn claim(&self, process: usize) -> bool {
        for book in self.roles[process].path {
            let Ok(mut slot) = self.books[*book].claim(&identity(process), "") else {
                return false;
            };
            slot.confirm_suspensions_by(|| {
                let process = explorer::process();
                let state = || actor(process, |actor| actor.state.get());
                let name = Name::State { process };
                explorer::step(name, Effect::Read, state, |state| *state) == CHECKPOINTED
            });
            actor(process, |actor| {
                actor.places[*book].set(Some(slot.index()));
                actor.slots.borrow_mut().push(slot);
            });
        }
        true
    }

    fn with_levels<T>(&self, process: usize, run: impl FnOnce(&[Level<'_>]) -> T) -> T {
        ACTORS.with(|actors| {
            let slots = actors[process].slots.borrow();
            let level = |(slot, book): (_, &usize)| Level {
                slot,
                device: self.device,
                max: explorer::step(
                    Name::Limit { book: *book },
                    Effect::Read,
                    || limit(*book),
                    |limit| *limit,
                ) * UNIT,
                protection: None,
                keeps_low: false,
                uncovered: None,
            };
            let levels: Vec<_> = slots
                .iter()
                .zip(self.roles[process].path)
                .map(level)
                .collect();
            run(&levels)
        })
    }

    /// Runs the whole program of one process.
    pub(crate) fn perform(&self, process: usize) {
        for (at, action) in self.roles[process].actions.iter().enumerate() {
            let kept = |actor: &Actor| {
                let place = |book: usize| actor.places[book].get().map_or(0, |at| at as u64 + 1);
                [at as u64, actor.held.get(), place(0), place(1)]
            };
            explorer::begin(&actor(process, kept));
            if !self.execute(process, action) {
                break;
            }
        }
        explorer::begin(&[u64::MAX]);
    }

    /// Executes one action of a process. Returns false if the process cannot continue.
    fn execute(&self, process: usize, action: &Action) -> bool {
        match *action {
            Action::Claim => return self.claim(process),
            Action::Take(units) => self.take(process, units, |levels| {
                level::charge(levels, units * UNIT, &MemberPressure(self)).is_ok()
            }),
            Action::TakeBy(units, charge) => {
                self.take(process, units, |levels| charge(levels, units));
            }
            Action::Try(units) => {
                self.take(process, units, |levels| {
                    let granted = level::try_charge(levels, units * UNIT);
                    let is_fine = |actor: &Actor| actor.too_much.set(true);
                    actor(process, is_fine);
                    granted
                });
            }
            Action::Give => {
                self.driver_frees(process);
                self.uncharge(process);
            }
            Action::GiveIdle => {
                self.driver_frees(process);
                let held = actor(process, |actor| actor.held.replace(0));
                self.with_levels(process, |levels| {
                    level::uncharge_idle(levels, held * UNIT, &());
                });
            }
            Action::GiveEarly => {
                self.uncharge(process);
                self.driver_frees(process);
            }
            Action::Clean => {
                for book in self.roles[process].path {
                    self.books[*book].clean(&MemberPressure(self));
                }
            }
            Action::Leave => {
                let slots = actor(process, |actor| {
                    actor.places.iter().for_each(|place| place.set(None));
                    actor.slots.take()
                });
                drop(slots);
            }
            Action::Suspend(other) => {
                let _ = self.suspend(other);
            }
            Action::Resume(other) => {
                let _ = self.resume(process, other);
            }
            Action::SuspendBoth { fails } => {
                let _ = self.suspend_both(fails);
            }
            Action::Enter(take) => self.enter(process, take),
            Action::Depart => self.depart(process),
            Action::Call(calls) => self.call(process, calls),
            Action::HoldBack => self.hold_back(),
            Action::Tell => self.books[0].let_restore(),
            Action::Idle => explorer::step(Name::Idle, Effect::Write, || (), |()| 0),
            Action::Limit { book, units } => self.set_limit(book, units),
        }
        true
    }

    fn enter(&self, process: usize, take: fn(&Slot, DeviceIndex) -> bool) {
        let rivals = || (0..self.process_count()).filter(|other| *other != process);
        let take = || actor(process, |actor| take(&actor.slots.borrow()[0], self.device));
        let is_gone = |other| life(other) == Life::Dead && !self.left_by(other).owner;
        let is_alone = || rivals().all(is_gone);
        let is_alone = || explorer::step(Name::Clock, Effect::Read, is_alone, |is| u64::from(*is));
        while !take() {
            explorer::pause();
            if is_alone() {
                if !take() {
                    violation(format!("process {process} waits for dead processes"));
                }
                break;
            }
        }
        let is_in = |other: &usize| {
            let until = actor(*other, |actor| actor.inside.get());
            life(*other) == Life::Running && until > explorer::clock()
        };
        if let Some(other) = rivals().find(is_in) {
            violation(format!("process {process} enters beside process {other}"));
        }
        self.note_inside(process, 10_000);
    }

    fn note_inside(&self, process: usize, ms: u64) {
        actor(process, |actor| actor.inside.set(explorer::clock() + ms));
    }

    fn depart(&self, process: usize) {
        explorer::step(Name::Idle, Effect::Write, || (), |()| 0);
        self.note_inside(process, 0);
        actor(process, |actor| {
            let slot = &actor.slots.borrow()[0];
            slot.stay_at_entrance(self.device);
            slot.leave_entrance(self.device);
        });
    }

    fn gate(&self) -> &'static Gate {
        &self.books[0].content().slots[0].gate
    }

    fn is_gate_closed(&self) -> bool {
        self.gate().words().0.peek() as u32 & 7 != 0
    }

    fn call(&self, process: usize, calls: Calls) {
        let (gate, waiter) = (self.gate(), Waiter(process));
        let own = &self.threads[process];
        own.store_plain(0);
        let entered = gate.enter(own, calls);
        let place = entered.unwrap_or_else(|held| gate.wait(own, calls, held, &waiter));
        let begin = || {
            if DOWN.get() {
                violation(format!(
                    "a call of process {process} begins while it is suspended"
                ));
            }
            actor(process, |actor| actor.calls.set(true));
        };
        begin();
        explorer::step(Name::Idle, Effect::Write, || (), |()| 0);
        if super::is_deep() {
            let (Ok(inner) | Err(inner)) = gate.enter(own, calls);
            gate.leave(calls, inner);
        }
        begin();
        actor(process, |actor| actor.calls.set(false));
        gate.leave(calls, place);
    }

    fn hold_back(&self) {
        let (ledger, whom) = (self.books[0], identity(0));
        let mark = ledger.close_gate(&whom, Calls::Short);
        for _ in 0..2 {
            let is_quiet = ledger.calls_under_way(&whom, Calls::Short) == 0;
            if is_quiet && ledger.is_held_back(&whom, mark) {
                let calls = |process: &usize| actor(*process, |actor| actor.calls.get());
                if let Some(process) = (0..self.process_count()).find(calls) {
                    violation(format!("a call of process {process} is under way"));
                }
                DOWN.set(true);
                explorer::step(Name::Idle, Effect::Write, || (), |()| 0);
                DOWN.set(false);
                break;
            }
            explorer::pause();
        }
        ledger.open_gate(&whom);
    }

    fn take(&self, process: usize, units: u64, charge: impl FnOnce(&[Level<'_>]) -> bool) {
        // This step lets the explorer choose when the request begins.
        explorer::step(Name::Idle, Effect::Read, || (), |()| 0);
        actor(process, |actor| {
            actor.asks.set(units);
            actor.asks_since.set(explorer::clock());
            actor.too_much.set(false);
            actor.in_the_way.set(false);
        });
        let is_granted = self.with_levels(process, charge);
        if !is_granted {
            actor(process, |actor| actor.asks.set(0));
            self.judge_refusal(process, units);
            return;
        }
        actor(process, |actor| actor.held.set(actor.held.get() + units));
        let take = || {
            actor(process, |actor| {
                actor.memory.set(actor.memory.get() + units);
                actor.asks.set(0);
            });
            self.judge_memory();
        };
        explorer::step(Name::Driver { process }, Effect::Write, take, |()| 0);
    }

    fn driver_frees(&self, process: usize) {
        let free = || actor(process, |actor| actor.memory.set(0));
        explorer::step(Name::Driver { process }, Effect::Write, free, |()| 0);
    }

    /// Has the simulated driver change a living process's state, if it is `from`. Returns whether
    /// it is `to` then.
    fn drive(&self, process: usize, from: u64, to: u64) -> bool {
        let change = || {
            actor(process, |actor| {
                let lives = life(process) != Life::Dead;
                if lives && actor.state.get() == from {
                    actor.state.set(to);
                    if to == CHECKPOINTED {
                        actor.away.set(actor.memory.replace(0));
                    } else if from == CHECKPOINTED {
                        actor.memory.set(actor.away.replace(0));
                    }
                }
                lives && actor.state.get() == to
            })
        };
        let name = Name::State { process };
        let is_there = explorer::step(name, Effect::Write, change, |is| u64::from(*is));
        self.judge_memory();
        is_there
    }

    fn state_of(&self, process: usize) -> u64 {
        let state = || actor(process, |actor| actor.state.get());
        explorer::step(Name::State { process }, Effect::Read, state, |state| *state)
    }

    fn suspend(&self, other: usize) -> Result<(), Unmoved> {
        let (path, whom) = (self.roles[other].path, identity(other));
        let _actor = match fault::is(Fault::ActorLockMissing) {
            true => None,
            false => Some(self.books[path[0]].act_on(&whom)?),
        };
        self.drive(other, RUNNING, LOCKED);
        let lower = || {
            path.iter()
                .try_for_each(|book| self.books[*book].move_out(&whom).map(drop))
        };
        if fault::is(Fault::LoweredEarly) {
            lower()?;
        }
        match self.drive(other, LOCKED, CHECKPOINTED) {
            true => lower(),
            false => Ok(()),
        }
    }

    fn suspend_both(&self, fails: bool) -> Result<(), Unmoved> {
        let both = [0, 1];
        let mut rights = Vec::new();
        for other in both {
            rights.push(self.books[self.roles[other].path[0]].act_on(&identity(other))?);
        }
        let lower = |other: usize| {
            let mut path = self.roles[other].path.iter();
            path.try_for_each(|book| self.books[*book].move_out(&identity(other)).map(drop))
        };
        for other in both {
            self.drive(other, RUNNING, LOCKED);
        }
        let is_down = both.map(|other| {
            let is_down = !(fails && other == 1) && self.drive(other, LOCKED, CHECKPOINTED);
            if is_down && fault::is(Fault::LoweredEarly) {
                let _ = lower(other);
            }
            is_down
        });
        if is_down == [true; 2] {
            return both.into_iter().try_for_each(lower);
        }
        // The charge of the first process has stayed, so its room is still there.
        for other in both {
            self.drive(other, CHECKPOINTED, LOCKED);
            self.drive(other, LOCKED, RUNNING);
        }
        Ok(())
    }

    fn resume(&self, process: usize, other: usize) -> Result<(), Unmoved> {
        let (path, whom) = (self.roles[other].path, identity(other));
        let _actor = match fault::is(Fault::ActorLockMissing) {
            true => None,
            false => Some(self.books[path[0]].act_on(&whom)?),
        };
        match self.state_of(other) {
            RUNNING => return Ok(()),
            LOCKED => {
                self.drive(other, LOCKED, RUNNING);
                return Ok(());
            }
            _ => {}
        }
        let suspended = |book: &usize| self.books[*book].suspended_of(&whom, self.device);
        let bytes = path.iter().map(suspended).max().unwrap_or(0);
        self.with_levels(process, |levels| {
            if level::charge(levels, bytes, &MemberPressure(self)).is_err() {
                return Ok(());
            }
            if fault::is(Fault::RestoredEarly) {
                self.drive(other, CHECKPOINTED, LOCKED);
            }
            let handed = hand_over(levels, bytes, &whom);
            // What was not handed over: the process is gone, or was charged for more at one level.
            for level in levels {
                let rest = level.slot.charged(level.device);
                level::uncharge(std::slice::from_ref(level), rest);
            }
            handed?;
            self.drive(other, CHECKPOINTED, LOCKED);
            self.drive(other, LOCKED, RUNNING);
            Ok(())
        })
    }

    /// Finishes what dead actors have left, and checks the figures before and after.
    fn end_suspensions(&self) {
        for process in (0..self.process_count()).filter(|process| life(*process) != Life::Dead) {
            let (whom, held) = (identity(process), actor(process, |actor| actor.held.get()));
            for book in self.roles[process].path {
                let Some(slot) = actor(process, |actor| actor.places[*book].get()) else {
                    continue;
                };
                let owed = actor(process, |actor| {
                    let slots = actor.slots.borrow();
                    slots
                        .iter()
                        .map(|slot| slot.owed(self.device))
                        .max()
                        .unwrap_or(0)
                });
                let units = granted(self.word(*book, slot));
                let suspended = self.books[*book].suspended(slot, self.device) / UNIT;
                if units + suspended != held + owed {
                    violation(format!(
                        "process {process} holds {held} units and owes {owed}; {units} are charged \
                         and {suspended} suspended"
                    ));
                }
                if suspended > 0 && actor(process, |actor| actor.state.get()) != CHECKPOINTED {
                    violation(format!("process {process} runs while it is suspended"));
                }
                if self.books[*book].is_acted_on(slot) {
                    violation("a dead process holds an actor lock".into());
                }
                if self.books[*book]
                    .receive(&whom, self.device, &|| true)
                    .is_err()
                {
                    violation(format!("process {process} cannot be brought back"));
                }
            }
            actor(process, |actor| {
                actor.state.set(RUNNING);
                actor.memory.set(actor.memory.get() + actor.away.replace(0));
            });
            explorer::as_process(process, || {
                self.with_levels(process, |levels| level::uncharge(levels, 0));
            });
        }
    }

    fn uncharge(&self, process: usize) {
        let held = actor(process, |actor| actor.held.get());
        if held > 0 {
            self.with_levels(process, |levels| level::uncharge(levels, held * UNIT));
            actor(process, |actor| actor.held.set(0));
        }
    }

    fn set_limit(&self, book: usize, units: u64) {
        let set = || {
            LIMITS.with(|limits| limits[book].set(units));
            SETTLED.with(|settled| settled[book].set(false));
        };
        explorer::step(Name::Limit { book }, Effect::Write, set, |()| 0);
    }

    /// Returns what the kernel and the driver still keep of a dead process.
    pub(crate) fn left_by(&self, process: usize) -> Left {
        let has = |at: std::ops::Range<usize>| {
            (0..self.books.len()).any(|book| {
                let holders = lock::locks(book).peek().to_le_bytes();
                let mut held = holders[at.clone()].iter();
                held.any(|holder| lock::process(*holder) == Some(process))
            })
        };
        let acts = |book: usize| {
            let holders = lock::actors(book).peek().to_le_bytes();
            (holders.iter()).any(|holder| lock::process(*holder) == Some(process))
        };
        Left {
            owner: has(0..SLOTS),
            claims: has(SLOTS..2 * SLOTS) || (0..self.books.len()).any(acts),
            memory: actor(process, |actor| actor.memory.get()) > 0,
        }
    }

    pub(crate) fn drop_owner(&self, process: usize) {
        (0..self.books.len()).for_each(|book| drop_locks(process, book, |at| at < SLOTS));
    }

    pub(crate) fn drop_claims(&self, process: usize) {
        (0..self.books.len()).for_each(|book| drop_locks(process, book, |at| at >= SLOTS));
    }

    pub(crate) fn free(&self, process: usize) {
        actor(process, |actor| actor.memory.set(0));
    }

    /// Returns a hash of everything that decides what can happen next, except the local state of
    /// processes.
    pub(crate) fn state(&self) -> u64 {
        let mut hash = 0;
        for (_, word) in &self.watched {
            hash = explorer::mix(hash, word.peek());
        }
        for book in 0..self.books.len() {
            let settled = SETTLED.with(|settled| settled[book].get());
            hash = explorer::mix(hash, limit(book) << 1 | u64::from(settled));
        }
        for process in 0..self.process_count() {
            let known = actor(process, |actor| {
                let flags =
                    u64::from(actor.too_much.get()) | u64::from(actor.in_the_way.get()) << 1;
                let asks = if actor.asks.get() > 0 { flags + 1 } else { 0 };
                let driver = actor.away.get() << 4 | actor.state.get();
                driver << 16 | actor.memory.get() << 8 | actor.held.get() << 4 | asks
            });
            hash = explorer::mix(hash, known);
        }
        hash
    }

    /// Describes the state of the scenario in readable text.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (name, word) in &self.watched {
            match name {
                Name::Charged { .. } if word.peek() != 0 => {
                    text += &format!("{}+{}? ", granted(word.peek()), undecided(word.peek()));
                }
                Name::Charged { .. } => text += "- ",
                Name::Locks { .. } => text += &format!("locks {:?} ", word.peek().to_le_bytes()),
                Name::HighWater { .. } => text += &format!("of {} ", word.peek()),
                _ => {}
            }
        }
        for process in 0..self.process_count() {
            text += &actor(process, |actor| {
                format!(
                    "process {process} uses {} of {} charged units ",
                    actor.memory.get(),
                    actor.held.get()
                )
            });
        }
        text
    }

    fn word(&self, book: usize, slot: usize) -> u64 {
        self.books[book].word(slot, self.device).peek()
    }

    fn members(&self, book: usize) -> impl Iterator<Item = usize> {
        (0..self.process_count()).filter(move |process| self.roles[*process].path.contains(&book))
    }

    /// Checks that the memory handed out by the driver is within the limits.
    fn judge_memory(&self) {
        for book in 0..self.books.len() {
            let memory: u64 = self
                .members(book)
                .map(|process| actor(process, |actor| actor.memory.get()))
                .sum();
            // If a limit was lowered, requests that began before may still use the earlier limit.
            let settled = SETTLED.with(|settled| settled[book].get());
            let max = if settled {
                limit(book)
            } else {
                limit(book).max(self.limits[book])
            };
            if memory > max {
                violation(format!(
                    "above the limit of {max} units in ledger {book}: {memory} units handed out"
                ));
            }
        }
    }

    /// Checks the rules of the scenario. Called after every step.
    pub(crate) fn judge(&self) {
        let all_done = (0..self.process_count()).all(|process| {
            let is_done = |actor: &Actor| actor.asks.get() == 0;
            life(process) == Life::Dead || actor(process, is_done)
        });
        if all_done {
            SETTLED.with(|settled| settled.iter().for_each(|settled| settled.set(true)));
        }
        for process in 0..self.process_count() {
            for book in self.roles[process].path {
                let (memory, place) = actor(process, |actor| {
                    (actor.memory.get(), actor.places[*book].get())
                });
                if memory > 0 && place.is_none_or(|slot| granted(self.word(*book, slot)) < memory) {
                    violation(format!(
                        "process {process} has {memory} units that are not charged"
                    ));
                }
            }
            let asks = actor(process, |actor| actor.asks.get());
            if asks == 0 {
                continue;
            }
            for book in self.roles[process].path {
                let too_much = self.granted(*book) + asks > limit(*book);
                let in_the_way = self.in_the_way(*book, process);
                actor(process, |actor| {
                    actor.too_much.set(actor.too_much.get() || too_much);
                    actor.in_the_way.set(actor.in_the_way.get() || in_the_way);
                });
            }
        }
    }

    /// Returns the units granted in a group. A dead process's units count until its lock and its
    /// driver memory are gone.
    fn granted(&self, book: usize) -> u64 {
        let locks = lock::locks(book).peek();
        (0..SLOTS)
            .filter(|slot| {
                let page = &self.books[book].content().slots[*slot];
                let of_dead = (page.owner.pid.peek() as usize).checked_sub(1);
                lock::holder(locks, Bytes::owner(*slot)) != 0
                    || of_dead.is_some_and(|dead| actor(dead, |actor| actor.memory.get()) > 0)
            })
            .map(|slot| {
                let granted = granted(self.word(book, slot));
                let owner = lock::process(lock::holder(locks, Bytes::owner(slot)));
                match owner.filter(|owner| *owner < MAX_PROCESSES && !self.is_decided(*owner)) {
                    Some(owner) => granted.min(actor(owner, |actor| actor.held.get())),
                    None => granted,
                }
            })
            .sum()
    }

    /// Returns whether the process has no request, or its topmost group has granted the request.
    fn is_decided(&self, process: usize) -> bool {
        let Some(top) = self.roles[process].path.last() else {
            return true;
        };
        actor(process, |actor| {
            let wanted = actor.held.get() + actor.asks.get();
            let place = actor.places[*top].get();
            actor.asks.get() == 0
                || place.is_some_and(|slot| granted(self.word(*top, slot)) >= wanted)
        })
    }

    /// Returns whether another living process is in the middle of a request or of cleaning.
    fn in_the_way(&self, book: usize, process: usize) -> bool {
        let locks = lock::locks(book).peek();
        let other = |holder| {
            lock::process(holder).is_some_and(|holder| {
                holder != process && holder < MAX_PROCESSES && life(holder) != Life::Dead
            })
        };
        (0..SLOTS).any(|slot| {
            let word = self.word(book, slot);
            undecided(word) > 0 && other(lock::holder(locks, Bytes::owner(slot)))
                || word != 0 && other(lock::holder(locks, Bytes::claim(slot)))
        })
    }

    fn judge_refusal(&self, process: usize, units: u64) {
        let now = self.roles[process]
            .path
            .iter()
            .any(|book| self.in_the_way(*book, process));
        let (too_much, in_the_way) = actor(process, |actor| {
            let waited = explorer::clock() - actor.asks_since.get();
            let in_the_way = actor.in_the_way.get() || now;
            (actor.too_much.get(), in_the_way && waited >= 1_000)
        });
        if !too_much && !in_the_way {
            violation(format!(
                "process {process} was refused {units} units, although they fit the limit"
            ));
        }
    }

    /// Checks the state after all processes have ended. Operations on words are no steps then.
    pub(crate) fn judge_end(&self) {
        finish_deaths();
        if self.suspends {
            self.end_suspensions();
        }
        for book in 0..self.books.len() {
            self.judge_book(book);
        }
    }

    fn judge_book(&self, book: usize) {
        let ledger = self.books[book];
        ledger.clean(&AllFreed);
        let words = || (0..SLOTS).map(|slot| self.word(book, slot));
        let charged: u64 = words().map(granted).sum();
        let living = || {
            self.members(book)
                .filter(|process| life(*process) != Life::Dead)
        };
        let held: u64 = living()
            .map(|process| actor(process, |actor| actor.held.get()))
            .sum();
        if charged != held || words().any(|word| undecided(word) > 0) {
            let words: Vec<_> = words()
                .map(|word| (granted(word), undecided(word)))
                .collect();
            violation(format!(
                "processes hold {held} units, but after cleaning, ledger {book} has {words:?}"
            ));
        }
        if lock::locks(book).peek().to_le_bytes()[SLOTS..] != [0; SLOTS] {
            violation("a dead process holds a claim lock".into());
        }
        // A new process must be able to claim a slot and to charge all memory that is left.
        let Ok(slot) = ledger.claim(&identity(OBSERVER), "") else {
            let all = (0..SLOTS).all(|slot| {
                let owner = Bytes::owner(slot);
                owner.bytes().is_empty() || lock::holder(lock::locks(book).peek(), owner) != 0
            });
            if !all {
                violation("a new process failed to claim a free slot".into());
            }
            return;
        };
        let rest = limit(book).saturating_sub(held);
        let level = Level {
            slot: &slot,
            device: self.device,
            max: limit(book) * UNIT,
            protection: None,
            keeps_low: false,
            uncovered: None,
        };
        if level::charge(&[level], rest * UNIT, &MemberPressure(self)).is_err() {
            violation(format!("a new process failed to charge {rest} free units"));
        }
    }
}

pub(crate) fn identity(process: usize) -> Identity {
    Identity {
        pid: process as u32 + 1,
        pid_ns: 0,
        start_time: 1,
        uid: 0,
        command: [0; 64],
    }
}

/// Empties the ledger of a model, and checks that no process holds a lock on it.
pub(crate) fn empty(book: usize, ledger: &Ledger) {
    (0..SLOTS).for_each(|slot| reap::zero(ledger, slot));
    let signals = &ledger.content().header.signals;
    let header = &ledger.content().header;
    let figures = header.peaks.iter().chain([&header.found_dead_at]);
    let signals = [&signals.high_water, &signals.asked, &signals.asked_at];
    for word in signals.into_iter().chain(figures) {
        word.store(0, Ordering::Relaxed);
    }
    let locks = [lock::locks(book), lock::actors(book)];
    assert!(
        locks.iter().all(|locks| locks.peek() == 0),
        "a process still holds a lock"
    );
}

/// Simulates the death of a slot's owner: its file lock ends, but its charges stay in the slot.
pub(crate) fn die(book: usize, owner: Slot) {
    let slot = owner.index();
    let ledger = Arc::clone(owner.ledger());
    let words: Vec<_> = words_of(book, &ledger, DeviceIndex::all().next().expect("one"), slot)
        .map(|(_, word)| word.peek())
        .into();
    drop(owner);
    for ((_, word), value) in words_of(book, &ledger, DeviceIndex::all().next().expect("one"), slot)
        .into_iter()
        .zip(words)
    {
        word.store_plain(value);
    }
}

/// How a process of a scenario makes room in a full group.
struct MemberPressure<'a>(&'a Scenario);

impl Pressure for MemberPressure<'_> {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        match self.0.evidence {
            DeathEvidence::Nvml => self,
            DeathEvidence::Grace => &NoWitness,
        }
    }
}

impl Witness for MemberPressure<'_> {
    fn holds_memory(&self, dead: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        if self.0.evidence == DeathEvidence::Grace {
            return None;
        }
        if fault::is(Fault::DrainMissing) {
            return Some(false);
        }
        let process = dead.pid as usize - 1;
        let memory = || process < MAX_PROCESSES && actor(process, |actor| actor.memory.get()) > 0;
        let name = Name::Driver { process };
        Some(explorer::step(name, Effect::Read, memory, |has| {
            u64::from(*has)
        }))
    }
}

/// A thread that waits at a gate. The gate opens by itself only if the actor is dead.
struct Waiter(usize);

impl Owner for Waiter {
    fn says(&self) -> Says {
        let name = Name::Driver { process: self.0 };
        explorer::step(name, Effect::Read, || Says::Runs, |_| 0)
    }

    fn has_actor(&self) -> bool {
        false
    }

    fn charge(&self, is_due: &dyn Fn() -> bool) -> bool {
        is_due()
    }

    fn unlock(&self) {}
    fn restore(&self) {}
}

struct AllFreed;

impl Witness for AllFreed {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        Some(false)
    }
}

const GPU: DeviceId = DeviceId::gpu([0xa5; 16]);

/// Returns all words of a ledger that more than one process may change.
pub(crate) fn words(
    book: usize,
    ledger: &'static Ledger,
    device: DeviceIndex,
) -> impl Iterator<Item = (Name, &'static AtomicU64)> {
    let signals = &ledger.content().header.signals;
    let of_book = [
        (Name::HighWater { book }, &signals.high_water),
        (Name::Locks { book }, lock::locks(book)),
    ];
    (0..SLOTS)
        .flat_map(move |slot| words_of(book, ledger, device, slot))
        .chain(of_book)
}

fn words_of(
    book: usize,
    ledger: &Ledger,
    device: DeviceIndex,
    slot: usize,
) -> [(Name, &AtomicU64); 3] {
    let owner = &ledger.content().slots[slot].owner;
    [
        (Name::Charged { book, slot }, ledger.word(slot, device)),
        (Name::Pid { book, slot }, &owner.pid),
        (Name::DeadSince { book, slot }, &owner.dead_since),
    ]
}
