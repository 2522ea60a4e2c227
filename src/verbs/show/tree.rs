//! `gpulimit show --tree`: the hierarchy of groups.

use crate::figures::Figures;
use crate::figures::fields::{left, right};
use crate::shown::table::{Table, figure};
use gpulimit_base::units::gib;
use gpulimit_group::{last_name, parent};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Returns the groups as JSON, each with a list of the groups directly below it.
pub fn json(groups: &[Figures]) -> Vec<Value> {
    Node::tops(groups).iter().map(Node::json).collect()
}

/// Returns a table in which the names of groups are below that of their parent.
pub fn table(groups: &[Figures]) -> Table {
    let mut table = Table::new(&[left("GROUP"), left("GPU"), right("USAGE"), right("MAX")]);
    for top in Node::tops(groups) {
        top.rows(&mut table, &top.group.title, "");
    }
    table
}

/// The groups directly below each group, which is given by its root and name.
type Children<'a> = BTreeMap<(&'a Path, &'a str), Vec<&'a Figures>>;

/// A node of the tree: a group and the groups directly below it.
struct Node<'a> {
    group: &'a Figures,
    below: Vec<Node<'a>>,
}

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
    fn tops(groups: &'a [Figures]) -> Vec<Self> {
        let name = |group: &'a Figures| (&*group.root, &*group.name);
        let given: BTreeSet<(&Path, &str)> = groups.iter().map(name).collect();
        let (mut tops, mut children) = (Vec::new(), Children::new());
        for group in groups {
            let parent = parent(&group.name).map(|parent| (&*group.root, parent));
            match parent.filter(|parent| given.contains(parent)) {
                Some(parent) => children.entry(parent).or_default().push(group),
                None => tops.push(group),
            }
        }
        let trees = tops.into_iter().map(|top| Self::of(top, &children));
        trees.collect()
    }
}

impl Node<'_> {
    fn json(&self) -> Value {
        let mut json = self.group.json();
        json["groups"] = self.below.iter().map(Node::json).collect();
        json
    }

    /// Adds rows for this group and the groups below. `name` is this group's first cell; `edge`
    /// precedes the names below.
    fn rows(&self, table: &mut Table, name: &str, edge: &str) {
        let trunk = if self.below.is_empty() { " " } else { "│" };
        for (at, row) in self.group.rows().enumerate() {
            let name = match at {
                0 => name.to_owned(),
                _ => format!("{edge}{trunk}").trim_end().to_owned(),
            };
            let usage = figure(row.gpu.and_then(|gpu| gpu.usage).map(gib));
            table.row(vec![name, row.label().to_owned(), usage, row.max()]);
        }
        for (at, node) in self.below.iter().enumerate() {
            let (branch, further) = if at + 1 < self.below.len() {
                ("├─ ", "│  ")
            } else {
                ("└─ ", "   ")
            };
            let name = format!("{edge}{branch}{}", last_name(&node.group.name));
            node.rows(table, &name, &format!("{edge}{further}"));
        }
    }
}
