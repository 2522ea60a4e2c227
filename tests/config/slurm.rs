//! Slurm's scripts without Slurm: the variables that it gives them are set by hand, as Slurm 22.05
//! does, and `squeue` is a script that says what it is told. In every shell that may be `/bin/sh`
//! of a node.

use crate::place::{GPULIMIT, Place, have, me, repository, text};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A node: settings, a library, and the programs that the scripts look for.
struct Node {
    place: Place,
    shell: &'static [&'static str],
}

impl Node {
    /// With these lines in the settings.
    fn new(shell: &'static [&'static str], settings: &str) -> Node {
        let place = Place::new();
        place.write("libgpulimit.so", "");
        // Nothing of it goes to the machine's log.
        let log = format!("#!/bin/sh\necho \"$*\" >>{}\n", place.at("log").display());
        place.script("bin/logger", &log);
        std::os::unix::fs::symlink(GPULIMIT, place.at("bin/gpulimit")).expect("made");
        let node = Node { place, shell };
        node.settings(settings);
        node.queue("1                   gres:shard:2   N/A");
        node
    }

    fn settings(&self, lines: &str) {
        let at = |path: &str| self.place.at(path).display().to_string();
        let text = format!(
            "library={}\nroot={}\nstate={}\nPATH={}:$PATH\n{lines}\n",
            at("libgpulimit.so"),
            at("root"),
            at("state"),
            at("bin")
        );
        self.place.write("slurm.conf", &text);
    }

    /// What squeue says.
    fn queue(&self, lines: &str) {
        let script = format!("#!/bin/sh\ncat <<'END'\n{lines}\nEND\n");
        self.place.script("bin/squeue", &script);
    }

    /// One of the scripts for job 1.
    fn run(&self, script: &str, variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(self.shell[0]);
        command
            .args(&self.shell[1..])
            .arg(repository("config/slurm").join(script))
            .env_clear()
            // Slurm's is none.
            .env("PATH", "/usr/bin:/bin")
            .env("GPULIMIT_SLURM_CONF", self.place.at("slurm.conf"))
            .env("SLURM_JOB_ID", "1")
            .env("SLURM_JOB_UID", me().to_string())
            .envs(variables.iter().copied());
        command.output().expect("started")
    }

    /// The Prolog of a job with a GPU: its status.
    fn prolog(&self, comment: &str) -> i32 {
        let variables = [("SLURM_JOB_GPUS", "0"), ("SLURM_JOB_COMMENT", comment)];
        let output = self.run("prolog", &variables);
        assert_eq!(text(&output.stdout), "");
        output.status.code().expect("a status")
    }

    /// What the TaskProlog says, with the names of this node's files, and whether the task may run.
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

    /// The limit of the job's group.
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

    /// No note of a job, and no group.
    #[track_caller]
    fn clean(&self) {
        assert_eq!(self.notes(), Vec::<PathBuf>::new());
        assert!(!self.place.groups().iter().any(|name| name.contains('/')));
    }
}

/// Runs a test in each shell that is there.
fn in_each_shell(test: impl Fn(&'static [&'static str])) {
    const SHELLS: [&[&str]; 4] = [&["sh"], &["dash"], &["bash", "--posix"], &["busybox", "sh"]];
    for shell in SHELLS {
        if have(shell[0]) {
            test(shell);
        }
    }
}

const ENTERED: &str = "export GPULIMIT_ROOT=PLACE/root\nexport GPULIMIT_GROUP=slurm/1\nexport LD_PRELOAD=PLACE/libgpulimit.so\n";

#[test]
fn a_job_has_a_group_from_prolog_to_epilog() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "shard=2.5G");
        assert_eq!(node.prolog("night run"), 0, "{}", node.log());
        assert_eq!(node.max(), "5GiB");
        assert_eq!(node.task(&[]), (true, ENTERED.into()));
        // The job makes a group of its own in it.
        assert!(
            node.place
                .gpulimit(&["create", "slurm/1/own", "max=1G"])
                .status
                .success()
        );
        node.epilog();
        node.clean();
        // Again, and for a job that never came to its Prolog.
        node.epilog();
        assert_eq!(node.log(), "");
    });
}

#[test]
fn shards_are_read_as_every_version_writes_them() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "shard=12.5%");
        for (queue, max) in [
            ("1 gres:shard N/A", "12.5%"),
            ("1 gres:shard:3 N/A", "37.5%"),
            ("1 gres/shard:a100:4 N/A", "50%"),
            ("1 gres/shard=2 N/A", "25%"),
            ("1 gres:nic:1,gres:shard:2,license/x:9 N/A", "25%"),
            // Others of the same array.
            (
                "12 gres:shard:8 N/A\n1 gres:shard:2 N/A\n11 gres:shard:7 N/A",
                "25%",
            ),
            // A whole GPU, and one that `--gpus` asked for.
            ("1 gres:gpu:2 N/A", "max"),
            ("1 N/A N/A", "max"),
        ] {
            node.queue(queue);
            assert_eq!(node.prolog(""), 0, "{queue}: {}", node.log());
            assert_eq!(node.max(), max, "{queue}");
            node.epilog();
        }
        // Bytes stay whole numbers.
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
fn a_comment_counts_where_there_are_no_shards() {
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
        // Nothing of it is run.
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
fn jobs_without_gpus_are_left_alone() {
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
        // Its own wish, where the site leaves GPUs open.
        node.settings("");
        let asked = [("SLURM_JOB_COMMENT", "gpulimit=2G")];
        assert!(node.run("prolog", &asked).status.success());
        assert_eq!(node.max(), "2GiB");
        node.epilog();
        node.clean();
    });
}

#[test]
fn a_jobs_mistake_fails_the_job_alone() {
    in_each_shell(|shell| {
        for on_error in ["drain", "closed", "open"] {
            let node = Node::new(shell, &format!("on_error={on_error}"));
            assert_eq!(node.prolog("gpulimit=lots"), 0);
            let (may, said) = node.task(&[("SLURM_STEP_GPUS", "0")]);
            assert!(!may, "{said}");
            let line = "print gpulimit: no GPU memory for this job: the job's comment asks for gpulimit=lots: invalid size 'lots'";
            assert!(
                said.starts_with(line) && said.lines().count() == 1,
                "{said}"
            );
            assert!(node.log().contains("Slurm job 1: "), "{}", node.log());
            node.epilog();
            // What the job's user wrote is printed as it is: a shell's echo would make an escape
            // sequence and a line of its own of it.
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
fn a_broken_node_does_what_is_set() {
    in_each_shell(|shell| {
        // What is broken, how, and what is said.
        type Damage<'a> = &'a dyn Fn(&Node);
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
        // Settings that are no sh, or end the shell: as if nothing was set.
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
        // The library went away since.
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
fn tasks_keep_what_their_job_has_set_up() {
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
            // A preload that is not there makes the linker of every program complain.
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
        // Where the root is the machine's, nobody leads a task elsewhere.
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
fn a_second_prolog_finds_its_own_group() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "");
        assert_eq!(node.prolog("gpulimit=8G"), 0);
        // Queued again where no Epilog ran, with another wish.
        assert!(
            node.place
                .gpulimit(&["create", "slurm/1/old"])
                .status
                .success()
        );
        assert_eq!((node.prolog("gpulimit=4G"), &*node.max()), (0, "4GiB"));
        assert_eq!(node.place.groups(), ["slurm", "slurm/1"]);
        // While its programs run, as after slurmd was started anew: nothing is taken from them.
        let root = gpulimit_group::Root::at(node.place.at("root")).expect("a root");
        let member = gpulimit_group::Member::join(&root, "slurm/1").expect("joined");
        assert_eq!((node.prolog("gpulimit=2G"), &*node.max()), (0, "2GiB"));
        assert!(!member.is_orphaned());
        drop(member);
        node.epilog();
        node.clean();
    });
}

#[test]
fn what_an_epilog_cannot_remove_the_next_one_does() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "");
        assert_eq!(node.prolog(""), 0);
        // It does not remove anything.
        let works = node.place.at("bin/gpulimit");
        let stuck = format!(
            "#!/bin/sh\n[ \"$1\" != rm ] || {{ echo gpulimit: in use >&2; exit 1; }}\nexec {GPULIMIT} \"$@\"\n"
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
        // Not there at all: no reason to drain the node either.
        fs::remove_file(&works).expect("removed");
        node.epilog();
        std::os::unix::fs::symlink(GPULIMIT, &works).expect("made");
        // Of another job, later.
        let other = node.run("epilog", &[("SLURM_JOB_ID", "2")]);
        assert!(other.status.success(), "{other:?}");
        node.clean();
        // A job of the same number, which runs by then, keeps its group.
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
        // Removed by hand meanwhile.
        assert_eq!(node.prolog(""), 0);
        assert!(node.place.gpulimit(&["rm", "slurm/1"]).status.success());
        node.epilog();
        node.clean();
    });
}

/// A job can keep its slots locked when it has ended, as by a process that nobody can kill.
#[test]
fn what_earlier_jobs_keep_locked_holds_nobody_up() {
    in_each_shell(|shell| {
        let node = Node::new(shell, "patience=600");
        let works = node.place.at("bin/gpulimit");
        let calls = node.place.at("calls");
        // Whoever removes a group finds it in use, after `wait` seconds.
        let stuck = |wait: u32| {
            let script = format!(
                "#!/bin/sh\n[ \"$1\" != rm ] || {{ echo \"$*\" >>{}; sleep {wait}; echo gpulimit: in use >&2; exit 1; }}\nexec {GPULIMIT} \"$@\"\n",
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
        for job in ["1", "2", "3"] {
            let gpu = [("SLURM_JOB_ID", job), ("SLURM_JOB_GPUS", "0")];
            assert!(node.run("prolog", &gpu).status.success());
        }
        stuck(0);
        epilog("1");
        assert_eq!(taken(), "rm --recursive --force slurm/1\n");
        // Only those of the job itself are killed and waited for.
        epilog("2");
        assert_eq!(
            taken(),
            "rm --recursive --force slurm/2\nrm --recursive slurm/1\n"
        );
        epilog("3");
        let all =
            "rm --recursive --force slurm/3\nrm --recursive slurm/1\nrm --recursive slurm/2\n";
        assert_eq!(taken(), all);
        // It is said once of each.
        assert_eq!(node.log().matches("stays").count(), 3, "{}", node.log());
        // However long each takes, all of them together have a bound.
        node.settings("patience=1");
        stuck(3);
        epilog("4");
        assert!(taken().lines().count() <= 1);
        fs::remove_file(&works).expect("removed");
        std::os::unix::fs::symlink(GPULIMIT, &works).expect("made");
        node.settings("");
        epilog("5");
        node.clean();
    });
}

#[test]
fn shellcheck_finds_nothing() {
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
