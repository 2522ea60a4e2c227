//! What conditional nodes may run.

use parking_lot::RwLock;

use crate::abi::{Graph, Node};
use crate::account::maps::Map;

/// Graphs by the conditional node that they belong to.
///
/// Every such node comes past us when it is added, so that only those that there are can be asked
/// for. Of those that have gone the entries stay until their handles come back.
#[derive(Default)]
pub struct Bodies(RwLock<Map<Node, Vec<Graph>>>);

impl Bodies {
    /// A node was added.
    pub fn insert(&self, node: Node, graphs: Vec<Graph>) {
        self.0.write().insert(node, graphs);
    }

    /// The graphs of a node that there is.
    pub fn of(&self, node: Node) -> Vec<Graph> {
        self.0.read().get(&node).cloned().unwrap_or_default()
    }
}
