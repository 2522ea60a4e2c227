//! Outside: the processes that NVML lists on a GPU and that are proven to be a member of no group.
//!
//! The groups are those below the roots that the caller trusts: /run/gpulimit for root, that one
//! and their own for a user, or `GPULIMIT_ROOT`. A member has mapped the ledger of its top group,
//! and no process can make such a mapping in another. Where the caller may not read the memory map,
//! the entry of a living process in a ledger is believed.

use super::fields::{fields, left, right};
use super::place;
use super::processes::user;
use crate::groups;
use crate::machine::child::What;
use crate::machine::look::{self, Candidate};
use crate::machine::{accounts, nvml::Driver};
use crate::words::{environment::env, failure::Failure};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::SeenProcess;
use gpulimit_base::proc;
use gpulimit_base::process::{FIRST_PID_NS, exists, pid_ns};
use gpulimit_group::Root;
use gpulimit_ledger::{Ledger, NoWitness};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Why a process is outside, if the caller may not know: it may be in a group that the caller may
/// not read.
pub const UNKNOWN: &str = "unknown";

/// A process outside of all groups, on one GPU.
#[derive(Clone, Debug)]
pub struct Outside {
    pub pid: u32,
    pub uid: Option<u32>,
    /// The container or the job of Slurm.
    pub place: Option<String>,
    pub gpu: DeviceId,
    /// The bytes on the GPU; `None` if NVML does not tell.
    pub bytes: Option<u64>,
    pub command: String,
    /// Whether a rule or the process's environment puts it into a group.
    pub is_to_join: bool,
    pub why: String,
    pub says: String,
}

fields! { pub FIELDS(it: Outside):
    /// The pid as NVML says it.
    "pid": Count, right("PID") => it.pid;
    /// The number of the user.
    "uid": Count => it.uid;
    /// The name of the user, or the number.
    "user": Text, left("USER") => it.user();
    /// The container or the job of Slurm.
    "place": Text, left("PLACE").narrow(1).sparse() => it.place.as_deref();
    /// The GPU.
    "gpu": Device, left("GPU") => Cell::Gpu(Some(it.gpu));
    /// The memory on the GPU.
    "bytes": Bytes, right("MEMORY") => it.bytes;
    /// Why the process is in no group, in a word or two.
    "why": Text, left("WHY") => &*it.why;
    /// Why the process is in no group, in a sentence.
    "says": Text => &*it.says;
    /// Whether a rule or the process's environment puts it into a group.
    "to_join": Flag => it.is_to_join;
    /// The command line, of at most 64 bytes.
    "command": Text, left("COMMAND").narrow(2).last() => &*it.command;
}

impl Outside {
    /// Returns whether the process may be in a group that the caller may not read.
    pub fn is_unsure(&self) -> bool {
        self.why == UNKNOWN
    }

    pub fn user(&self) -> Option<String> {
        self.uid.map(accounts::user_name)
    }
}

/// Finds the processes outside. A process whose memory map cannot be read in time is left alone for
/// a while, so that it does not delay each round of `top` or `serve`.
pub struct Finder {
    patience: Duration,
    /// The processes that were late, by pid and start time.
    late: BTreeMap<(u32, Option<u64>), Instant>,
}

/// Returns the processes outside, by GPU and pid. Fails if the groups cannot be read.
pub fn outside(driver: &Driver) -> Result<Vec<Outside>, Failure> {
    Finder::new(look::patience()).find(driver)
}

impl Finder {
    /// How long a late process is left alone.
    const LATE: Duration = Duration::from_secs(60);

    /// Each search waits at most so long for memory maps.
    pub fn new(patience: Duration) -> Self {
        let late = BTreeMap::new();
        Self { patience, late }
    }

    /// Returns the processes outside, by GPU and pid; `None` if they are not known.
    pub fn known(&mut self, driver: Option<&Driver>) -> Option<Vec<Outside>> {
        self.find(driver?).ok()
    }

    fn find(&mut self, driver: &Driver) -> Result<Vec<Outside>, Failure> {
        let gpus = driver.memory().into_iter().map(|(_, id, _)| id);
        let of_gpu = |id| {
            let listed = driver.processes(&id).unwrap_or_default();
            listed.into_iter().map(move |(pid, bytes)| (id, pid, bytes))
        };
        let listed: Vec<(DeviceId, u32, Option<u64>)> = gpus.flat_map(of_gpu).collect();
        let key = |pid: u32| (pid, SeenProcess::by_pid(pid).start_time());
        self.late.retain(|_, since| since.elapsed() < Self::LATE);
        let pids = listed.iter().map(|(_, pid, _)| *pid);
        let pids: Vec<u32> = pids
            .filter(|pid| !self.late.contains_key(&key(*pid)))
            .collect();
        let answers =
            look::ask((What::Candidate, None), &pids, self.patience).map_err(Failure::new)?;
        let late = pids.iter().filter(|pid| !answers.contains_key(pid));
        self.late
            .extend(late.map(|pid| (key(*pid), Instant::now())));
        // A process maps its ledger after its group was made, so these are opened last.
        let tops = match listed.is_empty() {
            true => Vec::new(),
            false => Top::all()?,
        };
        let found = listed.into_iter().filter_map(|(gpu, pid, bytes)| {
            let facts = answers
                .get(&pid)
                .and_then(|text| serde_json::from_str(text).ok());
            is_outside(pid, facts.as_ref(), &tops).then(|| of(pid, gpu, bytes, facts))
        });
        Ok(found.collect())
    }
}

/// Returns whether a process is outside, by what was read of it.
fn is_outside(pid: u32, facts: Option<&Candidate>, tops: &[Top]) -> bool {
    let names = |top: &Top| {
        let seen = SeenProcess::by_pid(pid);
        let members = top.ledger.processes(&NoWitness).into_iter();
        members
            .filter(|it| it.alive)
            .any(|it| seen.is(&it.identity))
    };
    let mapped = facts.and_then(|facts| facts.ledgers.as_ref());
    // The group of a process that ends now may be gone already.
    let has_ended = proc::status(pid).map_or_else(
        |_| mapped.is_some() || (pid_ns() == FIRST_PID_NS && !exists(pid)),
        |status| proc::has_ended(&status),
    );
    let is_member = |top| mapped.map_or_else(|| names(top), |mapped| mapped.contains(&top.file));
    !has_ended && !tops.iter().any(is_member)
}

/// The ledger of a group without a group above it, and its file as members map it.
struct Top {
    ledger: Ledger,
    file: String,
}

impl Top {
    /// Opens these ledgers, as far as the caller may read them.
    fn all() -> Result<Vec<Self>, Failure> {
        let mut tops = Vec::new();
        for root in Root::locate_all(&env)? {
            for group in root.groups_below(None)? {
                if let Ok(Some(ledger)) = groups::readable(&group)
                    && let Ok(file) = ledger.mapped_file()
                {
                    let file = file.to_string();
                    tops.push(Self { ledger, file });
                }
            }
        }
        Ok(tops)
    }
}

fn of(pid: u32, gpu: DeviceId, bytes: Option<u64>, facts: Option<Candidate>) -> Outside {
    // These files never keep the reader waiting.
    let status = proc::status(pid).unwrap_or_default();
    let field = |name| proc::field(&status, name);
    let uid = user(&status);
    let command = facts.as_ref().and_then(|facts| facts.command.clone());
    let late = [UNKNOWN, "its memory map could not be read in time"].map(str::to_owned);
    let is_to_join = facts.as_ref().is_some_and(|facts| facts.is_to_join);
    let [why, says] = facts.map_or(late, |facts| [facts.why, facts.says]);
    Outside {
        pid,
        uid,
        place: place::of_process(pid),
        gpu,
        bytes,
        command: command
            .or(field("Name").map(str::to_owned))
            .unwrap_or_default(),
        is_to_join,
        why,
        says,
    }
}
