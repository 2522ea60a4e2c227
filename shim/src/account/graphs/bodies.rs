//! The graphs inside the conditional nodes of graphs.

use parking_lot::RwLock;

use crate::abi::{Graph, Node};
use crate::account::maps::Map;

/// The graphs inside each conditional node. The record of a destroyed node stays until the driver
/// reuses the node's handle.
#[derive(Default)]
pub struct Bodies(RwLock<Map<Node, Vec<Graph>>>);

impl Bodies {
    /// Records a conditional node that was added to a graph, and the graphs inside the node.
    pub fn insert(&self, node: Node, graphs: Vec<Graph>) {
        self.0.write().insert(node, graphs);
    }

    /// Returns the graphs inside a conditional node.
    pub fn of(&self, node: Node) -> Vec<Graph> {
        self.0.read().get(&node).cloned().unwrap_or_default()
    }
}
