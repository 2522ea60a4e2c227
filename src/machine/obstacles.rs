//! Obstacles: the reasons why processes cannot be suspended, as they are seen from outside of a
//! process, and as the library of the process writes them into the ledger.
//!
//! Looking changes nothing. The driver has the last word: it may refuse what has no obstacle here.

mod memory;
mod right;
#[cfg(test)]
mod tests;

use super::child::What;
use super::library::paths;
use super::{look, nvml};
use gpulimit_base::obstacle::Obstacle as Inner;
use gpulimit_base::proc::{self, field};
use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::path::Path;

pub use memory::of_memory;
pub use right::Denied;

/// The first driver with the functions that suspend processes.
const FIRST_DRIVER: u32 = 570;

/// A reason why a process, or every process of this machine, cannot be suspended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Obstacle {
    text: Cow<'static, str>,
    /// What the user can do about the obstacle.
    pub remedy: Cow<'static, str>,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Obstacle {
    const fn of(text: &'static str, remedy: &'static str) -> Self {
        Self {
            text: Cow::Borrowed(text),
            remedy: Cow::Borrowed(remedy),
        }
    }

    fn new(text: String, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self {
            text: text.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns the obstacle that the driver, as the caller, may not trace the process.
    pub fn denied(Denied { cause, remedy }: Denied) -> Self {
        let text = "the kernel does not let you trace the process, as the driver asks for";
        Self::new(format!("{text}: {cause}"), remedy)
    }
}

/// The driver can suspend processes on x86-64 only.
const ARCHITECTURE: Obstacle = Obstacle::of(
    "the driver suspends processes only on x86-64",
    "use an x86-64 machine to suspend processes",
);
/// The process is a client of MPS.
pub const MPS: Obstacle = Obstacle::of(
    "the process is a client of MPS",
    "start the program without MPS",
);
/// The process is in another pid namespace than the caller.
const PID_NAMESPACE: Obstacle = Obstacle::of(
    "the process is in another pid namespace (in a container)",
    "run gpulimit in the container of the process",
);
/// The memory map or environment of the process cannot be read.
const UNREADABLE: Obstacle = Obstacle::of(
    "the process's memory map and environment cannot be read",
    "run gpulimit as root, or as the user of the process",
);
const BITS_32: Obstacle = Obstacle::of(
    "the process is a 32-bit program",
    "use a 64-bit build of the program",
);
/// The process is stopped by a signal.
const STOPPED: Obstacle = Obstacle::of("the process is stopped", "continue it with SIGCONT");
/// The process's cgroup is frozen.
pub const FROZEN: Obstacle = Obstacle::of(
    "the process's cgroup is frozen",
    "thaw the process's cgroup or container",
);
const ENDED: Obstacle = Obstacle::of(
    "the process has ended, or is ending",
    "remove the process from the command line",
);
/// The ledger of the process's group cannot be read, which has the process's own obstacles.
pub const UNREAD_LEDGER: Obstacle = Obstacle::of(
    "the ledger of the process's group cannot be read",
    "run gpulimit as root, or as a member of the group",
);

/// Returns the obstacle that the driver of this version cannot suspend processes.
pub fn driver(version: &str) -> Obstacle {
    Obstacle::new(
        format!("the driver {version} cannot suspend processes"),
        format!("install driver {FIRST_DRIVER} or later"),
    )
}

/// Returns the obstacle that the process uses the GPU with this index, which is split into MIG
/// instances.
pub fn mig(index: u32) -> Obstacle {
    Obstacle::new(
        format!("the process uses GPU {index}, which is split into MIG instances"),
        "use a GPU without MIG to suspend processes",
    )
}

/// An obstacle, and the process that it concerns; `None` for all processes.
pub type Found = (Option<u32>, Obstacle);

/// Returns all obstacles for processes, given by pid with the bytes of their GPU memory. Returns
/// after a bounded time.
pub fn all(gpus: &nvml::Driver, processes: &[(u32, u64)]) -> Vec<Found> {
    let machine = of_machine(gpus).into_iter();
    let mut found: Vec<Found> = machine.map(|obstacle| (None, obstacle)).collect();
    let pids: Vec<u32> = processes.iter().map(|(pid, _)| *pid).collect();
    let mut contents = match look::ask((What::Contents, None), &pids, look::patience()) {
        Ok(contents) => contents,
        Err(error) => {
            let remedy = "raise the limits on open files and processes (`ulimit -n`, `ulimit -u`)";
            let text = format!("cannot look at the processes: {error}");
            found.push((None, Obstacle::new(text, remedy)));
            return found;
        }
    };
    for pid in pids {
        let contents = contents.remove(&pid);
        let of_it = of_process(pid, Some(gpus), contents.as_deref().unwrap_or(NOT_READ));
        found.extend(of_it.into_iter().map(|obstacle| (Some(pid), obstacle)));
    }
    let memory = of_memory(processes).into_iter();
    found.extend(memory.map(|obstacle| (None, obstacle)));
    found
}

/// Returns the obstacles that the library of a living process has written into the ledger of the
/// process's own group; `None` if the process is not in the ledger any more.
pub fn of_word(word: Option<u64>) -> Vec<Obstacle> {
    let own = |(text, lasts)| {
        let remedy = match lasts {
            false => "wait until that is over, or change the program",
            true => "that lasts until the process ends: change the program, and start it again",
        };
        Obstacle::new(format!("the process {text}"), remedy)
    };
    word.into_iter().flat_map(Inner::told).map(own).collect()
}

/// Returns the obstacles for every process of this machine.
pub fn of_machine(gpus: &nvml::Driver) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if cfg!(not(target_arch = "x86_64")) {
        found.push(ARCHITECTURE);
    }
    found.extend(gpus.version().and_then(|version| of_version(&version)));
    found.extend(gpus.virtual_gpus().into_iter().map(|index| {
        let remedy = "use a machine with a whole GPU to suspend processes";
        Obstacle::new(format!("GPU {index} is a virtual GPU"), remedy)
    }));
    found
}

/// Returns the obstacle of a driver version such as `550.54.14`.
fn of_version(version: &str) -> Option<Obstacle> {
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < FIRST_DRIVER).then(|| driver(version))
}

/// Returns the obstacles of a process. Does not look into the process's memory and environment,
/// which may block the reader forever: `contents` is what [`answer`] has found there.
pub fn of_process(pid: u32, gpus: Option<&nvml::Driver>, contents: &str) -> Vec<Obstacle> {
    let Ok(status) = proc::status(pid) else {
        return vec![ENDED];
    };
    let mut found: Vec<Obstacle> = of_status(&status).into_iter().collect();
    if found.contains(&ENDED) {
        return found;
    }
    if namespaces(&status) > 1 {
        found.push(PID_NAMESPACE);
    }
    found.extend(of_answer(contents, pid));
    found.extend(tracer(pid).map(|by| {
        let text = format!("the process with pid {by} traces the process");
        Obstacle::new(text, "detach the debugger or tracer")
    }));
    if is_frozen(pid) {
        found.push(FROZEN);
    }
    if let Some(gpus) = gpus {
        if gpus.lists_in_mps(pid) {
            found.push(MPS);
        }
        found.extend(gpus.split_gpus_of(pid).into_iter().map(mig));
    }
    found
}

/// Returns whether the text of `/proc/PID/status` shows a process that does not run.
fn of_status(status: &str) -> Option<Obstacle> {
    match field(status, "State")?.chars().next()? {
        _ if proc::has_ended(status) || proc::is_killed(status) => Some(ENDED),
        'T' => Some(STOPPED),
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

/// The words in an answer that stand for [`BITS_32`], [`Denied`] and [`UNREADABLE`].
const SHORT: &str = "32-bit";
const DENIED: &str = "denied";
const NOT_READ: &str = "unreadable";

/// Returns the obstacles in a process's memory, memory map and environment as words, for a child
/// process that answers [`What::Contents`]. May block forever.
pub fn answer(pid: u32) -> String {
    if right::is_denied(pid) {
        return DENIED.to_owned();
    }
    let directory = proc::directory(pid);
    let read = |file: &str| fs::read(directory.join(file));
    let (Ok(environment), Ok(maps)) = (read("environ"), read("maps")) else {
        return NOT_READ.to_owned();
    };
    let variables: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
    let mut words = tools(&variables, &String::from_utf8_lossy(&maps));
    if is_32_bit(&String::from_utf8_lossy(&maps)) {
        words.push(SHORT.to_owned());
    }
    words.join(" ")
}

/// Returns the obstacles that [`answer`] has written.
fn of_answer(answer: &str, pid: u32) -> Vec<Obstacle> {
    let words = answer.split_ascii_whitespace();
    words
        .map(|word| match word {
            SHORT => BITS_32,
            DENIED => Obstacle::denied(Denied::of(Some(pid))),
            NOT_READ => UNREADABLE,
            tool => Obstacle::new(
                format!("a profiler or sanitizer is in the process ({tool})"),
                "start the program without the tool",
            ),
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
        let mut files = paths(maps).filter_map(|path| Path::new(path).file_name()?.to_str());
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
