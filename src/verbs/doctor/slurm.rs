//! Says which limit holds the shards of Slurm's jobs: Slurm's own, by the kernel, or gpulimit's.

use super::finding::{Check, Finding};
use crate::words::environment::env;
use std::fs;

const CHECK: Check = Check("slurm");

/// Reports which limit holds; `None` where Slurm limits no device memory by itself.
pub(super) fn check() -> Option<Finding> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let announced = env("SLURM_SHARD_MEM_PER_GPU");
    found(
        announced.as_deref().and_then(|value| value.to_str()),
        &read("/etc/slurm/cgroup.conf"),
        &read("/sys/fs/cgroup/dmem.capacity"),
        &read("/etc/gpulimit/slurm.conf"),
    )
}

/// Returns the last value of a key in lines `KEY = VALUE`, without regard to case.
fn value(text: &str, key: &str) -> String {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let named = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case(key));
    let last = named.last().map_or("", |(_, value)| value);
    let word = last.split(['#', ' ', '\t']).find(|word| !word.is_empty());
    word.unwrap_or_default()
        .trim_matches(['"', '\''])
        .to_lowercase()
}

/// `announced` is what Slurm tells a job, `regions` the kernel's list of device memories, and
/// `settings` the file of gpulimit's own scripts for Slurm.
fn found(announced: Option<&str>, conf: &str, regions: &str, settings: &str) -> Option<Finding> {
    if let Some(amount) = announced {
        return Some(CHECK.fine(format!(
            "Slurm's own limit holds for this job, by the kernel: {amount}; a smaller limit of \
             gpulimit, if the job's group has one, is met first"
        )));
    }
    if value(conf, "ConstrainDeviceMemory") != "yes" {
        return None;
    }
    let shard = value(settings, "shard");
    Some(match (regions.trim().is_empty(), shard.is_empty()) {
        (true, false) => CHECK.fine(format!(
            "gpulimit's limit holds for shards, {shard} each: Slurm's ConstrainDeviceMemory=yes \
             has no effect, because the kernel lists no device memory in dmem.capacity"
        )),
        (true, true) => CHECK.warning(
            "no limit holds for shards: Slurm's ConstrainDeviceMemory=yes has no effect, because \
             the kernel lists no device memory in dmem.capacity",
            "set shard= in /etc/gpulimit/slurm.conf, where gpulimit's Prolog runs",
        ),
        (false, true) => CHECK.fine(
            "Slurm's own limit holds for shards, by the kernel (ConstrainDeviceMemory=yes), on \
             the GPUs for which slurmd logs dmem=enforced",
        ),
        (false, false) => CHECK.warning(
            format!(
                "two limits are set for shards: {shard} each by gpulimit, and Slurm's own by the \
                 kernel (ConstrainDeviceMemory=yes); the smaller one is met first"
            ),
            "leave shard= empty in /etc/gpulimit/slurm.conf if slurmd logs dmem=enforced",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::doctor::finding::Level::{Fine, Warning};

    const CONF: &str = "ConstrainDevices=yes\n constraindevicememory = Yes # 26.11\n";
    const REGIONS: &str = "nvidia/0000:3b:00.0/vidmem 85899345920\n";

    #[test]
    fn the_limit_that_holds_is_named() {
        let of = |conf, regions, settings| found(None, conf, regions, settings);
        for (regions, settings, level, words) in [
            (
                "",
                "shard=25%\n",
                Fine,
                "gpulimit's limit holds for shards, 25% each",
            ),
            ("", "shard=\n", Warning, "no limit holds"),
            (
                REGIONS,
                "# shard=1G\n",
                Fine,
                "Slurm's own limit holds for shards",
            ),
            (
                REGIONS,
                "shard=1G\nshard='2G'\n",
                Warning,
                "two limits are set for shards: 2g each",
            ),
        ] {
            let found = of(CONF, regions, settings).expect("a finding");
            assert!(found.text.starts_with(words), "{}", found.text);
            assert_eq!(
                (found.level, found.remedy.is_some()),
                (level, level == Warning)
            );
        }
        for conf in ["", "ConstrainDeviceMemory=no", "#ConstrainDeviceMemory=yes"] {
            assert!(of(conf, REGIONS, "shard=1G").is_none(), "{conf}");
        }
        let job = found(Some("0000:3b:00.0=9216M"), "", "", "").expect("a finding");
        assert!(
            job.text
                .contains("holds for this job, by the kernel: 0000:3b:00.0=9216M;")
        );
    }
}
