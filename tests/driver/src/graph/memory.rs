//! The memory that each GPU holds for all graphs together, from an upload or launch until a trim.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::Plan;
use super::layout::{Range, STEP};
use crate::context::{self, Context};
use crate::driver::driver;
use crate::work;
use crate::{Outcome, Status};

/// A range of addresses that a node of a graph allocates.
struct Known {
    bytes: u64,
    context: usize,
    device: usize,
    /// Whether a launch has allocated this range and the range is not yet freed.
    live: bool,
}

/// The memory of one launched graph, in use until the graph has run.
struct Running {
    end: u64,
    stream: u64,
    steps: u64,
}

/// The memory that one GPU holds for graphs.
#[derive(Default)]
struct Share {
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
    running: Vec<Running>,
}

impl Share {
    /// Returns the bytes of running graphs on other streams than `except`. A stream runs one graph
    /// at a time.
    fn running(&mut self, except: Option<u64>) -> u64 {
        self.running.retain(|running| !work::is_over(running.end));
        let mut streams = HashMap::<u64, u64>::new();
        for running in &self.running {
            let most = streams.entry(running.stream).or_default();
            *most = running.steps.max(*most);
        }
        let others = streams
            .iter()
            .filter(|(stream, _)| Some(**stream) != except);
        others.map(|(_, steps)| steps * STEP).sum()
    }
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

    /// Returns what launches have left allocated on a GPU: the steps of address space, and the
    /// bytes.
    fn live(&self, device: usize) -> (BTreeSet<u64>, u64) {
        let live = || {
            let known = self.known.iter();
            known.filter(|(_, known)| known.live && known.device == device)
        };
        let range = |(start, known): (&u64, &Known)| Range {
            start: *start,
            bytes: known.bytes,
        };
        let steps = live().flat_map(|known| range(known).steps()).collect();
        (steps, live().map(|(_, known)| known.bytes).sum())
    }

    /// Takes the memory for a graph on a GPU. Memory that other graphs use there stays reserved.
    fn reserve(&mut self, device: usize, plan: &Plan, stream: u64) -> Outcome<()> {
        let (mut steps, live) = self.live(device);
        steps.extend(plan.steps(device));
        let share = self.share(device);
        let wanted = steps.len() as u64 * STEP + share.running(Some(stream));
        // Measured: a launch that runs out of memory keeps the steps that it has already taken.
        while share.reserved < wanted {
            driver()?.take(device, STEP)?;
            share.reserved += STEP;
            share.reserved_high = share.reserved_high.max(share.reserved);
        }
        // Measured: allocations of 100, 50 and 7 MiB count as 160 MiB used, until a trim.
        let used = (live + plan.bytes(device)).next_multiple_of(STEP);
        share.used = share.used.max(used);
        share.used_high = share.used_high.max(share.used);
        Ok(())
    }

    /// Marks a launch's allocation at this address as freed. Returns false if there is no such
    /// allocation.
    fn free(&mut self, address: u64) -> bool {
        let known = self.known.get_mut(&address).filter(|known| known.live);
        known.is_some_and(|known| std::mem::replace(&mut known.live, false))
    }
}

/// Takes the memory that the next launch of a graph needs.
///
/// # Errors
/// `OUT_OF_MEMORY`.
pub fn upload(plan: &Plan, stream: u64) -> Outcome<()> {
    let mut memory = memory();
    plan.devices()
        .into_iter()
        .try_for_each(|device| memory.reserve(device, plan, stream))
}

/// Launches a graph. `run` puts the graph on its stream and returns the end time.
///
/// # Errors
/// - `OUT_OF_MEMORY`.
/// - `INVALID_VALUE`: the last launch left memory allocated, and `auto_free` is not set.
pub fn launch(
    plan: &Plan,
    stream: u64,
    auto_free: bool,
    run: impl FnOnce() -> Outcome<u64>,
) -> Outcome<()> {
    let mut memory = memory();
    for node in plan.kept() {
        let live = memory.known.get(&node.start);
        if live.is_some_and(|known| known.live) && !auto_free {
            return Err(Status::INVALID_VALUE);
        }
        memory.free(node.start);
    }
    for device in plan.devices() {
        memory.reserve(device, plan, stream)?;
    }
    let end = run()?;
    for device in plan.devices() {
        let steps = plan.steps(device).len() as u64;
        memory
            .share(device)
            .running
            .push(Running { end, stream, steps });
    }
    for address in &plan.freed {
        memory.free(*address);
    }
    for node in plan.kept() {
        if let Some(known) = memory.known.get_mut(&node.start) {
            known.live = true;
        }
    }
    Ok(())
}

/// Notes the address range of a new node that allocates memory.
pub fn learn(range: Range, context: &Context, device: usize) {
    let known = Known {
        bytes: range.bytes,
        context: context.index,
        device,
        live: false,
    };
    memory().known.insert(range.start, known);
}

/// Returns whether a node of any graph allocates this address.
pub fn is_known(address: u64) -> bool {
    memory().known.contains_key(&address)
}

/// Forgets a destroyed graph's allocations in a region. Returns false if a launch has left memory
/// allocated there.
pub fn forget(region: Range) -> bool {
    let mut memory = memory();
    let inside = region.start..region.start + region.bytes;
    if memory.known.range(inside.clone()).any(|known| known.1.live) {
        return false;
    }
    memory.known.retain(|start, _| !inside.contains(start));
    true
}

/// Frees an address that a launch has left allocated. The GPU keeps the memory for other graphs.
///
/// # Errors
/// `INVALID_VALUE` for any other address.
pub fn free(address: u64) -> Outcome<()> {
    if memory().free(address) {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

/// Finds the graph allocation that contains an address. Returns its start, its bytes and its
/// context.
pub fn find(address: u64) -> Option<(u64, u64, Option<&'static Context>)> {
    let memory = memory();
    let (start, known) = memory.known.range(..=address).next_back()?;
    (address < start + known.bytes).then(|| (*start, known.bytes, context::by_index(known.context)))
}

/// `cuDeviceGraphMemTrim`: gives back the memory that neither an allocation nor a running graph
/// uses.
pub fn trim(device: usize) {
    let Ok(driver) = driver() else { return };
    let mut memory = memory();
    let (steps, live) = memory.live(device);
    let share = memory.share(device);
    let kept = (steps.len() as u64 * STEP + share.running(None)).min(share.reserved);
    driver.give(device, share.reserved - kept);
    share.reserved = kept;
    share.used = live.next_multiple_of(STEP).min(kept);
}

/// Returns a graph memory attribute of a GPU by its number in `CUgraphMem_attribute`.
///
/// # Errors
/// `INVALID_VALUE` for an unknown number.
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

/// Sets a high-water mark to 0, which resets the mark.
///
/// # Errors
/// `INVALID_VALUE` for any other attribute or value.
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

/// Gives back all graph memory of a GPU when the last context on that GPU is destroyed.
pub fn clear_all(device: usize) {
    let Ok(driver) = driver() else { return };
    let mut memory = memory();
    for known in memory.known.values_mut() {
        known.live &= known.device != device;
    }
    let share = std::mem::take(memory.share(device));
    driver.give(device, share.reserved);
}
