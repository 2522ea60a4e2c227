//! The portable builds inside root file systems of older and newer distributions.
//! `scripts/userlands` makes them, builds for them, and runs these tests.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gpulimit_programs::world::{self, MIB, World, finish, text};

const CAP: u64 = 2048 * MIB;
/// The pieces of 100 MiB that fit into the limit beside a context; the library's reserve is less
/// than a piece.
const PIECES: &str = "pieces 15";

/// The C libraries of the systems that `scripts/userlands` makes itself.
const GLIBC: [(&str, &str); 3] = [
    ("bullseye-", "2.31"),
    ("bookworm-", "2.36"),
    ("trixie-", "2.41"),
];

/// Ways in which programs are linked to the driver.
const DOORS: [(&str, &[&str]); 5] = [
    ("dlsym", &[]),
    ("linked", &["-DLINKED", "-lcuda"]),
    ("asked", &["-DASKED", "-lcuda"]),
    ("runtime", &["-DRUNTIME"]),
    ("next", &["-DNEXT", "-Wl,--no-as-needed", "-lcuda"]),
];

/// Programs that depend on the C library and the loader, which differ between the systems: threads
/// that end with destructors of thread-local variables, or by `pthread_cancel`; children of ten
/// kinds; calls before `main`; closed libraries.
const LIVES: [&str; 5] = ["threads", "cancel", "children", "constructor", "closes"];

/// A limit with room for everything that the programs do.
const ROOMY: u64 = 8192 * MIB;

fn systems() -> Vec<PathBuf> {
    let named = env::var_os("GPULIMIT_USERLANDS").expect("scripts/userlands runs these");
    let systems: Vec<PathBuf> = env::split_paths(&named).collect();
    assert!(!systems.is_empty(), "no system to test in");
    systems
}

/// Returns a system's name, for messages.
fn name(system: &Path) -> String {
    let folder = system.file_name().expect("a folder");
    folder.to_string_lossy().into_owned()
}

/// Returns the same command with the system's files at `/`; the tests' builds and files keep their
/// paths outside it.
fn inside(system: &Path, command: &Command) -> Command {
    let built = env::var_os("GPULIMIT_TEST_ELSEWHERE").expect("scripts/userlands runs these");
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
    // The tests' builds have another path in the system.
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

/// The lines and errors that a program has printed.
#[derive(Debug, PartialEq)]
struct Seen {
    lines: Vec<String>,
    errors: Vec<String>,
}

impl Seen {
    /// Removes the library's messages about refusals from the errors, and returns them.
    fn take_refusals(&mut self) -> Vec<String> {
        let is_ours =
            |line: &mut String| line.starts_with("gpulimit: ") && line.contains("refused");
        self.errors.extract_if(.., is_ours).collect()
    }
}

/// Runs a program that waits where it prints `hold`; `at_hold` inspects the machine then.
#[track_caller]
fn watch(mut command: Command, mut at_hold: impl FnMut()) -> Seen {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let mut lines: Vec<String> = Vec::new();
    for line in output.lines() {
        lines.push(line.expect("text"));
        if lines.last().is_some_and(|line| line == "hold") {
            at_hold();
            let input = child.stdin.as_mut().expect("piped");
            input.write_all(b"\n").expect("it waits");
        }
    }
    let output = child.wait_with_output().expect("it ends");
    let errors = text(&output.stderr);
    assert!(
        output.status.success(),
        "{} after {lines:?}: {errors}",
        output.status
    );
    assert!(lines.contains(&"hold".into()), "{lines:?}: {errors}");
    let errors = errors.lines().map(String::from).collect();
    Seen { lines, errors }
}

#[test]
#[ignore = "scripts/userlands runs it"]
fn the_limit_holds_by_every_door() {
    for system in systems() {
        let name = name(&system);
        for (door, arguments) in DOORS {
            let program = world::compile("takes", arguments);
            let world = World::new(CAP);
            let mut found = watch(inside(&system, &world.limited(&program)), || {
                world.judge(CAP);
                assert!(world.machine().used() + 100 * MIB > CAP - 4 * MIB);
            });
            world.judge_end(CAP);
            eprintln!("{name}, {door}: {}", found.lines.join(", "));
            if let Some((_, version)) = GLIBC.iter().find(|(suite, _)| name.starts_with(suite)) {
                assert_eq!(found.lines[0], format!("glibc {version}"));
            }
            assert_eq!(found.lines[1..], ["start 0", PIECES, "hold"]);
            assert_eq!(found.take_refusals().len(), 1, "{found:?}");
            assert_eq!(found.errors, [""; 0]);
        }
    }
}

#[test]
#[ignore = "scripts/userlands runs it"]
fn programs_behave_as_without_gpulimit() {
    for system in systems() {
        for life in LIVES {
            // A library that is opened may find the driver in other ways than its program; the
            // other programs need one door only, since their doors are tested above.
            let doors = if life == "closes" {
                &DOORS[..]
            } else {
                &DOORS[..1]
            };
            for (door, arguments) in doors {
                let pthread: Vec<&str> = arguments.iter().copied().chain(["-pthread"]).collect();
                let program = world::compile(life, &pthread);
                let library = world::library("holds", arguments);
                let told = |mut command: Command| {
                    if life == "closes" {
                        command.arg(&library);
                    }
                    inside(&system, &command)
                };
                let bare = World::without_group(&[]);
                let expected = watch(told(bare.bare(&program)), || ());

                let world = World::new(ROOMY);
                let mut found = watch(told(world.limited(&program)), || {
                    world.bury();
                    world.judge(ROOMY);
                });
                found.take_refusals();
                assert_eq!(found, expected, "{life}, {door}, {system:?}");
                world.judge_end(ROOMY);
            }
            eprintln!("{}, {life}: as without us", name(&system));
        }
    }
}

#[test]
#[ignore = "scripts/userlands runs it"]
fn other_preloads_find_the_next_symbol() {
    for system in systems() {
        let program = world::compile("takes", &[]);
        let shim = world::shim().display().to_string();
        for (other, before) in [
            ("wraps_malloc", false),
            ("wraps_malloc", true),
            ("wraps_dlsym", false),
            ("wraps_dlsym", true),
        ] {
            let library = world::library(other, &[]).display().to_string();
            let (first, second) = if before {
                (&library, &shim)
            } else {
                (&shim, &library)
            };
            let world = World::new(CAP);
            let mut command = world.limited(&program);
            command.env("LD_PRELOAD", format!("{first}:{second}"));
            let mut found = watch(inside(&system, &command), || world.judge(CAP));
            assert_eq!(found.lines[1..], ["start 0", PIECES, "hold"]);
            assert_eq!(found.take_refusals().len(), 1, "{found:?}");
            // The wrapper says first whether it was called, if it counts that.
            found.errors.retain(|line| line != "wraps_dlsym: called");
            assert_eq!(found.errors, [format!("{other}: alive")], "{system:?}");
            world.judge_end(CAP);
        }
    }
}

#[test]
#[ignore = "scripts/userlands runs it"]
fn the_controller_runs_and_shows_the_programs() {
    for system in systems() {
        let program = world::compile("takes", &[]);
        let world = World::new(CAP);
        let controller = |arguments: &[&str]| {
            let mut command = world.bare(&world::controller());
            command.args(arguments);
            let output = finish(inside(&system, &command));
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success(), "{arguments:?}, {system:?}: {said}");
            said
        };
        assert_eq!(
            controller(&["--version"]),
            concat!("gpulimit ", env!("CARGO_PKG_VERSION"), "\n")
        );

        // The second limit, set by the controller, is 1 GiB below the first one of the group around
        // it.
        let mut command = world.bare(&world::controller());
        command.args(["run", "--group", "world", "--max", "1G", "--"]);
        command.arg(&program);
        let found = watch(inside(&system, &command), || {
            world.judge(CAP);
            for (question, expected) in [("ps", "takes"), ("show", "world/run-")] {
                let shown = controller(&[question, "--json"]);
                assert!(shown.contains(expected), "{question}: {shown}");
            }
            let doctor = controller(&["doctor"]);
            assert!(doctor.contains("catches its own panics"), "{doctor}");
        });
        assert_eq!(
            found.lines[1..],
            ["start 0", "pieces 5", "hold"],
            "{system:?}"
        );
        world.judge_end(CAP);
    }
}
