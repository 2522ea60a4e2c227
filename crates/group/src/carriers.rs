//! Finds living processes that could still join a job's group: those that carry the group's name in
//! their environment, from the job's own process on.
//!
//! `/proc/PID/environ` is the environment at the start of the program. A process whose environment
//! cannot be read there, or that has overwritten it (`setproctitle`), counts if it can be of the
//! job. Processes that `/proc` hides are not seen. Their programs make the group again, with the
//! limits that `gpulimit run` has handed down.

use super::{Group, look, name};
use gpulimit_base::identity::SeenProcess;
use gpulimit_base::{order, proc};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// How often the list of all processes is read until it has no new process. A machine that starts
/// processes all the time keeps the group until the next clean-up.
const LISTS: usize = 16;
/// The most processes whose environment takes so long to read that its reader is ended.
const MAX_SLOW: usize = 2;
/// How often a process is looked at while its environment is unknown, and the first pause between
/// two looks, which doubles: during `exec` a process has no environment for a moment, on a busy
/// machine for longer.
const LOOKS: u32 = 6;
const EXEC: Duration = Duration::from_millis(1);
/// The bytes of an environment that are read at a time: more than the name of a group.
const CHUNK: usize = 16 << 10;
/// The beginning of the variable that names a program's group.
const VARIABLE: &[u8] = b"GPULIMIT_GROUP=";

/// Returns, for each job's group, the pid of a process that could still join it.
pub(super) fn of(groups: &[&Group]) -> Vec<Option<u32>> {
    if groups.is_empty() {
        return Vec::new();
    }
    let mut jobs: Vec<Job<'_>> = groups.iter().copied().map(Job::of).collect();
    let mut seen = Vec::new();
    for _ in 0..LISTS {
        if jobs.iter().all(|job| job.carrier.is_some()) {
            break;
        }
        // A process may have ended before its environment was read, and may have left children.
        let mut new: Vec<u32> = SeenProcess::numbers().collect();
        new.retain(|pid| seen.binary_search(pid).is_err());
        seen.extend_from_slice(&new);
        order::sort(&mut seen);
        if new.is_empty() {
            return jobs.into_iter().map(|job| job.carrier).collect();
        }
        look_at_all(&new, &mut jobs, LOOKS);
    }
    let me = std::process::id();
    jobs.into_iter()
        .map(|job| job.carrier.or(Some(me)))
        .collect()
}

/// A job's group, and a process that could join it.
struct Job<'a> {
    name: &'a str,
    /// The start time of the job's first process, in clock ticks since boot: descendants are not
    /// older.
    start: u64,
    /// The user whose processes may join the group; `None` for all users.
    user: Option<u32>,
    carrier: Option<u32>,
}

impl<'a> Job<'a> {
    fn of(group: &'a Group) -> Self {
        let name = name::last(group.name());
        let start = name
            .rsplit_once('-')
            .and_then(|(_, start)| start.parse().ok());
        let ledger = fs::symlink_metadata(group.ledger_path()).ok();
        let private = ledger.filter(|about| about.mode() & 0o022 == 0);
        Self {
            name,
            start: start.unwrap_or(0),
            user: private.map(|about| about.uid()),
            carrier: None,
        }
    }

    /// Returns whether no process is known yet that could join the group, and this one can be of
    /// the job.
    fn lacks(&self, process: &Unknown) -> bool {
        self.carrier.is_none() && process.oldest >= self.start && self.admits(&process.users)
    }

    /// Returns whether processes of one of these users may join the group.
    fn admits(&self, users: &[u32]) -> bool {
        self.user.is_none_or(|user| users.contains(&user))
    }
}

/// A process whose environment is unknown.
struct Unknown {
    pid: u32,
    /// The user ids of the process.
    users: Vec<u32>,
    /// The start time of the oldest among the process and its ancestors up to process 1, which does
    /// not count. The first process of an ended job has left its descendants no older ancestor.
    oldest: u64,
}

impl Unknown {
    /// Returns the process if it can be of any job, and of one of these.
    fn of(pid: u32, jobs: &[Job<'_>]) -> Option<Self> {
        let admits = |users: &[u32]| jobs.iter().any(|job| job.admits(users));
        // Root owns the directory of a process that lets nobody look into its memory.
        let owner = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        if pid == 1 || (owner != 0 && !admits(&[owner])) {
            return None;
        }
        let status = proc::status(pid).ok()?;
        // Root owns the files of a zombie, so that its user may not open its environment.
        if proc::has_ended(&status) {
            return None;
        }
        let users = proc::field(&status, "Uid")?.split_whitespace();
        let users: Vec<u32> = users.filter_map(|user| user.parse().ok()).collect();
        if !admits(&users) {
            return None;
        }
        let (mut next, mut parent, mut oldest) = (pid, parent(&status), u64::MAX);
        while next != 1 {
            let start = SeenProcess::by_pid(next).start_time();
            oldest = oldest.min(start.unwrap_or(u64::MAX));
            // Without a parent it is the first of a pid namespace, or was entered from outside.
            next = parent?;
            // If an ancestor has just ended, the process may have belonged to a job.
            let Ok(status) = proc::read(format!("/proc/{next}/status")) else {
                break;
            };
            parent = self::parent(&status);
        }
        Some(Self { pid, users, oldest })
    }
}

fn parent(status: &str) -> Option<u32> {
    let parent = proc::field(status, "PPid")?.parse().ok()?;
    (parent != 0).then_some(parent)
}

/// Looks for processes among `pids` that could join one of the jobs; up to `looks` times at those
/// whose environment is unknown.
fn look_at_all(pids: &[u32], jobs: &mut [Job<'_>], looks: u32) {
    let mut names: Vec<&str> = jobs.iter().map(|job| job.name).collect();
    order::sort(&mut names);
    let carriers: Vec<_> = names.iter().map(|_| AtomicU32::new(0)).collect();
    let look_at = |pid: u32| {
        environment(pid, |name: &[u8]| {
            let found = names.binary_search_by(|each| each.as_bytes().cmp(name));
            if let Some(carrier) = found.ok().and_then(|at| carriers.get(at)) {
                carrier.store(pid, Ordering::Relaxed);
            }
        })
    };
    // Nobody delays a look at this process, and the child may be too slow on a busy machine.
    let own = std::process::id();
    let others = pids.iter().copied();
    let pids: Vec<u32> = others.filter(|pid| *pid != own || !look_at(own)).collect();
    let unknown: Vec<_> = pids.iter().map(|_| AtomicBool::new(false)).collect();
    let next = AtomicUsize::new(0);
    // Runs in another process, which shares this memory: it allocates nothing and takes no lock.
    let look = || {
        loop {
            let at = next.load(Ordering::Relaxed);
            let (Some(pid), Some(unknown)) = (pids.get(at), unknown.get(at)) else {
                return 0;
            };
            if !look_at(*pid) {
                unknown.store(true, Ordering::Relaxed);
            }
            next.store(at + 1, Ordering::Relaxed);
        }
    };
    let mut slow = 0;
    while !matches!(look::in_child(&look), Ok(0)) {
        // The child was ended while it read the environment of this process.
        let at = next.fetch_add(1, Ordering::Relaxed);
        slow += 1;
        let rest = if slow > MAX_SLOW { pids.len() } else { at + 1 };
        for unknown in unknown.get(at..rest).unwrap_or_default() {
            unknown.store(true, Ordering::Relaxed);
        }
        if slow > MAX_SLOW {
            break;
        }
    }
    let unknown = unknown.iter().zip(&pids);
    let unknown = unknown.filter(|(unknown, _)| unknown.load(Ordering::Relaxed));
    let unknown = unknown.filter_map(|(_, pid)| Unknown::of(*pid, jobs));
    let unknown: Vec<_> = unknown.collect();
    for job in jobs.iter_mut().filter(|job| job.carrier.is_none()) {
        let carrier = names
            .binary_search(&job.name)
            .ok()
            .and_then(|at| carriers.get(at));
        job.carrier = carrier
            .map(|pid| pid.load(Ordering::Relaxed))
            .filter(|pid| *pid != 0);
    }
    let left = |process: &&Unknown| jobs.iter().any(|job| job.lacks(process));
    let left: Vec<u32> = (unknown.iter().filter(left).map(|process| process.pid)).collect();
    if !left.is_empty() && looks > 1 {
        std::thread::sleep(EXEC * (1 << LOOKS.saturating_sub(looks)));
        return look_at_all(&left, jobs, looks - 1);
    }
    for job in jobs.iter_mut() {
        let could = unknown.iter().find(|process| job.lacks(process));
        job.carrier = job.carrier.or(could.map(|process| process.pid));
    }
}

/// Calls `found` with each part of the name of the group that a process's environment names.
/// Returns false if the environment is unknown: the caller may not read it, it is empty as during
/// `exec`, or the process has overwritten it. Allocates no memory.
fn environment(pid: u32, found: impl Fn(&[u8])) -> bool {
    let has_ended = |error: &io::Error| {
        let is_gone = || error.raw_os_error() == Some(libc::ESRCH) && !has_threads(pid);
        error.kind() == ErrorKind::NotFound || is_gone()
    };
    let mut file = match File::open(path(pid, "environ", &mut [0; 32])) {
        Ok(file) => file,
        Err(error) => return has_ended(&error),
    };
    let mut text = [0; CHUNK];
    // The bytes of a variable whose end has not been read, and whether its beginning is forgotten.
    let (mut kept, mut is_cut, mut is_empty) = (0, false, true);
    loop {
        let read = match file.read(&mut text[kept..]) {
            // A thread of the kernel, which has no program, has no environment either.
            Ok(0) if is_empty => {
                let program = fs::metadata(path(pid, "exe", &mut [0; 32]));
                return program.is_err_and(|error| has_ended(&error)) && !has_threads(pid);
            }
            Ok(0) => return kept == 0 && !is_cut,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return has_ended(&error),
        };
        is_empty = false;
        let mut rest = &text[..kept + read];
        while let Ok(variable) = CStr::from_bytes_until_nul(rest) {
            let variable = variable.to_bytes();
            rest = &rest[variable.len() + 1..];
            match variable.strip_prefix(VARIABLE) {
                _ if is_cut => is_cut = false,
                Some(name) => name.split(|byte| *byte == b'/').for_each(&found),
                None if variable.is_empty() => return false,
                None => {}
            }
        }
        let from = kept + read - rest.len();
        kept = rest.len();
        text.copy_within(from..from + kept, 0);
        if kept == CHUNK {
            (kept, is_cut) = (0, true);
        }
    }
}

/// Returns whether a process without a memory map runs on: its first thread has ended by
/// `pthread_exit`. The links of the directory `task` are two and one for each thread, with the
/// first, which stays until the last one ends.
fn has_threads(pid: u32) -> bool {
    let threads = fs::metadata(path(pid, "task", &mut [0; 32]));
    threads.is_ok_and(|threads| threads.nlink() > 3)
}

/// Writes the path of a file in `/proc/PID` into `buffer`.
fn path<'a>(pid: u32, file: &str, buffer: &'a mut [u8; 32]) -> &'a str {
    let mut rest = &mut buffer[..];
    let _ = write!(rest, "/proc/{pid}/{file}");
    let length = 32 - rest.len();
    std::str::from_utf8(&buffer[..length]).unwrap_or_default()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use gpulimit_base::identity::Identity;
    use gpulimit_support::{Running, Scratch, executable, wait_until};
    use std::process::{Command, Stdio};

    /// Returns a job with this name, whose first process started at this time.
    fn job(name: &str, start: u64) -> Job<'_> {
        let (user, carrier) = (None, None);
        Job {
            name,
            start,
            user,
            carrier,
        }
    }

    /// Returns whether a look at one process finds that it could join the job.
    fn finds(job: Job<'_>, pid: u32) -> bool {
        let mut jobs = [job];
        look_at_all(&[pid], &mut jobs, LOOKS);
        assert!(jobs[0].carrier.is_none_or(|carrier| carrier == pid));
        jobs[0].carrier.is_some()
    }

    /// Starts a program that ends with its standard input, with these variables only, and waits
    /// until they can be read: the parent goes on before `exec` has written them.
    fn start(program: &str, variables: &[(&str, &str)]) -> Running {
        let mut command = Command::new(program);
        command.env_clear().envs(variables.iter().copied());
        let process = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let environment = format!("/proc/{}/environ", process.id());
        wait_until("its environment is there", || {
            variables.is_empty() || fs::read(&environment).is_ok_and(|text| !text.is_empty())
        });
        process
    }

    #[test]
    fn a_process_with_the_name_of_the_group_in_its_environment_is_found() {
        let carrier = start("cat", &[("A", "b"), ("GPULIMIT_GROUP", "lab/run-7-8")]);
        let pid = carrier.id();
        for (name, is_carried) in [("run-7-8", true), ("run-7-80", false), ("run-7-", false)] {
            assert_eq!(finds(job(name, u64::MAX), pid), is_carried, "{name}");
        }
        let mut jobs = ["run-1-1", "run-7-8", "job-7-8"].map(|name| job(name, u64::MAX));
        look_at_all(&[std::process::id(), pid], &mut jobs, LOOKS);
        assert_eq!(jobs.map(|job| job.carrier), [None, Some(pid), None]);
        drop(carrier);
        assert!(!finds(job("run-7-8", 0), pid), "it has ended");
    }

    #[test]
    fn a_name_anywhere_in_a_long_environment_is_found() {
        for before in [
            0,
            CHUNK - 40,
            CHUNK - 30,
            CHUNK - 25,
            CHUNK,
            5 * CHUNK - 400,
            90_000,
        ] {
            let long = "x".repeat(before);
            let carrier = start("cat", &[("A", &long), ("GPULIMIT_GROUP", "run-7-8")]);
            assert!(finds(job("run-7-8", u64::MAX), carrier.id()), "{before}");
        }
    }

    #[test]
    fn an_overwritten_environment_counts_if_it_can_be_of_the_job() {
        let source = "#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\
            extern char **environ;\n\
            int main(void) { char **last = environ; while (last[1]) last++;\n\
            memset(environ[0], 0, *last + strlen(*last) - environ[0]);\n\
            puts(\"overwritten\"); fflush(stdout); return getchar() != EOF; }\n";
        let scratch = Scratch::new();
        let program = executable::compiled(&scratch, "overwrites", source, &[]);
        let variables = [("GPULIMIT_GROUP", "run-7-8"), ("MORE", "text")];
        let mut process = start(program.to_str().expect("text"), &variables);
        let pid = process.id();
        let own = Identity::own_start_time();
        wait_until("it has overwritten its environment", || {
            let text = fs::read(format!("/proc/{pid}/environ")).expect("there");
            !text.is_empty() && text.iter().all(|byte| *byte == 0)
        });
        assert!(
            finds(job("run-7-8", 0), pid),
            "it is as young as all its ancestors"
        );
        assert!(
            !finds(job("run-7-8", own + 1), pid),
            "its parent is older than the job"
        );
        let others = Job {
            user: Some(u32::MAX - 1),
            ..job("run-7-8", 0)
        };
        assert!(!finds(others, pid), "it may not join the group");
        drop(process.stdin.take());
        process.wait().expect("ended");
    }

    #[test]
    fn threads_of_the_kernel_and_ended_processes_count_for_nothing() {
        let mut zombie = start("true", &[]);
        wait_until("it has ended", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", zombie.id()));
            stat.is_ok_and(|stat| stat.contains(") Z "))
        });
        assert!(!finds(job("run-7-8", 0), zombie.id()));
        zombie.wait().expect("reaped");
        // A program whose first thread has ended runs on, and its environment is hidden.
        let runs_on = Running::without_first_thread();
        assert!(finds(job("run-7-8", 0), runs_on.id()));
        // The second process of a machine starts the threads of the kernel.
        if fs::read("/proc/2/comm").is_ok_and(|name| name == b"kthreadd\n") {
            assert!(!finds(job("run-7-8", 0), 2));
        }
    }

    #[test]
    fn an_orphan_is_found_among_all_processes() {
        let scratch = Scratch::new();
        let root = crate::Root::at(scratch.at("root")).expect("a root");
        let limits = gpulimit_limits::LimitSet::default();
        let created = root.create("run-99-1", &limits).expect("created");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "exec 3<&0; setsid cat <&3 & echo $!"])
            .env("GPULIMIT_GROUP", "run-99-1");
        let mut shell = Running::start(shell.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut input = shell.stdin.take().expect("piped");
        input.write_all(b"cat runs\n").expect("written");
        let out = std::io::BufReader::new(shell.stdout.take().expect("piped"));
        // The shell and `cat` print a line each, in any order.
        let lines = std::io::BufRead::lines(out).take(2).map(Result::unwrap);
        let orphan = lines.filter_map(|line| line.parse().ok()).last();
        shell.wait().expect("ended");
        assert_eq!(of(&[&created.group]), [orphan]);
        drop(input);
        wait_until("the orphan has ended", || of(&[&created.group]) == [None]);
    }
}
