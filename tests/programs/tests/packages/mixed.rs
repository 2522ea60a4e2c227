//! Two builds whose files have formats that the other does not know, as an old and a new version
//! may: the second build is refused with a message, no program runs without a limit, and the first
//! build goes on.

use std::path::{Path, PathBuf};
use std::process::Output;

use gpulimit_base::version;
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World, finish, text};
use gpulimit_support::{may_mount, skip};

const CAP: u64 = 2048 * MIB;
/// The variable by which a debug build gets other format numbers, and what it adds to them.
const FORMATS: &str = "GPULIMIT_DEBUG_FORMATS";
const ADDED: u64 = 1_000;

/// A controller and its library, and the values of [`FORMATS`] with which they are started.
struct Build {
    controller: (PathBuf, String),
    library: (PathBuf, String),
}

/// Returns the build of this repository. Its library is a release build, which ignores the
/// variable.
fn this() -> Build {
    Build {
        controller: (world::controller(), "0".into()),
        library: (world::shim(), "7".into()),
    }
}

/// Returns another build: the same source with other format numbers. The file of its library is at
/// this path. `None` where there is no debug build of the library.
fn other(library: &Path) -> Option<Build> {
    let Some(debug) = world::faulty_shim() else {
        skip("no debug build of the library");
        return None;
    };
    // Without loading a library, the controller reads the numbers in the library's file.
    let own = format!("({})", version::formats());
    let [ledger, limits, rules] = [version::ledger(), version::limits(), version::rules()];
    let [ledger, limits, rules] = [ledger, limits, rules].map(|number| number + ADDED);
    let others = format!("(ledger {ledger}, limits {limits}, rules {rules})");
    let mut bytes = std::fs::read(debug).expect("read");
    let at = bytes
        .windows(own.len())
        .position(|text| text == own.as_bytes());
    let place = &mut bytes[at.expect("the version")..][..others.len()];
    assert!(place[own.len()..].iter().all(|byte| *byte == 0));
    place.copy_from_slice(others.as_bytes());
    std::fs::write(library, bytes).expect("written");
    Some(Build {
        controller: (world::controller(), ADDED.to_string()),
        library: (library.into(), ADDED.to_string()),
    })
}

impl Build {
    fn run(&self, world: &World, arguments: &[&str]) -> Output {
        let mut command = world.bare(&self.controller.0);
        command
            .args(arguments)
            .env("GPULIMIT_LIBRARY", &self.library.0)
            .env(FORMATS, &self.controller.1);
        finish(command)
    }

    #[track_caller]
    fn done(&self, world: &World, arguments: &[&str]) -> String {
        let output = self.run(world, arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    }

    /// Returns the messages of a refusal, a line for each group.
    #[track_caller]
    fn refused(&self, world: &World, arguments: &[&str]) -> String {
        let output = self.run(world, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(
            said.lines().all(|line| line.starts_with("gpulimit: ")),
            "{said}"
        );
        said
    }

    /// Starts a program with this library, in this group.
    fn program(&self, world: &World, group: &str) -> Session {
        let mut command = world.bare(world::program());
        command
            .env("LD_PRELOAD", &self.library.0)
            .env("GPULIMIT_GROUP", group)
            .env(FORMATS, &self.library.1);
        Session::start(command)
    }
}

/// Runs the test with each of the builds as the first one.
fn each_way(test: impl Fn(&World, &Build, &Build)) {
    for is_first in [true, false] {
        let world = World::without_group(&[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
        let Some(other) = other(&world.file("libgpulimit.so")) else {
            return;
        };
        match is_first {
            true => test(&world, &this(), &other),
            false => test(&world, &other, &this()),
        }
    }
}

fn is_about_versions(said: &str) -> bool {
    said.contains("version") && said.contains("gpulimit") && said.contains("100")
}

#[test]
fn a_library_gets_no_memory_in_a_group_of_the_other_version() {
    each_way(|world, first, second| {
        first.done(world, &["create", "lab", "max=2G"]);
        let mut inside = first.program(world, "lab");
        inside.expect(&[("start", "0 0"), ("alloc a 500M", "0")]);
        // The program gets no memory at all, and does not run without a limit.
        let mut outside = second.program(world, "lab");
        outside.expect(&[("start", "0 800"), ("alloc a 1M", "800")]);
        let (_, said) = outside.end();
        assert!(
            said.starts_with("gpulimit: no GPU memory for this program: "),
            "{said}"
        );
        assert!(is_about_versions(&said), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let used = world.machine().used();
        assert!(used.abs_diff(CONTEXT + 500 * MIB) <= world::BLOCK, "{used}");
        // The program that came first goes on, under its limit.
        inside.expect(&[("alloc b 500M", "0"), ("alloc c 1G", "2")]);
        assert!(world.machine().gpu(0).peak <= CAP);
    });
}

#[test]
fn a_controller_runs_no_command_with_the_other_library() {
    each_way(|world, first, second| {
        let mixed = Build {
            controller: first.controller.clone(),
            library: second.library.clone(),
        };
        let output = mixed.run(
            world,
            &["run", "--max", "1G", "--", "touch", "/nowhere/file"],
        );
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains("does not work with this gpulimit"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let output = mixed.run(world, &["doctor"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            text(&output.stdout).contains("does not work with this gpulimit"),
            "{output:?}"
        );
        let output = mixed.run(world, &["install", "--dry-run"]);
        assert!(
            text(&output.stderr).contains("does not work with this gpulimit"),
            "{output:?}"
        );
        assert!(world.root().groups().expect("readable").is_empty());
    });
}

#[test]
fn a_controller_leaves_groups_of_the_other_version_alone() {
    each_way(|world, first, second| {
        first.done(world, &["create", "lab", "max=2G"]);
        first.done(world, &["create", "lab/alice", "max=1G"]);
        second.done(world, &["create", "own", "max=3G"]);
        let mut inside = first.program(world, "lab/alice");
        inside.expect(&[("start", "0 0"), ("alloc a 200M", "0")]);
        for arguments in [
            &["show", "lab"][..],
            &["show", "--tree", "lab"],
            &["get", "lab", "max"],
            &["set", "lab", "max=4G"],
            &["events", "lab"],
            &["kill", "lab"],
            &["rm", "--recursive", "--force", "lab"],
        ] {
            let said = second.refused(world, arguments);
            assert!(is_about_versions(&said), "{said}");
        }
        // The controller still shows its own groups.
        let output = second.run(world, &["show"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stdout).contains("own"), "{output:?}");
        assert!(is_about_versions(&text(&output.stderr)), "{output:?}");
        // Removing the group would let its programs go on beside those of a new group.
        for arguments in [
            &["rm", "lab/alice"][..],
            &["rm", "--recursive", "lab"],
            &["gc"],
        ] {
            let output = second.run(world, arguments);
            assert!(
                arguments == ["gc"] || output.status.code() == Some(1),
                "{output:?}"
            );
        }
        assert_eq!(first.done(world, &["get", "lab/alice", "max"]), "1GiB\n");
        inside.expect(&[("alloc b 100M", "0"), ("alloc c 500M", "2")]);
        drop(inside);
        // Once the programs have ended, the group can be made again.
        second.done(world, &["rm", "--recursive", "lab"]);
        second.done(world, &["create", "lab", "max=2G"]);
        second
            .program(world, "lab")
            .expect(&[("start", "0 0"), ("alloc a 200M", "0")]);
    });
}

#[test]
fn rules_of_the_other_version_close_the_gpu() {
    if !may_mount() {
        return;
    }
    // The rules are read in a namespace with a /run of its own.
    each_way(|world, first, second| {
        let policy = world.file("policy.toml");
        std::fs::write(
            &policy,
            "[group.lab]\nmax = \"2G\"\n[[rule]]\nuser = \"root\"\ngroup = \"lab\"\n",
        )
        .expect("written");
        let script = r#"
mount --make-rprivate /
mkdir -p "$PLACE"
mount -t tmpfs -o mode=755 tmpfs "$PLACE"
mkdir -m 755 "$PLACE/gpulimit"
mount --bind "$PLACE" /run
first() { env "$FORMATS=$FIRST_ADDED" "$FIRST" "$@" >&2; }
second() { env "$FORMATS=$SECOND_ADDED" "$SECOND" "$@" >&2; }
program() { echo start | env "$FORMATS=$2" LD_PRELOAD="$1" "$PROGRAM"; }
first apply "$POLICY"
program "$FIRST_LIBRARY" "$FIRST_LIBRARY_ADDED"
program "$SECOND_LIBRARY" "$SECOND_LIBRARY_ADDED"
# The administrator removes the groups of the first version before applying the second.
if second apply "$POLICY"; then exit 9; fi
second rm lab
second apply "$POLICY"
program "$SECOND_LIBRARY" "$SECOND_LIBRARY_ADDED"
"#;
        let mut command = world.bare(Path::new("unshare"));
        command
            .args(["--mount", "sh", "-ec", script])
            .env_remove("GPULIMIT_ROOT")
            .env("PLACE", world.file("run"))
            .env("POLICY", &policy)
            .env("FORMATS", FORMATS)
            .env("PROGRAM", world::program());
        for (name, build) in [("FIRST", first), ("SECOND", second)] {
            for (name, (file, added)) in [
                (name.to_owned(), &build.controller),
                (format!("{name}_LIBRARY"), &build.library),
            ] {
                command.env(format!("{name}_ADDED"), added).env(name, file);
            }
        }
        let output = finish(command);
        let errors = text(&output.stderr);
        let said: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(said.len(), 3, "{output:?}");
        assert!(said[0].ends_with("= 0 0"), "{output:?}");
        assert!(said[1].ends_with("= 0 800"), "{output:?}");
        assert!(said[2].ends_with("= 0 0"), "{output:?}");
        assert!(
            errors.contains("were written by another version of gpulimit"),
            "{errors}"
        );
    });
}
