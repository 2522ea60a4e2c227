//! The executable graphs of this process that have memory nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::nodes::Nodes;
use crate::abi::{Context, Device as Ordinal, GraphExec};
use crate::account::maps::Map;

/// The record of an executable graph with memory nodes.
pub struct Exec {
    context: Context,
    pub needs: Vec<Need>,
    /// Whether a launch of the graph leaves memory allocated.
    pub keeps: bool,
}

/// The memory that an executable graph needs on one device.
pub struct Need {
    pub device: Ordinal,
    /// The most bytes that a launch of the graph takes on the device.
    bytes: AtomicU64,
    /// The epoch in which the graph got its memory (see [`super::GraphMemory`]); 0 for a graph
    /// without memory.
    epoch: AtomicU64,
}

impl Exec {
    pub fn new(context: Context, nodes: &Nodes) -> Exec {
        let keeps = nodes.keep();
        let need = |(device, bytes)| Need::new(device, bytes);
        Exec {
            context,
            needs: nodes.needs().map(need).collect(),
            keeps,
        }
    }
}

impl Need {
    pub(super) fn new(device: Ordinal, bytes: u64) -> Need {
        Need {
            device,
            bytes: AtomicU64::new(bytes),
            epoch: AtomicU64::new(0),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Lowers the need to `bytes`, because a launch has shown that they are enough.
    pub(super) fn learn(&self, bytes: u64) {
        self.bytes.fetch_min(bytes, Ordering::Relaxed);
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }
}

/// The executable graphs of a process by their handles.
#[derive(Default)]
pub struct Execs {
    live: AtomicUsize,
    by_handle: RwLock<Map<GraphExec, Arc<Exec>>>,
    /// The bytes of local memory per thread for the kernels of a graph. A missing entry means 0
    /// bytes.
    per_thread: RwLock<Map<GraphExec, u64>>,
}

impl Execs {
    /// Returns the record of the executable graph `exec`; `None` for a graph without memory nodes.
    #[inline]
    pub fn get(&self, exec: GraphExec) -> Option<Arc<Exec>> {
        if self.live.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.by_handle.read().get(&exec).cloned()
    }

    /// Records the new executable graph `exec`. Replaces the record of a destroyed graph with the
    /// same handle.
    pub fn insert(&self, exec: GraphExec, known: Arc<Exec>) {
        self.change(|map| map.insert(exec, known));
    }

    /// Removes the record of `exec`. Call before the driver destroys the graph, because the driver
    /// may reuse the handle.
    pub fn take(&self, exec: GraphExec) -> Option<Arc<Exec>> {
        if self.live.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.change(|map| map.remove(&exec))
    }

    /// Returns the bytes of local memory that every thread needs for the kernels of the executable
    /// graph `exec`.
    pub fn per_thread(&self, exec: GraphExec) -> u64 {
        self.per_thread.read().get(&exec).copied().unwrap_or(0)
    }

    pub fn set_per_thread(&self, exec: GraphExec, bytes: u64) {
        match bytes {
            0 => self.per_thread.write().remove(&exec),
            bytes => self.per_thread.write().insert(exec, bytes),
        };
    }

    /// Raises the local memory per thread of a graph to `bytes`. Returns false if the recorded
    /// number is as large already.
    pub fn raise_per_thread(&self, exec: GraphExec, bytes: u64) -> bool {
        let raises = bytes > self.per_thread(exec);
        if raises {
            self.set_per_thread(exec, bytes);
        }
        raises
    }

    /// Removes all executable graphs of the destroyed context `context`.
    pub fn drain(&self, context: Context) {
        self.change(|map| map.retain(|_, exec| exec.context != context));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Map<GraphExec, Arc<Exec>>) -> T) -> T {
        let mut map = self.by_handle.write();
        let changed = change(&mut map);
        self.live.store(map.len(), Ordering::Release);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_known_until_it_is_destroyed_or_its_context_is() {
        let execs = Execs::default();
        let of = |context| Arc::new(Exec::new(context, &Nodes::default()));
        assert!(execs.get(64).is_none());
        execs.insert(64, of(7));
        execs.insert(128, of(8));
        assert!(execs.get(64).is_some() && execs.get(192).is_none());
        assert!(execs.take(64).is_some());
        assert!(execs.get(64).is_none() && execs.take(64).is_none());
        execs.insert(64, of(7));
        execs.drain(8);
        assert!(execs.get(64).is_some() && execs.get(128).is_none());
    }

    #[test]
    fn a_need_is_only_ever_lowered() {
        let need = Need::new(0, 100);
        for (learnt, bytes) in [(120, 100), (60, 60), (80, 60)] {
            need.learn(learnt);
            assert_eq!(need.bytes(), bytes);
        }
        assert_eq!(need.epoch(), 0);
        need.set_epoch(7);
        assert_eq!(need.epoch(), 7);
    }

    #[test]
    fn the_local_memory_of_a_graph_is_only_raised() {
        let execs = Execs::default();
        assert!(!execs.raise_per_thread(64, 0));
        assert!(execs.raise_per_thread(64, 2048));
        assert!(!execs.raise_per_thread(64, 1024) && !execs.raise_per_thread(64, 2048));
        assert_eq!([execs.per_thread(64), execs.per_thread(128)], [2048, 0]);
    }
}
