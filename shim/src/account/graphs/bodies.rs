//! The graphs inside the conditional nodes of graphs.

use parking_lot::RwLock;

use crate::abi::{Graph, Node};
use crate::account::maps::Map;

/// The conditional nodes of a graph, each with the graphs inside it.
type Nodes = Map<Node, Vec<Graph>>;

/// The conditional nodes of each graph that has any. The record of a node that was destroyed alone
/// stays until the driver reuses the node's handle or the graph is destroyed.
#[derive(Default)]
pub struct Bodies(RwLock<Map<Graph, Nodes>>);

impl Bodies {
    /// Records a conditional node that was added to `graph`, and the graphs inside the node.
    pub fn insert(&self, graph: Graph, node: Node, graphs: Vec<Graph>) {
        self.0
            .write()
            .entry(graph)
            .or_default()
            .insert(node, graphs);
    }

    /// Returns the graphs inside a conditional node of `graph`.
    pub fn of(&self, graph: Graph, node: Node) -> Vec<Graph> {
        let all = self.0.read();
        let nodes = all.get(&graph);
        nodes
            .and_then(|nodes| nodes.get(&node))
            .cloned()
            .unwrap_or_default()
    }

    /// Removes the records of `graph` and of the graphs inside it. Call before the driver destroys
    /// the graph, because the driver can reuse the handles.
    pub fn take(&self, graph: Graph) -> Vec<(Graph, Nodes)> {
        if self.0.read().is_empty() {
            return Vec::new();
        }
        let mut all = self.0.write();
        let (mut ahead, mut taken) = (vec![graph], Vec::new());
        while let Some(graph) = ahead.pop() {
            if let Some(nodes) = all.remove(&graph) {
                ahead.extend(nodes.values().flatten());
                taken.push((graph, nodes));
            }
        }
        taken
    }

    /// Puts back the records of a graph that the driver has not destroyed.
    pub fn restore(&self, taken: Vec<(Graph, Nodes)>) {
        if !taken.is_empty() {
            self.0.write().extend(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroyed_graph_leaves_nothing_behind() {
        let bodies = Bodies::default();
        let (outer, inner, other) = (8, 16, 24);
        bodies.insert(other, 1, vec![32]);
        bodies.insert(outer, 2, vec![40, inner]);
        bodies.insert(inner, 3, vec![48]);
        let taken = bodies.take(outer);
        assert_eq!((taken.len(), bodies.0.read().len()), (2, 1));
        bodies.restore(taken);
        assert_eq!(bodies.of(inner, 3), [48]);
        for round in 0..10_000 {
            bodies.insert(outer, 100 + round, vec![inner]);
            bodies.take(outer);
        }
        assert_eq!(bodies.0.read().len(), 1);
        assert_eq!(bodies.of(other, 1), [32]);
    }
}
