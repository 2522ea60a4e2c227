//! The bytes that the memory nodes of a graph need.
//!
//! The driver chooses an allocation's address when its memory node is added. Two allocations of a
//! graph share an address only if the first is freed before the second begins (NVIDIA's programming
//! guide, graph memory nodes). So the addresses tell how much memory a graph needs.

use gpulimit_base::order;

use super::STEP;
use super::bodies::Bodies;
use crate::abi::{
    ALLOCATION_MANAGED, ALLOCATION_PINNED, Device as Ordinal, DevicePtr, Graph, MemAllocNodeParams,
    NODE_TYPE_CONDITIONAL, NODE_TYPE_GRAPH, NODE_TYPE_KERNEL, NODE_TYPE_MEM_ALLOC,
    NODE_TYPE_MEM_FREE, Node, Opaque, Out, SUCCESS,
};
use crate::account::maps::{Map, Set};
use crate::account::rounding::round_up;
use crate::driver::{answer, cuda};

/// In graphs, the sizes of small allocations are rounded up to a multiple of this many bytes.
const GRAIN: u64 = 512;

/// The memory nodes and kernels of a graph and of the graphs inside its nodes.
#[derive(Default)]
pub struct Nodes {
    allocated: Map<Ordinal, Vec<Range>>,
    freed: Vec<DevicePtr>,
    kernels: Set<Opaque>,
}

/// The address range of an allocation: its first address, and the address after its last byte.
type Range = (DevicePtr, DevicePtr);

impl Nodes {
    /// Collects the memory nodes and kernels of `graph`, or nothing if the handle is not a graph.
    pub fn of(graph: Graph, bodies: &Bodies) -> Nodes {
        let mut nodes = Nodes::default();
        walk(graph, bodies, &mut |node, kind| match kind {
            NODE_TYPE_KERNEL => nodes.kernels.extend(kernel(node)),
            NODE_TYPE_MEM_ALLOC => nodes.allocates(node),
            NODE_TYPE_MEM_FREE => nodes.freed.extend(answer(|address| {
                cuda::cuGraphMemFreeNodeGetParams(node, address)
            })),
            _ => {}
        });
        nodes
    }

    fn allocates(&mut self, node: Node) {
        let ask = |params| cuda::cuGraphMemAllocNodeGetParams(node, params);
        // Memory nodes for managed memory take device memory too (measured).
        if let Ok::<MemAllocNodeParams, _>(params) = answer(ask)
            && [ALLOCATION_PINNED, ALLOCATION_MANAGED].contains(&params.pool.allocation_type)
            && let Some(device) = params.pool.location.device()
        {
            let end = params.dptr.saturating_add(params.bytesize as u64);
            let ranges = self.allocated.entry(device).or_default();
            ranges.push((params.dptr, end));
        }
    }

    /// Returns the kernels of the graph, each once.
    pub fn kernels(&self) -> impl Iterator<Item = Opaque> {
        self.kernels.iter().copied()
    }

    /// Returns whether the graph has no nodes that allocate memory.
    pub fn is_empty(&self) -> bool {
        self.allocated.is_empty()
    }

    /// Returns whether a launch of the graph leaves memory allocated.
    pub fn keep(&self) -> bool {
        let mut balance = Map::<DevicePtr, i64>::default();
        for (start, _) in self.allocated.values().flatten() {
            *balance.entry(*start).or_default() += 1;
        }
        for address in &self.freed {
            *balance.entry(*address).or_default() -= 1;
        }
        balance.values().any(|left| *left > 0)
    }

    /// Returns each device on which the graph allocates memory, with the most bytes that the graph
    /// takes there.
    pub fn needs(&self) -> impl Iterator<Item = (Ordinal, u64)> {
        self.allocated
            .iter()
            .map(|(device, ranges)| (*device, most(ranges.clone())))
    }
}

/// Calls `show` with the kernels of `graph` and of the graphs inside its nodes.
pub fn each_kernel(graph: Graph, bodies: &Bodies, show: &mut dyn FnMut(Opaque)) {
    walk(graph, bodies, &mut |node, kind| {
        if kind == NODE_TYPE_KERNEL {
            kernel(node).into_iter().for_each(&mut *show);
        }
    });
}

/// Calls `show` with each node of `graph` and of the graphs inside its nodes, and with the node's
/// kind.
fn walk(graph: Graph, bodies: &Bodies, show: &mut dyn FnMut(Node, i32)) {
    each_once(graph, |graph| {
        let mut within = Vec::new();
        for node in list(graph) {
            match answer(|kind| cuda::cuGraphNodeGetType(node, kind)) {
                Ok(NODE_TYPE_GRAPH) => {
                    within.extend(answer(|child| {
                        cuda::cuGraphChildGraphNodeGetGraph(node, child)
                    }));
                }
                Ok(NODE_TYPE_CONDITIONAL) => within.extend(bodies.of(node)),
                Ok(kind) => show(node, kind),
                Err(_) => {}
            }
        }
        within
    });
}

/// Visits `graph` and the graphs inside its nodes, each only once. Old records of destroyed nodes
/// could otherwise cause an endless loop.
fn each_once(first: Graph, mut within: impl FnMut(Graph) -> Vec<Graph>) {
    let (mut ahead, mut met) = (vec![first], Set::default());
    while let Some(graph) = ahead.pop() {
        if met.insert(graph) {
            ahead.extend(within(graph));
        }
    }
}

/// Returns the `CUfunction` or `CUkernel` of a kernel node.
fn kernel(node: Node) -> Option<Opaque> {
    answer(|params| cuda::cuGraphKernelNodeGetParams_v2(node, params))
        // Drivers before CUDA 12 have no `cuGraphKernelNodeGetParams_v2`. Their kernel nodes have
        // `CUfunction`s only.
        .or_else(|_| answer(|params| cuda::cuGraphKernelNodeGetParams(node, params)))
        .ok()?
        .handle()
}

/// Returns the nodes of `graph` itself. Nodes of graphs that lie inside these nodes are left out.
fn list(graph: Graph) -> Vec<Node> {
    let mut count = 0usize;
    if cuda::cuGraphGetNodes(graph, 0, Out::of(&mut count)) != SUCCESS || count == 0 {
        return Vec::new();
    }
    let mut nodes: Vec<Node> = vec![0; count];
    let listed = cuda::cuGraphGetNodes(graph, nodes.as_mut_ptr() as usize, Out::of(&mut count));
    nodes.truncate(if listed == SUCCESS { count } else { 0 });
    nodes
}

/// Returns an upper bound of the graph memory that allocations in these address ranges take.
///
/// A *piece* is an address range without gaps. A piece larger than a step (32 MiB) takes whole
/// steps. Smaller pieces share steps. The driver begins a further step only when no step has room,
/// so any two steps together hold more than 32 MiB of pieces.
fn most(mut ranges: Vec<Range>) -> u64 {
    order::sort(&mut ranges);
    let (mut large, mut small, mut pieces) = (0u64, 0u64, 0);
    let (mut touched, mut next) = (0u64, 0);
    let mut ranges = ranges.into_iter().peekable();
    while let Some((start, mut end)) = ranges.next() {
        while let Some((_, further)) = ranges.next_if(|(start, _)| *start < end) {
            end = end.max(further);
        }
        let (first, last) = (start / STEP, end.saturating_sub(1) / STEP);
        touched += (last + 1).saturating_sub(first.max(next));
        next = last + 1;
        match end - start {
            piece @ ..=STEP => {
                small = small.saturating_add(round_up(piece, GRAIN));
                pieces += 1;
            }
            piece => large = large.saturating_add(round_up(piece, STEP)),
        }
    }
    let shared = match small {
        0 => 0,
        _ => (small.div_ceil(STEP / 2) - 1).max(1).min(pieces) * STEP,
    };
    large.saturating_add(shared).max(touched * STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BASE: DevicePtr = 0x7f00_0000_0000;

    /// Returns address ranges of the given sizes, one after the other. Each begins at a multiple of
    /// 512 bytes.
    fn packed(sizes: &[u64]) -> Vec<Range> {
        let mut end = BASE;
        let mut range = |bytes: &u64| {
            let start = round_up(end, GRAIN);
            end = start + bytes;
            (start, end)
        };
        sizes.iter().map(&mut range).collect()
    }

    fn nodes(allocated: &[DevicePtr], freed: &[DevicePtr]) -> Nodes {
        let ranges = allocated.iter().map(|at| (*at, at + 1)).collect();
        Nodes {
            allocated: Map::from_iter([(0, ranges)]),
            freed: freed.to_vec(),
            kernels: Set::default(),
        }
    }

    #[test]
    fn graphs_that_contain_each_other_are_walked_once() {
        let mut met = Vec::new();
        each_once(1, |graph| {
            met.push(graph);
            assert!(met.len() < 100, "the loop over the graphs does not end");
            vec![graph % 3 + 1, 3]
        });
        met.sort_unstable();
        assert_eq!(met, [1, 2, 3]);
    }

    #[test]
    fn a_graph_keeps_what_it_does_not_free() {
        assert!(Nodes::default().is_empty() && !Nodes::default().keep());
        assert!(!nodes(&[1], &[]).is_empty());
        for (allocated, freed, keeps) in [
            (&[64][..], &[][..], true),
            (&[64], &[64], false),
            (&[64, 128], &[128], true),
            (&[64, 64], &[64], true),
            (&[64, 64], &[64, 64], false),
            // This graph frees address 128, which another graph has allocated.
            (&[64], &[64, 128], false),
        ] {
            assert_eq!(nodes(allocated, freed).keep(), keeps, "{allocated:?}");
        }
    }

    #[test]
    fn the_estimate_is_never_less_than_measured() {
        for (sizes, measured) in [
            (&[100 * MIB][..], 128),
            (&[1], 32),
            (&[33 * MIB], 64),
            (&[2 * MIB; 20], 64),
        ] {
            assert_eq!(most(packed(sizes)), measured * MIB, "{sizes:?}");
        }
        let three = most(packed(&[100 * MIB, 50 * MIB, 7 * MIB]));
        assert!((192 * MIB..=224 * MIB).contains(&three), "{three}");
    }

    #[test]
    fn one_address_is_one_piece_of_memory() {
        let hundred = vec![(BASE, BASE + 100 * MIB); 100];
        assert_eq!(most(hundred), 128 * MIB);
        // The address range of one allocation lies inside the range of another.
        let mut parts = vec![(BASE, BASE + 100 * MIB)];
        parts.extend((0..10).map(|at| (BASE + at * 10 * MIB, BASE + (at + 1) * 10 * MIB)));
        assert_eq!(most(parts), 128 * MIB);
    }

    #[test]
    fn small_allocations_share_steps() {
        assert_eq!(most(packed(&[4096; 1000])), 32 * MIB);
        assert_eq!(most(packed(&[20 * MIB, 13 * MIB])), 64 * MIB);
        assert_eq!(most(packed(&[32 * MIB])), 32 * MIB);
        assert_eq!(most(packed(&[31 * MIB; 4])), 128 * MIB);
        // Any two of these allocations together are larger than one step.
        assert_eq!(most(packed(&[17 * MIB; 3])), 96 * MIB);
    }

    #[test]
    fn allocations_that_lie_apart_take_the_steps_they_touch() {
        let apart = (0..10).map(|at| (BASE + at * STEP, BASE + at * STEP + 1));
        assert_eq!(most(apart.collect()), 10 * STEP);
    }

    #[test]
    fn absurd_sizes_do_not_wrap() {
        let absurd = most(vec![(BASE, u64::MAX), (0, 1 << 46)]);
        assert!(absurd >= u64::MAX - BASE);
    }
}
