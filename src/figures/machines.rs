//! The figures of other machines: each runs `gpulimit top --rounds`, which prints them.
//!
//! These rounds have the figures of this program's own types, and not only those of `top --json`:
//! so a machine looks the same from afar. They are not trusted: groups have proper names, and texts
//! are escaped before they are shown.

use super::Figures;
use super::processes::Process;
use super::snapshot::GpuMemory;
use crate::groups::{short_label, sizes};
use crate::machine::ssh;
use gpulimit_group::check_name;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The option `--machines`.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Show these machines, over ssh, and this one only if `localhost` is named: lab1,alice@lab2
    #[arg(long, value_name = "MACHINE", value_delimiter = ',', value_parser = ssh::check)]
    pub machines: Vec<String>,
}

/// The last figures of a machine, or the reason why it does not answer.
type Answer = Result<Told, String>;

/// The machines, in the order given. A thread for each asks it again and again.
pub struct Machines {
    known: Arc<(Mutex<Known>, Condvar)>,
}

/// The last answer of each machine: older ones are gone, also if nobody reads for long.
type Known = Vec<(String, Option<Answer>)>;

/// The machines that were asked, each with why it does not answer.
pub type Asked = Vec<(String, Option<String>)>;

/// The figures of one or several machines.
#[derive(Clone, Default, Deserialize)]
pub struct Told {
    pub gpus: Vec<GpuMemory>,
    pub groups: Vec<Figures>,
    pub processes: Vec<Process>,
}

impl Machines {
    /// Starts the threads. Each machine reads its groups at this interval.
    pub fn start(args: &Args, interval: Duration) -> Option<Self> {
        let all = args.machines.iter().enumerate();
        let named = all.filter(|(at, name)| !args.machines[..*at].contains(name));
        let known: Known = named.map(|(_, name)| (name.clone(), None)).collect();
        let names: Vec<String> = known.iter().map(|(name, _)| name.clone()).collect();
        let known = Arc::new((Mutex::new(known), Condvar::new()));
        for (at, name) in names.into_iter().enumerate() {
            let weak = Arc::downgrade(&known);
            let tell = move |answer| {
                let known = weak.upgrade()?;
                lock(&known.0)[at].1 = Some(answer);
                known.1.notify_all();
                Some(())
            };
            let work = move || follow(&name, interval, &tell);
            // A machine without a thread is one that is not reached.
            let _ = thread::Builder::new().name("machine".into()).spawn(work);
        }
        (!args.machines.is_empty()).then_some(Self { known })
    }

    /// Waits until each machine has answered, or has not in time.
    pub fn wait(&mut self) {
        let is_open = |known: &mut Known| known.iter().any(|(_, answer)| answer.is_none());
        drop(self.known.1.wait_while(lock(&self.known.0), is_open));
    }

    /// Returns what the machines said last.
    pub fn read(&mut self) -> (Asked, Told) {
        let (mut asked, mut all) = (Asked::new(), Told::default());
        for (name, answer) in &*lock(&self.known.0) {
            let answer = answer.clone();
            let answer = answer.unwrap_or_else(|| Err("not reached yet".into()));
            asked.push((name.clone(), answer.map(|told| all.add(told)).err()));
        }
        (asked, all)
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks a machine until nobody listens, again and again.
fn follow(machine: &str, interval: Duration, tell: &dyn Fn(Answer) -> Option<()>) -> Option<()> {
    const PAUSE: Duration = Duration::from_secs(5);
    loop {
        let round = |line: &[u8]| Told::read(machine, line).map(tell).is_some();
        let why = ssh::lines(machine, interval, round);
        let why = why.unwrap_or_else(|error| format!("cannot ask it: {error}"));
        tell(Err(why))?;
        thread::sleep(PAUSE);
    }
}

impl Told {
    /// Reads a round of a machine, or why the machine could not read it. `None` for another text.
    pub fn read(machine: &str, line: &[u8]) -> Option<Answer> {
        let read: Answer = serde_json::from_slice(line).ok()?;
        Some(read.map(|mut told| {
            let root = |root: &mut PathBuf| *root = format!("{machine}:{}", root.display()).into();
            let gpus = told.gpus.iter_mut();
            gpus.for_each(|gpu| gpu.machine = machine.into());
            told.groups.retain(|group| check_name(&group.name).is_ok());
            for group in &mut told.groups {
                group.machine = machine.into();
                root(&mut group.root);
                group.others = group.gpus.is_empty().then_some("all");
                for gpu in &mut group.gpus {
                    gpu.label = short_label(gpu.index, gpu.id);
                    gpu.rule = sizes::rule(&group.rules, gpu.id);
                }
                group.add_up();
            }
            told.processes.retain(|it| check_name(&it.group).is_ok());
            for process in &mut told.processes {
                process.machine = machine.into();
                root(&mut process.root);
            }
            told
        }))
    }

    pub fn add(&mut self, other: Self) {
        self.gpus.extend(other.gpus);
        self.groups.extend(other.groups);
        self.processes.extend(other.processes);
    }
}
