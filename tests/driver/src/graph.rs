//! Graphs, as far as they take memory: the nodes that captured `cuMemAllocAsync` and `cuMemFreeAsync` become.
//!
//! Measured (H100, 580.159.04) with one node of 64 MiB that is allocated and freed: capturing takes nothing, the first
//! instantiation of a context 2 MiB, the upload or first launch 64 MiB, more launches nothing; destroying gives nothing
//! back, `cuDeviceGraphMemTrim` the 64 MiB. The local memory that its kernels need comes with the instantiation.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::context::{self, Context};
use crate::driver::driver;
use crate::machine::BLOCK;
use crate::space::{Entry, Use, space};
use crate::{Outcome, Status};

const GRAPH_MAGIC: u64 = 0x6772_6170_685f_5f5f;
const EXEC_MAGIC: u64 = 0x6578_6563_5f5f_5f5f;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

/// The nodes of a graph.
#[derive(Default)]
pub struct Nodes {
    /// Nodes of every kind.
    pub count: usize,
    /// The most local memory per thread that a kernel of it needs, in bytes.
    pub local: u64,
    /// Addresses allocated, with their bytes in whole blocks.
    allocated: Vec<(u64, u64)>,
    /// Addresses freed, of this and of other graphs.
    freed: Vec<u64>,
    /// Bytes live at the present end of the graph, and the most at any place in it.
    live: u64,
    most: u64,
}

impl Nodes {
    pub(crate) fn allocate(&mut self, context: &Context, bytes: u64) -> Outcome<u64> {
        if bytes == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let span = bytes
            .checked_next_multiple_of(BLOCK)
            .ok_or(Status::OUT_OF_MEMORY)?;
        let address = space().take(span, BLOCK)?;
        space().mark(address, span / BLOCK, Entry::new(Use::Graph, 0, 0, 0));
        let known = Known {
            bytes,
            context: context.index,
            device: context.device(),
            live: false,
        };
        memory().known.insert(address, known);
        self.allocated.push((address, span));
        self.live += span;
        self.most = self.most.max(self.live);
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: u64) -> Outcome<()> {
        let own = self.allocated.iter().find(|node| node.0 == address);
        if self.freed.contains(&address) || own.is_none() && !memory().known.contains_key(&address)
        {
            return Err(Status::INVALID_VALUE);
        }
        self.live -= own.map_or(0, |node| node.1);
        self.freed.push(address);
        Ok(())
    }

    /// What a launch leaves allocated.
    fn kept(&self) -> impl Iterator<Item = (u64, u64)> {
        self.allocated
            .iter()
            .copied()
            .filter(|node| !self.freed.contains(&node.0))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (address, span) in &self.allocated {
            let mut memory = memory();
            if memory.known.get(address).is_some_and(|known| known.live) {
                continue;
            }
            memory.known.remove(address);
            drop(memory);
            space().mark(*address, span / BLOCK, Entry::NONE);
            space().give(*address, *span);
        }
    }
}

/// An address that a graph allocates.
struct Known {
    bytes: u64,
    context: usize,
    device: usize,
    /// Allocated by a launch and not freed since.
    live: bool,
}

/// One GPU's memory for graphs.
#[derive(Default)]
struct Share {
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
}

#[derive(Default)]
struct Memory {
    shares: HashMap<usize, Share>,
    known: BTreeMap<u64, Known>,
}

static MEMORY: LazyLock<Mutex<Memory>> = LazyLock::new(Mutex::default);

fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    fn share(&mut self, device: usize) -> &mut Share {
        self.shares.entry(device).or_default()
    }

    /// Makes room for so many bytes beside those in use.
    fn reserve(&mut self, device: usize, bytes: u64) -> Outcome<()> {
        let share = self.share(device);
        let wanted = share.used + bytes;
        if wanted > share.reserved {
            driver()?.take(device, wanted - share.reserved)?;
            share.reserved = wanted;
            share.reserved_high = share.reserved_high.max(wanted);
        }
        Ok(())
    }

    /// Marks an address as freed; false when it was not allocated.
    fn free(&mut self, address: u64) -> bool {
        let Some(known) = self.known.get_mut(&address).filter(|known| known.live) else {
            return false;
        };
        known.live = false;
        let (device, span) = (known.device, known.bytes.next_multiple_of(BLOCK));
        self.share(device).used -= span;
        true
    }
}

/// A graph. Never freed, as a stream.
pub struct Graph {
    magic: AtomicU64,
    nodes: Mutex<Option<Arc<Nodes>>>,
}

impl Graph {
    /// A graph without nodes.
    pub fn make() -> &'static Graph {
        Box::leak(Box::new(Graph {
            magic: AtomicU64::new(GRAPH_MAGIC),
            nodes: Mutex::new(Some(Arc::default())),
        }))
    }

    /// The `CUgraph`.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The graph of a `CUgraph`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is none, or destroyed.
    pub fn from_handle(handle: usize) -> Outcome<&'static Graph> {
        if handle == 0 || !handle.is_multiple_of(align_of::<Graph>()) {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the interface's caller promises a graph handle; graphs are never freed.
        let graph = unsafe { &*(handle as *const Graph) };
        match graph.magic.load(Acquire) {
            GRAPH_MAGIC => Ok(graph),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Nodes>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes that a capture collected.
    pub(crate) fn fill(&self, nodes: Nodes) {
        *self.slot() = Some(Arc::new(nodes));
    }

    fn nodes(&self) -> Outcome<Arc<Nodes>> {
        self.slot().clone().ok_or(Status::INVALID_VALUE)
    }

    /// How many nodes it has.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is destroyed.
    pub fn count(&self) -> Outcome<usize> {
        Ok(self.nodes()?.count)
    }

    /// Destroys the graph. What was made of it stays.
    pub fn destroy(&self) {
        self.magic.store(0, Release);
        let nodes = self.slot().take();
        drop(nodes);
    }
}

/// An executable graph. Never freed, as a stream.
pub struct Exec {
    magic: AtomicU64,
    context: &'static Context,
    flags: u64,
    nodes: Mutex<Option<Arc<Nodes>>>,
}

impl Exec {
    /// Makes a graph executable.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn make(context: &'static Context, graph: &Graph, flags: u64) -> Outcome<&'static Exec> {
        let nodes = graph.nodes()?;
        context.add_exec()?;
        context.grow_local(nodes.local)?;
        if flags & UPLOAD != 0 {
            memory().reserve(context.device(), nodes.most)?;
        }
        Ok(Box::leak(Box::new(Exec {
            magic: AtomicU64::new(EXEC_MAGIC),
            context,
            flags,
            nodes: Mutex::new(Some(nodes)),
        })))
    }

    /// The `CUgraphExec`.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The executable graph of a `CUgraphExec`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is none, or destroyed.
    pub fn from_handle(handle: usize) -> Outcome<&'static Exec> {
        if handle == 0 || !handle.is_multiple_of(align_of::<Exec>()) {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the interface's caller promises such a handle; executable graphs are never freed.
        let exec = unsafe { &*(handle as *const Exec) };
        match exec.magic.load(Acquire) {
            EXEC_MAGIC if exec.context.is_active() => Ok(exec),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    fn nodes(&self) -> Outcome<Arc<Nodes>> {
        let slot = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone().ok_or(Status::INVALID_VALUE)
    }

    /// Takes the memory that the next launch needs.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn upload(&self) -> Outcome<()> {
        let nodes = self.nodes()?;
        memory().reserve(self.context.device(), nodes.most)
    }

    /// Launches the graph.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, or `INVALID_VALUE` when what the last launch left allocated was not freed.
    pub fn launch(&self) -> Outcome<()> {
        let nodes = self.nodes()?;
        let device = self.context.device();
        let mut memory = memory();
        for (address, _) in nodes.kept() {
            let live = memory.known.get(&address).is_some_and(|known| known.live);
            if live && self.flags & AUTO_FREE == 0 {
                return Err(Status::INVALID_VALUE);
            }
            memory.free(address);
        }
        memory.reserve(device, nodes.most)?;
        for address in &nodes.freed {
            memory.free(*address);
        }
        let share = memory.share(device);
        share.used_high = share.used_high.max(share.used + nodes.most);
        for (address, span) in nodes.kept() {
            if let Some(known) = memory.known.get_mut(&address) {
                known.live = true;
                memory.share(device).used += span;
            }
        }
        Ok(())
    }

    /// Destroys it. The memory stays for other graphs.
    pub fn destroy(&self) {
        self.magic.store(0, Release);
        let nodes = self
            .nodes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(nodes);
    }
}

/// Frees an address that a launch left allocated. The memory stays for other graphs.
///
/// # Errors
/// `INVALID_VALUE` when it is none.
pub fn free(address: u64) -> Outcome<()> {
    if memory().free(address) {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

/// The allocation in which an address lies: its start, bytes and context.
pub fn find(address: u64) -> Option<(u64, u64, Option<&'static Context>)> {
    let memory = memory();
    let (start, known) = memory.known.range(..=address).next_back()?;
    (address < start + known.bytes).then(|| (*start, known.bytes, context::by_index(known.context)))
}

/// `cuDeviceGraphMemTrim`: gives back what no allocation uses.
pub fn trim(device: usize) {
    let Ok(driver) = driver() else { return };
    let mut memory = memory();
    let share = memory.share(device);
    driver.give(device, share.reserved - share.used);
    share.reserved = share.used;
}

/// A `CUgraphMem_attribute` by its number.
///
/// # Errors
/// `INVALID_VALUE` for an unknown one.
pub fn attribute(device: usize, attribute: i32) -> Outcome<u64> {
    let mut memory = memory();
    let share = memory.share(device);
    Ok(match attribute {
        0 => share.used,
        1 => share.used_high,
        2 => share.reserved,
        3 => share.reserved_high,
        _ => return Err(Status::INVALID_VALUE),
    })
}

/// Starts a high-water mark anew.
///
/// # Errors
/// `INVALID_VALUE` for another attribute or value.
pub fn set_attribute(device: usize, attribute: i32, value: u64) -> Outcome<()> {
    let mut memory = memory();
    let share = memory.share(device);
    match (attribute, value) {
        (1, 0) => share.used_high = share.used,
        (3, 0) => share.reserved_high = share.reserved,
        _ => return Err(Status::INVALID_VALUE),
    }
    Ok(())
}

/// Drops all graph memory of a GPU: its last context went.
pub fn clear_all(device: usize) {
    let Ok(driver) = driver() else { return };
    let mut memory = memory();
    for known in memory.known.values_mut() {
        known.live &= known.device != device;
    }
    let share = std::mem::take(memory.share(device));
    driver.give(device, share.reserved);
}
