//! Slurm with config/slurm on a node of the test's own, as docs/slurm.md describes it: munge,
//! slurmctld and slurmd in namespaces, the simulated driver, two GPUs of four shards each.
//! `cluster.sh` beside this file makes the node. The tests need root and Debian's slurmctld,
//! slurmd, slurm-client and munge (scripts/setup slurm).

use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use gpulimit_programs::world::{self, World, repository, text};
use gpulimit_support::{have, may_unshare, patience, skip};
use serde_json::Value;

/// Users of the node.
const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;

/// Returns whether the node can be made on this machine; skips if not.
fn is_possible() -> bool {
    if !["slurmctld", "slurmd", "srun", "munged"]
        .iter()
        .all(|tool| have(tool))
    {
        return false;
    }
    let mut slurmd = Command::new("slurmd");
    slurmd.arg("-V");
    if text(&world::finish(slurmd).stdout).contains(" 23.") {
        skip("slurmd of version 23 does not start without systemd's cgroups");
        return false;
    }
    may_unshare(&["--mount", "--pid", "--mount-proc"])
}

/// A running node; its processes end with it.
struct Cluster {
    world: World,
    node: Child,
    input: ChildStdin,
    answers: BufReader<ChildStdout>,
    count: Cell<usize>,
}

impl Cluster {
    /// Starts the node; `None`, with a message, where there is no Slurm.
    fn start() -> Option<Cluster> {
        if !is_possible() {
            return None;
        }
        let world = World::without_group(&[("GPULIMIT_SIM_GPUS", "2")]);
        let ports = [world::free_port(), world::free_port()];
        fs::write(world.file("ports"), format!("{} {}\n", ports[0], ports[1])).expect("written");
        let log = fs::File::create(world.file("log")).expect("a log");
        let mut node = Command::new("unshare")
            .args(["-mpf", "--mount-proc", "--kill-child", "sh"])
            .arg(repository().join("tests/programs/tests/sites/cluster.sh"))
            .args([
                world.file(""),
                repository(),
                world::controller(),
                world::shim(),
            ])
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("started");
        let input = node.stdin.take().expect("piped");
        let answers = BufReader::new(node.stdout.take().expect("piped"));
        let mut cluster = Cluster {
            world,
            node,
            input,
            answers,
            count: Cell::new(0),
        };
        assert_eq!(cluster.answer(), "ready");
        Some(cluster)
    }

    #[track_caller]
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("readable");
        let read = |name| fs::read_to_string(self.world.file(name)).unwrap_or_default();
        assert!(!line.is_empty(), "the node is gone: {}", read("log"));
        line.trim_end().to_owned()
    }

    /// Runs a command on the node as this user, with the simulated driver in its environment;
    /// returns its status and output.
    #[track_caller]
    fn run_as(&mut self, uid: u32, command: &str) -> (i32, String) {
        let number = self.count.replace(self.count.get() + 1);
        let mut place = Command::new("env");
        self.world.machine().enter(&mut place);
        let mut text = String::from("cd /tmp\n");
        for (name, value) in place.get_envs() {
            let value = value.expect("a value").to_str().expect("UTF-8");
            text += &format!("export {}='{value}'\n", name.to_str().expect("UTF-8"));
        }
        text += &format!(
            "export J='{}' GPU_SCRIPT='{}' HOME=/tmp\n",
            self.world.file("").display(),
            world::program().display()
        );
        // A command that waits for ever fails by this time limit.
        text += &format!(
            "exec setpriv --reuid={uid} --regid={uid} --clear-groups timeout {} sh -c '{}'\n",
            patience().as_secs(),
            command.replace('\'', "'\\''")
        );
        fs::write(self.world.file(&format!("command.{number}")), text).expect("written");
        writeln!(self.input, "{number}").expect("the node listens");
        let status = self.answer().parse().expect("a status");
        let output = self.world.file(&format!("output.{number}"));
        (status, fs::read_to_string(output).expect("an output"))
    }

    /// Returns the output of a command that must succeed.
    #[track_caller]
    fn says(&mut self, uid: u32, command: &str) -> String {
        let (status, output) = self.run_as(uid, command);
        assert_eq!(
            status,
            0,
            "{command}: {output}\n{}",
            self.run_as(0, "tail -n 40 /var/log/slurmd.log /var/log/slurmctld.log")
                .1
        );
        output
    }

    /// Writes a script for `gpu-script`; returns its path on the node.
    fn script(&self, name: &str, lines: &str) -> PathBuf {
        let path = self.world.file(name);
        fs::write(&path, lines).expect("written");
        path
    }

    /// Returns the groups of jobs by number, with their limits on each GPU.
    #[track_caller]
    fn groups(&mut self) -> Vec<Value> {
        let text = self.says(0, "gpulimit show --tree --json");
        let tree: Value = serde_json::from_str(&text).expect("JSON");
        // The group of all jobs exists once a job has run.
        let tops = tree["groups"].as_array().expect("groups");
        let below = tops.iter().flat_map(|top| top["groups"].as_array());
        below.flatten().cloned().collect()
    }

    /// Asserts that no job, group, program, memory or note is left, and that the node accepts jobs.
    #[track_caller]
    fn nothing_is_left(&mut self) {
        const QUIET: &str =
            "until [ -z \"$(squeue -h)\" ] && sinfo -h -o %T | grep -qx idle; do sleep 0.1; done";
        self.says(0, QUIET);
        assert_eq!(self.groups(), Vec::<Value>::new());
        assert_eq!(self.says(0, "ls -A /run/gpulimit-slurm"), "");
        let empty = || self.world.machine().gpus().iter().all(|gpu| gpu.used == 0);
        assert!(
            world::eventually(empty),
            "{:?}",
            self.world.machine().gpus()
        );
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The namespace's first process ends, and with it all other processes.
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

/// Returns whether the output contains this line.
fn has(output: &str, line: &str) -> bool {
    output.lines().any(|answer| answer == line)
}

#[test]
fn a_jobs_limit_follows_its_shards() {
    let Some(mut node) = Cluster::start() else {
        return;
    };
    // A GPU has 79.6 GiB; a shard is a quarter.
    let more = node.script("more", "start\nalloc a 19G\nalloc b 2G\n");
    let run = |options: &str| format!("srun {options} \"$GPU_SCRIPT\" {}", more.display());

    let (_, one) = node.run_as(ALICE, &run("--gres=shard:1"));
    assert!(
        has(&one, "alloc a 19G = 0") && has(&one, "alloc b 2G = 2"),
        "{one}"
    );
    assert!(
        one.contains("gpulimit: refused cuMemAlloc of 2.0 GiB"),
        "{one}"
    );
    let two = node.says(BOB, &run("--gres=shard:2"));
    assert!(
        has(&two, "alloc a 19G = 0") && has(&two, "alloc b 2G = 0"),
        "{two}"
    );

    // A whole GPU has the limit of the comment, or none.
    let (_, asked) = node.run_as(
        ALICE,
        &run("--gres=gpu:1 --comment='night run, gpulimit=20g'"),
    );
    assert!(
        has(&asked, "alloc a 19G = 0") && has(&asked, "alloc b 2G = 2"),
        "{asked}"
    );
    let all = node.says(ALICE, &run("--gres=gpu:1"));
    assert!(has(&all, "alloc b 2G = 0"), "{all}");

    // The limit holds on each of several GPUs.
    let both = node.script(
        "both",
        "init\nretain 0\nretain 1\ncurrent 0\nalloc a 2G\ncurrent 1\nalloc b 2G\nalloc c 2G\n",
    );
    let (_, both) = node.run_as(
        ALICE,
        &format!(
            "srun --gpus=2 --comment=gpulimit=4G \"$GPU_SCRIPT\" {}",
            both.display()
        ),
    );
    let got = [("a", 0), ("b", 0), ("c", 2)];
    assert!(
        got.iter()
            .all(|(name, status)| has(&both, &format!("alloc {name} 2G = {status}"))),
        "{both}"
    );

    // A job without a GPU has no group.
    let none = node.says(
        ALICE,
        "srun sh -c 'echo \"${GPULIMIT_GROUP:-none} ${LD_PRELOAD:-none}\"'",
    );
    assert!(has(&none, "none none"), "{none}");
    node.nothing_is_left();
}

#[test]
fn tasks_of_a_job_share_a_limit_and_jobs_of_an_array_do_not() {
    let Some(mut node) = Cluster::start() else {
        return;
    };
    let folder = node.world.file("jobs");
    fs::create_dir(&folder).expect("made");
    std::os::unix::fs::chown(&folder, Some(ALICE), Some(ALICE)).expect("given");
    node.script(
        "task.0",
        &format!(
            "start\nalloc a 12G\ntouch {0}/held\nwait {0}/done\n",
            folder.display()
        ),
    );
    node.script(
        "task.1",
        &format!(
            "wait {0}/held\nstart\nalloc b 12G\ntouch {0}/done\n",
            folder.display()
        ),
    );
    let (_, tasks) = node.run_as(
        ALICE,
        "srun -n 2 --gres=shard:1 sh -c 'exec \"$GPU_SCRIPT\" \"$J\"/task.$SLURM_PROCID'",
    );
    assert!(
        has(&tasks, "alloc a 12G = 0") && has(&tasks, "alloc b 12G = 2"),
        "{tasks}"
    );

    // The members are the script, a step, and a step in a nested group that the script has made.
    let job = "echo \"script $GPULIMIT_GROUP $LD_PRELOAD\"; \
        srun sh -c 'echo \"step $GPULIMIT_GROUP $LD_PRELOAD\"'; \
        gpulimit run --max 2G -- srun sh -c 'echo \"below $GPULIMIT_GROUP\"'";
    fs::write(node.world.file("job.sh"), format!("#!/bin/sh\n{job}\n")).expect("written");
    node.says(
        ALICE,
        "sbatch --wait --array=1-3 --gres=shard:1 -o \"$J\"/jobs/%A.%a \"$J\"/job.sh",
    );
    let library = "/usr/local/lib/gpulimit/libgpulimit.so";
    let mut groups = Vec::new();
    for file in fs::read_dir(&folder).expect("a folder") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("readable");
        if let Some(line) = text.lines().find_map(|line| line.strip_prefix("script ")) {
            let (group, preload) = line.split_once(' ').expect("two words");
            assert_eq!(preload, library);
            assert!(has(&text, &format!("step {group} {library}")), "{text}");
            assert!(text.contains(&format!("below {group}/run-")), "{text}");
            groups.push(group.to_owned());
        }
    }
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups.len(), 3, "{groups:?}");
    assert!(
        groups.iter().all(|group| group.starts_with("slurm/")),
        "{groups:?}"
    );
    node.nothing_is_left();
}

#[test]
fn cancelled_and_requeued_jobs_leave_no_group() {
    let Some(mut node) = Cluster::start() else {
        return;
    };
    let folder = node.world.file("jobs");
    fs::create_dir(&folder).expect("made");
    std::os::unix::fs::chown(&folder, Some(ALICE), Some(ALICE)).expect("given");
    let hold = |name: &str| {
        let place = folder.join(name);
        format!(
            "start\nalloc a 3G\ntouch {0}\nwait {0}.never\n",
            place.display()
        )
    };
    node.script("hold", &hold("held"));
    node.script("stray", &hold("stray"));
    // Slurm ends the first program; it does not know of the second, which is not its child and
    // ignores SIGTERM.
    let job = "echo \"$GPULIMIT_GROUP\" >\"$J\"/jobs/group\nexec \"$GPU_SCRIPT\" \"$J\"/hold\n";
    fs::write(node.world.file("job.sh"), format!("#!/bin/sh\n{job}")).expect("written");
    node.says(ALICE, "sbatch -o /dev/null --gres=shard:2 \"$J\"/job.sh");
    node.says(ALICE, "until [ -e \"$J\"/jobs/held ]; do sleep 0.1; done");
    let groups = node.groups();
    assert_eq!(groups.len(), 1, "{groups:?}");
    let group = fs::read_to_string(folder.join("group")).expect("written");
    assert_eq!(groups[0]["name"], group.trim_end());
    node.says(
        ALICE,
        "export GPULIMIT_GROUP=$(cat \"$J\"/jobs/group) \
            LD_PRELOAD=/usr/local/lib/gpulimit/libgpulimit.so; \
         (trap '' TERM; setsid \"$GPU_SCRIPT\" \"$J\"/stray &) >/dev/null 2>&1; \
         until [ -e \"$J\"/jobs/stray ]; do sleep 0.1; done",
    );
    let held = node
        .world
        .machine()
        .gpus()
        .iter()
        .map(|gpu| gpu.used)
        .sum::<u64>();
    assert!(held >= 6 << 30, "{held}");
    node.says(ALICE, "scancel --user alice");
    node.nothing_is_left();
    let (status, programs) = node.run_as(0, "pgrep -x gpu-script");
    assert_eq!((status, &*programs), (1, ""));

    // The job runs twice under the same number, each time in a new group.
    let job = "echo \"$GPULIMIT_GROUP ${SLURM_RESTART_COUNT:-0}\" >>\"$J\"/jobs/runs\n\
        [ \"${SLURM_RESTART_COUNT:-0}\" = 1 ] || exec \"$GPU_SCRIPT\" \"$J\"/again\n";
    node.script("again", &hold("again"));
    fs::write(node.world.file("job.sh"), format!("#!/bin/sh\n{job}")).expect("written");
    node.says(
        ALICE,
        "sbatch -o /dev/null --requeue --gres=shard:1 \"$J\"/job.sh",
    );
    node.says(ALICE, "until [ -e \"$J\"/jobs/again ]; do sleep 0.1; done");
    // Slurm delays such a job by two minutes; in fact the job must only wait for the end of the
    // second in which it was stopped.
    node.says(
        0,
        "job=$(squeue -h -o %A); scontrol requeue $job; \
        until [ \"$(squeue -h -o %T)\" = PENDING ]; do sleep 0.1; done; \
        scontrol update jobid=$job starttime=now+3",
    );
    node.nothing_is_left();
    let runs = fs::read_to_string(folder.join("runs")).expect("written");
    let runs: Vec<_> = runs.lines().collect();
    let group = runs[0].strip_suffix(" 0").expect("the first run");
    assert_eq!(runs, [format!("{group} 0"), format!("{group} 1")]);
}

#[test]
fn wrong_comments_fail_the_job_and_broken_nodes_follow_on_error() {
    let Some(mut node) = Cluster::start() else {
        return;
    };
    let (status, said) = node.run_as(ALICE, "srun --gres=gpu:1 --comment=gpulimit=lots true");
    assert_ne!(status, 0);
    let line = "no GPU memory for this job: the job's comment asks for gpulimit=lots: \
        invalid size 'lots'";
    assert!(said.contains(line), "{said}");
    node.nothing_is_left();

    const LIBRARY: &str = "/usr/local/lib/gpulimit/libgpulimit.so";
    node.says(
        0,
        &format!("mv {LIBRARY} /run/kept; echo on_error=closed >>/etc/gpulimit/slurm.conf"),
    );
    let (status, said) = node.run_as(ALICE, "srun --gres=shard:1 true");
    assert_ne!(status, 0);
    assert!(
        said.contains(&format!(
            "no GPU memory for this job: there is no {LIBRARY}"
        )),
        "{said}"
    );
    let other = node.says(ALICE, "srun echo no GPU, no matter");
    assert!(has(&other, "no GPU, no matter"), "{other}");
    // The node is not drained.
    node.nothing_is_left();

    node.says(0, "echo on_error=open >>/etc/gpulimit/slurm.conf");
    let open = node.says(
        ALICE,
        "srun --gres=shard:1 sh -c 'echo \"${GPULIMIT_GROUP:-none} ${LD_PRELOAD:-none}\"'",
    );
    assert!(has(&open, "none none"), "{open}");

    node.says(0, "echo on_error=drain >>/etc/gpulimit/slurm.conf");
    node.says(
        ALICE,
        "sbatch -o /dev/null --gres=shard:1 --wrap 'echo \"$GPULIMIT_GROUP\"' 2>&1",
    );
    node.says(
        0,
        "until sinfo -h -o %T | grep -q ^drained; do sleep 0.1; done; \
        until [ \"$(squeue -h -o %T)\" = PENDING ]; do sleep 0.1; done",
    );
    node.says(
        0,
        &format!(
            "mv /run/kept {LIBRARY}; scontrol update nodename=$(hostname -s) state=resume; \
        scontrol update jobid=$(squeue -h -o %A) starttime=now+3"
        ),
    );
    node.nothing_is_left();
}
