//! Identities of processes: as a process describes itself, and as `/proc` shows other processes.

use crate::escaped::is_printable;
use crate::{interrupted, process};
use std::fmt;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process's description of itself, for display and driver queries. Only the process's file lock
/// shows whether the process is alive.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// The pid in the process's own pid namespace.
    pub pid: u32,
    /// Inode of the process's pid namespace, `/proc/self/ns/pid`; 0 if unknown.
    pub pid_ns: u64,
    /// Start time of the process in clock ticks since boot, field 22 of `/proc/self/stat`; 0 if
    /// unknown.
    pub start_time: u64,
    /// Real user id.
    pub uid: u32,
    /// The program's name, padded with zeros. The arguments are not stored: they may hold secrets,
    /// and all members can read the ledger.
    pub command: [u8; 64],
}

impl Identity {
    /// Returns the identity of the calling process. Fields that `/proc` does not show are 0.
    pub fn of_self() -> Self {
        let (mut line, mut name) = ([0; 512], [0; 64]);
        let line = head("/proc/self/cmdline", &mut line);
        let name = head("/proc/self/comm", &mut name);
        Self {
            pid: std::process::id(),
            pid_ns: process::pid_ns(),
            start_time: Self::own_start_time(),
            uid: process::uid(),
            command: program(line, name),
        }
    }

    /// Returns the name and the user of another process of this pid namespace, as `/proc` shows
    /// them: the owner of its directory there. The other fields are 0.
    pub fn of_other(pid: u32) -> Self {
        let mut name = [0; 64];
        let name = head(format!("/proc/{pid}/comm"), &mut name);
        Self {
            pid,
            pid_ns: 0,
            start_time: 0,
            uid: fs::metadata(format!("/proc/{pid}")).map_or(u32::MAX, |about| about.uid()),
            command: program(&[], name),
        }
    }

    /// Returns the start time of the calling process, as in [`Identity::start_time`].
    pub fn own_start_time() -> u64 {
        let mut stat = [0; 1024];
        let mut of = |path: &str| start_time(head(path, &mut stat));
        // If `/proc` belongs to an outer pid namespace, the path with the process's own pid does
        // not exist.
        of(&first_thread("self", std::process::id()))
            .or_else(|| of("/proc/self/stat"))
            .unwrap_or(0)
    }

    /// Returns whether the process has been killed or is exiting, and will soon drop its file lock.
    /// False if unknown.
    pub fn is_ending(&self, own_pid_ns: u64) -> bool {
        if self.pid_ns != own_pid_ns || own_pid_ns == 0 {
            return false;
        }
        let mut stat = [0; 1024];
        let stat = head(first_thread(self.pid, self.pid), &mut stat);
        if stat.is_empty() {
            // Either the process was reaped and will soon drop its file lock, or `/proc` hides the
            // processes of other users.
            return !process::exists(self.pid);
        }
        if start_time(stat) != Some(self.start_time) && has_own_clock(self.pid) == Some(true) {
            return true;
        }
        is_exiting(stat) && !lives_on(self.pid)
    }

    /// Returns whether the process lives, perhaps as another program (`exec`). False if unknown.
    pub fn lives(&self, own_pid_ns: u64) -> bool {
        if self.pid_ns != own_pid_ns || own_pid_ns == 0 || self.start_time == 0 {
            return false;
        }
        let mut stat = [0; 1024];
        let stat = head(first_thread(self.pid, self.pid), &mut stat);
        start_time(stat) == Some(self.start_time) && (!is_exiting(stat) || lives_on(self.pid))
    }

    /// Returns whether another process has the pid by now. False if unknown.
    pub fn is_replaced(&self) -> bool {
        let mut stat = [0; 1024];
        let stat = head(first_thread(self.pid, self.pid), &mut stat);
        start_time(stat).is_some_and(|start| start != self.start_time)
    }

    /// Returns whether both identities belong to the same process, even if the process called
    /// `exec` in between.
    pub fn is_same(&self, other: &Self) -> bool {
        self.key() == other.key() && self.start_time != 0
    }

    /// Returns what tells a process from all others: the pid, its PID namespace and the start time.
    /// The start time is 0 if it is unknown.
    pub const fn key(&self) -> (u32, u64, u64) {
        (self.pid, self.pid_ns, self.start_time)
    }

    /// Returns the name of the process's program for display: characters that a terminal obeys or
    /// does not show, and bytes that are not UTF-8, become `?`. Does not allocate.
    pub fn command(&self) -> impl fmt::Display + '_ {
        Command(&self.command)
    }

    /// Returns the start of the command line of process `pid`; `None` if empty or unreadable. The
    /// process's user can block this call forever.
    pub fn command_line(pid: u32) -> Option<[u8; 64]> {
        let mut line = [0; 512];
        match head(format!("/proc/{pid}/cmdline"), &mut line) {
            [] => None,
            line => Some(command(line)),
        }
    }

    /// Returns this identity with the program name from [`Self::command_line`]; unchanged if the
    /// pid now belongs to another process.
    pub fn with_command(self, pid: u32, command: [u8; 64]) -> Self {
        match SeenProcess::by_pid(pid).is(&self) {
            true => Self { command, ..self },
            false => self,
        }
    }
}

/// A process as the caller's `/proc` shows it: the parts of an [`Identity`] that are visible even
/// from an outer pid namespace.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct SeenProcess {
    /// The pid in the process's own pid namespace.
    pid: u32,
    /// Inode of the process's pid namespace; 0 if unknown.
    pid_ns: u64,
    /// Start time of the process by the clock of the caller's time namespace, in ticks since boot;
    /// 0 if unknown.
    start_time: u64,
    /// Whether the process is in the caller's time namespace, so that both read the same start
    /// time.
    same_clock: bool,
}

impl SeenProcess {
    /// Returns the process's pid in the caller's pid namespace, if any. Searches `everybody` (all
    /// of `/proc`) for a process of another namespace.
    pub fn pid_of<Everybody>(
        process: &Identity,
        everybody: impl FnOnce() -> Everybody,
    ) -> Option<u32>
    where
        Everybody: Iterator<Item = (u32, Self)>,
    {
        if process.pid_ns == process::pid_ns() {
            return Self::by_pid(process.pid).is(process).then_some(process.pid);
        }
        Self::find(process, everybody())
    }

    /// Returns the pids of all processes in `/proc`.
    pub fn numbers() -> impl Iterator<Item = u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    /// Returns all processes in `/proc`, with their pids.
    pub fn everybody() -> impl Iterator<Item = (u32, Self)> {
        Self::numbers().map(|pid| (pid, Self::by_pid(pid)))
    }

    /// Searches `seen` for a process of another pid namespace. Returns the process's pid in the
    /// caller's namespace.
    fn find(process: &Identity, mut seen: impl Iterator<Item = (u32, Self)>) -> Option<u32> {
        seen.find(|(_, seen)| seen.pid_ns == process.pid_ns && seen.is(process))
            .map(|(pid, _)| pid)
    }

    /// Returns the process with this pid in the caller's pid namespace. The start time is 0 if
    /// `/proc` does not show the process.
    pub fn by_pid(pid: u32) -> Self {
        let (mut stat, mut status) = ([0; 1024], [0; 4096]);
        let stat = head(first_thread(pid, pid), &mut stat);
        let status = head(format!("/proc/{pid}/status"), &mut status);
        let inner = innermost_pid(status);
        Self {
            pid: inner.unwrap_or(pid),
            pid_ns: match fs::metadata(format!("/proc/{pid}/ns/pid")) {
                Ok(namespace) => namespace.ino(),
                // The link `/proc/PID/ns/pid` of another user's process is unreadable.
                Err(_) => Self::unseen_pid_ns(pid, inner),
            },
            start_time: start_time(stat).unwrap_or(0),
            // `/proc` hides the time namespaces of other users' processes. Assume the caller's
            // namespace, which nearly all processes share.
            same_clock: has_own_clock(pid).unwrap_or(true),
        }
    }

    /// Returns the caller's pid namespace if a process has the same pid there as in its innermost
    /// namespace. Otherwise 0, for unknown.
    fn unseen_pid_ns(pid: u32, inner: Option<u32>) -> u64 {
        if inner.is_none_or(|inner| inner == pid) {
            process::pid_ns()
        } else {
            0
        }
    }

    /// Returns the start time of the process in clock ticks since boot; `None` if unknown.
    pub fn start_time(&self) -> Option<u64> {
        (self.start_time != 0).then_some(self.start_time)
    }

    /// Returns whether `identity` describes this process. Unknown fields match any value. Start
    /// times from another time namespace are ignored.
    pub fn is(&self, identity: &Identity) -> bool {
        let fits = |one: u64, other: u64| one == other || one == 0 || other == 0;
        self.pid == identity.pid
            && fits(self.pid_ns, identity.pid_ns)
            && (!self.same_clock || fits(self.start_time, identity.start_time))
    }
}

/// Returns whether a process is in the caller's time namespace; `None` if unknown. Linux before 5.6
/// has only one time namespace.
fn has_own_clock(pid: u32) -> Option<bool> {
    let clock = |process: &dyn fmt::Display| {
        fs::metadata(format!("/proc/{process}/ns/time")).map(|namespace| namespace.ino())
    };
    match clock(&"self") {
        Err(_) => Some(true),
        Ok(own) => clock(&pid).ok().map(|other| own == other),
    }
}

/// Returns a process's pid in its innermost pid namespace: the last number of `NSpid` in
/// `/proc/PID/status`.
pub fn innermost_pid(status: &[u8]) -> Option<u32> {
    String::from_utf8_lossy(status)
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?
        .split_ascii_whitespace()
        .last()?
        .parse()
        .ok()
}

struct Command<'a>(&'a [u8]);

impl fmt::Display for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        for chunk in self.0[..len].utf8_chunks() {
            for c in chunk.valid().chars() {
                f.write_char(if is_printable(c) { c } else { '?' })?;
            }
            if !chunk.invalid().is_empty() {
                f.write_char('?')?;
            }
        }
        Ok(())
    }
}

/// Reads the first bytes of a file into `buffer`; returns an empty slice if the file cannot be
/// read.
fn head(path: impl AsRef<Path>, buffer: &mut [u8]) -> &[u8] {
    let mut len = 0;
    if let Ok(mut file) = fs::File::open(path) {
        while let Some(rest) = buffer.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match interrupted::again(|| file.read(rest)) {
                Ok(0) | Err(_) => break,
                Ok(read) => len += read,
            }
        }
    }
    buffer.get(..len).unwrap_or(&[])
}

/// Returns the path of the first thread's `stat` file, which contains the start time. qemu-user
/// fakes `/proc/PID/stat`.
fn first_thread(process: impl fmt::Display, pid: u32) -> String {
    format!("/proc/{process}/task/{pid}/stat")
}

/// Returns the `stat` field with this number in proc(5), at least 3. Field 2, the program's name,
/// ends at the last `)`.
fn field(stat: &[u8], number: usize) -> Option<&str> {
    let end = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(number - 3)
}

fn start_time(stat: &[u8]) -> Option<u64> {
    field(stat, 22)?.parse().ok()
}

/// Returns whether a `stat` file shows a dying process: by state (field 3), flags (field 9) or
/// pending SIGKILL (field 31). A process that has received a deadly signal has only the flag
/// PF_SIGNALED for a while.
fn is_exiting(stat: &[u8]) -> bool {
    const PF_EXITING: u64 = 0x4;
    const PF_SIGNALED: u64 = 0x400;
    const KILL: u64 = 1 << (9 - 1);
    let has = |number, bit| {
        let bits = field(stat, number).and_then(|bits| bits.parse::<u64>().ok());
        bits.is_some_and(|bits| bits & bit != 0)
    };
    matches!(field(stat, 3), Some("Z" | "X")) || has(9, PF_EXITING | PF_SIGNALED) || has(31, KILL)
}

/// Returns whether a thread of a process runs on. The first thread, whose `stat` file is the
/// process's, may have ended by `pthread_exit`.
fn lives_on(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        let mut stat = [0; 1024];
        let stat = head(thread.path().join("stat"), &mut stat);
        !stat.is_empty() && !is_exiting(stat)
    })
}

/// Returns the program's name from a command line, without the directory. `name` is the kernel's
/// name for the process.
fn program(line: &[u8], name: &[u8]) -> [u8; 64] {
    let first = first(line);
    // Some programs overwrite their first argument with the whole command line. The kernel's name
    // contains no arguments.
    if first.is_empty() || first.contains(&b' ') {
        let mut program = [0; 64];
        for (to, &from) in program.iter_mut().zip(name.trim_ascii_end()) {
            *to = from;
        }
        program
    } else {
        command(first)
    }
}

/// Returns the first argument of a command line.
fn first(line: &[u8]) -> &[u8] {
    line.split(|&b| b == 0).next().unwrap_or(&[])
}

/// Returns the beginning of a command line, without the directory of the program.
fn command(line: &[u8]) -> [u8; 64] {
    let program = first(line);
    let skip = program
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(0, |slash| slash + 1);
    let line = line.get(skip..).unwrap_or(&[]);
    let end = line
        .iter()
        .rposition(|&b| b != 0)
        .map_or(0, |last| last + 1);
    let mut command = [0; 64];
    for (to, &from) in command.iter_mut().zip(line.iter().take(end)) {
        *to = if from == 0 { b' ' } else { from };
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::{Running, may_unshare, wait_until};

    #[test]
    fn start_time_survives_a_name_with_spaces_and_parentheses() {
        let stat = b"42 (a) b) R (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(start_time(stat), Some(777));
        assert_eq!(start_time(b"42 (cut"), None);
        assert_eq!(start_time(b"42 (cut) S 1 2"), None);
    }

    #[test]
    fn exiting_and_killed_processes_are_ending() {
        assert!(is_exiting(b"42 (a) b) Z 1 2 3 4 5 4194304"));
        assert!(is_exiting(b"42 (a) S 1 2 3 4 5 4194308 7"));
        assert!(is_exiting(b"42 (a) R 1 2 3 4 5 4195328 7"));
        assert!(!is_exiting(b"42 (Z) S 1 2 3 4 5 4194304 7"));
        let pending = |signals| {
            let line = format!("42 (a) R{} {signals} 0 0", " 0".repeat(27));
            is_exiting(line.as_bytes())
        };
        assert!(pending(0x100) && pending(0x300) && !pending(0x200));
        let own = Identity::of_self();
        assert!(!own.is_ending(own.pid_ns));
        assert!(
            Identity {
                start_time: 1,
                ..own
            }
            .is_ending(own.pid_ns)
        );
        assert!(
            !Identity {
                start_time: 1,
                ..own
            }
            .is_ending(own.pid_ns + 1)
        );
    }

    #[test]
    fn a_process_is_recognised_from_outside() {
        let own = Identity::of_self();
        let seen = SeenProcess::by_pid(own.pid);
        assert!(seen.is(&own));
        assert_eq!(seen.start_time(), Some(own.start_time));
        let other = |change: fn(&mut Identity)| {
            let mut other = own;
            change(&mut other);
            other
        };
        assert!(!seen.is(&other(|other| other.pid += 1)));
        assert!(
            !seen.is(&other(|other| other.start_time += 1)),
            "the pid belongs to another process now"
        );
        assert!(
            !seen.is(&other(|other| other.pid_ns += 1)),
            "the identity is from another pid namespace"
        );
        // Linux assigns no pid as large as this one, so a process with this pid does not exist.
        let gone = other(|other| other.pid = 1 << 23);
        assert!(SeenProcess::by_pid(gone.pid).is(&gone));
        assert_eq!(SeenProcess::by_pid(gone.pid).start_time(), None);
        assert!(!SeenProcess::by_pid(gone.pid).is(&Identity {
            pid_ns: gone.pid_ns + 1,
            ..gone
        }));
    }

    #[test]
    fn the_start_time_of_a_process_with_another_clock_is_not_compared() {
        let own = Identity::of_self();
        if !may_unshare(&["--time"]) {
            return;
        }
        let mut command = std::process::Command::new("unshare");
        command
            .args(["--time", "--boottime", "864000", "--fork", "--kill-child"])
            .args(["cat", "/proc/self/stat", "-"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut shifted = Running::start(&mut command);
        let mut line = String::new();
        let mut out = std::io::BufReader::new(shifted.stdout.take().expect("piped"));
        let _ = std::io::BufRead::read_line(&mut out, &mut line);
        let pid = line.split(' ').next().and_then(|pid| pid.parse().ok());
        let identity = Identity {
            pid: pid.unwrap_or(0),
            // The start time as the process itself reads it.
            start_time: start_time(line.as_bytes()).unwrap_or(0),
            ..own
        };
        let seen = SeenProcess::by_pid(identity.pid);
        let is_ending = identity.is_ending(own.pid_ns);
        drop(shifted.stdin.take());
        assert!(shifted.wait().is_ok_and(|status| status.success()));
        assert_ne!(
            seen.start_time(),
            Some(identity.start_time),
            "the time namespace shifts the clock"
        );
        assert!(seen.is(&identity));
        assert!(!is_ending, "the process is alive");
    }

    #[test]
    fn programs_of_one_process_have_its_pid_and_start() {
        let own = Identity::of_self();
        let command = command(b"other");
        assert!(own.is_same(&Identity { command, ..own }));
        let pid = own.pid + 1;
        assert!(!own.is_same(&Identity { pid, ..own }));
        let pid_ns = own.pid_ns + 1;
        assert!(!own.is_same(&Identity { pid_ns, ..own }));
        let unknown = Identity {
            start_time: 0,
            ..own
        };
        assert!(!unknown.is_same(&unknown) && !own.is_same(&unknown));
    }

    #[test]
    fn processes_that_are_gone_or_zombies_are_ending() {
        let own = Identity::of_self();
        // Linux assigns no pid as large as this one.
        let gone = Identity {
            pid: 1 << 23,
            ..own
        };
        assert!(gone.is_ending(own.pid_ns));
        let unknown = Identity { pid_ns: 0, ..gone };
        assert!(!unknown.is_ending(0), "the pid namespace is unknown");
        let mut child = Running::start(std::process::Command::new("sleep").arg("600"));
        let child_of = SeenProcess::by_pid(child.id());
        let identity = Identity {
            pid: child_of.pid,
            start_time: child_of.start_time,
            ..own
        };
        assert!(child_of.start_time >= own.start_time);
        assert!(!identity.is_ending(own.pid_ns));
        child.kill().expect("killed");
        // The child process has ended and is a zombie, or will be a zombie soon.
        wait_until("the child ends", || identity.is_ending(own.pid_ns));
        child.wait().expect("reaped");
        assert!(identity.is_ending(own.pid_ns));
    }

    #[test]
    fn a_process_that_exits_by_itself_is_ending() {
        let mut cat = std::process::Command::new("cat");
        let mut child = Running::start(cat.stdin(std::process::Stdio::piped()));
        let own = Identity::of_self();
        let child_of = SeenProcess::by_pid(child.id());
        let identity = Identity {
            pid: child_of.pid,
            start_time: child_of.start_time,
            ..own
        };
        assert!(!identity.is_ending(own.pid_ns));
        drop(child.stdin.take());
        // The child process has ended by itself, without a signal, and is a zombie.
        let path = format!("/proc/{}/stat", child.id());
        wait_until("the child ends", || is_exiting(head(&path, &mut [0; 1024])));
        assert!(identity.is_ending(own.pid_ns));
        child.wait().expect("reaped");
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_lives_until_it_is_killed() {
        let mut process = Running::without_first_thread();
        let own = Identity::of_self();
        let identity = Identity {
            pid: process.id(),
            start_time: SeenProcess::by_pid(process.id()).start_time,
            ..own
        };
        assert!(!identity.is_ending(own.pid_ns));
        process.kill().expect("killed");
        wait_until("the process ends", || identity.is_ending(own.pid_ns));
    }

    #[test]
    fn a_process_in_the_callers_namespace_is_found_by_its_own_pid() {
        let own = Identity::of_self();
        assert_eq!(
            SeenProcess::pid_of(&own, SeenProcess::everybody),
            Some(own.pid)
        );
        let start_time = own.start_time + 1;
        assert_eq!(
            SeenProcess::pid_of(&Identity { start_time, ..own }, SeenProcess::everybody),
            None,
            "the pid belongs to another process now"
        );
        let pid_ns = own.pid_ns + 1;
        assert_eq!(
            SeenProcess::pid_of(&Identity { pid_ns, ..own }, SeenProcess::everybody),
            None,
            "no listed process is in this pid namespace"
        );
        // If `/proc` shows no process with this pid, `pid_of` still returns the pid, because
        // `/proc` may hide a process of another user.
        let gone = Identity {
            pid: 1 << 23,
            ..own
        };
        assert_eq!(
            SeenProcess::pid_of(&gone, SeenProcess::everybody),
            Some(gone.pid),
            "`/proc` may hide the process"
        );
    }

    #[test]
    fn a_process_in_another_namespace_is_found_by_its_pid_there() {
        let own = Identity::of_self();
        let seen = |pid, pid_ns| SeenProcess {
            pid,
            pid_ns,
            start_time: 5,
            same_clock: true,
        };
        let inner = Identity {
            pid: 7,
            pid_ns: own.pid_ns + 1,
            start_time: 5,
            ..own
        };
        let found = |third| {
            let processes = [
                (7, seen(7, own.pid_ns)),
                (70, seen(8, inner.pid_ns)),
                (700, third),
            ];
            SeenProcess::find(&inner, processes.into_iter())
        };
        assert_eq!(found(seen(7, inner.pid_ns)), Some(700));
        assert_eq!(found(seen(7, 0)), None, "the pid namespace is unknown");
    }

    #[test]
    fn a_process_with_one_pid_is_in_the_callers_namespace() {
        let own = process::pid_ns();
        assert_eq!(SeenProcess::unseen_pid_ns(7, Some(7)), own);
        assert_eq!(SeenProcess::unseen_pid_ns(7, None), own, "before Linux 4.1");
        assert_eq!(SeenProcess::unseen_pid_ns(7, Some(1)), 0);
    }

    #[test]
    fn unknown_fields_match_any_process() {
        let own = Identity::of_self();
        let seen = SeenProcess::by_pid(own.pid);
        let start_time = 0;
        assert!(
            seen.is(&Identity { start_time, ..own }) && seen.is(&Identity { pid_ns: 0, ..own })
        );
        assert!(
            SeenProcess { start_time, ..seen }.is(&own)
                && SeenProcess { pid_ns: 0, ..seen }.is(&own)
        );
    }

    #[test]
    fn as_much_of_a_file_is_read_as_fits_the_buffer() {
        let scratch = gpulimit_support::Scratch::new();
        let path = scratch.at("file");
        fs::write(&path, b"0123456789").expect("written");
        let path = path.to_str().expect("of letters");
        assert_eq!(head(path, &mut [0; 4]), b"0123");
        assert_eq!(head(path, &mut [0; 10]), b"0123456789");
        assert_eq!(head(path, &mut [0; 20]), b"0123456789");
        fs::remove_file(path).expect("removed");
        assert_eq!(head(path, &mut [0; 4]), b"");
        assert_eq!(head("/proc/self", &mut [0; 4]), b"", "a folder");
    }

    #[test]
    fn the_innermost_pid_is_the_last() {
        let status = b"Name:\tx\nPid:\t4711\nNSpid:\t4711\t32\t7\nNSpgid:\t1\t1\t1\n";
        assert_eq!(innermost_pid(status), Some(7));
        assert_eq!(innermost_pid(b"Name:\tx\n"), None, "before Linux 4.1");
    }

    #[test]
    fn a_process_knows_its_own_identity() {
        let id = Identity::of_self();
        assert_eq!(id.pid, std::process::id());
        assert!(id.pid_ns != 0 && id.start_time != 0);
        assert!(
            id.command().to_string().starts_with("gpulimit_base-"),
            "{}",
            id.command()
        );
    }

    #[test]
    fn command_drops_the_directory_and_bounds_the_length() {
        let shown = |line: &[u8]| {
            let command = command(line);
            Command(&command).to_string()
        };
        assert_eq!(
            shown(b"/usr/bin/python3\0train.py\0--dir\0/a/b\0"),
            "python3 train.py --dir /a/b"
        );
        assert_eq!(shown(b""), "");
        assert_eq!(shown(b"a\x1b[2J\xff\0"), "a?[2J?");
        assert_eq!(shown("a\u{202e}b\u{200b}ä\0".as_bytes()), "a?b?ä");
        assert_eq!(shown(&[b'x'; 500]).len(), 64);
    }

    #[test]
    fn a_process_stores_its_name_without_arguments() {
        let shown = |line: &[u8], name: &[u8]| Command(&program(line, name)).to_string();
        let line = b"/usr/bin/python3\0train.py\0--token=secret\0";
        assert_eq!(shown(line, b"python3\n"), "python3");
        assert_eq!(shown(b"/a b/c --token=x /y\0\0\0", b"c\n"), "c");
        assert_eq!(shown(b"", b"kworker/0\n"), "kworker/0");
        assert_eq!(shown(b"", b""), "");
        let mut child = Running::start(std::process::Command::new("sleep").arg("600"));
        let own = Identity::of_self();
        let of_child = Identity {
            pid: child.id(),
            start_time: 0,
            ..own
        };
        let pid = child.id();
        let named = |who: Identity| match Identity::command_line(pid) {
            Some(line) => who.with_command(pid, line),
            None => who,
        };
        // The parent process continues while the child is still in `exec`, before the child has its
        // new arguments.
        wait_until("the child has its arguments", || {
            named(of_child) != of_child
        });
        let seen = named(of_child);
        assert_eq!(named(own), own, "another process");
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(seen.command().to_string(), "sleep 600");
        assert_eq!(named(of_child), of_child, "no longer there");
    }
}
