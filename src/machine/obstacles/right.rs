//! The right to trace a process, which the driver asks for before it touches another process.

use gpulimit_base::proc::{self, field};
use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

/// The bit of CAP_SYS_PTRACE.
const PTRACE: u64 = 1 << 19;

/// Why the kernel does not let the caller trace a process.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Denied {
    /// The process belongs to the user with this id.
    OtherUser(u32),
    /// The process has other group ids than the caller.
    OtherGroup,
    /// The process runs a program with more rights than its user, or has asked for no core dumps.
    Undumpable,
    /// The process has capabilities that the caller does not have.
    Capabilities,
    /// The security module Yama forbids it: the value of `kernel.yama.ptrace_scope`.
    Yama(u8),
    /// Another security module or a user namespace forbids it.
    Other,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = self.cause();
        write!(
            f,
            "the kernel does not let you trace the process, as the driver asks for: {cause}"
        )
    }
}

impl Denied {
    /// Returns why the kernel does not let the caller look into a process that exists.
    pub fn for_process(pid: u32) -> Self {
        let status = proc::read(format!("/proc/{pid}/status"));
        status.map_or(Self::Other, |status| reason(pid, &status))
    }

    /// Returns which rule of the kernel denies the right.
    pub fn cause(&self) -> Cow<'static, str> {
        match self {
            Self::OtherUser(user) => {
                return format!("the process belongs to the user with id {user}").into();
            }
            Self::OtherGroup => "the process has other group ids than you",
            Self::Undumpable => "the process hides its memory from its user",
            Self::Capabilities => "the process has more capabilities than you",
            Self::Yama(scope) => return format!("kernel.yama.ptrace_scope is {scope}").into(),
            Self::Other => "a security module or user namespace forbids it",
        }
        .into()
    }

    /// Returns what the user can do.
    pub fn remedy(&self) -> String {
        match self {
            Self::OtherUser(_) => "run gpulimit as that user or as root",
            Self::OtherGroup | Self::Undumpable | Self::Capabilities => "run gpulimit as root",
            Self::Yama(1) => {
                "run gpulimit as root, or let root run `sysctl -w kernel.yama.ptrace_scope=0`"
            }
            Self::Yama(2) => "run gpulimit as root",
            // The value 3 cannot be changed before the next start of the machine.
            Self::Yama(_) => "set kernel.yama.ptrace_scope to a lower value at the machine's start",
            Self::Other => "run gpulimit as root, outside of the container",
        }
        .to_owned()
    }
}

/// Returns whether the kernel denies the caller the right to trace a process. The process's user
/// can block this call forever, by an `exec` that does not end.
pub(super) fn is_denied(pid: u32) -> bool {
    // The kernel gives out a process's memory by the same rules as the right to trace the process,
    // with those of the security modules.
    let opened = File::open(format!("/proc/{pid}/mem"));
    opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Returns why the caller may not trace a process, if [`is_denied`]. `status` is the text of
/// `/proc/PID/status`.
pub(super) fn reason(pid: u32, status: &str) -> Denied {
    let own = proc::read("/proc/thread-self/status").unwrap_or_default();
    // The kernel gives these files to root if the process is not dumpable.
    let owner = fs::metadata(format!("/proc/{pid}/stat")).map(|about| about.uid());
    why(&own, status, owner.ok(), yama())
}

/// Returns the value of `kernel.yama.ptrace_scope`; `None` without Yama.
fn yama() -> Option<u8> {
    let value = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    value.trim().parse().ok()
}

/// Returns the first of the kernel's rules that denies the right. `own` and `other` are the texts
/// of `/proc/PID/status`; `owner` is the owner of the files in the process's `/proc/PID`.
fn why(own: &str, other: &str, owner: Option<u32>, yama: Option<u8>) -> Denied {
    let capabilities = |status, name| {
        let bits = field(status, name).and_then(|bits| u64::from_str_radix(bits, 16).ok());
        bits.unwrap_or(0)
    };
    let yama = yama
        .filter(|scope| *scope > 0)
        .map_or(Denied::Other, Denied::Yama);
    let effective = capabilities(own, "CapEff");
    if effective & PTRACE != 0 {
        return match yama {
            Denied::Yama(..3) => Denied::Other,
            yama => yama,
        };
    }
    // The four ids are real, effective, saved, and the one for file systems. The kernel compares
    // the caller's last with the first three of the process.
    let differ = |name| {
        let own = ids(own, name)[3];
        ids(other, name)[..3].iter().any(|id| *id != own)
    };
    let user = ids(other, "Uid")[1];
    if differ("Uid") {
        Denied::OtherUser(user.unwrap_or(0))
    } else if differ("Gid") {
        Denied::OtherGroup
    } else if owner.is_some() && owner != user {
        Denied::Undumpable
    } else if capabilities(other, "CapPrm") & !effective != 0 {
        Denied::Capabilities
    } else {
        yama
    }
}

fn ids(status: &str, name: &str) -> [Option<u32>; 4] {
    let mut ids = field(status, name)
        .unwrap_or_default()
        .split_ascii_whitespace();
    std::array::from_fn(|_| ids.next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of a process of this user with these capabilities.
    fn status(uid: &str, gid: &str, permitted: u64, effective: u64) -> String {
        format!(
            "Name:\tpython3\nUmask:\t0022\nState:\tS (sleeping)\nUid:\t{uid}\nGid:\t{gid}\n\
             Groups:\t1000 \nCapPrm:\t{permitted:016x}\nCapEff:\t{effective:016x}\n"
        )
    }

    const USER: &str = "1000\t1000\t1000\t1000";

    #[test]
    fn each_rule_of_the_kernel_is_named() {
        let own = status(USER, USER, 0, 0);
        let plain = status(USER, USER, 0, 0);
        let user = Some(1000);
        assert_eq!(why(&own, &plain, user, Some(1)), Denied::Yama(1));
        assert_eq!(why(&own, &plain, user, Some(0)), Denied::Other);
        assert_eq!(why(&own, &plain, user, None), Denied::Other);
        assert_eq!(why(&own, &plain, Some(0), Some(1)), Denied::Undumpable);
        let other = status("1001\t1001\t1001\t1001", USER, 0, 0);
        assert_eq!(
            why(&own, &other, Some(1001), Some(1)),
            Denied::OtherUser(1001)
        );
        let setuid = status("1000\t0\t0\t0", USER, 0, 0);
        assert_eq!(why(&own, &setuid, Some(0), None), Denied::OtherUser(0));
        let setgid = status(USER, "1000\t5\t5\t5", 0, 0);
        assert_eq!(why(&own, &setgid, Some(0), None), Denied::OtherGroup);
        let capable = status(USER, USER, 1 << 12, 0);
        assert_eq!(why(&own, &capable, user, Some(1)), Denied::Capabilities);
    }

    #[test]
    fn yama_denies_even_root_at_3() {
        let root = status("0\t0\t0\t0", "0\t0\t0\t0", u64::MAX, u64::MAX);
        let plain = status(USER, USER, 0, 0);
        assert_eq!(why(&root, &plain, Some(1000), Some(3)), Denied::Yama(3));
        assert_eq!(why(&root, &plain, Some(1000), Some(1)), Denied::Other);
    }

    #[test]
    fn the_own_process_may_be_traced() {
        assert!(!is_denied(std::process::id()));
        assert!(!is_denied(1 << 23), "a process that does not exist");
    }
}
