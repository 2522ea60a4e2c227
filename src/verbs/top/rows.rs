//! The rows of the two tables of `top`: which ones are shown, and in which order.
//!
//! Rows with equal figures keep their order from round to round, because names decide then.

use super::round::{Name, Round, Who};
use crate::figures::processes::Process;
use crate::figures::tree::Node;
use crate::figures::{Figures, Gpu, Row};
use crate::shown::table::figure;
use crate::words::order::{self, Natural, Place};
use clap::ValueEnum;
use gpulimit_base::device::DeviceId;
use gpulimit_group::last_name;
use std::collections::BTreeSet;
use std::iter::successors;

/// What the rows are sorted by.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Sort {
    /// Memory in use, the largest first
    #[default]
    Usage,
    /// Names of groups, then pids
    Group,
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
    /// Whether groups without processes and memory are shown.
    pub idle: bool,
}

impl Choice {
    /// Returns whether rows of this GPU are shown. A row can be of no GPU or of all others.
    pub fn shows(&self, gpu: Option<DeviceId>) -> bool {
        self.gpus.is_empty() || gpu.is_none_or(|gpu| self.gpus.contains(&gpu))
    }

    fn is_folded(&self, group: &Figures) -> bool {
        self.folded.contains(&Name::of(group)) != self.fold_all
    }

    /// Returns the place of a group below the group above it.
    fn place(&self, group: &Figures) -> Option<Place> {
        let figure: fn(&Gpu) -> Option<u64> = match self.sort {
            Sort::Group => return Place::name(last_name(&group.name)),
            Sort::Usage => |gpu| gpu.usage,
            Sort::Percent => Gpu::percent,
            Sort::Max => Gpu::limit,
            Sort::Peak => |gpu| gpu.peak,
            Sort::User | Sort::Pid => return None,
        };
        // The largest figure of those that are shown.
        let rows = rows(group, self).into_iter();
        Place::figure(rows.filter_map(|row| figure(row.gpu?)).max())
    }

    fn place_of_process(&self, process: &Process) -> Option<Place> {
        match self.sort {
            Sort::Group => Place::name(&process.title),
            Sort::User => Place::name(&process.user),
            Sort::Pid => process.pid.map(Place::Number),
            Sort::Usage | Sort::Percent | Sort::Max | Sort::Peak => Place::figure(process.total()),
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

/// A row of the table of groups: a group on all GPUs, or on one of those that the user has chosen.
pub struct GroupRow<'a> {
    pub row: Row<'a>,
    /// The group's name behind the branches of the tree; further rows of the group have none.
    pub name: String,
    /// Whether this is the first row of the group.
    pub first: bool,
    /// The name of the top group that the group is in.
    pub top: &'a str,
}

/// The rows of both tables.
pub struct Rows<'a> {
    pub groups: Vec<GroupRow<'a>>,
    pub processes: Vec<&'a Process>,
    /// The number of idle groups that are not shown.
    pub idle: usize,
}

impl<'a> Rows<'a> {
    pub fn of(round: &'a Round, choice: &Choice) -> Self {
        let processes = processes(round, choice);
        let shown = shown(round, choice, &processes);
        let is_shown = |group: &&Figures| {
            let shown = shown.as_ref();
            shown.is_none_or(|shown| shown.contains(&Name::of(group)))
        };
        let mut chosen: Vec<&Figures> = round.groups.iter().filter(is_shown).collect();
        let all = chosen.len();
        // A filter asks for what it finds.
        if !choice.idle && shown.is_none() {
            chosen.retain(|group| !group.is_idle());
        }
        let idle = all - chosen.len();
        chosen.sort_by_cached_key(|group| (Natural::of(last_name(&group.name)), &group.root));
        order::sort(&mut chosen, choice.inverted, |group| choice.place(group));
        let mut groups = Vec::new();
        for top in Node::tops(&chosen) {
            top.walk(&mut |node, branch, further| {
                let is_folded = choice.is_folded(node.group);
                let hidden = if is_folded { node.count() } else { 0 };
                for (at, row) in rows(node.group, choice).into_iter().enumerate() {
                    let name = match (at, hidden) {
                        (0, 0) => branch.to_owned() + node.name(branch),
                        (0, _) => format!("{branch}▸ {} (+{hidden})", node.name(branch)),
                        _ => further.into(),
                    };
                    groups.push(GroupRow {
                        row,
                        name,
                        first: at == 0,
                        top: &top.group.title,
                    });
                }
                !is_folded
            });
        }
        Self {
            groups,
            processes,
            idle,
        }
    }

    /// Returns what a row shows. Rows of processes follow those of groups.
    pub fn item(&self, at: usize) -> Option<Item> {
        let (group, gpu, process) = match self.groups.get(at) {
            Some(GroupRow { row, .. }) => {
                let gpu = row.gpu.filter(|_| !row.is_sum);
                (Name::of(row.group), gpu.map(|gpu| gpu.id), None)
            }
            None => {
                let it = self.processes.get(at - self.groups.len())?;
                (Name::of_process(it), it.gpu(), Some(Who::of(it)))
            }
        };
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
    pub fn position(&self, item: &Item) -> Option<usize> {
        (0..self.len()).find(|at| self.item(*at).as_ref() == Some(item))
    }
}

/// Returns the row of a group, or those on the chosen GPUs; never empty.
fn rows<'a>(group: &'a Figures, choice: &Choice) -> Vec<Row<'a>> {
    if choice.gpus.is_empty() {
        let gpu = group.sum.as_ref().or(group.gpus.first());
        let is_sum = group.sum.is_some();
        return vec![Row { group, gpu, is_sum }];
    }
    let is_shown = |row: &Row<'_>| choice.shows(row.gpu.map(|gpu| gpu.id));
    let mut rows: Vec<_> = group.rows().filter(is_shown).collect();
    if rows.is_empty() {
        rows.push(Row::new(group, None));
    }
    rows
}

/// Returns whether a text contains the filter, in any case.
fn contains(text: &str, filter: &str) -> bool {
    text.to_lowercase().contains(&filter.to_lowercase())
}

/// Returns the processes to show, in their order.
fn processes<'a>(round: &'a Round, choice: &Choice) -> Vec<&'a Process> {
    let is_shown = |it: &&Process| {
        let (pid, command) = (figure(it.pid), figure(it.command.as_deref()));
        let texts = [&it.title, &it.user, &it.place, &command, &pid];
        (choice.filter.is_empty() || texts.iter().any(|text| contains(text, &choice.filter)))
            && (choice.user.is_empty() || it.user == choice.user)
            && choice.shows(it.gpu())
    };
    let mut found: Vec<_> = round.processes.iter().filter(is_shown).collect();
    found.sort_by_key(|process| Who::of(process));
    order::sort(&mut found, choice.inverted, |it| {
        choice.place_of_process(it)
    });
    found
}

/// Returns the groups of which they, a group below or one of their processes was chosen; `None`
/// for all.
fn shown(round: &Round, choice: &Choice, processes: &[&Process]) -> Option<BTreeSet<Name>> {
    if choice.filter.is_empty() && choice.user.is_empty() {
        return None;
    }
    let is_chosen = |it: &&Figures| choice.user.is_empty() && contains(&it.title, &choice.filter);
    let groups = round.groups.iter().filter(is_chosen).map(Name::of);
    let members = processes.iter().map(|it| Name::of_process(it));
    let with_above = |name: Name| successors(Some(name), Name::above);
    Some(members.chain(groups).flat_map(with_above).collect())
}
