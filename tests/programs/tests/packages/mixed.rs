//! Two builds whose files have formats that the other does not know, as an old and a new version
//! may: the second build is refused with a message, no program runs without a limit, and the first
//! build goes on.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World, finish, text};

const CAP: u64 = 2048 * MIB;

/// A controller and its library.
struct Build {
    controller: PathBuf,
    library: PathBuf,
}

/// Returns the build of this repository.
fn this() -> Build {
    Build {
        controller: world::controller(),
        library: world::shim(),
    }
}

/// Returns another build: the same source with other format numbers.
fn other() -> &'static Build {
    static BUILD: OnceLock<Build> = OnceLock::new();
    BUILD.get_or_init(|| {
        // The controller is …/target/debug/gpulimit.
        let own = world::controller();
        let target = own.ancestors().nth(2).expect("a target folder");
        let apart = target.join("other-formats");
        let cargo = |arguments: &str| {
            let mut command = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()));
            command
                .args(["build", "--quiet", "--locked"])
                .args(arguments.split(' '))
                .current_dir(world::repository());
            command
        };
        // Only the crates that differ are built again, without optimisation.
        let mut controller =
            cargo("--workspace --features gpulimit/other-formats --bin gpulimit-other-formats");
        controller.env("CARGO_TARGET_DIR", target);
        let mut library = cargo("-p gpulimit-shim --features other-formats");
        library.env("CARGO_TARGET_DIR", &apart);
        for command in [controller, library] {
            let output = finish(command);
            assert!(output.status.success(), "{output:?}");
        }
        Build {
            controller: target.join("debug/gpulimit-other-formats"),
            library: apart.join("debug/libgpulimit.so"),
        }
    })
}

impl Build {
    fn run(&self, world: &World, arguments: &[&str]) -> Output {
        let mut command = world.bare(&self.controller);
        command
            .args(arguments)
            .env("GPULIMIT_LIBRARY", &self.library);
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
            .env("LD_PRELOAD", &self.library)
            .env("GPULIMIT_GROUP", group);
        Session::start(command)
    }
}

/// Runs the test with each of the builds as the first one.
fn each_way(test: impl Fn(&World, &Build, &Build)) {
    for (first, second) in [(&this(), other()), (other(), &this())] {
        let world = World::without_group(&[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
        test(&world, first, second);
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
            &["tree", "lab"],
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
"$FIRST" apply "$POLICY" >&2
echo start | LD_PRELOAD="$FIRST_LIBRARY" "$PROGRAM"
echo start | LD_PRELOAD="$SECOND_LIBRARY" "$PROGRAM"
# The administrator removes the groups of the first version before applying the second.
if "$SECOND" apply "$POLICY"; then exit 9; fi
"$SECOND" rm lab >&2
"$SECOND" apply "$POLICY" >&2
echo start | LD_PRELOAD="$SECOND_LIBRARY" "$PROGRAM"
"#;
        let mut command = world.bare(Path::new("unshare"));
        command
            .args(["--mount", "sh", "-ec", script])
            .env_remove("GPULIMIT_ROOT")
            .env("PLACE", world.file("run"))
            .env("POLICY", &policy)
            .env("FIRST", &first.controller)
            .env("FIRST_LIBRARY", &first.library)
            .env("SECOND", &second.controller)
            .env("SECOND_LIBRARY", &second.library)
            .env("PROGRAM", world::program());
        let output = finish(command);
        let errors = text(&output.stderr);
        if errors.contains("unshare failed") || errors.contains("mount:") {
            eprintln!("SKIPPED: no mount namespaces here: {errors}");
            return;
        }
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
