//! Sends signals to the processes of a group that are proven to be its members.

use crate::groups;
use crate::machine::obstacles::{self, Denied};
use crate::machine::{look, nvml::Driver, pids::Pids};
use crate::words::notes::{Done, Notes};
use crate::words::{failure::Failure, signal, text};
use gpulimit_base::identity::Identity;
use gpulimit_base::proc;
use gpulimit_group::{Group, Look, Target, Targets, system_log};
use gpulimit_ledger::{
    Cause, Details, DeviceUsage, EventKind, Happening, Holding, Ledger, NoWitness, ProcessUsage,
};
use std::collections::BTreeSet;
use std::io::{Error, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

/// Sends a signal to the processes of a group, or to those of them with these pids and this start
/// time.
pub fn kill(
    group: &Group,
    wanted: &[u32],
    start_time: Option<u64>,
    signal: i32,
) -> Result<Done, Failure> {
    let ledger = groups::to_signal(group)?;
    let Some(ledger) = ledger else {
        return Err(groups::unreadable(group.ledger_path()));
    };
    let driver = Driver::load().ok();
    let pids = Pids::default();
    let mut processes = ledger.processes(groups::witness(driver.as_ref()));
    keep_others(&mut processes);
    let pid = |process: &ProcessUsage| pids.here(&process.identity);
    for one in wanted {
        if !processes.iter().any(|process| pid(process) == Some(*one)) {
            return Err(Failure::new(format_args!(
                "no process {one} in group '{0}': `gpulimit ps {0}` lists the group's processes",
                group.name()
            )));
        }
    }
    if !wanted.is_empty() {
        processes.retain(|process| pid(process).is_some_and(|pid| wanted.contains(&pid)));
    }
    if let Some(start_time) = start_time {
        processes.retain(|process| process.identity.start_time == start_time);
        if processes.is_empty() {
            return Err(Failure::new(format_args!(
                "process {} has ended, and another process of group '{}' has its pid now: no \
                 signal was sent",
                text::some(wanted),
                group.name()
            )));
        }
    }
    let (mut changes, mut notes) = (Vec::new(), Notes::default());
    if processes.is_empty() {
        notes.add(format!("no process uses a GPU in group '{}'", group.name()));
    }
    let name = signal::name(signal);
    let mut sent = |group: &str, who: &str| {
        changes.push((group.to_owned(), format!("{name} sent to {who}")));
    };
    let look = look::members();
    let targets = proven(group, &ledger, &look)?;
    let (named, unnamed, silent) = targets.all(&processes);
    let mut missed = Vec::new();
    // One deadline holds for all slots, because a single process can hold all slots and the waits
    // would add up.
    let until = Instant::now() + PATIENCE;
    let mut reached = BTreeSet::new();
    for (process, target) in processes.iter().zip(named) {
        if is_reached(&mut reached, process, &target) {
            continue;
        }
        let who = match pid(process) {
            Some(pid) => format!("{pid} ({})", process.identity.command()),
            None => format!("({})", process.identity.command()),
        };
        match target.and_then(|target| send(group, &ledger, process, &target, signal)) {
            Ok(()) => sent(&groups::of_process(group, process), &who),
            // The process ended before it got the signal. That is no error.
            Err(_) if ends(&targets, process, until) => {}
            Err(error) => missed.push((who, error, &process.identity)),
        }
    }
    // The slots of these members are unknown, so they get the signal only if the caller gave no
    // pids.
    let mut found = 0;
    if wanted.is_empty() {
        for target in &unnamed {
            if target.send(signal).is_ok() {
                sent(
                    group.name(),
                    &format!("{pid} (in no slot)", pid = target.pid),
                );
                found += 1;
            }
        }
    }
    for (who, error, process) in missed.iter().skip(found) {
        notes.add(format!(
            "cannot signal {who}: {why}",
            why = unproven(error, process)
        ));
        notes.is_failure = true;
    }
    if missed.len() > found {
        notes.lines.extend(unseen(&silent));
    }
    Ok(Done { changes, notes })
}

/// Returns whether a process gets the signal by another of its slots, as a `resume` that waits has
/// several. Only proven slots count: any member can write an identity into a slot.
fn is_reached(reached: &mut Keys, process: &ProcessUsage, target: &Result<Target, Error>) -> bool {
    target.is_ok() && !reached.insert(process.identity.key())
}

/// Drops dead processes and the calling process, which must not signal itself.
fn keep_others(processes: &mut Vec<ProcessUsage>) {
    let own = Identity::of_self();
    processes.retain(|process| process.alive && !process.identity.is_same(&own));
}

/// Returns a finder of a group's members, which finds only processes that provably are members.
pub fn proven<'a>(
    group: &Group,
    ledger: &'a Ledger,
    look: &'a Look<'a>,
) -> Result<Targets<'a>, Failure> {
    let path = group.ledger_path();
    if !group.owns(ledger)? {
        return Err(Failure::new(format_args!(
            "{} is not the ledger of this group: the owner of the directory put another file \
             there; no process was signalled",
            path.display()
        )));
    }
    Targets::of(ledger, look)
        .map_err(|error| Failure::new(format_args!("cannot look at {}: {error}", path.display())))
}

/// The total time that `kill` waits for processes that got no signal, and that may be ending.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits until a process has released its slot; false after the time `until`. A killed process
/// keeps its slot until its memory is freed.
fn ends(targets: &Targets<'_>, process: &ProcessUsage, until: Instant) -> bool {
    while targets.is_held(process) {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Returns a process for messages, by the pid in its own pid namespace: `4711 (python)`.
pub fn by_own_pid(process: &Identity) -> String {
    let (pid, command) = (process.pid, process.command());
    match is_elsewhere(process) {
        true => format!("{pid} ({command}; the pid is that of another pid namespace)"),
        false => format!("{pid} ({command})"),
    }
}

/// Returns whether a process is known to be in another pid namespace than the caller.
fn is_elsewhere(process: &Identity) -> bool {
    process.pid_ns != 0 && process.pid_ns != Identity::of_self().pid_ns
}

/// Explains why a process is not proven to be a member of a group, and so gets no signal.
pub fn unproven(error: &Error, process: &Identity) -> String {
    if error.raw_os_error() == Some(libc::EACCES) {
        let why = Denied::of(Pids::default().here(process));
        return format!(
            "you may not read the process's memory map, which shows its group: {cause}; {remedy}",
            cause = why.cause,
            remedy = why.remedy
        );
    }
    match error.kind() {
        ErrorKind::NotFound if is_elsewhere(process) => {
            "no process that this pid namespace shows has mapped the group's ledger as this member \
             does: run gpulimit in the pid namespace of the process"
                .into()
        }
        ErrorKind::NotFound => {
            "no process with this pid has mapped the group's ledger as a member does".into()
        }
        ErrorKind::PermissionDenied => {
            "the process belongs to another user, or the group's owner cannot signal the process"
                .into()
        }
        ErrorKind::TimedOut => {
            "it took too long to read the process's memory map, which shows its group".into()
        }
        _ => error.to_string(),
    }
}

/// Returns a line about processes whose memory maps could not be read in time. Such a process may
/// be a member.
fn unseen(silent: &[u32]) -> Option<String> {
    let why = "could not find out in time whether these processes are members of the group";
    (!silent.is_empty()).then(|| format!("{why}: {}", text::some(silent)))
}

/// Sends a signal to a process of a group. If the signal is SIGTERM or SIGKILL, records it as an
/// event of the group.
pub fn send(
    group: &Group,
    ledger: &Ledger,
    process: &ProcessUsage,
    target: &Target,
    signal: i32,
) -> std::io::Result<()> {
    target.send(signal)?;
    if matches!(signal, libc::SIGTERM | libc::SIGKILL) {
        record(group, ledger, process, signal);
    }
    Ok(())
}

/// Records that this process has sent a signal to a process of a group.
fn record(group: &Group, ledger: &Ledger, process: &ProcessUsage, signal: i32) {
    let held = |usage: &DeviceUsage| usage.charged.saturating_add(usage.suspended);
    let most = process.devices.iter().max_by_key(|usage| held(usage));
    let happening = Happening {
        kind: EventKind::Kill,
        device: most.map(|usage| usage.device),
        process: process.identity,
        bytes: most.map_or(0, held),
        charged: most.map_or(0, |usage| ledger.charged(usage.device)),
        max: u64::MAX,
    };
    let own = Identity::of_self();
    system_log::warn(format_args!(
        "pid {} ({}) of user {} sent signal {signal} to pid {} ({}) of user {} in group {}",
        own.pid,
        own.command(),
        own.uid,
        process.identity.pid,
        process.identity.command(),
        process.identity.uid,
        group.name(),
    ));
    let details = Details {
        cause: Some(Cause::Command),
        by: Some(Holding::new(own, 0)),
        ..Details::default()
    };
    group.record(ledger, &happening, details);
}

/// Processes by pid, start time and pid namespace.
pub type Keys = BTreeSet<(u32, u64, u64)>;

/// Kills all processes of a group, and returns them. Records an event for each that is not among
/// `told`, and adds it there. Fails if the ledger has a slot whose process cannot be found.
pub fn end_all(
    group: &Group,
    ledger: &Ledger,
    targets: &Targets<'_>,
    told: &mut Keys,
) -> Result<Vec<Target>, Failure> {
    let mut processes = ledger.processes(&NoWitness);
    keep_others(&mut processes);
    let (named, unnamed, silent) = targets.all(&processes);
    let mut killed: Vec<Target> = unnamed
        .into_iter()
        .filter(|target| target.send(libc::SIGKILL).is_ok())
        .collect();
    let found = killed.len();
    let (mut missed, mut reached) = (Vec::new(), BTreeSet::new());
    for (process, target) in processes.iter().zip(named) {
        if is_reached(&mut reached, process, &target) {
            continue;
        }
        match target.and_then(|target| target.send(libc::SIGKILL).map(|()| target)) {
            Ok(target) => {
                if told.insert(process.identity.key()) {
                    record(group, ledger, process, libc::SIGKILL);
                }
                killed.push(target);
            }
            Err(error) if targets.is_held(process) => missed.push((process, error)),
            Err(_) => {}
        }
    }
    let Some((process, error)) = missed.into_iter().nth(found) else {
        return Ok(killed);
    };
    let unseen = unseen(&silent).map_or_else(String::new, |line| format!("; {line}"));
    Err(Failure::new(format_args!(
        "cannot kill {process} in group '{group}': {why}{unseen}",
        process = by_own_pid(&process.identity),
        group = groups::of_process(group, process),
        why = unproven(&error, &process.identity)
    )))
}

/// Lists the killed processes that have not ended, and the tracers and frozen cgroups that keep
/// them from ending. Empty if all have ended.
pub fn remaining(killed: &[Target]) -> String {
    fn field<'a>(status: &'a str, key: &str) -> &'a str {
        proc::field(status, key).unwrap_or_default()
    }
    let described = |target: &Target| {
        let threads = target.threads();
        let name = field(threads.first()?, "Name");
        let mut tracers = threads.iter().map(|status| field(status, "TracerPid"));
        let tracer = tracers.find(|tracer| !matches!(*tracer, "" | "0"));
        let by_tracer = |tracer: &str| {
            let about = |task: &str| proc::read(format!("/proc/{task}/status")).unwrap_or_default();
            // TracerPid may be the id of any thread of the tracer.
            let thread = about(tracer);
            let tracer = Some(field(&thread, "Tgid"))
                .filter(|pid| !pid.is_empty())
                .unwrap_or(tracer);
            let process = about(tracer);
            let name = field(&process, "Name");
            format!(", kept from ending by its tracer {tracer} ({name})")
        };
        let by_cgroup = || ", kept from ending by its cgroup, which is frozen: thaw it".to_owned();
        let is_frozen = obstacles::is_frozen(target.pid);
        let held = tracer.map(by_tracer).or(is_frozen.then(by_cgroup));
        let held = held.unwrap_or_default();
        Some(format!("{} ({name}){held}", target.pid))
    };
    let all: Vec<String> = killed.iter().filter_map(described).collect();
    match all.len().saturating_sub(REMAINING) {
        0 => all.join("; "),
        more => format!("{}; and {more} more", all[..REMAINING].join("; ")),
    }
}

/// The maximum number of processes that [`remaining`] lists.
const REMAINING: usize = 8;
