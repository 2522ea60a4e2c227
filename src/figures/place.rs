//! The container or the job that a process is in.

use gpulimit_group::{Kind, last_name, upwards};
use gpulimit_policy::containers_of;
use std::fs::File;
use std::io::Read;

/// The number of digits of a container's id that container engines show.
const DIGITS: usize = 12;

/// Returns the container or the job whose group has this name, or a group above: `run-28879` of a
/// job, `container-4f2a0c6d8e1b`.
pub fn of_group(name: &str) -> Option<String> {
    upwards(name).map(last_name).find_map(|last| {
        if last.starts_with("container-") {
            return Some(last.to_owned());
        }
        let is_job = Kind::of(last) == Kind::Job;
        let (job, _start) = last.rsplit_once('-').filter(|_| is_job)?;
        Some(job.to_owned())
    })
}

/// Returns the container or the job of Slurm that a process of the caller's pid namespace is in.
pub fn of_process(pid: u32) -> Option<String> {
    /// A longer file is not read to its end.
    const LONGEST: u64 = 1 << 16;
    if let Some(id) = containers_of(pid).into_iter().next() {
        return Some(id.chars().take(DIGITS).collect());
    }
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/cgroup")).ok()?;
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    slurm(&String::from_utf8_lossy(&bytes))
}

/// Returns the job of Slurm from the text of `/proc/PID/cgroup`.
fn slurm(text: &str) -> Option<String> {
    let path = text.lines().find(|line| line.contains("slurm"))?;
    let number = path.split('/').find_map(|part| part.strip_prefix("job_"))?;
    let is_number = !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit());
    is_number.then(|| format!("slurm {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_containers_are_named_by_their_groups() {
        for (group, place) in [
            ("lab/run-28879-750238", Some("run-28879")),
            ("job-7-8", Some("job-7")),
            ("job-7-8/child", Some("job-7")),
            ("container-4f2a0c6d8e1b", Some("container-4f2a0c6d8e1b")),
            ("lab/alice", None),
        ] {
            assert_eq!(of_group(group).as_deref(), place, "{group}");
        }
    }

    #[test]
    fn jobs_of_slurm_are_named_by_their_cgroups() {
        for (text, place) in [
            (
                "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
                Some("slurm 123"),
            ),
            ("4:memory:/slurm/uid_1000/job_7/step_0\n", Some("slurm 7")),
            ("0::/user.slice/job_7\n", None),
            ("0::/slurm/job_x\n", None),
        ] {
            assert_eq!(slurm(text).as_deref(), place, "{text}");
        }
    }
}
