//! The rows of the two tables of `top`: which ones are shown, and in which order.
//!
//! Rows with equal figures keep their order from round to round, because names decide then.

use super::round::{Group, Name, Process, Round, Usage, Who};
use clap::ValueEnum;
use gpulimit_base::device::DeviceId;
use gpulimit_group::last_name;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// What the rows are sorted by.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, ValueEnum)]
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
    /// Returns the name that the option `--sort` has for it.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().into())
    }

    /// Returns the next order, or the one before.
    pub fn other(self, forward: bool) -> Self {
        let all = Self::value_variants();
        let step = if forward { 1 } else { all.len() - 1 };
        all[(self as usize + step) % all.len()]
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

    /// Returns whether rows of this GPU are shown. A row can be of no GPU or of all others.
    pub fn shows(&self, gpu: Option<DeviceId>) -> bool {
        self.gpus.is_empty() || gpu.is_none_or(|gpu| self.gpus.contains(&gpu))
    }

    fn turned(&self, order: Ordering) -> Ordering {
        if self.inverted {
            order.reverse()
        } else {
            order
        }
    }
}

/// What a row shows, whatever its place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Item {
    pub group: Name,
    pub gpu: Option<DeviceId>,
    /// The process, in the table of processes.
    pub process: Option<Who>,
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
        let names: BTreeSet<&Name> = round.groups.iter().map(|group| &group.name).collect();
        let mut tree = Tree {
            round,
            choice,
            below: BTreeMap::new(),
            rows: Vec::new(),
        };
        for at in (0..round.groups.len()).filter(|at| shown[*at]) {
            let above = round.groups[at].name.above();
            let above = above.filter(|above| names.contains(above));
            tree.below.entry(above).or_default().push(at);
        }
        for groups in tree.below.values_mut() {
            groups.sort_by(|one, other| order(round, choice, *one, *other));
        }
        tree.add(None, &mut Vec::new());
        Self {
            groups: tree.rows,
            processes,
        }
    }

    /// Returns what a row shows. Rows of processes follow those of groups.
    pub fn item(&self, at: usize, round: &Round) -> Option<Item> {
        let (group, gpu, process) = match self.groups.get(at) {
            Some(row) => (&round.groups[row.group].name, row.usage(round).gpu, None),
            None => {
                let process = *self.processes.get(at - self.groups.len())?;
                let process = &round.processes[process];
                (&process.group, process.gpu, Some(process.who))
            }
        };
        let group = group.clone();
        Some(Item {
            group,
            gpu,
            process,
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

impl GroupRow {
    /// Returns the figures that the row shows.
    pub fn usage<'a>(&self, round: &'a Round) -> &'a Usage {
        let group = &round.groups[self.group];
        let usage = self.usage.and_then(|usage| group.usages.get(usage));
        usage.unwrap_or(&group.unlisted)
    }
}

/// Returns whether a text contains the filter, in any case.
fn contains(text: &str, filter: &str) -> bool {
    text.to_lowercase().contains(&filter.to_lowercase())
}

/// Returns the places of the processes to show, in their order.
fn processes(round: &Round, choice: &Choice) -> Vec<usize> {
    let is_shown = |process: &Process| {
        let pid = process
            .who
            .pid
            .map_or_else(String::new, |pid| pid.to_string());
        let texts = [
            &process.title,
            &process.user,
            &process.place,
            &process.command,
            &pid,
        ];
        (choice.filter.is_empty() || texts.iter().any(|text| contains(text, &choice.filter)))
            && (choice.user.is_empty() || process.user == choice.user)
            && choice.shows(process.gpu)
    };
    let all = 0..round.processes.len();
    let mut found: Vec<usize> = all.filter(|at| is_shown(&round.processes[*at])).collect();
    found.sort_by(|one, other| {
        let [one, other] = [one, other].map(|at| &round.processes[*at]);
        let order = match choice.sort {
            Sort::Group => one.title.split('/').cmp(other.title.split('/')),
            Sort::User => one.user.cmp(&other.user),
            Sort::Pid => one.who.pid.cmp(&other.who.pid),
            Sort::Usage | Sort::Percent | Sort::Max | Sort::Peak => other.total.cmp(&one.total),
        };
        choice.turned(order).then_with(|| one.who.cmp(&other.who))
    });
    found
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
            next = name.above();
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

/// Returns the order of two groups below the same group.
fn order(round: &Round, choice: &Choice, one: usize, other: usize) -> Ordering {
    let [one, other] = [one, other].map(|at| &round.groups[at]);
    // A group's largest figure on the chosen GPUs.
    let figure = |group: &Group, of: fn(&Usage) -> Option<u64>| {
        let mut usages = group
            .usages
            .iter()
            .filter(|it| choice.shows(it.gpu))
            .peekable();
        match usages.peek() {
            Some(_) => usages.filter_map(of).max(),
            None => of(&group.unlisted),
        }
    };
    let figures = |of: fn(&Usage) -> Option<u64>| figure(other, of).cmp(&figure(one, of));
    let by_name = || last_name(&one.name.name).cmp(last_name(&other.name.name));
    let order = match choice.sort {
        Sort::Group => by_name(),
        Sort::Usage => figures(|usage| usage.usage),
        Sort::Percent => figures(Usage::percent),
        Sort::Max => figures(|usage| usage.limit),
        Sort::Peak => figures(|usage| usage.peak),
        Sort::User | Sort::Pid => Ordering::Equal,
    };
    let order = choice.turned(order).then_with(by_name);
    order.then_with(|| one.name.root.cmp(&other.name.root))
}

/// The groups as a tree, while its rows are made.
struct Tree<'a> {
    round: &'a Round,
    choice: &'a Choice,
    /// The places of the groups directly below a group, or at the top.
    below: BTreeMap<Option<Name>, Vec<usize>>,
    rows: Vec<GroupRow>,
}

impl Tree<'_> {
    /// Counts the groups below a group.
    fn count(&self, group: usize) -> usize {
        let below = self.below.get(&Some(self.round.groups[group].name.clone()));
        let below = below.into_iter().flatten();
        below.map(|group| 1 + self.count(*group)).sum()
    }

    /// Adds the rows of the groups below a group, or of those at the top.
    fn add(&mut self, above: Option<Name>, levels: &mut Vec<bool>) {
        let below = self.below.remove(&above).unwrap_or_default();
        for (place, at) in below.iter().copied().enumerate() {
            let group = &self.round.groups[at];
            let is_folded = self.choice.is_folded(&group.name);
            let hidden = if is_folded { self.count(at) } else { 0 };
            levels.extend(above.is_some().then_some(place + 1 < below.len()));
            let usages = group.usages.iter().enumerate();
            let usages = usages.filter(|(_, usage)| self.choice.shows(usage.gpu));
            let mut usages: Vec<_> = usages.map(|(at, _)| Some(at)).collect();
            if usages.is_empty() {
                usages.push(None);
            }
            let rows = usages.into_iter().enumerate();
            self.rows.extend(rows.map(|(place, usage)| GroupRow {
                group: at,
                usage,
                levels: levels.clone(),
                first: place == 0,
                hidden,
            }));
            if !is_folded {
                self.add(Some(group.name.clone()), levels);
            }
            levels.truncate(levels.len() - usize::from(above.is_some()));
        }
    }
}
