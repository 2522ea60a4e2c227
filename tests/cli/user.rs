//! The rights of another user: the tests run as root, with a second, unprivileged user.

use crate::place::{Place, executable, is_root, may_unshare, text};
use gpulimit_base::units::Size;
use gpulimit_support::clean;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The id of the second user.
pub const ALICE: &str = "65533";

/// A root such as the system's, with the controller and its library where every user can start
/// them.
pub struct Machine {
    pub place: Place,
    pub program: PathBuf,
}

impl Machine {
    /// Makes the machine; `None` if the test does not run as root.
    pub fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let place = Place::new();
        let open = |path: &PathBuf| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("opened");
        };
        fs::create_dir(place.root_path()).expect("created");
        open(&place.root_path());
        let program = place.0.join("gpulimit");
        executable::copy(Path::new(env!("CARGO_BIN_EXE_gpulimit")), &program);
        let library = place.0.join("libgpulimit.so");
        fs::copy(crate::place::library(), &library).expect("copied");
        open(&library);
        Some(Self { place, program })
    }

    /// Runs the controller as the second user.
    pub fn alice(&self, arguments: &[&str]) -> Output {
        self.as_alice(arguments).output().expect("started")
    }

    /// Runs the controller as the second user, whose environment names this group.
    pub fn alice_in(&self, group: &str, arguments: &[&str]) -> Output {
        let mut command = self.as_alice(arguments);
        command.env("GPULIMIT_GROUP", group);
        command.output().expect("started")
    }

    fn as_alice(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", ALICE, "--regid", ALICE, "--clear-groups"])
            .arg(&self.program)
            .args(arguments);
        self.set(&mut command);
        command
    }

    /// Runs the controller as root.
    fn root(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        self.set(command.args(arguments));
        command.output().expect("started")
    }

    fn set(&self, command: &mut Command) {
        clean(command)
            .env("GPULIMIT_ROOT", self.place.root_path())
            .env("GPULIMIT_LIBRARY", self.place.0.join("libgpulimit.so"));
    }

    fn said(&self, arguments: &[&str]) -> String {
        let output = self.alice(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.alice(arguments);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stderr)
    }
}

#[test]
fn users_see_all_groups_and_change_those_below_their_own() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let place = &machine.place;
    place.group("lab", Size::Max);
    place.said(&["create", "lab/alice", "max=8G", "--owner", ALICE]);
    place.said(&["create", "lab/bob", "max=8G"]);
    assert_eq!(
        machine.said(&["show", "--names"]),
        "lab\nlab/alice\nlab/bob\n"
    );
    assert!(machine.said(&["show", "--tree"]).contains("bob"));
    assert_eq!(machine.said(&["get", "lab/bob", "max"]), "8GiB\n");

    for arguments in [
        &["set", "lab/alice", "max=80G"][..],
        &["set", "lab", "max=80G"],
        &["set", "lab/bob", "max=1G"],
    ] {
        let error = machine.refused(arguments);
        assert!(error.contains("you may not change the limits"), "{error}");
    }
    for arguments in [
        &["rm", "lab/alice"][..],
        &["rm", "-r", "lab"],
        &["create", "lab/more", "max=80G"],
        &["create", "mine", "max=80G"],
        &["create", "lab/bob/x"],
        &["kill", "lab/bob"],
        &["events", "lab/bob"],
        &["ps", "lab/bob"],
    ] {
        machine.refused(arguments);
    }
    // A group that another user has made below one of their own.
    place.said(&["create", "lab/bob/x", "max=1G"]);
    let below = place.root_path().join("lab/sub/bob/sub");
    chown(&below, Some(65_532), Some(65_532)).expect("given");
    for arguments in [&["show", "lab/bob/x"][..], &["rm", "lab/bob/x"]] {
        let error = machine.refused(arguments);
        let expected = "belongs to user 65532, not to you: only that user and root may use";
        assert!(error.contains(expected), "{error}");
    }
    chown(&below, Some(0), Some(0)).expect("given");
    place.said(&["rm", "lab/bob/x"]);
    assert_eq!(place.root().leftovers().expect("listed").len(), 0);
    assert_eq!(machine.said(&["gc"]), "");

    machine.said(&["create", "lab/alice/job", "max=1G"]);
    machine.said(&["set", "lab/alice/job", "max=2G"]);
    let out = machine.said(&[
        "run",
        "--group",
        "lab/alice",
        "--max",
        "1G",
        "--",
        "sh",
        "-c",
        "echo $GPULIMIT_GROUP",
    ]);
    assert!(out.starts_with("lab/alice/run-"), "{out}");
    machine.said(&["rm", "lab/alice/job"]);
    assert_eq!(place.said(&["show", "--names", "lab/alice"]), "");
    let error = machine.refused(&["run", "--group", "lab/bob", "--max", "1G", "--", "true"]);
    assert!(
        error.contains("you may not run in group 'lab/bob'"),
        "{error}"
    );
}

#[test]
fn only_the_owner_makes_jobs_with_limits_in_a_shared_group() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let place = &machine.place;
    place.said(&["create", "lab", "max=8G", "--members", "all"]);
    // A job with a limit of its own needs a group of its own.
    let error = machine.refused(&["run", "--group", "lab", "--max", "1G", "--", "true"]);
    assert!(
        error.contains("you may not make a group below 'lab'"),
        "{error}"
    );
    let out = machine.said(&[
        "run",
        "--group",
        "lab",
        "--",
        "sh",
        "-c",
        "echo $GPULIMIT_GROUP",
    ]);
    assert_eq!(out, "lab\n");
    assert_eq!(place.said(&["show", "--names"]), "lab\n");
    assert_eq!(machine.said(&["events", "lab"]), "");
}

#[test]
fn only_root_gives_groups_to_other_users() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let place = &machine.place;
    place.said(&["create", "lab", "--owner", ALICE]);
    let error = machine.refused(&["create", "lab/gift", "--owner", "0"]);
    assert!(
        error.contains("only root can give a group to another user (0)"),
        "{error}"
    );
    let error = machine.refused(&["create", "lab/gift", "--members", "@0"]);
    assert!(error.contains("can give a group to @0"), "{error}");
    machine.refused(&["create", "lab/a/b/gift", "--parents", "--owner", "0"]);
    assert_eq!(place.said(&["show", "--names", "lab"]), "");
    assert_eq!(place.root().leftovers().expect("listed").len(), 0);
    let mine = machine.said(&["create", "lab/mine", "--owner", ALICE]);
    assert!(mine.contains("created"), "{mine}");
}

#[test]
fn a_program_of_roots_job_may_become_another_user() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let root = machine.place.root_path();
    let script = format!(
        "echo $GPULIMIT_ROOT $GPULIMIT_GROUP
        admin() {{ {program} \"$@\"; }}
        alice() {{ setpriv --reuid {ALICE} --regid {ALICE} --clear-groups {program} \"$@\"; }}
        alice run -- sh -c 'echo joins $GPULIMIT_GROUP'
        alice show --json; alice show no-group; alice set $GPULIMIT_GROUP max=2G
        admin show --names; admin show --json; admin show no-group
        (GPULIMIT_ROOT={root}; alice run -- true) && exit 9
        admin run --max 1G -- sh -c 'echo nested $GPULIMIT_ROOT $GPULIMIT_GROUP'
        admin run --name $GPULIMIT_GROUP -- sh -c 'echo named $GPULIMIT_GROUP'
        admin run --user {ALICE}:{ALICE} --max 1G -- \\
            {program} run -- sh -c 'echo reaches $GPULIMIT_GROUP'
        admin run --user {ALICE}:{ALICE} --name $GPULIMIT_GROUP/x --max 1G -- true && exit 9
        admin run --max 1G -- setpriv --reuid {ALICE} --regid {ALICE} --clear-groups \\
            {program} run -- true && exit 9
        exec sleep 0",
        program = machine.program.display(),
        root = root.display()
    );
    let output = machine.root(&["run", "--max", "1G", "--", "sh", "-c", &script]);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let (first, rest) = said.split_once('\n').expect("lines");
    let (view, group) = first.split_once(' ').expect("two words");
    let secret = view.strip_prefix(&format!("{}/.secret/", root.display()));
    let secret = secret.and_then(|name| name.strip_prefix(&format!("{group}.")));
    assert_eq!(secret.map(str::len), Some(32), "{said}");
    assert!(!rest.contains(".secret"), "{said}");
    for expected in [
        format!("joins {group}\n"),
        format!("no group 'no-group' in {}", root.display()),
        "you may not change the limits".into(),
        format!("nested {} {group}/run-", root.display()),
        format!("named {group}\n"),
        format!("reaches {group}/run-"),
        "another user cannot reach the group".into(),
        "`gpulimit run --user`".into(),
    ] {
        assert!(rest.contains(&expected), "{expected}: {said}");
    }
    machine.place.clean();
    let views = Path::new(view).parent().expect("a directory");
    assert_eq!(fs::read_dir(views).expect("listed").count(), 0);
    // A job below a group has no such path.
    machine.place.said(&["create", "lab", "max=8G"]);
    let script = "echo $GPULIMIT_ROOT";
    let output = machine.root(&["run", "--group", "lab", "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), format!("{}\n", root.display()));
}

#[test]
fn root_runs_a_command_as_another_user() {
    let Some(machine) = Machine::new() else {
        return;
    };
    machine.place.said(&["create", "lab", "max=8G"]);
    machine
        .place
        .said(&["create", "all", "max=8G", "--members", "all"]);
    let program = machine.program.display();
    let root = |user: &str, options: &[&str], script: &str| {
        let run = ["run", "--user", user];
        let output = machine.root(&[&run[..], options, &["--", "sh", "-c", script]].concat());
        (
            output.status.code(),
            text(&output.stdout) + &text(&output.stderr),
        )
    };
    let script = format!(
        "id -u; id -G; grep -E '^Cap(Prm|Eff|Amb)' /proc/self/status | cut -f 2 | uniq
        grep -E '^[UG]id:' /proc/self/status | cut -f 2- | tr '\\t' ' '
        {program} set $GPULIMIT_GROUP max=2G >&2 && exit 9
        exec {program} run --max 512M -- sh -c 'echo $GPULIMIT_GROUP'"
    );
    for options in [
        &["--max", "1G"][..],
        &["--max", "1G", "--stat"],
        &["--max", "1G", "--group", "all"],
    ] {
        let (status, said) = root("65533:65532", options, &script);
        assert_eq!(status, Some(0), "{said}");
        let lines: Vec<_> = said.lines().collect();
        let ids = ["65533", "65532", "0000000000000000"];
        assert_eq!(lines[..3], ids, "{said}");
        assert_eq!(lines[3], "65533 65533 65533 65533", "{said}");
        assert_eq!(lines[4], "65532 65532 65532 65532", "{said}");
        assert!(said.contains("you may not change the limits"), "{said}");
        let group = lines
            .iter()
            .find(|line| line.contains("/run-"))
            .expect(&said);
        assert_eq!(
            group.starts_with("all/"),
            options.contains(&"all"),
            "{said}"
        );
    }
    assert_eq!(
        root("65533:65533", &["--name", "all"], "id -u"),
        (Some(0), "65533\n".into())
    );
    machine.place.group("run-1-2", Size::Max);
    for (user, options, expected) in [
        (
            "65533:65533",
            &["--name", "lab"],
            "user 65533 may not run in group 'lab'",
        ),
        (
            "65533:65533",
            &["--group", "lab"],
            "user 65533 may not run in group 'lab'",
        ),
        (
            "65533:65533",
            &["--group", "run-1-2"],
            "user 65533 may not run in group 'run-1-2': name another group, such as one that was",
        ),
        ("65529", &["--max", "1G"], "write UID:GID"),
        ("nobody-here", &["--max", "1G"], "there is no such user"),
    ] {
        let (status, said) = root(user, options, "id -u");
        assert!(status != Some(0) && said.contains(expected), "{said}");
    }
    let error = machine.refused(&["run", "--user", "0", "--max", "1G", "--", "true"]);
    assert!(
        error.contains("only root can become another user"),
        "{error}"
    );
}

/// The files of a zombie in `/proc` belong to root, so that its user may not open its environment.
#[test]
fn a_zombie_of_the_user_keeps_no_group() {
    let Some(machine) = Machine::new().filter(|_| may_unshare(&["--pid", "--mount-proc"])) else {
        return;
    };
    fs::create_dir(machine.place.root_path().join("own")).expect("created");
    chown(
        machine.place.root_path().join("own"),
        ALICE.parse().ok(),
        None,
    )
    .expect("given");
    // Process 1 is `cat`, which does not reap the process that it inherits.
    let script = "mkfifo $FIFO; export GPULIMIT_ROOT=$GPULIMIT_ROOT/own
        main() {
            user $PROGRAM run --max 1G -- sh -c 'echo $GPULIMIT_GROUP'
            user sh -c '(exec sleep 0) &'
            until grep -qs '^State:.Z' /proc/[0-9]*/status; do :; done
            user $PROGRAM gc
        }
        user() { setpriv --reuid $ALICE --regid $ALICE --clear-groups \"$@\"; }
        main > $FIFO & exec cat $FIFO";
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--pid",
        "--mount-proc",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        script,
    ]);
    machine.set(&mut unshare);
    unshare.env("PROGRAM", &machine.program).env("ALICE", ALICE);
    unshare.env("FIFO", machine.place.0.join("fifo"));
    let output = unshare.output().expect("started");
    let said = text(&output.stdout);
    let group = said.lines().next().unwrap_or_default();
    let expected = format!("{group}\n{group}: removed, its job has ended\n");
    assert_eq!(said, expected, "{output:?}");
}
