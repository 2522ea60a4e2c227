//! The graphs that conditional nodes may run.

use parking_lot::RwLock;

use crate::abi::{Graph, Node};
use crate::account::maps::Map;

/// The graphs of each conditional node.
///
/// A hook sees every conditional node when it is added, so every node that is there can be looked
/// up. The entry of a node that is gone stays until its handle comes back.
#[derive(Default)]
pub struct Bodies(RwLock<Map<Node, Vec<Graph>>>);

impl Bodies {
    /// Records a node that was added.
    pub fn insert(&self, node: Node, graphs: Vec<Graph>) {
        self.0.write().insert(node, graphs);
    }

    /// Returns the graphs of a node.
    pub fn of(&self, node: Node) -> Vec<Graph> {
        self.0.read().get(&node).cloned().unwrap_or_default()
    }
}
