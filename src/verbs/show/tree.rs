//! `gpulimit show --tree`: the hierarchy of groups.

use crate::figures::Figures;
use crate::figures::fields::{left, right};
use crate::figures::tree::Node;
use crate::shown::table::{Table, figure};
use gpulimit_base::units::gib;
use serde_json::Value;

/// Returns the groups as JSON, each with a list of the groups directly below it.
pub fn json(groups: &[Figures]) -> Vec<Value> {
    tops(groups).iter().map(node_json).collect()
}

fn node_json(node: &Node<'_>) -> Value {
    let mut json = node.group.json();
    json["groups"] = node.below.iter().map(node_json).collect();
    json
}

fn tops(groups: &[Figures]) -> Vec<Node<'_>> {
    Node::tops(&groups.iter().collect::<Vec<_>>())
}

/// Returns a table in which the names of groups are below that of their parent.
pub fn table(groups: &[Figures]) -> Table {
    let mut table = Table::new(&[left("GROUP"), left("GPU"), right("USAGE"), right("MAX")]);
    for top in tops(groups) {
        top.walk(&mut |node, branch, further| {
            for (at, row) in node.group.rows().enumerate() {
                let name = match at {
                    0 => branch.to_owned() + node.name(branch),
                    _ => further.to_owned(),
                };
                let usage = figure(row.gpu.and_then(|gpu| gpu.usage).map(gib));
                table.row(vec![name, row.label().to_owned(), usage, row.max()]);
            }
            true
        });
    }
    table
}
