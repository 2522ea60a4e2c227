//! Reads the rounds of `top`, in a thread of its own. A read that blocks does not block the keys.

use super::round::{Name, Round, Wanted};
use crate::figures::event::watch::{Scope, Watch};
use crate::figures::machines::Machines;
use crate::figures::outside::Finder;
use crate::figures::past::{self, Past, Recent};
use crate::figures::place;
use crate::figures::processes::{Commands, Process, processes};
use crate::figures::shares::Shares;
use crate::figures::snapshot::{self, GpuMemory};
use crate::figures::{Figures, kept::Kept};
use crate::groups::{Purpose, Selection, View, meant};
use crate::machine::nvml::Driver;
use crate::shown::{output::Escaped, screen};
use crate::words::{failure::Failure, text::shown_path};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_ledger::EventKind;
use gpulimit_limits::Selector;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long a loaded NVML is used before it is loaded again, which finds new GPUs.
const RELOAD: Duration = Duration::from_secs(10);

/// How long one round waits for the command lines of processes.
const COMMANDS: Duration = Duration::from_secs(2);

/// The containers and jobs that were already looked up, by pid and by the process's own pid and
/// user. A pid that is used again soon by the same user can show an old place.
type Places = BTreeMap<(u32, u32, u32), Option<String>>;

/// Returns the container or the job of a live process.
fn place(process: &Process, known: &mut Places) -> Option<String> {
    /// The number of processes to remember.
    const MOST: usize = 1 << 16;
    let is_here = process.alive && process.machine.is_empty();
    let pid = process.pid.filter(|_| is_here)?;
    if known.len() > MOST {
        known.clear();
    }
    let key = (pid, process.own_pid, process.uid);
    let of_process = || place::of_process(pid);
    known.entry(key).or_insert_with(of_process).clone()
}

/// Reads rounds one after the other, and keeps what need not be read anew.
pub struct Source {
    group: Option<String>,
    /// The machines to show, if they are not this one.
    machines: Option<Machines>,
    driver: Option<(Driver, Instant)>,
    places: Places,
    trends: Kept,
    commands: Commands,
    shares: Shares,
    outside: Finder,
}

impl Source {
    pub fn new(group: Option<String>, machines: Option<Machines>) -> Self {
        Self {
            group,
            machines,
            driver: None,
            places: Places::default(),
            trends: Kept::default(),
            commands: Commands::new(COMMANDS),
            shares: Shares::default(),
            outside: Finder::new(COMMANDS),
        }
    }

    /// Loads NVML, if it was not loaded recently, and returns it.
    pub fn driver(&mut self) -> Option<&Driver> {
        let is_recent = |(_, loaded): &(Driver, Instant)| loaded.elapsed() < RELOAD;
        if !self.driver.as_ref().is_some_and(is_recent) {
            // NVML notices a lost GPU only if the old handle is closed first.
            self.driver = None;
            self.driver = Driver::load().ok().map(|driver| (driver, Instant::now()));
        }
        self.driver.as_ref().map(|(driver, _)| driver)
    }

    /// Reads the groups, and the past usage of the group that is wanted.
    pub fn read(&mut self, wanted: Option<&Wanted>) -> Result<Round, Failure> {
        if let Some(machines) = &mut self.machines {
            return Ok(Round::told(machines.read(), wanted));
        }
        self.driver();
        let driver = self.driver.as_ref().map(|(driver, _)| driver);
        let selection = Selection::of(self.group.as_deref())?;
        let (mut found, mut refused, trends) = (Vec::new(), BTreeMap::new(), &mut self.trends);
        let figures = |_, view: &View| {
            let mut trend = |view: &_, device: &_, usage| trends.trend(view, device, usage);
            let mut figures = Figures::read(view, driver, &mut trend);
            for gpu in &mut figures.gpus {
                (gpu.recent, gpu.refused_lately) = recent(view, gpu.id, gpu.usage);
                if gpu.refusals > Some(0) {
                    refused.extend(refused_lately(view, gpu.id));
                }
            }
            found.extend(wanted.into_iter().flat_map(|it| pasts(it, view, driver)));
            figures
        };
        let visit = |see: &mut dyn FnMut(_, _)| selection.visit(driver, see);
        let (mut read, notes) = snapshot::Round::read(driver, &mut self.outside, visit, figures);
        read.groups.iter_mut().for_each(Figures::add_up);
        self.trends.end_round();
        let commands = &mut self.commands;
        let mut processes = processes(&selection, &read.seen, &read.waiters, commands);
        self.shares.note(&mut processes, driver);
        for process in &mut processes {
            let key = (process.own_pid, process.start_time, process.gpu());
            process.refused = refused.get(&key).copied();
        }
        let round = Round {
            root: shown_path(selection.root()),
            time: Timestamp::now(),
            gpus: read.gpus,
            processes,
            groups: read.groups,
            problem: String::new(),
            notes,
            machines: Vec::new(),
            pasts: wanted.map(|wanted| (wanted.clone(), found, refusals(wanted, driver))),
        };
        let is_lost = |gpu: &GpuMemory| gpu.index.is_some() && gpu.used.is_none();
        if round.gpus.iter().any(is_lost) {
            self.driver = None;
        }
        Ok(round)
    }

    /// Returns a round that was read as it is shown to people.
    pub fn shown(&mut self, mut round: Round) -> Round {
        for process in &mut round.processes {
            let place =
                place::of_group(&process.group).or_else(|| place(process, &mut self.places));
            process.place = place.unwrap_or_default();
        }
        round.escape();
        round
    }
}

/// Returns the past usage of a group, if it is the wanted one.
fn pasts(wanted: &Wanted, view: &View, driver: Option<&Driver>) -> Vec<Past> {
    if Name::new(view.group.root(), view.group.name()) != wanted.group {
        return Vec::new();
    }
    let now = Timestamp::now();
    let since = past::second(now).saturating_sub(wanted.since.as_secs());
    Past::all(view, &[Selector::All], since, now, driver, None)
}

/// Returns the last refusals of a group as text.
fn refusals(wanted: &Wanted, driver: Option<&Driver>) -> Vec<String> {
    const LAST: usize = 5;
    let name = &wanted.group.name;
    let read = || {
        let scope = Scope::of(meant(name, Purpose::Use).ok()?);
        let selection = Selection::of(Some(name)).ok()?;
        Watch::new(Some(scope), false).round(&selection).ok()
    };
    let (mut lines, _) = read().unwrap_or_default();
    lines.retain(|line| line.event.what.kind == EventKind::Refusal);
    let last = lines.iter().skip(lines.len().saturating_sub(LAST));
    last.map(|line| Escaped(&line.text(driver)).to_string())
        .collect()
}

/// Returns which members were refused memory of a GPU by this group in the last minute, by their
/// pids, start times and GPU, and how long ago.
fn refused_lately(view: &View, gpu: DeviceId) -> BTreeMap<(u32, u64, Option<DeviceId>), Duration> {
    let index = view.device(gpu).map(|entry| entry.index);
    let events = view.ledger.as_ref().map(|ledger| ledger.events(0));
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let lately = events.into_iter().flatten().filter_map(|event| {
        let what = event.what;
        let is_it = what.kind == EventKind::Refusal && what.device == index;
        let age = now.checked_sub(Duration::from_micros(event.time_us));
        let age = age.filter(|age| is_it && age.as_secs() < 60)?;
        // An event does not tell the start time.
        let is_same =
            |it: &Identity| (it.pid, it.pid_ns) == (what.process.pid, what.process.pid_ns);
        let mut members = view.processes.iter().map(|process| process.identity);
        let member = members.find(is_same)?;
        Some(((member.pid, member.start_time, Some(gpu)), age))
    });
    lately.collect()
}

fn recent(view: &View, gpu: DeviceId, usage: Option<u64>) -> (Recent, u64) {
    let found = || {
        let entry = view.device(gpu)?;
        Some(past::recent(view.ledger.as_ref()?, entry.index, usage?))
    };
    found().unwrap_or_default()
}

/// A request to the thread.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ask {
    /// Read a round at once.
    Now,
    /// Read a round at this interval.
    Interval(Duration),
    /// Read no rounds until further notice, or go on.
    Pause(bool),
    /// Add the curves of this group to the rounds.
    Curves(Option<Wanted>),
}

/// The thread that reads rounds.
pub struct Reader {
    asks: mpsc::Sender<Ask>,
    began: Arc<Mutex<Option<Instant>>>,
}

impl Reader {
    /// Starts the thread, which passes each round to `tell` until `tell` returns false.
    pub fn start(
        group: Option<String>,
        machines: Option<Machines>,
        interval: Duration,
        tell: impl Fn(Round) -> bool + Send + 'static,
    ) -> Result<Self, Failure> {
        // A name of a group means the same group in all rounds.
        if let Some(name) = &group {
            meant(name, Purpose::Use)?;
        }
        let (asks, asked) = mpsc::channel();
        let began = Arc::new(Mutex::new(None));
        let clock = Arc::clone(&began);
        let work = move || {
            let mut source = Source::new(group, machines);
            run(&mut source, interval, &asked, &clock, tell);
        };
        screen::spawn("reader", work)?;
        Ok(Self { asks, began })
    }

    /// Asks the thread for something. If the thread has ended, does nothing.
    pub fn ask(&self, ask: Ask) {
        let _ = self.asks.send(ask);
    }

    /// Returns for how long the present round is being read; `None` between rounds.
    pub fn reads_for(&self) -> Option<Duration> {
        let began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        began.map(|began| began.elapsed())
    }
}

fn run(
    source: &mut Source,
    mut interval: Duration,
    asked: &mpsc::Receiver<Ask>,
    clock: &Mutex<Option<Instant>>,
    tell: impl Fn(Round) -> bool,
) {
    let set = |began| *clock.lock().unwrap_or_else(PoisonError::into_inner) = began;
    let (mut wanted, mut paused) = (None, false);
    loop {
        let began = Instant::now();
        set(Some(began));
        let mut round = match source.read(wanted.as_ref()) {
            Ok(round) => source.shown(round),
            Err(failure) => Round::failed(&failure),
        };
        set(None);
        if let Some(note) = round.notes.lines.first() {
            round.problem = Escaped(note).to_string();
        }
        if !tell(round) {
            return;
        }
        // A machine on which a round takes long rests as long between rounds.
        let end = Instant::now();
        let rest = end + (end - began);
        loop {
            let next = (began + interval).max(rest);
            let left = match paused {
                true => Duration::from_secs(3_600),
                false => next.saturating_duration_since(Instant::now()),
            };
            match asked.recv_timeout(left) {
                Ok(Ask::Now) => break,
                Ok(Ask::Interval(asked)) => interval = asked,
                Ok(Ask::Pause(asked)) => paused = asked,
                Ok(Ask::Curves(asked)) => {
                    wanted = asked;
                    if wanted.is_some() {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) if paused => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
