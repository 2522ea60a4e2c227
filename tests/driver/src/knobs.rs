//! The knobs: settings of the simulated machine. A new machine reads them from the environment.
//! Later `gpulimit-sim-ctl knob` changes them.

use std::cell::Cell;
use std::env;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::machine::{BLOCK, MAX_DEVICES};

/// The largest number of driver functions that can have rules at once. A rule makes one function
/// wait or fail.
pub const MAX_RULES: usize = 64;
const NAME_WORDS: usize = 6;
/// Bits of [`Knobs::active`].
const SET: u32 = 1;
const LOCKED: u32 = 2;
/// Bits of [`Knobs::checkpoint`]: what the checkpoint functions refuse, or fail to do.
pub(crate) const DENIED: u32 = 1;
pub(crate) const MPS: u32 = 2;
pub(crate) const CHECKPOINT_FAILS: u32 = 4;
pub(crate) const RESTORE_FAILS: u32 = 8;
const CHECKPOINT: &[(&str, u32)] = &[
    ("none", 0),
    ("denied", DENIED),
    ("mps", MPS),
    ("checkpoint-fails", CHECKPOINT_FAILS),
    ("restore-fails", RESTORE_FAILS),
];

/// The knobs in the shared memory of the simulated machine.
#[repr(C)]
pub struct Knobs {
    /// Not 0 while a knob affects calls or kernels, and after a process was locked. If 0, calls
    /// read no other knob.
    pub active: AtomicU32,
    /// Number of GPUs.
    pub devices: AtomicU32,
    /// The total memory of each GPU that `cuDeviceTotalMem` reports, in bytes.
    pub capacity: [AtomicU64; MAX_DEVICES],
    /// The host's memory in bytes, which the GPUs share; 0 = the GPUs have their own.
    pub host_memory: AtomicU64,
    /// The bytes of the host's memory that other programs use.
    pub host_used: AtomicU64,
    /// The bytes of the kernel's page cache, which count as available and not as free.
    pub page_cache: AtomicU64,
    /// Not 0: NVML tells the memory of such GPUs.
    pub nvml_memory: AtomicU32,
    /// The share of the time in which each GPU is busy, in percent.
    pub busy: [AtomicU32; MAX_DEVICES],
    /// The temperature of each GPU in degrees Celsius.
    pub temperature: [AtomicU32; MAX_DEVICES],
    /// The power that each GPU takes, in milliwatts.
    pub power: [AtomicU32; MAX_DEVICES],
    /// How often the machine used more than the host has: no setting.
    pub overruns: AtomicU64,
    /// The bytes that a context takes.
    pub context_bytes: AtomicU64,
    /// The bytes that the first kernel launch of a process takes.
    pub first_launch_bytes: AtomicU64,
    /// The milliseconds for which the memory of a dead process still counts as used.
    pub kill_lag: AtomicU64,
    /// The driver version that `cuDriverGetVersion` reports.
    pub driver_version: AtomicU32,
    /// Not 0: CUDA's default order of the GPUs is the reverse of the PCI order.
    pub reversed: AtomicU32,
    /// Not 0: NVML's process lists are empty, as in a container without /proc.
    pub no_proc: AtomicU32,
    /// Not 0: NVML lists every compute process also as a graphics process and as an MPS client.
    pub all_lists: AtomicU32,
    /// Not 0: the elements of NVML's `_v3` process lists have the layout of the first R535 drivers.
    pub early_535: AtomicU32,
    /// Not 0: NVML calls its own functions by their exported names, so a preloaded library with the
    /// same exports sees these calls.
    pub own_exports: AtomicU32,
    /// The number of MIG instances of every GPU; 0 = no MIG.
    pub mig: AtomicU32,
    /// The failures of the checkpoint functions: see [`DENIED`] and the constants after it.
    checkpoint: AtomicU32,
    /// The nanoseconds for which a checkpoint or a restore moves memory.
    pub step: AtomicU64,
    /// The nanoseconds for which every kernel keeps its stream busy.
    pub work: AtomicU64,
    /// The nanoseconds that every driver call waits before its work. A rule for the called function
    /// overrides this number.
    pub latency: AtomicU64,
    /// The nanoseconds that every driver call waits after its work. A rule for the called function
    /// overrides this number.
    pub delay: AtomicU64,
    /// Not 0: each wait of a driver call is random, between 0 and the set time. This number is the
    /// seed.
    pub jitter: AtomicU64,
    /// The number of threads that have drawn random waits.
    jittering: AtomicU64,
    /// The rules, which make single driver functions wait or fail.
    pub rules: [Rule; MAX_RULES],
}

/// A rule: how long the calls of one driver function wait, and whether they fail.
#[repr(C)]
pub struct Rule {
    name: [AtomicU64; NAME_WORDS],
    /// The wait before the function's work in nanoseconds; `u64::MAX` = not set.
    latency: AtomicU64,
    /// The wait after the function's work in nanoseconds; `u64::MAX` = not set.
    delay: AtomicU64,
    /// 0 = no failure. The low half is the error code; the high half is the failing call's number,
    /// or 0 for every call.
    failure: AtomicU64,
}

/// What the knobs do to one driver call.
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
    format!("knob {knob}: invalid value {value:?}")
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

/// The knobs that the environment sets for a new simulated machine: name and value of each.
pub struct Settings(Vec<(&'static str, String)>);

/// The environment variables, each with the knob that it sets.
pub const NAMES: &[(&str, &str)] = &[
    ("GPULIMIT_SIM_GPUS", "gpus"),
    ("GPULIMIT_SIM_HOST_MEMORY", "host-memory"),
    ("GPULIMIT_SIM_HOST_USED", "host-used"),
    ("GPULIMIT_SIM_PAGE_CACHE", "page-cache"),
    ("GPULIMIT_SIM_NVML_MEMORY", "nvml-memory"),
    ("GPULIMIT_SIM_BUSY", "busy"),
    ("GPULIMIT_SIM_TEMPERATURE", "temperature"),
    ("GPULIMIT_SIM_POWER", "power"),
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
    ("GPULIMIT_SIM_CHECKPOINT", "checkpoint"),
    ("GPULIMIT_SIM_STEP", "step"),
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
    /// Sets every knob to its default and then applies `settings`. An invalid setting is reported
    /// on stderr and ignored.
    pub fn configure(&self, settings: &Settings) {
        self.devices.store(1, Relaxed);
        for capacity in &self.capacity {
            capacity.store(85_017_493_504, Relaxed);
        }
        self.temperature.iter().for_each(|it| it.store(35, Relaxed));
        self.power.iter().for_each(|it| it.store(70_000, Relaxed));
        self.context_bytes.store(543_162_368, Relaxed);
        self.kill_lag.store(120, Relaxed);
        self.driver_version.store(13_000, Relaxed);
        for (knob, value) in &settings.0 {
            if let Err(error) = self.set(knob, value) {
                eprintln!("gpulimit-sim: {error}");
            }
        }
    }

    /// Sets one knob. A list of values, separated by commas, replaces the old list.
    ///
    /// # Errors
    /// A text that names the knob and the value.
    pub fn set(&self, knob: &str, value: &str) -> Result<(), String> {
        let bad = || unreadable(knob, value);
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| bad());
        // A list with a number for each GPU. The last number stands for all further GPUs.
        let each = || -> Result<Vec<u64>, String> {
            let mut list: Vec<u64> = value.split(',').map(number).collect::<Result<_, _>>()?;
            let last = *list.last().ok_or_else(bad)?;
            list.resize(MAX_DEVICES, last);
            Ok(list)
        };
        match knob {
            "gpus" => {
                let count = number(value)?;
                if count > MAX_DEVICES as u64 {
                    return Err(format!("knob gpus: at most {MAX_DEVICES}, got {count}"));
                }
                self.devices.store(count as u32, Relaxed);
            }
            "capacity" => {
                for (capacity, bytes) in self.capacity.iter().zip(each()?) {
                    capacity.store(bytes, Relaxed);
                }
            }
            "busy" | "temperature" | "power" => {
                let figures = match knob {
                    "busy" => &self.busy,
                    "temperature" => &self.temperature,
                    _ => &self.power,
                };
                for (figure, value) in figures.iter().zip(each()?) {
                    figure.store(value as u32, Relaxed);
                }
            }
            "host-memory" => {
                let bytes = number(value)?;
                self.host_memory.store(bytes, Relaxed);
                if bytes != 0 {
                    self.set("capacity", value)?;
                }
            }
            "host-used" => self.host_used.store(number(value)?, Relaxed),
            "nvml-memory" => self.nvml_memory.store(number(value)? as u32, Relaxed),
            "page-cache" => self.page_cache.store(number(value)?, Relaxed),
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
                // An H100 can be divided into at most 7 MIG instances.
                if count > 7 {
                    return Err(format!("knob mig: at most 7, got {count}"));
                }
                self.mig.store(count as u32, Relaxed);
            }
            "checkpoint" => {
                let mut failures = 0;
                for name in value.split(',') {
                    let found = CHECKPOINT.iter().find(|(known, _)| *known == name);
                    failures |= found.ok_or_else(bad)?.1;
                }
                self.checkpoint.store(failures, Relaxed);
                self.note_locked();
            }
            "step" => self.step.store(number(value)?, Relaxed),
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

    /// Returns whether the checkpoint functions have this failure.
    pub(crate) fn fails(&self, failure: u32) -> bool {
        self.checkpoint.load(Acquire) & failure != 0
    }

    /// Notes that a process was locked (see [`crate::checkpoint`]). From now on every driver call
    /// is counted, and checks whether its process is locked.
    pub fn note_locked(&self) {
        self.active.fetch_or(LOCKED, Release);
    }

    /// Sets the wait before the work or the wait after the work, for all driver calls or for single
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
        Err(format!("at most {MAX_RULES} functions can wait or fail"))
    }

    /// Returns how long a call of the driver function `symbol` waits before and after its work, in
    /// nanoseconds.
    pub fn waits(&self, symbol: &str) -> (u64, u64) {
        self.waits_by(self.rule_of(symbol))
    }

    /// Returns how long the rule for the function `symbol` lets it wait after its work, in
    /// nanoseconds. `None` without such a rule.
    pub fn delay_of(&self, symbol: &str) -> Option<u64> {
        let delay = self.rule_of(symbol)?.delay.load(Acquire);
        (delay != u64::MAX).then_some(delay)
    }

    fn waits_by(&self, rule: Option<&Rule>) -> (u64, u64) {
        let wait = |of: &dyn Fn(&Rule) -> u64, of_all: &AtomicU64| {
            let ns = rule.map_or(u64::MAX, of);
            if ns == u64::MAX {
                of_all.load(Relaxed)
            } else {
                ns
            }
        };
        (
            wait(&|rule| rule.latency.load(Acquire), &self.latency),
            wait(&|rule| rule.delay.load(Acquire), &self.delay),
        )
    }

    fn rule_of(&self, symbol: &str) -> Option<&Rule> {
        let name = pack(symbol)?;
        self.rules.iter().find(|rule| rule.name() == name)
    }

    /// Returns what the knobs do to call number `calls` of the driver function `symbol` in this
    /// process.
    pub fn orders(&self, symbol: &str, calls: u64) -> Orders {
        let rule = self.rule_of(symbol);
        let (latency, delay) = self.waits_by(rule);
        let mut orders = Orders {
            latency,
            delay,
            failure: None,
        };
        if let Some(rule) = rule {
            let failure = rule.failure.load(Acquire);
            let call = failure >> 32;
            if failure != 0 && (call == 0 || call == calls) {
                orders.failure = Some(failure as u32 as i32);
            }
        }
        let seed = self.jitter.load(Relaxed);
        if seed != 0 {
            for wait in [&mut orders.latency, &mut orders.delay] {
                *wait = self.random(seed) % (*wait + 1);
            }
        }
        orders
    }

    /// Returns the next number of the calling thread's own random sequence. The sequence follows
    /// from the seed and the number of threads that have begun before.
    fn random(&self, seed: u64) -> u64 {
        thread_local!(static STATE: Cell<u64> = const { Cell::new(0) });
        STATE.with(|state| {
            let mut word = match state.get() {
                0 => {
                    let number = self.jittering.fetch_add(1, Relaxed) + 1;
                    (seed ^ number << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
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
}

/// The call of this process before or after which the process ends by SIGKILL, as the variable
/// `GPULIMIT_SIM_KILL` says: `cuMemAlloc_v2:before`, or `cuMemAlloc_v2:after@2` for the second
/// call.
pub struct Death {
    symbol: String,
    after: bool,
    call: u64,
}

impl Death {
    /// Returns the death that the environment of this process orders.
    pub fn ordered() -> Option<&'static Death> {
        static ORDERED: OnceLock<Option<Death>> = OnceLock::new();
        ORDERED.get_or_init(Self::from_environment).as_ref()
    }

    fn from_environment() -> Option<Death> {
        let value = env::var("GPULIMIT_SIM_KILL").ok()?;
        let death = Self::parse(&value);
        if death.is_none() {
            eprintln!("gpulimit-sim: GPULIMIT_SIM_KILL: invalid value {value:?}");
        }
        death
    }

    fn parse(value: &str) -> Option<Death> {
        let (symbol, when) = value.rsplit_once(':')?;
        let (when, call) = when.split_once('@').unwrap_or((when, "1"));
        Some(Death {
            symbol: symbol.to_owned(),
            after: match when {
                "before" => false,
                "after" => true,
                _ => return None,
            },
            call: call.parse().ok()?,
        })
    }

    /// Returns whether the process ends before or after this call.
    pub fn is_at(&self, symbol: &str, calls: u64, after: bool) -> bool {
        self.call == calls && self.after == after && self.symbol == symbol
    }
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
