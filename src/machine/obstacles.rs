//! Obstacles: the reasons why processes cannot be suspended, as they are seen from outside of a
//! process, and as the library of the process writes them into the ledger.
//!
//! Looking changes nothing. The driver has the last word: it may refuse what has no obstacle here.

mod memory;
mod right;
#[cfg(test)]
mod tests;

use super::look::{self, Question};
use super::nvml;
use gpulimit_base::obstacle::Obstacle as Inner;
use gpulimit_base::proc::{self, field};
use gpulimit_base::units::gib;
use std::fmt;
use std::fs;
use std::path::Path;

pub use memory::{Place, of_memory};
pub use right::Denied;

/// The first driver with the functions that suspend processes.
const FIRST_DRIVER: u32 = 570;

/// A reason why a process, or every process of this machine, cannot be suspended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Obstacle {
    /// The driver can suspend processes on x86-64 only.
    Architecture,
    /// The driver of this version is too old.
    Driver(String),
    /// The GPU with this index is a virtual GPU.
    Virtual(u32),
    /// The process uses the GPU with this index, which is split into MIG instances.
    Mig(u32),
    /// The process is a client of MPS.
    Mps,
    /// The process is in another pid namespace than the caller.
    PidNamespace,
    /// The caller may not trace the process.
    Denied(Denied),
    /// Another process traces the process: its pid.
    Traced(u32),
    /// A profiler or sanitizer is in the process: the variable or library that shows it.
    Tool(String),
    /// No process can be looked at: the system's error.
    Blind(String),
    /// The memory map or environment of the process cannot be read.
    Unreadable,
    /// The process is a 32-bit program.
    Bits32,
    /// The process is stopped by a signal.
    Stopped,
    /// The process's cgroup is frozen.
    Frozen,
    /// The process has ended, or is ending.
    Ended,
    /// The host has too little memory for the GPU memory.
    Memory {
        /// The bytes of GPU memory.
        needed: u64,
        /// The bytes that may be used.
        room: u64,
        /// What limits the memory.
        place: Place,
    },
    /// An obstacle that the library of the process has found.
    Own {
        /// The obstacle, as a text that follows the name of the process.
        text: &'static str,
        /// Whether the obstacle lasts until the process ends.
        lasts: bool,
    },
    /// The library of the process is of a version that does not know its obstacles.
    OldLibrary,
    /// The ledger of the process's group cannot be read, which has the process's own obstacles.
    UnreadLedger,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Architecture => f.write_str("the driver suspends processes only on x86-64"),
            Self::Driver(version) => write!(f, "the driver {version} cannot suspend processes"),
            Self::Virtual(index) => write!(f, "GPU {index} is a virtual GPU"),
            Self::Mig(index) => write!(
                f,
                "the process uses GPU {index}, which is split into MIG instances"
            ),
            Self::Mps => f.write_str("the process is a client of MPS"),
            Self::PidNamespace => {
                f.write_str("the process is in another pid namespace (in a container)")
            }
            Self::Denied(why) => why.fmt(f),
            Self::Traced(by) => write!(f, "the process with pid {by} traces the process"),
            Self::Tool(what) => write!(f, "a profiler or sanitizer is in the process ({what})"),
            Self::Blind(error) => write!(f, "cannot look at the processes: {error}"),
            Self::Unreadable => {
                f.write_str("the process's memory map and environment cannot be read")
            }
            Self::Bits32 => f.write_str("the process is a 32-bit program"),
            Self::Stopped => f.write_str("the process is stopped"),
            Self::Frozen => f.write_str("the process's cgroup is frozen"),
            Self::Ended => f.write_str("the process has ended, or is ending"),
            Self::Memory {
                needed,
                room,
                place,
            } => write!(
                f,
                "the GPU memory ({}) does not fit into the host's memory: {place} leaves {}",
                gib(*needed),
                gib(*room)
            ),
            Self::Own { text, .. } => write!(f, "the process {text}"),
            Self::OldLibrary => {
                f.write_str("the process has a library that does not know suspensions")
            }
            Self::UnreadLedger => f.write_str("the ledger of the process's group cannot be read"),
        }
    }
}

impl Obstacle {
    /// Returns what the user can do about the obstacle.
    pub fn remedy(&self) -> String {
        match self {
            Self::Architecture => "use an x86-64 machine to suspend processes",
            Self::Driver(_) => return format!("install driver {FIRST_DRIVER} or later"),
            Self::Virtual(_) => "use a machine with a whole GPU to suspend processes",
            Self::Mig(_) => "use a GPU without MIG to suspend processes",
            Self::Mps => "start the program without MPS",
            Self::PidNamespace => "run gpulimit in the container of the process",
            Self::Denied(why) => return why.remedy(),
            Self::Traced(_) => "detach the debugger or tracer",
            Self::Tool(_) => "start the program without the tool",
            Self::Blind(_) => {
                "raise the limits on open files and processes (`ulimit -n`, `ulimit -u`)"
            }
            Self::Unreadable => "run gpulimit as root, or as the user of the process",
            Self::Bits32 => "use a 64-bit build of the program",
            Self::Stopped => "continue it with SIGCONT",
            Self::Frozen => "thaw the process's cgroup or container",
            Self::Ended => "remove the process from the command line",
            Self::Memory { place, .. } => return place.remedy(),
            Self::Own { lasts: false, .. } => "wait until that is over, or change the program",
            Self::Own { lasts: true, .. } => {
                "that lasts until the process ends: change the program, and start it again"
            }
            Self::OldLibrary => "start the program again",
            Self::UnreadLedger => "run gpulimit as root, or as a member of the group",
        }
        .to_owned()
    }
}

/// An obstacle, and the process that it concerns; `None` for all processes.
pub type Found = (Option<u32>, Obstacle);

/// Returns all obstacles for processes, given by pid with the bytes of their GPU memory. Returns
/// after a bounded time.
pub fn all(gpus: &nvml::Driver, processes: &[(u32, u64)]) -> Vec<Found> {
    let machine = of_machine(gpus).into_iter();
    let mut found: Vec<Found> = machine.map(|obstacle| (None, obstacle)).collect();
    let pids: Vec<u32> = processes.iter().map(|(pid, _)| *pid).collect();
    let mut contents = match look::ask(Question::Contents, &pids, look::patience()) {
        Ok(contents) => contents,
        Err(error) => {
            found.push((None, Obstacle::Blind(error.to_string())));
            return found;
        }
    };
    for pid in pids {
        let contents = contents.remove(&pid);
        let of_it = of_process(pid, Some(gpus), contents.as_deref().unwrap_or(UNREADABLE));
        found.extend(of_it.into_iter().map(|obstacle| (Some(pid), obstacle)));
    }
    let memory = of_memory(processes).into_iter();
    found.extend(memory.map(|obstacle| (None, obstacle)));
    found
}

/// Returns the obstacles that the library of a living process has written into the ledger of the
/// process's own group; `None` is the word of a library that writes none.
pub fn of_word(word: Option<u64>) -> Vec<Obstacle> {
    let own = |(text, lasts)| Obstacle::Own { text, lasts };
    word.map_or_else(
        || vec![Obstacle::OldLibrary],
        |word| Inner::told(word).map(own).collect(),
    )
}

/// Returns the obstacles for every process of this machine.
pub fn of_machine(gpus: &nvml::Driver) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if cfg!(not(target_arch = "x86_64")) {
        found.push(Obstacle::Architecture);
    }
    found.extend(gpus.version().and_then(of_version));
    found.extend(gpus.virtual_gpus().into_iter().map(Obstacle::Virtual));
    found
}

/// Returns the obstacle of a driver version such as `550.54.14`.
fn of_version(version: String) -> Option<Obstacle> {
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < FIRST_DRIVER).then_some(Obstacle::Driver(version))
}

/// Returns the obstacles of a process. Does not look into the process's memory and environment,
/// which may block the reader forever: `contents` is what [`answer`] has found there.
pub fn of_process(pid: u32, gpus: Option<&nvml::Driver>, contents: &str) -> Vec<Obstacle> {
    let Ok(status) = proc::status(pid) else {
        return vec![Obstacle::Ended];
    };
    let mut found: Vec<Obstacle> = of_status(&status).into_iter().collect();
    if found.contains(&Obstacle::Ended) {
        return found;
    }
    if namespaces(&status) > 1 {
        found.push(Obstacle::PidNamespace);
    }
    found.extend(of_answer(contents, || right::reason(pid, &status)));
    found.extend(tracer(pid).map(Obstacle::Traced));
    if is_frozen(pid) {
        found.push(Obstacle::Frozen);
    }
    if let Some(gpus) = gpus {
        if gpus.lists_in_mps(pid) {
            found.push(Obstacle::Mps);
        }
        found.extend(gpus.split_gpus_of(pid).into_iter().map(Obstacle::Mig));
    }
    found
}

/// Returns whether the text of `/proc/PID/status` shows a process that does not run.
fn of_status(status: &str) -> Option<Obstacle> {
    match field(status, "State")?.chars().next()? {
        _ if proc::has_ended(status) || proc::is_killed(status) => Some(Obstacle::Ended),
        'T' => Some(Obstacle::Stopped),
        _ => None,
    }
}

/// Returns the number of pid namespaces from the reader's to the process's.
fn namespaces(status: &str) -> usize {
    field(status, "NSpid").map_or(1, |pids| pids.split_ascii_whitespace().count())
}

/// Returns whether a process's cgroup, or one above it, is frozen.
pub fn is_frozen(pid: u32) -> bool {
    proc::read(format!("/proc/{pid}/cgroup")).is_ok_and(|cgroup| memory::is_frozen(&cgroup))
}

/// Returns the process that traces a thread of a process.
fn tracer(pid: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().find_map(|thread| {
        let status = proc::read(thread.path().join("status")).ok()?;
        let tracer = field(&status, "TracerPid")?.parse().ok()?;
        (tracer != 0).then_some(tracer)
    })
}

/// The words in an answer that stand for [`Obstacle::Bits32`], [`Obstacle::Denied`] and
/// [`Obstacle::Unreadable`].
const BITS_32: &str = "32-bit";
const DENIED: &str = "denied";
const UNREADABLE: &str = "unreadable";

/// Returns the obstacles in a process's memory, memory map and environment as words, for a child
/// process that answers [`Question::Contents`]. May block forever.
pub fn answer(pid: u32) -> String {
    if right::is_denied(pid) {
        return DENIED.to_owned();
    }
    let directory = proc::directory(pid);
    let read = |file: &str| fs::read(directory.join(file));
    let (Ok(environment), Ok(maps)) = (read("environ"), read("maps")) else {
        return UNREADABLE.to_owned();
    };
    let variables: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
    let mut words = tools(&variables, &String::from_utf8_lossy(&maps));
    if is_32_bit(&String::from_utf8_lossy(&maps)) {
        words.push(BITS_32.to_owned());
    }
    words.join(" ")
}

/// Returns the obstacles that [`answer`] has written. `reason` says why a right is denied.
fn of_answer(answer: &str, reason: impl Fn() -> Denied) -> Vec<Obstacle> {
    let words = answer.split_ascii_whitespace();
    words
        .map(|word| match word {
            BITS_32 => Obstacle::Bits32,
            DENIED => Obstacle::Denied(reason()),
            UNREADABLE => Obstacle::Unreadable,
            tool => Obstacle::Tool(tool.to_owned()),
        })
        .collect()
}

/// Returns the variables and libraries that show a profiler or sanitizer. The library libcupti is
/// no sign, because frameworks such as PyTorch always load it.
fn tools(variables: &[&[u8]], maps: &str) -> Vec<String> {
    const VARIABLES: [&str; 2] = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];
    const LIBRARIES: [&str; 4] = [
        "libToolsInjection",
        "libaccinj64",
        "libcuda-injection",
        "libsanitizer-collection",
    ];
    let is_set = |name: &&str| {
        let is_it = |variable: &&[u8]| {
            let value = variable.strip_prefix(name.as_bytes());
            value
                .and_then(|value| value.strip_prefix(b"="))
                .is_some_and(|value| !value.is_empty())
        };
        variables.iter().any(is_it)
    };
    let is_mapped = |library: &&str| {
        let mut files = maps.lines().filter_map(|line| {
            let path = Path::new(line.get(line.find('/')?..)?);
            path.file_name()?.to_str()
        });
        files.any(|file| file.starts_with(*library))
    };
    let variables = VARIABLES.into_iter().filter(is_set);
    let libraries = LIBRARIES.into_iter().filter(is_mapped);
    variables.chain(libraries).map(str::to_owned).collect()
}

/// Returns whether a memory map is that of a 32-bit program: all its addresses have 32 bits.
fn is_32_bit(maps: &str) -> bool {
    let mut ends = maps.lines().filter_map(|line| {
        let (_, end) = line.split_whitespace().next()?.split_once('-')?;
        u64::from_str_radix(end, 16).ok()
    });
    ends.next().is_some_and(|first| first <= 1 << 32) && ends.all(|end| end <= 1 << 32)
}
