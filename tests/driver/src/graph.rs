//! Graphs of the simulated driver: their nodes, and the memory that a launch takes.
//!
//! Measured (H100, 580.159.04):
//! - The first instantiation in a context takes 2 MiB. Instantiation also takes the local memory of
//!   the kernels.
//! - The upload or the first launch takes the memory of the memory nodes. Later launches take no
//!   more.
//! - Only `cuDeviceGraphMemTrim` (a trim) gives this memory back, not a free or the graph's
//!   destruction.
//! - Graphs that run one after the other on one stream share the memory.
//! - If the memory does not fit, the launch fails with `OUT_OF_MEMORY`. The memory that this launch
//!   has taken stays taken until a trim.
#![allow(unsafe_code)]

mod layout;
mod memory;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::work::{self, Name};
use crate::{Outcome, Status};
use layout::{Layout, Range};
pub use memory::{attribute, clear_all, find, free, set_attribute, trim};

const GRAPH_MAGIC: u64 = 0x6772_6170_685f_5f5f;
const NODE_MAGIC: u64 = 0x6e6f_6465_5f5f_5f5f;
const EXEC_MAGIC: u64 = 0x6578_6563_5f5f_5f5f;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;

/// The GPU memory that a kernel needs in addition to its code.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes of local memory that the kernel needs per thread.
    pub local: u64,
    /// Whether the kernel needs the heap of device malloc.
    pub heap: bool,
}

impl Need {
    /// Returns the memory that is enough for both kernels, launched one after the other.
    fn or(self, other: Need) -> Need {
        Need {
            local: self.local.max(other.local),
            heap: self.heap || other.heap,
        }
    }
}

/// What a node does.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Launches a kernel.
    Kernel {
        /// The handle of the `CUfunction` or `CUkernel`; 0 for a captured call without a kernel.
        function: usize,
        /// The memory that the launched kernel needs.
        need: Need,
    },
    /// A node that takes no memory; the number is its `CUgraphNodeType`.
    Other(i32),
    /// Runs another graph.
    Child(&'static Graph),
    /// A conditional node. It runs one of these graphs (the bodies of the node) or none.
    Conditional(&'static [&'static Graph]),
    /// A node that allocates memory on a GPU.
    Alloc {
        /// The address.
        address: u64,
        /// The number of bytes.
        bytes: u64,
        /// PCI index of the GPU.
        device: usize,
    },
    /// A node that frees an address. This graph or another graph has allocated the address.
    Free(u64),
}

/// A graph node. Its memory is never freed, so that a stale handle points to valid memory.
pub struct Node {
    magic: u64,
    kind: Mutex<Kind>,
    after: Vec<&'static Node>,
}

impl Node {
    /// Returns the node's `CUgraphNode` handle.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Returns the node of a `CUgraphNode` handle.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a handle that is not a node.
    pub fn from_handle(handle: usize) -> Outcome<&'static Node> {
        if handle == 0 || !handle.is_multiple_of(align_of::<Node>()) {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the C caller promises a handle of a node, and nodes are never freed.
        let node = unsafe { &*(handle as *const Node) };
        match node.magic {
            NODE_MAGIC => Ok(node),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// Returns what the node does: its [`Kind`].
    pub fn kind(&self) -> Kind {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the kernel that a node launches.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the node does not launch a kernel.
    pub fn set_kernel(&self, function: usize, need: Need) -> Outcome<()> {
        let mut kind = self.kind.lock().unwrap_or_else(PoisonError::into_inner);
        match *kind {
            Kind::Kernel { .. } => *kind = Kind::Kernel { function, need },
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(())
    }

    /// Returns the node's type as a number of `CUgraphNodeType`.
    pub fn number(&self) -> i32 {
        match self.kind() {
            Kind::Kernel { .. } => 0,
            Kind::Other(number) => number,
            Kind::Child(_) => 4,
            Kind::Alloc { .. } => 10,
            Kind::Conditional(_) => 13,
            Kind::Free(_) => 11,
        }
    }
}

/// Returns the handles of all nodes that run before a node. The node depends directly on the nodes
/// `after`.
fn before(after: &[&'static Node]) -> HashSet<usize> {
    let (mut seen, mut next) = (HashSet::new(), after.to_vec());
    while let Some(node) = next.pop() {
        if seen.insert(node.handle()) {
            next.extend(&node.after);
        }
    }
    seen
}

#[derive(Default)]
struct Parts {
    nodes: Vec<&'static Node>,
    layouts: HashMap<usize, Arc<Mutex<Layout>>>,
}

impl Parts {
    /// Returns whether the graph holds the address: more nodes allocate it than nodes in `among`
    /// free it.
    fn holds(&self, address: u64, among: impl Fn(&Node) -> bool) -> bool {
        let balance = |node: &&Node| match node.kind() {
            Kind::Alloc { address: at, .. } if at == address => 1,
            Kind::Free(at) if at == address && among(node) => -1,
            _ => 0i64,
        };
        self.nodes
            .iter()
            .copied()
            .map(|node| balance(&node))
            .sum::<i64>()
            > 0
    }

    /// Returns whether one of the graph's nodes allocates this address.
    fn allocates(&self, address: u64) -> bool {
        let at =
            |node: &Node| matches!(node.kind(), Kind::Alloc { address: at, .. } if at == address);
        self.nodes.iter().any(|node| at(node))
    }

    fn frees(&self, address: u64) -> bool {
        let at = |node: &Node| matches!(node.kind(), Kind::Free(at) if at == address);
        self.nodes.iter().any(|node| at(node))
    }

    /// Returns the address ranges on a GPU that a new node must not get. The node depends directly
    /// on the nodes `after`.
    fn taken(&self, device: usize, after: &[&'static Node]) -> BTreeSet<Range> {
        let before = before(after);
        let allocated = self.nodes.iter().filter_map(|node| match node.kind() {
            Kind::Alloc {
                address,
                bytes,
                device: on,
            } if on == device => Some(Range {
                start: address,
                bytes,
            }),
            _ => None,
        });
        let before = |node: &Node| before.contains(&node.handle());
        allocated
            .filter(|range| self.holds(range.start, before))
            .collect()
    }

    fn add(&mut self, kind: Kind, after: Vec<&'static Node>) -> &'static Node {
        let node: &'static Node = Box::leak(Box::new(Node {
            magic: NODE_MAGIC,
            kind: Mutex::new(kind),
            after,
        }));
        self.nodes.push(node);
        node
    }
}

/// A graph. Its memory is never freed, so that a stale handle points to valid memory.
pub struct Graph {
    magic: AtomicU64,
    parts: Mutex<Option<Parts>>,
    /// Whether the graph has memory nodes, and an executable graph that was made from this graph
    /// exists.
    instantiated: AtomicBool,
    /// Whether the graph is the body of a conditional node.
    owned: bool,
}

impl Graph {
    /// Makes a graph without nodes.
    pub fn make() -> &'static Graph {
        Graph::made(false)
    }

    fn made(owned: bool) -> &'static Graph {
        Box::leak(Box::new(Graph {
            magic: AtomicU64::new(GRAPH_MAGIC),
            parts: Mutex::new(Some(Parts::default())),
            instantiated: AtomicBool::new(false),
            owned,
        }))
    }

    /// Returns the `CUgraph`.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Returns the graph of a `CUgraph` handle.
    ///
    /// # Errors
    /// `INVALID_VALUE` for any other handle, or a destroyed graph.
    pub fn from_handle(handle: usize) -> Outcome<&'static Graph> {
        if handle == 0 || !handle.is_multiple_of(align_of::<Graph>()) {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the C caller promises a handle of a graph, and graphs are never freed.
        let graph = unsafe { &*(handle as *const Graph) };
        match graph.magic.load(Acquire) {
            GRAPH_MAGIC => Ok(graph),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Parts) -> Outcome<T>) -> Outcome<T> {
        let mut parts: MutexGuard<'_, _> =
            self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        work(parts.as_mut().ok_or(Status::INVALID_VALUE)?)
    }

    /// Returns the graph's nodes in the order in which they were added.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the graph was destroyed.
    pub fn nodes(&self) -> Outcome<Vec<&'static Node>> {
        self.with(|parts| Ok(parts.nodes.clone()))
    }

    /// Adds a node that takes no memory of its own.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the graph was destroyed.
    pub fn add(&self, kind: Kind, after: Vec<&'static Node>) -> Outcome<&'static Node> {
        self.with(|parts| Ok(parts.add(kind, after)))
    }

    /// Adds a node that allocates memory. Returns the node and the address.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY` without free addresses.
    pub fn allocate(
        &self,
        context: &Context,
        device: usize,
        bytes: u64,
        after: Vec<&'static Node>,
    ) -> Outcome<(&'static Node, u64)> {
        self.with(|parts| {
            let taken = parts.taken(device, &after);
            let layout = parts.layouts.entry(device).or_default();
            let range = layout
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .place(bytes, &taken)?;
            memory::learn(range, context, device);
            let kind = Kind::Alloc {
                address: range.start,
                bytes,
                device,
            };
            Ok((parts.add(kind, after), range.start))
        })
    }

    /// Adds a node that frees an address of this or another graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no graph allocates the address, or this graph frees it.
    pub fn free(&self, address: u64, after: Vec<&'static Node>) -> Outcome<&'static Node> {
        self.with(|parts| {
            let may = match parts.allocates(address) {
                true => parts.holds(address, |_| true),
                false => memory::is_known(address) && !parts.frees(address),
            };
            if !may {
                return Err(Status::INVALID_VALUE);
            }
            Ok(parts.add(Kind::Free(address), after))
        })
    }

    /// Adds a conditional node with `count` bodies, and returns the node with its bodies.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the graph was destroyed.
    pub fn add_conditional(
        &self,
        count: usize,
        after: Vec<&'static Node>,
    ) -> Outcome<(&'static Node, &'static [&'static Graph])> {
        let bodies: &[&Graph] = (0..count)
            .map(|_| Graph::made(true))
            .collect::<Vec<_>>()
            .leak();
        Ok((self.add(Kind::Conditional(bodies), after)?, bodies))
    }

    /// Returns whether the graph or a child graph has memory nodes.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a destroyed graph.
    pub fn has_memory(&self) -> Outcome<bool> {
        Ok(Plan::of(self)?.has_memory())
    }

    /// Returns whether the driver accepts the graph as a child. It rejects conditional nodes
    /// (measured) and their bodies.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a destroyed graph.
    pub fn may_be_child(&self) -> Outcome<bool> {
        let is_conditional = |node: &&Node| matches!(node.kind(), Kind::Conditional(_));
        Ok(!self.owned && !self.nodes()?.into_iter().any(|node| is_conditional(&node)))
    }

    /// Returns a copy of the graph with the same nodes.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the graph was destroyed.
    pub fn copy(&self) -> Outcome<&'static Graph> {
        let copy = Graph::make();
        let mut copies: HashMap<usize, &'static Node> = HashMap::new();
        // A node is added after the nodes on which it depends, so the copies of those nodes already
        // exist.
        for node in self.nodes()? {
            let after = node.after.iter();
            let after = after.filter_map(|before| copies.get(&before.handle()).copied());
            let copied = copy.add(node.kind(), after.collect())?;
            copies.insert(node.handle(), copied);
        }
        Ok(copy)
    }

    /// Returns whether the graph is the body of a conditional node. Such a graph is destroyed with
    /// the graph that has the node.
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// Destroys the graph. Executable graphs made from this graph stay.
    pub fn destroy(&self) {
        for node in self.nodes().unwrap_or_default() {
            if let Kind::Conditional(bodies) = node.kind() {
                bodies.iter().for_each(|body| body.destroy());
            }
        }
        self.magic.store(0, Release);
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = parts.take();
        drop(parts);
        drop(gone);
    }
}

/// The memory that a launch of an executable graph takes and frees.
#[derive(Default)]
pub struct Plan {
    allocated: Vec<(Range, usize)>,
    freed: Vec<u64>,
    /// The handles of the nodes that launch kernels, each with the memory that its kernel needs.
    kernels: Vec<(usize, Need)>,
    /// The types of all nodes (`CUgraphNodeType`), child graphs included. An update requires equal
    /// types.
    shape: Vec<i32>,
    /// The addresses of the graph's allocations stay reserved as long as these layouts exist.
    layouts: Vec<Arc<Mutex<Layout>>>,
}

impl Plan {
    fn of(graph: &Graph) -> Outcome<Plan> {
        let mut plan = Plan::default();
        plan.include(graph)?;
        Ok(plan)
    }

    fn include(&mut self, graph: &Graph) -> Outcome<()> {
        let layouts =
            graph.with(|parts| Ok(parts.layouts.values().cloned().collect::<Vec<_>>()))?;
        self.layouts.extend(layouts);
        for node in graph.nodes()? {
            self.shape.push(node.number());
            match node.kind() {
                Kind::Kernel { need, .. } => self.kernels.push((node.handle(), need)),
                Kind::Other(_) => {}
                Kind::Child(child) => self.include(child)?,
                Kind::Conditional(bodies) => {
                    bodies.iter().try_for_each(|body| self.include(body))?;
                }
                Kind::Free(address) => self.freed.push(address),
                Kind::Alloc {
                    address,
                    bytes,
                    device,
                } => {
                    let range = Range {
                        start: address,
                        bytes,
                    };
                    self.allocated.push((range, device));
                }
            }
        }
        Ok(())
    }

    /// Returns the memory that is enough for all these kernels, launched one after the other.
    fn need(kernels: &[(usize, Need)]) -> Need {
        let needs = kernels.iter().map(|(_, need)| *need);
        needs.fold(Need::default(), Need::or)
    }

    fn has_memory(&self) -> bool {
        !self.allocated.is_empty() || !self.freed.is_empty()
    }

    /// Returns the address ranges that a launch leaves allocated.
    fn kept(&self) -> impl Iterator<Item = Range> {
        let mut freed = self.freed.clone();
        let allocated = self.allocated.iter().map(|(range, _)| *range);
        // Several nodes can allocate the same address, one after the other. The graph then frees
        // all of these allocations except the last.
        allocated.filter(move |range| {
            let at = freed.iter().position(|freed| *freed == range.start);
            at.map(|at| freed.swap_remove(at)).is_none()
        })
    }

    fn devices(&self) -> BTreeSet<usize> {
        self.allocated.iter().map(|(_, device)| *device).collect()
    }

    fn on(&self, device: usize) -> impl Iterator<Item = Range> {
        let on = self.allocated.iter().filter(move |(_, on)| *on == device);
        on.map(|(range, _)| *range)
    }

    /// Returns the steps (32 MiB units) of address space that this graph uses on a GPU.
    fn steps(&self, device: usize) -> BTreeSet<u64> {
        self.on(device).flat_map(Range::steps).collect()
    }

    /// Returns the bytes that the graph allocates on a GPU. Overlapping ranges count once.
    fn bytes(&self, device: usize) -> u64 {
        let ranges: BTreeSet<Range> = self.on(device).collect();
        let (mut sum, mut end) = (0, 0);
        for range in ranges {
            let until = range.start + range.bytes;
            sum += until.saturating_sub(end.max(range.start));
            end = end.max(until);
        }
        sum
    }
}

/// An executable graph. Its memory is never freed, so that a stale handle points to valid memory.
pub struct Exec {
    magic: AtomicU64,
    context: &'static Context,
    graph: &'static Graph,
    flags: u64,
    plan: Mutex<Option<Arc<Plan>>>,
    /// The kernels that the executable graph launches now. Each entry is as in [`Plan::kernels`].
    kernels: Mutex<Vec<(usize, Need)>>,
}

impl Exec {
    /// Makes a graph executable.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `INVALID_VALUE` for a graph with memory nodes that already has an
    /// executable graph.
    pub fn make(
        context: &'static Context,
        graph: &'static Graph,
        flags: u64,
    ) -> Outcome<&'static Exec> {
        let plan = Plan::of(graph)?;
        if graph.has_memory()? && graph.instantiated.swap(true, AcqRel) {
            return Err(Status::INVALID_VALUE);
        }
        context.add_exec()?;
        let need = Plan::need(&plan.kernels);
        context.grow_local(need.local, need.heap)?;
        Ok(Box::leak(Box::new(Exec {
            magic: AtomicU64::new(EXEC_MAGIC),
            context,
            graph,
            flags,
            kernels: Mutex::new(plan.kernels.clone()),
            plan: Mutex::new(Some(Arc::new(plan))),
        })))
    }

    fn kernels(&self) -> MutexGuard<'_, Vec<(usize, Need)>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory if new kernels need more than the present kernels. Memory that a lower stack
    /// limit freed is retaken later (measured).
    fn grow(&self, need: Need) -> Outcome<()> {
        let known = Plan::need(&self.kernels());
        match known.or(need) == known {
            true => Ok(()),
            false => self.context.grow_local(need.local, need.heap),
        }
    }

    /// Takes the memory that the present kernels need, unless the context still holds it.
    fn grow_again(&self) -> Outcome<()> {
        let need = Plan::need(&self.kernels());
        self.context.grow_local(need.local, need.heap)
    }

    /// Replaces the kernel that the executable graph launches for a node.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the node is not a kernel of the graph, `OUT_OF_MEMORY`.
    pub fn set_kernel(&self, node: &Node, need: Need) -> Outcome<()> {
        let at = self
            .kernels()
            .iter()
            .position(|(at, _)| *at == node.handle());
        let at = at.ok_or(Status::INVALID_VALUE)?;
        self.grow(need)?;
        self.kernels()[at].1 = need;
        Ok(())
    }

    /// Replaces the kernels by the kernels of another graph.
    ///
    /// # Errors
    /// `EXEC_UPDATE_FAILURE` for a graph with another shape or memory nodes; `OUT_OF_MEMORY`.
    pub fn update(&self, graph: &Graph) -> Outcome<()> {
        let (plan, own) = (Plan::of(graph)?, self.plan()?);
        if plan.shape != own.shape || plan.has_memory() {
            return Err(Status::EXEC_UPDATE_FAILURE);
        }
        self.grow(Plan::need(&plan.kernels))?;
        for (kernel, (_, need)) in self.kernels().iter_mut().zip(plan.kernels) {
            kernel.1 = need;
        }
        Ok(())
    }

    /// Replaces the kernels of the child graph in `node` by the kernels of `graph`.
    ///
    /// # Errors
    /// As [`Exec::update`]; `INVALID_VALUE` without a child graph.
    pub fn set_child(&self, node: &Node, graph: &Graph) -> Outcome<()> {
        let Kind::Child(child) = node.kind() else {
            return Err(Status::INVALID_VALUE);
        };
        let (plan, before) = (Plan::of(graph)?, Plan::of(child)?);
        if plan.shape != before.shape || plan.has_memory() {
            return Err(Status::EXEC_UPDATE_FAILURE);
        }
        self.grow(Plan::need(&plan.kernels))?;
        let mut kernels = self.kernels();
        for ((at, _), (_, need)) in before.kernels.iter().zip(plan.kernels) {
            let place = kernels.iter_mut().find(|(node, _)| node == at);
            place.ok_or(Status::INVALID_VALUE)?.1 = need;
        }
        Ok(())
    }

    /// Returns the executable graph's `CUgraphExec` handle.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Returns the executable graph of a `CUgraphExec` handle.
    ///
    /// # Errors
    /// `INVALID_VALUE` for any other handle, or a destroyed graph.
    pub fn from_handle(handle: usize) -> Outcome<&'static Exec> {
        if handle == 0 || !handle.is_multiple_of(align_of::<Exec>()) {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the C caller promises a handle of an executable graph. Executable graphs are
        // never freed.
        let exec = unsafe { &*(handle as *const Exec) };
        match exec.magic.load(Acquire) {
            EXEC_MAGIC if exec.context.is_active() => Ok(exec),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    fn plan(&self) -> Outcome<Arc<Plan>> {
        let slot = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone().ok_or(Status::INVALID_VALUE)
    }

    /// Takes the memory that the executable graph's next launch needs.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn upload(&self, stream: Name) -> Outcome<()> {
        let plan = self.plan()?;
        self.grow_again()?;
        memory::upload(&plan, stream.identity()?)
    }

    /// Launches the graph.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `INVALID_VALUE` when memory that the last launch left allocated is not yet
    /// freed.
    pub fn launch(&self, stream: Name) -> Outcome<()> {
        let auto_free = self.flags & AUTO_FREE != 0;
        let plan = self.plan()?;
        // A lower stack limit can have freed memory that the kernels need.
        self.grow_again()?;
        let run = || work::launch(stream);
        memory::launch(&plan, stream.identity()?, auto_free, run)
    }

    /// Destroys the executable graph. Other graphs can then use its memory.
    pub fn destroy(&self) {
        self.magic.store(0, Release);
        let gone = self
            .plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.graph.instantiated.store(false, Release);
        drop(gone);
    }
}
