//! The portable builds inside root file systems of other ages. `scripts/userlands` makes them, builds for them, and runs these.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gpulimit_programs::world::{self, MIB, World, finish, text};

const CAP: u64 = 2048 * MIB;
/// Context and pieces of 100 MiB that fit into the cap; the library keeps a reserve of less than a piece.
const PIECES: &str = "pieces 15";

/// The C libraries of the systems that `scripts/userlands` makes by itself.
const GLIBC: [(&str, &str); 3] = [
    ("bullseye-", "2.31"),
    ("bookworm-", "2.36"),
    ("trixie-", "2.41"),
];

/// Ways to the driver, as programs are linked.
const DOORS: [(&str, &[&str]); 4] = [
    ("dlsym", &[]),
    ("linked", &["-DLINKED", "-lcuda"]),
    ("asked", &["-DASKED", "-lcuda"]),
    ("runtime", &["-DRUNTIME"]),
];

fn systems() -> Vec<PathBuf> {
    let named = env::var_os("GPULIMIT_USERLANDS").expect("scripts/userlands runs these");
    let systems: Vec<PathBuf> = env::split_paths(&named).collect();
    assert!(!systems.is_empty(), "no system to test in");
    systems
}

/// The same command with the system's files at `/`; what we built, and the files of this test, are where they are outside.
fn inside(system: &Path, command: &Command) -> Command {
    let built = env::var_os("GPULIMIT_TEST_BUILT").expect("scripts/userlands runs these");
    let mut inside = Command::new("unshare");
    inside
        .args(["--map-root-user", "--mount", "sh", "-euc"])
        .arg(
            r#"system=$1 built=$2
            shift 2
            mount --rbind /dev "$system/dev"
            mount --rbind /proc "$system/proc"
            mount -t tmpfs none "$system/tmp"
            mkdir "$system/tmp/built"
            mount --rbind "$built" "$system/tmp/built"
            exec chroot "$system" /bin/sh -c '
                while [ "$1" != -- ]; do export "$1"; shift; done
                shift
                exec "$@"' sh "$@""#,
        )
        .arg("sh")
        .args([system.as_os_str(), &built]);
    let built = built.to_str().expect("UTF-8");
    // What we built has another path there.
    let there = |text: &OsStr| text.to_str().expect("UTF-8").replace(built, "/tmp/built");
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            inside.arg(format!("{}={}", name.display(), there(value)));
        }
    }
    inside.arg("--").arg(there(command.get_program()));
    inside.args(command.get_args().map(there));
    inside
}

/// Runs a program that holds what it took; `at_hold` looks at the machine then.
#[track_caller]
fn watch(mut command: Command, at_hold: impl FnOnce()) -> Vec<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let mut lines: Vec<String> = Vec::new();
    let mut at_hold = Some(at_hold);
    for line in output.lines() {
        let line = line.expect("text");
        if line == "hold"
            && let Some(look) = at_hold.take()
        {
            look();
            let input = child.stdin.as_mut().expect("piped");
            input.write_all(b"\n").expect("it waits");
        } else {
            lines.push(line);
        }
    }
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status} after {lines:?}");
    assert!(at_hold.is_none(), "it never held: {lines:?}");
    lines
}

#[test]
#[ignore = "scripts/userlands runs it"]
fn the_limit_holds_by_every_door() {
    for system in systems() {
        let name = system.file_name().expect("a folder").to_string_lossy();
        for (door, arguments) in DOORS {
            let program = world::compile_for("takes", door, arguments);
            let world = World::new(CAP);
            let found = watch(inside(&system, &world.limited(&program)), || {
                world.judge(CAP);
                assert!(world.machine().used() + 100 * MIB > CAP - 4 * MIB);
            });
            world.judge_end(CAP);
            eprintln!("{name}, {door}: {}", found.join(", "));
            if let Some((_, version)) = GLIBC.iter().find(|(suite, _)| name.starts_with(suite)) {
                assert_eq!(found[0], format!("glibc {version}"));
            }
            assert_eq!(found[1..], ["start 0", PIECES]);
        }
    }
}

#[test]
#[ignore = "scripts/userlands runs it"]
fn the_controller_runs_and_shows_it() {
    for system in systems() {
        let program = world::compile_for("takes", "dlsym", &[]);
        let world = World::new(CAP);
        let controller = |arguments: &[&str]| {
            let mut command = world.bare(&world::controller());
            command.args(arguments);
            inside(&system, &command)
        };
        let version = finish(controller(&["--version"]));
        assert_eq!(
            text(&version.stdout),
            concat!("gpulimit ", env!("CARGO_PKG_VERSION"), "\n")
        );

        // By the environment, and by the controller: 1 GiB less than the group around it.
        let mut command = world.bare(&world::controller());
        command.args(["run", "--group", "world", "--max", "1G", "--"]);
        command.arg(&program);
        let found = watch(inside(&system, &command), || {
            world.judge(CAP);
            let shown = finish(controller(&["ps", "--json"]));
            let shown = text(&shown.stdout);
            assert!(shown.contains("takes"), "{shown}");
        });
        assert_eq!(found[1..], ["start 0", "pieces 5"], "{system:?}");
        world.judge_end(CAP);
    }
}
