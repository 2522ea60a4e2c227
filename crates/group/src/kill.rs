//! Signals for the processes that hold slots of a ledger, and for no other.
//!
//! Whoever may be charged in a ledger can write into it any process that they like. So a signal
//! goes only to a process that has the ledger mapped as its members do, and, when root sends it,
//! only to one that the owner of the group could signal.
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

/// A process of a group, held so that a signal reaches it or nobody.
#[derive(Debug)]
pub struct Target {
    /// The number that it has here.
    pub pid: u32,
    /// `None` before Linux 5.3, and where a container forbids it: the signal then goes by the
    /// number, right after the look at the process.
    descriptor: Option<OwnedFd>,
}

/// Says of each number in `/proc` whether that process is a member of a ledger. `TimedOut`: the
/// process keeps others from looking.
pub type Look<'a> = dyn Fn(&MappedFile, &[u32]) -> Vec<io::Result<bool>> + 'a;

/// The processes of one ledger, as far as they can be proven.
pub struct Targets<'a> {
    ledger: &'a Ledger,
    file: MappedFile,
    access: Access,
    look: &'a Look<'a>,
    /// Those that the look has had no answer of. They are not looked at again.
    silent: RefCell<Vec<SeenProcess>>,
}

impl<'a> Targets<'a> {
    /// Of this ledger.
    pub fn of(ledger: &'a Ledger, look: &'a Look<'a>) -> io::Result<Self> {
        Ok(Self {
            file: ledger.mapped_file()?,
            access: Access::of_file(&ledger.metadata()?),
            ledger,
            look,
            silent: RefCell::default(),
        })
    }

    /// The processes that hold slots, by what the slots say of them. `NotFound`: it has ended, or
    /// the slot names a process that is no member, or one that cannot be seen from here.
    /// `PermissionDenied`: whether it is a member cannot be seen, or the owner of the group could
    /// not signal it. `TimedOut`: it keeps others from looking at it.
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

    /// The processes that hold these slots, as [`Self::named`]. With them, where some slot does not
    /// name its holder: members that no slot names, each of which holds one of those slots; and the
    /// numbers of processes that may be such members and keep others from looking.
    pub fn all(
        &self,
        processes: &[ProcessUsage],
    ) -> (Vec<io::Result<Target>>, Vec<Target>, Vec<u32>) {
        let named = self.named(processes.iter().map(|process| &process.identity));
        let (mut unnamed, mut silent) = (Vec::new(), Vec::new());
        if named.iter().any(Result::is_err) {
            let found: Vec<u32> = named.iter().flatten().map(|target| target.pid).collect();
            let others = SeenProcess::numbers().filter(|pid| !found.contains(pid));
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

    /// Whether somebody still holds the slot.
    pub fn is_held(&self, process: &ProcessUsage) -> bool {
        self.ledger.is_held(process.slot)
    }

    /// Proves that processes are members, all in one look.
    fn prove(&self, candidates: Vec<io::Result<Candidate>>) -> Vec<io::Result<Target>> {
        let admitted = |candidate: Candidate| {
            if self.silent.borrow().contains(&candidate.seen) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match user::effective() {
                0 if !self.may_be_signalled(candidate.number)? => {
                    Err(io::ErrorKind::PermissionDenied.into())
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

    /// Whether whose group it is could signal the process, or it may be in the group as one of its
    /// unix group.
    fn may_be_signalled(&self, number: u32) -> io::Result<bool> {
        let status = proc::read(format!("/proc/{number}/status"))?;
        Ok(may_be_signalled(&self.access, &status))
    }
}

/// A process that may be a member.
struct Candidate {
    pid: u32,
    /// Its number in `/proc`.
    number: u32,
    /// As it was before the look.
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

    /// The process, if it is still the one that was seen before.
    fn target(self) -> io::Result<Target> {
        let target = Target::open(self.pid)?;
        // A number that is used again within a clock tick would look the same: as many processes
        // are not made in one.
        let seen = SeenProcess::by_pid(target.number_in_proc());
        match seen == self.seen && seen.start_time().is_some() {
            true => Ok(target),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// As the kernel decides for the owner of the group: by the real and the saved user of the process.
fn may_be_signalled(access: &Access, status: &str) -> bool {
    let numbers = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let words = line.unwrap_or_default().split_ascii_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let (users, groups) = (numbers("Uid:"), numbers("Gid:"));
    let owner = access.owner.unwrap_or(0);
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
        // SAFETY: plain numbers.
        let descriptor =
            unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(number), 0usize) };
        let descriptor = match libc::c_int::try_from(descriptor) {
            // SAFETY: just opened, and nobody else's.
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

    /// The number under which `/proc` has the process: another one where `/proc` is of an outer pid
    /// namespace.
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

    /// `/proc/PID/task/TID/status` of its threads that have not ended.
    pub fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.number_in_proc()));
        let statuses = tasks.into_iter().flatten().filter_map(|task| {
            let status = proc::read(task.ok()?.path().join("status")).ok()?;
            (!status.contains("\nState:\tZ")).then_some(status)
        });
        let statuses = statuses.collect();
        // With signal 0 only whether it is still there is asked: else the number may be another's
        // by now.
        match self.send(0) {
            Ok(()) => statuses,
            Err(_) => Vec::new(),
        }
    }

    /// Sends a signal. `NotFound`: it has ended.
    pub fn send(&self, signal: i32) -> io::Result<()> {
        let sent = match &self.descriptor {
            Some(descriptor) => {
                let nothing = std::ptr::null::<libc::siginfo_t>();
                let descriptor = libc::c_long::from(descriptor.as_raw_fd());
                let signal = libc::c_long::from(signal);
                // SAFETY: our descriptor and plain numbers.
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
            // SAFETY: plain numbers; the number came from one that fits.
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
    fn root_signals_whom_the_owner_could() {
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
            "root for a while"
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
