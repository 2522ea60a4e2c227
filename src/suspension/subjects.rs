//! The processes that `suspend` and `resume` act on.

use crate::groups::kill::{by_own_pid, proven, unproven};
use crate::groups::{self, Purpose, Selection};
use crate::machine::obstacles::{self, FROZEN, Obstacle, is_frozen};
use crate::machine::{look, nvml};
use crate::shown::output;
use crate::words::failure::Failure;
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::proc;
use gpulimit_group::{Group, GroupError, Target};
use gpulimit_ledger::{DeviceIndex, DeviceUsage, Errand, Ledger, NoWitness, ProcessUsage};
use gpulimit_limits::{LimitSet, parse_duration};
use std::fmt::Display;
use std::time::Duration;

/// Selects processes on the command line.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// The group, with the groups below it
    pub group: Option<String>,

    /// A process of a group, by the pid that `gpulimit ps` shows. Repeat for
    /// more
    #[arg(long = "pid", value_name = "PID")]
    pub pids: Vec<u32>,
}

/// Reads a time on the command line.
pub fn time(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).ok_or("expected a time such as 30s or 10m")
}

/// A process of a group, proven to be a member of it.
pub struct Subject {
    /// The process's own group.
    pub group: Group,
    pub usage: ProcessUsage,
    pub target: Target,
    /// When the program has joined: see [`Ledger::claimed_at`].
    joined: u64,
    /// The ledgers of the process's own group, and of the groups above it.
    pub ledgers: Vec<Ledger>,
}

impl Which {
    /// Returns the living processes of the group, or those with these pids.
    pub fn subjects(&self) -> Result<Vec<Subject>, Failure> {
        let selection = match &self.group {
            // An unknown group gets the hints of all verbs.
            Some(name) => {
                groups::find(name, Purpose::Use)?;
                Selection::of(Some(name))?
            }
            None => Selection::of(None)?,
        };
        output::notes(&selection.notes);
        let mut found = Vec::new();
        for group in &selection.groups {
            let wanted = (!self.pids.is_empty()).then_some(&*self.pids);
            found.extend(members(group, wanted)?);
        }
        let missing = |pid: &&u32| !found.iter().any(|one| one.target.pid == **pid);
        match self.pids.iter().find(missing) {
            Some(pid) => Err(Failure::new(format_args!(
                "no process {pid} in any group: `gpulimit ps` lists the processes of groups"
            ))),
            None => Ok(found),
        }
    }
}

/// Returns the living processes of one group, without those of the groups below it; of these pids
/// only, if there are any.
///
/// # Errors
/// One of the processes cannot be proven to be a member.
pub fn members(group: &Group, pids: Option<&[u32]>) -> Result<Vec<Subject>, Failure> {
    candidates(group, pids)?.into_iter().collect()
}

/// Returns the processes as [`members`] does, or for each why it cannot be proven to be a member.
pub fn candidates(
    group: &Group,
    pids: Option<&[u32]>,
) -> Result<Vec<Result<Subject, Failure>>, Failure> {
    // Among all groups there may be some of other users.
    let ledger = match (group.ledger(), pids) {
        (Ok(ledger), _) => ledger,
        (Err(_), Some(_)) => return Ok(Vec::new()),
        (Err(error), None) if groups::is_denied(&error) => {
            return Err(groups::unreadable(group.ledger_path()));
        }
        (Err(error), None) => return Err(error.into()),
    };
    let own = Identity::of_self();
    let mut processes = ledger.processes(&NoWitness);
    processes.retain(|process| {
        process.alive && process.below.is_empty() && !process.identity.is_same(&own)
    });
    if let Some(wanted) = pids {
        let here = crate::machine::pids::Pids::default();
        processes.retain(|process| {
            here.here(&process.identity)
                .is_some_and(|pid| wanted.contains(&pid))
        });
    }
    if processes.is_empty() {
        return Ok(Vec::new());
    }
    let joined = |usage: &ProcessUsage| ledger.claimed_at(usage.slot);
    let before: Vec<u64> = processes.iter().map(joined).collect();
    let look = look::members();
    let targets = proven(group, &ledger, &look)?;
    let named = targets.named(processes.iter().map(|process| &process.identity));
    let proven = processes.into_iter().zip(before).zip(named);
    let subjects = proven.filter_map(|((usage, before), target)| match target {
        Ok(target) => Some(Subject::of(group, usage, before, target)),
        // The process has ended meanwhile, or is about to. Another one may have its slot.
        Err(_)
            if !targets.is_held(&usage)
                || joined(&usage) != before
                || usage.identity.is_ending(own.pid_ns) =>
        {
            None
        }
        Err(error) => Some(Err(Failure::new(format_args!(
            "process {process} of group '{group}' cannot be proven to be a member: {why}{instead}",
            process = by_own_pid(&usage.identity),
            group = group.name(),
            why = unproven(&error, &usage.identity),
            instead = match pids {
                Some(_) => "",
                None => "; or leave it out, and name the others with --pid",
            }
        )))),
    });
    Ok(subjects.collect())
}

/// Returns whether nothing keeps the caller from suspending a running process of the group.
pub fn may_suspend(group: &Group, pid: u32, gpus: &nvml::Driver) -> bool {
    let found = members(group, Some(&[pid])).unwrap_or_default();
    let [subject] = &found[..] else {
        return false;
    };
    let own = obstacles::of_word(subject.ledger().obstacles_of(subject.identity()));
    own.is_empty()
        && !subject.is_suspended()
        && !subject.is_half_done()
        && super::bound::passed(&[subject]).is_ok_and(|reasons| reasons.is_empty())
        && obstacles::all(gpus, &[(pid, subject.bytes(Some(gpus)))]).is_empty()
}

/// Returns an obstacle with its remedy, for one process or for all.
pub fn reason(subject: Option<&Subject>, obstacle: &Obstacle) -> String {
    let name = subject.map_or_else(String::new, |subject| format!("{}: ", subject.name()));
    format!("{name}{obstacle}: {}", obstacle.remedy)
}

/// Opens the ledger of a group for writing.
fn writable(group: &Group) -> Result<Ledger, Failure> {
    let ledger = Ledger::open(&group.ledger_path()).map_err(GroupError::from)?;
    match group.owns(&ledger)? {
        true => Ok(ledger),
        false => Err(Failure::new(format_args!(
            "{path} is not the ledger of this group: the owner of the directory put another file \
             there",
            path = group.ledger_path().display()
        ))),
    }
}

impl Subject {
    fn of(
        group: &Group,
        usage: ProcessUsage,
        joined: u64,
        target: Target,
    ) -> Result<Self, Failure> {
        let levels = group.upwards().map(|level| writable(&level));
        Ok(Self {
            group: group.clone(),
            usage,
            joined,
            target,
            ledgers: levels.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the ledger of the process's own group.
    pub fn ledger(&self) -> &Ledger {
        &self.ledgers[0]
    }

    pub const fn identity(&self) -> &Identity {
        &self.usage.identity
    }

    /// Returns the process for messages: `process 4711 (python)`.
    pub fn name(&self) -> String {
        let (pid, command) = (self.target.pid, self.identity().command());
        format!("process {pid} ({command})")
    }

    /// Returns a failure that begins with the process: `process 4711 (python) is stopped`.
    pub fn fails(&self, why: impl Display) -> Failure {
        Failure::new(format_args!("{} {why}", self.name()))
    }

    /// Returns whether the process has ended, or has called exec. The slot alone is no proof that
    /// it has not: another process may hold it, and the pid may be that of a stranger.
    pub fn is_gone(&self) -> bool {
        self.has_left() || self.has_ended()
    }

    /// Returns whether the process has ended, or is about to drop its slot.
    pub fn is_ending(&self) -> bool {
        self.is_gone() || self.identity().is_ending(Identity::of_self().pid_ns)
    }

    /// Returns whether the process has called exec. The driver takes its pid for the next program.
    pub fn has_executed(&self) -> bool {
        self.has_left() && !self.has_ended()
    }

    /// Returns whether the slot is not that of the program any more.
    fn has_left(&self) -> bool {
        let (ledger, slot) = (self.ledger(), self.usage.slot);
        !ledger.is_held(slot) || ledger.claimed_at(slot) != self.joined
    }

    fn has_ended(&self) -> bool {
        let ended = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        self.target.send(0).is_err_and(ended)
    }

    /// Returns what an actor does with the process, and whether an actor has stopped the process.
    pub fn errand(&self) -> (Errand, bool) {
        self.ledger().errand_of(self.identity())
    }

    /// Writes what this process does with the process, and whether this process has stopped it.
    pub fn set_errand(&self, errand: Errand, frozen: bool) {
        for ledger in &self.ledgers {
            ledger.set_errand(self.identity(), errand, frozen);
        }
    }

    /// Returns whether an actor is at work on the process, or has left it half-done.
    pub fn is_half_done(&self) -> bool {
        matches!(self.errand().0, Errand::Suspend | Errand::Resume) && !self.is_gone()
    }

    /// Returns whether an actor was at work on the process, and has died.
    pub fn is_abandoned(&self) -> bool {
        self.is_half_done() && !self.ledger().has_actor(self.identity())
    }

    /// Fails if the process is in another pid namespace: the driver does not find it there, and its
    /// answers tell nothing about the process.
    pub fn check_namespace(&self) -> Result<(), Failure> {
        let (own, there) = (Identity::of_self().pid_ns, self.identity().pid_ns);
        // 0 is unknown.
        match there == own || there == 0 || own == 0 {
            true => Ok(()),
            false => Err(self.fails(
                "is in another pid namespace (in a container): run gpulimit in the container of \
                 the process",
            )),
        }
    }

    /// Returns whether the process is stopped (SIGSTOP, a debugger). The driver answers no question
    /// about such a process.
    pub fn is_stopped(&self) -> bool {
        proc::is_stopped(self.target.pid) == Some(true)
    }

    /// Returns the present figures of the process on each GPU.
    pub fn devices(&self) -> Vec<(DeviceId, u64, DeviceUsage)> {
        let ledger = self.ledger();
        let devices = ledger.devices().into_iter();
        devices
            .map(|device| {
                let usage = ledger.usage_of(self.usage.slot, device.index);
                (device.id, device.capacity, usage)
            })
            .collect()
    }

    /// Writes down how much of a GPU the process has before it is suspended, as far as it is known.
    pub fn set_resident(&self, id: &DeviceId, bytes: u64) {
        for ledger in &self.ledgers {
            if let Some(device) = ledger.devices().iter().find(|device| device.id == *id) {
                ledger.set_resident(self.identity(), device.index, bytes);
            }
        }
    }

    /// Returns whether contexts are charged; true if the limits cannot be read.
    pub fn counts_contexts(&self) -> bool {
        let counts = |rules: LimitSet| rules.options.count_context;
        let mut levels = self.group.upwards();
        levels.any(|level| level.rules().map_or(true, counts))
    }

    /// Returns the bytes that the driver moves of the process, by GPU: see [`moved`]. GPUs of which
    /// the process uses nothing are missing.
    pub fn moved_by_gpu(&self) -> Vec<(DeviceIndex, u64)> {
        let all = self.devices().into_iter().map(|(_, _, usage)| usage);
        all.filter(|usage| moved(usage) > 0 || usage.is_away())
            .map(|usage| (usage.device, moved(&usage)))
            .collect()
    }

    /// Returns the bytes that are on the host, or come there when the process is suspended. They
    /// may be more than its charge, as in a group that does not count contexts.
    pub fn bytes(&self, gpus: Option<&nvml::Driver>) -> u64 {
        let devices = self.devices().into_iter();
        let bytes = devices.map(|(id, _, usage)| {
            let shown = gpus.and_then(|gpus| gpus.used_by(self.target.pid, &id));
            moved(&usage).max(usage.resident).max(shown.unwrap_or(0))
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Fails if the process is stopped or its cgroup frozen: the driver answers no question about
    /// it, and the answer would not come before the process is continued.
    pub fn check_runs(&self) -> Result<(), Failure> {
        let pid = self.target.pid;
        if self.is_stopped() {
            return Err(self.fails(format_args!(
                "is stopped (SIGSTOP or a debugger), so the driver does not answer for it: \
                 continue it first, as with `kill -CONT {pid}`"
            )));
        }
        match is_frozen(pid) {
            true => Err(Failure::new(reason(Some(self), &FROZEN))),
            false => Ok(()),
        }
    }

    /// Returns whether the driver answers questions about the process.
    pub fn is_answered_for(&self) -> bool {
        self.check_runs().is_ok() && self.check_namespace().is_ok()
    }

    /// Returns whether the process is suspended, as its figures say. A process may be suspended
    /// without suspended bytes, because its group need not count contexts.
    pub fn is_suspended(&self) -> bool {
        self.devices().iter().any(|(_, _, usage)| usage.is_away())
    }

    /// Returns whether the process waits in line for memory, in its group or in one above.
    pub fn waits(&self) -> bool {
        let own = self.identity();
        let mut levels = self.ledgers.iter();
        levels.any(|ledger| {
            let processes = ledger.processes(&NoWitness);
            (processes.iter()).any(|one| one.waits.is_some() && one.identity.is_same(own))
        })
    }

    /// Returns the suspended bytes of the process on all GPUs.
    pub fn suspended(&self) -> u64 {
        let all = self.devices().into_iter();
        all.map(|(_, _, usage)| usage.suspended)
            .fold(0, u64::saturating_add)
    }
}

/// Returns the bytes that the driver moves of a process on one GPU: those that are on the host, or
/// will be.
pub fn moved(usage: &DeviceUsage) -> u64 {
    match usage.suspended {
        0 => usage.in_use().saturating_sub(usage.orphaned),
        suspended => suspended,
    }
}
