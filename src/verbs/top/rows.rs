//! The rows of the two tables of `top`: which ones are shown, and in which order.
//!
//! Rows with equal figures keep their order from round to round, because names decide then.

use super::round::{Group, Name, Process, Round, Usage, Who};
use crate::shown::table::figure;
use clap::ValueEnum;
use gpulimit_base::device::DeviceId;
use gpulimit_group::last_name;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

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
    /// Returns whether rows of this GPU are shown. A row can be of no GPU or of all others.
    pub fn shows(&self, gpu: Option<DeviceId>) -> bool {
        self.gpus.is_empty() || gpu.is_none_or(|gpu| self.gpus.contains(&gpu))
    }

    fn turned(&self, order: Ordering) -> Ordering {
        match self.inverted {
            true => order.reverse(),
            false => order,
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
#[derive(Clone, Debug)]
pub struct GroupRow<'a> {
    pub group: &'a Group,
    pub usage: &'a Usage,
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
pub struct Rows<'a> {
    pub groups: Vec<GroupRow<'a>>,
    pub processes: Vec<&'a Process>,
}

/// The groups directly below a group, or at the top.
type Below<'a> = BTreeMap<Option<Name>, Vec<&'a Group>>;

impl<'a> Rows<'a> {
    pub fn of(round: &'a Round, choice: &Choice) -> Self {
        let mut rows = Self {
            groups: Vec::new(),
            processes: processes(round, choice),
        };
        let shown = shown(round, choice, &rows.processes);
        let names: BTreeSet<&Name> = round.groups.iter().map(|group| &group.name).collect();
        let mut below = Below::new();
        for group in &round.groups {
            let above = group.name.above().filter(|above| names.contains(above));
            if shown
                .as_ref()
                .is_none_or(|shown| shown.contains(&group.name))
            {
                below.entry(above).or_default().push(group);
            }
        }
        for groups in below.values_mut() {
            groups.sort_by(|one, other| order(choice, one, other));
        }
        rows.add(choice, &below, &None, &mut Vec::new());
        rows
    }

    /// Adds the rows of the groups below a group, or of those at the top.
    fn add(
        &mut self,
        choice: &Choice,
        below: &Below<'a>,
        above: &Option<Name>,
        levels: &mut Vec<bool>,
    ) {
        let groups = below.get(above).map_or(&[][..], |groups| groups);
        for (at, group) in groups.iter().enumerate() {
            levels.extend(above.is_some().then_some(at + 1 < groups.len()));
            let name = Some(group.name.clone());
            let is_folded = choice.folded.contains(&group.name) != choice.fold_all;
            let hidden = if is_folded { count(below, &name) } else { 0 };
            let usages = usages(group, choice).into_iter().enumerate();
            self.groups.extend(usages.map(|(at, usage)| GroupRow {
                group,
                usage,
                levels: levels.clone(),
                first: at == 0,
                hidden,
            }));
            if !is_folded {
                self.add(choice, below, &name, levels);
            }
            levels.truncate(levels.len() - usize::from(above.is_some()));
        }
    }

    /// Returns what a row shows. Rows of processes follow those of groups.
    pub fn item(&self, at: usize) -> Option<Item> {
        let (group, gpu, process) = match self.groups.get(at) {
            Some(row) => (&row.group.name, row.usage.gpu, None),
            None => {
                let process = self.processes.get(at - self.groups.len())?;
                (&process.group, process.gpu, Some(process.who))
            }
        };
        Some(Item {
            group: group.clone(),
            gpu,
            process,
        })
    }

    pub fn len(&self) -> usize {
        self.groups.len() + self.processes.len()
    }

    /// Returns the place of the row that shows an item.
    pub fn position(&self, item: &Item) -> Option<usize> {
        (0..self.len()).find(|at| self.item(*at).as_ref() == Some(item))
    }
}

/// Counts the groups below a group.
fn count(below: &Below<'_>, name: &Option<Name>) -> usize {
    let groups = below.get(name).into_iter().flatten();
    let counts = groups.map(|group| 1 + count(below, &Some(group.name.clone())));
    counts.sum()
}

/// Returns a group's figures on the chosen GPUs; never empty.
fn usages<'a>(group: &'a Group, choice: &Choice) -> Vec<&'a Usage> {
    let usages = group.usages.iter();
    let mut usages: Vec<_> = usages.filter(|it| choice.shows(it.gpu)).collect();
    if usages.is_empty() {
        usages.push(&group.unlisted);
    }
    usages
}

/// Returns whether a text contains the filter, in any case.
fn contains(text: &str, filter: &str) -> bool {
    text.to_lowercase().contains(&filter.to_lowercase())
}

/// Returns the processes to show, in their order.
fn processes<'a>(round: &'a Round, choice: &Choice) -> Vec<&'a Process> {
    let is_shown = |it: &&Process| {
        let pid = figure(it.who.pid);
        let texts = [&it.title, &it.user, &it.place, &it.command, &pid];
        (choice.filter.is_empty() || texts.iter().any(|text| contains(text, &choice.filter)))
            && (choice.user.is_empty() || it.user == choice.user)
            && choice.shows(it.gpu)
    };
    let mut found: Vec<_> = round.processes.iter().filter(is_shown).collect();
    found.sort_by(|one, other| {
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

/// Returns the groups of which they, a group below or one of their processes was chosen; `None`
/// for all.
fn shown(round: &Round, choice: &Choice, processes: &[&Process]) -> Option<BTreeSet<Name>> {
    if choice.filter.is_empty() && choice.user.is_empty() {
        return None;
    }
    let is_chosen = |it: &&Group| choice.user.is_empty() && contains(&it.title, &choice.filter);
    let groups = round
        .groups
        .iter()
        .filter(is_chosen)
        .map(|group| &group.name);
    let chosen = processes.iter().map(|process| &process.group).chain(groups);
    let with_above = |name: &Name| successors(Some(name.clone()), Name::above);
    Some(chosen.flat_map(with_above).collect())
}

/// Returns the order of two groups below the same group.
fn order(choice: &Choice, one: &Group, other: &Group) -> Ordering {
    // The largest figure first, of those on the chosen GPUs.
    let figures = |of: fn(&Usage) -> Option<u64>| {
        let [one, other] =
            [one, other].map(|it| usages(it, choice).into_iter().filter_map(of).max());
        other.cmp(&one)
    };
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
