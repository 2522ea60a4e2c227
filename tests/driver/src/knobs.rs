//! The knobs: settings of the simulated machine, read from the environment when the machine is
//! made, and changed later by `gpulimit-sim-ctl knob`.

use std::cell::Cell;
use std::env;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::machine::{BLOCK, MAX_DEVICES};

/// The largest number of driver functions that can have rules (waits and failures of their own) at
/// a time.
pub const MAX_RULES: usize = 64;
const NAME_WORDS: usize = 6;
/// Bits of [`Knobs::active`].
const SET: u32 = 1;
const LOCKED: u32 = 2;

/// The knobs, as they lie in the shared memory of the simulated machine.
#[repr(C)]
pub struct Knobs {
    /// Not 0 while any latency, failure or kernel time (`work`) is set, and after a process was
    /// ever locked. An ordinary driver call reads only this word of the knobs.
    pub active: AtomicU32,
    /// Number of GPUs.
    pub devices: AtomicU32,
    /// The total memory of each GPU that `cuDeviceTotalMem` reports, in bytes.
    pub capacity: [AtomicU64; MAX_DEVICES],
    /// The bytes that a context takes.
    pub context_bytes: AtomicU64,
    /// The bytes that the first kernel launch of a process takes.
    pub first_launch_bytes: AtomicU64,
    /// The milliseconds for which the memory of a dead process still counts as used.
    pub kill_lag: AtomicU64,
    /// The driver version that `cuDriverGetVersion` reports.
    pub driver_version: AtomicU32,
    /// Not 0: CUDA's default order of the GPUs (fastest first) is the reverse of the PCI order.
    pub reversed: AtomicU32,
    /// Not 0: NVML's process lists are empty, as in a container without /proc.
    pub no_proc: AtomicU32,
    /// Not 0: NVML lists every process as a graphics process and as an MPS client, too.
    pub all_lists: AtomicU32,
    /// Not 0: NVML's `_v3` process lists have the element layout of the first R535 drivers.
    pub early_535: AtomicU32,
    /// Not 0: NVML calls its own functions by their exported names, so that an interposed library
    /// sees these calls.
    pub own_exports: AtomicU32,
    /// The number of MIG instances of every GPU; 0 = no MIG.
    pub mig: AtomicU32,
    /// The nanoseconds for which every kernel keeps its stream busy.
    pub work: AtomicU64,
    /// The nanoseconds that every driver call waits before its work, unless a rule names the called
    /// function.
    pub latency: AtomicU64,
    /// The nanoseconds that every driver call waits after its work, unless a rule names the called
    /// function.
    pub delay: AtomicU64,
    /// Not 0: the waits of driver calls are random, between 0 and the time that is set; this number
    /// is the seed.
    pub jitter: AtomicU64,
    /// The rules: waits and failures of single driver functions.
    pub rules: [Rule; MAX_RULES],
}

/// The waits and the failure that are set for one driver function.
#[repr(C)]
pub struct Rule {
    name: [AtomicU64; NAME_WORDS],
    /// The wait before the function's work in nanoseconds; `u64::MAX` = not set.
    latency: AtomicU64,
    /// The wait after the function's work in nanoseconds; `u64::MAX` = not set.
    delay: AtomicU64,
    /// The failure of the function: the error code in the low half, and in the high half the number
    /// of the call that fails (0 = all calls). 0 = not set.
    failure: AtomicU64,
}

/// What the knobs order for the next call of a driver function: waits, or failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// The wait before the call's work, in nanoseconds.
    pub latency: u64,
    /// The wait after the call's work, in nanoseconds.
    pub delay: u64,
    /// The error code with which the call fails instead of doing its work.
    pub failure: Option<i32>,
}

fn unreadable(knob: &str, value: &str) -> String {
    format!("knob {knob}: cannot read {value:?}")
}

fn pack(name: &str) -> Option<[u64; NAME_WORDS]> {
    let mut bytes = [0u8; NAME_WORDS * 8];
    bytes
        .get_mut(..name.len())?
        .copy_from_slice(name.as_bytes());
    let mut words = [0; NAME_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
    }
    Some(words)
}

/// The knobs that the environment sets for a new simulated machine.
pub struct Settings(Vec<(&'static str, String)>);

/// The environment variables, each with the knob that it sets.
pub const NAMES: &[(&str, &str)] = &[
    ("GPULIMIT_SIM_GPUS", "gpus"),
    ("GPULIMIT_SIM_CAPACITY", "capacity"),
    ("GPULIMIT_SIM_CONTEXT_BYTES", "context-bytes"),
    ("GPULIMIT_SIM_FIRST_LAUNCH_BYTES", "first-launch-bytes"),
    ("GPULIMIT_SIM_KILL_LAG_MS", "kill-lag-ms"),
    ("GPULIMIT_SIM_DRIVER_VERSION", "driver-version"),
    ("GPULIMIT_SIM_REVERSED", "reversed"),
    ("GPULIMIT_SIM_NO_PROC", "no-proc"),
    ("GPULIMIT_SIM_ALL_LISTS", "all-lists"),
    ("GPULIMIT_SIM_EARLY_535", "early-535"),
    ("GPULIMIT_SIM_OWN_EXPORTS", "own-exports"),
    ("GPULIMIT_SIM_MIG", "mig"),
    ("GPULIMIT_SIM_WORK", "work"),
    ("GPULIMIT_SIM_LATENCY", "latency"),
    ("GPULIMIT_SIM_DELAY", "delay"),
    ("GPULIMIT_SIM_JITTER", "jitter"),
    ("GPULIMIT_SIM_FAIL", "fail"),
];

impl Settings {
    /// Reads the environment variables of [`NAMES`].
    pub fn from_environment() -> Self {
        Settings(
            NAMES
                .iter()
                .filter_map(|(variable, knob)| Some((*knob, env::var(variable).ok()?)))
                .filter(|(_, value)| !value.is_empty())
                .collect(),
        )
    }
}

impl Knobs {
    /// Sets every knob to its default, then applies `settings`. An invalid value is reported on
    /// stderr and ignored, so that a test that misspells a knob shows it.
    pub fn configure(&self, settings: &Settings) {
        self.devices.store(1, Relaxed);
        for capacity in &self.capacity {
            capacity.store(85_017_493_504, Relaxed);
        }
        self.context_bytes.store(543_162_368, Relaxed);
        self.kill_lag.store(120, Relaxed);
        self.driver_version.store(13_000, Relaxed);
        for (knob, value) in &settings.0 {
            if let Err(error) = self.set(knob, value) {
                eprintln!("gpulimit-sim: {error}");
            }
        }
    }

    /// Sets one knob. A list is comma-separated and replaces what was set before.
    ///
    /// # Errors
    /// A line that names the knob and the value.
    pub fn set(&self, knob: &str, value: &str) -> Result<(), String> {
        let bad = || unreadable(knob, value);
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| bad());
        match knob {
            "gpus" => {
                let count = number(value)?;
                if count > MAX_DEVICES as u64 {
                    return Err(format!("knob gpus: {count} is more than {MAX_DEVICES}"));
                }
                self.devices.store(count as u32, Relaxed);
            }
            "capacity" => {
                let sizes = value
                    .split(',')
                    .map(number)
                    .collect::<Result<Vec<_>, _>>()?;
                let last = *sizes.last().ok_or_else(bad)?;
                for (index, capacity) in self.capacity.iter().enumerate() {
                    capacity.store(*sizes.get(index).unwrap_or(&last), Relaxed);
                }
            }
            "context-bytes" => self
                .context_bytes
                .store(number(value)?.next_multiple_of(BLOCK), Relaxed),
            "first-launch-bytes" => self
                .first_launch_bytes
                .store(number(value)?.next_multiple_of(BLOCK), Relaxed),
            "kill-lag-ms" => self.kill_lag.store(number(value)?, Relaxed),
            "driver-version" => self.driver_version.store(number(value)? as u32, Relaxed),
            "reversed" => self.reversed.store(number(value)? as u32, Relaxed),
            "no-proc" => self.no_proc.store(number(value)? as u32, Relaxed),
            "all-lists" => self.all_lists.store(number(value)? as u32, Relaxed),
            "own-exports" => self.own_exports.store(number(value)? as u32, Relaxed),
            "early-535" => self.early_535.store(number(value)? as u32, Relaxed),
            "mig" => {
                let count = number(value)?;
                // An H100 has 7 slices.
                if count > 7 {
                    return Err(format!("knob mig: {count} is more than 7"));
                }
                self.mig.store(count as u32, Relaxed);
            }
            "work" => self.work.store(number(value)?, Relaxed),
            "latency" => self.set_waits(knob, value, |rule| &rule.latency, &self.latency)?,
            "delay" => self.set_waits(knob, value, |rule| &rule.delay, &self.delay)?,
            "jitter" => self.jitter.store(number(value)?, Relaxed),
            "fail" => {
                let mut rules = Vec::new();
                for part in value
                    .split(',')
                    .filter(|part| !part.is_empty() && *part != "none")
                {
                    let (name, failure) = part.rsplit_once(':').ok_or_else(bad)?;
                    let (code, call) = failure.split_once('@').unwrap_or((failure, "0"));
                    rules.push((
                        pack(name).ok_or_else(bad)?,
                        number(code)? | number(call)? << 32,
                    ));
                }
                for rule in &self.rules {
                    rule.failure.store(0, Relaxed);
                }
                for (name, failure) in rules {
                    self.rule(name)?.failure.store(failure, Release);
                }
            }
            _ => return Err(format!("unknown knob {knob:?}; the knobs are {}", list())),
        }
        let set = self.work.load(Relaxed) != 0
            || self.latency.load(Relaxed) != 0
            || self.delay.load(Relaxed) != 0
            || self.rules.iter().any(|rule| {
                rule.failure.load(Relaxed) != 0
                    || !matches!(rule.latency.load(Relaxed), 0 | u64::MAX)
                    || !matches!(rule.delay.load(Relaxed), 0 | u64::MAX)
            });
        if set {
            self.active.fetch_or(SET, Release);
        } else {
            self.active.fetch_and(!SET, Release);
        }
        Ok(())
    }

    /// Notes that a process was locked (see [`crate::checkpoint`]): from now on every driver call
    /// checks whether its process is locked.
    pub fn note_locked(&self) {
        self.active.fetch_or(LOCKED, Release);
    }

    /// Sets one kind of wait (before or after the work) for all driver calls and for single
    /// functions.
    fn set_waits(
        &self,
        knob: &str,
        value: &str,
        of: impl Fn(&Rule) -> &AtomicU64,
        of_all: &AtomicU64,
    ) -> Result<(), String> {
        let bad = || unreadable(knob, value);
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| bad());
        let mut all = 0;
        let mut rules = Vec::new();
        for part in value.split(',').filter(|part| !part.is_empty()) {
            match part.rsplit_once(':') {
                Some((name, ns)) => rules.push((pack(name).ok_or_else(bad)?, number(ns)?)),
                None => all = number(part)?,
            }
        }
        for rule in &self.rules {
            of(rule).store(u64::MAX, Relaxed);
        }
        for (name, ns) in rules {
            of(self.rule(name)?).store(ns, Release);
        }
        of_all.store(all, Relaxed);
        Ok(())
    }

    fn rule(&self, name: [u64; NAME_WORDS]) -> Result<&Rule, String> {
        let free = [0; NAME_WORDS];
        for wanted in [name, free] {
            let found = self.rules.iter().find(|rule| rule.name() == wanted);
            if let Some(rule) = found {
                for (word, value) in rule.name.iter().zip(name) {
                    word.store(value, Relaxed);
                }
                if wanted == free {
                    rule.latency.store(u64::MAX, Relaxed);
                    rule.delay.store(u64::MAX, Relaxed);
                }
                return Ok(rule);
            }
        }
        Err(format!("more than {MAX_RULES} symbols with rules"))
    }

    /// Returns what the knobs order for a call of the driver function `symbol`. `calls` counts the
    /// calls of this function in this process, the present call included.
    pub fn orders(&self, symbol: &str, calls: u64) -> Orders {
        let mut orders = Orders {
            latency: self.latency.load(Relaxed),
            delay: self.delay.load(Relaxed),
            failure: None,
        };
        if let Some(name) = pack(symbol)
            && let Some(rule) = self.rules.iter().find(|rule| rule.name() == name)
        {
            for (wait, set) in [
                (&mut orders.latency, &rule.latency),
                (&mut orders.delay, &rule.delay),
            ] {
                match set.load(Acquire) {
                    u64::MAX => {}
                    ns => *wait = ns,
                }
            }
            let failure = rule.failure.load(Acquire);
            let call = failure >> 32;
            if failure != 0 && (call == 0 || call == calls) {
                orders.failure = Some(failure as u32 as i32);
            }
        }
        let seed = self.jitter.load(Relaxed);
        if seed != 0 {
            for wait in [&mut orders.latency, &mut orders.delay] {
                *wait = random(seed) % (*wait + 1);
            }
        }
        orders
    }
}

/// Returns the next number of the calling thread's random sequence; each thread and process has a
/// sequence of its own.
fn random(seed: u64) -> u64 {
    thread_local!(static STATE: Cell<u64> = const { Cell::new(0) });
    STATE.with(|state| {
        let mut word = match state.get() {
            // Each thread has its own copy of this variable, so the address of the copy makes the
            // seed differ between threads.
            0 => {
                seed ^ (u64::from(std::process::id()) << 32
                    | std::ptr::from_ref(state).addr() as u64 >> 4)
            }
            word => word,
        };
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        state.set(word.max(1));
        word >> 8
    })
}

fn list() -> String {
    NAMES
        .iter()
        .map(|(_, knob)| *knob)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Rule {
    fn name(&self) -> [u64; NAME_WORDS] {
        std::array::from_fn(|index| self.name[index].load(Relaxed))
    }
}
