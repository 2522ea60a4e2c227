//! Groups as a tree: each group with the groups directly below it.

use super::Figures;
use gpulimit_group::{last_name, parent};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A group and the groups directly below it.
pub struct Node<'a> {
    pub group: &'a Figures,
    pub below: Vec<Node<'a>>,
}

/// The groups directly below each group, which is given by its root and name.
type Children<'a> = BTreeMap<(&'a Path, &'a str), Vec<&'a Figures>>;

impl<'a> Node<'a> {
    fn of(group: &'a Figures, children: &Children<'a>) -> Self {
        let below = children.get(&(&*group.root, &*group.name));
        let below = below.into_iter().flatten();
        Self {
            group,
            below: below.map(|below| Self::of(below, children)).collect(),
        }
    }

    /// Returns the given groups as trees. A group is the top of a tree if its parent is not given.
    /// Groups below the same group keep their order.
    pub fn tops(groups: &[&'a Figures]) -> Vec<Self> {
        let name = |group: &&'a Figures| (&*group.root, &*group.name);
        let given: BTreeSet<(&Path, &str)> = groups.iter().map(name).collect();
        let (mut tops, mut children) = (Vec::new(), Children::new());
        for group in groups {
            let parent = parent(&group.name).map(|parent| (&*group.root, parent));
            match parent.filter(|parent| given.contains(parent)) {
                Some(parent) => children.entry(parent).or_default().push(*group),
                None => tops.push(group),
            }
        }
        let trees = tops.into_iter().map(|top| Self::of(top, &children));
        trees.collect()
    }

    /// Counts the groups below, at all levels.
    pub fn count(&self) -> usize {
        self.below.iter().map(|node| 1 + node.count()).sum()
    }

    /// Calls `each` for this group and, if it returns true, for those below. `each` also gets the
    /// branch that precedes the group's name, and what precedes further rows of the group.
    pub fn walk(&self, each: &mut impl FnMut(&Self, &str, &str) -> bool) {
        self.walk_from("", "", each);
    }

    fn walk_from(
        &self,
        branch: &str,
        edge: &str,
        each: &mut impl FnMut(&Self, &str, &str) -> bool,
    ) {
        let trunk = if self.below.is_empty() { " " } else { "│" };
        if !each(self, branch, format!("{edge}{trunk}").trim_end()) {
            return;
        }
        for (at, node) in self.below.iter().enumerate() {
            let (branch, further) = if at + 1 < self.below.len() {
                ("├─ ", "│  ")
            } else {
                ("└─ ", "   ")
            };
            let [branch, further] = [branch, further].map(|more| edge.to_owned() + more);
            node.walk_from(&branch, &further, each);
        }
    }

    /// Returns the group's name behind its branch.
    pub fn name(&self, branch: &str) -> &'a str {
        match branch {
            "" => &self.group.title,
            _ => last_name(&self.group.name),
        }
    }
}
