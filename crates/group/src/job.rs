//! The file `job` in a group's directory: the record of the process for which the group was made.
//!
//! `gpulimit run` records itself, and then becomes the command by `exec`. The group stays as long
//! as the recorded process lives, even before the command uses CUDA.

use super::carriers;
use super::descent::Descent;
use super::directory::Directory;
use super::{Group, GroupError, JOB, Kind};
use gpulimit_base::held_signals;
use gpulimit_base::identity::{Identity, SeenProcess, innermost_pid};
use gpulimit_base::proc;
use gpulimit_base::process::{self, FIRST_PID_NS};
use gpulimit_ledger::{Ledger, NoWitness};
use std::cell::OnceCell;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;

const HEAD: &str = "gpulimit-job 1";
/// The most bytes that are read from a record; gpulimit writes shorter records.
const LONGEST: u64 = 256;

/// Whether the process for which a group was made still lives.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum JobState {
    /// The process lives.
    Lives,
    /// The process has ended, or the group has no record of a process.
    Ended,
    /// Unknown: the caller cannot see the processes in the recorded process's pid namespace.
    Unseen,
}

/// The process for which a job's group was made. Its pid may later belong to another process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Job {
    /// The id of the machine's current boot; "-" where the id is unknown.
    boot: String,
    /// The pid in the process's own pid namespace.
    pid: u32,
    /// The inode of the process's pid namespace; 0 where it is unknown.
    pid_ns: u64,
    /// The start time of the process in clock ticks since boot, in its time namespace; 0 if
    /// unknown.
    start: u64,
    /// The inode of the process's time namespace, because start times of different namespaces
    /// cannot be compared; 0 if unknown.
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
        format!(
            "{HEAD}\n{} {} {} {} {}\n",
            self.boot, self.pid, self.pid_ns, self.start, self.time_ns
        )
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

    /// Returns whether the recorded process lives, as far as the caller can see.
    fn state(&self, everybody: &Everybody) -> JobState {
        let known = |one: &str, other: &str| one != "-" && other != "-";
        let now = boot();
        if known(&self.boot, &now) && self.boot != now {
            return JobState::Ended;
        }
        let own_pid_ns = namespace("pid");
        let lives = if self.pid_ns != 0 && self.pid_ns == own_pid_ns {
            Seen::by_pid(self.pid).is_some_and(|seen| self.has_started(seen.start))
        } else if let Some(processes) = everybody.all() {
            processes.iter().any(|(pid, seen)| {
                *pid == self.pid && self.may_be_in(seen.pid_ns) && self.has_started(seen.start)
            })
        } else {
            return JobState::Unseen;
        };
        if lives {
            JobState::Lives
        } else {
            JobState::Ended
        }
    }

    /// Returns whether the recorded process can be in the pid namespace `pid_ns`; `None` is an
    /// unknown namespace.
    fn may_be_in(&self, pid_ns: Option<u64>) -> bool {
        self.pid_ns == 0 || pid_ns.is_none_or(|there| there == self.pid_ns)
    }

    /// Returns whether a process that started at the time `then` can be the recorded process.
    fn has_started(&self, then: Option<u64>) -> bool {
        then.is_none_or(|then| then == self.start)
            || self.start == 0
            || self.time_ns != namespace("time")
    }
}

/// A living process.
struct Seen {
    /// The inode of the process's pid namespace; `None` where the kernel does not show it.
    pid_ns: Option<u64>,
    /// The start time of the process in clock ticks since boot; `None` where the kernel does not
    /// show it.
    start: Option<u64>,
}

impl Seen {
    /// Finds the process that has this pid in the caller's pid namespace; `None` where the process
    /// has ended.
    fn by_pid(pid: u32) -> Option<Self> {
        let status = proc::status(pid);
        // The file cannot be read if the process has ended or if `/proc` hides the process.
        if status.map_or_else(|_| !process::exists(pid), |status| proc::has_ended(&status)) {
            return None;
        }
        let pid_ns = fs::metadata(format!("/proc/{pid}/ns/pid")).ok();
        Some(Self {
            pid_ns: pid_ns.map(|about| about.ino()),
            start: SeenProcess::by_pid(pid).start_time(),
        })
    }
}

/// All living processes, with pids in their own pid namespaces. Read the jobs' records before this
/// list, because the list lacks later processes.
#[derive(Default)]
pub(super) struct Everybody(OnceCell<Option<Vec<(u32, Seen)>>>);

impl Everybody {
    /// Returns all living processes; `None` where the caller does not see all processes of the
    /// machine.
    fn all(&self) -> Option<&[(u32, Seen)]> {
        self.0.get_or_init(Self::look).as_deref()
    }

    fn look() -> Option<Vec<(u32, Seen)>> {
        #[cfg(all(test, not(loom)))]
        tests::LOOKS.with(|looks| looks.set(looks.get() + 1));
        // A `/proc` that hides the processes of other users also hides process 1.
        if namespace("pid") != FIRST_PID_NS || fs::read("/proc/1/stat").is_err() {
            return None;
        }
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(pid) = pid
                && let Some(own) = pid_in_its_namespace(pid)
                && let Some(seen) = Seen::by_pid(pid)
            {
                all.push((own, seen));
            }
        }
        Some(all)
    }
}

/// Returns the pid that a process has in its own pid namespace, given the pid that the caller sees.
fn pid_in_its_namespace(pid: u32) -> Option<u32> {
    innermost_pid(&fs::read(format!("/proc/{pid}/status")).ok()?)
}

/// The record of a job, read from a group's directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Record {
    Job(Job),
    /// The group has no complete record of a job, for example because its writer was killed.
    None,
    /// The caller may not read the record, or another program has a lease on the record's file.
    Hidden,
}

impl Record {
    pub fn of(directory: &Directory) -> Self {
        let mut text = String::new();
        let read = directory
            .open_file(JOB, false)
            .and_then(|file| file.take(LONGEST).read_to_string(&mut text));
        match (read, Job::parse(&text)) {
            (Ok(_), Some(job)) => Self::Job(job),
            (Err(error), _)
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::WouldBlock
                ) =>
            {
                Self::Hidden
            }
            _ => Self::None,
        }
    }

    /// Returns whether the job's process lives. Read the record before `everybody` lists the
    /// processes: the list lacks processes that start later.
    pub fn state(&self, everybody: &Everybody) -> JobState {
        match self {
            Self::Job(job) => job.state(everybody),
            Self::None => JobState::Ended,
            Self::Hidden => JobState::Unseen,
        }
    }
}

/// The records of the jobs of several groups, with one list of all processes for all of them.
pub(super) struct Records {
    records: Vec<Record>,
    everybody: Everybody,
}

impl Records {
    pub fn of(groups: &[Group]) -> Self {
        let record = |group: &Group| {
            let is_job = group.kind() == Kind::Job;
            let directory = is_job.then(|| Directory::open(&group.path).ok()).flatten();
            directory.map_or(Record::None, |directory| Record::of(&directory))
        };
        Self {
            records: groups.iter().map(record).collect(),
            everybody: Everybody::default(),
        }
    }

    /// Iterates over the records in the order of the groups, each with the state of its job.
    pub fn states(&self) -> impl Iterator<Item = (&Record, JobState)> {
        let state = |record: &Record| record.state(&self.everybody);
        self.records
            .iter()
            .map(move |record| (record, state(record)))
    }
}

impl Group {
    /// Records that the group was made for the calling process, or for the program that this
    /// process becomes by `exec`.
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

    /// Removes the record of the job. Called when the job's command has ended or did not start.
    pub fn forget_job(&self) -> Result<(), GroupError> {
        let descent = Descent::to(self)?;
        match descent.directory.remove_file(JOB) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed("change", error)),
            _ => Ok(()),
        }
    }

    /// Returns whether this is a job's group whose job and members have ended, and which no process
    /// could join. The next clean-up removes such a group.
    pub fn has_ended(&self) -> bool {
        Self::ended(std::slice::from_ref(self)) == [true]
    }

    /// Returns the results of [`Group::has_ended`] for several groups, in the same order.
    pub fn ended(groups: &[Self]) -> Vec<bool> {
        Self::unused(groups).iter().map(Option::is_some).collect()
    }

    /// Returns the records of those of `groups` that are jobs' groups which no process uses, or
    /// could join; `None` for the others.
    pub(super) fn unused(groups: &[Self]) -> Vec<Option<Record>> {
        let records = Records::of(groups);
        let record = |(group, (record, state)): (&Self, (&Record, _))| {
            let has_ended = group.kind() == Kind::Job && state == JobState::Ended;
            (has_ended && !group.may_have_members()).then(|| record.clone())
        };
        let mut unused: Vec<_> = groups.iter().zip(records.states()).map(record).collect();
        let candidates = groups
            .iter()
            .zip(&unused)
            .filter(|(_, record)| record.is_some());
        let candidates: Vec<_> = candidates.map(|(group, _)| group).collect();
        let mut carriers = carriers::of(&candidates).into_iter();
        for (group, record) in groups.iter().zip(&mut unused) {
            // A carrier may be a forked child of a dead member. Then the driver keeps the member's
            // memory, which `has_drained` cannot see: it asks only the time. So the carrier is
            // looked for first.
            record.take_if(|_| carriers.next().flatten().is_some() || !group.has_drained());
        }
        unused
    }

    /// Returns whether the group may have living members.
    fn may_have_members(&self) -> bool {
        match self.ledger() {
            Ok(ledger) => ledger.has_live(),
            // The group may have members: the lease keeps gpulimit from reading the ledger.
            Err(error) if error.is_leased() => true,
            // A ledger that cannot be opened may be of another version.
            Err(_) => Ledger::is_used(&self.ledger_path()),
        }
    }

    /// Returns whether the driver has had time to free the memory of the dead members.
    fn has_drained(&self) -> bool {
        !matches!(self.clean(&NoWitness), Ok(left) if left.draining > 0)
    }
}

/// Returns the inode of a namespace that this process is in; 0 where it is unknown.
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
    use super::super::Root;
    use super::*;
    use gpulimit_limits::LimitSet;
    use gpulimit_support::{Running, Scratch, wait_until};
    use std::cell::Cell;
    use std::process::{Child, Command, Stdio};

    thread_local! {
        /// The number of times that this thread has listed all processes.
        pub(super) static LOOKS: Cell<u32> = const { Cell::new(0) };
    }

    /// Returns a record of this child process.
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

    fn cat() -> Running {
        Running::start(Command::new("cat").stdin(Stdio::piped()))
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
        assert_eq!(job.state(&Everybody::default()), JobState::Lives);
    }

    #[test]
    fn an_ended_process_does_not_live_even_as_a_zombie() {
        let mut child = cat();
        let job = job_of(&child);
        assert_eq!(job.state(&Everybody::default()), JobState::Lives);
        child.kill().expect("killed");
        wait_until("a zombie does not live", || {
            job.state(&Everybody::default()) == JobState::Ended
        });
        child.wait().expect("reaped");
        assert_eq!(job.state(&Everybody::default()), JobState::Ended);
    }

    #[test]
    fn a_process_with_a_reused_pid_is_another_process() {
        let own = Job::of_self();
        let later = Job {
            start: own.start + 1,
            ..own.clone()
        };
        assert_eq!(later.state(&Everybody::default()), JobState::Ended);
        let shifted = Job {
            time_ns: own.time_ns + 1,
            ..later
        };
        assert_eq!(
            shifted.state(&Everybody::default()),
            JobState::Lives,
            "not comparable"
        );
        let before = Job {
            boot: "0-0".into(),
            ..own.clone()
        };
        assert_eq!(before.state(&Everybody::default()), JobState::Ended);
        let unknown = Job {
            boot: "-".into(),
            ..own
        };
        assert_eq!(unknown.state(&Everybody::default()), JobState::Lives);
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
        assert_eq!(elsewhere.state(&Everybody::default()), expected);
        let seen = Seen::by_pid(own.pid).expect("alive");
        assert!(own.may_be_in(seen.pid_ns) && !elsewhere.may_be_in(seen.pid_ns));
        assert_eq!(pid_in_its_namespace(own.pid), Some(own.pid));
    }

    #[test]
    fn jobs_of_other_namespaces_cost_one_look_at_all_processes() {
        let scratch = Scratch::new();
        let root = Root::at(scratch.at("root")).expect("a root");
        let own = Job::of_self();
        let gone = Job {
            pid_ns: own.pid_ns + 1,
            ..own
        };
        root.create("lab", &LimitSet::default()).expect("created");
        let names: Vec<_> = (0..8).map(|number| format!("lab/run-{number}-1")).collect();
        let make = || {
            for name in &names {
                let made = root.create(name, &LimitSet::default()).expect("created");
                fs::write(made.group.path().join(JOB), gone.to_text()).expect("written");
            }
        };
        let looks = |what: &dyn Fn()| {
            let before = LOOKS.get();
            what();
            LOOKS.get() - before
        };
        make();
        let all = root.groups().expect("listed");
        assert_eq!(looks(&|| drop(Group::ended(&all))), 1);
        if Everybody::default().all().is_none() {
            return gpulimit_support::skip("/proc does not show all processes");
        }
        let collected = looks(&|| drop(root.collect_garbage()));
        assert_eq!((collected, root.groups().expect("listed").len()), (1, 1));
        make();
        let removed = looks(&|| root.remove("lab").expect("removed"));
        assert_eq!((removed, root.groups().expect("listed").len()), (1, 0));
    }
}
