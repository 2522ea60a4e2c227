//! Proves which processes hold slots of a ledger, and sends signals to these processes only.
//!
//! A member can write any pid into the ledger, so only a process whose memory map shows a member's
//! two mappings gets a signal. Root also checks that the group's owner could signal the process, or
//! that the process's user may be a member.
#![allow(unsafe_code)]

use super::access::{Access, Members};
use super::user;
use gpulimit_base::identity::{Identity, SeenProcess};
use gpulimit_base::proc;
use gpulimit_ledger::{Ledger, MappedFile, ProcessUsage};
use std::cell::{OnceCell, RefCell};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A process of a group. Signals reach only this process, even if its pid was reused.
#[derive(Debug)]
pub struct Target {
    /// The process's pid in the caller's pid namespace.
    pub pid: u32,
    /// The process's pidfd; `None` on systems without pidfds. gpulimit then checks the pid just
    /// before a signal.
    descriptor: Option<OwnedFd>,
}

/// A function that tells which processes, given by pid, are members of a ledger. `TimedOut`:
/// reading a memory map took too long.
pub type Look<'a> = dyn Fn(&MappedFile, &[u32]) -> Vec<io::Result<bool>> + 'a;

/// The member processes of one ledger, to which signals may be sent.
pub struct Targets<'a> {
    ledger: &'a Ledger,
    file: MappedFile,
    access: Access,
    look: &'a Look<'a>,
    /// The processes whose memory maps could not be read in time. They are not checked again.
    silent: RefCell<Vec<SeenProcess>>,
}

impl<'a> Targets<'a> {
    /// Prepares to send signals to the members of this ledger.
    pub fn of(ledger: &'a Ledger, look: &'a Look<'a>) -> io::Result<Self> {
        Ok(Self {
            file: ledger.mapped_file()?,
            access: Access::of_file(&ledger.metadata()?),
            ledger,
            look,
            silent: RefCell::default(),
        })
    }

    /// Finds processes by the identities in their slots. Errors:
    /// - `NotFound`: the process has ended, is invisible, or is not a member.
    /// - `PermissionDenied`: the process's memory map is unreadable, or root may not signal it.
    /// - `TimedOut`: the memory map could not be read in time.
    pub fn named<'b>(
        &self,
        processes: impl Iterator<Item = &'b Identity>,
    ) -> Vec<io::Result<Target>> {
        let everybody = OnceCell::new();
        let candidate = |process: &Identity| {
            let here = || SeenProcess::everybody().collect::<Vec<_>>();
            let among = || everybody.get_or_init(here).iter().copied();
            let pid = SeenProcess::pid_of(process, among).ok_or(io::ErrorKind::NotFound)?;
            Candidate::new(pid).and_then(|seen| match seen.seen.is(process) {
                true => Ok(seen),
                false => Err(io::ErrorKind::NotFound.into()),
            })
        };
        self.prove(processes.map(candidate).collect())
    }

    /// Finds the processes of these slots like [`Self::named`]. If some are missing, also finds
    /// other members, and pids that time out.
    pub fn all(
        &self,
        processes: &[ProcessUsage],
    ) -> (Vec<io::Result<Target>>, Vec<Target>, Vec<u32>) {
        let named = self.named(processes.iter().map(|process| &process.identity));
        let (mut unnamed, mut silent) = (Vec::new(), Vec::new());
        if named.iter().any(Result::is_err) {
            let found: Vec<u32> = named.iter().flatten().map(|target| target.pid).collect();
            let own = std::process::id();
            let others = SeenProcess::numbers().filter(|pid| *pid != own && !found.contains(pid));
            let others: Vec<u32> = others.collect();
            let candidates = others.iter().map(|pid| Candidate::new(*pid)).collect();
            for (pid, proven) in others.iter().zip(self.prove(candidates)) {
                match proven {
                    Ok(target) => unnamed.push(target),
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => silent.push(*pid),
                    Err(_) => {}
                }
            }
        }
        (named, unnamed, silent)
    }

    /// Returns whether a process still holds the slot of `process`.
    pub fn is_held(&self, process: &ProcessUsage) -> bool {
        self.ledger.is_held(process.slot)
    }

    /// Checks that the processes are members. Calls `look` once for all of them.
    fn prove(&self, candidates: Vec<io::Result<Candidate>>) -> Vec<io::Result<Target>> {
        let admitted = |candidate: Candidate| {
            if self.silent.borrow().contains(&candidate.seen) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match user::effective() {
                0 => {
                    let status = proc::read(format!("/proc/{}/status", candidate.number))?;
                    match may_be_signalled(&self.access, &status) {
                        true => Ok(candidate),
                        false => Err(io::ErrorKind::PermissionDenied.into()),
                    }
                }
                _ => Ok(candidate),
            }
        };
        let candidates: Vec<io::Result<Candidate>> = candidates
            .into_iter()
            .map(|candidate| candidate.and_then(admitted))
            .collect();
        let numbers: Vec<u32> = candidates.iter().flatten().map(|one| one.number).collect();
        let mut answers = (self.look)(&self.file, &numbers).into_iter();
        let mut proven = |candidate: Candidate| {
            let answer = answers
                .next()
                .unwrap_or(Err(io::ErrorKind::TimedOut.into()));
            match answer {
                Ok(true) => candidate.target(),
                Ok(false) => Err(io::ErrorKind::NotFound.into()),
                Err(error) => {
                    if error.kind() == io::ErrorKind::TimedOut {
                        self.silent.borrow_mut().push(candidate.seen);
                    }
                    Err(error)
                }
            }
        };
        candidates
            .into_iter()
            .map(|candidate| candidate.and_then(&mut proven))
            .collect()
    }
}

/// A process that may be a member of the ledger's group.
struct Candidate {
    pid: u32,
    /// The process's number in this process's `/proc`.
    number: u32,
    /// The process as it was before its memory map was read.
    seen: SeenProcess,
}

impl Candidate {
    fn new(pid: u32) -> io::Result<Self> {
        let number = Target::open(pid)?.number_in_proc();
        Ok(Self {
            pid,
            number,
            seen: SeenProcess::by_pid(number),
        })
    }

    /// Returns the process, if the pid still belongs to it after its memory map was read.
    fn target(self) -> io::Result<Target> {
        let target = Target::open(self.pid)?;
        // Different processes with this pid have different start times: the kernel takes longer
        // than a clock tick to reuse a pid.
        let seen = SeenProcess::by_pid(target.number_in_proc());
        match seen == self.seen && seen.start_time().is_some() {
            true => Ok(target),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Returns whether root may signal this process: the group's owner could do so, or the process's
/// user may be a member.
fn may_be_signalled(access: &Access, status: &str) -> bool {
    let numbers = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let words = line.unwrap_or_default().split_ascii_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let (users, groups) = (numbers("Uid:"), numbers("Gid:"));
    let owner = access.owner.unwrap_or(0);
    // Like the kernel, compare the real and the saved user id.
    let [real, _, saved, _] = users[..] else {
        return false;
    };
    owner == 0 && access.members == Members::Owner && real == 0
        || owner != 0 && (real == owner || saved == owner)
        || match access.members {
            Members::Owner => false,
            Members::UnixGroup(gid) => {
                real == owner || groups.contains(&gid) || numbers("Groups:").contains(&gid)
            }
            Members::All => true,
        }
}

impl Target {
    fn open(pid: u32) -> io::Result<Self> {
        let number = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::NotFound)?;
        // SAFETY: the call gets plain numbers and returns a new descriptor.
        let descriptor =
            unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(number), 0usize) };
        let descriptor = match libc::c_int::try_from(descriptor) {
            // SAFETY: the kernel has just made the descriptor, which has no other owner.
            Ok(descriptor @ 0..) => Some(unsafe { OwnedFd::from_raw_fd(descriptor) }),
            _ => match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => None,
                error if error.raw_os_error() == Some(libc::ESRCH) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                error => return Err(error),
            },
        };
        Ok(Self { pid, descriptor })
    }

    /// Returns the process's number in `/proc`. It differs from the process's pid if `/proc`
    /// belongs to an outer pid namespace.
    fn number_in_proc(&self) -> u32 {
        let of = |descriptor: &OwnedFd| {
            let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
            let about = fs::read_to_string(path).ok()?;
            about
                .lines()
                .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
        };
        self.descriptor.as_ref().and_then(of).unwrap_or(self.pid)
    }

    /// Returns whether SIGKILL is pending for the process; false if unknown.
    pub(super) fn is_killed(&self) -> bool {
        let status = proc::read(format!("/proc/{}/status", self.number_in_proc()));
        status.is_ok_and(|status| proc::is_killed(&status))
    }

    /// Reads `/proc/PID/task/TID/status` of those threads of the process that have not ended.
    pub fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.number_in_proc()));
        let statuses = tasks.into_iter().flatten().filter_map(|task| {
            let status = proc::read(task.ok()?.path().join("status")).ok()?;
            (!proc::has_ended(&status)).then_some(status)
        });
        let statuses = statuses.collect();
        // Signal 0 checks that the process still exists. Otherwise the statuses may be another
        // process's.
        match self.send(0) {
            Ok(()) => statuses,
            Err(_) => Vec::new(),
        }
    }

    /// Sends a signal to the process. Fails with `NotFound` where the process has ended.
    pub fn send(&self, signal: i32) -> io::Result<()> {
        let sent = match &self.descriptor {
            Some(descriptor) => {
                let nothing = std::ptr::null::<libc::siginfo_t>();
                let descriptor = libc::c_long::from(descriptor.as_raw_fd());
                let signal = libc::c_long::from(signal);
                // SAFETY: `self` keeps `descriptor` open; the rest are plain numbers.
                unsafe {
                    libc::syscall(
                        libc::SYS_pidfd_send_signal,
                        descriptor,
                        signal,
                        nothing,
                        0usize,
                    )
                }
            }
            // SAFETY: the call gets plain numbers, and `Target::open` has checked that the pid
            // fits.
            None => unsafe { libc::kill(self.pid as libc::pid_t, signal) }.into(),
        };
        match sent {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ESRCH) => {
                    Err(io::ErrorKind::NotFound.into())
                }
                error => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_signals_only_processes_that_the_owner_could_signal() {
        let status = |users: &str, groups: &str| {
            format!("Name:\tx\nUid:\t{users}\nGid:\t7\t7\t7\t7\nGroups:\t{groups} \n")
        };
        let may = |owner, members, users: &str, groups: &str| {
            let access = Access {
                owner: Some(owner),
                members,
            };
            may_be_signalled(&access, &status(users, groups))
        };
        let own = "5\t5\t5\t5";
        assert!(may(5, Members::Owner, own, ""));
        assert!(may(5, Members::Owner, "5\t0\t0\t0", ""), "a setuid program");
        assert!(!may(5, Members::Owner, "6\t6\t6\t6", ""));
        assert!(!may(5, Members::Owner, "0\t0\t0\t0", ""), "root's own");
        assert!(
            !may(5, Members::Owner, "0\t5\t0\t5", ""),
            "the effective user id alone is not enough"
        );
        assert!(may(0, Members::Owner, "0\t0\t0\t0", ""));
        assert!(!may(0, Members::Owner, own, ""));
        assert!(may(0, Members::All, own, ""));
        assert!(may(0, Members::UnixGroup(9), own, "8 9"));
        assert!(may(0, Members::UnixGroup(7), own, ""));
        assert!(!may(0, Members::UnixGroup(9), own, "8"));
        assert!(
            !may_be_signalled(&Access::default(), ""),
            "nothing is known"
        );
    }
}
