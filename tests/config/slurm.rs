//! Slurm's scripts without Slurm: the test sets the variables that Slurm 22.05 gives to scripts,
//! and `squeue` is a script with a fixed answer. Each test runs in every shell that may be
//! `/bin/sh` of a node.

use crate::nothing::Nothing;
use crate::place::{GPULIMIT, Place, Shell, have, in_each_shell, me, repository, text};
use gpulimit_base::device::DeviceId;
use gpulimit_group::{Insistence, Member};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A node: settings, a library, and the programs that the scripts look for.
struct Node<'a> {
    place: Place,
    shell: &'a Shell,
}

impl<'a> Node<'a> {
    /// Makes a node with these lines in its settings.
    fn new(shell: &'a Shell, settings: &str) -> Self {
        let place = Place::new();
        place.write("libgpulimit.so", "");
        fs::create_dir(place.at("bin")).expect("made");
        std::os::unix::fs::symlink(GPULIMIT, place.at("bin/gpulimit")).expect("made");
        let node = Node { place, shell };
        node.settings(settings);
        node.queue("1                   gres:shard:2   N/A");
        node
    }

    fn settings(&self, lines: &str) {
        let at = |path: &str| self.place.at(path).display().to_string();
        // The function keeps messages out of the machine's log. Some builds of busybox prefer their
        // own logger to one in PATH.
        let text = format!(
            "library={}\nroot={}\nstate={}\nPATH={}:{}\n\
             logger() {{ echo \"$*\" >>{}; }}\n{lines}\n",
            at("libgpulimit.so"),
            at("root"),
            at("state"),
            at("bin"),
            self.shell.path,
            at("log"),
        );
        self.place.write("slurm.conf", &text);
    }

    /// Sets the answer of squeue.
    fn queue(&self, lines: &str) {
        let script = format!("#!/bin/sh\ncat <<'END'\n{lines}\nEND\n");
        self.place.script("bin/squeue", &script);
    }

    /// Runs one of the scripts for job 1.
    fn run(&self, script: &str, variables: &[(&str, &str)]) -> Output {
        let mut command = self.shell.command();
        command
            .arg(repository("config/slurm").join(script))
            .env("GPULIMIT_SLURM_CONF", self.place.at("slurm.conf"))
            .env("SLURM_JOB_ID", "1")
            .env("SLURM_JOB_UID", me().to_string())
            .envs(variables.iter().copied());
        command.output().expect("started")
    }

    /// Runs the Prolog of a job with a GPU and returns its status.
    fn prolog(&self, comment: &str) -> i32 {
        let variables = [("SLURM_JOB_GPUS", "0"), ("SLURM_JOB_COMMENT", comment)];
        let output = self.run("prolog", &variables);
        assert_eq!(text(&output.stdout), "");
        output.status.code().expect("a status")
    }

    /// Returns whether the task may run, and the TaskProlog's output, with this node's folder
    /// replaced by PLACE.
    fn task(&self, variables: &[(&str, &str)]) -> (bool, String) {
        let output = self.run("task-prolog", variables);
        assert_eq!(text(&output.stderr), "");
        let said = text(&output.stdout);
        let place = self.place.at("");
        let said = said.replace(place.to_str().expect("UTF-8"), "PLACE/");
        (output.status.success(), said)
    }

    fn epilog(&self) {
        let output = self.run("epilog", &[("SLURM_JOB_GPUS", "0")]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the limit of the job's group.
    fn max(&self) -> String {
        let output = self.place.gpulimit(&["get", "slurm/1", "max"]);
        text(&output.stdout).trim().to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.at("log")).unwrap_or_default()
    }

    fn notes(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.place.at("state")) else {
            return Vec::new();
        };
        entries
            .map(|entry| entry.expect("readable").path())
            .collect()
    }

    /// Asserts that no note of a job and no group is left.
    #[track_caller]
    fn clean(&self) {
        assert_eq!(self.notes(), Vec::<PathBuf>::new());
        assert!(!self.place.groups().iter().any(|name| name.contains('/')));
    }
}

const ENTERED: &str = "export GPULIMIT_ROOT=PLACE/root\nexport GPULIMIT_GROUP=slurm/1\n\
    export LD_PRELOAD=PLACE/libgpulimit.so\n";

#[test]
fn a_job_has_a_group_from_prolog_to_epilog() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "shard=2.5G");
        assert_eq!(node.prolog("night run"), 0, "{}", node.log());
        assert_eq!(node.max(), "5GiB");
        assert_eq!(node.task(&[]), (true, ENTERED.into()));
        // The job makes a nested group of its own.
        assert!(
            node.place
                .gpulimit(&["create", "slurm/1/own", "max=1G"])
                .status
                .success()
        );
        node.epilog();
        node.clean();
        // The Epilog runs again, and may run for a job whose Prolog never ran.
        node.epilog();
        assert_eq!(node.log(), "");
    });
}

/// Where Slurm's own limit of device memory holds, there is no second one; in doubt there is one of
/// gpulimit, and the log names both.
#[test]
fn the_limit_of_slurm_itself_is_not_set_twice() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "");
        let of_slurm = node
            .place
            .write("cgroup.conf", " ConstrainDeviceMemory = Yes\n");
        node.settings(&format!("shard=2G\ncgroup_conf={}", of_slurm.display()));
        assert_eq!((node.prolog(""), &*node.max()), (0, "4GiB"));
        let log = node.log();
        assert!(log.contains("shard=2G of gpulimit holds; "), "{log}");
        assert!(log.contains("ConstrainDeviceMemory=yes, too"), "{log}");
        node.epilog();
        let announced = [
            ("SLURM_JOB_GPUS", "0"),
            ("SLURM_SHARD_MEM_PER_GPU", "0000:3b:00.0=9216M"),
        ];
        assert!(node.run("prolog", &announced).status.success());
        assert_eq!(node.max(), "max");
        assert!(node.log().contains("gpulimit sets none for shards"));
        node.epilog();
        // With this limit off, nothing is said.
        fs::remove_file(node.place.at("log")).expect("removed");
        node.place.write(
            "cgroup.conf",
            "#ConstrainDeviceMemory=yes\nConstrainDeviceMemory=no\n",
        );
        assert_eq!((node.prolog(""), &*node.max()), (0, "4GiB"));
        assert_eq!(node.log(), "");
        node.epilog();
        node.clean();
    });
}

/// Removes the group of the job, and returns what the Epilog says of its use, in lines.
fn used(node: &Node<'_>) -> String {
    let output = node.run("epilog", &[("SLURM_JOB_GPUS", "0")]);
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stderr);
    let lines = said
        .lines()
        .map(|line| line.strip_prefix("gpulimit: job 1: "));
    let lines: Vec<&str> = lines.map(Option::unwrap_or_default).collect();
    // The system log has the same lines.
    let log = node.log();
    let is_logged = |line: &&str| log.contains(&format!("Slurm job 1: {line}\n"));
    assert!(lines.iter().all(is_logged), "{said}{log}");
    lines.join("\n")
}

#[test]
fn the_epilog_logs_what_the_job_has_used() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "shard=4G");
        node.queue("1 gres:shard:1 N/A");
        assert_eq!(node.prolog(""), 0, "{}", node.log());
        let root = node.place.root();
        let member = Member::join(&root, "slurm/1").expect("joined");
        for (number, gib) in [(1, 3), (2, 1)] {
            let gpu = DeviceId::gpu([number; 16]);
            let device = member.device(gpu, 80 << 30).expect("a device");
            let charge = |bytes| device.charge(bytes, &Nothing, Insistence::Full);
            charge(gib << 30).expect("fits");
            let refusal = charge(5 << 30).expect_err("above the limit");
            device.count_refusal("cuMemAlloc", 5 << 30, &refusal);
        }
        drop(member);
        let said = used(&node);
        let (figures, why) = said.split_once('\n').expect("two lines");
        assert_eq!(
            figures,
            "used 0.00 GiB-hours on 2 GPUs, peak 3.0 GiB on one, 2 requests refused, 0.0 s waited"
        );
        let asked = format!("refused: pid {} (", std::process::id());
        assert!(why.starts_with(&asked), "{why}");
        assert!(
            why.contains("asked for 5.0 GiB by cuMemAlloc on GPU "),
            "{why}"
        );
        assert!(why.ends_with(" left of 4.0 GiB in slurm/1"), "{why}");
        node.clean();
        // The figures are those of the job's own group, which has those of the groups below it.
        let report = "group,root,gpu,uid,user,gib_hours,peak,refusals,waits,waited_ms,made,\
            gib_hours_uncertain\n\
            slurm/1,\"/a,b\",GPU-1,,,1234.56789,5368709120,1200,3,65432,2026-11-23T15:00:00.000Z,\n\
            slurm/1/own,\"/a,b\",GPU-1,,,1.000000,4,5,6,7,2026-11-23T15:00:00.000Z,\n\
            slurm/12,\"/a,b\",GPU-1,,,2.000000,4,5,6,7,,";
        let gpulimit = node.place.at("bin/gpulimit");
        node.place.script(
            "bin/gpulimit",
            &format!(
                "#!/bin/sh\n[ \"$1\" != report ] || {{ cat <<'END'\n{report}\nEND\nexit; }}\n\
                 exec {GPULIMIT} \"$@\"\n"
            ),
        );
        assert_eq!(node.prolog(""), 0, "{}", node.log());
        assert_eq!(
            used(&node),
            "used 1234.57 GiB-hours on 1 GPU, peak 5.0 GiB, 1200 requests refused, 65.4 s waited"
        );
        node.clean();
        // A controller that knows no report only costs the line.
        node.place.script(
            "bin/gpulimit",
            &format!("#!/bin/sh\n[ \"$1\" != report ] || exit 2\nexec {GPULIMIT} \"$@\"\n"),
        );
        assert_eq!(node.prolog(""), 0, "{}", node.log());
        let output = node.run("epilog", &[]);
        assert_eq!(
            (output.status.success(), &*text(&output.stderr)),
            (true, "")
        );
        node.clean();
        fs::remove_file(gpulimit).expect("removed");
    });
}

#[test]
fn shards_are_read_in_the_format_of_every_version() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "shard=12.5%");
        for (queue, max) in [
            ("1 gres:shard N/A", "12.5%"),
            ("1 gres:shard:3 N/A", "37.5%"),
            ("1 gres/shard:a100:4 N/A", "50%"),
            ("1 gres/shard=2 N/A", "25%"),
            ("1 gres:nic:1,gres:shard:2,license/x:9 N/A", "25%"),
            // Other jobs of the same array are listed, too.
            (
                "12 gres:shard:8 N/A\n1 gres:shard:2 N/A\n11 gres:shard:7 N/A",
                "25%",
            ),
            // The job has a whole GPU, or one by `--gpus`.
            ("1 gres:gpu:2 N/A", "max"),
            ("1 N/A N/A", "max"),
        ] {
            node.queue(queue);
            assert_eq!(node.prolog(""), 0, "{queue}: {}", node.log());
            assert_eq!(node.max(), max, "{queue}");
            node.epilog();
        }
        // The result is a whole number of bytes.
        node.settings("shard=2147483649");
        node.queue("1 gres:shard:1K N/A");
        assert_eq!((node.prolog(""), &*node.max()), (0, "2147483649KiB"));
        node.epilog();
        node.settings("shard=12.5%");
        node.queue("1 N/A gres/shard:1");
        assert_eq!(node.prolog(""), 0);
        let (may, said) = node.task(&[]);
        assert!(!may && said.contains("--gres=shard:N"), "{said}");
        node.epilog();
        node.clean();
    });
}

#[test]
fn a_jobs_comment_sets_its_limit_without_shards() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "default=30%");
        for (comment, max) in [
            ("gpulimit=8g", "8GiB"),
            ("night run, gpulimit=1.5G;x", "1536MiB"),
            ("a\tgpulimit=2G\nmygpulimit=9G", "2GiB"),
            ("gpulimit=1G gpulimit=3G", "3GiB"),
            ("gpulimit 8g", "30%"),
            ("", "30%"),
        ] {
            assert_eq!(node.prolog(comment), 0, "{comment}: {}", node.log());
            assert_eq!(node.max(), max, "{comment}");
            node.epilog();
        }
        node.settings("default=30%\ncomment=no");
        assert_eq!((node.prolog("gpulimit=8g"), &*node.max()), (0, "30%"));
        node.epilog();
        node.settings("shard=1G");
        assert_eq!((node.prolog("gpulimit=8g"), &*node.max()), (0, "2GiB"));
        node.epilog();
        // The scripts run no part of the comment.
        let touched = node.place.at("touched");
        node.settings("");
        let words = [
            "$(touch T)",
            "1G;touch${IFS}T",
            "`touch${IFS}T`",
            "--force",
            "1G'",
            "*",
        ];
        for word in words {
            let word = word.replace('T', touched.to_str().expect("UTF-8"));
            assert_eq!(node.prolog(&format!("gpulimit={word}")), 0);
            node.epilog();
        }
        assert!(!touched.exists());
        node.clean();
    });
}

#[test]
fn jobs_without_gpus_get_no_group() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "default=1G");
        assert!(node.run("prolog", &[]).status.success());
        assert_eq!(node.task(&[]), (true, String::new()));
        node.epilog();
        assert!(!node.place.at("root").exists());
        node.settings("default=1G\njobs=all");
        assert!(node.run("prolog", &[]).status.success());
        assert_eq!(node.max(), "1GiB");
        node.epilog();
        // A job's own limit holds even where the site leaves GPUs open.
        node.settings("");
        let asked = [("SLURM_JOB_COMMENT", "gpulimit=2G")];
        assert!(node.run("prolog", &asked).status.success());
        assert_eq!(node.max(), "2GiB");
        node.epilog();
        node.clean();
    });
}

#[test]
fn a_jobs_wrong_comment_fails_only_the_job() {
    in_each_shell(|shell| {
        for on_error in ["drain", "closed", "open"] {
            let node = Node::new(shell, &format!("on_error={on_error}"));
            assert_eq!(node.prolog("gpulimit=lots"), 0);
            let (may, said) = node.task(&[("SLURM_STEP_GPUS", "0")]);
            assert!(!may, "{said}");
            let line = "print gpulimit: no GPU memory for this job: \
                the job's comment asks for gpulimit=lots: invalid size 'lots'";
            assert!(
                said.starts_with(line) && said.lines().count() == 1,
                "{said}"
            );
            assert!(node.log().contains("Slurm job 1: "), "{}", node.log());
            node.epilog();
            // Control characters, of one byte and of two, reach neither a log nor the task.
            assert_eq!(node.prolog("gpulimit=\u{1b}[2J\r\u{9b}8m"), 0);
            let (_, said) = node.task(&[("SLURM_STEP_GPUS", "0")]);
            for text in [node.log(), said] {
                let is_shown = |c: char| c == '\n' || !c.is_control();
                assert!(
                    text.contains("gpulimit=?[2J") && text.chars().all(is_shown),
                    "{text:?}"
                );
            }
            node.epilog();
            // The job user's text is printed unchanged: a shell's echo would turn it into an escape
            // sequence and a second line.
            let asked = [
                ("SLURM_JOB_GPUS", "0"),
                ("SLURM_JOB_COMMENT", r"gpulimit=\033[2Jlots\nok"),
            ];
            let said = text(&node.run("prolog", &asked).stderr);
            let (may, line) = node.task(&[("SLURM_STEP_GPUS", "0")]);
            assert!(!may, "{line}");
            for text in [said, line] {
                assert!(text.contains(r"gpulimit=\033[2Jlots\nok"), "{text}");
                assert!(
                    !text.contains('\x1b') && text.lines().count() == 1,
                    "{text}"
                );
            }
            node.epilog();
            node.clean();
        }
    });
}

#[test]
fn on_error_decides_what_a_broken_node_does() {
    in_each_shell(|shell| {
        // The cause in the settings, the damage, and the expected message.
        type Damage<'a> = &'a dyn Fn(&Node<'_>);
        let broken: [(&str, Damage<'_>, &str); 6] = [
            (
                "",
                &|node| fs::remove_file(node.place.at("libgpulimit.so")).expect("removed"),
                "there is no ",
            ),
            (
                "",
                &|node| {
                    drop(
                        node.place
                            .script("bin/gpulimit", "#!/bin/sh\necho gpulimit: broken; exit 1\n"),
                    )
                },
                "broken",
            ),
            (
                "shard=1G",
                &|node| drop(node.place.script("bin/squeue", "#!/bin/sh\nexit 1\n")),
                "squeue does not say",
            ),
            (
                "shard=1G",
                &|node| node.queue("12 gres:shard:1 N/A"),
                "squeue does not say",
            ),
            ("shard=lots", &|_| {}, "shard=lots"),
            ("default=lots", &|_| {}, "invalid size 'lots'"),
        ];
        for (settings, damage, says) in broken {
            for on_error in ["drain", "closed", "open"] {
                let node = Node::new(shell, &format!("{settings}\non_error={on_error}"));
                damage(&node);
                let status = node.prolog("");
                assert!(node.log().contains(says), "{on_error}: {}", node.log());
                let (may, said) = node.task(&[("SLURM_STEP_GPUS", "0")]);
                match on_error {
                    "drain" => assert_eq!((status, may), (1, false), "{said}"),
                    "closed" => {
                        assert_eq!((status, may), (0, false), "{said}");
                        assert!(said.contains(says), "{said}");
                    }
                    _ => assert_eq!((status, may, &*said), (0, true, "")),
                }
                node.epilog();
                assert_eq!(node.notes(), Vec::<PathBuf>::new());
            }
        }
        // With settings that are not valid shell, or that end the shell, the defaults hold.
        for settings in ["on_error=open\nif", "exit 3", "$(false) |"] {
            let node = Node::new(shell, settings);
            assert_eq!(node.prolog(""), 1, "{settings}");
            assert!(node.run("epilog", &[]).status.success(), "{settings}");
        }
    });
}

#[test]
fn a_task_without_a_prolog_is_refused() {
    in_each_shell(|shell| {
        let gpu = [("SLURM_STEP_GPUS", "0")];
        let node = Node::new(shell, "");
        let (may, said) = node.task(&gpu);
        assert!(!may && said.contains("Prolog has not run"), "{said}");
        assert_eq!(node.task(&[]), (true, String::new()));
        node.settings("on_error=open");
        assert_eq!(node.task(&gpu), (true, String::new()));
        // The library has been removed since the Prolog.
        assert_eq!(node.prolog(""), 0);
        fs::remove_file(node.place.at("libgpulimit.so")).expect("removed");
        assert_eq!(node.task(&gpu), (true, String::new()));
        node.settings("");
        let (may, said) = node.task(&gpu);
        assert!(
            !may && said.contains("there is no PLACE/libgpulimit.so"),
            "{said}"
        );
    });
}

#[test]
fn tasks_keep_variables_set_by_their_job() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "");
        assert_eq!(node.prolog(""), 0);
        let library = node.place.at("libgpulimit.so").display().to_string();
        let root = "export GPULIMIT_ROOT=PLACE/root\n";
        let group = "export GPULIMIT_GROUP=slurm/1\n";
        let preload = "export LD_PRELOAD=PLACE/libgpulimit.so\n";
        let cases: [(&[(&str, &str)], String); 6] = [
            (
                &[("GPULIMIT_GROUP", "slurm/1/run-1-2")],
                format!("{root}{preload}"),
            ),
            (
                &[("GPULIMIT_GROUP", "slurm/12")],
                format!("{root}{group}{preload}"),
            ),
            (
                &[("GPULIMIT_GROUP", "lab")],
                format!("{root}{group}{preload}"),
            ),
            (
                &[("GPULIMIT_ROOT", "/elsewhere")],
                format!("{root}{group}{preload}"),
            ),
            (&[("LD_PRELOAD", &library)], format!("{root}{group}")),
            (
                &[("LD_PRELOAD", "/none.so:/other.so")],
                format!("{root}{group}export LD_PRELOAD=PLACE/libgpulimit.so:/none.so:/other.so\n"),
            ),
        ];
        for (variables, said) in cases {
            // The linker of every program would complain about a preload that does not exist.
            let output = node.run("task-prolog", variables);
            assert!(output.status.success(), "{output:?}");
            let place = node.place.at("");
            let place = place.to_str().expect("UTF-8");
            assert_eq!(
                text(&output.stdout).replace(place, "PLACE/"),
                said,
                "{variables:?}"
            );
        }
        // With the machine's own root, the job's environment cannot name another one.
        let settings = fs::read_to_string(node.place.at("slurm.conf")).expect("readable");
        node.place
            .write("slurm.conf", &format!("{settings}\nroot=/run/gpulimit\n"));
        let said = node.task(&[("GPULIMIT_ROOT", "/elsewhere")]);
        assert_eq!(
            said,
            (true, format!("unset GPULIMIT_ROOT\n{group}{preload}"))
        );
    });
}

#[test]
fn a_second_prolog_reuses_the_jobs_group() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "");
        assert_eq!(node.prolog("gpulimit=8G"), 0);
        // The job is queued again with another comment, and no Epilog has run.
        assert!(
            node.place
                .gpulimit(&["create", "slurm/1/old"])
                .status
                .success()
        );
        assert_eq!((node.prolog("gpulimit=4G"), &*node.max()), (0, "4GiB"));
        assert_eq!(node.place.groups(), ["slurm", "slurm/1"]);
        // The group's programs still run, as after a restart of slurmd, and must keep their memory.
        let root = node.place.root();
        let member = Member::join(&root, "slurm/1").expect("joined");
        assert_eq!((node.prolog("gpulimit=2G"), &*node.max()), (0, "2GiB"));
        assert!(!member.is_orphaned());
        drop(member);
        node.epilog();
        node.clean();
    });
}

#[test]
fn a_later_epilog_removes_groups_that_an_earlier_one_could_not() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "");
        assert_eq!(node.prolog(""), 0);
        // This controller removes no group.
        let works = node.place.at("bin/gpulimit");
        let stuck = format!(
            "#!/bin/sh\n[ \"$1\" != rm ] || {{ echo gpulimit: in use >&2; exit 1; }}\n\
                exec {GPULIMIT} \"$@\"\n"
        );
        node.place.script("bin/gpulimit", &stuck);
        node.epilog();
        assert!(
            node.log().contains("group slurm/1 stays: gpulimit: in use"),
            "{}",
            node.log()
        );
        assert_eq!(node.place.groups(), ["slurm", "slurm/1"]);
        node.epilog();
        // Without a controller the Epilog succeeds, too, so that the node is not drained.
        fs::remove_file(&works).expect("removed");
        node.epilog();
        std::os::unix::fs::symlink(GPULIMIT, &works).expect("made");
        // The Epilog of a later job removes the group.
        let other = node.run("epilog", &[("SLURM_JOB_ID", "2")]);
        assert!(other.status.success(), "{other:?}");
        node.clean();
        // A new job with the same number, which runs by then, keeps its group.
        assert_eq!(node.prolog(""), 0);
        node.place.script("bin/gpulimit", &stuck);
        node.epilog();
        fs::remove_file(&works).expect("removed");
        std::os::unix::fs::symlink(GPULIMIT, &works).expect("made");
        assert_eq!(node.prolog(""), 0);
        node.run("epilog", &[("SLURM_JOB_ID", "2")]);
        assert_eq!(node.place.groups(), ["slurm", "slurm/1"]);
        node.epilog();
        node.clean();
        // The group was removed by hand meanwhile.
        assert_eq!(node.prolog(""), 0);
        assert!(node.place.gpulimit(&["rm", "slurm/1"]).status.success());
        node.epilog();
        node.clean();
    });
}

/// A job that has ended can keep its slots locked, for instance by a process that cannot be killed.
#[test]
fn groups_kept_locked_by_earlier_jobs_do_not_delay_others() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "");
        let works = node.place.at("bin/gpulimit");
        let calls = node.place.at("calls");
        // The settings replace the clock by a file. Removing a group fails after `wait` seconds of
        // this clock, because the group is in use.
        let clock = node.place.write("clock", "0");
        let clock = clock.display();
        let settings = |patience: u32| {
            node.settings(&format!("patience={patience}\ndate() {{ cat {clock}; }}"));
        };
        let stuck = |wait: u32| {
            let script = format!(
                "#!/bin/sh\n[ \"$1\" != rm ] || {{ echo \"$*\" >>{}; \
                 echo $(($(cat {clock}) + {wait})) >{clock}; \
                 echo gpulimit: in use >&2; exit 1; }}\nexec {GPULIMIT} \"$@\"\n",
                calls.display()
            );
            node.place.script("bin/gpulimit", &script);
        };
        let taken = || {
            let said = fs::read_to_string(&calls).unwrap_or_default();
            let _ = fs::remove_file(&calls);
            said
        };
        let epilog = |job: &str| {
            let output = node.run("epilog", &[("SLURM_JOB_ID", job)]);
            assert!(output.status.success(), "{output:?}");
        };
        settings(600);
        for job in ["1", "2", "3"] {
            let gpu = [("SLURM_JOB_ID", job), ("SLURM_JOB_GPUS", "0")];
            assert!(node.run("prolog", &gpu).status.success());
        }
        stuck(0);
        epilog("1");
        assert_eq!(taken(), "rm --recursive --force slurm/1\n");
        // The Epilog kills and waits for processes of its own job only.
        epilog("2");
        assert_eq!(
            taken(),
            "rm --recursive --force slurm/2\nrm --recursive slurm/1\n"
        );
        epilog("3");
        let all =
            "rm --recursive --force slurm/3\nrm --recursive slurm/1\nrm --recursive slurm/2\n";
        assert_eq!(taken(), all);
        // The Epilog reports each group once.
        assert_eq!(node.log().matches("stays").count(), 3, "{}", node.log());
        // All removals together have a time limit: the second one begins in time, and the third one
        // would not.
        settings(4);
        stuck(3);
        epilog("4");
        assert_eq!(taken(), "rm --recursive slurm/1\nrm --recursive slurm/2\n");
        fs::remove_file(&works).expect("removed");
        std::os::unix::fs::symlink(GPULIMIT, &works).expect("made");
        node.settings("");
        epilog("5");
        node.clean();
    });
}

#[test]
fn shellcheck_accepts_the_scripts() {
    if !have("shellcheck") {
        return;
    }
    let mut files: Vec<PathBuf> = ["prolog", "task-prolog", "epilog", "slurm.conf"]
        .map(|name| repository("config/slurm").join(name))
        .into();
    files.push(repository("config/login/profile.sh"));
    files.push(repository("config/container-entrypoint"));
    files.push(repository("tests/programs/tests/sites/cluster.sh"));
    let output = Command::new("shellcheck").args(files).output();
    let output = output.expect("started");
    assert!(output.status.success(), "{}", text(&output.stdout));
}
