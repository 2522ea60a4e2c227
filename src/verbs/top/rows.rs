//! The rows of the two tables of `top`: which ones are shown, and in which order.
//!
//! Rows with equal figures keep their order from round to round, because names decide then.

use super::round::{Group, Name, Process, Round, Usage};
use gpulimit_base::device::DeviceId;
use gpulimit_group::{last_name, parent};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// What the rows are sorted by.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum Sort {
    /// Names of groups, then pids
    #[default]
    Group,
    /// Memory in use, the largest first
    Usage,
    /// The used part of the limit, the largest first
    Percent,
    /// The limit, the largest first
    Max,
    /// The peak, the largest first
    Peak,
    /// Names of users
    User,
    /// Pids
    Pid,
}

impl Sort {
    /// All orders, in the order in which keys choose them, with their names.
    pub const ALL: [(Self, &str); 7] = [
        (Self::Group, "group"),
        (Self::Usage, "usage"),
        (Self::Percent, "percent"),
        (Self::Max, "max"),
        (Self::Peak, "peak"),
        (Self::User, "user"),
        (Self::Pid, "pid"),
    ];

    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(sort, _)| *sort == self);
        named.map_or("group", |(_, name)| name)
    }

    /// Returns the order that is `steps` further in the list.
    pub fn step(self, steps: usize) -> Self {
        let at = Self::ALL.iter().position(|(sort, _)| *sort == self);
        Self::ALL[(at.unwrap_or(0) + steps) % Self::ALL.len()].0
    }
}

/// What the user has chosen to see.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub sort: Sort,
    /// Whether the order is inverted.
    pub inverted: bool,
    /// A part of the names of groups, users, containers, jobs and commands, in any case.
    pub filter: String,
    /// The name of the user whose processes are shown; empty for all.
    pub user: String,
    /// The GPUs that are shown; empty for all.
    pub gpus: Vec<DeviceId>,
    /// The groups whose subtrees are hidden.
    pub folded: BTreeSet<Name>,
    /// Whether the subtrees of all other groups are hidden, and the groups in `folded` are not.
    pub fold_all: bool,
}

impl Choice {
    pub fn is_folded(&self, name: &Name) -> bool {
        self.folded.contains(name) != self.fold_all
    }

    pub fn shows(&self, gpu: DeviceId) -> bool {
        self.gpus.is_empty() || self.gpus.contains(&gpu)
    }
}

/// What a row shows, whatever its place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Item {
    Group(Name, Option<DeviceId>),
    Process {
        group: Name,
        pid: Option<u32>,
        own_pid: u32,
        start_time: u64,
        gpu: Option<DeviceId>,
    },
}

/// A row of the table of groups: a group on one GPU.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupRow {
    /// The place of the group in the round.
    pub group: usize,
    /// The place of the figures in the group; `None` if the group has none of the chosen GPUs.
    pub usage: Option<usize>,
    /// For each level above, whether another group follows on this level; the last entry is the
    /// group's own level. Empty for a top group.
    pub levels: Vec<bool>,
    /// Whether this is the first row of the group.
    pub first: bool,
    /// The number of groups that are hidden below.
    pub hidden: usize,
}

/// The rows of both tables.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub groups: Vec<GroupRow>,
    /// The places of the processes in the round.
    pub processes: Vec<usize>,
}

impl Rows {
    pub fn of(round: &Round, choice: &Choice) -> Self {
        let processes = processes(round, choice);
        let shown = shown(round, choice, &processes);
        let mut tree = Tree {
            round,
            choice,
            below: BTreeMap::new(),
            rows: Vec::new(),
        };
        let names: BTreeSet<&Name> = round.groups.iter().map(|group| &group.name).collect();
        let mut tops = Vec::new();
        for (at, group) in round.groups.iter().enumerate().filter(|(at, _)| shown[*at]) {
            match above(&group.name).filter(|above| names.contains(above)) {
                Some(above) => tree.below.entry(above).or_default().push(at),
                None => tops.push(at),
            }
        }
        tree.sort(&mut tops);
        for top in tops {
            tree.add(top, &mut Vec::new());
        }
        Self {
            groups: tree.rows,
            processes,
        }
    }

    /// Returns what a row shows. Rows of processes follow those of groups.
    pub fn item(&self, at: usize, round: &Round) -> Option<Item> {
        if let Some(row) = self.groups.get(at) {
            let group = round.groups.get(row.group)?;
            let usage = row.usage.and_then(|usage| group.usages.get(usage));
            let gpu = usage.and_then(|usage| usage.gpu);
            return Some(Item::Group(group.name.clone(), gpu));
        }
        let process = *self.processes.get(at - self.groups.len())?;
        let process = round.processes.get(process)?;
        Some(Item::Process {
            group: process.group.clone(),
            pid: process.pid,
            own_pid: process.own_pid,
            start_time: process.start_time,
            gpu: process.gpu,
        })
    }

    pub fn len(&self) -> usize {
        self.groups.len() + self.processes.len()
    }

    /// Returns the place of the row that shows an item.
    pub fn position(&self, item: &Item, round: &Round) -> Option<usize> {
        (0..self.len()).find(|at| self.item(*at, round).as_ref() == Some(item))
    }
}

fn above(name: &Name) -> Option<Name> {
    parent(&name.name).map(|above| Name {
        root: name.root.clone(),
        name: above.into(),
    })
}

/// Returns whether a text contains the filter, in any case.
fn contains(text: &str, filter: &str) -> bool {
    text.to_lowercase().contains(&filter.to_lowercase())
}

/// Returns the places of the processes to show, in their order.
fn processes(round: &Round, choice: &Choice) -> Vec<usize> {
    let is_shown = |process: &Process| {
        let pid = process.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let texts = [
            &process.title,
            &process.user,
            &process.place,
            &process.command,
            &pid,
        ];
        (choice.filter.is_empty() || texts.iter().any(|text| contains(text, &choice.filter)))
            && (choice.user.is_empty() || process.user == choice.user)
            && process.gpu.is_none_or(|gpu| choice.shows(gpu))
    };
    let all = round.processes.iter().enumerate();
    let mut found: Vec<usize> = all
        .filter(|(_, process)| is_shown(process))
        .map(|(at, _)| at)
        .collect();
    let of = |at: &usize| &round.processes[*at];
    found.sort_by(|one, other| {
        let (one, other) = (of(one), of(other));
        let order = match choice.sort {
            Sort::Group => one.title.split('/').cmp(other.title.split('/')),
            Sort::User => one.user.cmp(&other.user),
            Sort::Pid => one.pid.cmp(&other.pid),
            Sort::Usage | Sort::Percent | Sort::Max | Sort::Peak => other.total.cmp(&one.total),
        };
        let key = |process: &Process| (process.pid, process.own_pid);
        turned(order, choice).then_with(|| key(one).cmp(&key(other)))
    });
    found
}

fn turned(order: Ordering, choice: &Choice) -> Ordering {
    if choice.inverted {
        order.reverse()
    } else {
        order
    }
}

/// Returns for each group whether it is shown: it, a group below it or one of its processes was
/// chosen.
fn shown(round: &Round, choice: &Choice, processes: &[usize]) -> Vec<bool> {
    if choice.filter.is_empty() && choice.user.is_empty() {
        return vec![true; round.groups.len()];
    }
    let mut names = BTreeSet::new();
    let mut add = |name: &Name| {
        let mut next = Some(name.clone());
        while let Some(name) = next.take() {
            next = above(&name);
            names.insert(name);
        }
    };
    for process in processes {
        add(&round.processes[*process].group);
    }
    for group in &round.groups {
        if choice.user.is_empty() && contains(&group.title, &choice.filter) {
            add(&group.name);
        }
    }
    let groups = round.groups.iter();
    groups.map(|group| names.contains(&group.name)).collect()
}

/// The groups as a tree, while its rows are made.
struct Tree<'a> {
    round: &'a Round,
    choice: &'a Choice,
    /// The places of the groups directly below a group.
    below: BTreeMap<Name, Vec<usize>>,
    rows: Vec<GroupRow>,
}

impl Tree<'_> {
    fn sort(&self, groups: &mut [usize]) {
        let of = |at: &usize| &self.round.groups[*at];
        groups.sort_by(|one, other| {
            let (one, other) = (of(one), of(other));
            let by_name = || last_name(&one.name.name).cmp(last_name(&other.name.name));
            let figures =
                |of: fn(&Usage) -> Option<u64>| self.figure(other, of).cmp(&self.figure(one, of));
            let order = match self.choice.sort {
                Sort::Group => by_name(),
                Sort::Usage => figures(|usage| usage.usage),
                Sort::Percent => figures(Usage::percent),
                Sort::Max => figures(|usage| usage.limit),
                Sort::Peak => figures(|usage| usage.peak),
                Sort::User | Sort::Pid => Ordering::Equal,
            };
            let order = turned(order, self.choice).then_with(by_name);
            order.then_with(|| one.name.root.cmp(&other.name.root))
        });
    }

    /// Returns a group's largest figure on the chosen GPUs.
    fn figure(&self, group: &Group, of: fn(&Usage) -> Option<u64>) -> Option<u64> {
        let usages = group.usages.iter();
        let mut shown = usages
            .filter(|usage| usage.gpu.is_none_or(|gpu| self.choice.shows(gpu)))
            .peekable();
        match shown.peek() {
            Some(_) => shown.filter_map(of).max(),
            None => of(&group.unlisted),
        }
    }

    /// Counts the groups below a group.
    fn count(&self, group: usize) -> usize {
        let below = self.below.get(&self.round.groups[group].name);
        let below = below.into_iter().flatten();
        below.map(|group| 1 + self.count(*group)).sum()
    }

    /// Adds the rows of a group and of the groups below it.
    fn add(&mut self, at: usize, levels: &mut Vec<bool>) {
        let group = &self.round.groups[at];
        let is_folded = self.choice.is_folded(&group.name);
        let hidden = if is_folded { self.count(at) } else { 0 };
        let is_shown = |usage: &Usage| usage.gpu.is_none_or(|gpu| self.choice.shows(gpu));
        let usages = group.usages.iter().enumerate();
        let mut usages: Vec<Option<usize>> = usages
            .filter(|(_, usage)| is_shown(usage))
            .map(|(at, _)| Some(at))
            .collect();
        if usages.is_empty() {
            usages.push(None);
        }
        for (place, usage) in usages.into_iter().enumerate() {
            self.rows.push(GroupRow {
                group: at,
                usage,
                levels: levels.clone(),
                first: place == 0,
                hidden,
            });
        }
        let mut below = match is_folded {
            true => Vec::new(),
            false => self.below.get(&group.name).cloned().unwrap_or_default(),
        };
        self.sort(&mut below);
        for (place, group) in below.iter().enumerate() {
            levels.push(place + 1 < below.len());
            self.add(*group, levels);
            levels.pop();
        }
    }
}
