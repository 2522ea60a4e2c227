//! What a round of `top` shows. Texts of other users are escaped.

use super::look::FILLS;
use crate::figures::machines::{Asked, Told};
use crate::figures::processes::Process;
use crate::figures::snapshot::GpuMemory;
use crate::figures::{Figures, past::Past, tree::Node};
use crate::groups::{SCHEMA, short_label};
use crate::machine::nvml::Driver;
use crate::shown::output::Escaped;
use crate::shown::table::figure;
use crate::words::{clock::Moment, failure::Failure, notes::Notes};
use gpulimit_base::device::DeviceId;
use gpulimit_group::parent;
use jiff::Timestamp;
use ratatui::style::Style;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The GPUs, the groups and the processes at one moment.
#[derive(Default)]
pub struct Round {
    pub time: Timestamp,
    /// The root, as it is printed.
    pub root: String,
    pub gpus: Vec<GpuMemory>,
    /// Each group comes before the groups below it.
    pub groups: Vec<Figures>,
    /// Sorted by group and pid, with an entry for each GPU.
    pub processes: Vec<Process>,
    /// What could not be read, and why; empty if all could be read.
    pub problem: String,
    /// What could not be read, for standard error.
    pub notes: Notes,
    /// The machines that were asked; none if the round is of this machine.
    pub machines: Asked,
    /// The past usage of the group that is wanted, and its last refusals.
    pub pasts: Option<(Wanted, Vec<Past>, Vec<String>)>,
}

/// The names of the top groups. A group's place tells its filling and its colour on all GPUs.
pub struct Tops<'a>(Vec<&'a str>);

impl Tops<'_> {
    pub fn fill(&self, top: &str) -> (&'static str, Style) {
        let place = self.0.binary_search(&top).unwrap_or(0);
        FILLS[place % FILLS.len()]
    }
}

/// A group whose curves are shown, and from when on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wanted {
    pub group: Name,
    pub since: Duration,
}

/// A group's root and full name.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Name {
    pub root: PathBuf,
    pub name: String,
}

impl Name {
    pub fn new(root: &Path, name: &str) -> Self {
        Self {
            root: root.into(),
            name: name.into(),
        }
    }

    pub fn of(group: &Figures) -> Self {
        Self::new(&group.root, &group.name)
    }

    pub fn of_process(process: &Process) -> Self {
        Self::new(&process.root, &process.group)
    }

    /// Returns the group above; `None` for a top group.
    pub fn above(&self) -> Option<Self> {
        parent(&self.name).map(|above| Self::new(&self.root, above))
    }
}

/// What tells processes apart, also if a pid is used again.
#[derive(Copy, Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Who {
    /// The pid in the caller's namespace; `None` if the process is not visible there.
    pub pid: Option<u32>,
    pub own_pid: u32,
    /// The start time in the process's slot.
    pub start_time: u64,
}

impl Who {
    pub fn of(process: &Process) -> Self {
        Self {
            pid: process.pid,
            own_pid: process.own_pid,
            start_time: process.start_time,
        }
    }
}

impl Round {
    /// Returns what machines said last. A machine that does not answer has a line, and no rows.
    pub fn told((machines, told): (Asked, Told), wanted: Option<&Wanted>) -> Self {
        let named = machines.iter();
        let lost = named.filter_map(|(name, why)| Some(format!("{name}: {}", why.as_ref()?)));
        let lost: Vec<String> = lost.map(|text| Escaped(&text).to_string()).collect();
        Self {
            time: Timestamp::now(),
            gpus: told.gpus,
            groups: told.groups,
            processes: told.processes,
            notes: Notes {
                is_failure: !lost.is_empty(),
                ..Notes::default()
            },
            problem: lost.join("\n"),
            machines,
            pasts: wanted.map(|wanted| (wanted.clone(), Vec::new(), Vec::new())),
            ..Self::default()
        }
    }

    /// Writes a round, or why it could not be read, for the option `--machines` of others.
    pub fn written<'a>(round: &'a Result<Self, Failure>) -> Result<String, Failure> {
        let parts = |it: &'a Self| (&it.gpus, &it.groups, &it.processes);
        let said = round.as_ref().map(parts).map_err(Failure::to_string);
        serde_json::to_string(&said).map_err(|error| Failure::new(format_args!("{error}")))
    }

    /// Escapes the texts of other users.
    pub fn escape(&mut self) {
        let escape = |text: &mut String| *text = Escaped(text).to_string();
        self.groups.iter_mut().for_each(|it| escape(&mut it.title));
        for gpu in &mut self.gpus {
            escape(&mut gpu.name);
            gpu.parts.iter_mut().for_each(|(title, _)| escape(title));
        }
        for it in &mut self.processes {
            let texts = [&mut it.title, &mut it.user, &mut it.place].into_iter();
            texts.chain(&mut it.command).for_each(escape);
        }
    }

    /// Returns the round of the chosen GPUs as one object, with the names of `show --json` and
    /// `ps --json`. `shows` returns whether a GPU was chosen.
    pub fn json(&self, driver: Option<&Driver>, shows: impl Fn(DeviceId) -> bool) -> Value {
        let processes = self.processes.iter();
        let processes = processes.filter(|it| it.gpu().is_none_or(&shows));
        let gpus = self.gpus.iter().filter(|gpu| shows(gpu.id));
        let mut round = json!({
            "schema": SCHEMA,
            "root": self.root,
            "time": Moment::from(self.time).to_string(),
            "gpus": gpus.map(GpuMemory::json).collect::<Vec<_>>(),
            "groups": self.groups.iter().map(Figures::json).collect::<Vec<_>>(),
            "processes": processes.map(|it| it.json(driver)).collect::<Vec<_>>(),
        });
        if !self.machines.is_empty() {
            round["machines"] = self.machines.iter().cloned().collect();
        }
        round
    }

    /// Returns the round after a failure, which shows only its message.
    pub fn failed(failure: &Failure) -> Self {
        Self::without(Escaped(&failure.to_string()).to_string())
    }

    /// Returns a round that shows only why there is nothing to show.
    pub fn without(why: String) -> Self {
        Self {
            time: Timestamp::now(),
            problem: why,
            ..Self::default()
        }
    }

    /// Returns the names of the top groups, in order.
    pub fn tops(&self) -> Tops<'_> {
        let groups: Vec<&Figures> = self.groups.iter().collect();
        let tops = Node::tops(&groups).into_iter();
        let mut names: Vec<&str> = tops.map(|top| &*top.group.title).collect();
        names.sort_unstable();
        Tops(names)
    }

    /// Returns NVML's index of a GPU, or else the beginning of its UUID; `-` for none.
    pub fn label(&self, gpu: Option<DeviceId>) -> String {
        let index = |id| self.gpus.iter().find(|gpu| gpu.id == id)?.index;
        figure(gpu.map(|id| short_label(index(id), id)))
    }
}
