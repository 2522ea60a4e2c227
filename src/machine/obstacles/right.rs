//! The right to trace a process, which the driver asks for before it touches another process.

use gpulimit_base::proc::{self, field};
use gpulimit_group::effective_user;
use std::fs::{self, File};
use std::io::ErrorKind;

/// Why the kernel does not let the caller trace a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Denied {
    pub cause: String,
    /// What the user can do.
    pub remedy: &'static str,
}

impl Denied {
    /// Returns why the caller may not trace a process, as far as that is seen from outside. `None`
    /// is a process that this pid namespace does not show.
    pub fn of(pid: Option<u32>) -> Self {
        // In `Uid:`, the effective user id is the second one.
        let uid = |status: String| {
            field(&status, "Uid")?
                .split_whitespace()
                .nth(1)?
                .parse()
                .ok()
        };
        let uid = pid.and_then(|pid| uid(proc::status(pid).ok()?));
        why(effective_user(), uid, yama())
    }

    /// Returns the denial by the security module Yama with this value of
    /// `kernel.yama.ptrace_scope`.
    pub fn by_yama(scope: u8) -> Self {
        Self {
            cause: format!("kernel.yama.ptrace_scope is {scope}"),
            remedy: match scope {
                1 => "run gpulimit as root, or let root run `sysctl -w kernel.yama.ptrace_scope=0`",
                2 => "run gpulimit as root",
                // The value 3 cannot be changed before the next start of the machine.
                _ => "set kernel.yama.ptrace_scope to a lower value at the machine's start",
            },
        }
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

/// Returns the value of `kernel.yama.ptrace_scope`; `None` without Yama.
fn yama() -> Option<u8> {
    let value = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    value.trim().parse().ok()
}

/// Returns why the user `own` may not trace a process of the user `other`. Other rules than those
/// about users and Yama are not told apart.
fn why(own: u32, other: Option<u32>, yama: Option<u8>) -> Denied {
    match (other, yama) {
        (Some(other), scope) if other != own && (own != 0 || scope <= Some(2)) => Denied {
            cause: format!("the process belongs to the user with id {other}"),
            remedy: "run gpulimit as that user, or as root outside of containers",
        },
        (_, Some(scope @ 1..)) if own != 0 || scope > 2 => Denied::by_yama(scope),
        _ => Denied {
            cause: "the process's groups or capabilities, its program that you may not read, a \
                    security module or user namespace forbids it"
                .into(),
            remedy: "run gpulimit as root, outside of containers",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_and_yama_are_named() {
        let cause = |own, other, yama| why(own, other, yama).cause;
        let user = Some(1000);
        let other = cause(1000, Some(1001), Some(1));
        assert_eq!(other, "the process belongs to the user with id 1001");
        let root = cause(1000, Some(0), None);
        assert_eq!(root, "the process belongs to the user with id 0");
        assert_eq!(why(1000, user, Some(1)), Denied::by_yama(1));
        assert_eq!(why(0, user, Some(3)), Denied::by_yama(3), "even root");
        // Root of a container may lack CAP_SYS_PTRACE.
        for yama in [Some(0), Some(1), None] {
            assert!(cause(0, user, yama).ends_with("the user with id 1000"));
            assert!(cause(0, Some(0), yama).contains("a security module"));
        }
        for yama in [Some(0), None] {
            assert!(cause(1000, user, yama).contains("a security module"));
        }
    }

    #[test]
    fn the_own_process_may_be_traced() {
        assert!(!is_denied(std::process::id()));
        assert!(!is_denied(1 << 23), "a process that does not exist");
    }
}
