//! Outside: the processes that NVML lists on a GPU and that are proven to be a member of no group.
//!
//! The groups are those below the roots that the caller trusts: /run/gpulimit for root, that one
//! and their own for a user, or `GPULIMIT_ROOT`. A member has mapped the ledger of its top group,
//! and no process can make such a mapping in another. Where the caller may not read the memory map,
//! the entry of a living process in a ledger is believed.

use super::fields::{fields, left, right};
use super::place;
use crate::groups;
use crate::machine::look::{self, Candidate, Question};
use crate::machine::{accounts, nvml::Driver};
use crate::words::{environment::env, failure::Failure};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::SeenProcess;
use gpulimit_base::proc;
use gpulimit_group::Root;
use gpulimit_ledger::{Ledger, NoWitness, ProcessUsage};
use std::collections::BTreeMap;

/// Why a process is outside, if the caller may not know.
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
    pub fn user(&self) -> Option<String> {
        self.uid.map(accounts::user_name)
    }
}

/// Returns the processes outside, by GPU and pid. Fails if the groups cannot be read.
pub fn outside(driver: &Driver) -> Result<Vec<Outside>, Failure> {
    let gpus = driver.memory().into_iter().map(|(_, id, _)| id);
    let listed: Vec<(DeviceId, BTreeMap<u32, Option<u64>>)> = gpus
        .filter_map(|id| Some((id, driver.processes(&id)?)))
        .collect();
    let pids: Vec<u32> = listed
        .iter()
        .flat_map(|(_, all)| all.keys().copied())
        .collect();
    let answers = look::ask(Question::Candidate, &pids, look::patience()).map_err(Failure::new)?;
    let ledgers = match answers.is_empty() {
        true => Vec::new(),
        false => top_ledgers()?,
    };
    let files: Vec<String> = (ledgers.iter())
        .filter_map(|ledger| Some(ledger.mapped_file().ok()?.to_string()))
        .collect();
    let members: Vec<ProcessUsage> = (ledgers.iter())
        .flat_map(|ledger| ledger.processes(&NoWitness))
        .filter(|process| process.alive)
        .collect();
    let is_outside = |pid: u32, facts: Option<&Candidate>| match facts {
        Some(facts) if facts.has_ended => false,
        Some(Candidate {
            ledgers: Some(mapped),
            ..
        }) => !mapped.iter().any(|it| files.contains(it)),
        _ => {
            let seen = SeenProcess::by_pid(pid);
            !members.iter().any(|process| seen.is(&process.identity))
        }
    };
    let mut found = Vec::new();
    for (gpu, all) in listed {
        for (pid, bytes) in all {
            let facts = answers
                .get(&pid)
                .and_then(|text| serde_json::from_str(text).ok());
            let facts: Option<Candidate> = facts;
            if is_outside(pid, facts.as_ref()) {
                found.push(of(pid, gpu, bytes, facts));
            }
        }
    }
    Ok(found)
}

fn of(pid: u32, gpu: DeviceId, bytes: Option<u64>, facts: Option<Candidate>) -> Outside {
    // These files never keep the reader waiting.
    let status = proc::status(pid).unwrap_or_default();
    let field = |name| proc::field(&status, name);
    let uid = field("Uid").and_then(|uid| uid.split_whitespace().next()?.parse().ok());
    let command = facts.as_ref().and_then(|facts| facts.command.clone());
    let late = || {
        (
            UNKNOWN.to_owned(),
            "its memory map could not be read in time".to_owned(),
        )
    };
    let is_to_join = facts.as_ref().is_some_and(|facts| facts.is_to_join);
    let (why, says) = facts.map_or_else(late, |facts| (facts.why, facts.says));
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

/// Opens the ledgers of the groups without a group above them, as far as the caller may read them.
fn top_ledgers() -> Result<Vec<Ledger>, Failure> {
    let mut ledgers = Vec::new();
    for root in Root::locate_all(&env)? {
        for group in root.groups_below(None)? {
            ledgers.extend(groups::readable(&group).ok().flatten());
        }
    }
    Ok(ledgers)
}
