//! A model of the driver, the ledgers and the GPUs. The procedure runs in it through all orders of
//! events: before each step an actor may die, an owner may die, a member may take or free memory,
//! a program outside all groups may, another tool may resume a process, or a thread of a process
//! that waits at the gate may take the actor for dead.
//!
//! Each run is judged twice: first as the programs see it when no other command ever comes, then
//! after the next commands.

use crate::{State, World, resume, settle, suspend};
use gpulimit_ledger::{Errand, FORGED, Says, Step, step};
use std::cell::{Cell, RefCell, RefMut};

/// The group and the group above it.
const LEVELS: usize = 2;
/// The bytes of the two processes, the limit of both groups, and the memory of the GPU.
const SIZES: [u64; 2] = [3, 2];
const LIMIT: u64 = 6;
const CAPACITY: u64 = 8;

/// What happens before a step.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Event {
    Nothing,
    ActorDies,
    OwnerDies(usize),
    /// Another member of the group takes all that is left in the group, and on the GPU, or frees
    /// all.
    MemberTakes,
    MemberFrees,
    /// A program outside all groups takes all memory that is free on the GPU, or frees all.
    StrangerTakes,
    StrangerFrees,
    /// The actor is told to stop.
    Stop,
    /// The next call of the driver fails without effect.
    Fails,
    /// A process is stopped for long, or one that the actor looks at next for a moment. The actor
    /// does not ask the driver about a stopped process.
    OwnerStops(usize),
    NextStops,
    /// Another tool brings the memory of a process back, and unlocks the process or does not yet.
    ToolResumes(usize),
    ToolRestores(usize),
    /// A thread at the gate has seen the same twice.
    ThreadActs(usize),
    /// A member closes the gate.
    MemberCloses(usize),
}

const EVENTS: [Event; 13] = [
    Event::Nothing,
    Event::ActorDies,
    Event::OwnerDies(0),
    Event::OwnerDies(1),
    Event::MemberTakes,
    Event::MemberFrees,
    Event::StrangerTakes,
    Event::StrangerFrees,
    Event::Stop,
    Event::Fails,
    Event::OwnerStops(0),
    Event::OwnerStops(1),
    Event::NextStops,
];

const AT_THE_GATE: [Event; 14] = [
    Event::Nothing,
    Event::ActorDies,
    Event::OwnerDies(0),
    Event::MemberTakes,
    Event::Stop,
    Event::Fails,
    Event::ToolResumes(0),
    Event::ToolResumes(1),
    Event::ToolRestores(0),
    Event::ToolRestores(1),
    Event::ThreadActs(0),
    Event::ThreadActs(1),
    Event::MemberCloses(0),
    Event::MemberCloses(1),
];

/// The events of one run. `next` makes the following run, with at most `most` events.
struct Script {
    chosen: Vec<usize>,
    at: usize,
    most: usize,
    events: &'static [Event],
}

impl Script {
    fn event(&mut self) -> Event {
        if self.at == self.chosen.len() {
            self.chosen.push(0);
        }
        self.at += 1;
        self.events[self.chosen[self.at - 1]]
    }

    fn next(&mut self) -> bool {
        self.chosen.truncate(self.at);
        self.at = 0;
        while let Some(last) = self.chosen.pop() {
            let before = self.chosen.iter().filter(|choice| **choice != 0).count();
            if before < self.most && last + 1 < self.events.len() {
                self.chosen.push(last + 1);
                return true;
            }
        }
        false
    }
}

#[derive(Clone, Debug)]
struct Process {
    state: State,
    /// What the process has on the GPU.
    held: u64,
    charged: [u64; LEVELS],
    suspended: [u64; LEVELS],
    errand: Errand,
    /// Whether calls wait that the driver does not make wait, the generation of that, and whether
    /// the gate says that an actor has locked the process.
    is_gated: bool,
    generation: u64,
    is_ours: bool,
    /// Another tool has locked the process.
    by_tool: bool,
    /// The actor moves the charges out, and looks at the process once more then.
    is_settling: bool,
    /// A thread has opened the gate of a living actor.
    was_slow: bool,
    stopped: bool,
    /// Whether it is written down what the process had on the GPU.
    noted: bool,
    /// The driver cannot bring the process back any more.
    lost: bool,
}

#[derive(Debug)]
struct Things {
    processes: [Process; 2],
    /// The charge and the memory of another member.
    member: u64,
    stranger: u64,
    /// The charge of the actor at each level, and its placeholder.
    room: [u64; LEVELS],
    placeholder: [u64; 2],
    dead: bool,
    told_to_stop: bool,
    fails: bool,
    next_stops: bool,
    /// Another tool has resumed a process, which may have passed the limit.
    is_foreign: bool,
    /// A member has written a gate.
    is_forged: bool,
}

#[derive(Debug, Eq, PartialEq)]
enum Why {
    Dead,
    Failed,
    NoRoom,
    ToldToStop,
    ProcessStopped,
}

struct Model<'a> {
    things: RefCell<Things>,
    script: &'a RefCell<Script>,
    /// No events happen.
    is_quiet: Cell<bool>,
    /// The actor undoes its work, and is not told to stop any more.
    turns_back: Cell<bool>,
}

impl Things {
    fn used(&self) -> u64 {
        let held: u64 = self.processes.iter().map(|process| process.held).sum();
        held + self.member + self.stranger + self.placeholder.iter().sum::<u64>()
    }

    fn charged(&self, level: usize) -> u64 {
        let charged = self.processes.iter().map(|process| process.charged[level]);
        charged.sum::<u64>() + self.member + self.room[level]
    }

    /// What is left to a member of the group.
    fn left(&self) -> u64 {
        let left = (0..LEVELS).map(|level| LIMIT.saturating_sub(self.charged(level)));
        left.min().unwrap_or(0)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Nothing => {}
            // The driver frees a dead process's memory, and then its charge is cleaned up.
            Event::ActorDies => {
                self.dead = true;
                (self.room, self.placeholder) = ([0; LEVELS], [0; 2]);
            }
            Event::OwnerDies(process) => {
                let process = &mut self.processes[process];
                process.state = State::Gone;
                process.held = 0;
                (process.charged, process.suspended) = ([0; LEVELS], [0; LEVELS]);
            }
            Event::MemberTakes => self.member += self.left().min(CAPACITY - self.used()),
            Event::MemberFrees => self.member = 0,
            Event::StrangerTakes => self.stranger += CAPACITY - self.used(),
            Event::StrangerFrees => self.stranger = 0,
            Event::Stop => self.told_to_stop = true,
            Event::Fails => self.fails = true,
            Event::OwnerStops(process) => self.processes[process].stopped = true,
            Event::NextStops => self.next_stops = true,
            Event::ToolResumes(process) => {
                self.happen(Event::ToolRestores(process));
                self.processes[process].end_lock_of_tool();
            }
            Event::ToolRestores(process) => {
                let (size, free) = (SIZES[process], CAPACITY - self.used());
                let process = &mut self.processes[process];
                // Without room it would be lost.
                if process.state == State::Checkpointed && !process.lost && free >= size {
                    (process.state, process.held) = (State::Locked, size);
                    (process.by_tool, self.is_foreign) = (true, true);
                }
            }
            Event::ThreadActs(process) => self.act(process, 2, !self.dead),
            Event::MemberCloses(process) => {
                let process = &mut self.processes[process];
                (process.is_gated, process.is_ours) = (true, false);
                self.is_forged = true;
            }
        }
    }

    /// Lets a thread of a process act that waits at a closed gate.
    fn act(&mut self, process: usize, looks: u32, has_actor: bool) {
        let process = &mut self.processes[process];
        if !process.is_gated || process.stopped {
            return;
        }
        let says = match process.state {
            State::Running => Says::Runs,
            State::Locked => Says::IsLocked,
            _ => Says::IsAway,
        };
        let step = step(says, looks, process.is_ours, || has_actor);
        if step != Step::Wait {
            process.take_back();
        }
        match step {
            Step::Wait => {}
            Step::Open => {
                (process.is_gated, process.is_ours) = (false, false);
                process.was_slow = has_actor;
            }
            Step::Unlock => (process.state, process.by_tool) = (State::Running, false),
        }
    }

    /// Lets other tools unlock what they have locked, and threads act that wait at the gates.
    fn end_waits(&mut self, is_forged: bool) {
        let looks = if is_forged || self.is_forged {
            FORGED
        } else {
            2
        };
        for process in 0..SIZES.len() {
            self.processes[process].end_lock_of_tool();
            self.act(process, looks, is_forged);
            self.act(process, looks, is_forged);
        }
    }

    /// What holds at every moment.
    fn check(&self) {
        assert!(self.used() <= CAPACITY, "{self:?}");
        for level in 0..LEVELS {
            assert!(
                self.charged(level) <= LIMIT || self.is_foreign,
                "the limit is passed: {self:?}"
            );
            for process in &self.processes {
                // Until somebody looks, a process that another tool has resumed is not charged. Its
                // gate is closed so long.
                let is_looked_at = process.is_settling && !self.dead;
                let is_unseen = self.is_foreign && (process.is_gated || is_looked_at);
                let is_charged = process.held <= process.charged[level];
                assert!(is_charged || is_unseen, "{self:?}");
            }
            let held: u64 = self.placeholder.iter().sum();
            assert!(held <= self.room[level], "{self:?}");
        }
    }
}

impl Process {
    fn take_back(&mut self) {
        for (charged, suspended) in self.charged.iter_mut().zip(&mut self.suspended) {
            *charged += std::mem::take(suspended);
        }
    }

    fn end_lock_of_tool(&mut self) {
        if std::mem::take(&mut self.by_tool) && self.state == State::Locked {
            self.state = State::Running;
        }
    }
}

impl<'a> Model<'a> {
    fn new(script: &'a RefCell<Script>) -> Self {
        let process = |size| Process {
            state: State::Running,
            held: size,
            charged: [size; LEVELS],
            suspended: [0; LEVELS],
            errand: Errand::None,
            is_gated: false,
            generation: 0,
            is_ours: false,
            by_tool: false,
            is_settling: false,
            was_slow: false,
            stopped: false,
            noted: false,
            lost: false,
        };
        Self {
            things: RefCell::new(Things {
                processes: SIZES.map(process),
                member: 0,
                stranger: 0,
                room: [0; LEVELS],
                placeholder: [0; 2],
                dead: false,
                told_to_stop: false,
                fails: false,
                next_stops: false,
                is_foreign: false,
                is_forged: false,
            }),
            script,
            is_quiet: Cell::new(false),
            turns_back: Cell::new(false),
        }
    }

    /// Begins a step of the actor: an event happens before.
    fn step(&self) -> Result<RefMut<'_, Things>, Why> {
        let mut things = self.things.borrow_mut();
        things.check();
        if things.dead {
            return Err(Why::Dead);
        }
        if !self.is_quiet.get() {
            let event = self.script.borrow_mut().event();
            things.happen(event);
            things.check();
        }
        if things.dead {
            return Err(Why::Dead);
        }
        Ok(things)
    }

    /// Begins a step that needs a process that is not stopped.
    fn running(&self, process: usize) -> Result<RefMut<'_, Things>, Why> {
        let mut things = self.step()?;
        let is_stopped = std::mem::take(&mut things.next_stops);
        let process = &things.processes[process];
        match process.state != State::Gone && (is_stopped || process.stopped) {
            true => Err(Why::ProcessStopped),
            false => Ok(things),
        }
    }

    /// Begins a call of the driver about a process in the state `from`. `None` if it has ended.
    fn call(&self, process: usize, from: State) -> Result<Option<RefMut<'_, Things>>, Why> {
        let mut things = self.running(process)?;
        if std::mem::take(&mut things.fails) {
            return Err(Why::Failed);
        }
        match things.processes[process].state {
            State::Gone => Ok(None),
            state if state == from => Ok(Some(things)),
            // The driver refuses the call.
            _ if things.is_foreign => Err(Why::Failed),
            state => panic!("{process} is {state:?}, not {from:?}"),
        }
    }

    /// Everything goes on that was stopped or told to stop.
    fn calm(&self) {
        let things = &mut *self.things.borrow_mut();
        (things.told_to_stop, things.fails, things.next_stops) = (false, false, false);
        (things.processes.iter_mut()).for_each(|process| process.stopped = false);
    }

    /// A new actor comes after a dead one.
    fn revive(&self) {
        self.calm();
        let mut things = self.things.borrow_mut();
        things.dead = false;
        assert_eq!((things.room, things.placeholder), ([0; LEVELS], [0; 2]));
    }

    /// Settles every process on which an actor was at work, as the next verb does.
    fn settle_all(&self) {
        for process in 0..SIZES.len() {
            let Process {
                errand,
                suspended,
                noted,
                ..
            } = self.things.borrow().processes[process];
            if errand != Errand::None || suspended != [0; LEVELS] || noted {
                let _ = settle(self, process);
            }
        }
    }

    fn suspended(&self) -> Vec<usize> {
        let things = self.things.borrow();
        let down = |process: &usize| things.processes[*process].state == State::Checkpointed;
        (0..SIZES.len()).filter(down).collect()
    }

    /// Checks what the programs see when all actors are gone and no command comes: every wait at a
    /// gate ends, except that of a checkpointed process. `is_forged`: a member holds the locks of
    /// actors.
    fn check_programs(&self, is_forged: bool) {
        self.calm();
        let things = &mut *self.things.borrow_mut();
        let before = things.processes.clone();
        things.end_waits(is_forged);
        for process in &things.processes {
            let is_away = matches!(process.state, State::Checkpointed | State::Gone);
            let runs = process.state == State::Running && !process.is_gated;
            // The actor was slow, and has died between its lock and its look at the gate.
            let is_late = process.state == State::Locked && process.was_slow;
            assert!(is_away || runs || is_late, "waits for ever: {things:?}");
        }
        things.check();
        things.processes = before;
    }

    /// Checks that nothing is left half-done: nobody is locked, and no byte is charged twice or
    /// lost.
    fn check_end(&self) {
        let things = self.things.borrow();
        for (process, size) in things.processes.iter().zip(SIZES) {
            let (charged, suspended) = match process.state {
                State::Gone => continue,
                State::Running => (size, 0),
                State::Checkpointed => (0, size),
                state => panic!("left {state:?}: {things:?}"),
            };
            assert_eq!(process.charged, [charged; LEVELS], "{things:?}");
            assert_eq!(process.suspended, [suspended; LEVELS], "{things:?}");
            assert_eq!(process.noted, suspended > 0, "{things:?}");
            assert_eq!(process.is_gated, suspended > 0, "{things:?}");
            // An actor may die before it reports a process as lost. The next restore finds it out.
            let is_known = process.lost && process.errand == Errand::Lost;
            assert!(is_known || process.errand == Errand::None, "{things:?}");
        }
    }
}

impl World for Model<'_> {
    type Process = usize;
    type Error = Why;

    fn state(&self, process: usize) -> Result<State, Why> {
        Ok(self.running(process)?.processes[process].state)
    }

    fn hold_back(&self, process: usize) -> Result<u64, Why> {
        let process = &mut self.step()?.processes[process];
        (process.is_gated, process.is_ours) = (true, true);
        process.generation += 1;
        process.was_slow = false;
        Ok(process.generation)
    }

    fn is_held_back(&self, process: usize, mark: u64) -> Result<bool, Why> {
        let process = &self.step()?.processes[process];
        let is_closed = process.is_gated && process.is_ours && process.generation == mark;
        Ok(is_closed || process.state == State::Gone)
    }

    fn lock(&self, process: usize) -> Result<(), Why> {
        if let Some(mut things) = self.call(process, State::Running)? {
            things.processes[process].state = State::Locked;
        }
        Ok(())
    }

    fn checkpoint(&self, process: usize) -> Result<(), Why> {
        self.step()?.processes[process].noted = true;
        if let Some(mut things) = self.call(process, State::Locked)? {
            let process = &mut things.processes[process];
            assert!(process.is_gated, "a call would crash the process");
            (process.state, process.held) = (State::Checkpointed, 0);
        }
        Ok(())
    }

    fn restore(&self, process: usize) -> Result<Result<(), Why>, Why> {
        let mut things = self.running(process)?;
        let (fails, free) = (std::mem::take(&mut things.fails), CAPACITY - things.used());
        let (size, stranger, is_foreign) = (SIZES[process], things.stranger, things.is_foreign);
        let process = &mut things.processes[process];
        match process.state {
            State::Gone => return Ok(Ok(())),
            State::Checkpointed => process.is_ours = true,
            _ if is_foreign => return Ok(Err(Why::Failed)),
            state => panic!("not checkpointed but {state:?}"),
        }
        assert!(
            free >= size || stranger > 0 || is_foreign,
            "the room was not kept"
        );
        // A restore that fails can never be repeated.
        process.lost |= fails || free < size;
        if process.lost {
            return Ok(Err(Why::Failed));
        }
        (process.state, process.held) = (State::Locked, size);
        Ok(Ok(()))
    }

    fn unlock(&self, process: usize) -> Result<(), Why> {
        if let Some(mut things) = self.call(process, State::Locked)? {
            let process = &mut things.processes[process];
            (process.state, process.by_tool) = (State::Running, false);
        }
        Ok(())
    }

    fn admit(&self, process: usize) {
        if let Ok(mut things) = self.step() {
            let process = &mut things.processes[process];
            (process.is_gated, process.is_ours) = (false, false);
        }
    }

    fn ready(&self, process: usize) -> Result<(), Why> {
        self.running(process).map(drop)
    }

    fn check(&self, _: usize) -> Result<(), Why> {
        let failed = std::mem::take(&mut self.step()?.fails);
        if failed { Err(Why::Failed) } else { Ok(()) }
    }

    fn await_absence(&self, _: usize) -> Result<(), Why> {
        self.step().map(drop)
    }

    fn errand(&self, process: usize) -> Errand {
        self.things.borrow().processes[process].errand
    }

    fn set_errand(&self, process: usize, errand: Errand) {
        if let Ok(mut things) = self.step() {
            let process = &mut things.processes[process];
            (process.errand, process.is_settling) = (errand, false);
        }
    }

    fn forget(&self, process: usize) {
        if let Ok(mut things) = self.step() {
            things.processes[process].noted = false;
        }
    }

    fn move_out(&self, process: usize) -> Result<(), Why> {
        self.step()?.processes[process].is_settling = true;
        for level in 0..LEVELS {
            let process = &mut self.step()?.processes[process];
            if process.state != State::Gone && process.suspended[level] == 0 {
                process.suspended[level] = std::mem::take(&mut process.charged[level]);
            }
        }
        self.step()?.processes[process].is_ours = false;
        Ok(())
    }

    fn take_back(&self, process: usize) -> Result<(), Why> {
        for level in 0..LEVELS {
            let process = &mut self.step()?.processes[process];
            process.charged[level] += std::mem::take(&mut process.suspended[level]);
        }
        self.step()?.processes[process].is_settling = false;
        Ok(())
    }

    fn charge(&mut self, set: &[usize]) -> Result<(), Why> {
        for process in set {
            let mut things = self.step()?;
            let suspended = things.processes[*process].suspended;
            let bytes = suspended.into_iter().max().unwrap_or(0);
            if bytes > things.left() {
                return Err(Why::NoRoom);
            }
            for (room, bytes) in things.room.iter_mut().zip(suspended) {
                *room += bytes;
            }
        }
        Ok(())
    }

    fn hold(&mut self, set: &[usize]) -> Result<(), Why> {
        let mut things = self.step()?;
        let alive = |process: &&usize| things.processes[**process].state != State::Gone;
        let set: Vec<usize> = set.iter().filter(alive).copied().collect();
        if set.iter().map(|process| SIZES[*process]).sum::<u64>() > CAPACITY - things.used() {
            return Err(Why::NoRoom);
        }
        for process in set {
            // The charges of a process that comes back because its suspension failed are its own.
            let is_charged = things.processes[process].suspended != [0; LEVELS];
            things.placeholder[process] = if is_charged { SIZES[process] } else { 0 };
        }
        Ok(())
    }

    fn hand_over(&mut self, process: usize) -> Result<(), Why> {
        for level in 0..LEVELS {
            let mut things = self.step()?;
            let target = &mut things.processes[process];
            let bytes = std::mem::take(&mut target.suspended[level]);
            target.charged[level] += bytes;
            things.room[level] -= bytes;
        }
        Ok(())
    }

    fn release(&mut self, process: usize) {
        if let Ok(mut things) = self.step() {
            things.placeholder[process] = 0;
        }
    }

    fn give_back(&mut self) {
        if let Ok(mut things) = self.step() {
            (things.room, things.placeholder) = ([0; LEVELS], [0; 2]);
        }
    }

    fn go_on(&self) -> Result<(), Why> {
        let told_to_stop = self.step()?.told_to_stop;
        match told_to_stop && !self.turns_back.get() {
            true => Err(Why::ToldToStop),
            false => Ok(()),
        }
    }

    fn turn_back(&mut self) {
        self.turns_back.set(true);
    }

    fn report_lost(&self, _: usize, _: Why) {
        let _ = self.step();
    }
}

/// Runs a set down and up again through all scripts with at most `most` events, and checks each
/// end. Returns the number of runs.
fn explore(events: &'static [Event], most: usize) -> u64 {
    let script = RefCell::new(Script {
        chosen: Vec::new(),
        at: 0,
        most,
        events,
    });
    let mut runs = 0_u64;
    loop {
        runs += 1;
        let mut model = Model::new(&script);
        let down = suspend(&mut model, &[0, 1]);
        if down.is_ok() && resume(&mut model, &[0, 1]).is_ok() {
            for process in &model.things.borrow().processes {
                let is_back = matches!(process.state, State::Running | State::Gone);
                assert!(is_back || process.errand == Errand::Lost, "{process:?}");
            }
        }
        model.check_programs(runs.is_multiple_of(2));
        // The next verbs come, and may die as well.
        for _ in 0..=most {
            if model.things.borrow().dead {
                model.revive();
                model.settle_all();
            }
        }
        model.is_quiet.set(true);
        model.calm();
        {
            let things = &mut *model.things.borrow_mut();
            if things.is_foreign || things.is_forged {
                things.end_waits(false);
            }
        }
        model.settle_all();
        model.check_end();
        // With room for all, every process comes back that is not lost.
        model.things.borrow_mut().happen(Event::MemberFrees);
        model.things.borrow_mut().happen(Event::StrangerFrees);
        let suspended = model.suspended();
        assert_eq!(resume(&mut model, &suspended), Ok(()));
        model.check_end();
        for process in &model.things.borrow().processes {
            let is_back = matches!(process.state, State::Running | State::Gone);
            let is_lost = process.lost && process.errand == Errand::Lost;
            assert!(is_back || is_lost, "{process:?}");
        }
        if !script.borrow_mut().next() {
            return runs;
        }
    }
}

#[test]
fn whatever_happens_nothing_is_left_half_done() {
    let runs = explore(&EVENTS, 2);
    assert!(runs > 10_000, "{runs}");
}

#[test]
fn no_program_waits_for_ever_or_runs_uncharged() {
    let runs = explore(&AT_THE_GATE, 2);
    assert!(runs > 10_000, "{runs}");
}

#[test]
fn three_deaths_leave_nothing_half_done() {
    let runs = explore(&EVENTS[..4], 3);
    assert!(runs > 10_000, "{runs}");
}
