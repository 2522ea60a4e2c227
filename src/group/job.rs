//! The process that a job's group was made for, in the file `job` of the group's directory.
//!
//! `gpulimit run` becomes the command, which may use CUDA much later or never, and holds nothing until then. The group stays as long
//! as that process lives.

use super::descent::Descent;
use super::directory::Directory;
use super::{Group, GroupError, JOB, Kind};
use crate::held_signals;
use crate::ledger::{Identity, Ledger, NoWitness, process_exists};
use crate::proc;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;

const HEAD: &str = "gpulimit-job 1";
/// Bytes; a longer file is none of ours.
const LONGEST: u64 = 256;
/// The inode of the first pid namespace of every machine (`PROC_PID_INIT_INO` of the kernel), which sees all processes.
const FIRST_PID_NS: u64 = 0xeffffffc;

/// Whether the process that a group was made for lives.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum JobState {
    /// It lives.
    Lives,
    /// It has ended, or there never was one.
    Ended,
    /// It is in a pid namespace whose processes this one does not see, so that it may live.
    Unseen,
}

/// A process, so that it is never taken for another one.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Job {
    /// The machine's boot; "-" unknown.
    boot: String,
    /// In its own pid namespace.
    pid: u32,
    /// Inode; 0 unknown.
    pid_ns: u64,
    /// In clock ticks since boot, as its time namespace counts them; 0 unknown.
    start: u64,
    /// Inode; 0 unknown. Start times of different time namespaces cannot be compared.
    time_ns: u64,
}

impl Job {
    fn of_self() -> Self {
        let own = Identity::of_self();
        Self {
            boot: boot(),
            pid: own.pid,
            pid_ns: own.pid_ns,
            start: own.start_time,
            time_ns: namespace("time"),
        }
    }

    fn to_text(&self) -> String {
        let Self {
            boot,
            pid,
            pid_ns,
            start,
            time_ns,
        } = self;
        format!("{HEAD}\n{boot} {pid} {pid_ns} {start} {time_ns}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let line = text.strip_prefix(HEAD)?.strip_prefix('\n')?;
        let mut words = line.strip_suffix('\n')?.split(' ');
        let boot = words.next()?.to_owned();
        let mut number = || words.next()?.parse::<u64>().ok();
        let job = Self {
            boot,
            pid: u32::try_from(number()?).ok()?,
            pid_ns: number()?,
            start: number()?,
            time_ns: number()?,
        };
        words.next().is_none().then_some(job)
    }

    /// What became of it, as seen by the caller.
    fn state(&self) -> JobState {
        let known = |one: &str, other: &str| one != "-" && other != "-";
        let now = boot();
        if known(&self.boot, &now) && self.boot != now {
            return JobState::Ended;
        }
        let own_pid_ns = namespace("pid");
        if self.pid_ns != 0 && self.pid_ns == own_pid_ns {
            return self.state_of(self.pid);
        }
        // Where `/proc` hides the processes of others it hides the first one, too.
        if own_pid_ns != FIRST_PID_NS || fs::read("/proc/1/stat").is_err() {
            return JobState::Unseen;
        }
        let Ok(entries) = fs::read_dir("/proc") else {
            return JobState::Unseen;
        };
        let mut pids = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        if pids.any(|pid| self.may_be(pid) && self.state_of(pid) == JobState::Lives) {
            JobState::Lives
        } else {
            JobState::Ended
        }
    }

    /// Whether the process that has this pid here may have the recorded one in its own namespace.
    fn may_be(&self, pid: u32) -> bool {
        let status = proc::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let innermost = pids.and_then(|pids| pids.split_ascii_whitespace().next_back());
        if innermost.and_then(|pid| pid.parse().ok()) != Some(self.pid) {
            return false;
        }
        // The namespace of another user's process is not told.
        let there = fs::metadata(format!("/proc/{pid}/ns/pid"));
        self.pid_ns == 0 || there.map_or(true, |ns| ns.ino() == self.pid_ns)
    }

    /// What became of the process that has, or had, this pid in the caller's namespace.
    fn state_of(&self, pid: u32) -> JobState {
        let stat = proc::read(format!("/proc/{pid}/task/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, may have anything in it.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = fields.split_ascii_whitespace();
        let lives = match fields.next() {
            // Hidden from the caller, or gone.
            None => process_exists(pid),
            // Other threads go on after the first one has ended.
            Some("Z" | "X")
                if fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) <= 1 =>
            {
                false
            }
            Some(_) => {
                let start = fields.nth(18).and_then(|start| start.parse().ok());
                start.is_none_or(|start: u64| start == self.start)
                    || self.start == 0
                    || self.time_ns != namespace("time")
            }
        };
        if lives {
            JobState::Lives
        } else {
            JobState::Ended
        }
    }
}

impl Group {
    /// Says that the group was made for the calling process, and for the program that this process becomes by `exec`.
    pub fn record_job(&self) -> Result<(), GroupError> {
        let descent = Descent::to(self)?;
        let directory = &descent.directory;
        let recorded = match directory.remove_file(JOB) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => directory.create_file(JOB, 0o644),
        };
        recorded
            .and_then(|mut file| {
                let text = Job::of_self().to_text();
                held_signals::during(|| file.write_all(text.as_bytes()))
            })
            .map_err(|error| self.failed("create", error))
    }

    /// Takes the record away: the process does not become a command, or the command has ended.
    pub fn forget_job(&self) -> Result<(), GroupError> {
        let descent = Descent::to(self)?;
        match descent.directory.remove_file(JOB) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed("change", error)),
            _ => Ok(()),
        }
    }

    /// Whether this is the group of a job that has ended, with all that ran in it: the next clean-up removes it.
    pub fn has_ended(&self) -> bool {
        if self.kind() != Kind::Job {
            return false;
        }
        let state = Directory::open(&self.path).map(|directory| state(&directory));
        if state.is_ok_and(|state| state != JobState::Ended) {
            return false;
        }
        match self.clean(&NoWitness) {
            Ok(left) if left.draining > 0 => return false,
            _ => {}
        }
        // One that cannot be looked at may be of another version.
        match self.ledger() {
            Ok(ledger) => !ledger.has_live(),
            Err(_) => !Ledger::is_used(&self.ledger_path()),
        }
    }
}

/// What became of the process that the group in this directory was made for.
pub(super) fn state(directory: &Directory) -> JobState {
    let mut text = String::new();
    let read = directory
        .open_file(JOB, false)
        .and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    match (read, Job::parse(&text)) {
        (Ok(_), Some(job)) => job.state(),
        (Err(error), _) if error.kind() == ErrorKind::PermissionDenied => JobState::Unseen,
        // Its writer was killed, or the group has none.
        _ => JobState::Ended,
    }
}

/// The inode of a namespace of this process; 0 unknown.
fn namespace(kind: &str) -> u64 {
    fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |about| about.ino())
}

fn boot() -> String {
    let id: io::Result<String> = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    match id.as_deref().map(str::trim) {
        Ok(id) if !id.is_empty() && !id.contains(' ') => id.into(),
        _ => "-".into(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A process and what is recorded of it.
    fn job_of(child: &Child) -> Job {
        let pid = child.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("there");
        let (_, rest) = stat.rsplit_once(')').expect("a name");
        let start = rest.split_whitespace().nth(19).expect("a field");
        Job {
            pid,
            start: start.parse().expect("a number"),
            ..Job::of_self()
        }
    }

    fn cat() -> Child {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).spawn().expect("started")
    }

    #[test]
    fn a_record_is_read_as_it_was_written_or_not_at_all() {
        let job = Job::of_self();
        let text = job.to_text();
        assert_eq!(Job::parse(&text), Some(job.clone()));
        for end in 0..text.len() {
            assert_eq!(Job::parse(&text[..end]), None, "{end}");
        }
        assert_eq!(Job::parse(&format!("{text}more\n")), None);
        assert!(text.len() < LONGEST as usize);
        assert_eq!(job.state(), JobState::Lives);
    }

    #[test]
    fn a_process_that_ended_does_not_live_reaped_or_not() {
        let mut child = cat();
        let job = job_of(&child);
        assert_eq!(job.state(), JobState::Lives);
        child.kill().expect("killed");
        let start = std::time::Instant::now();
        while job.state() == JobState::Lives {
            assert!(start.elapsed().as_secs() < 60, "it is a zombie");
        }
        child.wait().expect("reaped");
        assert_eq!(job.state(), JobState::Ended);
    }

    #[test]
    fn another_process_of_the_same_pid_is_another_one() {
        let own = Job::of_self();
        let later = Job {
            start: own.start + 1,
            ..own.clone()
        };
        assert_eq!(later.state(), JobState::Ended);
        let shifted = Job {
            time_ns: own.time_ns + 1,
            ..later
        };
        assert_eq!(shifted.state(), JobState::Lives, "not comparable");
        let before = Job {
            boot: "0-0".into(),
            ..own.clone()
        };
        assert_eq!(before.state(), JobState::Ended);
        let unknown = Job {
            boot: "-".into(),
            ..own
        };
        assert_eq!(unknown.state(), JobState::Lives);
    }

    #[test]
    fn a_process_of_another_namespace_is_judged_only_where_all_are_seen() {
        let own = Job::of_self();
        let elsewhere = Job {
            pid_ns: own.pid_ns + 1,
            ..own.clone()
        };
        let expected = if own.pid_ns == FIRST_PID_NS && fs::read("/proc/1/stat").is_ok() {
            JobState::Ended
        } else {
            JobState::Unseen
        };
        assert_eq!(elsewhere.state(), expected);
        assert!(own.may_be(own.pid) && !elsewhere.may_be(own.pid));
    }
}
