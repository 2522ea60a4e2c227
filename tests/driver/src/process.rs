//! The slots of the simulated machine: which process owns a slot, and when a slot is freed.
//!
//! The owner of slot *i* holds a lock (`F_OFD_SETLK`) on byte *i* of a range of the machine's
//! shared file. A mapping, which forked children do not inherit, keeps the file open. So the lock
//! ends with the process's memory, however the process dies. Any process in any PID namespace can
//! test the lock.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::checkpoint::UnderWay;
use crate::machine::{BLOCK, MAX_DEVICES, MAX_PROCESSES, Machine, Slot, monotonic, now_ms};
use crate::{checkpoint, device, grant, host, shared};

/// The offset of the lock range in the machine's shared file, far beyond the file's data.
const LOCKS: i64 = 1 << 40;
/// The shortest time in ms between two searches for dead owners, except when memory has run out.
const SCAN_MS: u64 = 2;
/// The time in ms between searches is at least the squared number of slots, divided by this number.
/// Searching many slots is slow.
const SCANNED_PER_MS: u64 = 10_000;

/// The calling process, which owns a slot of the simulated machine.
pub struct Process {
    machine: &'static Machine,
    slot: usize,
    /// One lock for each GPU, because a process may run only one [`grant::change`] at a time on a
    /// GPU.
    operations: [Mutex<()>; MAX_DEVICES],
}

static OWN: OnceLock<Result<Process, String>> = OnceLock::new();
/// The pid of the process that made [`OWN`]. Exit handlers also run in forked children, and compare
/// this pid with their own.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn lock(file: &File, slot: usize, kind: i32, command: i32) -> io::Result<libc::flock> {
    // SAFETY: all-zero is a valid `flock`, and OFD locks need l_pid = 0.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as i16;
    request.l_whence = libc::SEEK_SET as i16;
    request.l_start = LOCKS + slot as i64;
    request.l_len = 1;
    // SAFETY: `file` is an open descriptor, and `request` is a local variable that fcntl may write.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &mut request) } {
        0 => Ok(request),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the inode of the caller's PID namespace, or 0 where /proc is not mounted.
pub fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |data| data.ino())
}

/// Returns the low half of the start time of this process in clock ticks, or 0 where /proc is not
/// mounted.
fn start() -> u32 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, is the second field. The start time is the 22nd.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let start = fields.split_whitespace().nth(19);
    let start = start.and_then(|start| start.parse::<u64>().ok());
    start.map_or(0, |start| start as u32)
}

extern "C" fn exiting() {
    if OWNER.load(Relaxed) == std::process::id()
        && let Some(Ok(own)) = OWN.get()
    {
        own.machine.slots[own.slot].exiting.store(now_ms(), SeqCst);
    }
}

impl Process {
    /// Returns the calling process as an owner of a slot, which the first call takes.
    ///
    /// # Errors
    /// The machine cannot be opened, or has no free slot.
    pub fn own() -> Result<&'static Process, &'static str> {
        OWN.get_or_init(|| Process::claim().map_err(|error| error.to_string()))
            .as_ref()
            .map_err(String::as_str)
    }

    /// Returns the slot of this process, if the process has one already.
    pub(crate) fn line() -> Option<&'static Slot> {
        match OWN.get() {
            Some(Ok(own)) if OWNER.load(Relaxed) == std::process::id() => {
                Some(&own.machine.slots[own.slot])
            }
            _ => None,
        }
    }

    fn claim() -> io::Result<Process> {
        let machine = Machine::get()?;
        let file = Machine::file()?;
        for (slot, line) in machine.slots.iter().enumerate().take(MAX_PROCESSES) {
            // A process locks a slot before it becomes the owner. So an owner whose slot is not
            // locked is dead.
            if line.owner.load(Acquire) != 0
                || lock(&file, slot, libc::F_WRLCK, libc::F_OFD_SETLK).is_err()
            {
                continue;
            }
            let owner = u64::from(std::process::id()) << 32 | birth();
            line.exiting.store(0, Relaxed);
            line.died.store(0, Relaxed);
            line.namespace.store(namespace(), Relaxed);
            line.start.store(start(), Relaxed);
            checkpoint::begin(line);
            if line
                .owner
                .compare_exchange(0, owner, SeqCst, SeqCst)
                .is_err()
            {
                lock(&file, slot, libc::F_UNLCK, libc::F_OFD_SETLK)?;
                continue;
            }
            machine.high_water.fetch_max(slot as u32 + 1, SeqCst);
            keep(&file)?;
            OWNER.store(std::process::id(), Relaxed);
            // SAFETY: the handler is a plain function of this library, and an initialised library
            // is never unloaded.
            unsafe { libc::atexit(exiting) };
            return Ok(Process {
                machine,
                slot,
                operations: [const { Mutex::new(()) }; MAX_DEVICES],
            });
        }
        Err(io::Error::other(format!(
            "all {MAX_PROCESSES} slots for processes are in use"
        )))
    }

    /// Returns the number by which the simulated machine identifies this process.
    pub fn owner(&self) -> u64 {
        self.machine.slots[self.slot].owner.load(SeqCst)
    }

    /// Returns the number of this process's contexts on a GPU.
    pub fn contexts(&self, device: usize) -> &'static AtomicU32 {
        &self.machine.slots[self.slot].contexts[device]
    }

    /// Takes physical memory on a GPU; returns false when the GPU has too little left.
    pub fn take(&self, device: usize, bytes: u64) -> bool {
        let blocks = bytes.div_ceil(BLOCK) as i64;
        let _change = UnderWay::begin_change();
        let one = self.operations[device]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut taken = grant::change(self.machine, self.slot, device, blocks);
        if !taken || host::is_overrun(self.machine) {
            scan(self.machine, true);
        }
        if !taken {
            taken = grant::change(self.machine, self.slot, device, blocks);
        }
        drop(one);
        host::check(self.machine);
        taken
    }

    /// Gives physical memory back to a GPU.
    pub fn give(&self, device: usize, bytes: u64) {
        let _change = UnderWay::begin_change();
        let _one = self.operations[device]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        grant::change(
            self.machine,
            self.slot,
            device,
            -(bytes.div_ceil(BLOCK) as i64),
        );
    }
}

/// Returns whether this owner still has its slot. A dead process has its slot until its memory is
/// given back.
pub fn is_alive(machine: &Machine, owner: u64) -> bool {
    let slots = &machine.slots[..machine.high_water.load(SeqCst) as usize];
    slots.iter().any(|line| line.owner.load(SeqCst) == owner)
}

/// Marks exported memory as having an open descriptor, until the last copy of the descriptor is
/// closed.
///
/// # Errors
/// The error of fcntl.
pub fn hold_descriptor(file: &File) -> io::Result<()> {
    lock(file, 0, libc::F_RDLCK, libc::F_OFD_SETLK).map(drop)
}

/// Returns whether any process has a descriptor of this exported memory open.
pub fn is_held(file: &File) -> bool {
    lock(file, 0, libc::F_WRLCK, libc::F_OFD_GETLK)
        .is_ok_and(|answer| i32::from(answer.l_type) != libc::F_UNLCK)
}

/// The lock for the list of exported objects. Its holder may change which processes hold exported
/// memory.
pub struct ObjectsLock(#[expect(dead_code, reason = "held, not read")] File);

impl ObjectsLock {
    /// Takes the lock on exported objects, waiting for it if necessary.
    pub fn wait() -> Option<ObjectsLock> {
        ObjectsLock::take(libc::F_OFD_SETLKW)
    }

    /// Takes the lock on exported objects. Returns `None` when another process has this lock.
    pub fn attempt() -> Option<ObjectsLock> {
        ObjectsLock::take(libc::F_OFD_SETLK)
    }

    fn take(command: i32) -> Option<ObjectsLock> {
        let file = Machine::file().ok()?;
        lock(&file, MAX_PROCESSES, libc::F_WRLCK, command).ok()?;
        Some(ObjectsLock(file))
    }
}

/// The lock on the checkpoint steps of the process in one slot. Its holder may change what the
/// process holds, and frees the slot of a dead process.
pub(crate) struct StepLock(#[expect(dead_code, reason = "held, not read")] File);

impl StepLock {
    /// Takes the lock, waiting for it if necessary.
    pub(crate) fn wait(slot: usize) -> Option<StepLock> {
        StepLock::take(slot, libc::F_OFD_SETLKW)
    }

    /// Takes the lock. Returns `None` when another process or thread has it.
    pub(crate) fn attempt(slot: usize) -> Option<StepLock> {
        StepLock::take(slot, libc::F_OFD_SETLK)
    }

    fn take(slot: usize, command: i32) -> Option<StepLock> {
        let file = Machine::file().ok()?;
        lock(&file, MAX_PROCESSES + 1 + slot, libc::F_WRLCK, command).ok()?;
        Some(StepLock(file))
    }
}

/// Returns whether the process that took this slot has ended.
pub(crate) fn has_died(slot: usize) -> bool {
    let Ok(file) = Machine::file() else {
        return false;
    };
    lock(&file, slot, libc::F_WRLCK, libc::F_OFD_GETLK)
        .is_ok_and(|answer| i32::from(answer.l_type) == libc::F_UNLCK)
}

/// Returns a new number for an owner. No other owner of the slot has this number.
fn birth() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let ns = monotonic().as_nanos() as u64;
    (ns >> 8).wrapping_add(COUNTER.fetch_add(1, Relaxed)) & 0xffff_ffff
}

/// Maps the file, so that its locks stay. A forked child inherits the mapping, and keeps the memory
/// of its parent until it ends or runs another program, as with NVIDIA's driver.
fn keep(file: &File) -> io::Result<()> {
    // SAFETY: a new mapping, which is never dereferenced.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A process that holds GPU memory, or a dead process whose memory still counts as used.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The pid in the process's own PID namespace.
    pub pid: u32,
    /// The inode of the process's PID namespace.
    pub namespace: u64,
    /// Whether the process is dead.
    pub dying: bool,
    /// Whether a checkpoint of the living process is being restored. NVML does not list it then.
    pub restoring: bool,
    /// Bytes held per GPU.
    pub held: [u64; MAX_DEVICES],
    /// Whether the process has a context, per GPU. Without one, NVML does not list it.
    pub has_context: [bool; MAX_DEVICES],
}

/// Searches the slots for dead owners. A dead owner's memory is given back after the time that the
/// knob `kill-lag-ms` sets.
pub fn scan(machine: &Machine, at_once: bool) {
    let now = now_ms();
    let last = machine.last_scan.load(Relaxed);
    let slots = u64::from(machine.high_water.load(SeqCst));
    if !at_once && now < last + SCAN_MS.max(slots * slots / SCANNED_PER_MS) {
        return;
    }
    machine.last_scan.store(now, Relaxed);
    let Ok(file) = Machine::file() else { return };
    let lag = machine.knobs.kill_lag.load(Relaxed);
    for slot in 0..slots as usize {
        let line = &machine.slots[slot];
        let owner = line.owner.load(SeqCst);
        if owner == 0 {
            continue;
        }
        let free = lock(&file, slot, libc::F_WRLCK, libc::F_OFD_GETLK)
            .is_ok_and(|answer| i32::from(answer.l_type) == libc::F_UNLCK);
        if !free {
            // A slow search can mark a living owner as dead if the slot changes its owner during
            // the search.
            if line.died.load(Relaxed) != 0 {
                line.died.store(0, SeqCst);
            }
            continue;
        }
        let mut died = line.died.load(SeqCst);
        if died == 0 {
            let exiting = line.exiting.load(SeqCst);
            let at = if exiting == 0 { now } else { exiting };
            died = line
                .died
                .compare_exchange(0, at, SeqCst, SeqCst)
                .map_or_else(|at| at, |_| at);
        }
        if line.owner.load(SeqCst) != owner || now < died + lag {
            continue;
        }
        // A process that restores the dead one adds memory to the slot.
        let Some(_steps) = StepLock::attempt(slot) else {
            continue;
        };
        for device in 0..MAX_DEVICES {
            grant::reap(machine, slot, device, owner);
        }
        let _ = line.owner.compare_exchange(owner, 0, SeqCst, SeqCst);
    }
    shared::sweep(machine);
}

/// Returns every process that holds memory on any GPU of the simulated machine.
pub fn holders(machine: &Machine) -> Vec<Holder> {
    scan(machine, false);
    let devices = device::count(machine);
    let mut holders = Vec::new();
    let mut borne = Vec::new();
    shared::each_shown(machine, |owner, device, bytes| {
        borne.push((owner, device, bytes));
    });
    for slot in 0..machine.high_water.load(SeqCst) as usize {
        let line = &machine.slots[slot];
        let owner = line.owner.load(SeqCst);
        if owner == 0 {
            continue;
        }
        let mut held = [0; MAX_DEVICES];
        for (device, bytes) in held.iter_mut().enumerate().take(devices) {
            *bytes = grant::held(machine, slot, device) * BLOCK;
        }
        for (_, device, bytes) in borne.iter().filter(|(bearer, ..)| *bearer == owner) {
            held[*device] += bytes;
        }
        let dying = line.died.load(SeqCst) != 0;
        if held.iter().any(|bytes| *bytes > 0)
            && line.owner.load(SeqCst) == owner
            && !(dying && has_successor(machine, line))
        {
            holders.push(Holder {
                pid: (owner >> 32) as u32,
                namespace: line.namespace.load(Relaxed),
                dying,
                restoring: !dying && checkpoint::is_restored(line),
                held,
                has_context: std::array::from_fn(|device| line.contexts[device].load(SeqCst) > 0),
            });
        }
    }
    holders
}

/// Returns whether another living process has the pid and the namespace of a dead one. With a real
/// driver, a process keeps its pid for as long as NVML lists it. Here the memory outlives the
/// process, and a new PID namespace can have the number and the pids of one that has ended. A
/// program that the dead process executed is no successor: it is the same process.
fn has_successor(machine: &Machine, dead: &Slot) -> bool {
    let process = |line: &Slot| {
        let pid = line.owner.load(SeqCst) >> 32;
        (pid, line.namespace.load(Relaxed))
    };
    let slots = &machine.slots[..machine.high_water.load(SeqCst) as usize];
    slots.iter().any(|line| {
        process(line) == process(dead)
            && line.start.load(Relaxed) != dead.start.load(Relaxed)
            && line.died.load(SeqCst) == 0
    })
}

/// A process that asks NVML for processes. NVML reports each by its pid in the viewer's `/proc`.
pub struct Viewer {
    /// The inode of this process's PID namespace.
    namespace: u64,
}

impl Viewer {
    /// Returns the calling process as a viewer; `None` without a `/proc` of its own PID namespace.
    pub fn own() -> Option<Viewer> {
        let own_name = std::fs::read_link("/proc/self").ok()?;
        let is_own = own_name.to_str()? == std::process::id().to_string();
        is_own.then(|| Viewer {
            namespace: namespace(),
        })
    }

    /// Returns the holder's pid in the viewer's `/proc`; `None` when the holder is not in it.
    pub fn pid(&self, holder: &Holder) -> Option<u32> {
        if self.namespace == holder.namespace {
            return Some(holder.pid);
        }
        let ending = format!("\t{}", holder.pid);
        std::fs::read_dir("/proc")
            .ok()?
            .flatten()
            .find_map(|entry| {
                let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
                let inside = std::fs::metadata(entry.path().join("ns/pid")).ok()?.ino();
                let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
                let pids = status.lines().find(|line| line.starts_with("NSpid:"))?;
                (inside == holder.namespace && pids.ends_with(&ending)).then_some(pid)
            })
    }
}
