//! The graphs inside the conditional nodes of graphs.

use parking_lot::RwLock;

use crate::abi::{Graph, Node};
use crate::account::maps::Map;

/// A conditional node: the graph that it belongs to, and the graphs inside it.
type Inside = (Graph, Vec<Graph>);

/// The conditional nodes of graphs. The record of a node that was destroyed alone stays until the
/// driver reuses the node's handle or the graph is destroyed.
#[derive(Default)]
pub struct Bodies(RwLock<Map<Node, Inside>>);

impl Bodies {
    /// Records a conditional node that was added to `graph`, and the graphs inside the node.
    pub fn insert(&self, graph: Graph, node: Node, graphs: Vec<Graph>) {
        self.0.write().insert(node, (graph, graphs));
    }

    /// Returns the graphs inside a conditional node.
    pub fn of(&self, node: Node) -> Vec<Graph> {
        let all = self.0.read();
        all.get(&node)
            .map_or_else(Vec::new, |(_, inside)| inside.clone())
    }

    /// Removes the records of `graph` and of the graphs inside it. Call before the driver destroys
    /// the graph, because the driver can reuse the handles.
    pub fn take(&self, graph: Graph) -> Vec<(Node, Inside)> {
        let (mut ahead, mut taken) = (vec![graph], Vec::new());
        if self.0.read().is_empty() {
            return taken;
        }
        let mut all = self.0.write();
        while let Some(graph) = ahead.pop() {
            for (node, inside) in all.extract_if(|_, (of, _)| *of == graph) {
                ahead.extend(&inside.1);
                taken.push((node, inside));
            }
        }
        taken
    }

    /// Puts back the records of a graph that the driver has not destroyed.
    pub fn restore(&self, taken: Vec<(Node, Inside)>) {
        for (node, (graph, graphs)) in taken {
            self.insert(graph, node, graphs);
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
        assert_eq!(bodies.of(3), [48]);
        for round in 0..10_000 {
            bodies.insert(outer, 100 + round, vec![inner]);
            bodies.take(outer);
        }
        assert_eq!(bodies.0.read().len(), 1);
        assert_eq!(bodies.of(1), [32]);
    }
}
