//! `gpulimit tree`: shows the hierarchy of groups.

use super::failure::Failure;
use super::figures::{self, Figures, Gpu};
use super::groups::Selection;
use super::table::{Column, Table, figure};
use super::{output, show};
use gpulimit_base::units::gib;
use gpulimit_group::{last_name, parent};
use gpulimit_limits::Key;
use serde_json::Value;
use std::process::ExitCode;

/// Options of `tree`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only this group and the groups below it
    group: Option<String>,

    /// Print JSON: each group has a list `groups` of the groups directly below it
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
USAGE includes all groups below the group. A smaller limit of a group above
applies as well.

Examples:
  gpulimit tree
  gpulimit tree lab --json";

/// Shows the groups.
pub fn tree(args: &Args) -> Result<ExitCode, Failure> {
    let selection = Selection::of(args.group.as_deref())?;
    let (figures, status) = Figures::all(&selection);
    let tops = Node::tops(&figures);
    if args.json {
        let groups: Vec<Value> = tops.iter().map(Node::json).collect();
        selection.print_json("groups", groups)?;
    } else if !tops.is_empty() {
        let mut table = Table::new(&[
            Column::Left("GROUP"),
            Column::Left("GPU"),
            Column::Right("USAGE"),
            Column::Right("MAX"),
        ]);
        for top in &tops {
            top.rows(&mut table, &top.group.title, "");
        }
        output::table(&table.render())?;
    } else if status == ExitCode::SUCCESS {
        show::no_groups(&selection);
    }
    Ok(status)
}

/// A node of the tree: a group and the groups directly below it.
struct Node<'a> {
    group: &'a Figures,
    below: Vec<Node<'a>>,
}

impl<'a> Node<'a> {
    fn of(group: &'a Figures, groups: &'a [Figures]) -> Self {
        let below = groups.iter().filter(|other| other.is_directly_below(group));
        Self {
            group,
            below: below.map(|below| Self::of(below, groups)).collect(),
        }
    }

    /// Returns the given groups as trees. A group is the top of a tree if its parent is not given.
    fn tops(groups: &'a [Figures]) -> Vec<Self> {
        let is_top = |group: &&Figures| !groups.iter().any(|other| group.is_directly_below(other));
        let tops = groups.iter().filter(is_top);
        tops.map(|top| Self::of(top, groups)).collect()
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
        let figures = self.group;
        let of_gpu = |gpu: &Gpu| {
            (
                gpu.label.clone(),
                figure(gpu.usage.map(gib)),
                show::max(gpu),
            )
        };
        let of_others = |others: &str| {
            let max = figures::size(figures.of_all(Key::Max));
            (others.to_owned(), figure(None::<u64>), max)
        };
        let lines = figures.gpus.iter().map(of_gpu);
        let trunk = if self.below.is_empty() { " " } else { "│" };
        for (at, (gpu, usage, max)) in lines.chain(figures.others.map(of_others)).enumerate() {
            let name = match at {
                0 => name.to_owned(),
                _ => format!("{edge}{trunk}").trim_end().to_owned(),
            };
            table.row(vec![name, gpu, usage, max]);
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

impl Figures {
    fn is_directly_below(&self, other: &Self) -> bool {
        self.root == other.root && parent(&self.name) == Some(&*other.name)
    }
}
